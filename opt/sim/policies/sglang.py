"""SGLang's loop: a prefill batch whenever one can be made, decodes otherwise; the waiting queue in one of five orders.

Admission sets aside, for everyone who runs, a share `ratio` of the announced output still to come (at most 4,096 tokens
each), and for the newcomer all of it and a block. The ratio starts at 0.7 and falls linearly to 0.098 over 600 decode
steps; when decodes do not fit, requests with the fewest output tokens are retracted and recomputed later, and the ratio
is set anew from how far the others have come. Once an admission fails while others run, none is tried before somebody
finishes.

Orders: `fcfs`; `lpm` longest cached prefix first, ties as sorted last, then by arrival (as it is when more than 128 wait;
who shares 32 tokens or more with an earlier waiting request while the cache has at most 32 goes last this time);
`dfs-weight` walks the tree of cached prefixes, heavier subtrees first, of equals the one that entered the cache first;
`lof` longest announced output first; `random` by seed.

`opt.plugins.sglang.oracle` holds `lpm` and `dfs-weight` against SGLang's own code. Differences from the engine itself:
    - Retracted requests keep the place of their arrival in the queue, and find all their tokens again whose place was not
      needed; in the engine their prompts alone.
    - Outputs do not enter the prefix cache. Of prompts whole units do, at once: prompts of one step share what the first
      of them computes.
    - Under `dfs-weight`, requests with the same cached prefix go by arrival, where the engine keeps them as sorted last,
      which may differ after evictions.
    - Steps follow one another as with `--disable-overlap-schedule`; else the engine learns of an end a step later.
    - For requests that ignore the end of sequence the engine sets all their output aside, and while no prefixes are kept
      it admits them by a look-ahead of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import numpy as np

from opt.core.columns import ABSENT, IntArray
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.workload import Requests

__all__ = ["ORDERS", "Loop", "sglang"]

CLIP = 4096  # output tokens set aside for one request, at most
RATIO, LEAST_RATIO, DECAY_STEPS = 0.7, 0.098, 600
RETRACT_AHEAD = 20  # decode steps the new ratio looks ahead after a retraction
LPM_MOST = 128  # waiting requests up to which prefixes are matched
SHARED = 32  # tokens


def sglang(requests: Requests, config: EngineConfig, *, order: str, seed: int = 0) -> Policy:
    """Return SGLang's scheduler with a key of `ORDERS` for its waiting queue."""
    rank = -requests.expected if order == "lof" else None
    return Policy(Loop(ORDERS[order], np.random.PCG64(seed), dated=order == "dfs-weight").decide, rank)


@dataclass
class Loop:
    """The engine's scheduler.

    Args:
        order: of the waiting queue.
        random: for the order `random`.
        dated: whether the order needs `entered`.
        ratio: the share of outputs to come that is set aside.
        full: whether an admission has failed and nobody has left since.
        steps, decoding, running: of the last decision.
        line: for `lpm`, the queue as it was sorted last, and since then.
        entered: for `dfs-weight`, when each cached prompt unit entered the cache.
        computing: who computes prompt units, and how many of its units were cached before.
        clock: units that have entered.
    """

    order: Callable[[Loop, View], Iterable[int]]
    random: np.random.PCG64
    dated: bool = False
    ratio: float = RATIO
    full: bool = False
    steps: int = 0
    decoding: bool = False
    running: list[int] = field(default_factory=list)
    line: list[int] = field(default_factory=list)
    entered: dict[int, int] = field(default_factory=dict)
    computing: list[tuple[int, int]] = field(default_factory=list)
    clock: int = 0

    def decide(self, view: View) -> Batch:
        """Prefill if anything can be, else decode."""
        self._notice(view)
        batch = view.batch()
        if len(view.partial()) or (len(view.waiting) and not self.full):
            self._prefill(view, batch)
        if not len(batch):
            self._decode(view, batch)
        self.decoding = not batch.chunks
        self.steps, self.running = view.steps, view.running.tolist()
        return batch

    def _notice(self, view: View) -> None:
        """Catch up with what happened since the last decision."""
        if self.decoding:
            fallen = self.ratio - (RATIO - LEAST_RATIO) / DECAY_STEPS * (view.steps - self.steps)
            self.ratio = max(fallen, min(self.ratio, LEAST_RATIO))
        if len(view.running) < len(self.running):
            self.full = False

    def _prefill(self, view: View, batch: Batch) -> None:
        partial, block = view.partial(), view.config.block_size  # a block for rounding goes with every prompt
        if batch.seats <= 0 and not partial:
            self.full = True
            return
        line = self.order(self, view)
        busy = len(view.running) > len(partial)  # the engine forgets that it is full when its first batch joins no other
        for i in partial:
            need = view.needs(i)
            if not self._add(view, batch, i) or batch.chunks[-1][2] < need:
                return  # one prompt at a time is cut
        joined = np.isin(view.running, partial, invert=True)
        room = view.memory[0] - self.ratio * float(_to_come(view, view.running[joined]).sum())
        room -= float(_announced(view, np.array(partial, np.int64)).sum()) + len(partial) * block
        for i in line if batch.budget > 0 else ():
            need = view.needs(i)
            wanted = need + int(_to_come(view, np.array([i]))[0]) + block
            alone = not len(view.running)
            if (wanted >= room and not alone) or batch.seats <= 0:
                self.full = busy
                return
            left = batch.budget
            added = self._add(view, batch, i)
            if not added or left - batch.budget < need:
                self.full = not added and busy
                return
            room -= need + int(_announced(view, np.array([i]))[0]) + block

    def _add(self, view: View, batch: Batch, i: int) -> bool:
        if self.dated:
            self.computing.append((i, int(view.cached_units(np.array([i]))[0])))
        return batch.add(i)

    def date(self, view: View) -> None:
        """Note which prompt units have entered the cache since the last time, in the order in which they did."""
        begun = self.clock
        for i, before in self.computing:
            for name in view.units(i)[before : int(view.cached_units(np.array([i]))[0])]:
                if self.entered.get(name, 0) <= begun:
                    self.clock += 1
                    self.entered[name] = self.clock
        self.computing.clear()

    def _decode(self, view: View, batch: Batch) -> None:
        retracted = False
        while not batch.decode() or (len(view.running) and not len(batch) and not batch.preempted):
            progress, prompt = view.progress, view.requests.prompt
            batch.preempt(min(view.running.tolist(), key=lambda i: (progress.produced[i], -prompt[i], -i)))
            retracted = True
        if retracted:
            self.full = False
            self.ratio = self._renewed(view)
        batch.repeat = FOREVER if len(batch) and not retracted else 1

    def _renewed(self, view: View) -> float:
        running = view.running
        made = view.progress.produced[running]
        total = float((made + _to_come(view, running)).sum())
        return min(1.0, float(made.sum() + RETRACT_AHEAD * len(running)) / total) if total else RATIO


