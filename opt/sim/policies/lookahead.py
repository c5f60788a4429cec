"""The exact look-ahead of the offline orders, at the start of a step: when would a request fit beside what is running?

Everybody who runs is taken to make a token in every step until its announced output is there, so memory is known in
every later step. Where no output is announced, one more token is all that is assumed, and preemption mends what that
misses. With blocks of more than one token every request is charged for a whole last block, so it stays safe.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import ABSENT, IntArray
from opt.sim import kernels
from opt.sim.batch import View

__all__ = ["Lookahead"]


class Lookahead:
    """The memory of the steps to come, as seen from one view."""

    def __init__(self, view: View) -> None:
        self._view = view
        running = view.running
        left, held = _left(view, running), _held(view, running)
        order = np.argsort(left, kind="stable")
        self._times = left[order]
        self._count = np.arange(len(order), 0, -1)
        self._usage = np.cumsum(held[order][::-1])[::-1] + self._count * self._times
        self._after = np.append(np.arange(1, len(order)), -1).astype(np.int64)
        slack = (len(running) + 1) * (view.config.block_size - 1)
        self._memory = view.memory[1] - slack

    def steps_until(self, i: int) -> int:
        """Return the steps until request i could start; 0 if it can start in this one."""
        return self.first(np.array([i], np.int64))[1]

    def first(self, candidates: IntArray) -> tuple[int, int]:
        """Return the place of the first candidate that can start now and 0, or (-1, steps until one of them can)."""
        left, held = _left(self._view, candidates), _held(self._view, candidates)
        at, steps = kernels.first_start(self._times, self._usage, self._count, self._after, held, left, self._memory)
        return int(at), int(steps)


def _left(view: View, who: IntArray) -> IntArray:
    """Return the tokens still to be made, as announced; at least one."""
    expected = view.requests.expected[who]
    return np.where(expected == ABSENT, 1, np.maximum(expected - view.progress.produced[who], 1))


def _held(view: View, who: IntArray) -> IntArray:
    """Return the tokens held before the next one is made, once the prompt is computed."""
    return view.requests.prompt[who] + view.progress.produced[who]
