"""Which iterations to measure: prefill chunks, decode batches, both, and decodes that share their KV cache."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

from opt.core.cost.load import Load, batch

__all__ = ["GRIDS", "Grid", "Step", "steps"]


@dataclass(frozen=True)
class Step:
    """One iteration: at most one prompt chunk, and a batch of decodes with contexts of one length.

    Args:
        chunk, context: tokens of the chunk and cached tokens before it; 0 where there is none.
        decodes, length: how many decodes, and the tokens each reads, its own new one included.
        group: decodes that share one copy of their context; 1 where each has its own.
    """

    chunk: int = 0
    context: int = 0
    decodes: int = 0
    length: int = 0
    group: int = 1

    @property
    def load(self) -> Load:
        """What a cost model sees of it."""
        groups = self.decodes // self.group
        repeated = (self.decodes - groups) * self.length
        return batch([(self.chunk, self.context)], [self.length] * self.decodes, repeated)

    @property
    def kv_tokens(self) -> int:
        """Tokens of KV cache that must be there."""
        return self.context + self.chunk + self.decodes // self.group * self.length


@dataclass(frozen=True)
class Grid:
    """The values that steps are made of; `mixed` is how many of the mixed ones are drawn."""

    chunks: Sequence[int]
    contexts: Sequence[int]
    decodes: Sequence[int]
    lengths: Sequence[int]
    groups: Sequence[int]
    mixed: int


MOST_GROUPS = 4  # each group is an attention call of its own, and more calls would measure launches

GRIDS: dict[str, Grid] = {
    "full": Grid(
        chunks=(1, 16, 32, 64, 96, 128, 192, 256, 264, 384, 512, 520, 768, 1024, 2048, 4096, 8192),
        contexts=(0, 512, 2048, 8192, 32768),
        decodes=(1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256),
        lengths=(16, 128, 512, 1024, 2048, 4096, 8192, 16384, 32768),
        groups=(2, 4, 8, 16, 32, 64, 128, 256),
        mixed=300,
    ),
    "quick": Grid(
        chunks=(16, 64, 128, 256, 512, 1024, 2048, 4096),
        contexts=(0, 2048, 8192),
        decodes=(1, 4, 16, 32, 64, 128, 256),
        lengths=(128, 1024, 4096, 16384),
        groups=(4, 16, 64),
        mixed=60,
    ),
    "tiny": Grid(chunks=(1, 8, 32), contexts=(0, 16), decodes=(1, 4, 8), lengths=(8, 64), groups=(4, 8), mixed=8),
}


def steps(grid: Grid, *, seed: int, kv_tokens: int) -> tuple[list[Step], int]:
    """Return the steps of a grid in random order, and how many need more KV cache than `kv_tokens`.

    The order is random so that whatever time allows covers the whole range, and slow drifts of the clock hit all alike.
    """
    rng = random.Random(seed)
    mixed = [Step(*values) for values in product(grid.chunks, grid.contexts, grid.decodes, grid.lengths)]
    rng.shuffle(mixed)
    fitting = [step for step in mixed if step.kv_tokens <= kv_tokens]
    wanted = [*_apart(grid), *_shared(grid), *fitting[: grid.mixed]]
    kept = [step for step in wanted if step.kv_tokens <= kv_tokens]
    rng.shuffle(kept)
    return kept, len(wanted) - len(kept)


def _apart(grid: Grid) -> Iterator[Step]:
    """Yield chunks alone and decodes alone."""
    yield from (Step(chunk=chunk, context=context) for chunk, context in product(grid.chunks, grid.contexts))
    yield from (Step(decodes=decodes, length=length) for decodes, length in product(grid.decodes, grid.lengths))


def _shared(grid: Grid) -> Iterable[Step]:
    """Return decodes in groups of equal size with one context each; those apart have the same batch and lengths."""
    whole = (
        Step(decodes=decodes, length=length, group=group)
        for decodes, length, group in product(grid.decodes, grid.lengths, grid.groups)
    )
    return [step for step in whole if step.decodes % step.group == 0 and 1 <= step.decodes // step.group <= MOST_GROUPS]
