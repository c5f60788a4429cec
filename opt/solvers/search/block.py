"""The rest of a plan as one rigid block: its memory profile, and the earliest shift at which it fits on another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR
from opt.solvers.search.plan import Plan, Requests, first_after

__all__ = ["Block", "Profile", "block_profile", "least_delay", "overlay"]


class Profile(NamedTuple):
    """A memory profile as in `opt.solvers.ledger`: break points in a linked list, the first of them a sentinel."""

    times: IntArray
    usage: IntArray
    count: IntArray
    after: IntArray


class Block(NamedTuple):
    """A memory profile in arrays: the segment that ends at `times[k]` holds `usage[k]` then, and grew by `count[k]` a round."""

    times: IntArray
    usage: IntArray
    count: IntArray


@compiled
def block_profile(
    plan: Plan, requests: Requests, out: npt.NDArray[np.bool_], first: int, until: int, most: int, block: Block
) -> tuple[int, bool]:
    """Write the profile of the requests from place `first` on that are not `out`, up to round `until` or `most` segments.

    Return the number of segments and whether that was all of it. The first segment is empty and ends at the first start.
    """
    start, order, place, by_finish = plan.start, plan.order, plan.place, plan.by_finish
    prompt, output = requests.prompt, requests.output
    n = len(order)
    while first < n and out[order[first]]:
        first += 1
    if first == n:
        return np.int64(0), True
    begins, size = start[order[first]], np.int64(0)
    ends = first_after(plan, output, begins)
    level, active = np.int64(0), np.int64(0)
    k = first
    while True:
        while k < n and out[order[k]]:
            k += 1
        while ends < n and (place[by_finish[ends]] < first or out[by_finish[ends]]):
            ends += 1
        if k == n and ends == n:
            return size, True
        t = FAR
        if k < n:
            t = start[order[k]]
        if ends < n:
            t = min(t, start[by_finish[ends]] + output[by_finish[ends]])
        if size == most or (size > 0 and block.times[size - 1] >= until):
            return size, False
        block.times[size], block.usage[size], block.count[size] = t, level + active * t, active
        size += 1
        while ends < n and start[by_finish[ends]] + output[by_finish[ends]] == t:
            i = by_finish[ends]
            if place[i] >= first and not out[i]:
                level -= prompt[i] - start[i]
                active -= 1
            ends += 1
        while k < n and start[order[k]] == t:
            i = order[k]
            if not out[i]:
                level += prompt[i] - start[i]
                active += 1
            k += 1


@compiled
def least_delay(profile: Profile, block: Block, size: int, delay: int, memory: int) -> int:
    """Return the least delay, from `delay` on, at which the block fits on the profile. (It may be negative.)

    Both are piecewise linear, so only break points count. Where the sum is too high at a break point of the profile, the
    block must be delayed until it is small enough there or has a segment less; at one of its own, until the profile's
    segment is over, because within it the profile only grows.
    """
    times, usage, count, after = profile
    again = True
    while again:
        again = False
        k, b = after[0], 1
        while k >= 0 and times[k] <= block.times[0] + delay:
            k = after[k]
        while k >= 0 and b < size:
            end, mine = times[k], block.times[b] + delay
            if end <= mine:
                over = usage[k] + block.usage[b] - block.count[b] * (mine - end) - memory
                if over > 0:
                    step = end - (block.times[b - 1] + delay)
                    if block.count[b] > 0:
                        step = min(step, -((-over) // block.count[b]))
                    delay += step
                    again = True
                    break
                if end == mine:
                    b += 1
                k = after[k]
            else:
                over = usage[k] - count[k] * (end - mine) + block.usage[b] - memory
                if over > 0:
                    delay += end - mine + 1
                    again = True
                    break
                b += 1
    return delay


@compiled
def overlay(profile: Profile, used: int, block: Block, size: int, delay: int) -> int:
    """Add the delayed block to the profile; return the break points used."""
    times, usage, count, after = profile
    k = np.int64(0)
    for b in range(size):
        mine = block.times[b] + delay
        while after[k] >= 0 and times[after[k]] < mine:
            k = after[k]
            if b > 0:
                usage[k] += block.usage[b] - block.count[b] * (mine - times[k])
                count[k] += block.count[b]
        end = after[k]
        if end >= 0 and times[end] == mine:
            k = end
            usage[k] += block.usage[b]
            count[k] += block.count[b]
        elif mine > times[k]:
            times[used], usage[used], count[used] = mine, block.usage[b], block.count[b]
            after[used] = end
            if end >= 0:
                usage[used] += usage[end] - count[end] * (times[end] - mine)
                count[used] += count[end]
            after[k] = used
            k = used
            used += 1
    return used
