"""Compiled parts of planning ahead: a rule simulated, an order packed, a plan improved, all beside what already runs.

A *base* is a memory profile (rows: times, usage, count, next; see `opt.solvers.ledger`) that begins now. Requests are
given by what they hold at their start `s` and the rounds `o` they will run. Sorting is by insertion: windows are short,
and sorting compiles slowly.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, advance, earliest, occupy, split

ALLOWANCE = 100  # a plan may be worse than the best by one part in so many

__all__ = ["drawn", "improved", "next_word", "packed", "put", "ranked", "simulated"]


@compiled
def put(times: IntArray, usage: IntArray, count: IntArray, after: IntArray, k: int, used: int, t: int, s: int, o: int) -> int:
    """Add (s, o) started at t, where k is the last break point at or before t; return points used.

    Cells are cleared before they serve, so a profile may be laid out anew in the same arrays.
    """
    for cell in range(used, used + 2):
        usage[cell] = count[cell] = 0
    if times[k] < t:
        used = split(times, usage, count, after, k, used, t)
        k = after[k]
    return occupy(times, usage, count, after, k, used, t, s, o)


@compiled
def _copied(used: int, source: IntArray, target: IntArray) -> None:
    """Copy a profile of `used` points."""
    for row in range(4):
        for cell in range(used):
            target[row, cell] = source[row, cell]


@compiled
def ranked(key: IntArray) -> IntArray:
    """Return the places by key, stably."""
    order = np.arange(len(key))
    for place in range(1, len(key)):
        i, k = order[place], place
        while k > 0 and key[order[k - 1]] > key[i]:
            order[k] = order[k - 1]
            k -= 1
        order[k] = i
    return order


@compiled
def packed(
    order: IntArray,
    release: IntArray,
    s: IntArray,
    o: IntArray,
    memory: int,
    base: IntArray,
    used: int,
    work: IntArray,
    start: IntArray,
    limit: int,
) -> int:
    """Place each of `order` in turn at its earliest fit from its release on; return the sum of starts from now on.

    `start` takes the starts. What returns `limit` has stopped there.
    """
    _copied(used, base, work)
    times, usage, count, after = work[0], work[1], work[2], work[3]
    now, total = times[0], np.int64(0)
    for i in order:
        point = advance(times, after, np.int64(0), release[i])
        begin = earliest(times, usage, count, after, after[point], release[i], s[i], o[i], memory, FAR)
        start[i] = begin
        total += begin - now
        if total >= limit:
            return limit
        point = advance(times, after, point, begin)
        used = put(times, usage, count, after, point, used, begin, s[i], o[i])
    return total


@compiled
def simulated(
    order: IntArray,
    release: IntArray,
    s: IntArray,
    o: IntArray,
    memory: int,
    reach: int,
    depth: int,
    sixteenths: int,
    base: IntArray,
    used: int,
    work: IntArray,
    second: IntArray,
    start: IntArray,
    last: int,
) -> int:
    """Run an admission rule (`opt.solvers.online`) to its end, or up to round `last`; return the sum of `start - release`.

    Args:
        order: the requests by key; who is not released yet is not seen.
        release: when each becomes known; now for those that are there.
        s, o, memory: what they hold at their start, how long they run, and the budget.
        reach, depth, sixteenths: the rule; the last is the pace of `opt.solvers.staggered`, 0 for none.
        base, used: the profile beside which they run, and its points.
        work, second: (4, used + 4 * len(order)) cells to work in; `second` holds the places kept for later.
        start: takes the starts, as far as it goes.
        last: the last round that is simulated.
    """
    _copied(used, base, work)
    t, whole, beat = base[0, 0], base[0, 0], np.float64(base[0, 0])
    point, total, left = np.int64(0), np.int64(0), len(order)
    queue = order.copy()
    profile = work if depth == 0 else second
    while left > 0 and t <= last:
        if depth > 0:
            _copied(used, work, second)
        filled, places = used, np.int64(0)
        wake, passed, kept = FAR, np.int64(0), np.int64(0)
        point = advance(work[0], work[3], point, t)
        for place in range(left):
            i = queue[place]
            begin = release[i]
            if begin <= t and passed > reach:
                begin = FAR
            elif begin <= t:
                first = max(t, whole)
                at = advance(profile[0], profile[3], point, first)
                cutoff = FAR if places < depth else wake
                begin = earliest(
                    profile[0], profile[1], profile[2], profile[3], profile[3][at], first, s[i], o[i], memory, cutoff
                )
                if begin > t:
                    passed += s[i] * o[i] + o[i] * (o[i] + 1) // 2
                    if places < depth:
                        at = advance(profile[0], profile[3], point, begin)
                        filled = put(profile[0], profile[1], profile[2], profile[3], at, filled, begin, s[i], o[i])
                        places += 1
            if begin > t:
                wake = min(wake, begin)
                queue[kept] = i
                kept += 1
                continue
            start[i] = t
            total += t - release[i]
            used = put(work[0], work[1], work[2], work[3], point, used, t, s[i], o[i])
            if depth > 0:
                filled = put(second[0], second[1], second[2], second[3], point, filled, t, s[i], o[i])
            if sixteenths > 0:  # a float only sets the pace; whether a start fits is decided by integers
                volume = np.float64(s[i]) * o[i] + 0.5 * o[i] * (o[i] + 1)
                beat = max(beat, np.float64(t)) + volume * sixteenths / (16 * (memory - s[i] - 0.5 * o[i]))
                whole = np.int64(beat)
        left = kept
        t = wake
    return total


@compiled
def next_word(state: np.uint64) -> np.uint64:
    """Return the next state of a 64-bit linear congruence (Knuth's MMIX); its high half is the draw."""
    return state * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)


