"""Compiled loops of the cluster: a queue replayed, a prompt in chunks beside decodes, the largest chunk in closed form.

A step is given as `load` (7,), the fields of `opt.core.cost.Load`; `host` (2,) are the engine's seconds for a step and for
each request in it.
"""

from __future__ import annotations

import math

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.formula import iteration_seconds
from opt.core.cost.layout import (
    EXPONENT,
    FIRST_KNOT,
    FLOOR,
    KNOTS,
    MIX_PER_TOKEN,
    PER_PAIR,
    PER_PREFILL_TOKEN,
    PER_TOKEN,
)
from opt.core.jit import compiled

__all__ = ["LADDER", "alone_s", "chunked_s", "largest_chunk", "prompt_s", "quickest_s", "replay", "step_s"]

LADDER = np.array([2048, 1024, 512, 256, 128], np.int64)  # the chunks that Kairos tries


@compiled
def step_s(c: FloatArray, host: FloatArray, load: FloatArray, context: float, tokens: float) -> float:
    """Return the seconds of a step with a further chunk of `tokens` after `context` cached ones; 0 tokens: none."""
    if tokens <= 0:
        work = iteration_seconds(c, load[0], load[1], load[2], load[3], load[4], load[5], load[6])
        return float(work + host[0] + host[1] * (load[2] + load[4]))
    pairs = load[1] + tokens * context + tokens * (tokens + 1.0) / 2.0
    work = iteration_seconds(c, load[0] + tokens, pairs, load[2] + 1.0, load[3] + context, load[4], load[5], load[6])
    return float(work + host[0] + host[1] * (load[2] + load[4] + 1.0))


@compiled
def _root(a: float, b: float, slack: float) -> float:
    """Return the largest x with a x^2 + b x <= slack, for a, b >= 0; infinity if there is no limit."""
    if slack < 0.0:
        return -1.0
    if a == 0.0:
        return slack / b if b > 0.0 else math.inf
    return 2.0 * slack / (b + math.sqrt(b * b + 4.0 * a * slack))


@compiled
def largest_chunk(c: FloatArray, host: FloatArray, load: FloatArray, context: float, most: int, limit_s: float) -> int:
    """Return the most tokens, up to `most`, with which the step takes at most `limit_s`; 0 if even one is too many.

    A step's time is, on every piece of the dense term, a quadratic a x^2 + b x + rest in the chunk x, with a half the price
    of an attention pair: so the answer is a root, and one comparison with the model itself settles rounding. A `p-norm`
    model has no such pieces and is bisected.
    """
    if most <= 0 or step_s(c, host, load, context, 1.0) > limit_s:
        return np.int64(0)
    if step_s(c, host, load, context, float(most)) <= limit_s:
        return np.int64(most)
    before = load[0] + load[4]
    a = c[PER_PAIR] / 2.0
    b = c[PER_PREFILL_TOKEN] + c[PER_PAIR] * (context + 0.5) + (c[MIX_PER_TOKEN] if load[4] > 0 else 0.0)
    knots = int(c[KNOTS])
    low, slope = 1.0, c[PER_TOKEN]
    if knots > 0:
        k = 1
        while k < knots - 1 and (
            c[FIRST_KNOT + k] <= before + 1.0 or step_s(c, host, load, context, c[FIRST_KNOT + k] - before) <= limit_s
        ):
            k += 1
        at = FIRST_KNOT + k
        slope = (c[at + knots] - c[at + knots - 1]) / (c[at] - c[at - 1])
        low = max(1.0, c[at - 1] - before)
    elif c[EXPONENT] == 0.0:
        low = max(1.0, c[FLOOR] / c[PER_TOKEN] - before) if c[PER_TOKEN] > 0 else 1.0
        if step_s(c, host, load, context, low) > limit_s:  # the limit lies on the floor, where tokens cost nothing
            low, slope = 1.0, 0.0
    elif c[EXPONENT] != 1.0:
        return _bisected(c, host, load, context, most, limit_s)
    # From `low` on: a (low + y)^2 + (b + slope)(low + y) - the same at low <= what is left.
    left = limit_s - step_s(c, host, load, context, low)
    found = np.int64(min(float(most), max(1.0, math.floor(low + _root(a, b + slope + 2.0 * a * low, left)))))
    while found > 1 and step_s(c, host, load, context, float(found)) > limit_s:
        found -= 1
    while found < most and step_s(c, host, load, context, float(found + 1)) <= limit_s:
        found += 1
    return found


