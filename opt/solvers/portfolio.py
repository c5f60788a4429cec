"""The portfolio, the default solver: constructed and guided plans, local search, exact search, and a sharper bound.

Every stage starts from the best plan so far and gets the time that is left, less what later stages need. Any stage can be
cut short by the clock or by Ctrl-C; what it has found by then counts.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from opt.core.clock import now
from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Bound, Proposal, StopReason
from opt.solvers.bounds import best_bound, mean_busy_time

__all__ = ["MEMBERS", "incumbent", "portfolio"]

Progress: TypeAlias = Callable[[int | None, int | None], None]

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
LARGE = 200_000  # requests from which a member runs only if there is time for it, by the time that `svf` took
COSTS = {  # in runs of `svf`, on 100,000 requests: of a member, or of what the last two must do; no other takes much longer
    "svf-pack": 6,
    "staggered": 14,
    "sorted-rate": 14,
    "sorted-f": 38,
    "phases": 20,
    "sof-skip": 5,
    "svf-skip": 12,
    "total-size-pack": 4,
    "sof-pack": 4,
    "fcfs-skip": 55,
    "total-size-skip": 15,
    "fcfs-pack": 4,
    "best-fit-skip": 40,
    "best-fit-pack": 5,
    "guided": 30,
    "search": 10,
}
MEMBERS_SHARE = 0.6  # of the time limit that constructed plans may take
EXACT_UP_TO = 20  # requests; beyond, a few seconds rarely prove anything
GLIMPSE, LOOK = 2_000, 10_000  # moves for each request before exact search, up to 12 requests and beyond: most optima
GUIDED_SHARE = 0.25  # of the time left after the constructed plans, for orders guided by prices
PRICES_FROM_S = 30.0  # seconds of time limit from which a quarter goes to a sharper bound
PRICES_SHARE = 0.25


def portfolio(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    ageing: int = 0,
    work: int | None = None,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the best plan of all: orders, staggered forms, batch rules and guided plans, then local and exact search.

    Args:
        instance: the requests; arrivals are respected.
        seed: of the members that draw.
        time_limit: seconds for everything; the first member always runs. None: until the work is done.
        ageing: for the orders (see `order_of`). If above 0 only they and their like run, since search would undo it.
        work: moves of the local search, at most, and no `guided`, which goes by the clock; None: both as they come.
        on_progress: told the best total latency and the bound whenever one of them improves.

    Up to 20 requests go on to `exact`. From 30 s on a quarter of the time goes to the `prices` bound if the plan is not
    proved optimal. An interrupt (Ctrl-C) keeps the best so far. `stats` names the winner, gives the total latency of
    every constructed plan (`members`) and the strongest proved factor among them: the best is no worse than any of them.
    """
    run = _Run(instance, seed, time_limit, on_progress)
    try:
        run.construct(MEMBERS_SHARE, {"ageing": ageing})
        if ageing == 0 and not run.at_once():
            run.refine(work)
    except KeyboardInterrupt:
        if run.start is None:
            raise
        run.stop = "interrupted"
    return run.proposal()


def incumbent(instance: Instance, *, seed: int = 0, time_limit: float | None = None) -> Proposal:
    """Return a good plan for an exact solver to start from: the constructed plans, and on small instances a brief search."""
    run = _Run(instance, seed, time_limit, None)
    try:
        run.construct(1.0, {})
        if instance.n <= 10 * EXACT_UP_TO and not run.at_once():
            run.search(_glimpse(min(instance.n, EXACT_UP_TO)), 1.0)
            run.stop = "done" if run.stop == "work_limit" else run.stop
    except KeyboardInterrupt:
        if run.start is None:
            raise
        run.stop = "interrupted"
    return run.proposal()


def _glimpse(n: int) -> int:
    """Return the moves before exact search: tenths of a second, and mostly the optimum (measured: `small`, n = 8 .. 25)."""
    return n * (GLIMPSE if n <= 12 else LOOK)


