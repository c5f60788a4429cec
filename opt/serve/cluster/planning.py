"""The planning view: a burst is known in full; where does each prompt go, when, and in which chunks?

Nodes compute one prompt at a time. On a prefill node a prompt takes the time it takes alone, and then its transfer; on a
decode node whose residents stay as they are, the least time over all chunk schedules whose steps keep the residents' gaps
(`kernels.quickest_s`), so the choice of chunks comes out of the plan for good: what is left is scheduling on unrelated
machines with release times, which CP-SAT solves to optimality on small cases, in whole microseconds rounded down.

What a plan leaves out only helps it: contention of links, waits for a step in progress, residents that grow, late reports.
So its value is a lower bound for any router on nodes that compute one prompt at a time (chunks of whole grains apart).

>>> burst = Burst([0.0, 0.0], [[1.0, 3.0], [1.0, 1.5]], [[1.1, 3.0], [1.1, 1.5]])
>>> best = plan(burst)
>>> best.total_s, best.node, best.proved
(2.6, (0, 1), True)
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opt.serve.cluster.kernels import chunked_s, quickest_s
from opt.serve.cluster.state import ClusterView

__all__ = ["Burst", "BurstPlan", "burst_of", "plan"]

MICRO = 1e6
MOST = 40  # requests in a plan
GRAIN = 16  # tokens of which chunks are multiples


@dataclass(frozen=True)
class Burst:
    """Prompts to be planned.

    Args:
        release_s: when each arrives.
        busy_s: for each, the seconds it takes up every node; infinity where it cannot go.
        first_s: for each, the seconds from its start on every node to its first token.
        due_s: when its first token is due; empty without targets.
    """

    release_s: Sequence[float]
    busy_s: Sequence[Sequence[float]]
    first_s: Sequence[Sequence[float]]
    due_s: Sequence[float] = ()


@dataclass(frozen=True)
class BurstPlan:
    """A plan.

    Args:
        total_s: the sum of the times to the first token.
        in_time: how many first tokens are in time.
        node, start_s: where and when each prompt starts.
        proved: whether no plan has a better objective.
    """

    total_s: float
    in_time: int
    node: tuple[int, ...]
    start_s: tuple[float, ...]
    proved: bool


def plan(burst: Burst, *, time_limit: float = 10.0) -> BurstPlan:
    """Return the plan with the most first tokens in time, or where nothing is due with the least total time to them.

    Raises:
        ValueError: more than `MOST` requests, or one that can go nowhere.
        TimeoutError: nothing was found within the time.
    """
    n = len(burst.release_s)
    if n > MOST:
        raise ValueError(f"a burst of {n} requests: plans are made for at most {MOST}")
    for i, row in enumerate(burst.busy_s):
        if not any(math.isfinite(cell) for cell in row):
            raise ValueError(f"request {i} of the burst can go to no node")
    from opt.solvers.worker import run_apart

    outcome = run_apart(_solve, burst, time_limit, deadline=time.monotonic() + time_limit + 20.0)
    if outcome.result is None:
        raise TimeoutError(f"no plan for {n} requests within {time_limit} s {outcome.error}".rstrip())
    found: BurstPlan = outcome.result
    return found


def _whole(seconds: float) -> int:
    return math.floor(seconds * MICRO + 1e-6)


def _solve(tell: Callable[[Any], None], burst: Burst, time_limit: float) -> BurstPlan | None:
    """Build the model, solve it, and read the plan back; runs in a worker."""
    from ortools.sat.python import cp_model

    model = cp_model.CpModel()
    release = [_whole(at) for at in burst.release_s]
    longest = [max(_whole(cell) for cell in row if math.isfinite(cell)) for row in burst.busy_s]
    horizon = max(release, default=0) + sum(longest)
    n, nodes = len(release), len(burst.busy_s[0]) if burst.busy_s else 0
    start = [model.new_int_var(release[i], horizon, f"start {i}") for i in range(n)]
    goes: dict[tuple[int, int], Any] = {}
    intervals: list[list[Any]] = [[] for _ in range(nodes)]
    first = [model.new_int_var(0, 2 * horizon + 1, f"first {i}") for i in range(n)]
    for i in range(n):
        here = [k for k in range(nodes) if math.isfinite(burst.busy_s[i][k])]
        for k in here:
            goes[i, k] = model.new_bool_var(f"{i} on {k}")
            size = _whole(burst.busy_s[i][k])
            intervals[k].append(model.new_optional_fixed_size_interval_var(start[i], size, goes[i, k], f"{i} at {k}"))
            model.add(first[i] == start[i] + _whole(burst.first_s[i][k])).only_enforce_if(goes[i, k])
        model.add_exactly_one(goes[i, k] for k in here)
    for mine in intervals:
        model.add_no_overlap(mine)
    if burst.due_s:
        kept = [model.new_bool_var(f"{i} in time") for i in range(n)]
        for i in range(n):
            model.add(first[i] <= _whole(burst.due_s[i])).only_enforce_if(kept[i])
        model.maximize(sum(kept))
    else:
        model.minimize(sum(first))
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = 1
    status = solver.solve(model)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None
    ends = [solver.value(first[i]) / MICRO for i in range(n)]
    return BurstPlan(
        total_s=float(sum(end - at for end, at in zip(ends, burst.release_s, strict=True))),
        in_time=sum(end <= due + 1e-6 for end, due in zip(ends, burst.due_s, strict=False)),
        node=tuple(next(k for k in range(nodes) if (i, k) in goes and solver.value(goes[i, k])) for i in range(n)),
        start_s=tuple(solver.value(start[i]) / MICRO for i in range(n)),
        proved=status == cp_model.OPTIMAL,
    )


def burst_of(view: ClusterView, who: Sequence[int], *, grain: int = GRAIN) -> Burst:
    """Return some requests as a burst on the cluster as its nodes stand: their decodes stay, their backlogs are ignored.

    The transfer from a prefill node goes to the decode node that is nearest.
    """
    busy, first = [], []
    for i in who:
        tokens = int(view.requests.prompt[i])
        row, ends = [], []
        for k, node in enumerate(view.nodes):
            if node.node.role == "prefill":
                seconds = node.prompt_s(tokens)
                row.append(seconds)
                ends.append(seconds + min(view.transfer_s(k, d, i) for d in view.pools.decode))
            else:
                settings = (node.cost.coefficients, node.host, float(node.decodes), float(node.kv), node.limit_s)
                largest = chunked_s(*settings, 0, tokens, node.budget, False)
                seconds = min(largest, quickest_s(*settings, tokens, grain))
                row.append(seconds)
                ends.append(seconds)
        busy.append(row)
        first.append(ends)
    arrival, target = view.requests.arrival_s[list(who)], view.requests.ttft_s[list(who)]
    due = [] if np.isnan(target).any() else (arrival + target).tolist()
    return Burst(arrival.tolist(), busy, first, due)
