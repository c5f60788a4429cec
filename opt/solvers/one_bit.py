"""Smallest volume first when one bit is known of each output: short or long. Starts never peek at more."""

from __future__ import annotations

import heapq
from math import isqrt

import numpy as np

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Proposal
from opt.solvers.ledger import FAR, advance, earliest, new_profile, occupy
from opt.solvers.staggered import queues

__all__ = ["one_bit"]


def one_bit(
    instance: Instance, *, seed: int = 0, time_limit: float | None = None, threshold: int | None = None, cap: int | None = None
) -> Proposal:
    """Return smallest volume first when one bit is known of each output: short or long.

    Args:
        instance: the requests; arrivals are respected.
        seed, time_limit: unused; the method is deterministic and near-linear.
        threshold: outputs up to it are short, in tokens; by default the geometric mean of the median and the cap, which
            leaves both kinds about the same factor between what is typical and what must be reserved.
        cap: a bound on every output that is known beforehand, in tokens; by default the largest output there is.

    Short requests go before long ones, each kind by prompt: with one output standing for all of a kind, that is the order
    of volumes (the one-bit variant of Kong, Qi, Ye, Zhou, arXiv 2606.22327; the admission rule is our reading). Head of
    line: a request starts once it fits for its whole life beside everybody running, where each counts as if it were to
    reach the upper bound of its kind (`threshold` or `cap`, never above its `max_output` or what the memory allows). One
    that ends earlier frees its share at that moment, not before: a start depends on the outputs of those that have ended,
    and of no others. So memory never overflows; no factor is claimed. With long tails most memory is reserved in vain.

    Raises:
        ValueError: the threshold is no integer from 1 on, or the cap none that bounds every output.
    """
    largest = int(instance.output.max(initial=1))
    known = largest if cap is None else cap
    if type(known) is not int or known < largest:
        raise ValueError(f"cap = {cap!r}: must be a number of tokens no output exceeds, at least {largest}")
    known = min(known, instance.memory)
    median = int(np.sort(instance.output)[(instance.n - 1) // 2]) if instance.n else 1
    bar = isqrt(median * known) if threshold is None else threshold
    if type(bar) is not int or bar < 1:
        raise ValueError(f"threshold = {bar!r}: must be a number of tokens, at least 1")
    short = instance.output <= (bar := min(bar, known))
    most = np.minimum(np.where(short, bar, known), instance.memory - instance.prompt)
    if instance.max_output is not None:
        most = np.where(instance.max_output >= 0, np.minimum(most, instance.max_output), most)
    order = np.lexsort((instance.arrival, instance.prompt, ~short))
    start = _guarded(*queues(instance, order), instance.prompt, instance.output, most, instance.arrival, instance.memory)
    return Proposal(start, stats={"threshold": bar, "cap": known, "short": int(short.sum()), "factor": None})


@compiled
def _guarded(
    order: IntArray,
    rank: IntArray,
    by_arrival: IntArray,
    prompt: IntArray,
    output: IntArray,
    most: IntArray,
    arrival: IntArray,
    memory: int,
) -> IntArray:
    """Head of line with look-ahead on `most` >= output; what a request held in the profile is returned when it ends."""
    n = len(order)
    start = np.zeros(n, np.int64)
    times, usage, count, after = new_profile(n)
    queue = [np.int64(0)]
    queue.pop()
    ending = [(np.int64(0), np.int64(0))]
    ending.pop()
    point, used, arrived = np.int64(0), np.int64(1), 0
    t = np.int64(0)
    while arrived < n or len(queue) > 0:
        if len(queue) == 0:
            t = max(t, arrival[by_arrival[arrived]])
        while arrived < n and arrival[by_arrival[arrived]] <= t:
            heapq.heappush(queue, rank[by_arrival[arrived]])
            arrived += 1
        while len(ending) > 0 and ending[0][0] <= t:
            end, i = heapq.heappop(ending)
            point = advance(times, after, point, end)
            _vacate(times, usage, count, after, point, start[i], prompt[i], start[i] + most[i])
        i = order[queue[0]]
        point = advance(times, after, point, t)
        begin = earliest(times, usage, count, after, after[point], t, prompt[i], most[i], memory, FAR)
        event = arrival[by_arrival[arrived]] if arrived < n else FAR
        if len(ending) > 0:
            event = min(event, ending[0][0])
        if event <= begin:
            t = event
            continue
        t = begin
        point = advance(times, after, point, t)
        used = occupy(times, usage, count, after, point, used, t, prompt[i], most[i])
        start[i] = t
        heapq.heappush(ending, (t + output[i], i))
        heapq.heappop(queue)
    return start


@compiled
def _vacate(times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, begun: int, s: int, end: int) -> None:
    """Take a request begun at `begun` out of the profile behind k, and its end with it when nobody else ends there."""
    before = k
    while after[k] >= 0 and times[after[k]] <= end:
        before, k = k, after[k]
        usage[k] -= s + times[k] - begun
        count[k] -= 1
    if k != before and count[k] == (count[after[k]] if after[k] >= 0 else 0):
        after[before] = after[k]
