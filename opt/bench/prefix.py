"""Shared prefixes: what detection costs, what homogeneous batches gain and where they lose, what sharing does off line.

Parts are independent: each has its tasks, its measure and its tables, and a line in `PARTS`.
"""

from __future__ import annotations

from opt.bench import detection, feather, sharing
from opt.bench.clock import Part
from opt.bench.runner import Params, Record, Suite, Table, grouped

__all__ = ["PARTS", "PREFIX"]

PARTS: dict[str, Part] = {
    "detection": Part(detection.tasks, detection.measure, detection.tables),
    "traces": Part(feather.trace_tasks, feather.trace_measure, feather.trace_tables),
    "throughput": Part(feather.tasks, feather.measure, feather.tables),
    "offline": Part(sharing.tasks, sharing.measure, sharing.tables),
}


def _tasks(seeds: int) -> list[Params]:
    return [task for part in PARTS.values() for task in part.tasks(seeds)]


def _measure(params: Params) -> dict[str, object]:
    return PARTS[params["part"]].measure(params)


def _tables(records: list[Record]) -> list[Table]:
    parts = grouped(records, "part")
    return [table for name, part in PARTS.items() if (name,) in parts for table in part.tables(parts[(name,)])]


PREFIX = Suite(
    "prefix",
    "shared prefixes: detection, homogeneous batches, sharing off line",
    _tasks,
    _measure,
    _tables,
    clocked=detection.CLOCKED | feather.CLOCKED,
)