@compiled
def drawn(state: np.uint64, below: int) -> int:
    """Return the draw of a state: 0 .. below - 1."""
    return np.int64((state >> np.uint64(33)) % np.uint64(below))


@compiled
def _moved(order: IntArray, a: int, b: int) -> None:
    """Move the a-th to place b; those between make room."""
    i, step = order[a], (1 if a < b else -1)
    for place in range(a, b, step):
        order[place] = order[place + step]
    order[b] = i


@compiled
def improved(
    order: IntArray,
    release: IntArray,
    s: IntArray,
    o: IntArray,
    memory: int,
    base: IntArray,
    used: int,
    work: IntArray,
    start: IntArray,
    value: int,
    moves: int,
    state: np.uint64,
) -> np.uint64:
    """Improve (order, release, start), packed to `value`, by trying `moves` changes in place; return the random state.

    A change moves a request, swaps two, holds one back (until another starts or ends, or a little longer than it is), or lets
    it go again. Record-to-record travel (Dueck 1993): what is little worse than the best so far is kept to go on from, the
    allowance shrinking to nothing.
    """
    m, now, best = len(order), base[0, 0], np.int64(value)
    trial, held, tried = order.copy(), release.copy(), start.copy()
    here, there, begins = order.copy(), release.copy(), start.copy()  # where the search goes on from
    for move in range(moves):
        state = next_word(state)
        a = drawn(state, m)
        state = next_word(state)
        b = drawn(state, m)
        state = next_word(state)
        choice = drawn(state, 16)
        i, j = trial[a], trial[b]
        if choice < 10:
            _moved(trial, a, b)
        elif choice < 12:
            trial[a], trial[b] = j, i
        elif held[i] > now:
            held[i] = now
        elif choice < 15:
            held[i] = max(now, begins[j] + (o[j] if choice == 12 else 0))
        else:
            held[i] = begins[i] + 1 + a % 4
        allowed = best + best * (moves - move) // (ALLOWANCE * moves)
        found = packed(trial, held, s, o, memory, base, used, work, tried, allowed + 1)
        if found <= allowed:
            here[:], there[:], begins[:] = trial, held, tried
            if found <= best:
                best = np.int64(found)
                order[:], release[:], start[:] = trial, held, tried
        else:
            trial[:], held[:] = here, there
    return state
