"""Replay of a plan: every request starts in the round that the plan gives it, a round being a step.

A step that runs is a round; while the engine is idle, a round lasts as long as an iteration of nothing (a second under
the unit cost). Who arrives after its round, because steps took longer than planned, starts as soon as it fits. With
unit cost and exact tokens this reproduces a feasible plan exactly: starts, finishes and the memory of every round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from opt.core.columns import IntArray
from opt.core.cost import Load
from opt.core.errors import InstanceError
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.policies.lookahead import Lookahead
from opt.sim.policies.orders import add_partial
from opt.sim.policies.vllm import decode_or_preempt
from opt.sim.workload import Requests

__all__ = ["replay"]


def replay(requests: Requests, config: EngineConfig, *, start: IntArray, seed: int = 0) -> Policy:
    """Return the policy that follows `start` (n,), a round for each request.

    Raises:
        InstanceError: there is not one start for each request.
    """
    if len(start) != requests.n:
        raise InstanceError(f"the plan has {len(start)} starts for {requests.n} requests")
    return Policy(_Follower(start).decide, start)


@dataclass
class _Follower:
    start: IntArray
    skipped: int = 0  # rounds that took no time, where an iteration of nothing takes none

    def decide(self, view: View) -> Batch:
        """Start who is due, in the order of the plan."""
        batch = view.batch()
        decode_or_preempt(view, batch)
        add_partial(view, batch)
        idle = view.cost.seconds(Load())
        now = view.steps + self.skipped + (math.floor(view.idle_s / idle + 1e-9) if idle else 0)
        head = view.waiting.head
        if head is not None and not len(batch) and self.start[head] > now and not idle:
            self.skipped += int(self.start[head]) - now
            now = int(self.start[head])
        while (head := view.waiting.head) is not None and self.start[head] <= now:
            if Lookahead(view).steps_until(head) or not batch.add(head):
                break
        return self._end(view, batch, now, idle)

    def _end(self, view: View, batch: Batch, now: int, idle: float) -> Batch:
        """Say how long the decision holds."""
        head = view.waiting.head
        due = FOREVER if head is None else int(self.start[head]) - now
        if len(batch):
            batch.repeat = 1 if batch.chunks or batch.preempted else max(due, 1)
        elif head is not None:
            batch.wake_s = view.now + max(due, 1) * idle
        return batch
