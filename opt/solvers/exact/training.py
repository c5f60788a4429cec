"""Good prices for `ramps`: subgradient ascent of the mean bound over a sample of states.

Raise the price of what the relaxed plan never starts, lower it for what it starts twice. All is counted in steps, never
in seconds, so the same seed gives the same prices on any machine.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.exact.items import NEVER, Items, items_of
from opt.solvers.exact.layers import Market, States
from opt.solvers.exact.ramps import Tables, bound_of, fill, state_value, table_bytes, visits

__all__ = ["Lesson", "Priced", "Trainer", "entries", "raise_bounds", "smith_prices"]

Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]
Prices = npt.NDArray[np.float64]


class Priced(NamedTuple):
    """A filled table with its prices and the translation from global items; good for counters up to `top`."""

    tables: Tables
    items: Items
    price: IntArray
    local: Int32
    top: int

    def layer(self, r: int) -> Market:
        """Return the market when r requests have not started."""
        triple = self.tables.triple[r] if self.tables.level == 3 else self.tables.triple[0]
        return Market(self.tables.level, self.price, self.tables.pair[r], triple, self.local)


class Lesson(NamedTuple):
    """How much to train at one level: at most `steps` fills, of which the first moves prices by `stride`."""

    level: int
    steps: int
    stride: float


def entries(items: int, requests: int, level: int) -> int:
    """Return how many table entries a fill computes, the measure of its work."""
    return table_bytes(items, requests, level) // 4


def smith_prices(memory: int, volume: IntArray, scale: int) -> Prices:
    """Return the prices of the volume relaxation: what each request waits and makes others wait."""
    n, price, t = len(volume), np.zeros(len(volume)), 0.0
    for rank, i in enumerate(np.argsort(volume, kind="stable")):
        share = volume[i] / memory
        price[i] = t + (n - rank) * share
        t += share
    return price * scale


@dataclass
class Trainer:
    """Fills tables over the items of one instance; `spare` keeps one buffer for each slot.

    Touching a gigabyte of fresh memory costs more than filling it, so the buffers last.
    """

    items: Items
    scale: int
    max_bytes: tuple[int, int]  # for the tables of each slot
    deadline: float = math.inf
    spare: dict[int, Int32] = field(default_factory=dict)

    def fits(self, rows: IntArray, r: int, level: int, slot: int) -> bool:
        """Return whether the tables would stay within the memory that is allowed."""
        return table_bytes(int(rows.sum()), r, level) <= self.max_bytes[slot]

    def tables(self, count: int, r: int, level: int, slot: int) -> Tables:
        """Return views of the buffer of `slot`."""
        pairs = (count + 1) ** 2
        triples = count * (count - 1) * (count - 2) // 6 if level == 3 else 1
        need, cut = (r + 1) * (pairs + triples), (r + 1) * pairs
        flat = self.spare.get(slot)
        if flat is None or len(flat) < need:
            self.spare.pop(slot, None)
            flat = self.spare[slot] = np.empty(need, np.int32)
        pair = flat[:cut].reshape(r + 1, count + 1, count + 1)
        return Tables(level, pair, flat[cut:need].reshape(r + 1, triples))

    def train(
        self,
        states: States,
        r: int,
        closed: npt.NDArray[np.bool_],
        rows: IntArray,
        price: Prices,
        slot: int,
        best: int,
        lesson: Lesson,
    ) -> Priced:
        """Ascend the mean bound of the sample `states`, all with `r` unstarted requests; return the best tables, filled.

        Args:
            closed: (n,) requests that have started in every state; they get no price.
            rows: (n,) how many items of each the tables shall know.
            price: where to start.
            slot: which buffer to use.
            best: waiting of the incumbent; a mean beyond it needs no more training.
            lesson: how much.
        """
        everything, level = self.items, lesson.level
        items = items_of(everything.memory, everything.prompt, everything.output, rows)
        local = np.full(len(everything.own), -1, np.int32)
        for i, off in enumerate(everything.off):
            local[off : off + rows[i]] = np.arange(items.off[i], items.off[i] + rows[i])
        n, cut = len(rows), (best - 1) * self.scale
        tables, top = self.tables(len(items.own), r, level, slot), (1 << 29) // n  # so that n prices stay in 32 bits
        mean_best, price_best, filled = -np.inf, np.zeros(n, np.int64), np.zeros(0, np.int64)
        gradient, mean, square = np.zeros(n), np.zeros(n), np.zeros(n)
        for k in range(lesson.steps):
            filled = np.clip(np.rint(price), -top, top).astype(np.int64)
            filled[closed] = NEVER
            fill(tables, items, filled, r, self.scale)
            value = _ascend(items, tables, filled, self.scale, local, r, states, cut, gradient)
            if value > mean_best:
                mean_best, price_best = value, filled
            gradient[closed] = 0
            late = time.monotonic() > self.deadline
            if late or not gradient.any() or value >= cut + 1 or k + 1 == lesson.steps:
                break
            # Adam's steps: prices of requests that the plan repeats wildly move as calmly as the others.
            mean, square = 0.7 * mean + 0.3 * gradient, 0.92 * square + 0.08 * gradient * gradient
            rate = lesson.stride * best * self.scale / n * 0.03 ** (k / lesson.steps)
            bias1, bias2 = 1 - 0.7 ** (k + 1), 1 - 0.92 ** (k + 1)
            price = price + rate * (mean / bias1) / (np.sqrt(square / bias2) + 0.3)
        if filled is not price_best:
            fill(tables, items, price_best, r, self.scale)
        return Priced(tables, items, price_best, local, r)


@compiled
def _localise(running: Int16, count: int, local: Int32, out: IntArray) -> int:
    """Translate global items to those of a table; the ones it does not know are left out (a weaker bound)."""
    size = 0
    for x in range(count):
        a = local[running[x]]
        if a >= 0:
            out[size] = a
            size += 1
    return size


@compiled
def _ascend(
    items: Items, tables: Tables, price: IntArray, scale: int, local: Int32, r: int, states: States, limit: int, gradient: Prices
) -> float:
    """Return the mean over the states of min(max(their bound, the new one), limit + 1), and its ascent direction."""
    n = len(price)
    total, unsettled = 0.0, 0
    gradient[:] = 0.0
    visited = np.zeros(n, np.int64)
    here = np.empty(n + 1, np.int64)
    kept = np.empty(3, np.int64)
    for j in range(len(states.started)):
        size = _localise(states.running[j], states.size[j], local, here)
        value = states.paid[j] * scale + state_value(tables.level, tables.pair[r], tables.triple[r], here, size, kept)
        for i in range(n):
            if not (states.started[j] >> i) & 1:
                value += price[i]
        total += min(max(value, states.bound[j]), limit + 1)
        if value > limit:
            continue
        visited[:] = 0
        visits(items, tables.level, price, scale, tables.pair, tables.triple, r, kept, visited)
        unsettled += 1
        for i in range(n):
            gradient[i] += (1 - ((states.started[j] >> i) & 1)) - visited[i]
    if unsettled > 0:
        gradient /= unsettled
    return total / len(states.started)


@compiled
def raise_bounds(market: Market, scale: int, states: States, index: IntArray) -> None:
    """Lift `states.bound[index]` by one market."""
    n = len(market.price)
    here = np.empty(n + 1, np.int64)
    for j in index:
        size = _localise(states.running[j], states.size[j], market.local, here)
        value = states.paid[j] * scale
        for i in range(n):
            if not (states.started[j] >> i) & 1:
                value += market.price[i]
        value += bound_of(market.level, market.pair, market.triple, here, size, 1 << 60)
        states.bound[j] = max(states.bound[j], value)
