"""The step that all formers share: decodes, unfinished prompts, then whom the former admits.

The engine is vLLM's (`opt.sim.policies.vllm`), so a former differs from `vllm-fcfs` in its choice alone: as there, nobody
is admitted in a step that preempted somebody, and an admission needs room for the whole prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from opt.serve.feather.tracker import Tracker
from opt.sim.batch import Batch, View
from opt.sim.policies.vllm import admissible, decode_or_preempt

__all__ = ["Former", "Loop", "admit", "begin"]


class Former(Protocol):
    """Who is admitted next, and when to stop."""

    def fill(self, view: View, batch: Batch, tracker: Tracker) -> int:
        """Admit requests, and return for how many equal steps the decision to stop holds, at least 1."""


@dataclass
class Loop:
    """A policy's decision: the shared step around a former."""

    former: Former
    tracker: Tracker

    def decide(self, view: View) -> Batch:
        """Fill a step."""
        batch = begin(view)
        if not batch.preempted:
            held = self.former.fill(view, batch, self.tracker)
            batch.repeat = 1 if batch.chunks else held
        return batch


def begin(view: View) -> Batch:
    """Return the step with all decodes and unfinished prompts, as vLLM begins it."""
    batch = view.batch()
    decode_or_preempt(view, batch)
    for i in view.partial():
        while batch.budget > 0 and i not in batch.preempted and not batch.add(i):
            batch.preempt(int(view.running[-1]))
    return batch


def admit(view: View, batch: Batch, tracker: Tracker, i: int) -> bool:
    """Admit a waiting request if seats, budget and memory allow it."""
    if batch.seats <= 0 or batch.budget <= 0:
        return False
    config = view.config
    whole = int(view.requests.prompt[i]) + int(view.progress.produced[i]) <= min(batch.budget, config.max_chunk or batch.budget)
    if (not whole or config.watermark > 0) and not admissible(view, batch, i):
        return False
    if not batch.add(i):  # a prompt that is computed at once is asked for as a whole, so this is the question itself
        return False
    tracker.admitted(i)
    return True
