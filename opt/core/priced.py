"""What prices prove: the exact value of a Lagrangian bound, request by request, in 64-bit integers.

Let `p_t >= 0` be integer prices a round with common denominator D. Every feasible schedule satisfies, in every round,
(tokens held) <= M, so with any prices

    D * TEL >= sum over i of min over x of [D * (x + o_i - a_i) + sum over k of p_{x+k} (s_i + k)] - M * sum over t of p_t,

the minimum running over the starts x that request i may take. Prices are constant on intervals, so between the rounds
where x + 1 or x + o + 1 enters a new interval the bracket is quadratic in x: its minimum lies at the first of those
rounds or where its (linear) difference changes sign. That makes the check `O(n * intervals)`, whatever the horizon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from opt.core.columns import IntArray
from opt.core.errors import CertificateError
from opt.core.exact import exact_dot
from opt.core.instance import Instance

__all__ = ["Prices", "priced_value", "prices_of"]

MAX_ROUND = 2**25  # the check keeps four numbers for every round up to the last end
CHUNK = 1 << 20  # (request, candidate start) pairs looked at together


@dataclass(frozen=True)
class Prices:
    """Piecewise constant prices: `price[j] / scale` in rounds `ends[j-1] + 1 .. ends[j]`, nothing after the last end.

    Args:
        ends: (g,) increasing rounds, the first at least 1.
        price: (g,) non-negative integers.
        scale: their common denominator, at least 1.
    """

    ends: IntArray
    price: IntArray
    scale: int


def prices_of(certificate: Mapping[str, Any]) -> Prices:
    """Return the prices in a certificate of kind "prices".

    Raises:
        CertificateError: not integers, negative, or rounds that do not increase.
    """
    try:
        ends = np.array(certificate["ends"])
        price = np.array(certificate["price"])
        scale = certificate["scale"]
    except (KeyError, ValueError) as error:
        raise CertificateError(f"the certificate lacks {error} (it must have ends, price and scale)") from None
    whole = all(array.ndim == 1 and (array.dtype.kind in "iu" or not array.size) for array in (ends, price))
    if not whole or len(ends) != len(price) or type(scale) is not int or not 1 <= scale < 2**53:
        raise CertificateError("ends and price must be lists of integers of one length, and scale an integer from 1 to 2**53")
    steps = np.diff(ends.astype(np.int64), prepend=0)
    if ends.size and ((steps < 1).any() or ends[-1] > MAX_ROUND):
        raise CertificateError(f"ends must be increasing rounds from 1 to {MAX_ROUND}")
    if price.size and price.min() < 0:
        at = int(np.flatnonzero(price < 0)[0])
        raise CertificateError(f"price[{at}] = {price[at]}: a negative price proves nothing")
    return Prices(ends.astype(np.int64), price.astype(np.int64), scale)


def priced_value(instance: Instance, prices: Prices, first: IntArray | None = None, last: IntArray | None = None) -> Fraction:
    """Return the lower bound that prices prove for starts within `first .. last` (n,), by default any after arrival.

    Raises:
        CertificateError: numbers so large that 64 bits could not hold a bracket.
    """
    low = instance.arrival if first is None else np.maximum(first, instance.arrival)
    total = 0
    if instance.n:
        _check_range(instance, prices, low)
        table = _table(prices, int(instance.output.max()))
        cells = [instance.prompt, instance.output, low] if last is None else [instance.prompt, instance.output, low, last]
        rows, copies = np.unique(np.stack(cells), axis=1, return_counts=True)
        step = max(1, CHUNK // (2 * len(prices.ends) + 3))
        for begin in range(0, rows.shape[1], step):
            part = slice(begin, begin + step)
            least = _least_brackets(table, prices.scale, *rows[:, part])
            total += exact_dot(least, copies[part])
    rent = sum(
        length * price for length, price in zip(np.diff(prices.ends, prepend=0).tolist(), prices.price.tolist(), strict=True)
    )
    arrived = sum(instance.arrival.tolist())
    value: Fraction = Fraction(total - instance.memory * rent, prices.scale) - arrived
    return value


def _check_range(instance: Instance, prices: Prices, low: IntArray) -> None:
    """A bracket is at most scale * (start + output) + dearest price * volume; the sums inside wrap, their result must not."""
    latest = int(max(low.max(), prices.ends.max(initial=0))) + int(instance.output.max())
    dearest = int(prices.price.max(initial=0))
    if prices.scale * (latest + 1) + dearest * int(instance.volume.max()) >= 2**62 or instance.output.max() > MAX_ROUND:
        raise CertificateError("prices, scale and rounds are too large for an exact check in 64 bits; use a smaller scale")


class _Table(NamedTuple):
    """Sums over prices up to round y, for every y: of p_u, of u * p_u; the price in round y + 1, and its interval's end."""

    ends: IntArray
    total: IntArray
    moment: IntArray
    price: IntArray
    until: IntArray


def _table(prices: Prices, longest: int) -> _Table:
    """Return the sums for all rounds a bracket can touch: starts up to the last end, and the outputs beyond."""
    ends = np.concatenate([[0], prices.ends, [int(prices.ends.max(initial=0)) + 2 * longest + 2]])
    lengths = np.diff(ends)
    price = np.repeat(np.concatenate([prices.price, [0]]), lengths)  # price[y] is that of round y + 1
    rounds = np.arange(1, len(price) + 1)
    total = np.concatenate([[0], np.cumsum(price)])[:-1]
    moment = np.concatenate([[0], np.cumsum(price * rounds)])[:-1]
    return _Table(ends, total, moment, price, np.repeat(ends[1:], lengths))


def _least_brackets(table: _Table, scale: int, s: IntArray, o: IntArray, low: IntArray, high: IntArray | None = None) -> IntArray:
    """Return min over x of `scale * (x + o) + sum over k of p_{x+k} (s + k)` for each request of a chunk."""
    last_end = table.ends[-2]
    beyond = np.maximum(low - last_end, 0)  # after the last end a bracket grows by the scale a round
    s, o, low = s[:, None], o[:, None], np.minimum(low, last_end)[:, None]
    inner = table.ends[None, :-1]
    starts = np.concatenate([np.broadcast_to(inner, (len(s), inner.shape[1])), inner - o, low], axis=1)
    starts = np.maximum(starts, low)
    if high is not None:
        latest = np.minimum(np.maximum(high[:, None], low), last_end)
        starts = np.minimum(starts, latest)

    def bracket(x: IntArray) -> IntArray:
        y = x + o
        value: IntArray = scale * y + (s - x) * (table.total[y] - table.total[x]) + table.moment[y] - table.moment[x]
        return value

    final = starts + o
    # bracket(x + 1) - bracket(x); the sum of prices runs over rounds x + 2 .. x + o
    between = table.total[final] - table.total[starts] - table.price[starts]
    difference = scale + (s + o) * table.price[final] - (s + 1) * table.price[starts] - between
    slope = table.price[starts] - table.price[final]
    crossing = np.where(slope > 0, -(difference // np.maximum(slope, 1)), 0)
    length = np.minimum(table.until[starts], table.until[final] - o) - starts
    if high is not None:
        length = np.minimum(length, latest - starts)
    inside = np.clip(crossing, 0, np.maximum(length, 0))
    least: IntArray = np.minimum(bracket(starts), bracket(starts + inside)).min(axis=1) + scale * beyond
    return least
