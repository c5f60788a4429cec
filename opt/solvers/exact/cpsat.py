"""CP-SAT on the time-indexed model: one worker and a seed, hence repeatable up to the time limit."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import Proposal, StopReason
from opt.solvers.exact.apart import MEMORY_MB, Progress, Tell, positive, solve_apart
from opt.solvers.exact.milp import tightened
from opt.solvers.exact.timeindexed import SHIFT, Model, build, compact, first_windows, model_refusal, starts_of

__all__ = ["cpsat", "cpsat_task"]

BYTES = 1000  # of memory for each coefficient, in CP-SAT and in our arrays (measured: 400 to 1000)
LEAST_S = 0.02


def cpsat(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    threads: int = 1,
    plain: bool = False,
    memory_mb: int = MEMORY_MB,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the optimum by constraint programming (CP-SAT, time-indexed), or the best schedule found in time.

    Args:
        instance: requests, arrivals allowed.
        seed: CP-SAT's random seed.
        time_limit: seconds for the whole call; None runs to the end.
        threads: CP-SAT workers; with one, the same seed gives the same answer.
        plain: leave out the price cuts on the windows and the incumbent (a rival for benchmarks).
        memory_mb: refuse models that would need more; the answer is then the portfolio's, `stats["refused"]` the reason.
        on_progress: told the incumbent and CP-SAT's bound.

    `exhausted` rests on CP-SAT's proof in integers.
    """
    settings = {"threads": positive("threads", threads), "plain": bool(plain)}
    most = positive("memory_mb", memory_mb) * 10**6 // BYTES
    return solve_apart(
        cpsat_task,
        instance,
        lambda known, start: model_refusal(known, start, plain=bool(plain), most=most),
        seed=seed,
        time_limit=time_limit,
        on_progress=on_progress,
        settings=settings,
    )


def cpsat_task(tell: Tell, instance: Instance, start: IntArray, deadline: float, seed: int, settings: dict[str, Any]) -> Proposal:
    """Search in this process; `settings["effort"]` may cap CP-SAT's deterministic time, the rest is as in `cpsat`."""
    smaller, moved = compact(instance)
    plain = settings["plain"]
    incumbent, stats = start - moved, {}
    windows = first_windows(smaller, None if plain else incumbent)
    if not plain:
        windows, bound = tightened(smaller, windows, incumbent, deadline, settings["threads"])
        stats["priced_bound"] = (bound >> SHIFT) - int(smaller.arrival.sum())
        if any(len(w) == 0 for w in windows):
            return Proposal(start, exhausted=True, stop_reason="proved", stats=stats)
    model = build(smaller, windows)
    stats["columns"] = len(model.at)
    found = _search(tell, smaller, model, incumbent, moved, deadline, seed, settings)
    return Proposal(found.start, exhausted=found.exhausted, stop_reason=found.stop_reason, stats={**stats, **found.stats})


def _problem(instance: Instance, model: Model, below: int | None) -> tuple[Any, list[Any]]:
    """Return the CP-SAT model, asked for a total finish under `below` if given, and its Booleans."""
    from ortools.sat.python import cp_model

    problem = cp_model.CpModel()
    chosen = [problem.new_bool_var("") for _ in range(len(model.at))]
    edges = np.searchsorted(model.owner, np.arange(instance.n + 1))
    for i in range(instance.n):
        problem.add_exactly_one(chosen[edges[i] : edges[i + 1]])
    column = np.repeat(np.arange(len(model.at)), np.diff(model.first))
    order = np.argsort(model.row, kind="stable")
    cuts = np.searchsorted(model.row[order], np.arange(model.rounds + 1))
    for t in range(model.rounds):
        part = order[cuts[t] : cuts[t + 1]]
        if len(part):
            literals = [chosen[c] for c in column[part].tolist()]
            problem.add(cp_model.LinearExpr.weighted_sum(literals, model.held[part].tolist()) <= instance.memory)
    total = cp_model.LinearExpr.weighted_sum(chosen, model.cost.tolist())
    if below is not None:
        problem.add(total <= below - 1)
    problem.minimize(total)
    return problem, chosen


def _search(
    tell: Tell,
    instance: Instance,
    model: Model,
    incumbent: IntArray,
    moved: IntArray,
    deadline: float,
    seed: int,
    settings: dict[str, Any],
) -> Proposal:
    from ortools.sat.python import cp_model

    plain, best = settings["plain"], [incumbent]
    arrived, total = int(instance.arrival.sum()), int((incumbent + instance.output).sum())
    problem, chosen = _problem(instance, model, None if plain else total)

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            value = np.array([self.boolean_value(literal) for literal in chosen], float)
            found = starts_of(model, value, instance.n)
            if found.sum() < best[0].sum():
                best[0] = found
                tell(("start", found + moved))

    solver = cp_model.CpSolver()
    seconds = deadline - time.monotonic()
    if math.isfinite(seconds):
        solver.parameters.max_time_in_seconds = max(LEAST_S, seconds)
    if "effort" in settings:
        solver.parameters.max_deterministic_time = settings["effort"]
    solver.parameters.num_workers = settings["threads"]
    solver.parameters.random_seed = seed % 2**31
    solver.best_bound_callback = lambda bound: tell(("bound", min(math.ceil(bound - 1e-6), total) - arrived))
    status = solver.solve(problem, Watch())
    stats = {"cpsat_status": solver.status_name(status), "branches": solver.num_branches}
    proved = status == cp_model.OPTIMAL or (not plain and status == cp_model.INFEASIBLE)
    late = time.monotonic() >= deadline
    reason: StopReason = "proved" if proved else "time_limit" if late else "work_limit"
    return Proposal(best[0] + moved, exhausted=proved, stop_reason=reason, stats=stats)
