"""What happened, as it happens: growing columns, one entry for each run of equal steps, one weight for each gap."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from opt.core.columns import FloatArray

__all__ = ["Column", "Recorder", "Run"]


class Run(NamedTuple):
    """Equal steps in a row.

    Args:
        start_s: when the first one starts.
        steps: how many.
        prefill_tokens, chunks, decodes, kv_tokens: the load of the first one; `kv_tokens` grows by `decodes` a step.
        used_blocks, running, waiting: after the last one, before the finished leave.
    """

    start_s: float
    steps: int
    prefill_tokens: int
    chunks: int
    decodes: int
    kv_tokens: int
    used_blocks: int
    running: int
    waiting: int


class Column:
    """A float column that grows."""

    __slots__ = ("_cells", "_size")

    def __init__(self) -> None:
        self._cells = np.empty(1024)
        self._size = 0

    def extend(self, values: FloatArray) -> None:
        """Append values."""
        end = self._size + len(values)
        if end > len(self._cells):
            grown = np.empty(max(end, 2 * len(self._cells)))
            grown[: self._size] = self._cells[: self._size]
            self._cells = grown
        self._cells[self._size : end] = values
        self._size = end

    @property
    def values(self) -> FloatArray:
        """The column so far."""
        return self._cells[: self._size]


@dataclass(eq=False)
class Recorder:
    """The log of one engine.

    Args:
        runs: equal steps in a row.
        durations: seconds of every step, in order.
        single_gaps: seconds between two tokens of a request, where they differ among the members of a step.
        equal_gaps, weights: seconds of a step, and how many requests waited just so long for a token.
    """

    runs: list[Run] = field(default_factory=list)
    durations: Column = field(default_factory=Column)
    single_gaps: Column = field(default_factory=Column)
    equal_gaps: Column = field(default_factory=Column)
    weights: Column = field(default_factory=Column)

    def steps(self, run: Run, durations: FloatArray, first_gaps: FloatArray) -> None:
        """Log a run of steps; `first_gaps` belong to its first step."""
        self.runs.append(run)
        self.durations.extend(durations)
        self.single_gaps.extend(first_gaps)
        if run.steps > 1 and run.decodes:
            self.equal_gaps.extend(durations[1:])
            self.weights.extend(np.full(run.steps - 1, float(run.decodes)))
