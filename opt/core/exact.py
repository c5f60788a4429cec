"""Exact integer reductions over int64 arrays whose results may leave 64 bits."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

__all__ = ["exact_dot", "exact_sum"]

IntArray = npt.NDArray[np.int64]

_LIMB = 21  # bits; a product of a limb with a 31-bit factor stays below 2**52
_CHUNK = 1 << 11  # so a chunk of such products sums below 2**63


def exact_sum(values: IntArray) -> int:
    """Return the sum of non-negative int64 `values` as a Python integer, never wrapping.

    >>> exact_sum(np.array([2**62, 2**62, 2**62]))
    13835058055282163712
    """
    high, low = values >> 32, values & 0xFFFFFFFF  # at most 2**31 terms of 31 bits stay in range
    return (int(high.sum(dtype=np.int64)) << 32) + int(low.sum(dtype=np.int64))


def exact_dot(values: IntArray, factors: IntArray) -> int:
    """Return the inner product of `values` (0 .. 2**63-1) and `factors` (0 .. 2**31-1) as a Python integer.

    >>> exact_dot(np.array([2**62, 3]), np.array([8, 5]))
    36893488147419103247
    """
    total = 0
    for limb in range(3):
        part = (values >> (limb * _LIMB)) & ((1 << _LIMB) - 1)
        total += sum(_chunk_sums(part * factors)) << (limb * _LIMB)
    return total


def _chunk_sums(products: IntArray) -> Iterable[int]:
    for first in range(0, len(products), _CHUNK):
        yield int(products[first : first + _CHUNK].sum())