@compiled
def _bisected(c: FloatArray, host: FloatArray, load: FloatArray, context: float, most: int, limit_s: float) -> int:
    low, high = np.int64(1), np.int64(most)
    while high - low > 1:
        middle = (low + high) // 2
        if step_s(c, host, load, context, float(middle)) <= limit_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def replay(c: FloatArray, host: FloatArray, sizes: IntArray, contexts: IntArray, budget: int) -> FloatArray:
    """Return when each prompt of a queue is done, seconds from now, served in order, `budget` tokens a step.

    It is what the engine does: a step that a prompt does not fill takes from the next one.
    """
    done = np.zeros(len(sizes))
    now, at, taken = 0.0, 0, np.int64(0)
    while at < len(sizes):
        load = np.zeros(7)
        room, first = budget, at
        while at < len(sizes) and room > 0:
            size = min(room, sizes[at] - taken)
            context = float(contexts[at] + taken)
            load[0] += size
            load[1] += size * context + size * (size + 1.0) / 2.0
            load[2] += 1.0
            load[3] += context
            room -= size
            taken += size
            if taken < sizes[at]:
                break
            at += 1
            taken = np.int64(0)
        now += step_s(c, host, load, 0.0, 0.0)
        for k in range(first, at):
            done[k] = now
    return done


@compiled
def prompt_s(c: FloatArray, host: FloatArray, tokens: int, context: int, budget: int) -> float:
    """Return the seconds of a prompt alone, `context` tokens of it cached, `budget` tokens a step."""
    load = np.zeros(7)
    spent, done = 0.0, np.int64(0)
    while done < tokens:
        size = min(np.int64(budget), tokens - done)
        spent += step_s(c, host, load, float(context + done), float(size))
        done += size
    return spent


@compiled
def alone_s(c: FloatArray, host: FloatArray, prompts: IntArray, budget: int) -> FloatArray:
    """Return the seconds of each prompt alone, nothing cached."""
    spent = np.zeros(len(prompts))
    for k in range(len(prompts)):
        spent[k] = prompt_s(c, host, prompts[k], np.int64(0), budget)
    return spent


@compiled
def chunked_s(
    c: FloatArray,
    host: FloatArray,
    decodes: float,
    kv: float,
    limit_s: float,
    context: int,
    tokens: int,
    budget: int,
    ladder: bool,
) -> float:
    """Return the seconds in which a prompt is computed beside decodes, every step within `limit_s`; infinity if it cannot be.

    At every step the largest chunk that fits: any size, or with `ladder` the largest of `LADDER`.
    """
    load = np.zeros(7)
    load[4], load[5] = decodes, kv
    spent, done = 0.0, np.int64(0)
    while done < tokens:
        most = min(np.int64(budget) - np.int64(decodes), tokens - done)
        if decodes <= 0:
            size = most
        elif ladder:
            size = np.int64(0)
            for rung in LADDER:
                if step_s(c, host, load, float(context + done), float(min(rung, most))) <= limit_s:
                    size = min(rung, most)
                    break
        else:
            size = largest_chunk(c, host, load, float(context + done), most, limit_s)
        if size <= 0:
            return np.inf
        spent += step_s(c, host, load, float(context + done), float(size))
        done += size
        load[5] += decodes
    return spent


@compiled
def quickest_s(c: FloatArray, host: FloatArray, decodes: float, kv: float, limit_s: float, tokens: int, grain: int) -> float:
    """Return the least seconds in which a prompt can be computed beside decodes that stay as they are.

    A dynamic program over multiples of `grain` tokens: every chunk of such a size with which the step stays within `limit_s`
    is tried. Taking the largest chunk is not always best: kernels jump at some sizes.
    """
    load = np.zeros(7)
    load[4], load[5] = decodes, kv
    places = -(-tokens // grain)
    best = np.full(places + 1, np.inf)
    best[0] = 0.0
    for at in range(places):
        if best[at] == np.inf:
            continue
        context = float(at * grain)
        for to in range(at + 1, places + 1):
            spent = step_s(c, host, load, context, float(min(to * grain, tokens)) - context)
            if decodes > 0 and spent > limit_s:
                break
            best[to] = min(best[to], best[at] + spent)
    return float(best[places])
