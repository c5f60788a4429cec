"""Serial earliest fit (the suffix `-pack`): place one request after another, each where it fits first.

Time is cut into buckets. The profile only fills up, so a bucket in which (s, o) found no start has none for any larger
or equal prompt and output, ever. For each grade of outputs one tournament tree keeps the least prompt every bucket
has refused, and the search jumps from one bucket that may still be open to the next. That makes a million requests
a matter of seconds where a scan of the past is quadratic.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, advance, earliest, new_profile, occupy, split

__all__ = ["pack_serial"]

NEVER = np.int32(2**31 - 1)  # above every prompt
GRADES = 192  # of outputs, at most: more make refusals sharper, and the table larger
BUCKET = 32  # requests for each bucket of time, about


def _grades(output: IntArray) -> tuple[IntArray, IntArray]:
    """Return the least output of each grade, and the grade of each request: exact, or quantiles of many outputs."""
    values = np.unique(output)
    if len(values) > GRADES:
        values = np.unique(np.concatenate([values[:1], np.sort(output)[:: -(-len(output) // GRADES)]]))
    return values, np.searchsorted(values, output, side="right") - 1


@compiled
def _first_open(refused: npt.NDArray[np.int32], bucket: int, s: int) -> int:
    """Return the first bucket from `bucket` on that has not refused prompt s; the last bucket never has."""
    size = len(refused) // 2
    node = bucket + size
    while refused[node] <= s:
        while node & 1:
            node >>= 1
        node += 1  # the subtree to the right
    while node < size:
        node *= 2
        if refused[node] <= s:
            node += 1
    return node - size


@compiled
def _refuse(refused: npt.NDArray[np.int32], grade: int, bucket: int, s: int) -> None:
    """Record that no request of prompt >= s and output of `grade` or above can start in the bucket."""
    size = refused.shape[1] // 2
    for row in range(grade, len(refused)):
        node = bucket + size
        if refused[row, node] <= s:
            return
        refused[row, node] = s
        node >>= 1
        while node >= 1:
            refused[row, node] = max(refused[row, 2 * node], refused[row, 2 * node + 1])
            node >>= 1


@compiled
def _least_refused(
    times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, t: int, s: int, o: int, memory: int, cutoff: int
) -> int:
    """Return the least prompt up to s that, with output o, cannot start in t .. cutoff-1, or s + 1 if s itself can."""
    low, high = -1, s + 1
    while high - low > 1:
        middle = (low + high) // 2
        if earliest(times, usage, count, after, k, t, middle, o, memory, cutoff) < cutoff:
            low = middle
        else:
            high = middle
    return high


@compiled
def _double_width(refused: npt.NDArray[np.int32], hints: IntArray) -> None:
    """Merge buckets in pairs: a pair has refused what both halves have."""
    size = refused.shape[1] // 2
    hints[1:] = -1
    for row in range(len(refused)):
        for bucket in range(size):
            node = size + 2 * bucket
            refused[row, size + bucket] = max(refused[row, node], refused[row, node + 1]) if 2 * bucket < size else NEVER
        for node in range(size - 1, 0, -1):
            refused[row, node] = max(refused[row, 2 * node], refused[row, 2 * node + 1])


@compiled
def _locate(times: IntArray, after: IntArray, hints: IntArray, width: int, t: int) -> int:
    """Return the last break point at or before t; `hints[b]` is some break point at or before round `b * width`."""
    bucket = min(t // width, len(hints) - 1)
    filled = bucket
    while hints[filled] < 0:
        filled -= 1
    k = advance(times, after, hints[filled], bucket * width)
    hints[bucket] = k
    return advance(times, after, k, t)


def pack_serial(order: IntArray, prompt: IntArray, output: IntArray, arrival: IntArray, memory: int) -> IntArray:
    """Return serial earliest-fit starts: each request of `order` in turn goes to its earliest fit beside all before it.

    `order` lists the requests from first to last; nobody starts before its arrival.
    """
    buckets = 1 << max(len(order) // BUCKET - 1, 0).bit_length()
    least, grade = _grades(output)
    refused = np.full((max(len(least), 1), 2 * buckets), NEVER, np.int32)
    return _serial(order, prompt, output, arrival, memory, least, grade, refused)


@compiled
def _serial(
    order: IntArray,
    prompt: IntArray,
    output: IntArray,
    arrival: IntArray,
    memory: int,
    grade_least: IntArray,
    grade_of: IntArray,
    refused: npt.NDArray[np.int32],
) -> IntArray:
    n = len(order)
    start = np.zeros(n, np.int64)
    times, usage, count, after = new_profile(2 * n)
    size = refused.shape[1] // 2
    hints = np.full(size, -1, np.int64)
    hints[0] = 0
    width, used = np.int64(1), np.int64(1)
    for k in range(n):
        i = order[k]
        s, o, t = prompt[i], output[i], arrival[i]
        grade = grade_of[i]
        if k > 0 and prompt[order[k - 1]] <= s and output[order[k - 1]] <= o and arrival[order[k - 1]] <= t:
            t = max(t, start[order[k - 1]])  # whoever is no smaller and no earlier than the one before cannot start before it
        while True:
            bucket = min(t // width, size - 1)
            free = _first_open(refused[grade], bucket, s)
            if free > bucket:
                t, bucket = free * width, free
            last = bucket == size - 1
            point = _locate(times, after, hints, width, t)
            cutoff = FAR if last else (bucket + 1) * width
            begin = earliest(times, usage, count, after, after[point], t, s, o, memory, cutoff)
            if begin < cutoff:
                break
            if arrival[i] <= bucket * width:  # the whole bucket is refused, whichever part was searched last
                point = _locate(times, after, hints, width, bucket * width)
                first = after[point]
                least = _least_refused(times, usage, count, after, first, bucket * width, s, grade_least[grade], memory, cutoff)
                if least <= s:
                    _refuse(refused, grade, bucket, least)
                else:
                    _refuse(refused, grade + 1, bucket, s)
            t = begin
        t = begin
        start[i] = t
        while t // width >= size > 1:
            width *= 2
            _double_width(refused, hints)
        point = _locate(times, after, hints, width, t)
        if times[point] < t:
            used = split(times, usage, count, after, point, used, t)
            point = after[point]
        used = occupy(times, usage, count, after, point, used, t, s, o)
    return start
