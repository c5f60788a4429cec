"""Cumulative hashes of a prompt's chunks: equal j-th hashes mean equal first j chunks.

XXH64, fed chunk after chunk, so hashing a prompt is one pass over its tokens whatever the chunk. Two different prefixes
share a hash with probability 2**-64; among a million distinct prefixes the chance of any such pair is below 3e-8. In
the tree a hash is looked up beneath its predecessor only, so a collision could at worst take two chunks that follow the
same prefix for one; nothing in this package reads tokens, so it would cost time, never a wrong answer of a model.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import xxhash

from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["chunk_hashes", "rows_of"]


def chunk_hashes(tokens: npt.ArrayLike, chunk: int) -> list[int]:
    """Return the cumulative hashes of a prompt, `ceil(len / chunk)` of them, the last of a chunk that may be partial.

    Args:
        tokens: (n,) token numbers, integers.
        chunk: tokens in a chunk, any number from 1 on.

    Raises:
        InstanceError: `chunk` is below 1.

    >>> a, b = chunk_hashes([1, 2, 3, 4, 5], 2), chunk_hashes([1, 2, 3, 9], 2)
    >>> len(a), len(b), a[0] == b[0], a[1] == b[1]
    (3, 2, True, False)
    """
    if chunk < 1:
        raise InstanceError(f"chunk = {chunk}: must be at least 1 token")
    data = memoryview(np.asarray(tokens, np.int64).tobytes())
    state = xxhash.xxh64()
    found = []
    for at in range(0, len(data), 8 * chunk):
        state.update(data[at : at + 8 * chunk])
        found.append(state.intdigest())
    return found


def rows_of(instance: Instance) -> Iterator[Sequence[int]]:
    """Yield the chunk hashes of every request; empty ones where the instance has none."""
    rows = instance.prefix_rows()
    yield from rows if rows is not None else [()] * instance.n
