"""The packer: earliest feasible starts by events, in compiled code.

A *profile* is the memory usage over time, kept at its break points. Between two of them the active set does not
change, so usage grows by `count` tokens a round: in the segment that ends at round `times[k]`, round
`times[k] - d` holds `usage[k] - d * count[k]` tokens. A request `(s, o)` started at `t` adds `s + (r - t)` to every
round `r` of `t+1 .. t+o`. Within a segment the sum only grows, so it fits exactly when it fits at the break points
inside its life and in its own last round. Every such check forbids one interval of starts, the intervals come sorted
by their left ends, and one sweep over the segments yields the earliest start that is left.

Three rules use it, each in `O(log n + segments visited)` a request (`pack_serial` lives in its own module):

* `pack_strict` (head of line): requests start in the given order, the head as soon as it fits beside what is running.
* `pack_skip`: at every round the waiting requests are tried in order and whoever fits starts; a blocked head blocks
  nobody. A tournament tree over (class of output, rank) finds the next start without trying everybody: feasibility
  is monotone, so a subtree whose (least prompt, least output) does not fit holds nobody who fits.
* `pack_serial` (suffix `-pack`): requests are placed one by one, in order, at their earliest fit beside all placed
  before, later starts included.
"""

from __future__ import annotations

import heapq

import numpy as np

from opt.core.columns import IntArray
from opt.core.jit import compiled

__all__ = ["FAR", "advance", "earliest", "new_profile", "occupy", "pack_skip", "pack_strict", "split"]

FAR = np.int64(1) << np.int64(62)  # past every round


@compiled
def earliest(
    times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, t: int, s: int, o: int, memory: int, cutoff: int
) -> int:
    """Return the least start >= t at which (s, o) fits the segments from k on; anything >= cutoff may be inexact."""
    while k >= 0:
        end = times[k]
        if end > t:
            if end >= t + o:  # the request's last round lies in this segment
                if usage[k] - count[k] * (end - t - o) + s + o <= memory:
                    return t
                t = end - o + 1
            ready = usage[k] + s + end - memory  # from this start on, the request is small enough at round `end`
            if t < ready:
                t = min(ready, end)
            if t >= cutoff:
                return t
        k = after[k]
    return t


@compiled
def new_profile(size: int) -> tuple[IntArray, IntArray, IntArray, IntArray]:
    """Return an empty profile with room for `size` break points: times, usage, count and the next one (-1: none).

    Break points form a linked list in time order. The first is a sentinel before round 0.
    """
    times, usage, count = np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64), np.zeros(size + 1, np.int64)
    after = np.full(size + 1, -1, np.int64)
    times[0] = -1
    return times, usage, count, after


@compiled
def advance(times: IntArray, after: IntArray, k: int, t: int) -> int:
    """Return the last break point at or before round t, searching on from k."""
    while after[k] >= 0 and times[after[k]] <= t:
        k = after[k]
    return k


@compiled
def split(times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, used: int, at: int) -> int:
    """Insert a break point at round `at` behind k, in the midst of a segment or past the last; return points used."""
    end = after[k]
    times[used] = at
    after[used] = end
    if end >= 0:
        usage[used] = usage[end] - count[end] * (times[end] - at)
        count[used] = count[end]
    after[k] = used
    return used + 1


@compiled
def occupy(times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, used: int, t: int, s: int, o: int) -> int:
    """Add a request started at t, where k is the last break point at or before t; return points used."""
    end = t + o
    while after[k] >= 0 and times[after[k]] <= end:
        k = after[k]
        usage[k] += s + times[k] - t
        count[k] += 1
    if times[k] < end:
        used = split(times, usage, count, after, k, used, end)
        k = after[k]
        usage[k] += s + o
        count[k] += 1
    return used


def pack_strict(order: IntArray, prompt: IntArray, output: IntArray, arrival: IntArray, memory: int) -> IntArray:
    """Return head-of-line starts: the best-ranked request that has arrived starts as soon as it fits.

    `order` lists the requests from first to last. Who arrives later but ranks better becomes the head at once.
    """
    return _strict(order, _rank(order), np.argsort(arrival, kind="stable"), prompt, output, arrival, memory)


def _rank(order: IntArray) -> IntArray:
    """Return the place of each request in the order. (Sorting stays outside compiled code: it is slow to compile.)"""
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return rank


