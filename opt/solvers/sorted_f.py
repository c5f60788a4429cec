"""Batch greedy with a constant factor: Sorted-F and Sorted-rate.

Both partition the requests into batches by a greedy rule and run the batches one after another, batch k for as many
rounds as its longest output. The same order packed without barriers is usually far better, but only the serial
schedule carries the guarantee, so each solver returns the better of the two.

* Sorted-F (Wang, Ye, Zhou, arXiv 2508.06133) takes the batch of least F = (sum of outputs)/size**2 among sets that fit
  when started together. With exact minimisers and all requests present at round 0, TEL <= 32 OPT (`proofs`; 48 in the
  paper). The fast former claims nothing.
* Sorted-rate (ours) takes the batch of least (longest output)/size among sets whose peaks sum to at most the memory.
  The minimiser is exact and near-linear, and with all requests present at round 0, TEL <= 16 OPT.
"""

from __future__ import annotations

import heapq
from typing import Any, Literal

import numpy as np

from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Proposal
from opt.solvers.fmetric import exact_batches, exact_work, fast_batches
from opt.solvers.ledger import pack_skip, pack_strict
from opt.solvers.serial import pack_serial

__all__ = ["batch_serial", "better", "rate_batches", "sorted_f", "sorted_f_serial", "sorted_rate"]

SORTED_F_FACTOR = 32
SORTED_RATE_FACTOR = 16
EXACT_WORK = 10**8  # steps of the exact former that "auto" spends, a fraction of a second

Former = Literal["auto", "exact", "fast"]


def sorted_f(instance: Instance, *, seed: int = 0, time_limit: float | None = None, former: Former = "auto") -> Proposal:
    """Return the better of batch-serial and overlapped Sorted-F.

    Args:
        instance: the requests; arrivals are respected, but batches are formed as if all were there.
        seed, time_limit: unused; the method is deterministic and near-linear.
        former: "exact" (minimum-F batches, pseudo-polynomial), "fast" (near-linear), or "auto": exact where its work
            stays below `EXACT_WORK` steps.

    The guarantee TEL <= 32 OPT is stated in `stats["factor"]` only where the batches are exact minimisers and every
    request is there at round 0.
    """
    batch_of, exact = _f_batches(instance, former)
    factor = SORTED_F_FACTOR if exact and instance.offline else None
    return _better(instance, batch_of, {"batches": "exact" if exact else "fast", "factor": factor})


def sorted_f_serial(instance: Instance, *, seed: int = 0, time_limit: float | None = None, former: Former = "auto") -> Proposal:
    """Return batch-serial Sorted-F, the schedule the theorem is about. Arguments and guarantee as in `sorted_f`."""
    batch_of, exact = _f_batches(instance, former)
    factor = SORTED_F_FACTOR if exact and instance.offline else None
    stats = {"batches": "exact" if exact else "fast", "factor": factor, "form": "serial"}
    return Proposal(batch_serial(instance, batch_of), stats=stats)


def sorted_rate(instance: Instance, *, seed: int = 0, time_limit: float | None = None) -> Proposal:
    """Return the better of batch-serial and overlapped Sorted-rate; TEL <= 16 OPT when all requests are there at round 0."""
    factor = SORTED_RATE_FACTOR if instance.offline else None
    return _better(instance, rate_batches(instance), {"batches": "exact", "factor": factor})


def _f_batches(instance: Instance, former: Former) -> tuple[IntArray, bool]:
    if former not in ("auto", "exact", "fast"):
        raise ValueError(f"former = {former!r}: must be auto, exact or fast")
    exact = former == "exact" or (former == "auto" and exact_work(instance) <= EXACT_WORK)
    return (exact_batches if exact else fast_batches)(instance), exact


