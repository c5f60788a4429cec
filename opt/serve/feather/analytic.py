"""A batch former that weighs groups with the cost model: what serving them now costs, against serving them later.

A *block* is a prefix and those who wait for it: of the prefixes of a candidate, the one whose waiting requests share most.
Let T be the seconds of a decode step of a batch, B the running batch, r the steps until it has drained if nobody joins,
and o those that a request needs. Admitting a block's requests now, j of them at a time, costs each of them

    now = r (T(B and j) - T(B)) / j + (1 - r / o) min(alone, mixed),

and admitting them when B has drained `later = min(alone, mixed)`, for as many as will be there by then, arrivals
meanwhile included. `mixed` is what each member of a full batch of such groups costs; `alone` what each costs when the
block has the engine to itself, the seats that stay empty while its last members finish included. (If seats are short,
those who run leave theirs to the block one by one.) A prefix that has to be computed is computed once either way; one
that is in memory, but will not stay there since all prefixes together exceed it, adds its computation to `later`.

The block with the largest `later - now` is admitted; if that is not positive the former stops. So a divergent request is
refused exactly where what it costs the running batch (a second prefix to read, a shared kernel that switches off, a
cache that overflows) is more than its share of steps of its own; a group with few members left is let run out once
another has gathered; small groups are mixed, since each alone would pay for whole steps. An empty batch begins with
the block that is cheapest now, its prefix included.

Candidates are three: the block nearest to the running batch, the block with most shared tokens, and that of the oldest
request. Where neither batch nor candidate shares anything, admission is by arrival and never stops: `vllm-fcfs`, step
for step.

**Waiting is bounded.** With h the oldest waiting request, only requests that arrived up to a_h + `max_wait_s` are looked at.
Hence *no request that arrives after a_i + max_wait_s is admitted before i*. If nobody is preempted and D is the longest
that a request stays, somebody is admitted in every D seconds, since a drained engine takes whom it can get; so with W
requests waiting at a_i + max_wait_s

    wait(i) <= max_wait_s + (W + 1) D.

In a burst the limit costs nothing; in a long overload it makes the former serve the queue a window at a time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from opt.serve.feather.estimate import Shape, decode_seconds, prefill_seconds, shape_of
from opt.serve.feather.loop import admit
from opt.serve.feather.tracker import Tracker
from opt.serve.prefix.tree import Node
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["Analytic", "Block", "Scene", "block_of", "costs_of"]


@dataclass(frozen=True)
class Block:
    """A candidate and those who would come with it.

    Args:
        first: the candidate.
        node: the prefix they share; None for the candidate alone.
        count: how many wait for it.
        shared: units of that prefix.
        held: units of it that the running batch has.
        own: prompt units of the candidate.
        length: KV tokens of the candidate.
        common: units that the whole batch would have in common with it.
        part: how many wait or run with that prefix.
    """

    first: int
    node: Node | None
    count: int
    shared: int
    held: int
    own: int
    length: int
    common: int
    part: int

    def shape(self, count: float, held: int = 0) -> Shape:
        """Return so many of the block as a batch; `held` units of the prefix are not new."""
        shared = max(self.shared, held)
        distinct = shared - held + count * (self.own - shared)
        return Shape(count, count * self.length, count * self.own, distinct, self.shared if count > 1 else self.own)


def block_of(view: View, tracker: Tracker, i: int) -> Block:
    """Return the block of a waiting request: the prefix on its path that saves most units if all of it run together."""
    tree = tracker.tree
    path = tree.waiting[i]
    own = len(path) - 1
    held = own - tree.missing(i)
    best, saved = None, 0
    for depth in range(own, 0, -1):
        saving = path[depth].waiting * depth - max(0, depth - held)
        if saving > saved:
            best, saved = path[depth], saving
    length = int(view.requests.prompt[i] + view.progress.produced[i]) + 1
    if best is None:
        return Block(i, None, 1, own, 0, own, length, 0, 1)
    common = min(tree.common_with(i), best.depth)
    part = best.waiting + best.refs
    return Block(i, best, best.waiting, best.depth, min(held, best.depth), own, length, common, part)


@dataclass(frozen=True)
class Scene:
    """What all candidates of a decision are weighed against.

    Args:
        view: the engine.
        tracker: the tree, and what is known of rates and outputs.
        now: the running batch.
        step_s: the seconds of its next step.
        crowd: all running and waiting requests.
        rate: arrivals a second.
        output: tokens a request makes, as far as is known.
        left: steps until the running batch has drained.
        lost: whether the prefixes of all who wait or run exceed memory, so that one in memory now will not be there later.
    """

    view: View
    tracker: Tracker
    now: Shape
    step_s: float
    crowd: int
    rate: float
    output: float
    left: float
    lost: bool


def _scene(view: View, tracker: Tracker, now: Shape, head: int) -> Scene:
    tree, (_, memory) = tracker.tree, view.memory
    step = decode_seconds(view, now) if now.size else 0.0
    private = now.kv - now.units * view.unit
    return Scene(
        view,
        tracker,
        now,
        step,
        crowd=len(tree.active) + len(tree.waiting),
        rate=tracker.rate(view.now),
        output=tracker.output(view, head),
        left=tracker.left(view),
        lost=tree.nodes * view.unit + private > memory,
    )


def costs_of(scene: Scene, block: Block) -> tuple[float, float]:
    """Return what serving a block now and later costs each of its requests, in seconds of the engine's time."""
    view, output, now = scene.view, scene.output, scene.now
    most, turn, together = _sizes(scene, block)
    count = min(block.count, most)
    mixed = decode_seconds(view, _full(block, most, together)) / together * output
    alone = _alone(scene, block, count, block.count)
    later = _alone(scene, block, most, turn) if turn > block.count else alone
    if not now.size:
        return alone + _prefix_seconds(view, block)[0] / block.count, min(later, mixed)
    again = _prefix_seconds(view, block)[1] / turn if scene.lost else 0.0
    left = min(scene.left, output)
    stay = min(1.0, (view.config.max_running - count) / now.size)  # who is left when all of the block have a seat
    room, step = (now, scene.step_s) if stay == 1.0 else _shrunk(view, now, stay)
    joined = decode_seconds(view, room.plus(block.shape(count, block.held), block.common)) - step
    return left * joined / count + (1 - left / output) * min(alone, mixed), min(later, mixed) + again


