"""Run the tasks of a suite in processes of their own, keep every result, and start where the last run stopped.

Each task runs in a fresh process, here or on a cluster, so its peak memory is its own and a crash costs one task. Finished
tasks are appended to a JSON-lines file at once; nothing is lost to an interrupt or a kill, and `resume` skips what the file
already holds. A run that was cut short and resumed gives the records of one that was not, but for what depends on a clock:
`repeatable` tells which part does not.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import subprocess
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from opt.bench.apart import end, received, start
from opt.core.errors import InstanceError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = [
    "Outcome",
    "Picture",
    "Record",
    "Section",
    "Suite",
    "Table",
    "UnknownPartError",
    "grouped",
    "median_of",
    "repeatable",
    "run_suite",
]


class UnknownPartError(ValueError):
    """A suite has no part of the name asked for."""


Params: TypeAlias = dict[str, Any]
Record: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Table:
    """A title, column names and rows, ready to print."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


@dataclass(frozen=True)
class Picture:
    """A figure, and what it shows in a sentence that stands for it where it cannot be seen."""

    caption: str
    figure: Figure


@dataclass(frozen=True)
class Section:
    """A part of a report: a title, paragraphs, tables and pictures, in this order."""

    title: str
    text: Sequence[str]
    tables: Sequence[Table]
    pictures: Sequence[Picture] = ()


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
        sections: from all records to a report with more than the tables.
        clocked: names of figures, at any depth, that a clock measured or, by a time limit, had a say in: a rerun may give
            others.
    """

    name: str
    description: str
    tasks: Callable[..., list[Params]]
    measure: Callable[[Params], dict[str, Any]]
    tables: Callable[[list[Record]], list[Table]]
    finish: Callable[[list[Record]], None] | None = None
    sections: Callable[[list[Record]], list[Section]] | None = None
    clocked: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Args:
        records: those of all tasks of the suite that are known, in the order of the tasks.
        interrupted: whether it was cut short.
        errors: what each failed task said.
    """

    records: list[Record]
    interrupted: bool
    errors: Sequence[str] = ()


def run_suite(
    suite: Suite,
    *,
    seeds: int,
    jobs: int = 1,
    cluster: str | None = None,
    path: Path | None = None,
    part: str | None = None,
    progress: Callable[[int, int, str], None] | None = None,
    **options: Any,
) -> Outcome:
    """Run a suite and return its records in the order of its tasks.

    Args:
        suite: what to run.
        seeds: repetitions with seeds 0, 1, ..
        jobs: processes at a time. Timings are honest with 1; more make the machine noisier.
        cluster: address of a dask scheduler that runs the tasks instead; its workers need the same kvopt.
        path: a JSON-lines file; tasks it holds are not run again, and new records are appended as they come.
        part: run only the tasks whose parameter `part` is this.
        progress: is told (done, all, what has just finished).
        options: further arguments of the suite's `tasks`.

    Raises:
        UnknownPartError: the suite has no such part.
        InstanceError: the file holds something else, or another run is writing to it.
        ImportError, ClusterError: see `opt.bench.cluster.results_on`.
    """
    tasks = {_key(suite.name, params): params for params in _of_part(suite.name, suite.tasks(seeds, **options), part)}
    with _held(path):
        known = {record["key"]: record for record in _read_records(path) if record["key"] in tasks and "error" not in record}
        interrupted = _run_waiting(suite.name, tasks, known, jobs, cluster, path, progress or (lambda _done, _all, _what: None))
    records = [known[key] for key in tasks if key in known]
    good = [record for record in records if "error" not in record]
    if suite.finish is not None and good:
        suite.finish(good)
    return Outcome(good, interrupted, [record["error"] for record in records if "error" in record])


def _of_part(suite: str, tasks: list[Params], part: str | None) -> list[Params]:
    """Return the tasks of a part, all of them if it is None."""
    chosen = tasks if part is None else [params for params in tasks if params.get("part") == part]
    if part is not None and not chosen:
        known = ", ".join(dict.fromkeys(str(params["part"]) for params in tasks if "part" in params))
        raise UnknownPartError(f"suite {suite} has no part {part!r}; {f'it has {known}' if known else 'it has no parts'}")
    return chosen


