"""A batch former that weighs groups with the cost model: what serving them now costs, against serving them later.

A *block* is a prefix and those who wait for it: of the prefixes of a candidate, the one whose waiting requests share most.
Let T be the seconds of a decode step of a batch, B the running batch, r the steps until it has drained if nobody joins,
and o those that a request needs. Admitting a block of j requests now costs each of them

    now = r (seat + prefix) + (1 - r / o) min(alone, mixed),

where `seat` is what each who finds a seat at once adds to T(B), a shared kernel that switches off included, and `prefix`
what reading a prefix that B does not have adds, over j, since all of the block follow as seats become free; or both together
are an equal share of what filling all free seats with blocks like this one adds, if that is less, since a shared kernel
switches off once for all who join then, and not for the first block alone. Admitting them when B has drained costs
`later = min(alone, mixed)`, for as many as will be there by then, arrivals meanwhile included. `mixed` is what each member
of a full batch of such groups costs; `alone` what each costs when the block has the engine to itself, the seats that stay
empty while its last members finish included (outputs as finished requests had them, and until some have finished spread
evenly up to twice their mean). A prefix that has to be computed is computed once either way; one that is in memory, but
will not stay there since all prefixes together exceed it, adds its computation to `later`.

The block with the largest `1 - now / later` is admitted; if that is not positive the former stops. So a divergent request is
refused exactly where what it costs the running batch (a second prefix to read, a shared kernel that switches off, a
cache that overflows) is more than its share of steps of its own; a group with few members left is let run out once
another has gathered; small groups are mixed, since each alone would pay for whole steps. An empty batch begins with
the block that is cheapest now, its prefix included. While some block is refused, those who are admitted pay for the steps
after B has drained as if nobody else ran then, `(1 - r / o) alone`, shared with the running members of their own block. Else
a few who keep coming to a small group, each at the price of a seat, would keep the engine from all the others.

Candidates are four: the blocks of the request that adds least to the running batch, of one that has most in common with
somebody running, of the prefix with most shared tokens, and of the oldest request. Where neither batch nor candidate
shares anything, admission is by arrival and never stops: `vllm-fcfs`, step for step.

**Waiting is bounded.** With h the oldest waiting request, only requests are looked at that arrived within the first
max(A, s w) seconds after it, A being `max_wait_s`, s `overtake` (below 1) and w what h has waited so far. Hence *no request
that arrives after T = a_i + max(A, s wait(i)) is admitted before i*. If nobody is preempted and D is the longest that a
request stays, somebody is admitted in every D seconds, since a drained engine takes whom it can get; so with W requests
waiting at T

    wait(i) <= max(A, s wait(i)) + (W + 1) D,  that is,  wait(i) <= max(A + (W + 1) D, (W + 1) D / (1 - s)).

In a burst the limit costs nothing. In a long overload, where everybody waits for minutes, s is what lets groups form at all:
who has waited at least half as long as the oldest may go first.

What it cannot know is who will come. It waits for groups to gather at the rate of recent arrivals; where a heavy rush stops
just then, some per cent of throughput are lost to `vllm-fcfs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from opt.core.columns import FloatArray
from opt.serve.feather.estimate import Shape, engine_numbers, prefill_seconds, shape_and_left
from opt.serve.feather.kernels import block_costs
from opt.serve.feather.loop import admit
from opt.serve.feather.tracker import Tracker
from opt.serve.prefix.tree import Node
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["Analytic", "Block", "Scene", "block_of", "costs_of"]


class Block(NamedTuple):
    """A candidate and those who would come with it.

    Args:
        first: the candidate.
        node: the prefix they share; None for the candidate alone.
        members: how many wait for it.
        shared: units of that prefix.
        held: units of it that the running batch has.
        own: prompt units of the candidate.
        length: KV tokens of the candidate.
        common: units that the whole batch would have in common with it.
        part: how many wait or run with that prefix.
    """

    first: int
    node: Node | None
    members: int
    shared: int
    held: int
    own: int
    length: int
    common: int
    part: int


def block_of(view: View, tracker: Tracker, i: int) -> Block:
    """Return the block of a waiting request: the prefix on its path that saves most units if all of it run together."""
    tree = tracker.tree
    node: Node | None = tree.waiting[i]
    assert node is not None
    own = node.depth
    held = own - tree.missing(i)
    best, saved = None, 0
    while node is not None:
        saving = node.waiting * node.depth - max(0, node.depth - held)
        if saving > saved:
            best, saved = node, saving
        node = node.parent
    length = int(view.requests.prompt[i] + view.progress.produced[i]) + 1
    if best is None:
        return Block(i, None, 1, own, 0, own, length, 0, 1)
    common = min(tree.common_with(i), best.depth)
    part = best.waiting + best.refs
    return Block(i, best, best.waiting, best.depth, min(held, best.depth), own, length, common, part)


class Scene(NamedTuple):
    """What all candidates of a decision are weighed against.

    Args:
        view: the engine.
        engine: its numbers, for compiled formulas.
        tracker: the tree, and what is known of rates and outputs.
        now: the running batch.
        crowd: all running and waiting requests.
        rate: arrivals a second.
        output: tokens a request makes, as far as is known.
        left: steps until the running batch has drained.
        lost: whether the prefixes of all who wait or run exceed memory, so that one in memory now will not be there later.
    """

    view: View
    engine: FloatArray
    tracker: Tracker
    now: Shape
    crowd: int
    rate: float
    output: float
    left: float
    lost: bool


def _scene(view: View, tracker: Tracker, now: Shape, left: float, head: int) -> Scene:
    tree, (_, memory) = tracker.tree, view.memory
    private = now.kv - now.units * view.unit
    return Scene(
        view,
        engine_numbers(view, tracker),
        tracker,
        now,
        crowd=len(tree.active) + len(tree.waiting),
        rate=tracker.rate(view.now),
        output=tracker.output(view, head),
        left=left,
        lost=tree.nodes * view.unit + private > memory,
    )


def costs_of(scene: Scene, block: Block) -> tuple[float, float, float]:
    """Return what serving a block now, now while others are held back, and later costs each of its requests.

    All in seconds of the engine's time.
    """
    view, now = scene.view, scene.now
    served, apart, later, turn = block_costs(
        view.cost.coefficients,
        scene.engine,
        scene.tracker.outputs,
        (now.size, now.kv, now.units, now.distinct, now.common),
        float(scene.crowd),
        scene.rate,
        scene.output,
        scene.left,
        *map(float, block[2:]),
    )
    if not now.size:
        first = _prefix_seconds(view, block, found=False) / block.members
        return served + first, apart + first, later
    return served, apart, later + (_prefix_seconds(view, block, found=True) / turn if scene.lost else 0.0)


def _prefix_seconds(view: View, block: Block, *, found: bool) -> float:
    """Return the seconds of computing what of the block's prefix is in memory, or what is not."""
    shared = block.shared * view.unit
    cached = min(view.base(block.first), shared)
    return prefill_seconds(view, cached) if found else prefill_seconds(view, shared - cached, cached)


