"""How good the best prices could be: a fractional schedule, that is, a feasible point of the time-indexed linear program.

Cut every request into `copies` equal pieces, each with its own start. That is one instance of `copies * n` requests under
`copies * memory` tokens, and a schedule of it, its total latency divided by `copies`, is a fractional schedule of ours. So
it bounds the linear program from above, and no price bound can exceed it: a primal-dual gap, both sides exact.

The pieces of a request are spread over starts by the soft minimum at good prices (`opt.solvers.prices`), whose shares
fill memory evenly where it has a price, and are then packed by serial earliest fit in the order of those starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np

from opt.core.certify import check_schedule
from opt.core.columns import FloatArray, IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.solvers.prices import Dual, Stage, climbed
from opt.solvers.serial import pack_serial

__all__ = ["fractional_value"]

# Warmer than for the bound: smoother shares pack better.
STAGES: tuple[Stage, ...] = ((700, 1e-3, 600), (1400, 8e-4, 600), (2800, 6e-4, 1500), (2800, 4e-4, 2500))
SOONER = 0.01  # of the mean round: how much earlier than its share a piece may start


def fractional_value(instance: Instance, *, copies: int = 1000, stages: Sequence[Stage] = STAGES) -> Fraction:
    """Return the total latency of a fractional schedule: no smaller than the time-indexed linear program's value.

    Args:
        instance: requests, arrivals in rounds.
        copies: pieces of each request; more pieces, less lost in packing.
        stages: how the prices are found (`opt.solvers.prices.climbed`).
    """
    dual = Dual(instance)
    *_, (ends, level) = climbed(instance, dual, stages)
    starts = np.unique(np.concatenate([[0], ends]))
    temperature = stages[-1][1] * float(ends.mean())
    share = _spread(*dual.sizes, starts, ends, level, temperature, copies)
    wanted = share[dual.member].ravel()
    pieces = _pieces(instance, copies)
    release = np.maximum(pieces.arrival, (wanted - SOONER * float(ends.mean())).astype(np.int64))
    order = np.argsort(wanted, kind="stable")
    start = pack_serial(order, pieces.prompt, pieces.output, release, pieces.memory)
    check_schedule(pieces, start)
    latency = exact_sum(start) + exact_sum(pieces.output) - exact_sum(pieces.arrival)
    return Fraction(latency, copies)


def _pieces(instance: Instance, copies: int) -> Instance:
    def repeated(values: IntArray) -> IntArray:
        return np.repeat(values, copies)

    memory = instance.memory * copies
    return Instance(
        memory, repeated(instance.prompt), repeated(instance.output), arrival=repeated(instance.arrival), name=instance.name
    )


@compiled
def _spread(
    s: IntArray,
    o: IntArray,
    a: IntArray,
    starts: IntArray,
    ends: IntArray,
    level: FloatArray,
    temperature: float,
    copies: int,
) -> FloatArray:
    """Return, for each class, the starts of its pieces in ascending order (k, copies): quantiles of the soft minimum.

    The share of a candidate start is spread evenly over the rounds back to the candidate before it.
    """
    size = ends[-1] + o.max() + 2
    total, moment = np.zeros(size), np.zeros(size)
    j = 0
    for u in range(1, size):
        price = level[j] if u <= ends[-1] else 0.0
        total[u], moment[u] = total[u - 1] + price, moment[u - 1] + u * price
        if j < len(ends) - 1 and u == ends[j]:
            j += 1
    found = np.empty((len(s), copies))
    weight = np.empty(len(starts))
    for i in range(len(s)):
        least = np.inf
        for k in range(len(starts)):
            x = max(starts[k], a[i])
            y = x + o[i]
            weight[k] = np.inf
            if y < size and (starts[k] > a[i] or k == 0 or starts[k - 1] < a[i] or starts[k] == a[i]):
                weight[k] = y + (s[i] - x) * (total[y] - total[x]) + moment[y] - moment[x]
                least = min(least, weight[k])
        whole = 0.0
        for k in range(len(starts)):
            weight[k] = np.exp((least - weight[k]) / temperature) if weight[k] < np.inf else 0.0
            whole += weight[k]
        k, before = 0, 0.0
        for c in range(copies):
            wanted = (c + 0.5) / copies * whole
            while k < len(starts) - 1 and before + weight[k] < wanted:
                before += weight[k]
                k += 1
            late = max(starts[k], a[i])
            early = max(starts[k - 1], a[i]) if k > 0 else late
            part = min(1.0, (wanted - before) / weight[k]) if weight[k] > 0 else 1.0
            found[i, c] = early + part * (late - early)
    return found
