"""How time and memory grow: one core, warm, on the chat and summarization mixture, 10^3 to 10^6 requests."""

from __future__ import annotations

import math
import time
from itertools import pairwise
from typing import Any

from opt.bench.runner import Params, Record, Suite, Table, grouped, median_of
from opt.core.columns import IntArray
from opt.core.model import Proposal

__all__ = ["SCALE"]

SIZES = (1_000, 10_000, 100_000, 1_000_000)
MEMORIES = (16_492, 400_000)
SOLVERS = ("svf", "svf-pack", "svf-skip", "fcfs-skip", "lof-pack", "sorted-rate", "sorted-f")


def _tasks(seeds: int) -> list[Params]:
    return [
        {"n": n, "memory": memory, "solver": solver, "seed": seed}
        for n in SIZES
        for memory in MEMORIES
        for solver in SOLVERS
        for seed in range(seeds)
    ]


def _measure(params: Params) -> dict[str, Any]:
    """Solve, bound and certify once, after a small run that loads every compiled loop."""
    from instances import generate
    from opt.core.certify import check_bound, check_schedule
    from opt.solvers.bounds import mean_busy_time
    from opt.solvers.registry import SOLVERS as REGISTRY

    solver = REGISTRY[params["solver"]]
    warm = generate("mixture", n=500, memory=params["memory"], seed=1)
    check_schedule(warm, _starts(solver(warm, seed=0, time_limit=None)))
    instance = generate("mixture", n=params["n"], memory=params["memory"], seed=params["seed"])
    clock = [time.perf_counter()]
    proposal = solver(instance, seed=params["seed"], time_limit=None)
    clock.append(time.perf_counter())
    bound = mean_busy_time(instance)
    clock.append(time.perf_counter())
    schedule = check_schedule(instance, _starts(proposal))
    check_bound(instance, bound)
    clock.append(time.perf_counter())
    solve_s, bound_s, certify_s = (later - earlier for earlier, later in pairwise(clock))
    ratio = schedule.total_latency / bound.ceil
    return {"solve_s": solve_s, "bound_s": bound_s, "certify_s": certify_s, "ratio": ratio}


def _starts(proposal: Proposal) -> IntArray:
    assert proposal.start is not None, "a heuristic without a time limit always finds a schedule"
    return proposal.start


def _tables(records: list[Record]) -> list[Table]:
    return [_times(records), _growth(records)]


def _times(records: list[Record]) -> Table:
    rows = []
    for (n, memory, solver), group in grouped(records, "n", "memory", "solver").items():
        figures = [median_of(group, name) for name in ("solve_s", "bound_s", "certify_s", "ratio")]
        peak = max(record["peak_mb"] for record in group)
        rows.append([n, memory, solver, *figures, round(peak), len(group)])
    title = "seconds on one core, warm (medians over seeds); peak memory of the whole process"
    return Table(title, ["n", "memory", "solver", "solve s", "bound s", "certify s", "ratio", "peak MB", "seeds"], rows)


def _growth(records: list[Record]) -> Table:
    """The slope of log seconds over log n, from each decade to the next: 1 is linear."""
    rows = []
    for (memory, solver), group in grouped(records, "memory", "solver").items():
        by_size = {n: median_of(sub, "solve_s") for (n,), sub in grouped(group, "n").items()}
        slopes = [_slope(by_size, small, large) for small, large in pairwise(SIZES)]
        rows.append([memory, solver, *slopes])
    names = [f"{small:,} to {large:,}" for small, large in pairwise(SIZES)]
    return Table("growth: slope of log seconds over log n", ["memory", "solver", *names], rows)


def _slope(seconds: dict[int, float | None], small: int, large: int) -> float | None:
    low, high = seconds.get(small), seconds.get(large)
    return None if not low or not high else math.log(high / low) / math.log(large / small)


SCALE = Suite(
    "scale",
    "time, memory and growth from a thousand to a million requests",
    _tasks,
    _measure,
    _tables,
    clocked=frozenset({"solve_s", "bound_s", "certify_s"}),
)