def _shrunk(view: View, now: Shape, share: float) -> tuple[Shape, float]:
    room = now.scaled(share)
    return room, decode_seconds(view, room)


def _alone(scene: Scene, block: Block, seats: float, turn: float) -> float:
    """Return what serving `turn` requests of a block alone costs each: `seats` at a time, and a batch that runs empty.

    While it does, the seats of those who were shorter than the longest stay empty.
    """
    view, output = scene.view, scene.output
    spread = scene.tracker.spread(seats)
    drain = spread * output * decode_seconds(view, block.shape(seats / spread))
    full = (turn - seats) * output / seats * decode_seconds(view, block.shape(seats)) if turn > seats else 0.0
    return (full + drain) / turn


def _sizes(scene: Scene, block: Block) -> tuple[float, float, float]:
    """Return how many of the block fit together, how many will be served in its turn, and how many mixed groups fit."""
    view = scene.view
    shared, (_, memory) = block.shared * view.unit, view.memory
    private = block.length - shared + scene.output
    turn = block.count + scene.rate * scene.left * scene.step_s * block.part / scene.crowd
    most = max(1.0, min(turn, view.config.max_running, (memory - shared) // private))
    together = max(most, min(view.config.max_running, scene.crowd, memory / (private + shared / most)))
    return most, turn, together


def _full(block: Block, most: float, together: float) -> Shape:
    groups = together / most
    alone = block.shape(most)
    common = alone.common if groups == 1 else 0
    return Shape(together, together * block.length, together * block.own, groups * alone.distinct, common)


def _prefix_seconds(view: View, block: Block) -> tuple[float, float]:
    """Return the seconds of computing what of the block's prefix is not in memory, and what is."""
    shared = block.shared * view.unit
    found = min(view.base(block.first), shared)
    return prefill_seconds(view, shared - found, found), prefill_seconds(view, found)


@dataclass
class Analytic:
    """The former; see the head of this module.

    Args:
        max_wait_s: requests that arrive so much later than the oldest waiting one are not looked at.
    """

    max_wait_s: float

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
        tracker.sync(view, float(view.requests.arrival_s[head]) + self.max_wait_s)
        now = shape_of(view, tracker)
        blocks = list(self._candidates(view, tracker, head))
        if len(blocks) == 1 and blocks[0].node is None and now.units == now.distinct:
            return blocks[0], 1.0
        scene = _scene(view, tracker, now, head)
        costs = [costs_of(scene, block) for block in blocks]
        if not now.size:
            return blocks[min(range(len(blocks)), key=lambda k: costs[k][0])], 1.0
        best = max(range(len(blocks)), key=lambda k: costs[k][1] - costs[k][0])
        return blocks[best], 1 - costs[best][0] / costs[best][1]

    def _candidates(self, view: View, tracker: Tracker, head: int) -> Iterator[Block]:
        """Yield the blocks to weigh, each once."""
        tree = tracker.tree
        oldest = block_of(view, tracker, head)
        yield oldest
        nearest, heaviest = tree.select(), tree.heaviest()
        others = {nearest[0] if nearest is not None else None, tree.first(heaviest) if heaviest is not None else None}
        for i in others - {None, head}:
            assert i is not None
            block = block_of(view, tracker, i)
            if block.node is not None and block.node is not oldest.node:
                yield block
