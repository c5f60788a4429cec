"""Seeded draws that repeat on every machine: uniform numbers, token lengths from quantiles, and stationary arrivals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Floats", "Gamma", "Law", "Lengths", "Uniform", "Weibull", "arrivals", "weibull_shape"]

Floats: TypeAlias = npt.NDArray[np.float64]

FIRST_CHUNK, LAST_CHUNK = 64, 65_536  # gaps drawn at a time: doubled, as rates differ a thousandfold
SHARES = (0.5, 0.4, 0.09, 0.01)  # of the requests between the quantiles 0, P50, P90, P99 and 1


class Uniform:
    """A stream of numbers in [0, 1), the same for the same key on every machine and with every numpy."""

    def __init__(self, *key: int) -> None:
        """Begin the stream of `key`: the seed, the purpose and what it is for."""
        self._bits = np.random.PCG64(np.random.SeedSequence(key))

    def draw(self, n: int) -> Floats:
        """Return the next `n` numbers, with 53 random bits each."""
        raw = np.asarray(self._bits.random_raw(n), np.uint64)
        return (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Lengths:
    """The lengths of one kind (prompt or output) that a client sends: mean and quantiles in tokens."""

    mean: float
    p50: float
    p90: float
    p99: float

    def draw(self, uniform: Floats) -> npt.NDArray[np.int64]:
        """Return a length for each number in [0, 1), at least 1.

        Between two known quantiles a and b the curve is `a + (b - a) * s**bend`, s running from 0 to 1, with the same bend
        in all pieces: the mean is then linear in `1 / (1 + bend)`, and the one that meets the stated mean is taken.
        """
        knots = np.array([1.0, self.p50, self.p90, self.p99, self.p99])
        low, high = float(np.dot(SHARES, knots[:-1])), float(np.dot(SHARES, knots[1:]))
        height = 1.0 if high <= low else min(max((self.mean - low) / (high - low), 0.0), 1.0)
        # A mean that even the highest curve through the quantiles misses can only come from above P99.
        knots[4] += max(self.mean - high, 0.0) / SHARES[3]
        ends = np.cumsum(SHARES)
        piece = np.minimum(np.searchsorted(ends, uniform, side="right"), 3)
        place = (uniform - (ends - SHARES)[piece]) / np.array(SHARES)[piece]
        curve = np.zeros_like(place) if height == 0 else np.clip(place, 0.0, 1.0) ** (1 / height - 1)
        tokens = knots[piece] + (knots[piece + 1] - knots[piece]) * curve
        return np.asarray(np.maximum(np.floor(tokens + 0.5), 1), np.int64)


class Law(Protocol):
    """How long the gaps between arrivals are."""

    def gaps(self, uniform: Floats) -> Floats:
        """Return a gap (s) for each number in [0, 1)."""

    def biased(self, uniform: Floats) -> Floats:
        """Return gaps (s) drawn in proportion to their length: what an observer at a random moment finds under way."""


class Gamma:
    """Gaps of Gamma law with a mean of 1 / rate: the shape is 1 / cv**2."""

    def __init__(self, rate: float, cv: float) -> None:
        """Fix the law by its rate (1/s) and CV."""
        self.shape, self.scale = cv**-2, cv**2 / rate

    def gaps(self, uniform: Floats) -> Floats:
        """Return a gap (s) for each number in [0, 1)."""
        return _gamma_quantile(self.shape, uniform) * self.scale

    def biased(self, uniform: Floats) -> Floats:
        """Gaps drawn in proportion to their length: Gamma again, the shape one larger."""
        return _gamma_quantile(self.shape + 1, uniform) * self.scale


class Weibull:
    """Gaps of Weibull law with a mean of 1 / rate and the given CV."""

    def __init__(self, rate: float, cv: float) -> None:
        """Fix the law by its rate (1/s) and CV."""
        self.shape = weibull_shape(cv)
        self.scale = math.exp(-math.lgamma(1 + 1 / self.shape)) / rate

    def gaps(self, uniform: Floats) -> Floats:
        """Return a gap (s) for each number in [0, 1)."""
        return self.scale * (-np.log1p(-uniform)) ** (1 / self.shape)

    def biased(self, uniform: Floats) -> Floats:
        """Gaps drawn in proportion to their length: their power `shape` is Gamma of shape 1 + 1 / shape."""
        return self.scale * _gamma_quantile(1 + 1 / self.shape, uniform) ** (1 / self.shape)


def arrivals(law: Law, uniform: Uniform, seconds: int, limit: int | None = None) -> Floats:
    """Return the arrival times (s) within `seconds` of a renewal process in its steady state, at most `limit` of them.

    Args:
        law: of the gaps.
        uniform: the stream the gaps are drawn from; more seconds or a higher limit only add to what fewer gave.
        seconds: how long.
        limit: the most arrivals to return.
    """
    first, share = uniform.draw(2)
    # Seen at a random moment, the gap under way is drawn in proportion to its length, and a uniform part of it is left.
    last = float(share * law.biased(np.array([first]))[0])
    pieces = [np.array([last])]
    count, chunk = 1, FIRST_CHUNK
    while last < seconds and (limit is None or count < limit):
        pieces.append(last + np.cumsum(law.gaps(uniform.draw(chunk))))
        count, last = count + chunk, float(pieces[-1][-1])
        chunk = min(2 * chunk, LAST_CHUNK)
    times = np.concatenate(pieces)
    return times[times < seconds][:limit]


def _gamma_quantile(shape: float, uniform: Floats) -> Floats:
    from scipy.special import gammaincinv  # loaded here, so that reading a trace does not wait for scipy

    return np.asarray(gammaincinv(shape, uniform), np.float64)


def weibull_shape(cv: float) -> float:
    """Return the shape whose CV is `cv`, by bisection: the CV falls as the shape grows."""
    low, high = 0.05, 2000.0
    wanted = math.log1p(cv * cv)
    for _ in range(100):
        shape = math.sqrt(low * high)
        spread = math.lgamma(1 + 2 / shape) - 2 * math.lgamma(1 + 1 / shape)
        low, high = (shape, high) if spread > wanted else (low, shape)
    return math.sqrt(low * high)
