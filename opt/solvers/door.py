"""`solve` and `lower_bound`: names in, certified answers out.

The wall clock is read here, and below only by solvers that must keep a time limit.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from opt.core.certify import certify, check_bound, check_mode
from opt.core.clock import now
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Bound, KvMode, Proposal, Result
from opt.solvers.bounds import BOUNDS, shared_mean_busy_time, trivial
from opt.solvers.registry import SOLVERS, Solver

__all__ = ["check_params", "lower_bound", "solve"]


def solve(
    instance: Instance,
    solver: str = "portfolio",
    *,
    bound: str | Bound | None = "best",
    time_limit: float = 10.0,
    seed: int = 0,
    kv: KvMode = "separate",
    on_progress: Callable[[int | None, int | None], None] | None = None,
    **params: Any,
) -> Result:
    """Return a certified schedule and a certified lower bound.

    Args:
        instance: the requests, with arrivals in rounds if they have any.
        solver: a name in `SOLVERS`.
        bound: a name in `BOUNDS` to hold the schedule against, or a bound already known; None leaves it out.
        time_limit: seconds for the solver, above 0.
        seed: same seed, same answer.
        kv: "shared" certifies memory with common prefixes counted once; only bounds that hold then are used.
        on_progress: told (best total latency so far, bound proved so far), either of them None, by solvers that can.
        params: further arguments of the solver.

    Raises:
        ValueError: an unknown name or parameter, or a limit out of range.
        InstanceError: arrivals are in seconds.

    >>> result = solve(Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3]), "svf-pack")
    >>> result.total_latency, result.bound.ceil
    (25, 24)
    """
    run = _chosen("solver", solver, SOLVERS)
    check_params(solver, params)
    if not (isinstance(time_limit, int | float) and 0 < time_limit < math.inf):
        raise ValueError(f"time_limit = {time_limit!r}: must be a number of seconds above 0")
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed!r}: must be an integer from 0 to 2**63 - 1")
    check_mode(kv)
    instance.arrival  # noqa: B018 - refuses arrivals in seconds before any work is done
    begun = now()
    told = {"on_progress": on_progress} if on_progress and "on_progress" in inspect.signature(run).parameters else {}
    proposal = run(instance, seed=int(seed), time_limit=time_limit, **told, **params)
    seconds = now() - begun
    if kv == "shared":
        proposal = _for_shared(proposal)
    if bound == "best" and kv == "separate" and proposal.stop_reason == "interrupted":
        bound = "mean-busy-time"  # whoever pressed Ctrl-C does not wait for a sharper bound
    if bound == "best" and _met(instance, proposal):
        bound = proposal.bound  # none can be better
    held_against = lower_bound(instance, bound, kv=kv) if isinstance(bound, str) else bound
    return certify(instance, proposal, solver=solver, bound=held_against, seconds=seconds, seed=int(seed), params=params)


def lower_bound(instance: Instance, name: str = "best", *, kv: KvMode = "separate") -> Bound:
    """Return a lower bound on the total latency, certified.

    Args:
        instance: the requests.
        name: a name in `BOUNDS`.
        kv: "shared" asks for a bound that holds when common prefixes count once; "best" then falls back on those
            that do, and any other bound is refused.

    Raises:
        ValueError: the name is unknown, or the bound does not apply to the instance or the memory mode.
    """
    check_mode(kv)
    compute = _chosen("bound", name, BOUNDS)
    found = _best_shared(instance) if name == "best" and kv == "shared" else compute(instance)
    check_bound(instance, found, kv=kv)
    return found


def _met(instance: Instance, proposal: Proposal) -> bool:
    """Return whether a proposal says that its bound meets its plan; `certify` decides."""
    if proposal.start is None or proposal.bound is None:
        return False
    return proposal.bound.ceil >= exact_sum(proposal.start + instance.output - instance.arrival)


def _best_shared(instance: Instance) -> Bound:
    """Return the larger of the bounds that hold with shared prefixes."""
    return max(trivial(instance), shared_mean_busy_time(instance), key=lambda bound: bound.value)


def _for_shared(proposal: Proposal) -> Proposal:
    """Sharing only frees memory, so a schedule and its claims stand; a bound proved for separate caches does not."""
    kept = proposal.bound if proposal.bound is not None and proposal.bound.kv == "shared" else None
    return Proposal(proposal.start, kept, False, proposal.stop_reason, {**proposal.stats, "factor": None}, "shared")


def _chosen(kind: str, name: str, table: Mapping[str, Any]) -> Any:
    if name in table:
        return table[name]
    raise ValueError(f"unknown {kind} {name!r}{_close(name, table)}; `kvopt list {kind}s` shows all")


def _close(name: str, names: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(names), 3)
    return f"; did you mean {' or '.join(close)}?" if close else ""


def check_params(name: str, params: Mapping[str, Any]) -> None:
    """Raise ValueError if a solver does not take one of the parameters."""
    run: Solver = _chosen("solver", name, SOLVERS)
    known = set(inspect.signature(run).parameters) - {"instance", "seed", "time_limit", "on_progress"}
    unknown = sorted(set(params) - known)
    if unknown:
        have = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise ValueError(f"solver {name} has no parameter {', '.join(unknown)}; {have}")
