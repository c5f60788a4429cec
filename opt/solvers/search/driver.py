"""Start plans, phases, clock and work limit of the solver `search`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from opt.core.certify import check_schedule
from opt.core.clock import now
from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Proposal, StopReason
from opt.solvers.ledger import pack_skip, pack_strict
from opt.solvers.orders import order_of
from opt.solvers.search.anneal import anneal
from opt.solvers.search.moves import new_room
from opt.solvers.search.plan import new_plan, requests_of
from opt.solvers.search.windows import tuned_windows
from opt.solvers.serial import pack_serial
from opt.solvers.staggered import staggered

__all__ = ["search"]

Progress: TypeAlias = Callable[[int | None, int | None], None]

WORK, LEAST_WORK = 20_000, 1_000_000  # moves for each request, and in all at least, unless a work limit is given
FIRST_PHASE = 100  # moves for each request in the first phase; each phase is twice as long as the one before
HOT, COLD = 0.3, 0.005  # heats at both ends of a phase, in mean outputs; the first phase is cold from its start
WIDTH = 8  # requests next to each other that a move takes out, at most
SLICE_S = 0.1  # of compiled work between two looks at the clock
FORMS_SHARE = 0.3  # of the time limit that whole plans may take before the local search starts
PLAN_S = 2e-5  # seconds a request that a windowed plan takes at most, about: none is started that would overrun the limit


def search(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    work: int | None = None,
    start: IntArray | None = None,
    tune: int = 1,
    on_progress: Progress | None = None,
) -> Proposal:
    """Return the best plan that local search finds on start rounds, from the best of many constructed plans.

    Args:
        instance: the requests; arrivals are respected.
        seed: of the moves.
        time_limit: seconds; only stops the search. An interrupt (Ctrl-C) keeps the best plan as well.
        work: moves tried, at most; if None, 20,000 for each request and a million at least. Same seed and work, same
            plan, in whatever order the requests are listed, as long as the time limit is not reached.
        start: feasible starts (n,) to begin from, instead of constructed ones.
        tune: 0 leaves out the tuned windows.
        on_progress: told the best total latency whenever it improves.

    Never worse than `start` where it is given, else than `staggered` and the orders by volume; claims nothing else.
    `stats["moves"]` counts moves evaluated, `stats["first"]` is the total latency before the first of them.

    Raises:
        ValueError: `work` is no number of moves, or `start` no feasible plan.
    """
    if work is not None and (isinstance(work, bool) or not isinstance(work, int) or work < 0):
        raise ValueError(f"work = {work!r}: must be an integer, at least 0")
    if start is not None:
        start = check_schedule(instance, start).start
    rank = np.lexsort((instance.arrival, instance.output, instance.prompt, instance.volume))
    tidy = Instance(
        instance.memory, *(column[rank] for column in (instance.prompt, instance.output)), arrival=instance.arrival[rank]
    )
    most = max(WORK * instance.n, LEAST_WORK) if work is None else work
    run = _Run(tidy, seed, time_limit, most, on_progress)
    stop = run.all(None if start is None else _within_ties(tidy, start[rank]), bool(tune))
    found = np.empty(instance.n, np.int64)
    found[rank] = run.best
    return Proposal(found, exhausted=stop == "proved", stop_reason=stop, stats=run.stats)


def _within_ties(tidy: Instance, start: IntArray) -> IntArray:
    """Return the starts with those of equal requests in order, so that it does not matter how equals were listed."""
    rows = np.column_stack([tidy.prompt, tidy.output, tidy.arrival])
    kind = np.concatenate([[0], np.cumsum((rows[1:] != rows[:-1]).any(axis=1))])[: len(start)]
    return start[np.lexsort((start, kind))]


def _orders(instance: Instance) -> Iterator[IntArray]:
    """Yield the plans of `staggered` and of the orders that win where it does not."""
    found = staggered(instance).start
    assert found is not None
    yield found
    data = (instance.prompt, instance.output, instance.arrival, instance.memory)
    for name, pack in (("total-size", pack_serial), ("sof", pack_skip), ("total-size", pack_strict)):
        yield pack(order_of(instance, name), *data)


@dataclass
class _Run:
    """One search: the best plan so far, and what is left of time and work."""

    instance: Instance
    seed: int
    time_limit: float | None
    work: int
    on_progress: Progress | None
    best: IntArray = field(init=False)
    total: int | None = None
    moves: int = 0
    stats: dict[str, Any] = field(default_factory=dict)
    begun: float = field(default_factory=now)

    def late(self, share: float = 1.0) -> bool:
        """Return whether this share of the time limit is over."""
        return self.time_limit is not None and now() - self.begun >= share * self.time_limit

    def latency(self) -> int:
        """Return the total latency of the best plan."""
        assert self.total is not None
        return self.total - exact_sum(self.instance.arrival) + exact_sum(self.instance.output)

    def offer(self, start: IntArray) -> bool:
        """Keep a plan if it is better; return whether no plan can be."""
        total = exact_sum(start)
        if self.total is None or total < self.total:
            self.best, self.total = start.copy(), total
            if self.on_progress is not None:
                self.on_progress(self.latency(), None)
        return self.total == exact_sum(self.instance.arrival)

    def all(self, start: IntArray | None, tune: bool) -> StopReason:
        """Construct plans, then search; return why it stopped."""
        try:
            stop = self.construct(start, tune) or self.local()
        except KeyboardInterrupt:
            if self.total is None:
                raise
            stop = "interrupted"
        self.stats["moves"] = self.moves
        return stop

    def construct(self, start: IntArray | None, tune: bool) -> StopReason | None:
        """Take the best of whole plans; the first one always, the others while there is time. None: go on."""
        sources = [iter([start]) if start is not None else _orders(self.instance)]
        enough = self.time_limit is None or self.time_limit * FORMS_SHARE > PLAN_S * self.instance.n
        if self.instance.n and self.work and enough and tune:
            sources.append(tuned_windows(self.instance))
        for source in sources:
            for plan in source:
                if self.offer(plan):
                    return "proved"
                self.stats["first"] = self.latency()
                if self.late(FORMS_SHARE):
                    break
        return None

    def local(self) -> StopReason:
        """Anneal in phases of doubling length, each from the best plan so far."""
        n, instance = self.instance.n, self.instance
        requests, room = requests_of(instance), new_room(n)
        random = (np.random.PCG64(self.seed).random_raw(1) | np.uint64(1)).astype(np.uint64)
        best, hot = self.best.copy(), COLD
        length, pace = FIRST_PHASE * n, 16
        while self.moves < self.work:
            plan, totals = new_plan(requests, best), np.full(2, self.total, np.int64)
            heats, done = np.array([hot, COLD]) * instance.output.mean(), 0
            while done < length and self.moves < self.work:
                if self.late():
                    return "time_limit"
                upto = min(done + pace, length, done + self.work - self.moves)
                begun = now()
                span = np.array([done, upto, length], np.int64)
                data = (instance.memory, random, room, totals, heats, span, WIDTH, instance.offline)
                anneal(plan, best, requests, *data)
                self.moves += upto - done
                done = upto
                self.offer(plan.start if totals[0] < totals[1] else best)
                pace = pace * 2 if now() - begun < SLICE_S / 2 else max(1, pace // 2)
            if totals[0] < totals[1]:
                best[:] = plan.start
            length, hot = length * 2, HOT
        self.best = best  # as good as what was offered last, and the same however the work was sliced
        return "work_limit"
