"""Benchmarks anyone can rerun: suites of independent tasks, a table, and a line of JSON for each task.

A new suite is a module with a `Suite` and a line in `SUITES`.
"""

from __future__ import annotations

from opt.bench.bounds import BOUNDS
from opt.bench.chunking import CHUNKING
from opt.bench.clock import CLOCK
from opt.bench.deflect import DEFLECT
from opt.bench.engines import ENGINES
from opt.bench.exact import EXACT
from opt.bench.headline import HEADLINE
from opt.bench.library import LIBRARY
from opt.bench.online import ONLINE
from opt.bench.prefix import PREFIX
from opt.bench.ratios import RATIOS
from opt.bench.runner import Record, Suite, Table, run_suite
from opt.bench.scale import SCALE
from opt.bench.search import SEARCH

__all__ = ["SUITES", "Record", "Suite", "Table", "run_suite"]

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (SCALE, EXACT, BOUNDS, LIBRARY, ONLINE, CLOCK, CHUNKING, RATIOS, SEARCH, PREFIX, HEADLINE, ENGINES, DEFLECT)
}
