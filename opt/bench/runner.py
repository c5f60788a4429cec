"""Run the tasks of a suite in processes of their own, keep every result, and start where the last run stopped.

Each task runs in a fresh process, so its peak memory is its own and a crash costs one task. Finished tasks are appended
to a JSON-lines file at once; nothing is lost to an interrupt, and `resume` skips what the file already holds.
"""

from __future__ import annotations

import importlib.metadata
import json
import multiprocessing
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from opt.core.errors import InstanceError

__all__ = ["Outcome", "Record", "Suite", "Table", "run_suite"]

Params: TypeAlias = dict[str, Any]
Record: TypeAlias = dict[str, Any]

VERSIONS = ("numpy", "numba", "scipy", "highspy", "ortools")


@dataclass(frozen=True)
class Table:
    """A title, column names and rows, ready to print."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Suite:
    """A named set of measurements.

    Args:
        name: its key in `SUITES`.
        description: one line.
        tasks: from the number of seeds (and options, by name) to the parameters (JSON values) of every task.
        measure: runs one task and returns its figures (JSON values). A module-level function: it crosses to a process.
        tables: from all records to what is printed.
        finish: called with all records once they are there, to write what the suite keeps.
    """

    name: str
    description: str
    tasks: Callable[..., list[Params]]
    measure: Callable[[Params], dict[str, Any]]
    tables: Callable[[list[Record]], list[Table]]
    finish: Callable[[list[Record]], None] | None = None


@dataclass(frozen=True)
class Outcome:
    """What a run gave: the records of all tasks of the suite that are known, and whether it was cut short."""

    records: list[Record]
    interrupted: bool
    failed: int


def run_suite(
    suite: Suite,
    *,
    seeds: int,
    jobs: int = 1,
    path: Path | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Outcome:
    """Run a suite and return its records in the order of its tasks.

    Args:
        suite: what to run.
        seeds: repetitions with seeds 0, 1, ..
        jobs: processes at a time. Timings are honest with 1; more make the machine noisier.
        path: a JSON-lines file; tasks it holds are not run again, and new records are appended as they come.
        progress: is told (done, all, what has just finished).
        options: further arguments of the suite's `tasks`.

    Raises:
        InstanceError: the file holds something else.
    """
    tasks = {_key(suite.name, params): params for params in suite.tasks(seeds, **options)}
    known = {record["key"]: record for record in _read_records(path) if record["key"] in tasks and "error" not in record}
    waiting = [key for key in tasks if key not in known]
    report = progress or (lambda _done, _all, _what: None)
    interrupted = False
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, max_tasks_per_child=1, initializer=_ignore_interrupts)
    try:
        running = {pool.submit(_execute, suite.name, tasks[key]): key for key in waiting}
        while running:
            done, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in done:
                key = running.pop(future)
                known[key] = _record(suite.name, key, tasks[key], future)
                _append(path, known[key])
                report(len(tasks) - len(running), len(tasks), key)
    except KeyboardInterrupt:
        interrupted = True
    finally:
        _stop(pool)
    records = [known[key] for key in tasks if key in known]
    good = [record for record in records if "error" not in record]
    if suite.finish is not None and good:
        suite.finish(good)
    return Outcome(good, interrupted, len(records) - len(good))


def _ignore_interrupts() -> None:
    """Leave Ctrl-C to the parent, which ends the workers itself."""
    import signal

    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _stop(pool: ProcessPoolExecutor) -> None:
    workers = list((pool._processes or {}).values())  # the public way waits for the running task
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _key(suite: str, params: Params) -> str:
    return f"{suite} {json.dumps(params, sort_keys=True, separators=(',', ':'))}"


def _execute(name: str, params: Params) -> dict[str, Any]:
    """Run one task in this process and return its figures, the time they took and the peak memory."""
    from opt.bench import SUITES

    begun = time.perf_counter()
    values = SUITES[name].measure(params)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    return {"values": values, "task_seconds": time.perf_counter() - begun, "peak_mb": peak}


def _record(suite: str, key: str, params: Params, future: Future[dict[str, Any]]) -> Record:
    head = {"suite": suite, "key": key, "params": params, "machine": _machine(), "versions": _versions()}
    error = future.exception()
    if error is not None:
        return {**head, "error": f"{type(error).__name__}: {error}"}
    return {**head, **future.result()}


def _machine() -> dict[str, Any]:
    return {"system": platform.system(), "processor": _processor(), "cores": os.cpu_count()}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def _versions() -> dict[str, str]:
    found = {name: importlib.metadata.version(name) for name in ("kvopt", *VERSIONS)}
    return {"python": platform.python_version(), **found}


def _read_records(path: Path | None) -> Iterable[Record]:
    if path is None or not path.exists():
        return
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue  # the last line of a run that was killed while writing it; the task runs again
        if not isinstance(record, dict) or not {"suite", "key", "params"} <= record.keys():
            raise InstanceError(f"{path}:{number}: not a record of kvopt bench; give another file to --resume")
        yield record


def _append(path: Path | None, record: Record) -> None:
    if path is None:
        return
    if path.exists() and not path.read_bytes().endswith(b"\n") and path.stat().st_size:
        record = dict(record)
        with path.open("a") as file:
            file.write("\n")
    with path.open("a") as file:
        file.write(json.dumps(record, allow_nan=False) + "\n")
        file.flush()


def median_of(records: Sequence[Record], name: str) -> float | None:
    """Return the median of a figure over records, None where no record has it."""
    values = sorted(record["values"][name] for record in records if record["values"].get(name) is not None)
    if not values:
        return None
    middle = len(values) // 2
    return float(values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2)


def grouped(records: Sequence[Record], *names: str) -> Mapping[tuple[Any, ...], list[Record]]:
    """Return the records by the given parameters, in order of appearance."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        groups.setdefault(tuple(record["params"][name] for name in names), []).append(record)
    return groups
