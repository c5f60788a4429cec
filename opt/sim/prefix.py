"""The prompts' reusable units: full multiples of both the block and the chunk of the hashes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.sim.workload import Requests

__all__ = ["Prefixes"]


@dataclass(eq=False)
class Prefixes:
    """Prompt hashes by unit. Hashes are cumulative, so a unit's last chunk names all tokens up to its end.

    Args:
        prompt: (n,) tokens.
        ids, offsets: hashes of all chunks, and where each request's begin.
        chunk: tokens in a chunk.
        unit: tokens in a unit, a multiple of `chunk`.
        names, starts: a small integer for each full unit, equal for equal hashes, and where each request's begin.
        distinct: how many of these integers there are.
        seen: the hashes of all chunks of admitted requests, whatever became of them.
    """

    prompt: IntArray
    ids: npt.NDArray[np.uint64]
    offsets: IntArray
    chunk: int
    unit: int
    names: IntArray
    starts: IntArray
    distinct: int
    seen: set[int] = field(default_factory=set)
    _units: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: Requests, block: int) -> Prefixes | None:
        """Return the units for blocks of a size, None where no request has hashes."""
        ids, offsets, chunk = requests.prefix_ids, requests.prefix_offsets, requests.prefix_chunk
        if ids is None or offsets is None or chunk is None:
            return None
        unit = math.lcm(block, chunk)
        full = requests.prompt // unit
        starts = np.concatenate([[0], np.cumsum(full)]).astype(np.int64)
        place = np.arange(starts[-1]) - np.repeat(starts[:-1], full)
        last = np.repeat(offsets[:-1], full) + (place + 1) * (unit // chunk) - 1
        distinct, names = np.unique(ids[last], return_inverse=True)
        return cls(requests.prompt, ids, offsets, chunk, unit, names.astype(np.int64), starts, len(distinct))

    def units(self, i: int) -> list[int]:
        """Return the names of a request's full units."""
        found = self._units.get(i)
        if found is None:
            found = self.names[self.starts[i] : self.starts[i + 1]].tolist()
            self._units[i] = found
        return found

    def most(self, i: int) -> int:
        """Return how many units of a request may be found rather than computed: one token is always computed."""
        return (int(self.prompt[i]) - 1) // self.unit

    def shareable(self, i: int) -> int:
        """Return the leading tokens that an earlier admitted request had too, chunk by chunk, and remember the prompt.

        It says what an unlimited cache with blocks as small as the chunks would find, so that few hits explain themselves.
        """
        chunks = self.ids[self.offsets[i] : self.offsets[i + 1]].tolist()
        known = next((k for k, name in enumerate(chunks) if name not in self.seen), len(chunks))
        self.seen.update(chunks[known:])
        return min(known * self.chunk, int(self.prompt[i]))