@compiled
def _strict(
    order: IntArray, rank: IntArray, by_arrival: IntArray, prompt: IntArray, output: IntArray, arrival: IntArray, memory: int
) -> IntArray:
    n = len(order)
    start = np.zeros(n, np.int64)
    times, usage, count, after = new_profile(n)
    queue = [np.int64(0)]
    queue.pop()
    point, used, arrived = np.int64(0), np.int64(1), 0
    t = np.int64(0)
    while arrived < n or len(queue) > 0:
        if len(queue) == 0:
            t = max(t, arrival[by_arrival[arrived]])
        while arrived < n and arrival[by_arrival[arrived]] <= t:
            heapq.heappush(queue, rank[by_arrival[arrived]])
            arrived += 1
        i = order[queue[0]]
        point = advance(times, after, point, t)
        begin = earliest(times, usage, count, after, after[point], t, prompt[i], output[i], memory, FAR)
        if arrived < n and arrival[by_arrival[arrived]] <= begin:
            t = arrival[by_arrival[arrived]]
            continue
        t = begin
        point = advance(times, after, point, t)
        used = occupy(times, usage, count, after, point, used, t, prompt[i], output[i])
        start[i] = t
        heapq.heappop(queue)
    return start


@compiled
def _raise_leaf(least_prompt: IntArray, least_output: IntArray, least_rank: IntArray, node: int, s: int, o: int, r: int) -> None:
    """Set a leaf of the tournament tree and mend its ancestors."""
    least_prompt[node], least_output[node], least_rank[node] = s, o, r
    node >>= 1
    while node >= 1:
        a, b = 2 * node, 2 * node + 1
        least_prompt[node] = min(least_prompt[a], least_prompt[b])
        least_output[node] = min(least_output[a], least_output[b])
        least_rank[node] = min(least_rank[a], least_rank[b])
        node >>= 1


def pack_skip(order: IntArray, prompt: IntArray, output: IntArray, arrival: IntArray, memory: int) -> IntArray:
    """Return the starts when, in every round, each waiting request in `order` starts if it fits beside the running ones."""
    n = len(order)
    size = 1 << max(n - 1, 0).bit_length()
    leaf_of = np.empty(n, np.int64)
    leaf_of[np.lexsort((_rank(order), _classes(output)))] = size + np.arange(n)
    return _skip(order, _rank(order), np.argsort(arrival, kind="stable"), leaf_of, size, prompt, output, arrival, memory)


def _classes(output: IntArray) -> IntArray:
    """Return the class of each output: exact below 16, eight classes an octave above."""
    shift = np.maximum(np.frexp(output.astype(np.float64))[1] - 4, 0)
    return np.asarray(8 * shift + (output >> shift), np.int64)


@compiled
def _skip(
    order: IntArray,
    rank: IntArray,
    by_arrival: IntArray,
    leaf_of: IntArray,
    size: int,
    prompt: IntArray,
    output: IntArray,
    arrival: IntArray,
    memory: int,
) -> IntArray:
    n = len(order)
    start = np.zeros(n, np.int64)
    times, usage, count, after = new_profile(n)
    least_prompt, least_output = np.full(2 * size, FAR), np.full(2 * size, FAR)
    least_rank = np.full(2 * size, FAR)
    stack = np.empty(128, np.int64)
    point, used, arrived, placed = np.int64(0), np.int64(1), 0, 0
    t = np.int64(0)
    while placed < n:
        if placed == arrived:
            t = max(t, arrival[by_arrival[arrived]])
        while arrived < n and arrival[by_arrival[arrived]] <= t:
            i = by_arrival[arrived]
            _raise_leaf(least_prompt, least_output, least_rank, leaf_of[i], prompt[i], output[i], rank[i])
            arrived += 1
        point = advance(times, after, point, t)
        best = arrival[by_arrival[arrived]] if arrived < n else FAR  # a start at the next arrival waits for it
        best_rank = np.int64(-1)
        depth = 1
        stack[0] = 1
        while depth > 0:
            depth -= 1
            node = stack[depth]
            if least_rank[node] == FAR or (best == t and least_rank[node] > best_rank):
                continue
            s, o = least_prompt[node], least_output[node]
            begin = earliest(times, usage, count, after, after[point], t, s, o, memory, best + 1)
            if begin > best or (begin == best and least_rank[node] > best_rank):
                continue
            if node >= size:
                best, best_rank = begin, least_rank[node]
            else:
                stack[depth], stack[depth + 1] = 2 * node + 1, 2 * node
                depth += 2
        if best_rank < 0:
            t = best
            continue
        i = order[best_rank]
        t = best
        point = advance(times, after, point, t)
        used = occupy(times, usage, count, after, point, used, t, prompt[i], output[i])
        start[i] = t
        placed += 1
        _raise_leaf(least_prompt, least_output, least_rank, leaf_of[i], FAR, FAR, FAR)
    return start
