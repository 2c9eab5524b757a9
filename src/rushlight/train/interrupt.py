"""Signals that ask a long run to stop: noted, so that it ends between two steps and can save."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
SIGNALS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))
PATIENCE = 1.0  # seconds


class Interruption:
    """A `with` block in which the first Ctrl-C, SIGTERM or SIGHUP is only noted, in `number`.

    Another acts at once, unless it comes within a second: some shells and programs send a signal
    twice. `deliver` lets the noted one act after all, when the block has ended.
    Outside the main thread, and where somebody has set a handler of their own, signals are left
    alone.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._when = 0.0
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
        now = time.monotonic()
        if self.number is None:
            self.number, self._when = number, now
        elif now - self._when > PATIENCE:
            self._restore()
            signal.raise_signal(number)

    def _restore(self) -> None:
        while self._before:
            signal.signal(*self._before.popitem())

    def deliver(self) -> None:
        """Do what the noted signal does by default: raise KeyboardInterrupt, end the process."""
        if self.number is not None:
            signal.raise_signal(self.number)
