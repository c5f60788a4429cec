"""Passes over the layers: beams that widen until one of them leaves nothing out.

A pass keeps at most `width` states per layer, those of the least bound; it gives incumbents. Prices are trained at the root,
with pairs first, and again on the population of each large layer. A pass that never had to leave a state out is a proof
(`layers`). All work is counted, never timed, so the same seed gives the same answer; the clock only cuts off.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import StopReason
from opt.solvers.exact.apart import Tell
from opt.solvers.exact.items import NEVER, items_of
from opt.solvers.exact.layers import Children, Market, States, expand, first_layer, no_children
from opt.solvers.exact.ramps import table_bytes
from opt.solvers.exact.training import Lesson, Priced, Trainer, entries, raise_bounds, smith_prices

__all__ = ["Search", "max_states", "root_share"]

FIRST_WIDTH, WIDER = 100, 8
ROOT_PAIRS, ROOT_TRIPLES, ROOT_AGAIN = Lesson(2, 60, 0.3), Lesson(3, 12, 0.1), Lesson(3, 30, 0.1)
LAYER_PAIRS, LAYER_TRIPLES = Lesson(2, 30, 0.05), Lesson(3, 12, 0.03)
SAMPLE = 120  # states that stand for a layer
# Work is counted in table entries, about 6 ns each; these are what else it takes, in entries.
FIRST_WORK = 200_000_000  # training before the first pass
FREE_WORK = 4_000_000  # training on a layer that is worth it however small the layer
PAYS = 8  # training at the root may cost this many times the next pass: it saves most of the passes after that
TRIED, COMPARED, PLAN_STEP = 150, 8, 10


def root_share(memory_mb: int) -> int:
    """Return the bytes that the tables of the root may take."""
    return memory_mb * 700_000


def _shares(memory_mb: int, items: int, requests: int) -> tuple[int, int]:
    """Return the bytes for the tables of the root and of a layer, which gets what the root leaves."""
    root = next((need for level in (3, 2) if (need := table_bytes(items, requests, level)) <= root_share(memory_mb)), 0)
    return root_share(memory_mb), memory_mb * 850_000 - root


def max_states(memory_mb: int, n: int, horizon: int) -> int:
    """Return how many states a layer may have."""
    return min(4_000_000, memory_mb * 120_000 // (2 * horizon + 2 * n + 120))


Step: TypeAlias = tuple[npt.NDArray[np.int32], npt.NDArray[np.int16], npt.NDArray[np.int32]]  # parent, last, waited


@dataclass
class Search:
    """The search for one instance, its requests sorted by output, then prompt.

    Args:
        instance: everything present at round 0.
        start: a schedule to beat.
        tell: where better schedules and bounds go.
        deadline: value of `time.monotonic()`.
        seed: draws the samples on which prices are trained.
        memory_mb: for tables and states.
        max_width: stop after the first pass at least this wide.
    """

    instance: Instance
    start: IntArray
    tell: Tell
    deadline: float
    seed: int
    memory_mb: int
    max_width: int | None = None
    stop_reason: StopReason = "time_limit"
    stats: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        instance = self.instance
        self.order = np.lexsort((instance.prompt, instance.output))
        prompt, output = instance.prompt[self.order].astype(np.int64), instance.output[self.order].astype(np.int64)
        self.n, self.horizon = instance.n, int(output.max())
        self.items = items_of(instance.memory, prompt, output, output)
        equal = (np.diff(prompt) == 0) & (np.diff(output) == 0)
        self.same = np.concatenate([[-1], np.where(equal, np.arange(self.n - 1), -1)]).astype(np.int64)
        self.best = int(self.start.sum())  # waiting of the incumbent
        self.scale = max(1, min(1024, 200_000_000 // max(1, self.n * int(output.sum()))))
        shares = _shares(self.memory_mb, len(self.items.own), self.n)
        self.trainer = Trainer(self.items, self.scale, shares, self.deadline)
        self.rng = np.random.Generator(np.random.PCG64(self.seed))
        self.prices: dict[int, IntArray] = {}
        self.gain: dict[int, float] = {}
        self.root_bound = 0
        self.work = 0  # of the last pass
        self.stats["tried"] = 0

    @property
    def cut(self) -> int:
        """Scaled waiting above which a state cannot improve the incumbent."""
        return (self.best - 1) * self.scale

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.monotonic() >= self.deadline

    def solve(self) -> bool:
        """Widen beams until one pass leaves nothing out; True when the incumbent is proved optimal."""
        smith = smith_prices(self.items.memory, self.instance.volume[self.order], self.scale)
        count = len(self.items.own)
        first = _within(ROOT_PAIRS, FIRST_WORK, entries(count, self.n, 2))
        lessons = [ROOT_PAIRS] if first.steps < ROOT_PAIRS.steps else []
        lessons += [ROOT_TRIPLES, ROOT_AGAIN] if self.trainer.fits(self.items.output, self.n, 3, 0) else []
        self.train_root(smith, first)
        width, most = FIRST_WIDTH, max_states(self.memory_mb, self.n, self.horizon)
        while not self.settled and not self.late and not self.passes(width):
            if (self.max_width is not None and width >= self.max_width) or width >= most:
                self.stop_reason = "done" if width < most else "work_limit"
                break
            cost = lessons[0].steps * entries(count, self.n, lessons[0].level) if lessons else 0
            if lessons and PAYS * WIDER * self.work >= cost and not self.late:
                self.train_root(self.root.price.astype(np.float64), lessons.pop(0))
            width *= WIDER
        return self.settled

    @property
    def settled(self) -> bool:
        """Whether the bound meets the incumbent."""
        return self.root_bound >= self.best

    def train_root(self, price: Any, lesson: Lesson) -> None:
        """Train prices for the empty schedule; its bound is one on every schedule."""
        nobody = np.zeros(self.n, np.bool_)
        self.root = self.trainer.train(first_layer(self.n), self.n, nobody, self.items.output, price, 0, self.best, lesson)
        value = int(self.root.tables.pair[self.n, -1, -1]) + int(self.root.price.sum())
        waiting = -(-value // self.scale)
        if waiting > self.root_bound:
            self.lift(waiting)
            given = np.zeros(self.n, np.int64)
            given[self.order] = self.root.price
            # Whoever recomputes the recursion of `ramps` with these prices gets this bound.
            self.stats["ramps"] = {"kept": self.root.tables.level, "scale": self.scale, "price": given.tolist()}
            self.stats["root_bound"] = waiting + int(self.items.output.sum())

    def lift(self, waiting: int) -> None:
        """Take note of a bound on the waiting of all schedules, or of all that could beat the incumbent."""
        self.root_bound = min(waiting, self.best)
        self.tell(("bound", self.root_bound + int(self.items.output.sum())))

    def passes(self, width: int) -> bool:
        """Run one pass and say whether it, or the incumbent it found, settles the matter."""
        self.stats["passes"], self.stats["width"] = self.stats.get("passes", 0) + 1, width
        if self.run(width):
            self.lift(self.best)
        return self.settled

    def run(self, width: int) -> bool:
        """Run one pass with at most `width` states per layer; True when it was a proof."""
        layer, n = first_layer(self.n), self.n
        room = min(max_states(self.memory_mb, n, self.horizon), width * n * (self.horizon + 1))
        children = no_children(room, n, self.horizon)
        trail: list[Step] = []
        complete, second = True, None
        sizes: list[int] = []
        self.stats["layers"], self.work = sizes, 0
        for r in range(n, 0, -1):
            total, work, finished = self.expand(layer, r, second, children)
            complete &= finished
            self.work += work
            alive = np.flatnonzero(children.alive[:total])
            sizes.append(len(alive))
            if r == 1:
                self.record(alive, children, trail)
                break
            if self.late:  # a cut pass proves nothing; go on narrowly only to turn the best state into a schedule
                complete, width = False, min(width, 20)
            elif width > FIRST_WIDTH and len(alive) > 400 and r > 3:
                alive, second = self.retrain(alive, children, r - 1, work * min(width, len(alive)) // len(layer.started))
            bound = children.states.bound[alive]
            if len(alive) > width:
                complete = False
                chosen = np.argpartition(bound, width)[:width]
                alive, bound = alive[chosen], bound[chosen]
            alive = alive[np.argsort(bound, kind="stable")]
            if len(alive) == 0:
                break
            trail.append((children.parent[alive], children.states.last[alive], children.waited[alive]))
            layer = children.states.take(alive)
        return complete

    def expand(self, layer: States, r: int, second: Priced | None, children: Children) -> tuple[int, int, bool]:
        """Make the children of `layer`; return their number, the work, and whether all of them were made."""
        market = self.root.layer(r - 1)
        none = Market(0, market.price, market.pair, market.triple, market.local)
        extra = second.layer(r - 1) if second is not None and r - 1 <= second.top else none
        children.head[:] = -1
        total, first, step, work = 0, 0, 200, 0
        while first < len(layer.started):
            stop, began = min(first + step, len(layer.started)), time.monotonic()
            loop = (self.items, self.same, layer, first, stop, r, self.cut, self.scale, market, extra, children, total)
            total, tried, compared = expand(*loop)
            self.stats["tried"] += tried
            work += TRIED * tried + COMPARED * compared
            if total < 0:
                return len(children.parent), work, False
            first, spent = stop, time.monotonic() - began
            step = max(20, min(20_000, int(step * min(4.0, 0.05 / max(spent, 1e-4)))))  # look at the clock 20 times a second
            if first < len(layer.started) and math.isfinite(self.deadline) and self.late:
                return total, work, False
        return total, work, True

    def retrain(self, alive: IntArray, children: Children, r: int, coming: int) -> tuple[IntArray, Priced]:
        """Train prices on a sample of the layer, lift all bounds with them, drop what they refute.

        `coming` is the work of expanding the layer as it is; about half of it may go into training.
        """
        states = children.states
        sample = states.take(alive if len(alive) <= SAMPLE else self.rng.choice(alive, SAMPLE, replace=False))
        started = int(np.bitwise_and.reduce(states.started[alive]))
        closed = np.array([(started >> i) & 1 == 1 for i in range(self.n)])
        rows = np.where(closed, self._longest(states.take(alive)), self.items.output)
        price = np.maximum(self.prices.get(r, self.prices.get(r + 1, self.root.price)), -(1 << 26)).astype(np.float64)
        allowed = FREE_WORK + coming // 2
        budget = allowed if self.gain.get(r, 1.0) >= 0.1 else allowed // 5
        pairs, triples = (entries(int(rows.sum()), r, level) + SAMPLE * PLAN_STEP * r * self.n for level in (2, 3))
        wide = triples < allowed and self.trainer.fits(rows, r, 3, 1)
        lessons = [] if wide and r in self.prices else [_within(LAYER_PAIRS, budget // 2, pairs)]
        lessons += [_within(LAYER_TRIPLES, budget, triples)] if wide else []
        for lesson in lessons:
            priced = self.trainer.train(sample, r, closed, rows, price, 1, self.best, lesson)
            price = np.where(priced.price <= NEVER, price, priced.price.astype(np.float64))
        self.prices[r] = price.astype(np.int64)
        raise_bounds(priced.layer(r), self.scale, states, alive)
        kept = alive[states.bound[alive] <= self.cut]
        self.gain[r] = 1 - len(kept) / len(alive)
        return kept, priced

    def _longest(self, states: States) -> IntArray:
        """Return the most rounds to go of each request in any of the states (n,)."""
        present = np.arange(self.n)[None, :] < states.size[:, None]
        held = states.running[present]
        longest = np.zeros(self.n, np.int64)
        np.maximum.at(longest, self.items.own[held], self.items.left[held])
        return longest

    def record(self, alive: IntArray, children: Children, trail: list[Step]) -> None:
        """Keep the best complete schedule."""
        states = children.states
        if not len(alive) or int(states.paid[alive].min()) >= self.best:
            return
        j = int(alive[np.argmin(states.paid[alive])])
        self.best = int(states.paid[j])
        steps = [(int(states.last[j]), int(children.waited[j]))]
        j = int(children.parent[j])
        for parent, last, waited in reversed(trail):
            steps.append((int(last[j]), int(waited[j])))
            j = int(parent[j])
        now, start = 0, np.zeros(self.n, np.int64)
        for request, wait in reversed(steps):
            now += wait
            start[self.order[request]] = now
        self.start = start
        self.tell(("start", start))


def _within(lesson: Lesson, work: int, fill: int) -> Lesson:
    """Return the lesson with no more steps than the work pays for, but one."""
    return lesson._replace(steps=max(1, min(lesson.steps, work // max(1, fill))))
