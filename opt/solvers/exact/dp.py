"""The layered search as a solver: for requests of which few run together."""

from __future__ import annotations

from typing import Any

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.exact.apart import MEMORY_MB, Progress, Tell, positive, solve_apart

__all__ = ["dp", "dp_refusal", "dp_task"]

MAX_REQUESTS = 62  # a set of requests is one machine word
MAX_MEMORY = 30_000  # tokens held are stored in 16 bits


def dp(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    max_width: int | None = None,
    memory_mb: int = MEMORY_MB,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the optimum by a layered search over partial schedules, or the best schedule found in time.

    Args:
        instance: at most 62 requests, all present at round 0, memory up to 30,000 tokens. For anything else the answer
            is the portfolio's, and `stats["refused"]` says why.
        seed: draws the samples on which prices are trained; the optimum does not depend on it.
        time_limit: seconds for the whole call; None runs to the end.
        max_width: stop after the first pass at least this wide (a beam search); None widens until proof.
        memory_mb: what tables (the larger part) and states may take together.
        on_progress: told the incumbent and the bound.

    `exhausted` is claimed only when a pass left out no state, or the bound of `ramps` meets the incumbent; why that is a
    proof: `layers`. On instances of `generate("small")` it proves 15 requests in seconds and 20 in about half a minute,
    where the time-indexed models stop at 10 to 12.

    >>> dp(Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])).start.tolist()
    [5, 1, 1, 0]
    """
    most = positive("memory_mb", memory_mb)
    width = None if max_width is None else positive("max_width", max_width)
    return solve_apart(
        dp_task,
        instance,
        lambda known, _start: dp_refusal(known, most),
        seed=seed,
        time_limit=time_limit,
        on_progress=on_progress,
        settings={"memory_mb": most, "max_width": width},
    )


def dp_refusal(instance: Instance, memory_mb: int) -> str | None:
    """Return why the search does not apply, if so."""
    from opt.solvers.exact.ramps import table_bytes
    from opt.solvers.exact.search import root_share

    if not instance.offline:
        return "requests arrive after round 0; the layered search needs all of them at the start"
    if instance.n > MAX_REQUESTS:
        return f"{instance.n:,} requests; the layered search takes up to {MAX_REQUESTS}"
    if instance.memory > MAX_MEMORY:
        return f"memory {instance.memory:,}; the layered search takes up to {MAX_MEMORY:,} tokens"
    need, most = table_bytes(int(instance.output.sum()), instance.n, 2), root_share(memory_mb)
    if need > most:
        return f"the tables would take {need / 1e6:,.0f} MB, more than the {most / 1e6:,.0f} MB that memory_mb allows"
    return None


def dp_task(tell: Tell, instance: Instance, start: IntArray, deadline: float, seed: int, settings: dict[str, Any]) -> Proposal:
    """Search in this process for something better than `start`, on an instance that is not refused."""
    from opt.solvers.exact.search import Search

    search = Search(instance, start, tell, deadline, seed, settings["memory_mb"], settings.get("max_width"))
    exhausted = search.solve()
    return Proposal(
        search.start, exhausted=exhausted, stop_reason="proved" if exhausted else search.stop_reason, stats=search.stats
    )
