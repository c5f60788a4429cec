"""Two formers without learning: the tree's order with a threshold, and an oracle that knows the groups."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field

from opt.serve.feather.loop import admit
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import FOREVER, Batch, View

__all__ = ["Oracle", "Plain"]


@dataclass
class Plain:
    """Fewest missing chunks first, while at most `threshold` are missing; None admits whoever fits.

    An empty batch takes the first whatever it misses.
    """

    threshold: int | None = None

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit in the order of the tree."""
        tracker.sync(view)
        tree = tracker.tree
        while batch.seats > 0 and batch.budget > 0 and (found := tree.select()) is not None:
            far = self.threshold is not None and found[1] > self.threshold
            if (far and tree.active) or not admit(view, batch, tracker, found[0]):
                break
        return FOREVER


@dataclass
class Oracle:
    """One group at a time, as told by the `client` of each request; the next is the one with most requests waiting.

    A group keeps the engine until nobody of it runs and nobody of it waits: batches are as homogeneous as can be, and
    small groups leave seats empty. Who has no client is a group of its own.
    """

    client: tuple[Hashable | None, ...]
    group: Hashable | None = None
    queues: dict[Hashable, deque[int]] = field(default_factory=dict)
    listed: set[int] = field(default_factory=set)

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit members of the group that has the engine."""
        tracker.sync(view)
        self._list(tracker)
        if not tracker.tree.active:
            self.group = max(self.queues, key=lambda group: len(self.queues[group]), default=None)
        queue = self.queues.get(self.group, deque())
        while queue and admit(view, batch, tracker, queue[0]):
            self.listed.discard(queue.popleft())
        if not queue:
            self.queues.pop(self.group, None)
        return FOREVER

    def _list(self, tracker: Tracker) -> None:
        """Queue who has come; withdrawn requests leave."""
        waiting = tracker.tree.waiting
        if len(self.listed) == len(waiting):
            return
        for i in self.listed - waiting.keys():
            self.queues[self._group(i)].remove(i)
        for i in [i for i in waiting if i not in self.listed]:
            self.queues.setdefault(self._group(i), deque()).append(i)
        self.listed = set(waiting)
        self.queues = {group: queue for group, queue in self.queues.items() if queue}

    def _group(self, i: int) -> Hashable:
        label = self.client[i]
        return ("alone", i) if label is None else label
