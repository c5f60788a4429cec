"""Exact integer reductions over int64 arrays whose results may leave 64 bits."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fractions import Fraction

import numpy as np
import numpy.typing as npt

from opt.core.errors import InstanceError

__all__ = ["exact_dot", "exact_sum", "rational"]

IntArray = npt.NDArray[np.int64]

RATIONAL = re.compile(r"[+-]?((\d{1,30}(\.\d{0,30})?|\.\d{1,30})([eE][+-]?\d{1,2})?|\d{1,30}/0*[1-9]\d{0,29})", re.ASCII)
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


def rational(name: str, value: object) -> Fraction:
    """Return the exact value of a number as it is written: 0.1 is one tenth, 1/3 one third.

    Raises:
        InstanceError: not a finite number of sane length (an exponent of thousands would fill the memory).
    """
    match = RATIONAL.fullmatch(str(value).strip())
    if match is None or isinstance(value, bool):
        raise InstanceError(f"{name} = {value!r}: must be a number such as 0.05 or 1/3, of sane size")
    return Fraction(match.group())


def _chunk_sums(products: IntArray) -> Iterable[int]:
    for first in range(0, len(products), _CHUNK):
        yield int(products[first : first + _CHUNK].sum())
