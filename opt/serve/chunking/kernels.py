"""Compiled loops of chunking: the largest chunk in a time, the best mix of two steps, the most prompts in time.

A step is given as `load` (7,), the fields of `opt.core.cost.Load`. Its time never falls as a chunk grows, whatever the
model's form, so the largest chunk is found by bisection on the model itself.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.formula import iteration_seconds
from opt.core.jit import compiled

__all__ = ["best_mix", "in_time", "largest_chunk", "seconds_with", "two_steps"]


GAIN = 1.001  # what another mix must prefill more to be preferred


@compiled
def seconds_with(c: FloatArray, load: FloatArray, context: float, tokens: float) -> float:
    """Return the seconds of a step with a further chunk of `tokens` after `context` cached ones; 0 tokens: none."""
    if tokens <= 0:
        return iteration_seconds(c, load[0], load[1], load[2], load[3], load[4], load[5], load[6])
    pairs = tokens * context + tokens * (tokens + 1) / 2
    more = (load[0] + tokens, load[1] + pairs, load[2] + 1, load[3] + context)
    return iteration_seconds(c, more[0], more[1], more[2], more[3], load[4], load[5], load[6])


@compiled
def largest_chunk(c: FloatArray, load: FloatArray, context: int, most: int, limit_s: float) -> int:
    """Return the most tokens, up to `most`, with which the step takes at most `limit_s`; 0 if even one is too many."""
    if most <= 0 or seconds_with(c, load, float(context), 1.0) > limit_s:
        return np.int64(0)
    if seconds_with(c, load, float(context), float(most)) <= limit_s:
        return most
    low, high = np.int64(1), most
    while high - low > 1:
        middle = (low + high) // 2
        if seconds_with(c, load, float(context), float(middle)) <= limit_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def best_mix(sizes: IntArray, seconds: FloatArray, mean_s: float) -> tuple[int, int, float, float]:
    """Return the two steps whose mix prefills most per second at a mean of at most `mean_s` a step.

    Steps prefill `sizes` tokens in `seconds`, rising, the first none. By linear programming a best mix needs two kinds of
    step: the bracket of `mean_s` on the concave hull, or a single kind below it. Return their places (equal for a single
    one), the mean tokens and the mean seconds of a step. Where even the first takes more than `mean_s`, that alone. Of
    mixes that are equal up to `GAIN` the closest to `mean_s` from below is taken: nothing is put off for nothing.
    """
    low, high, tokens, mean = 0, 0, 0.0, seconds[0]
    for back in range(len(sizes)):
        a = len(sizes) - 1 - back
        if seconds[a] > mean_s:
            continue
        if sizes[a] * mean > tokens * seconds[a] * GAIN:
            low, high, tokens, mean = a, a, float(sizes[a]), seconds[a]
        for b in range(a + 1, len(sizes)):
            if seconds[b] <= mean_s:
                continue
            share = (mean_s - seconds[a]) / (seconds[b] - seconds[a])
            mixed = sizes[a] + share * (sizes[b] - sizes[a])
            if mixed * mean > tokens * mean_s * GAIN:
                low, high, tokens, mean = a, b, mixed, mean_s
    return low, high, tokens, mean


@compiled
def two_steps(
    c: FloatArray,
    load: FloatArray,
    context: int,
    most: int,
    sizes: IntArray,
    first_s: float,
    both_s: float,
    gap_s: float,
) -> int:
    """Return the chunk of the first of two steps that together prefill the most, in the least time among equals.

    The first step may take `first_s`, both together `both_s`, the second `gap_s`; it reads one more token of every decode.
    Candidates for the first are the largest that fits and, should they be better, `sizes`.
    """
    following = load.copy()
    following[5] += load[4]
    best, best_tokens, best_s = np.int64(0), np.int64(-1), 0.0
    limit = largest_chunk(c, load, context, most, first_s)
    for k in range(len(sizes) + 1):
        chunk = limit if k == 0 else sizes[k - 1]
        if chunk > limit:
            continue
        spent = seconds_with(c, load, float(context), float(chunk))
        then = largest_chunk(c, following, context + chunk, most - chunk, min(both_s - spent, gap_s))
        total = spent + seconds_with(c, following, float(context + chunk), float(then))
        if chunk + then > best_tokens or (chunk + then == best_tokens and total < best_s * (1 - 1e-9)):
            best, best_tokens, best_s = chunk, chunk + then, total
    return best


@compiled
def in_time(work_s: FloatArray, due_s: FloatArray) -> npt.NDArray[np.bool_]:
    """Return which jobs to do so that the most are done by their due times, one after the other from time 0.

    Jobs come by due time. Moore and Hodgson (1968): whenever one would be late, the longest so far is given up.
    """
    kept = np.ones(len(work_s), np.bool_)
    heap = np.empty(len(work_s), np.int64)  # of those kept, the longest on top
    size, total = 0, 0.0
    for k in range(len(work_s)):
        at = size
        size += 1
        while at > 0 and work_s[heap[(at - 1) // 2]] < work_s[k]:
            heap[at] = heap[(at - 1) // 2]
            at = (at - 1) // 2
        heap[at] = k
        total += work_s[k]
        if total <= due_s[k]:
            continue
        longest = heap[0]
        kept[longest] = False
        total -= work_s[longest]
        size -= 1
        last, at = heap[size], 0
        while 2 * at + 1 < size:
            child = 2 * at + 1
            if child + 1 < size and work_s[heap[child + 1]] > work_s[heap[child]]:
                child += 1
            if work_s[heap[child]] <= work_s[last]:
                break
            heap[at] = heap[child]
            at = child
        heap[at] = last
    return kept
