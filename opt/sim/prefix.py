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
        seen: the hashes of all chunks of admitted requests, whatever became of them.
    """

    prompt: IntArray
    ids: npt.NDArray[np.uint64]
    offsets: IntArray
    chunk: int
    unit: int
    seen: set[int] = field(default_factory=set)
    _units: dict[int, list[int]] = field(default_factory=dict)

    @classmethod
    def of(cls, requests: Requests, block: int) -> Prefixes | None:
        """Return the units for blocks of a size, None where no request has hashes."""
        if requests.prefix_ids is None or requests.prefix_offsets is None or requests.prefix_chunk is None:
            return None
        unit = math.lcm(block, requests.prefix_chunk)
        return cls(requests.prompt, requests.prefix_ids, requests.prefix_offsets, requests.prefix_chunk, unit)

    def units(self, i: int) -> list[int]:
        """Return the hashes of a request's full units."""
        found = self._units.get(i)
        if found is None:
            step, low = self.unit // self.chunk, int(self.offsets[i])
            full = int(self.prompt[i]) // self.unit
            found = self.ids[low + step - 1 : low + full * step : step].tolist()
            self._units[i] = found
        return found

    def matchable(self, i: int) -> list[int]:
        """Return the units that may be found rather than computed: one token at least is always computed."""
        units = self.units(i)
        most = (int(self.prompt[i]) - 1) // self.unit
        return units if len(units) <= most else units[:most]

    def shareable(self, i: int) -> int:
        """Return the leading tokens that an earlier admitted request had too, chunk by chunk, and remember the prompt.

        It says what an unlimited cache with blocks as small as the chunks would find, so that few hits explain themselves.
        """
        chunks = self.ids[self.offsets[i] : self.offsets[i + 1]].tolist()
        known = next((k for k, name in enumerate(chunks) if name not in self.seen), len(chunks))
        self.seen.update(chunks[known:])
        return min(known * self.chunk, int(self.prompt[i]))
