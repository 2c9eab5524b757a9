"""Turn weights that PyTorch saved into a safetensors file.

    rushlight convert resnet.pth resnet.safetensors
    rushlight convert checkpoint.pt weights.safetensors --key state_dict

PyTorch is not needed, and no code that the file contains is run. Names and shapes stay; tensors
that shared memory are written one by one, bfloat16 and float8 as float32.
"""

from __future__ import annotations

import argparse
import os

from rushlight_cli import output
from rushlight_cli.config import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    add = parser.add_argument
    add("weights", metavar="WEIGHTS", help="a file of torch.save: .pth, .pt, .bin, .ckpt")
    add("out", metavar="OUT", help="the safetensors file to write")
    add(
        "--key",
        metavar="NAME",
        help="the part to write, such as state_dict, or . for all; default: the only dict with "
        "tensors, wherever it is",
    )
    add("--force", action="store_true", help="replace OUT if it is there")


def run(options: argparse.Namespace) -> int:
    """Convert, and print a line of what was written and one for each thing to know; 0."""
    convert(options.weights, options.out, key=options.key, force=options.force)
    return 0


def convert(weights: str, out: str, *, key: str | None = None, force: bool = False) -> None:
    """Write the tensors of a PyTorch file to a safetensors file, whole or not at all.

    Raises: UsageError when out is there and not to be replaced, and what `load_weights` and
    `rushlight.save` raise.
    """
    if not out:
        raise UsageError("OUT is empty; give the name of a file")
    if key == "":
        raise UsageError("--key is empty; leave it out, or give . for all of the file")
    if os.path.exists(weights) and os.path.exists(out) and os.path.samefile(weights, out):
        raise UsageError(f"{out} is the file to read; give OUT another name")
    if os.path.lexists(out) and not force:
        raise UsageError(f"{out} is already there; add --force to replace it")

    from rushlight.io import save
    from rushlight.io.torch_file import load_weights

    found = load_weights(weights, key=key)
    save(found.tensors, out)
    numbers = sum(tensor.numel() for tensor in found.tensors.values())
    size = os.path.getsize(out) / 1e6
    part = f" of {found.place!r}" if found.place else ""
    count = len(found.tensors)
    output.tell(
        f"{out}: {count:,} tensor{'s' * (count != 1)}{part}, {numbers:,} numbers, {size:,.2f} MB"
    )
    for (dtype, wider), count in found.converted.items():
        output.tell(f"{count:,} of {dtype} became {wider}")
    if found.left_out:
        names = ", ".join(f"{name:.40}" for name in found.left_out[:6])
        more = f" and {len(found.left_out) - 6:,} more" if len(found.left_out) > 6 else ""
        output.tell(f"left out, no tensors: {names}{more}")
