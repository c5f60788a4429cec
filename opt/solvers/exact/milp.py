"""HiGHS on the time-indexed model, passed as arrays, with incumbents and bounds streamed."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import Proposal, StopReason
from opt.solvers.exact.apart import MEMORY_MB, Progress, Tell, positive, solve_apart
from opt.solvers.exact.highs import loaded
from opt.solvers.exact.timeindexed import (
    SHIFT,
    Model,
    build,
    compact,
    first_windows,
    model_refusal,
    priced_windows,
    starts_of,
)

__all__ = ["milp", "milp_task", "tightened"]

BYTES = 1500  # of memory for each coefficient, in HiGHS with its cuts and in our arrays (measured: 1000 to 1600)
PIVOTS = 30_000  # of the relaxation that prices windows; counted, so that the same seed gives the same answer
LEAST_S = 0.02


def milp(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    threads: int = 1,
    plain: bool = False,
    memory_mb: int = MEMORY_MB,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the optimum by integer programming (HiGHS, time-indexed), or the best schedule found in time.

    Args:
        instance: requests, arrivals allowed.
        seed: HiGHS's random seed.
        time_limit: seconds for the whole call; None runs to the end.
        threads: HiGHS threads; with one, the same seed gives the same answer.
        plain: leave out the price cuts on the windows (a rival for benchmarks).
        memory_mb: refuse models that would need more; the answer is then the portfolio's, `stats["refused"]` the reason.
        on_progress: told the incumbent and HiGHS's bound.

    `exhausted` rests on HiGHS's floating-point proof, without any optimality gap; total latencies are integers.
    """
    settings = {"threads": positive("threads", threads), "plain": bool(plain)}
    most = positive("memory_mb", memory_mb) * 10**6 // BYTES
    return solve_apart(
        milp_task,
        instance,
        lambda known, start: model_refusal(known, start, plain=bool(plain), most=most),
        seed=seed,
        time_limit=time_limit,
        on_progress=on_progress,
        settings=settings,
    )


def milp_task(tell: Tell, instance: Instance, start: IntArray, deadline: float, seed: int, settings: dict[str, Any]) -> Proposal:
    """Search in this process for something better than `start` (which must not be the trivial optimum)."""
    smaller, moved = compact(instance)
    threads, plain = settings["threads"], settings["plain"]
    incumbent, stats = start - moved, {}
    windows = first_windows(smaller, None if plain else incumbent)
    if not plain:
        windows, bound = tightened(smaller, windows, incumbent, deadline, threads)
        stats["priced_bound"] = (bound >> SHIFT) - int(smaller.arrival.sum())
        if any(len(w) == 0 for w in windows):
            return Proposal(start, exhausted=True, stop_reason="proved", stats=stats)
    model = build(smaller, windows)
    stats["columns"] = len(model.at)
    found = _branch(tell, smaller, model, incumbent, moved, deadline, seed, threads, plain)
    return Proposal(found.start, exhausted=found.exhausted, stop_reason=found.stop_reason, stats={**stats, **found.stats})


def tightened(
    instance: Instance, windows: list[IntArray], incumbent: IntArray, deadline: float, threads: int
) -> tuple[list[IntArray], int]:
    """Solve the linear relaxation on a short horizon, and cut the full windows with its prices."""
    reach = int((incumbent + instance.output).max()) + 1
    short = [w[w + o <= reach] for w, o in zip(windows, instance.output, strict=True)]
    price = _relaxation(instance, build(instance, short), deadline, threads)
    if price is None:
        return windows, 0
    return priced_windows(instance, windows, price, incumbent)


def _relaxation(instance: Instance, model: Model, deadline: float, threads: int) -> npt.NDArray[np.float64] | None:
    """Return the memory prices of the linear relaxation (round 1 first), or None when it was not solved."""
    solver = loaded(instance, model, integral=False, threads=threads)
    solver.setOptionValue("time_limit", max(LEAST_S, deadline - time.monotonic()))
    solver.setOptionValue("simplex_iteration_limit", PIVOTS)
    solver.run()
    if solver.modelStatusToString(solver.getModelStatus()) != "Optimal":
        return None
    dual: npt.NDArray[np.float64] = np.array(solver.getSolution().row_dual, np.float64)[instance.n :]
    return np.maximum(-dual, 0)


def _branch(
    tell: Tell,
    instance: Instance,
    model: Model,
    incumbent: IntArray,
    moved: IntArray,
    deadline: float,
    seed: int,
    threads: int,
    plain: bool,
) -> Proposal:
    """Run branch and bound; `incumbent` and the model count in the compact instance's rounds, what is told in the true ones."""
    solver = loaded(instance, model, integral=True, threads=threads)
    seconds = max(LEAST_S, deadline - time.monotonic())
    options = {"time_limit": seconds, "random_seed": seed % 2**31, "mip_abs_gap": 0.0, "mip_rel_gap": 0.0}
    for name, setting in options.items():
        solver.setOptionValue(name, setting)
    arrived, total = int(instance.arrival.sum()), int((incumbent + instance.output).sum())
    if not plain:
        solver.setOptionValue("objective_bound", total - 0.5)

    def improved(event: Any) -> None:
        tell(("start", moved + starts_of(model, np.array(event.data_out.mip_solution), instance.n)))

    def logged(event: Any) -> None:
        bound = event.data_out.mip_dual_bound
        if math.isfinite(bound):
            tell(("bound", min(math.ceil(bound - 1e-3), total) - arrived))

    solver.cbMipImprovingSolution.subscribe(improved)
    solver.cbMipLogging.subscribe(logged)
    solver.run()
    status = solver.modelStatusToString(solver.getModelStatus())
    stats = {"highs_status": status, "nodes": int(solver.getInfo().mip_node_count)}
    best = incumbent
    if status == "Optimal":
        found = starts_of(model, np.array(solver.getSolution().col_value), instance.n)
        best = found if found.sum() < best.sum() else best
    # With the windows cut to improvements, "infeasible" says that the incumbent is optimal.
    proved = status == "Optimal" or (not plain and status in ("Infeasible", "Bound on objective reached"))
    reason: StopReason = "proved" if proved else "time_limit"
    return Proposal(best + moved, exhausted=proved, stop_reason=reason, stats=stats)
