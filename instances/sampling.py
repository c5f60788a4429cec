"""Random draws whose bytes never change: raw PCG64 integers, tables of percentiles and whole-number arithmetic.

Samplers of numerical libraries change between versions, and logarithms differ in their last bits between machines.
Here every draw is integers from end to end, so a recipe and a seed give the same instance everywhere. Each quantity
has a stream of its own, and the k-th request uses the k-th word of each: the first k requests do not depend on n.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray

__all__ = [
    "PUBLISHED_LEVELS",
    "Percentiles",
    "Words",
    "correlated_ranks",
    "exponential",
    "mixed",
    "pick",
    "ranks",
    "scaled",
    "stretched",
    "uniform",
    "words",
]

Words: TypeAlias = npt.NDArray[np.uint64]

ONE = 1 << 32  # fixed point: a rank is a 32-bit fraction of 1, and so is a gap in units of its mean
LEVEL = 10_000  # percentile levels are whole ten-thousandths
PUBLISHED_LEVELS = (0, 100, 500, 1000, 2000, 3000, 4000, 5000, 6000, 7000, 8000, 9000, 9500, 9900, 9990, 10_000)
LN2 = 2_977_044_472  # ln 2, times 2**32, rounded


def words(seed: int, label: str, count: int) -> Words:
    """Return the first `count` 64-bit words of the stream `label` of `seed`.

    PCG64 and its seeding by `SeedSequence` are fixed by numpy's compatibility policy; the samplers built on them are
    not, and are not used.
    """
    key = zlib.crc32(label.encode())
    return np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(key,))).random_raw(count)


def ranks(seed: int, label: str, count: int) -> IntArray:
    """Return `count` ranks, uniform in 0 .. 2**32 - 1: where in its distribution each draw lies."""
    upper: Words = words(seed, label, count) >> np.uint64(32)
    return upper.astype(np.int64)


def uniform(rank: IntArray, low: int, high: int | IntArray) -> IntArray:
    """Return integers uniform in `low .. high`, both included (to 2**-32: no rejection, so one word is one draw)."""
    steps: IntArray = (rank * (high - low + 1)) >> 32
    return low + steps


def pick(rank: IntArray, weights: Sequence[int]) -> IntArray:
    """Return indices drawn in proportion to whole-number `weights`."""
    ends = np.cumsum(np.array(weights, np.int64))
    index: IntArray = np.searchsorted(ends, (rank * ends[-1]) >> 32, side="right")
    return index


def correlated_ranks(rank: IntArray, noise: IntArray, cuts: Sequence[int], spread: int) -> IntArray:
    """Return ranks that stay near `rank` and are uniform all the same.

    Args:
        rank, noise: (n,) independent ranks.
        cuts: the ranks 0 .. 2**32 at which the scale is cut into strata; no rank leaves its stratum, so that what is
            extreme stays extreme.
        spread: how far a rank may move either way, in 2**-16 of its stratum. What passes an end is reflected, which
            keeps the uniform distribution.
    """
    edges = np.array(cuts, np.int64)
    stratum = np.searchsorted(edges, rank, side="right") - 1
    low, width = edges[stratum], np.diff(edges)[stratum]
    shift = (((noise >> 16) * (2 * spread + 1)) >> 16) - spread
    moved = (rank - low + ((shift * width) >> 16)) % (2 * width)
    folded: IntArray = low + np.minimum(moved, 2 * width - 1 - moved)
    return folded


@dataclass(frozen=True)
class Percentiles:
    """A distribution of whole numbers, given by some of its percentiles and straight lines between them.

    Args:
        values: non-decreasing integers, the first the least and the last the greatest draw.
        levels: the level of each value in ten-thousandths, from 0 to 10,000.
    """

    values: tuple[int, ...]
    levels: tuple[int, ...] = PUBLISHED_LEVELS

    @property
    def greatest(self) -> int:
        """The largest value that can be drawn."""
        return self.values[-1]

    def draw(self, rank: IntArray) -> IntArray:
        """Return the value at each 32-bit rank, rounded to the nearest integer."""
        return self._at(rank * LEVEL)

    def draw_at_most(self, rank: IntArray, limit: IntArray) -> IntArray:
        """Return draws from the distribution given that the value is at most `limit` (n,), at least `values[0]`.

        The same law as drawing again until a value fits, with one word and no loop.
        """
        below = self._mass(limit)
        return self._at((rank * (below >> 15)) >> 17)  # rank * below / 2**32, kept within 63 bits

    def _at(self, position: IntArray) -> IntArray:
        base, width, value, rise = self._pieces()
        piece = np.searchsorted(base, position, side="right") - 1
        fraction = (position - base[piece]) // width[piece]
        return value[piece] + ((rise[piece] * fraction + ONE // 2) >> 32)

    def _mass(self, limit: IntArray) -> IntArray:
        """Return how many of the LEVEL * 2**32 positions have a value of at most `limit`."""
        base, width, value, rise = self._pieces()
        inside = np.minimum(limit, self.greatest - 1)
        piece = np.searchsorted(value, inside, side="right") - 1
        fraction = (((inside - value[piece] + 1) << 32) - ONE // 2 + rise[piece] - 1) // rise[piece]
        mass = base[piece] + np.minimum(fraction, ONE) * width[piece]
        return np.where(limit >= self.greatest, LEVEL * ONE, mass)

    def _pieces(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        level, value = np.array(self.levels, np.int64), np.array(self.values, np.int64)
        return level[:-1] << 32, np.diff(level), value[:-1], np.diff(value)


def exponential(word: Words) -> IntArray:
    """Return exponential gaps of mean 1, in units of 2**-32.

    With u = word / 2**64, -ln u = ln 2 * (leading zeros + 1 - log2 m) where m in [1, 2) is u without its leading zeros.
    log2 m comes from a table of 256 straight lines, so the error is below 3e-6.
    """
    value = np.maximum(word >> np.uint64(11), np.uint64(1))  # 53 bits, which a float holds exactly
    _, length = np.frexp(value.astype(np.float64))
    significand = (value << (53 - length).astype(np.uint64)).astype(np.int64)
    table = _log2_table()
    piece, fraction = (significand >> 44) & 255, (significand >> 12) & (ONE - 1)
    log2 = table[piece] + (((table[piece + 1] - table[piece]) * fraction) >> 32)
    halvings: IntArray = ((54 - length.astype(np.int64)) << 32) - log2
    return ((halvings >> 10) * LN2) >> 22


@cache
def _log2_table() -> IntArray:
    """log2(1 + j/256) in units of 2**-32, one binary digit a time: square, and halve when that passes 2."""
    return np.array([_log2(256 + j) for j in range(256)] + [ONE], np.int64)


def _log2(numerator: int) -> int:
    power, digits = numerator << 54, 0
    for _ in range(32):
        power = power * power >> 62
        digit = power >> 63
        power >>= digit
        digits = 2 * digits + digit
    return digits


def stretched(gap: IntArray, shape: int) -> IntArray:
    """Return mean-1 gaps of a Weibull law of shape 1/`shape`, from mean-1 exponential ones (units of 2**-32).

    An exponential to the power 1, 2 or 3, over its mean 1, 2 or 6: coefficients of variation 1, 2.24 and 4.36.
    """
    if shape == 1:
        return gap
    square = ((gap >> 8) * (gap >> 8)) >> 16
    if shape == 2:
        return square >> 1
    return (((square >> 12) * (gap >> 12)) >> 8) // 6


def scaled(gap: IntArray, mean: int) -> IntArray:
    """Return mean-1 gaps (units of 2**-32) as whole numbers of mean `mean`, at most 2**24."""
    return ((gap >> 12) * mean) >> 20


def mixed(*parts: Words | np.uint64) -> Words:
    """Return a 64-bit hash of each tuple of words (the finaliser of splitmix64, Steele, Lea, Flood 2014, in a chain)."""
    state = np.zeros(1, np.uint64)
    for part in parts:
        state = (state ^ part) + np.uint64(0x9E3779B97F4A7C15)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state = state ^ (state >> np.uint64(31))
    return state