def _to_come(view: View, who: IntArray) -> IntArray:
    """Return the announced tokens still to be made, clipped; the clip itself where nothing is announced."""
    expected = view.requests.expected[who]
    left = np.maximum(expected - view.progress.produced[who], 0)
    return np.where(expected == ABSENT, CLIP, np.minimum(left, CLIP)).astype(np.int64)


def _announced(view: View, who: IntArray) -> IntArray:
    """Return the announced tokens, clipped: what the engine sets aside for a newcomer, also for one that was retracted."""
    expected = view.requests.expected[who]
    return np.where(expected == ABSENT, CLIP, np.minimum(expected, CLIP)).astype(np.int64)


def _queue(loop: Loop, view: View) -> Iterator[int]:
    """Yield the head of the queue for as long as it is admitted; the queue is in the policy's order already."""
    last = None
    while (head := view.waiting.head) is not None and head != last:
        last = head
        yield head


def _shuffled(loop: Loop, view: View) -> Iterator[int]:
    """Yield the queue in random order, drawn as far as it is needed."""
    waiting = list(view.waiting)
    while waiting:
        at = int(loop.random.random_raw()) % len(waiting)
        waiting[at], waiting[-1] = waiting[-1], waiting[at]
        yield waiting.pop()


def _lpm(loop: Loop, view: View) -> Iterator[int]:
    """The engine sorts its queue in place: an order once given holds among equals, and while too many wait to sort."""
    loop.line = [i for i in loop.line if i in view.waiting]
    if len(view.waiting) > LPM_MOST:
        return chain(loop.line, _queue(loop, view))
    known = set(loop.line)
    line = loop.line + [i for i in view.waiting if i not in known]
    cached = dict(zip(line, (view.cached_units(np.array(line, np.int64)) * view.unit).tolist(), strict=True))
    postponed = _postponed(view, line, cached)
    found = {i: 0 if i in postponed else min(cached[i], view.requests.prompt[i] - 1) for i in line}
    loop.line = sorted(line, key=lambda i: (i in postponed, -found[i]))
    return iter(loop.line)


def _postponed(view: View, line: list[int], cached: dict[int, int]) -> set[int]:
    """Return who would find its prefix in the cache if an earlier waiting request went first."""
    seen: set[int] = set()
    found = set()
    for i in line:
        if cached[i] > SHARED:
            continue
        units = view.units(i)
        shared = next((k for k, name in enumerate(units) if name not in seen), len(units))
        if shared * view.unit >= SHARED:
            found.add(i)
        else:
            seen.update(units)
    return found


def _dfs_weight(loop: Loop, view: View) -> Iterator[int]:
    """Walk the tree of cached prefixes, heavier subtrees first; who ends at a node comes after them, by arrival.

    The walk goes only as far as requests are taken from it.
    """
    loop.date(view)
    waiting = np.fromiter(view.waiting, np.int64, len(view.waiting))
    depth_of = view.cached_units(waiting)
    stack: list[tuple[IntArray, int | None]] = [(np.arange(len(waiting)), 0)]
    while stack:
        members, depth = stack.pop()
        if depth is None or len(members) == 1:
            yield from waiting[members].tolist()
            continue
        deeper = depth_of[members] > depth
        stack.append((members[~deeper], None))
        stack.extend(_subtrees(loop, view, waiting, members[deeper], depth))


def _subtrees(loop: Loop, view: View, waiting: IntArray, members: IntArray, depth: int) -> list[tuple[IntArray, int | None]]:
    """Return the members by their next unit, the heaviest group last, and of equals the one that entered the cache first."""
    if not len(members):
        return []
    names, group, sizes = np.unique(view.names_at(waiting[members], depth), return_inverse=True, return_counts=True)
    by_group = members[np.argsort(group, kind="stable")]
    groups = zip(names.tolist(), np.split(by_group, np.cumsum(sizes)[:-1]), strict=True)
    ordered = sorted(groups, key=lambda named: (len(named[1]), -loop.entered.get(named[0], 0)))
    return [(found, depth + 1) for _, found in ordered]


ORDERS: dict[str, Callable[[Loop, View], Iterable[int]]] = {
    "fcfs": _queue,
    "lpm": _lpm,
    "dfs-weight": _dfs_weight,
    "lof": _queue,
    "random": _shuffled,
}