@dataclass
class Analytic:
    """The former; see the head of this module.

    Args:
        max_wait_s: requests that arrive so much later than the oldest waiting one are not looked at,
        overtake: or, if that is later, this share of the oldest one's wait so far.
    """

    max_wait_s: float
    overtake: float = 0.5

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit block after block while it pays."""
        while batch.seats > 0 and batch.budget > 0 and len(view.waiting):
            block = self.choose(view, batch, tracker)
            if block is None or not self.admit(view, batch, tracker, block):
                break
        return 1 if tracker.held_back else FOREVER

    def admit(self, view: View, batch: Batch, tracker: Tracker, block: Block) -> bool:
        """Admit a block's candidate, then its members as far as seats go; False once somebody does not fit."""
        members = [block.first]
        if block.node is not None:
            members += [i for i in islice(tracker.tree.below(block.node), batch.seats) if i != block.first]
        return all(admit(view, batch, tracker, i) for i in members[: batch.seats])

    def choose(self, view: View, batch: Batch, tracker: Tracker) -> Block | None:
        """Return the block to admit, None to stop."""
        block, margin = self.weigh(view, tracker)
        return block if margin > 0 else None

    def weigh(self, view: View, tracker: Tracker) -> tuple[Block, float]:
        """Return the best block, and by which share of its cost it is cheaper to serve it now than later."""
        head = view.waiting.head
        assert head is not None
        oldest_s = float(view.requests.arrival_s[head])
        tracker.sync(view, oldest_s + max(self.max_wait_s, self.overtake * (view.now - oldest_s)))
        now, left = shape_and_left(view, tracker)
        blocks = list(self._candidates(view, tracker, head))
        if len(blocks) == 1 and blocks[0].node is None and now.units == now.distinct:
            return blocks[0], 1.0
        scene = _scene(view, tracker, now, left, head)
        costs = [costs_of(scene, block) for block in blocks]
        if not now.size:
            return blocks[min(range(len(blocks)), key=lambda k: costs[k][0])], 1.0
        best = max(range(len(blocks)), key=lambda k: 1 - costs[k][0] / costs[k][2])
        served, apart, later = costs[best]
        if any(cost[0] >= cost[2] for cost in costs):
            served = apart
        return blocks[best], 1 - served / later

    def _candidates(self, view: View, tracker: Tracker, head: int) -> Iterator[Block]:
        """Yield the blocks to weigh, each once."""
        tree = tracker.tree
        oldest = block_of(view, tracker, head)
        yield oldest
        if len(tree.waiting) == 1:
            return
        nearest = tree.select()
        others = [None if nearest is None else nearest[0]]
        others += [None if node is None else tree.first(node) for node in (tree.deepest(), tree.heaviest())]
        for i in dict.fromkeys(others):
            if i is None or i == head:
                continue
            block = block_of(view, tracker, i)
            if block.node is not None and block.node is not oldest.node:
                yield block
