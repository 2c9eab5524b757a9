"""Signals that ask a long run to stop: noted, so that it ends between two steps and can save."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM") if hasattr(signal, name))


class Interruption:
    """A `with` block in which the first Ctrl-C or SIGTERM is only noted, in `number`.

    The second acts at once. `deliver` lets the noted one act after all, when the block has ended.
    Outside the main thread, and where somebody has set a handler of their own, signals are left
    alone.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interruption:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL):
                    self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *error: object) -> None:
        self._restore()

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self._restore()

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def deliver(self) -> None:
        """Do what the noted signal does by default: raise KeyboardInterrupt, end the process."""
        if self.number is not None:
            signal.raise_signal(self.number)
