"""The tasks of a suite on a dask scheduler, wherever its workers are; every result once.

A worker runs each task in a fresh process, as we do here, so a task that crashes costs itself and not the worker. When a
worker dies, the scheduler gives its tasks to others; a task may run twice then, and its result still counts once. Workers
need kvopt in the version that asks. Whatever cannot go on (no scheduler, no worker for a while) raises and keeps what is done.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import subprocess
import time
import uuid
from collections.abc import Generator, Iterator, Mapping
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any

from opt.bench.apart import end, facts, received, start

if TYPE_CHECKING:
    from distributed import Client, Future

__all__ = ["ClusterError", "results_on"]

CONNECT_S = 10.0
WORKERS_S = 60.0  # how long to go on without a worker
POLL_S = 0.1
STOP_S = 1.0  # how often a running task asks whether it is still wanted


class ClusterError(ValueError):
    """The cluster cannot run the tasks; the message says why and what to do."""


def results_on(
    address: str, suite: str, tasks: Mapping[str, dict[str, Any]]
) -> Generator[tuple[str, dict[str, Any]], None, None]:
    """Yield (key, result) as tasks end on the cluster, each key once; leaving early ends what still runs there.

    Args:
        address: of the scheduler, such as tcp://10.0.0.1:8786.
        suite: a name in `SUITES`.
        tasks: parameters by key.

    Raises:
        ImportError: dask.distributed is not installed.
        ClusterError: there is no scheduler at the address, it has no workers, or it has gone.
    """
    if not tasks:
        return
    with _quiet(), _connected(address) as client:
        yield from _gathered(client, address, suite, tasks)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence the library's own log for a while: what matters to the user we say ourselves."""
    log = logging.getLogger("distributed")
    before = log.level
    log.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        log.setLevel(before)


@contextlib.contextmanager
def _connected(address: str) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise ImportError("--cluster needs dask.distributed: pip install 'kvopt[cluster]'") from None
    try:
        client = Client(address, timeout=CONNECT_S, set_as_default=False, name="kvopt-bench")
    except (OSError, ValueError, TypeError) as error:
        raise ClusterError(f"--cluster {address}: no dask scheduler answers there: {error}") from None
    with client:
        yield client


def _gathered(
    client: Client, address: str, suite: str, tasks: Mapping[str, dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    from distributed import Event, as_completed

    run, version = f"kvopt-{uuid.uuid4().hex}", importlib.metadata.version("kvopt")
    submitted = {
        client.submit(on_worker, suite, params, version, run, key=f"{run}-{at}", pure=False): key
        for at, (key, params) in enumerate(tasks.items())
    }
    ended = as_completed(list(submitted), loop=client.loop)
    alive = time.monotonic()
    try:
        while submitted:
            for future in ended.next_batch(block=False):
                yield submitted.pop(future), _result(future, address)
            if client.status == "closed":
                raise _gone(address)
            alive = time.monotonic() if client.scheduler_info()["workers"] else alive
            if time.monotonic() > alive + WORKERS_S:
                raise ClusterError(f"--cluster {address}: no worker for {WORKERS_S:g} seconds; start one and run again")
            time.sleep(POLL_S)
    finally:
        if submitted and client.status == "running":
            client.cancel(list(submitted))
            Event(run, client=client).set()


def _gone(address: str) -> ClusterError:
    return ClusterError(f"--cluster {address}: the scheduler has gone; run again to go on from what is done")


def _result(future: Future, address: str) -> dict[str, Any]:
    """Return what a task gave, or why it gave nothing; a future that is gone means that the scheduler is."""
    if future.status in ("cancelled", "lost"):
        raise _gone(address)
    try:
        result: dict[str, Any] = future.result()
    except Exception as error:
        return {**facts(), "error": f"{type(error).__name__}: {error}"}
    return result


def on_worker(suite: str, params: dict[str, Any], version: str, run: str) -> dict[str, Any]:
    """Run one task in a process of its own, on a worker, until it ends or the run that asked for it has been left."""
    from distributed import Event

    here = importlib.metadata.version("kvopt")
    if here != version:
        raise ClusterError(f"this worker has kvopt {here}, the run is by {version}; install the same version there")
    left, process = Event(run), start(suite, params)
    try:
        while not _has_spoken(process):
            if left.is_set():
                process.kill()
        return received(process)
    finally:
        end(process)


def _has_spoken(process: subprocess.Popen[bytes]) -> bool:
    """Wait a little, and tell whether the process has begun to give its result, or has died."""
    assert process.stdout is not None
    return bool(wait([process.stdout.fileno()], STOP_S))
