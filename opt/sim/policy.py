"""A policy as the engine knows it: a decision for every step, and an order for the queue."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from opt.core.columns import FloatArray, IntArray
from opt.sim.batch import Batch, View

__all__ = ["Decide", "Policy", "StalledError"]


class StalledError(ValueError):
    """A policy makes no progress: it leaves work undone forever, or preempts without end."""


Decide: TypeAlias = Callable[[View], Batch]  # from what it sees at the start of a step to the step's batch


@dataclass(frozen=True, eq=False)
class Policy:
    """A decision for every step, and the order of the waiting queue.

    Args:
        decide: called at the start of a step; it may keep a state of its own, so a policy serves one engine.
        rank: (n,) numbers that order the waiting queue, smaller first; ties by arrival, then index. None: by arrival.
        name: for messages.
    """

    decide: Decide
    rank: IntArray | FloatArray | None = None
    name: str = "policy"
