"""Shared prefixes: what detection costs, what homogeneous batches gain and where they lose, what sharing does off line.

Parts are independent: each has its tasks, its measure and its tables, and a line in `PARTS`.
"""

from __future__ import annotations

from opt.bench import detection, feather, sharing
from opt.bench.parts import Part, suite_of

__all__ = ["PARTS", "PREFIX"]

PARTS: dict[str, Part] = {
    "detection": Part(detection.tasks, detection.measure, detection.tables),
    "traces": Part(feather.trace_tasks, feather.trace_measure, feather.trace_tables),
    "throughput": Part(feather.tasks, feather.measure, feather.tables),
    "offline": Part(sharing.tasks, sharing.measure, sharing.tables),
}


PREFIX = suite_of(
    "prefix",
    "shared prefixes: detection, homogeneous batches, sharing off line",
    PARTS,
    clocked=detection.CLOCKED | feather.CLOCKED,
)