def batch_serial(instance: Instance, batch_of: IntArray) -> IntArray:
    """Return starts (n,) when batches 0, 1, .. run one after another, each once all its members have arrived."""
    start = np.zeros(instance.n, np.int64)
    order = np.argsort(batch_of, kind="stable")
    now = 0
    for members in np.split(order, np.flatnonzero(np.diff(batch_of[order])) + 1):
        if len(members):
            now = max(now, int(instance.arrival[members].max()))
            start[members] = now
            now += int(instance.output[members].max())
    return start


def _better(instance: Instance, batch_of: IntArray, stats: dict[str, Any]) -> Proposal:
    return better(instance, batch_serial(instance, batch_of), np.lexsort((instance.volume, batch_of)), stats)


def better(instance: Instance, serial: IntArray, order: IntArray, stats: dict[str, Any]) -> Proposal:
    """Return the best of a serial schedule, given by its starts, and the order packed in the three ways."""
    data = (order, instance.prompt, instance.output, instance.arrival, instance.memory)
    forms = {
        "serial": serial,
        "strict": pack_strict(*data),
        "skip": pack_skip(*data),
        "pack": pack_serial(*data),
    }
    form = min(forms, key=lambda name: exact_sum(forms[name]))
    return Proposal(forms[form], stats={**stats, "form": form})


def rate_batches(instance: Instance) -> IntArray:
    """Return the batch number of each request (n,): batch k minimises (longest output)/size among what is left.

    For a duration D the best set is the longest prefix of smallest peaks among outputs up to D whose peaks sum to at
    most the memory, so whatever a batch takes from one output value is a prefix in peak order. Each batch is one sweep
    over the distinct outputs with a heap of the chosen peaks: `O(distinct outputs + chosen log chosen)`.
    """
    order = np.lexsort((instance.prompt, instance.output))
    values, first = np.unique(instance.output[order], return_index=True)
    batch_of = np.empty(instance.n, np.int64)
    if instance.n:
        ends = np.append(first[1:], instance.n).astype(np.int64)
        batch_of[order] = _rate_batches(instance.peak[order], values, first.astype(np.int64), ends, instance.memory)
    return batch_of


@compiled
def _rate_batches(peak: IntArray, values: IntArray, pointer: IntArray, ends: IntArray, memory: int) -> IntArray:
    """Partition requests sorted by (output, peak); `pointer[b] .. ends[b]-1` are those left with output `values[b]`."""
    n, classes = len(peak), len(values)
    batch_of = np.empty(n, np.int64)
    taken = np.zeros(classes, np.int64)
    done, number, most, lowest = 0, 0, n, 0
    while done < n:
        while pointer[lowest] == ends[lowest]:
            lowest += 1
        best_class, best_size = -1, np.int64(0)
        for sweep in range(2):  # first find the best duration, then repeat up to it and take the set
            heap = [np.int64(0)]
            heap.pop()
            total = np.int64(0)
            last = classes if sweep == 0 else best_class + 1
            whole = sweep == 0
            for b in range(lowest, last):
                if sweep == 0 and best_size > 0 and values[b] * best_size > values[best_class] * most:
                    whole = False
                    break  # even the largest possible set cannot make up for this duration
                for at in range(pointer[b], ends[b]):
                    p = peak[at]
                    if total + p > memory:
                        if len(heap) == 0 or -(heap[0] >> 31) <= p:
                            break
                        worst = heapq.heappop(heap)
                        total += worst >> 31
                        taken[worst & 0x7FFFFFFF] -= 1
                    heapq.heappush(heap, (-p << 31) | b)
                    total += p
                    taken[b] += 1
                size = len(heap)
                if size > 0 and (best_size == 0 or values[b] * best_size < values[best_class] * size):
                    best_class, best_size = b, np.int64(size)
            if sweep == 0:
                if whole:
                    most = max(len(heap), 1)
                for b in range(lowest, classes):
                    taken[b] = 0
        for b in range(lowest, best_class + 1):
            for at in range(pointer[b], pointer[b] + taken[b]):
                batch_of[at] = number
            pointer[b] += taken[b]
            done += taken[b]
            taken[b] = 0
        number += 1
    return batch_of
