"""Switches that PyTorch scripts set and that have one meaning here."""

from __future__ import annotations

from rushlight.dtypes import bfloat16, dtype
from rushlight.errors import DeviceError


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
