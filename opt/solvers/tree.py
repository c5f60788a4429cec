"""The `tree` bound: branch and bound on start windows, each node closed by prices (certificate: `opt.core.tree`).

Every node solves the time-indexed linear program on the starts still open and turns its dual into integer prices. They
close the node, or narrow its windows; then the request whose starts are most spread out, weighted by its peak, is split
at its mean start. Nodes with the least bound go first. The linear program starts from the last basis, so a node costs
about a millisecond at a dozen requests.

What it gives: where six to ten requests run together (`generate("small-short")`) the program is tight, and the tree proves
optima by certificate: about 150 nodes at n = 12, 2,000 to 20,000 at n = 15. CP-SAT, which learns, is faster from there on.
Where two to four run together the program is 14 to 30 % too low, and `ramps` is the better bound.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from opt.core.clock import now
from opt.core.columns import FloatArray, IntArray
from opt.core.instance import Instance
from opt.core.model import Bound
from opt.core.tree import MAX_CELLS, Brackets, Open, halved, tree_value
from opt.solvers.exact.highs import loaded
from opt.solvers.exact.timeindexed import build

__all__ = ["Tree", "refusal", "tree"]

SCALE = 1 << 16  # prices are multiples of 2**-16
ENTRIES = 2_000_000  # memory coefficients of the root program
WORTH = 0.05  # a narrowing that closes this share of the starts is worth another round of prices before a split
MAX_NODES = 20_000
TINY = 1e-6


def tree(instance: Instance, *, time_limit: float = 30.0, max_nodes: int = MAX_NODES, start: IntArray | None = None) -> Bound:
    """Return what a tree of start windows proves within `time_limit` seconds and `max_nodes` linear programs.

    `start` (n,) is a schedule to prove best; None looks for a good one. The better it is, the smaller the tree.

    Raises:
        ValueError: the program would be too large (use `prices` or `lp`).
    """
    begun = now()
    if start is None:
        from opt.solvers.portfolio import incumbent

        start = incumbent(instance, seed=0, time_limit=time_limit / 10).start
    assert start is not None
    reason = refusal(instance, start)
    if reason is not None:
        raise ValueError(f"the tree bound is for small instances: {reason}; use lp or prices")
    search = Tree(instance, start)
    search.solve(begun + 0.9 * time_limit, max_nodes)  # writing the proof down takes the rest
    return search.bound()


def refusal(instance: Instance, start: IntArray) -> str | None:
    """Return why the tree does not apply, if so."""
    waits = _waits(start - instance.arrival)
    cells, entries = instance.n * (waits + 1), (waits + 1) * int(instance.output.sum())
    if cells > MAX_CELLS or entries > ENTRIES:
        return f"{instance.n} requests with waits up to {waits:,} make {entries:,} coefficients, over {ENTRIES:,}"
    return None


def _waits(wait: IntArray) -> int:
    """Return the longest wait that a schedule with a smaller sum of waits may hold."""
    return max(int(wait.sum()) - 1, 0)


@dataclass
class _Node:
    """A node of the tree: prices in the order they were applied, then a split and its halves, or nothing (a leaf)."""

    prices: list[IntArray] = field(default_factory=list)
    split: tuple[int, int] | None = None
    halves: tuple[_Node, ...] = ()


class Tree:
    """The search: `leaves` is empty once `start` is proved best.

    Args:
        instance: requests, arrivals in rounds, not refused by `refusal`.
        start: (n,) a schedule to beat.
    """

    def __init__(self, instance: Instance, start: IntArray) -> None:
        self.instance, self.start = instance, start
        self.floor = int(instance.output.sum())
        self.value = int((start - instance.arrival).sum()) + self.floor
        self.brackets = Brackets(instance, _waits(start - instance.arrival))
        self.root, self.nodes, self.age = _Node(), 0, 0
        self.leaves: list[tuple[int, int, _Node, Open]] = []  # a heap of (bound * SCALE, -age, node, open starts)

    def solve(self, deadline: float = math.inf, max_nodes: int = MAX_NODES) -> bool:
        """Work until the schedule is proved best or a limit is reached; return whether it was proved."""
        if self.value <= self.floor:
            return True
        here = np.ones(self.brackets.begin.shape, np.bool_)
        here, bound, _ = self._priced(self.root, _Relaxation(self.instance, self.brackets, here), here)
        if not here.any(axis=1).all():
            return True
        self._push(bound, self.root, here)
        relaxation = _Relaxation(self.instance, self.brackets, here)  # the root has closed many starts: a smaller program
        while self.leaves and self.nodes < max_nodes and now() < deadline:
            _, _, node, here = heapq.heappop(self.leaves)
            self._expand(relaxation, node, here)
        return not self.leaves

    def _push(self, bound: int, node: _Node, here: Open) -> None:
        self.age += 1
        heapq.heappush(self.leaves, (bound, -self.age, node, here))

    def _expand(self, relaxation: _Relaxation, node: _Node, here: Open) -> None:
        """Price a leaf for as long as that closes many of its starts, then split it."""
        while True:
            before = int(here.sum())
            here, bound, share = self._priced(node, relaxation, here)
            if not here.any(axis=1).all():
                return
            if int(here.sum()) >= (1 - WORTH) * before:
                break
        i, cut = self._most_spread(here, share)
        node.split, node.halves = (i, int(self.instance.arrival[i]) + cut), (_Node(), _Node())
        early, late = here.copy(), here.copy()
        early[i, cut + 1 :] = late[i, : cut + 1] = False
        for half, part in zip(node.halves, (early, late), strict=True):
            self._push(bound, half, part)

    def _priced(self, node: _Node, relaxation: _Relaxation, here: Open) -> tuple[Open, int, FloatArray]:
        """Apply the prices of the linear program on the open starts; return what is left, the bound, and the solution."""
        self.nodes += 1
        price, share = relaxation.solve(here)
        self._offer(share)
        node.prices.append(price)
        narrower, bound = self.brackets.narrowed(price, SCALE, here, self.value)
        return narrower, bound, share

    def _offer(self, share: FloatArray) -> None:
        """Keep a solution that happens to be whole and better."""
        if not (share.max(axis=1) > 1 - TINY).all():
            return
        wait = share.argmax(axis=1)
        total = int(wait.sum()) + self.floor
        if total < self.value:
            self.start, self.value = self.instance.arrival + wait, total

    def _most_spread(self, here: Open, share: FloatArray) -> tuple[int, int]:
        """Return the request to split, and the wait up to which starts count as early; both halves keep a start."""
        wait = np.arange(share.shape[1])
        mean = share @ wait
        spread = np.sqrt(np.maximum(share @ wait**2 - mean**2, 0)) * self.instance.peak
        spread[here.sum(axis=1) < 2] = -1.0
        i = int(spread.argmax())
        first, last = np.flatnonzero(here[i])[[0, -1]].tolist()
        return i, min(max(math.floor(mean[i] + TINY), first), last - 1)

    def bound(self) -> Bound:
        """Return what has been proved so far, with the tree as its certificate."""
        worst = min((bound for bound, *_ in self.leaves), default=self.value * SCALE)
        value = max(self.floor, min(self.value, -(-worst // SCALE)))
        certificate = {"kind": "tree", "value": value, "scale": SCALE, "nodes": self._listed(value)}
        return Bound(tree_value(self.instance, certificate), "tree", "separate", certificate)

    def _listed(self, value: int) -> list[Any]:
        """Return the nodes in preorder as the check will meet them: with the windows of `value`, leaves end earlier."""
        if value <= self.floor:
            return []
        brackets = Brackets(self.instance, value - 1 - self.floor)
        listed: list[Any] = []
        pending = [(self.root, np.ones(brackets.begin.shape, np.bool_), np.zeros(0, np.int64))]
        while pending:
            node, here, inherited = pending.pop()
            for price in node.prices or [inherited]:  # a leaf that was never expanded closes by its parent's prices
                listed.append(price.tolist())
                here, _ = brackets.narrowed(price, SCALE, here, value)
                if not here.any(axis=1).all():
                    break
            else:
                assert node.split is not None
                listed.append({"split": list(node.split)})
                halves = zip(node.halves, halved(brackets, here, *node.split), strict=True)
                pending += [(half, part, price) for half, part in reversed(list(halves)) if part.any(axis=1).all()]
        return listed


class _Relaxation:
    """The time-indexed linear program over the starts open at its birth; later calls may close some of them.

    A column of no memory for each request, dearer than any start, keeps it feasible.
    """

    def __init__(self, instance: Instance, brackets: Brackets, here: Open) -> None:
        self.at, self.shape = np.nonzero(here), here.shape
        model = build(instance, [brackets.begin[i][here[i]] for i in range(instance.n)])
        self.solver, self.n, self.columns = loaded(instance, model, integral=False, threads=1), instance.n, len(model.at)
        self.every = np.arange(self.columns, dtype=np.int32)
        far = instance.memory * self.shape[1]
        for i, latest in enumerate((instance.arrival + instance.output).tolist()):
            self.solver.addCol(float(latest + far), 0.0, 1.0, 1, np.array([i], np.int32), np.ones(1))

    def solve(self, here: Open) -> tuple[IntArray, FloatArray]:
        """Return integer prices for rounds 1, 2, ... and the share of each start (n, W + 1)."""
        upper = here[self.at].astype(np.float64)
        self.solver.changeColsBounds(self.columns, self.every, np.zeros(self.columns), upper)
        self.solver.run()
        found = self.solver.getSolution()
        share = np.zeros(self.shape)
        share[self.at] = np.array(found.col_value)[: self.columns]
        dual = np.maximum(-np.array(found.row_dual)[self.n :], 0.0)
        return np.floor(dual * SCALE).astype(np.int64), share
