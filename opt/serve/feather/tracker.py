"""The Chunked Hash Tree kept in step with an engine."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from opt.core.columns import ABSENT, FloatArray
from opt.serve.feather.kernels import standing
from opt.serve.prefix.tree import ChunkedHashTree
from opt.sim.batch import View
from opt.sim.workload import RUNNING, WAITING, Requests

__all__ = ["Tracker"]

WINDOW = 32  # arrivals
RECENT = 256  # finished requests whose outputs are remembered
PRIOR = 32  # requests whose announcement counts as kept before any has finished
OUTPUT = 100.0  # tokens assumed while nothing is announced and nothing has finished
EVEN = (2 * np.arange(PRIOR) + 1) / PRIOR  # outputs over their mean, spread evenly between none and twice the mean


@dataclass
class Tracker:
    """Who waits and who runs, as a tree of prompt units.

    Arrivals are noticed in the order of their times, leavers by comparing the running list; where the counts still differ
    from the engine's (requests submitted late, withdrawn, or preempted by others), all are compared.

    Args:
        tree: the waiting and the running requests, running ones active.
        known: running requests, in the order in which they were admitted.
        arrived: how many of `order` are in the tree or have been.
        held_back: how many have arrived but are not let in yet.
        order: requests by arrival.
        arrival_s: their times.
        finished, made, announced: requests that have left for good, the tokens they made, and those announced of them.
        recent: the tokens made by the latest of them.
        engine: what compiled formulas take of the engine, see `opt.serve.feather.estimate.engine_numbers`; None before.
    """

    order: list[int]
    arrival_s: list[float]
    tree: ChunkedHashTree = field(default_factory=ChunkedHashTree)
    known: list[int] = field(default_factory=list)
    arrived: int = 0
    held_back: int = 0
    finished: int = 0
    made: int = 0
    announced: int = 0
    recent: deque[int] = field(default_factory=partial(deque, maxlen=RECENT))
    engine: FloatArray | None = None
    _sorted: tuple[int, FloatArray] = (0, EVEN)
    _steps: int = -1  # of the engine when `known` was last compared; between steps only we admit

    @classmethod
    def of(cls, requests: Requests) -> Tracker:
        """Return a tracker of requests none of which has arrived."""
        order = np.argsort(requests.arrival_s, kind="stable")
        return cls(order.tolist(), requests.arrival_s[order].tolist())

    def sync(self, view: View, latest_s: float = math.inf) -> None:
        """Catch up with the engine; arrivals after `latest_s` are held back until a later call lets them in."""
        if view.steps != self._steps:
            self._follow(view)
        upto, tree = min(view.now, latest_s), self.tree
        while self.arrived < len(self.order) and self.arrival_s[self.arrived] <= upto:
            i = self.order[self.arrived]
            self.arrived += 1
            if i in view.waiting and i not in tree:
                tree.insert(i, view.units(i))
        self.held_back = bisect_right(self.arrival_s, view.now) - self.arrived if upto < view.now else 0
        if len(tree.waiting) + self.held_back != len(view.waiting) or len(tree.active) != len(self.known):
            self._follow(view)
            self._compare(view, latest_s)

    def _follow(self, view: View) -> None:
        """Let those go who have left the running list."""
        running = view.running.tolist()
        self._steps = view.steps
        if running != self.known:
            for i in set(self.known).difference(running):
                if i in self.tree.active:
                    self._let_go(view, i)
            self.known = running

    def _let_go(self, view: View, i: int) -> None:
        if view.progress.state[i] == WAITING:
            self.tree.wait(i)
        else:
            self.tree.finish(i)
            produced = int(view.progress.produced[i])
            self.finished += 1
            self.made += produced
            self.recent.append(produced)
            self.announced += max(int(view.requests.expected[i]), 0)

    def _compare(self, view: View, latest_s: float) -> None:
        tree, state = self.tree, view.progress.state
        for i in [i for i in tree.active if state[i] != RUNNING]:
            self._let_go(view, i)
        for i in [i for i in tree.waiting if state[i] != WAITING]:
            tree.remove(i)
        for i in view.waiting:
            if i not in tree and view.requests.arrival_s[i] <= latest_s:
                tree.insert(i, view.units(i))
        for i in self.known:
            if i not in tree.active:
                tree.insert(i, view.units(i))
                tree.activate(i)

    def admitted(self, i: int) -> None:
        """Let a request be active."""
        self.tree.activate(i)
        self.known.append(i)

    def rate(self, now: float) -> float:
        """Return the arrivals a second, over the latest `WINDOW` of them up to now."""
        first = self.arrived + self.held_back - WINDOW
        if first < 0 or now <= self.arrival_s[first]:
            return 0.0
        return WINDOW / (now - self.arrival_s[first])

    def _known(self) -> tuple[float, float]:
        """Return the mean output so far, and what announcements came to; short ones finish first, so a few say little."""
        if not self.finished:
            return OUTPUT, 1.0
        known = PRIOR * self.announced / self.finished
        share = (self.made + known) / (self.announced + known) if self.announced else 1.0
        return self.made / self.finished, share

    def output(self, view: View, i: int) -> float:
        """Return the tokens that request i will make, at least one."""
        mean, share = self._known()
        announced = int(view.requests.expected[i])
        return max(1.0, mean if announced == ABSENT else announced * share)

    def left(self, view: View) -> float:
        """Return the steps until all active requests have finished, at least one; 0 without any."""
        return self.standing(view)[1]

    def standing(self, view: View) -> tuple[float, float]:
        """Return the KV tokens that a decode step of all active requests reads, and the steps until they have finished."""
        if not self.known:
            return 0.0, 0.0
        mean, share = self._known()
        requests, produced = view.requests, view.progress.produced
        tokens, left = standing(view.running, requests.prompt, requests.expected, produced, mean, share)
        return float(tokens), float(left)

    @property
    def outputs(self) -> FloatArray:
        """Recent outputs over their mean, ascending; looked at anew every `PRIOR` requests, evenly spread before the first few.

        To take unknown outputs as equal would promise a group that runs alone a batch that stays full to its end.
        """
        upto, ordered = self._sorted
        if self.finished - upto >= PRIOR:
            values = np.sort(np.array(self.recent, np.float64))
            ordered = values / values.mean()
            self._sorted = self.finished, ordered
        return ordered