def _run_waiting(
    suite: str,
    tasks: Mapping[str, Params],
    known: dict[str, Record],
    jobs: int,
    cluster: str | None,
    path: Path | None,
    report: Callable[[int, int, str], None],
) -> bool:
    """Run the tasks that are not known, add their records to `known` and to the file, and tell whether it was interrupted."""
    waiting = {key: params for key, params in tasks.items() if key not in known}
    try:
        with contextlib.closing(_results(suite, waiting, jobs) if cluster is None else _on(cluster, suite, waiting)) as results:
            for key, result in results:
                known[key] = {"suite": suite, "key": key, "params": tasks[key], **result}
                _append(path, known[key])
                report(len(known), len(tasks), key)
    except KeyboardInterrupt:
        return True
    return False


@contextlib.contextmanager
def _held(path: Path | None) -> Iterator[None]:
    """Keep other runs from the file meanwhile, since both would run, and append, what it lacks."""
    if path is None:
        yield
        return
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InstanceError(f"{path}: another run is writing to it; wait for its end, or give another file") from None
        yield


def _results(suite: str, tasks: Mapping[str, Params], jobs: int) -> Generator[tuple[str, Record], None, None]:
    """Yield (key, result) as tasks end, each in a process of its own, `jobs` at a time; leaving early ends them all."""
    waiting = list(tasks.items())[::-1]
    running: dict[int, tuple[subprocess.Popen[bytes], str]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                key, params = waiting.pop()
                process = start(suite, params)
                assert process.stdout is not None
                running[process.stdout.fileno()] = (process, key)
            for pipe in wait(list(running)):
                assert isinstance(pipe, int)
                process, key = running[pipe]
                result = received(process)
                del running[pipe]
                yield key, result
    finally:
        for process, _ in running.values():
            end(process)


def _on(cluster: str, suite: str, tasks: Mapping[str, Params]) -> Generator[tuple[str, Record], None, None]:
    from opt.bench.cluster import results_on

    return results_on(cluster, suite, tasks)


def _key(suite: str, params: Params) -> str:
    return f"{suite} {json.dumps(params, sort_keys=True, separators=(',', ':'))}"


def repeatable(suite: Suite, record: Record) -> Record:
    """Return the part of a record that every run of the task gives, to the byte: all but memory and what depends on a clock."""
    return {key: _without(cell, suite.clocked) for key, cell in record.items() if key not in ("task_seconds", "peak_mb")}


def _without(value: Any, names: frozenset[str]) -> Any:
    if isinstance(value, dict):
        return {key: _without(cell, names) for key, cell in value.items() if key not in names}
    return [_without(cell, names) for cell in value] if isinstance(value, list) else value


FIRST = b'{"suite": '  # every line of ours begins like this, and so does what a kill leaves of one


def _read_records(path: Path | None) -> list[Record]:
    """Return the records of a file, and cut off a last line that a kill left unfinished: that task runs again."""
    if path is None or not path.exists():
        return []
    *lines, last = path.read_bytes().split(b"\n")
    records = [_record(line, f"{path}:{number}") for number, line in enumerate(lines, 1)]
    if last and (last.startswith(FIRST) or FIRST.startswith(last)):
        with path.open("rb+") as file:
            file.truncate(path.stat().st_size - len(last))
    elif last:
        _record(last, f"{path}:{len(lines) + 1}")
    return records


def _record(line: bytes, place: str) -> Record:
    try:
        record: Record = json.loads(line)
    except ValueError:
        record = {}
    if not isinstance(record, dict) or not {"suite", "key", "params"} <= record.keys():
        raise InstanceError(f"{place}: not a record of kvopt bench; give another file to --resume")
    return record


def _append(path: Path | None, record: Record) -> None:
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(record, allow_nan=False) + "\n")


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
