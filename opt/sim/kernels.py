"""Compiled loops of the engine: equal steps in a row, the tokens of chunks, who is done."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.formula import iteration_seconds
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, earliest

__all__ = [
    "drop",
    "finish_chunks",
    "first_start",
    "largest_chunk",
    "match_all",
    "ready",
    "repeats",
    "reserve_all",
    "retire",
    "run_steps",
    "unfinished",
]


@compiled
def ready(running: IntArray, prompt: IntArray, computed: IntArray, produced: IntArray) -> IntArray:
    """Return the running requests, in order, whose next step makes one token out of one token: the decodes."""
    found = np.empty(len(running), np.int64)
    size = 0
    for i in running:
        if produced[i] > 0 and prompt[i] + produced[i] - computed[i] == 1:
            found[size] = i
            size += 1
    return found[:size]


@compiled
def unfinished(running: IntArray, prompt: IntArray, computed: IntArray, produced: IntArray) -> IntArray:
    """Return the others, in order: those whose prompt, or what was lost of it, is not computed yet."""
    found = np.empty(len(running), np.int64)
    size = 0
    for i in running:
        if produced[i] == 0 or prompt[i] + produced[i] - computed[i] > 1:
            found[size] = i
            size += 1
    return found[:size]


@compiled
def reserve_all(members: IntArray, computed: IntArray, blocks: IntArray, block: int, spare: int, room: int) -> int:
    """Give every member the blocks for one more token and `spare` ones, and return how many; -1 if `room` is less."""
    more = 0
    for i in members:
        more += max(0, -(-(computed[i] + 1 + spare) // block) - blocks[i])
    if more > room:
        return -1
    if more > 0:
        for i in members:
            blocks[i] = max(blocks[i], -(-(computed[i] + 1 + spare) // block))
    return more


@compiled
def run_steps(
    c: FloatArray,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_sequences: float,
    prefill_context: float,
    repeated_kv: float,
    members: IntArray,
    computed: IntArray,
    produced: IntArray,
    goal: IntArray,
    last_s: FloatArray,
    max_gap_s: FloatArray,
    blocks: IntArray,
    block: int,
    spare: int,
    room: int,
    now: float,
    host_s: float,
    until: float,
    limit: int,
    durations: FloatArray,
    gaps: FloatArray,
) -> tuple[int, float, int, int]:
    """Run one step, and equal ones after it while nothing changes; return (steps, time, blocks taken, KV tokens at first).

    Every member makes a token in each step. The first step has its blocks already; a further one is run when it starts
    before `until`, its blocks are among the `room` left, nobody is done, and fewer than `limit` have run. `durations`
    receives the seconds of each step, `gaps` those between each member's first token here and the one before.
    """
    size = len(members)
    kv = 0
    for i in members:
        kv += computed[i] + 1
    first_kv = kv
    steps, taken = 0, 0
    while True:
        if steps > 0:
            if now >= until or steps >= limit:
                break
            more = 0
            for i in members:
                if -(-(computed[i] + 1 + spare) // block) > blocks[i]:
                    more += 1
            if taken + more > room:
                break
            if more > 0:
                for i in members:
                    blocks[i] = max(blocks[i], -(-(computed[i] + 1 + spare) // block))
                taken += more
        spent = host_s + iteration_seconds(
            c, prefill_tokens, prefill_pairs, prefill_sequences, prefill_context, float(size), float(kv), repeated_kv
        )
        now += spent
        durations[steps] = spent
        done = size == 0
        for k in range(size):
            i = members[k]
            gap = spent
            if steps == 0:
                gap = now - last_s[i]
                gaps[k] = gap
            if gap > max_gap_s[i]:
                max_gap_s[i] = gap
            computed[i] += 1
            produced[i] += 1
            last_s[i] = now
            if produced[i] >= goal[i]:
                done = True
        steps += 1
        kv += size
        if done:
            break
    return steps, now, taken, first_kv


@compiled
def finish_chunks(
    chunks: IntArray,
    end: float,
    prompt: IntArray,
    computed: IntArray,
    produced: IntArray,
    reached: IntArray,
    first_s: FloatArray,
    last_s: FloatArray,
    max_gap_s: FloatArray,
    gaps: FloatArray,
) -> tuple[int, int, int]:
    """Add chunks (m, 3: request, context, tokens) to what is computed; a completed one makes a token.

    Return the number of gaps written, tokens made, and tokens computed that had been computed before.
    """
    count, made, again = 0, 0, 0
    for k in range(len(chunks)):
        i = chunks[k, 0]
        again += max(0, min(reached[i], chunks[k, 1] + chunks[k, 2]) - chunks[k, 1])
        computed[i] += chunks[k, 2]
        if computed[i] < prompt[i] + produced[i]:
            continue
        produced[i] += 1
        made += 1
        if produced[i] == 1:
            first_s[i] = end
        else:
            gap = end - last_s[i]
            gaps[count] = gap
            count += 1
            if gap > max_gap_s[i]:
                max_gap_s[i] = gap
        last_s[i] = end
    return count, made, again


@compiled
def retire(running: IntArray, count: int, produced: IntArray, goal: IntArray) -> tuple[int, IntArray]:
    """Take those who have made all their tokens out of the running list, in order; return its new length and them."""
    done = np.empty(count, np.int64)
    kept, gone = 0, 0
    for k in range(count):
        i = running[k]
        if produced[i] >= goal[i]:
            done[gone] = i
            gone += 1
        else:
            running[kept] = i
            kept += 1
    return kept, done[:gone]


@compiled
def drop(running: IntArray, count: int, who: int) -> int:
    """Take one request out of the running list, keeping the order; return the new length."""
    kept = 0
    for k in range(count):
        if running[k] != who:
            running[kept] = running[k]
            kept += 1
    return kept


@compiled
def first_start(
    times: IntArray, usage: IntArray, count: IntArray, after: IntArray, held: IntArray, left: IntArray, memory: int
) -> tuple[int, int]:
    """Return the place of the first candidate that fits the profile from now on and 0, or (-1, steps until one does).

    The profile is that of `opt.solvers.ledger`, without a sentinel; candidates hold `held` tokens and make `left` more.
    """
    soonest = FAR
    begin = -1 if len(times) == 0 else 0
    for k in range(len(held)):
        steps = earliest(times, usage, count, after, np.int64(begin), np.int64(0), held[k], left[k], memory, FAR)
        if steps == 0:
            return k, np.int64(0)
        soonest = min(soonest, steps)
    return -1, soonest


@compiled
def match_all(who: IntArray, names: IntArray, starts: IntArray, present: npt.NDArray[np.bool_]) -> IntArray:
    """Return how many leading prompt units of each request are in memory."""
    found = np.zeros(len(who), np.int64)
    for k in range(len(who)):
        at = starts[who[k]]
        while at < starts[who[k] + 1] and present[names[at]]:
            at += 1
        found[k] = at - starts[who[k]]
    return found


@compiled
def repeats(members: IntArray, names: IntArray, starts: IntArray, linked: IntArray, stamp: IntArray) -> int:
    """Return how often a unit held by a member is one that an earlier member holds; `stamp` is scratch, its end a clock."""
    stamp[-1] += 1
    again = 0
    for i in members:
        for at in range(starts[i], starts[i] + linked[i]):
            if stamp[names[at]] == stamp[-1]:
                again += 1
            stamp[names[at]] = stamp[-1]
    return again


@compiled
def largest_chunk(
    c: FloatArray,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_sequences: float,
    prefill_context: float,
    decodes: float,
    kv_tokens: float,
    repeated_kv: float,
    context: int,
    most: int,
    limit_s: float,
) -> int:
    """Return the most tokens up to `most`, after `context` cached ones, with which the step stays within `limit_s`; 0: none.

    Time never falls as a chunk grows, so halving finds it.
    """
    low, high = 0, most
    while low < high:
        size = (low + high + 1) // 2
        spent = iteration_seconds(
            c,
            prefill_tokens + size,
            prefill_pairs + size * float(context) + 0.5 * size * (size + 1.0),
            prefill_sequences + 1.0,
            prefill_context + context,
            decodes,
            kv_tokens,
            repeated_kv,
        )
        if spent <= limit_s:
            low = size
        else:
            high = size - 1
    return low