@dataclass
class _Run:
    """The best plan and bound so far, and the clock."""

    instance: Instance
    seed: int
    time_limit: float | None
    on_progress: Progress | None
    start: IntArray | None = None
    waited: int = 0
    winner: str = ""
    bound: Bound | None = None
    exhausted: bool = False
    stop: StopReason = "done"
    members: dict[str, int] = field(default_factory=dict)
    factors: list[int] = field(default_factory=list)
    unit: float = 0.0  # seconds that `svf` took, where the instance is large
    stats: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=now)

    def left(self, share: float = 1.0) -> float:
        """Return the seconds left of a share of the time limit."""
        return math.inf if self.time_limit is None else share * self.time_limit - (now() - self.begun)

    def latency(self, waited: int) -> int:
        """Return the total latency of plans whose starts sum to `waited`."""
        return waited + exact_sum(self.instance.output) - exact_sum(self.instance.arrival)

    def offer(self, start: IntArray | None, name: str) -> None:
        """Keep a plan if it is better."""
        if start is None:
            return
        waited = exact_sum(start)
        if self.start is None or waited < self.waited:
            self.start, self.waited, self.winner = start, waited, name
            self.tell(self.latency(waited))

    def tell(self, latency: int | None, _bound: int | None = None) -> None:
        """Report progress; a search below tells only its own best plans."""
        if self.on_progress is not None and latency is not None:
            best = min(latency, self.latency(self.waited))
            self.on_progress(best, None if self.bound is None else self.bound.ceil)

    def at_once(self) -> bool:
        """Return whether everybody starts on arrival."""
        return self.waited == exact_sum(self.instance.arrival)

    def settled(self) -> bool:
        """Return whether the plan needs no more work: everybody starts on arrival, or a bound that costs little meets it."""
        if self.at_once():
            return True
        if self.bound is None:
            self.improve_bound(best_bound(self.instance) if self.instance.n <= EXACT_UP_TO else mean_busy_time(self.instance))
        return self.bound is not None and self.bound.ceil >= self.latency(self.waited)

    def improve_bound(self, bound: Bound) -> None:
        """Keep a bound if it is better."""
        if self.bound is None or bound.value > self.bound.value:
            self.bound = bound
            self.tell(self.latency(self.waited))

    def construct(self, share: float, params: dict[str, Any]) -> None:
        """Run the members in turn while time is left."""
        from opt.solvers.registry import SOLVERS

        large = self.instance.n >= LARGE
        for name in sorted(MEMBERS, key=lambda member: large and member != "svf"):
            if self.start is not None and self.left(share) <= COSTS.get(name, 1) * self.unit:
                self.stop = "time_limit"
                continue
            solver = SOLVERS[name]
            known = inspect.signature(solver).parameters
            taken = {key: value for key, value in params.items() if key in known}
            begun = now()
            found = solver(self.instance, seed=self.seed, time_limit=None, **taken)
            if large and not self.unit:
                self.unit = now() - begun
            if found.start is None:
                continue
            self.offer(found.start, name)
            self.members[name] = self.latency(exact_sum(found.start))
            self.factors += [found.stats["factor"]] if found.stats.get("factor") else []

    def refine(self, work: int | None) -> None:
        """Search, exactly too where the instance is small, and sharpen the bound."""
        if self.instance.n > EXACT_UP_TO and self.settled():
            return
        if self.instance.n <= EXACT_UP_TO:
            glimpse = _glimpse(self.instance.n)
            self.search(glimpse if work is None else min(work, glimpse), 0.3)
            if self.settled() or self.stop == "interrupted" or self.exact():
                return
        elif work is None:
            self.guide()
        prices = self.time_limit is not None and self.time_limit >= PRICES_FROM_S
        self.search(work, 1 - PRICES_SHARE if prices else 1.0)
        if prices and self.stop != "interrupted" and not self.settled():
            self.sharpen()

    def guide(self) -> None:
        """Try orders guided by prices for a share of the time left."""
        from opt.solvers.guided import guided

        seconds = GUIDED_SHARE * self.left()
        if seconds > COSTS["guided"] * self.unit:
            found = guided(self.instance, seed=self.seed, time_limit=None if math.isinf(seconds) else seconds)
            self.offer(found.start, "guided")

    def search(self, work: int | None, share: float) -> None:
        """Run the local search from the best plan until a share of the time limit is over."""
        from opt.solvers.search import search

        seconds = self.left(share)
        if seconds <= COSTS["search"] * self.unit:
            self.stop = "time_limit"
            return
        limit = None if math.isinf(seconds) else seconds
        found = search(self.instance, seed=self.seed, time_limit=limit, work=work, start=self.start, on_progress=self.tell)
        self.offer(found.start, "search")
        self.stop = found.stop_reason
        self.stats["moves"] = self.stats.get("moves", 0) + found.stats["moves"]

    def exact(self) -> bool:
        """Run the exact solver for half of the time left; return whether it is settled."""
        from opt.solvers.exact.structure import exact

        seconds = self.left()
        limit = None if math.isinf(seconds) else seconds / 2
        if limit is not None and limit <= 0:
            return False
        found = exact(self.instance, seed=self.seed, time_limit=limit, on_progress=self.tell)
        self.offer(found.start, "exact")
        if found.bound is not None:
            self.improve_bound(found.bound)
        self.exhausted = found.exhausted
        self.stop = found.stop_reason
        return found.exhausted or found.stop_reason == "interrupted"

    def sharpen(self) -> None:
        """Climb prices in a worker while time is left."""
        from opt.solvers.prices import prices_apart

        ended = prices_apart(self.instance, self.left(), self.improve_bound)
        if ended in ("time_limit", "interrupted"):
            self.stop = ended

    def proposal(self) -> Proposal:
        """Return the best plan with what is known of it."""
        assert self.start is not None
        stats = {"winner": self.winner, **self.stats, "members": self.members, "factor": min(self.factors, default=None)}
        return Proposal(self.start, self.bound, self.exhausted, self.stop, stats)
