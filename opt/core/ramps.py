"""A bound that keeps memory ramps whole: check it from one price a request.

Read a schedule from left to right with a counter r of requests not started yet. A round costs r, so the total latency is
the sum of outputs plus the cost of all rounds. The relaxation forgets which requests have started (any may start any
number of times, n starts in all) and of the running ones remembers two; memory is checked exactly among those and a
newcomer. Starting request k earns `price[k]`, and every price is paid once. With A the remembered running requests, each
with its rounds to go,

    V_r(A) = min( r + V_r(A one round older),  min over k that fits with A of  W_{r-1}(A + k) - price[k] ),   V_0 = 0,

W being the maximum of V over the pairs in A + k. Then `V_n(nothing) + sum of prices + sum of outputs` bounds every
schedule from below, for any prices: by induction over the events of a schedule, forgetting a running request only
loosens memory, so each V is a lower bound and so is their maximum; each request starts once and earns its price once.
All requests must be there at round 0. Prices are integers over a common scale, so the recursion is exact.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.errors import CertificateError
from opt.core.instance import Instance

__all__ = ["ramp_value"]

FAR = 1 << 60
MAX_WORK = 3 * 10**9  # elementary steps of a check, about a minute


class _Running(NamedTuple):
    """Every (request, rounds to go): owner, rounds to go, and tokens held before the next round; all (N,)."""

    owner: IntArray
    left: IntArray
    held: IntArray


def ramp_value(instance: Instance, certificate: Mapping[str, Any]) -> Fraction:
    """Return what a certificate of kind "ramps" proves: `price` (n integers) and `scale` (at least 1).

    Raises:
        CertificateError: malformed, arrivals after round 0, or too large to be checked.
    """
    price, scale = _read(instance, certificate)
    if not instance.offline:
        raise CertificateError("the ramps bound is proved only when every request is there at round 0")
    states = int(instance.output.sum())
    if instance.n**2 * states**2 > MAX_WORK:
        raise CertificateError(f"the ramps bound of {instance.n} requests with {states} output tokens is too large to check")
    total = sum(price.tolist()) + _recursion(instance, price, scale)
    return Fraction(total, scale) + int(instance.output.sum())


def _read(instance: Instance, certificate: Mapping[str, Any]) -> tuple[IntArray, int]:
    price, scale = certificate.get("price"), certificate.get("scale")
    whole = isinstance(price, list) and all(type(p) is int and abs(p) < 2**40 for p in price)
    if not whole or len(price or []) != instance.n or type(scale) is not int or not 1 <= scale < 2**20:
        raise CertificateError(f"a ramps certificate has {instance.n} integer prices below 2**40 and a scale from 1 to 2**20")
    return np.array(price, np.int64), scale


def _recursion(instance: Instance, price: IntArray, scale: int) -> int:
    """Return V_n(nothing). States are one vector: all pairs, then all singles, then nothing."""
    if not instance.n:
        return 0
    running = _running(instance)
    size = len(running.owner)
    fresh = np.cumsum(instance.output) - 1  # the item of each request that has just started
    feasible = _pair_fits(running, instance.memory)
    joins = [_joins(running, feasible, instance, k) for k in range(instance.n)]
    steps = list(_ageing(running, feasible))
    value = np.zeros(size * size + size + 1, np.int64)
    for r in range(1, instance.n + 1):
        pair, single = value[: size * size].reshape(size, size), value[size * size : -1]
        start = np.full_like(value, FAR)
        start_pair, start_single = start[: size * size].reshape(size, size), start[size * size : -1]
        for k in range(instance.n):
            with_k = np.where(feasible[:, fresh[k]], pair[:, fresh[k]], FAR)
            three = np.maximum(np.maximum(with_k[:, None], with_k[None, :]), pair) - price[k]
            np.minimum(start_pair, np.where(joins[k], three, FAR), out=start_pair)
            np.minimum(start_single, np.where(with_k < FAR, with_k - price[k], FAR), out=start_single)
            start[-1] = min(start[-1], single[fresh[k]] - price[k])
        value = start
        for states, older in steps:
            value[states] = np.minimum(value[states], r * scale + value[older])
    return int(value[-1])


def _running(instance: Instance) -> _Running:
    owner = np.repeat(np.arange(instance.n), instance.output)
    first = np.cumsum(instance.output) - instance.output
    left = np.arange(len(owner)) - first[owner] + 1
    return _Running(owner, left, instance.peak[owner] - left)


def _pair_fits(running: _Running, memory: int) -> npt.NDArray[np.bool_]:
    """Two of them hold most together in the last round of the one that ends first."""
    until = np.minimum(running.left[:, None], running.left[None, :])
    together = running.held[:, None] + running.held[None, :] + 2 * until
    fits: npt.NDArray[np.bool_] = (together <= memory) & (running.owner[:, None] != running.owner[None, :])
    return fits


def _joins(running: _Running, feasible: npt.NDArray[np.bool_], instance: Instance, k: int) -> npt.NDArray[np.bool_]:
    """Return for which pairs request k can start beside both: checked in the last round of each of the three."""
    held, left = running.held, running.left
    s, o = int(instance.prompt[k]), int(instance.output[k])

    def tokens(held_at: Any, left_at: Any, t: Any) -> Any:
        return np.where(left_at >= t, held_at + t, 0)

    fits: npt.NDArray[np.bool_] = feasible & (running.owner != k)[:, None] & (running.owner != k)[None, :]
    a, b = (held[:, None], left[:, None]), (held[None, :], left[None, :])
    for t in (a[1], b[1], o):
        fits = fits & (tokens(*a, t) + tokens(*b, t) + tokens(s, o, t) <= instance.memory)
    return fits


def _ageing(running: _Running, feasible: npt.NDArray[np.bool_]) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield (states, the states one round older) in an order in which the older ones are always done."""
    size, left = len(running.owner), running.left
    nothing = size * size + size
    for t in range(1, int(left.max()) + 1):
        at = np.flatnonzero(left == t)
        yield size * size + at, np.where(t > 1, size * size + at - 1, nothing)
    a, b = np.nonzero(feasible)
    until = np.minimum(left[a], left[b])
    for t in range(1, int(left.max()) + 1):
        x, y = a[until == t], b[until == t]
        both, first_ends = (x - 1) * size + y - 1, left[x] == t
        one = np.where(first_ends, size * size + y - 1, size * size + x - 1)
        gone = np.where(left[x] == left[y], nothing, one)
        yield x * size + y, gone if t == 1 else both
