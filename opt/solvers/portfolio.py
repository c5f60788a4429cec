"""The portfolio: the orders, staggered forms, Sorted-F, Sorted-rate and phases, and the best of them."""

from __future__ import annotations

import inspect
import time

from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Proposal, StopReason

__all__ = ["portfolio"]

MEMBERS = (  # strongest first, so that a short time limit keeps the best of them
    *(
        "svf-pack",
        "staggered",
        "svf",
        "sorted-rate",
        "sorted-f",
        "phases",
        "sof-skip",
        "svf-skip",
        "total-size-pack",
        "sof-pack",
        "fcfs-skip",
    ),
    *("total-size", "total-size-skip", "sof", "fcfs-pack", "best-fit-skip", "best-fit-pack", "fcfs"),
)


def portfolio(instance: Instance, *, seed: int = 0, time_limit: float | None = None, ageing: int = 0) -> Proposal:
    """Return the best schedule among the members, run in turn while time is left.

    The first member always runs, however short the limit. An interrupt (Ctrl-C) keeps the best so far. `stats` names
    the winner and gives every member's total latency. Orders take the `ageing` of `order_of`.
    """
    from opt.solvers.registry import SOLVERS

    deadline = None if time_limit is None else time.monotonic() + time_limit
    best: Proposal | None = None
    latencies: dict[str, int] = {}
    factors: list[int] = []
    stop: StopReason = "done"
    arrived = exact_sum(instance.arrival)
    try:
        for name in MEMBERS:
            if best is not None and deadline is not None and time.monotonic() > deadline:
                stop = "time_limit"
                break
            ages = "ageing" in inspect.signature(SOLVERS[name]).parameters
            params = {"ageing": ageing} if ages else {}
            proposal = SOLVERS[name](instance, seed=seed, time_limit=None, **params)
            if proposal.start is None:
                continue
            latency = exact_sum(proposal.start) + exact_sum(instance.output) - arrived
            if best is None or latency < min(latencies.values()):
                best = Proposal(proposal.start, stats={"winner": name})
            latencies[name] = latency
            factors += [proposal.stats["factor"]] if proposal.stats.get("factor") else []
    except KeyboardInterrupt:
        if best is None:
            raise
        stop = "interrupted"
    assert best is not None
    # The best is no worse than any member, so it inherits the strongest guarantee among those that ran.
    stats = {**best.stats, "members": latencies, "factor": min(factors, default=None)}
    return Proposal(best.start, stop_reason=stop, stats=stats)
