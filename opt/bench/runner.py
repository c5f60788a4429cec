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
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
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
    try:
        for key, result in _results(suite.name, {key: tasks[key] for key in waiting}, jobs):
            known[key] = _record(suite.name, key, tasks[key], result)
            _append(path, known[key])
            report(len(known), len(tasks), key)
    except KeyboardInterrupt:
        interrupted = True
    records = [known[key] for key in tasks if key in known]
    good = [record for record in records if "error" not in record]
    if suite.finish is not None and good:
        suite.finish(good)
    return Outcome(good, interrupted, len(records) - len(good))


def _results(suite: str, tasks: Mapping[str, Params], jobs: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (key, result) as tasks end, each in a process of its own, `jobs` at a time; leaving early ends them all."""
    context = multiprocessing.get_context("spawn")
    waiting = list(tasks.items())[::-1]
    running: dict[Connection, tuple[BaseProcess, str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, params = waiting.pop()
                ours, theirs = context.Pipe(duplex=False)
                process: BaseProcess = context.Process(target=_execute, args=(theirs, suite, params), daemon=True)
                _start(process)
                theirs.close()
                running[ours] = (process, key)
            for pipe in wait(list(running)):
                assert isinstance(pipe, Connection)
                process, key = running.pop(pipe)
                yield key, _received(pipe, process)
    finally:
        for process, _ in running.values():
            process.kill()


def _start(process: BaseProcess) -> None:
    """Start a worker that never sees Ctrl-C: the blocked signal is inherited, and the parent ends its workers itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _received(pipe: Connection, process: BaseProcess) -> dict[str, Any]:
    """Return what a worker sent, or the fact that it died without a word."""
    try:
        result: dict[str, Any] = pipe.recv()
    except EOFError:
        process.join()
        result = {"error": f"the worker process ended with code {process.exitcode} before it gave a result"}
    process.join()
    return result


def _key(suite: str, params: Params) -> str:
    return f"{suite} {json.dumps(params, sort_keys=True, separators=(',', ':'))}"


def _execute(pipe: Connection, name: str, params: Params) -> None:
    """Run one task in this process and send its figures, the time they took and the peak memory."""
    from opt.bench import SUITES

    begun = time.perf_counter()
    try:
        values = SUITES[name].measure(params)
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {error}"})
        return
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)
    pipe.send({"values": values, "task_seconds": time.perf_counter() - begun, "peak_mb": peak})


def _record(suite: str, key: str, params: Params, result: dict[str, Any]) -> Record:
    return {"suite": suite, "key": key, "params": params, "machine": _machine(), "versions": _versions(), **result}


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
    cut_short = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
    with path.open("a") as file:
        file.write("\n" * bool(cut_short) + json.dumps(record, allow_nan=False) + "\n")


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
