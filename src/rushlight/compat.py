"""Switches that PyTorch scripts set and that have one meaning here."""

from __future__ import annotations

from rushlight.dtypes import bfloat16, dtype
from rushlight.errors import DeviceError


class device(str):
    """Where tensors are: always "cpu".  Raises DeviceError for another device."""

    __slots__ = ()

    def __new__(cls, name: str = "cpu") -> device:
        """From "cpu" or "cpu:0"."""
        if str(name).partition(":")[0] != "cpu":
            raise DeviceError(f"device {name!r}: Rushlight runs on the CPU only")
        return super().__new__(cls, "cpu")

    @property
    def type(self) -> str:
        """The kind of device."""
        return "cpu"


class cuda:
    """What scripts ask before they choose a device."""

    @staticmethod
    def is_available() -> bool:
        """No."""
        return False


class autocast:
    """Mixed precision for a `with` block; only enabled=False is supported so far.

    Raises: NotImplementedError when enabled, DeviceError for a device other than the CPU.
    """

    def __init__(
        self, device_type: str = "cpu", dtype: dtype = bfloat16, enabled: bool = True
    ) -> None:
        if device_type != "cpu":
            raise DeviceError(f"autocast: device {device_type!r}: Rushlight runs on the CPU only")
        if enabled:
            raise NotImplementedError(
                f"autocast to {dtype} is not supported yet; train in float32 (enabled=False)"
            )

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass
