"""One runner for foreign and long-running solvers: in a process of its own, ended on time, with nothing lost.

HiGHS and CP-SAT overrun limits, swallow Ctrl-C or lose what they had, and print what they like; a crash in C++ takes the
whole process along. So they (and every search that may need long) run in a worker, which tells as it goes what it has
found. We keep the best, and end the worker when the time is up, whatever it is doing.

The worker is a fresh interpreter, not a `multiprocessing` child: those import the caller's main module again, which fails in
a script without a guard and on a standard input, and are forbidden to daemons. It lives in a session of its own, so Ctrl-C
reaches us alone; its output goes to a file that only an error message quotes; and it ends when we do, whichever way.
Starting one takes about half a second, so a worker that has finished its task waits for the next one.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import IO, Any, Literal, TypeAlias

__all__ = ["Ended", "Outcome", "run_apart", "serve"]

Ended: TypeAlias = Literal["done", "time_limit", "interrupted", "died"]

BOOT = "import sys; sys.path[:] = {path!r}; from opt.solvers.worker import serve; serve({handle}, {parent})"
WATCH_S = 0.5  # how often a worker looks whether its parent still lives
MAX_WAIT_S = 3600.0


@dataclass(frozen=True)
class Outcome:
    """How a task in a worker ended.

    `result` is what it returned where `ended` is "done". "died" covers an error inside the task as well as a process that
    was killed or crashed; `error` then names it.
    """

    ended: Ended
    result: Any = None
    error: str = ""


class _RefusalError(Exception):
    """A ValueError of the task: bad arguments, not a death."""


def run_apart(
    task: Callable[..., Any], *arguments: Any, deadline: float = math.inf, heard: Callable[[Any], None] | None = None
) -> Outcome:
    """Run `task(tell, *arguments)` in a worker process and say how it ended.

    Args:
        task: a function at the top level of an importable module; `tell(message)` sends a message to us.
        arguments: anything that pickles.
        deadline: value of `time.monotonic()` at which the worker is killed, its start included in the time.
        heard: called here with every message, in order, until the end.

    Ctrl-C ends the worker and comes out as "interrupted".

    Raises:
        ValueError: the task refused its arguments with a ValueError.

    >>> import operator
    >>> run_apart(operator.is_, None).result
    False
    """
    worker: _Worker | None = None
    try:
        worker = _Worker.idle()
        outcome = worker.run(task, arguments, deadline, heard or (lambda _message: None))
    except KeyboardInterrupt:
        return Outcome("interrupted")
    except _RefusalError as refusal:
        raise ValueError(str(refusal)) from None
    finally:
        if worker is not None:
            worker.dismiss()
    return outcome


class _GoneError(Exception):
    """The other end of the pipe is closed."""


class _Worker:
    """A process that runs one task after another; ours by its process id, since a fork would share its pipe."""

    waiting: list[_Worker] = []  # noqa: RUF012 - the one list of workers without a task

    def __init__(self) -> None:
        self.owner, self.ready, self.free = os.getpid(), False, False
        self.output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed in `end`
        self.pipe, theirs = Pipe()
        code = BOOT.format(path=sys.path, handle=theirs.fileno(), parent=self.owner)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=self.output,
                stderr=self.output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @classmethod
    def idle(cls) -> _Worker:
        """Return a worker without a task: one that waits, or a new one."""
        while cls.waiting:
            worker = cls.waiting.pop()
            worker.free = False
            if worker.owner == os.getpid():
                if worker.process.poll() is None:
                    return worker
                worker.end()
        return cls()

    def run(self, task: Callable[..., Any], arguments: tuple[Any, ...], deadline: float, heard: Callable[[Any], None]) -> Outcome:
        """Give the worker its task and listen until it ends."""
        try:
            if not self.ready:
                if not self.listen(deadline):
                    return Outcome("time_limit")
                self.receive()
                self.ready = True
            self.give(task, arguments)
            while self.listen(deadline):
                kind, what = self.receive()
                if kind == "said":
                    heard(what)
                    continue
                self.free = True
                if kind == "refused":
                    raise _RefusalError(what)
                return Outcome("done", what) if kind == "done" else Outcome("died", error=what)
        except _GoneError:
            return Outcome("died", error=self.epitaph())
        return Outcome("time_limit")

    def give(self, task: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        """Send a task; our import path goes first, since the task may lie anywhere on it."""
        packed = pickle.dumps((task, arguments))
        try:
            self.pipe.send((sys.path, packed))
        except OSError:
            raise _GoneError from None

    def receive(self) -> tuple[str, Any]:
        """Return the next message: a kind and what it says."""
        try:
            kind, what = self.pipe.recv()
        except (EOFError, OSError):
            raise _GoneError from None
        return kind, what

    def listen(self, deadline: float) -> bool:
        """Wait for a message; False when the deadline came first."""
        while (left := deadline - time.monotonic()) > 0:
            if self.pipe.poll(min(left, MAX_WAIT_S)):
                return True
        return False

    def epitaph(self) -> str:
        """Say how the process died, with the last line it printed."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=1)
        code = self.process.returncode
        how = f"with exit code {code}"
        if code is None or code < 0:
            name = "a closed pipe" if code is None else signal.Signals(-code).name
            how = f"by {name}" + (" (out of memory?)" if name == "SIGKILL" else "")
        self.output.seek(max(0, self.output.seek(0, os.SEEK_END) - 2000))
        lines = self.output.read().decode(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the worker process ended {how} before it had an answer{f': {last[:200]}' if last else ''}"

    def dismiss(self) -> None:
        """Let the worker wait for its next task if it has finished this one, else end it."""
        if self.free and self.process.poll() is None:
            self.waiting.append(self)
        else:
            self.end()

    def end(self) -> None:
        """Kill the process and take its exit code, so that no zombie stays."""
        self.process.kill()
        self.process.wait()
        self.pipe.close()
        self.output.close()


@atexit.register
def _end_all() -> None:
    for worker in _Worker.waiting:
        if worker.owner == os.getpid():
            worker.end()
    _Worker.waiting.clear()


def serve(handle: int, parent: int) -> None:
    """Run tasks from the pipe `handle` until it closes: the life of a worker process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_leave_with, args=(parent,), daemon=True).start()
    pipe = Connection(handle)
    pipe.send(("ready", None))
    while True:
        try:
            path, packed = pipe.recv()
        except (EOFError, OSError):
            return
        sys.path[:] = path
        pipe.send_bytes(_answer(packed, lambda message: pipe.send(("said", message))))


def _answer(packed: bytes, tell: Callable[[Any], None]) -> bytes:
    """Return the packed end of a task: what it returned, or why it did not."""
    try:
        task, arguments = pickle.loads(packed)
        return pickle.dumps(("done", task(tell, *arguments)))
    except ValueError as error:
        return pickle.dumps(("refused", str(error)))
    except BaseException as error:
        return pickle.dumps(("died", f"{type(error).__name__}: {error}".rstrip(": ")))


def _leave_with(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(WATCH_S)
    os._exit(1)
