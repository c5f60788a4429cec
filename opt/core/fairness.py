"""Who waits, and how unequally: the figures that a total hides."""

from __future__ import annotations

from typing import Any

import numpy as np

from opt.core.columns import IntArray
from opt.core.model import Schedule

__all__ = ["fairness"]

CLASSES = ("small", "medium", "large")


def fairness(schedule: Schedule) -> dict[str, Any]:
    """Return waiting times in rounds, over all requests and by size, and Jain's index of slowdown.

    `max_wait` and `wait` (mean, p50, p95, p99) are rounds from arrival to start; `by_volume` gives the same for the
    thirds of smallest, middle and largest volume. `jain_slowdown` is Jain's fairness index `(sum x)^2 / (n sum x^2)` of
    the slowdowns x = latency/output: 1 when all are slowed alike, 1/n when one carries it all. All are None for an
    empty instance.
    """
    if not schedule.instance.n:
        return {"max_wait": None, "wait": None, "by_volume": None, "jain_slowdown": None}
    order = np.argsort(schedule.instance.volume, kind="stable")
    thirds = dict(zip(CLASSES, np.array_split(order, len(CLASSES)), strict=True))
    slowdown = (schedule.wait + schedule.instance.output) / schedule.instance.output
    return {
        "max_wait": int(schedule.wait.max()),
        "wait": _summary(schedule.wait),
        "by_volume": {name: _summary(schedule.wait[at]) for name, at in thirds.items() if len(at)},
        "jain_slowdown": float(slowdown.sum() ** 2 / (len(slowdown) * (slowdown**2).sum())),
    }


def _summary(wait: IntArray) -> dict[str, float]:
    p50, p95, p99 = np.quantile(wait, (0.5, 0.95, 0.99)).tolist()
    return {"mean": float(wait.mean()), "p50": p50, "p95": p95, "p99": p99, "max": int(wait.max())}
