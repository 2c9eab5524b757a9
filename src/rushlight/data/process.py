"""Workers that are processes; imported when there are some, as `multiprocessing` is slow to."""

from __future__ import annotations

import io
import multiprocessing
import os
import pickle
import signal
import threading
import time
import traceback
import warnings
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.reduction import ForkingPickler
from typing import Any

from rushlight._core import set_num_threads
from rushlight.autograd import TensorBase
from rushlight.data.fetch import Maker, Plan, Task
from rushlight.data.worker import GRACE, Failure, Inbox, serve, start_maker, timed_out
from rushlight.kernels import Array
from rushlight.tensor import Tensor

POLL = 1.0  # seconds between two looks whether the parent process is still there


class ProcessWorker:
    """A process, with a pipe to it."""

    def __init__(self, plan: Plan, number: int, context: Any) -> None:
        self._connection, theirs = context.Pipe()
        forks = context.get_start_method() == "fork"
        self._process = context.Process(
            target=_run_process,
            args=(plan if forks else _dumps(plan), number, theirs),
            name=f"rushlight-loader-{number}",
            daemon=True,
        )
        with warnings.catch_warnings():
            # Python 3.12 warns of forking beside other threads, which may hold locks. The kernels'
            # threads hold none that a child needs: the pool is made anew in it (csrc/threads.c).
            warnings.filterwarnings("ignore", ".*fork.*", DeprecationWarning)
            self._process.start()
        theirs.close()  # so that the end of the process is seen as the end of the pipe
        self._hangs = False
        self.name = f"loader worker {number} (pid {self._process.pid})"

    def send(self, task: Task) -> None:
        """Hand over a task."""
        with suppress(OSError):  # it died: `receive` will say so, after what it did finish
            self._connection.send_bytes(_dumps(task))

    def receive(self, timeout: float | None) -> Any:
        """The result of the oldest task.

        Raises RuntimeError when it takes too long or the process has died.
        """
        ready = wait([self._connection, self._process.sentinel], timeout)
        if not ready:
            self._hangs = True
            raise timed_out(self.name, timeout)
        if self._connection in ready:
            message = None
            with suppress(EOFError, OSError):
                message = self._connection.recv_bytes()
            if message is not None:
                return pickle.loads(message)
        self._process.join(GRACE)
        raise RuntimeError(f"{self.name} {_ending(self._process.exitcode)}")

    def stop(self) -> None:
        """Ask it to end after the batch under way."""
        with suppress(OSError):
            self._connection.send_bytes(_dumps(None))

    def join(self, deadline: float) -> None:
        """Wait for its end until the deadline, then end it."""
        if self._hangs:
            deadline = 0.0
        ends = [self._connection, self._process.sentinel]
        with suppress(EOFError, OSError):
            # results that nobody wants must be read, or it waits for room in the pipe for ever
            while self._connection in wait(ends, max(0.0, deadline - time.monotonic())):
                self._connection.recv_bytes()
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "closed its pipe"
    if exit_code >= 0:
        return f"ended with exit code {exit_code} before its batch was there"
    with suppress(ValueError):
        return f"was killed by signal {signal.Signals(-exit_code).name}"
    return f"was killed by signal {-exit_code}"


# ---- inside the process ----


def _run_process(plan: Plan | bytes, number: int, connection: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as is a request to its whole group to end
    set_num_threads(1)  # the cores are shared with the other workers
    inbox = Inbox()
    threading.Thread(
        target=_read_tasks, args=(connection, inbox, os.getppid()), daemon=True
    ).start()

    def start() -> Maker:
        loaded: Plan = pickle.loads(plan) if isinstance(plan, bytes) else plan
        loaded.seed_globals = True
        return start_maker(loaded, number)

    def send(result: Any) -> None:
        try:
            message = _dumps(_portable(result) if isinstance(result, Failure) else result)
        except Exception as error:  # a batch that cannot be sent
            message = _dumps(_portable(Failure(error)))
        connection.send_bytes(message)

    with suppress(BrokenPipeError):
        serve(start, inbox.get, send)


def _read_tasks(connection: Connection, inbox: Inbox, parent: int) -> None:
    """Move tasks from the pipe to the inbox, and end the process when the parent has ended.

    In a thread, so that the parent never waits for room in the pipe while we wait for it to read.
    """
    try:
        while True:
            while not connection.poll(POLL):
                if os.getppid() != parent:
                    os._exit(1)
            task = pickle.loads(connection.recv_bytes())
            inbox.stop() if task is None else inbox.put(task)
    except (EOFError, OSError):
        os._exit(1)


def _portable(failure: Failure) -> Failure:
    """A failure that can be sent: where the exception itself cannot, a RuntimeError instead."""
    error = failure.error
    assert error is not None
    text = "".join(traceback.format_exception(error))
    try:
        pickle.loads(_dumps(error))
    except Exception:
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return Failure(error, text)


class _Pickler(ForkingPickler):
    """Sends a Tensor as its array, wherever in a batch, dataset or index it lies."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, TensorBase):
            return _tensor, (value.array, value.needs_grad)
        return NotImplemented


def _tensor(array: Array, needs_grad: bool) -> Tensor:
    result = Tensor(array)
    result.needs_grad = needs_grad
    return result


def _dumps(value: Any) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


def start_context(wanted: str | BaseContext) -> BaseContext:
    """A way to start processes, by its name.  Raises ValueError, TypeError for what is none."""
    if isinstance(wanted, str):
        known = multiprocessing.get_all_start_methods()
        if wanted not in known:
            raise ValueError(f"DataLoader: multiprocessing_context {wanted!r} is none of {known}")
        return multiprocessing.get_context(wanted)
    if not isinstance(wanted, BaseContext):
        raise TypeError(f"DataLoader: multiprocessing_context is a {type(wanted).__name__}")
    return wanted
