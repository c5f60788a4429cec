"""Exact solving by structure: whole trajectories where few requests run together, time-indexed models where many do."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.bounds import together
from opt.solvers.exact.apart import MEMORY_MB, Progress, Tell, positive, solve_apart
from opt.solvers.exact.cpsat import cpsat_task
from opt.solvers.exact.dp import dp_refusal, dp_task
from opt.solvers.exact.milp import BYTES, milp_task
from opt.solvers.exact.timeindexed import compact, model_refusal
from opt.solvers.tree import Tree
from opt.solvers.tree import refusal as tree_refusal

__all__ = ["exact", "exact_task", "together"]

FEW = Fraction(19, 5)  # that run together, below which trajectories beat time indexing (measured: n = 8 .. 25, M = 30 .. 50)
CPSAT_UP_TO = 16  # requests; CP-SAT's learning pays on these, HiGHS's bounds on more
NODES = 300  # of a tree of start windows before CP-SAT: tenths of a second, and a certificate where they suffice
EFFORT = 30.0  # of CP-SAT before HiGHS takes over, in its own deterministic units (about a second each)


def exact(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    threads: int = 1,
    memory_mb: int = MEMORY_MB,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the optimum by the method that suits the instance, or the best schedule found in time.

    Args:
        instance: requests; arrivals are allowed.
        seed: same seed, same answer, as long as the time limit is not reached and `threads` is 1.
        time_limit: seconds for the whole call; None runs to the end.
        threads: for CP-SAT and HiGHS; the layered search runs on one core.
        memory_mb: what tables, states and models may take.
        on_progress: told the incumbent and the bound.

    Requests that are all there at the start and of which fewer than 3.8 run together go to the layered search (`dp`).
    The others get a short tree of start windows (up to 16 requests; where it closes, the optimum has a certificate), then
    price-cut windows for CP-SAT (up to 16 requests) and HiGHS. What is too large for all of them gets the
    portfolio's answer, and `stats["refused"]` says why.
    """
    most = positive("memory_mb", memory_mb)

    def at_once(known: Instance, start: IntArray, deadline: float) -> Proposal | None:
        return None if layered(known, start, most) else _short_tree(known, start, deadline)

    def refusal(known: Instance, start: IntArray | None) -> str | None:
        return None if layered(known, start, most) else _model_refusal(known, start, most)

    return solve_apart(
        exact_task,
        instance,
        refusal,
        seed=seed,
        time_limit=time_limit,
        on_progress=on_progress,
        settings={"threads": positive("threads", threads), "plain": False, "memory_mb": most},
        at_once=at_once,
    )


def layered(instance: Instance, start: IntArray | None, memory_mb: int) -> bool:
    """Return whether the layered search is the method to take: where it is better, or the only one that fits."""
    if together(instance) >= FEW and _model_refusal(instance, start, memory_mb) is None:
        return False
    return dp_refusal(instance, memory_mb) is None


def _model_refusal(instance: Instance, start: IntArray | None, memory_mb: int) -> str | None:
    return model_refusal(instance, start, plain=False, most=memory_mb * 10**6 // BYTES)


def _short_tree(instance: Instance, start: IntArray, deadline: float) -> Proposal | None:
    """Return what a short tree of start windows comes to; None where it does not apply.

    A tree spans every round up to the last arrival, so long quiet spells are left to CP-SAT, which shortens them.
    """
    if instance.n > CPSAT_UP_TO or compact(instance)[1].any() or tree_refusal(instance, start) is not None:
        return None
    tree = Tree(instance, start)
    if tree.solve(deadline, NODES):
        return Proposal(tree.start, tree.bound(), exhausted=True, stop_reason="proved", stats={"method": "tree"})
    return Proposal(tree.start, stop_reason="work_limit")


def exact_task(tell: Tell, instance: Instance, start: IntArray, deadline: float, seed: int, settings: dict[str, Any]) -> Proposal:
    """Search in this process by the method that suits."""
    if layered(instance, start, settings["memory_mb"]):
        found = dp_task(tell, instance, start, deadline, seed, settings)
        return replace(found, stats={"method": "dp", **found.stats})
    stats: dict[str, Any] = {}
    if instance.n <= CPSAT_UP_TO:
        found = cpsat_task(tell, instance, start, deadline, seed, {**settings, "effort": EFFORT})
        if found.exhausted or found.start is None or found.stop_reason == "time_limit":
            return replace(found, stats={"method": "cpsat", **found.stats})
        start, stats = found.start, dict(found.stats)
    last = milp_task(tell, instance, start, deadline, seed, settings)
    return replace(last, stats={"method": "milp", **stats, **last.stats})
