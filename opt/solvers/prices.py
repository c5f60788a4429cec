"""The `prices` bound: a price for memory in every round, found by smoothed ascent, stated by exact arithmetic.

For any non-negative prices the Lagrangian of the memory constraints is a lower bound; the best prices give the value of
the time-indexed linear program. The dual is concave but has kinks wherever a request has several cheapest starts, and
at good prices nearly every request has. So each minimum over starts is replaced by a soft minimum of temperature tau,
the smooth dual is climbed with L-BFGS-B, and tau is lowered step by step. Prices start at (requests unfinished in
smallest-volume order)/memory, which already prove the mean-busy-time bound on deep backlogs.

Floating point only finds the prices. They are rounded to fractions, and `opt.core.priced` computes what they prove.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import numpy as np

from opt.core.clock import now
from opt.core.columns import FloatArray, IntArray
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Bound
from opt.core.priced import Prices, priced_value
from opt.solvers.worker import Ended, run_apart

__all__ = ["Dual", "Stage", "climbed", "price_bound", "prices", "prices_apart"]

Stage: TypeAlias = tuple[int, float, int]  # intervals of constant price, temperature over the mean round, L-BFGS steps
STAGES: tuple[Stage, ...] = ((700, 1e-3, 100), (700, 1e-4, 300), (1400, 1e-4, 300), (2800, 1e-4, 500), (5600, 5e-5, 500))
FEW_UP_TO = 300  # requests, for which these are as good: the horizon is short
FEW_STAGES: tuple[Stage, ...] = tuple(
    (700 * k, tau, 100) for k, tau in ((1, 1e-3), (1, 1e-4), (2, 1e-4), (2, 1e-5), (3, 1e-4), (3, 1e-5))
)
COARSE_FROM = 20_000  # requests; beyond, only the stages of COARSE_STAGES
COARSE_STAGES: tuple[Stage, ...] = ((1500, 1e-4, 100),)
STARTS = 6000  # candidate starts looked at while climbing, one at each interval's end; the certified value looks at all
CLASSES = 2500  # requests beyond this number climb as classes of similar size
SCALE_BITS = 40  # prices are rounded to multiples of 2**-40, less where 64 bits would not do


def prices(instance: Instance, *, time_limit: float = 30.0, on_bound: Callable[[Bound], None] | None = None) -> Bound:
    """Return the best price bound found within `time_limit` seconds, with its prices as the certificate.

    `on_bound` is told every bound on the way, never one below the one before. Holds for any arrivals and for separate KV
    caches. Never below the value of its starting prices.
    """
    if not instance.n:
        return price_bound(instance, np.zeros(0, np.int64), np.zeros(0))
    deadline = now() + time_limit
    stages = FEW_STAGES if instance.n <= FEW_UP_TO else STAGES if instance.n < COARSE_FROM else COARSE_STAGES
    best = None
    for ends, level in climbed(instance, Dual(instance), stages, deadline):
        found = price_bound(instance, ends, level)
        best = found if best is None else max(best, found, key=lambda bound: bound.value)
        if on_bound is not None:
            on_bound(best)
    assert best is not None
    return best


def climbed(
    instance: Instance, dual: Dual, stages: Sequence[Stage], deadline: float = math.inf
) -> Iterator[tuple[IntArray, FloatArray]]:
    """Yield interval ends (g,) and prices (g,): those to start from, then what each stage makes of the ones before."""
    finish = _fluid_finish(instance)
    ends = _grid(finish, stages[0][0])
    level = _waiting(finish, ends) / instance.memory
    yield ends, level
    for intervals, temperature, steps in stages:
        if now() > deadline:
            return
        finer = _grid(finish, intervals)
        level = level[np.minimum(np.searchsorted(ends, finer), len(ends) - 1)]
        ends = finer
        level = dual.climb(ends, level, temperature, steps, deadline)
        yield ends, level


def prices_apart(instance: Instance, seconds: float, heard: Callable[[Bound], None]) -> Ended:
    """Climb prices in a worker for so many seconds, tell every bound on the way; say how it ended."""
    return run_apart(_climb, instance, seconds, deadline=time.monotonic() + seconds, heard=heard).ended


def _climb(tell: Callable[[Bound], None], instance: Instance, seconds: float) -> None:
    prices(instance, time_limit=seconds, on_bound=tell)


def price_bound(instance: Instance, ends: IntArray, level: FloatArray) -> Bound:
    """Return what the prices `level` (g,) up to rounds `ends` (g,) prove, after rounding them to fractions."""
    dearest = float(level.max(initial=0.0))
    latest = int(ends.max(initial=0)) + int(instance.arrival.max(initial=0)) + int(instance.output.max(initial=0)) + 1
    room = 2.0**60 / (latest + dearest * float(instance.volume.max(initial=0)) + 1.0)
    bits = min(SCALE_BITS, max(0, math.floor(math.log2(room))))
    rounded = Prices(ends, np.rint(level * 2.0**bits).astype(np.int64), 1 << bits)
    value = priced_value(instance, rounded)
    certificate = {"kind": "prices", "scale": rounded.scale, "ends": ends.tolist(), "price": rounded.price.tolist()}
    return Bound(value, "prices", "separate", certificate)


def _fluid_finish(instance: Instance) -> FloatArray:
    """Return, ascending, when a fluid machine that spends all memory on the smallest volume would be done with each.

    Requests that arrive are served as if in order of volume from their arrival on: a start, no more.
    """
    order = np.argsort(instance.volume, kind="stable")
    finish = np.cumsum(instance.volume[order].astype(np.float64)) / instance.memory
    return np.sort(np.maximum(finish, instance.arrival[order] + instance.output[order]))


def _grid(finish: FloatArray, intervals: int) -> IntArray:
    """Return interval ends: half of them at quantiles of the finishing rounds, half evenly spaced."""
    even = np.linspace(0, float(finish[-1]), intervals // 2 + 1)[1:]
    chosen = np.concatenate([even, np.quantile(finish, np.linspace(0, 1, intervals // 2))])
    return np.unique(np.maximum(np.ceil(chosen), 1).astype(np.int64))


def _waiting(finish: FloatArray, ends: IntArray) -> FloatArray:
    """Return the mean number of unfinished requests in each interval, each request fading out while it is served.

    These numbers over the memory are the prices of the mean-busy-time relaxation. They fall convexly, so by Jensen's
    inequality what they prove (on a grid fine enough) is at least the mean-busy-time bound.
    """
    times = np.concatenate([[0.0], finish])
    left = np.arange(len(finish), -1, -1, dtype=np.float64)
    area = np.concatenate([[0.0], np.cumsum((left[1:] + left[:-1]) / 2 * np.diff(times))])

    def until(t: FloatArray) -> FloatArray:
        j = np.minimum(np.searchsorted(times, t, side="right"), len(times) - 1)
        rest = np.maximum(times[j] - t, 0.0)
        share = rest / np.maximum(times[j] - times[j - 1], 1e-300)
        found: FloatArray = area[j] - rest * (left[j] + share / 2)
        return found

    begins = np.concatenate([[0], ends[:-1]])
    mean: FloatArray = (until(ends.astype(np.float64)) - until(begins.astype(np.float64))) / (ends - begins)
    return mean


def _classes(instance: Instance) -> tuple[IntArray, IntArray]:
    """Return requests that stand for classes of similar ones (k,), and the class of each request (n,)."""
    if instance.n <= CLASSES:
        return np.arange(instance.n), np.arange(instance.n)
    side = math.isqrt(CLASSES)
    chosen: list[int] = []
    member = np.empty(instance.n, np.int64)
    for group in np.array_split(np.lexsort((instance.output, instance.arrival)), side):
        for part in np.array_split(group[np.argsort(instance.volume[group], kind="stable")], side):
            member[part] = len(chosen)
            chosen.append(int(part[len(part) // 2]))
    return np.array(chosen, np.int64), member


class Dual:
    """The smoothed dual of an instance, ready to be climbed; many requests climb as classes of similar ones.

    `member` (n,) is the class of each request; a class has the sizes and the arrival of one of its requests.
    """

    def __init__(self, instance: Instance) -> None:
        at, self.member = _classes(instance)
        self.count = np.bincount(self.member, minlength=len(at)).astype(np.float64)
        self.sizes = (instance.prompt[at], instance.output[at], instance.arrival[at])
        self.memory = instance.memory
        self.longest = int(instance.output.max())

    def climb(self, ends: IntArray, level: FloatArray, temperature: float, steps: int, deadline: float = math.inf) -> FloatArray:
        """Return better prices than `level`, for a soft minimum at `temperature` times the mean end."""
        from scipy.optimize import minimize

        begins = np.concatenate([[0], ends[:-1]])
        starts = np.unique(np.concatenate([[0], ends[:: max(1, len(ends) // STARTS)]]))
        unit = np.maximum(level, max(level.max(), 1.0 / self.memory) * 1e-3)
        tau, size = temperature * float(ends.mean()), int(ends[-1]) + self.longest + 2

        def negative(z: FloatArray) -> tuple[float, FloatArray]:
            value, slope = _soft_dual(*self.sizes, self.count, starts, begins, ends, z * unit, self.memory, tau, size)
            return -value, -slope * unit

        def on_time(_z: FloatArray) -> None:
            if now() > deadline:
                raise StopIteration

        options = {"maxiter": steps, "maxcor": 20, "maxfun": 10 * steps}
        bounds = [(0, None)] * len(level)
        found = minimize(negative, level / unit, jac=True, method="L-BFGS-B", bounds=bounds, callback=on_time, options=options)
        climbed: FloatArray = found.x * unit
        return climbed


@compiled
def _soft_dual(
    s: IntArray,
    o: IntArray,
    a: IntArray,
    count: FloatArray,
    starts: IntArray,
    begins: IntArray,
    ends: IntArray,
    level: FloatArray,
    memory: int,
    tau: float,
    size: int,
) -> tuple[float, FloatArray]:
    """Return the soft dual value and its gradient by interval."""
    total, moment = np.zeros(size), np.zeros(size)  # sums of the price, and of round times price, up to each round
    value = 0.0
    for j in range(len(ends)):
        for u in range(begins[j] + 1, ends[j] + 1):
            total[u] = total[u - 1] + level[j]
            moment[u] = moment[u - 1] + u * level[j]
        value -= memory * level[j] * (ends[j] - begins[j])
    for u in range(ends[-1] + 1, size):
        total[u], moment[u] = total[u - 1], moment[u - 1]
    by_total, by_moment = np.zeros(size), np.zeros(size)
    bracket = np.empty(len(starts))
    for i in range(len(s)):
        least = np.inf
        for k in range(len(starts)):
            x = max(starts[k], a[i])
            if x >= size - o[i]:
                bracket[k] = np.inf
                continue
            y = x + o[i]
            bracket[k] = y - a[i] + (s[i] - x) * (total[y] - total[x]) + moment[y] - moment[x]
            least = min(least, bracket[k])
        weight_sum = 0.0
        for k in range(len(starts)):
            bracket[k] = np.exp((least - bracket[k]) / tau) if bracket[k] < least + 30 * tau else 0.0
            weight_sum += bracket[k]
        value += count[i] * (least - tau * np.log(weight_sum))
        for k in range(len(starts)):
            if bracket[k] > 0.0:
                w = count[i] * bracket[k] / weight_sum
                x = max(starts[k], a[i])
                y = x + o[i]
                by_total[y] += w * (s[i] - x)
                by_total[x] -= w * (s[i] - x)
                by_moment[y] += w
                by_moment[x] -= w
    gradient = np.zeros(len(ends))
    later_total, later_moment = 0.0, 0.0
    for u in range(size - 1, ends[-1], -1):
        later_total += by_total[u]
        later_moment += by_moment[u]
    for j in range(len(ends) - 1, -1, -1):
        for u in range(ends[j], begins[j], -1):
            later_total += by_total[u]
            later_moment += by_moment[u]
            gradient[j] += later_total + u * later_moment - memory
    return value, gradient
