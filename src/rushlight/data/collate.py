"""From a list of samples to a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from rushlight import ops
from rushlight.autograd import TensorBase
from rushlight.creation import from_numpy_array, tensor
from rushlight.dtypes import float64
from rushlight.errors import ShapeError
from rushlight.tensor import Tensor


def default_collate(batch: Sequence[Any]) -> Any:
    """A batch from samples, with a new first axis.

    Tensors and arrays of one shape are stacked and keep their dtype; Python floats give float64,
    integers int64, booleans bool; strings and bytes stay a list. Mappings and named tuples keep
    their type, tuples become lists, and each of their parts is collated.
    Raises: ShapeError for samples of different shapes, which names the sample and both shapes;
    ValueError for sequences of different lengths; TypeError for samples of any other type.
    Source: PyTorch's `default_collate`.
    """
    if len(batch) == 0:
        raise ValueError("default_collate: a batch needs at least one sample")
    return _collate(batch, "")


def _collate(batch: Sequence[Any], place: str) -> Any:
    first = batch[0]
    if isinstance(first, TensorBase):
        return _stacked(batch, place)
    if isinstance(first, np.ndarray):
        return _stacked([from_numpy_array(np.asarray(x)) for x in batch], place)
    if isinstance(first, float):
        return tensor(batch, dtype=float64)
    if isinstance(first, int | np.bool_ | np.number):
        return tensor(np.asarray(batch) if isinstance(first, np.generic) else batch)
    if isinstance(first, str | bytes):
        return batch
    if isinstance(first, Mapping):
        return _rebuilt_mapping(
            first, lambda key: _collate([x[key] for x in batch], f"{place}[{key!r}]")
        )
    if isinstance(first, Sequence):
        for number, x in enumerate(batch):
            if len(x) != len(first):
                raise ValueError(
                    f"default_collate: sample {number}{place} has {len(x)} parts, "
                    f"sample 0{place} has {len(first)}"
                )
        parts = [
            _collate(part, f"{place}[{number}]")
            for number, part in enumerate(zip(*batch, strict=True))
        ]
        return _rebuilt_sequence(first, parts)
    raise TypeError(
        f"default_collate: sample 0{place} is of type {type(first).__name__}; expected tensors, "
        "arrays, numbers, strings, mappings or sequences of these, or pass a collate_fn"
    )


def _stacked(batch: Sequence[Tensor], place: str) -> Tensor:
    shape = tuple(batch[0].shape)
    for number, x in enumerate(batch):
        if tuple(x.shape) != shape:
            raise ShapeError(
                f"default_collate: sample {number}{place} has shape {tuple(x.shape)}, sample "
                f"0{place} has {shape}; pass a collate_fn that pads"
            )
    return ops.stack(batch)


def _rebuilt_mapping(like: Mapping[Any, Any], value: Callable[[Any], Any]) -> Any:
    values = {key: value(key) for key in like}
    if type(like) is dict:
        return values
    try:  # a copy keeps what the type has beside its entries
        if isinstance(like, MutableMapping):
            clone = copy.copy(like)
            clone.update(values)
            return clone
        return type(like)(values)  # type: ignore[call-arg]
    except TypeError:
        return values


def _rebuilt_sequence(like: Sequence[Any], parts: list[Any]) -> Any:
    if isinstance(like, tuple):
        return type(like)(*parts) if hasattr(like, "_fields") else parts
    try:
        return parts if type(like) is list else type(like)(parts)  # type: ignore[call-arg]
    except TypeError:
        return parts


def default_convert(data: Any) -> Any:
    """Arrays and NumPy scalars as Tensors, in mappings and sequences too; all else as it is.

    What a loader with `batch_size=None` does with a sample.
    Source: PyTorch's `default_convert`.
    """
    if isinstance(data, np.ndarray | np.bool_ | np.number):
        array = np.asarray(data)
        return from_numpy_array(array) if array.dtype.kind in "biuf" else data
    if isinstance(data, Mapping):
        return _rebuilt_mapping(data, lambda key: default_convert(data[key]))
    if isinstance(data, Sequence) and not isinstance(data, str | bytes):
        return _rebuilt_sequence(data, [default_convert(x) for x in data])
    return data
