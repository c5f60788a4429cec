"""Windowed orders with tuned parameters: whole plans from a handful of numbers, a good place to start a local search.

A fluid machine that serves the requests in order, M token-rounds a round, tells when each would be served. A request may
start before that, but by no more than its *window*: `typical` mean outputs (weighted by volume, of the requests up to
it in the order) plus `own` times its own output. The order is by volume, bent by powers of the output and the peak.
Under those limits whoever fits starts. The windows of `staggered` are special cases; tuning by pattern search takes some
dozens of plans and closes much of the gap where many requests fit together.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.solvers.ledger import pack_skip
from opt.solvers.staggered import fluid_release

__all__ = ["tuned_windows", "windowed"]

FIRST = (3.0, 0.0, 0.0, 0.0)  # typical, own, power of the output, power of the peak
STEPS = (1.0, 0.5, 0.1, 0.1)
FINEST = 1 / 16  # of the first steps


def windowed(instance: Instance, typical: float, own: float, by_output: float, by_peak: float) -> IntArray:
    """Return the starts (n,) under the windows and the order of these parameters. Feasible whatever they are."""
    key = np.log(instance.volume) + by_output * np.log(instance.output) + by_peak * np.log(instance.peak)
    order = np.lexsort((instance.arrival, key))
    weight = instance.volume[order].astype(np.float64)
    mean = np.empty(instance.n)
    mean[order] = np.cumsum(weight * instance.output[order]) / np.cumsum(weight)
    window = (typical * mean + own * instance.output).astype(np.int64)
    release = np.maximum(instance.arrival, fluid_release(instance, order) - window)
    return pack_skip(order, instance.prompt, instance.output, release, instance.memory)


def tuned_windows(instance: Instance) -> Iterator[IntArray]:
    """Yield the starts of ever other parameters, by pattern search: a step along each axis, halved when none helps."""
    point, scale = np.array(FIRST), 1.0
    start = windowed(instance, *point)
    yield start
    best = exact_sum(start)
    while scale >= FINEST:
        improved = False
        for axis, step in enumerate(STEPS):
            for sign in (1, -1):
                trial = point.copy()
                trial[axis] += sign * step * scale
                start = windowed(instance, *trial)
                yield start
                if exact_sum(start) < best:
                    best, point, improved = exact_sum(start), trial, True
                    break
        if not improved:
            scale /= 2
