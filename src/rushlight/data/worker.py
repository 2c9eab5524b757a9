"""Who makes the batches: the loop itself, or a thread; `process` has the third kind.

All kinds of worker offer the same: `send(task)`, `receive(timeout)`, and `stop` and `join` to end
them. Each answers its tasks in order, with a batch, `Ended` or a `Failure`.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from rushlight.data.fetch import Maker, Plan, Task, WorkerInfo, set_worker_info

GRACE = 2.0  # seconds that a process has to finish the batch under way when it is told to stop


@dataclass
class Failure:
    """An exception of a worker; `text` is its traceback when it comes from another process."""

    error: BaseException | None
    text: str = ""

    def pop(self, where: str) -> BaseException:
        """The exception, which is not kept: it would keep the frames that keep this."""
        error, self.error = self.error, None
        assert error is not None
        error.add_note(where)
        if self.text:
            error.add_note(f"in the process:\n{self.text}")
        return error


class Worker(Protocol):
    """What the loader needs of a worker."""

    name: str

    def send(self, task: Task) -> None:
        """Hand over a task, without waiting for its result."""

    def receive(self, timeout: float | None) -> Any:
        """The result of the oldest task.  Raises RuntimeError when it takes too long."""

    def stop(self) -> None:
        """Ask it to end after the batch under way."""

    def join(self, deadline: float) -> None:
        """Wait for its end, until the deadline at least."""


class Inline:
    """No worker at all: a batch is made when it is asked for, by the one who asks.

    Only what the dataset can begin is begun before.
    """

    name = ""

    def __init__(self, plan: Plan) -> None:
        self._maker = Maker(plan, plan.dataset, 0)
        self._begun: list[Callable[[], Any]] = []

    def send(self, task: Task) -> None:
        """Begin a task for `receive`."""
        self._begun.append(self._maker.begin(task))

    def receive(self, timeout: float | None) -> Any:
        """The result of the oldest task."""
        return self._begun.pop(0)()

    def stop(self) -> None:
        """Nothing to stop."""

    def join(self, deadline: float) -> None:
        """Nothing to wait for."""


class Inbox:
    """Tasks of one worker, of which none is handed out after `stop`."""

    def __init__(self) -> None:
        self._tasks: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._stopped = False
        self.put = self._tasks.put

    def get(self) -> Task | None:
        """The next task, waiting for it; None when there will be none."""
        task = self._tasks.get()
        return None if self._stopped else task

    def stop(self) -> None:
        """Hand out no more."""
        self._stopped = True
        self._tasks.put(None)


def serve(
    start: Callable[[], Maker],
    receive: Callable[[], Task | None],
    send: Callable[[Any], None],
) -> None:
    """Answer tasks until there are none.  Whatever goes wrong becomes an answer, too."""
    maker = failure = None
    try:
        maker = start()
    except BaseException as error:
        failure = Failure(error)
    while (task := receive()) is not None:
        send(failure if maker is None else _attempt(maker, task))


def _attempt(maker: Maker, task: Task) -> Any:
    try:
        return maker.make(task)
    except BaseException as error:  # SystemExit too: the loader must not wait for ever
        return Failure(error)


def start_maker(plan: Plan, number: int) -> Maker:
    """Be a worker: what makes the batches of this thread."""
    info = WorkerInfo(number, plan.num_workers, plan.worker_seed(number), plan.own_dataset())
    set_worker_info(info)
    return Maker(plan, info.dataset, number)


class ThreadWorker:
    """A thread: it shares the dataset, and Python code of one thread runs at a time."""

    def __init__(self, plan: Plan, number: int) -> None:
        self.name = f"loader worker {number} (thread)"
        self._inbox = Inbox()
        self._results: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._hangs = False
        self._thread = threading.Thread(
            target=serve,
            args=(lambda: start_maker(plan, number), self._inbox.get, self._results.put),
            name=f"rushlight-loader-{number}",
            daemon=True,
        )
        self._thread.start()

    def send(self, task: Task) -> None:
        """Hand over a task."""
        self._inbox.put(task)

    def receive(self, timeout: float | None) -> Any:
        """The result of the oldest task.  Raises RuntimeError when it takes too long."""
        try:
            return self._results.get(timeout=timeout)
        except queue.Empty:
            self._hangs = True
            raise timed_out(self.name, timeout) from None

    def stop(self) -> None:
        """Ask it to end after the batch under way."""
        self._inbox.stop()

    def join(self, deadline: float) -> None:
        """Wait for its end, unless it did not answer before."""
        # the collector may close a forgotten iterator in any thread, also in this one
        if not self._hangs and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))


def timed_out(name: str, timeout: float | None) -> RuntimeError:
    """The error of a worker that does not answer."""
    return RuntimeError(f"DataLoader timed out after {timeout} s waiting for {name}")
