"""Phases: smallest volume first without a bad case, within 7 times the optimum for any requests there at round 0.

Smallest volume first fails where short requests that fill the memory wait, one after another, for long thin ones of no
larger volume. Here every request gets a *key*, the larger of its fluid completion (the volumes up to its own, divided by
the memory) and 2/3 of its output: long thin requests are put off by at most a fraction of what they take anyway. Keys are
cut into phases that grow by a factor of 5/2. A phase is packed greedily with memory reserved for the peak of each
request, which takes at most (area + the larger of area and longest output) rounds; the same packing reflected in time is
as good, so the better of the two starts its requests after half of that time on average. Of some offsets of the cuts
the best is kept.

Guarantee (ours; every step runs in `proofs.phases`): total latency <= 7 OPT, when all requests are there at round 0.
Greedy packing is due to Garey and Graham (1975), random geometric phases in which half a phase counts to Goemans and
Kleinberg (1998). The best constant published before is 16 (arXiv 2607.09248).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Proposal
from opt.solvers.sorted_f import better

__all__ = ["in_phases", "keys", "phases"]

PHASES_FACTOR = 7
RATIO = 2.5  # growth of the phases
OFFSETS = 12  # cuts tried; the guarantee of 7 needs eleven


def phases(instance: Instance, *, seed: int = 0, time_limit: float | None = None) -> Proposal:
    """Return the better of running phases one after another and packing their order; TEL <= 7 OPT when all are there at 0.

    Args:
        instance: the requests; arrivals are respected, but phases are formed as if all were there.
        seed, time_limit: unused; the method is deterministic and near-linear.
    """
    plans = in_phases(instance, keys(instance), RATIO, OFFSETS)
    phase_of, start = min(plans, key=lambda plan: exact_sum(plan[1]))
    factor = PHASES_FACTOR if instance.offline else None
    order = np.lexsort((instance.volume, phase_of))
    return better(instance, start, order, {"phases": len(np.unique(phase_of)), "factor": factor})


def keys(instance: Instance) -> FloatArray:
    """Return max(fluid completion in order of volume, 2/3 output) for each request (n,), in rounds.

    Rounding moves a request between phases only where its key is within 1e-9 of a cut, which the guarantee has room for.
    """
    order = np.argsort(instance.volume, kind="stable")
    fluid = np.empty(instance.n)
    fluid[order] = np.cumsum(instance.volume[order], dtype=np.float64) / instance.memory
    return np.maximum(fluid, 2 * instance.output / 3)


def in_phases(instance: Instance, key: FloatArray, ratio: float, offsets: int) -> Iterator[tuple[IntArray, IntArray]]:
    """Yield (phase, start), both (n,), for each offset: phase k holds the keys in (c ratio**(k-1), c ratio**k].

    Args:
        instance: the requests.
        key: a positive number for each.
        ratio: the growth of the phases, above 1.
        offsets: how many values c = ratio**(i/offsets) are tried.
    """
    height = np.log(key) / np.log(ratio)
    for i in range(offsets):
        phase_of = np.ceil(height - i / offsets).astype(np.int64)
        order = np.lexsort((instance.output, instance.peak, phase_of))
        yield phase_of, _one_after_another(order, phase_of, instance.peak, instance.output, instance.arrival, instance.memory)


@compiled
def _one_after_another(
    order: IntArray, phase_of: IntArray, peak: IntArray, output: IntArray, arrival: IntArray, memory: int
) -> IntArray:
    """Return starts when phases run one after another, each packed smallest peak first, forwards or reflected in time."""
    n = len(order)
    start = np.zeros(n, np.int64)
    now = np.int64(0)
    first = 0
    while first < n:
        last = first
        running = [(np.int64(0), np.int64(0))]
        running.pop()
        t, held, length = np.int64(0), np.int64(0), np.int64(0)
        total, outputs = 0.0, 0.0  # sums of up to n * length, which may pass 2**63
        while last < n and phase_of[order[last]] == phase_of[order[first]]:
            i = order[last]
            while held + peak[i] > memory:  # the smallest peak that waits does not fit, so none does
                t, freed = heapq.heappop(running)
                held -= freed
            start[i] = t
            held += peak[i]
            heapq.heappush(running, (t + output[i], peak[i]))
            length = max(length, t + output[i])
            now = max(now, arrival[i])
            total += t
            outputs += output[i]
            last += 1
        reflect = float(last - first) * length - outputs < 2 * total
        for at in range(first, last):
            i = order[at]
            start[i] = now + (length - output[i] - start[i] if reflect else start[i])
        now += length
        first = last
    return start
