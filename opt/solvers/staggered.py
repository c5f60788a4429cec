"""Holding requests back on purpose: pipelines, pace and window, and the best of them, `staggered`.

Requests that start together peak together. Started evenly spread they interleave: where one peaks the next is
half-way, and about M/(s + o/2) of them share the memory instead of M/(s + o), up to twice as many.

**Pipelines, exactly** (ours; the idea of staggered starts and geometric classes is Feng, Yang, Zhang, arXiv 2601.22996,
whose text was not at hand: what follows is our reading, with our proofs). Take identical requests (s, o) and let
`U(g) = sum of s + o - floor(d*g) over d >= 0 with floor(d*g) < o`, a step function that falls as the gap g grows.

1. Starts with `x[k+d] - x[k] >= floor(d*g)` for all k, d never hold more than U(g), and starts floor(k*g) do reach it.
   Memory only needs checking at completions. When k completes, the active requests are those with
   `x[k] <= x < x[k] + o`, and whoever started d places after the first of them holds at most s + o - floor(d*g).
2. No endless pattern is faster than `least_gap` = g*, the least g with U(g) <= M. Were the mean gap below some h < g*, then
   some k would have `x[k+d] - x[k] <= d*h` for every d up to o/h (else hopping from one violation to the next would
   make the mean gap h or more), and its completion would hold U(h) > M.
3. The hops also bound every finite schedule: the k-th start after a j-th arrival a is at least `a + (k - j - o/g* + 1) g*`.
   The pipeline starts it at most (k - j) g* after the worst such arrival, so no start is later than in *any* schedule by more
   than o - g*, and **TEL(pipeline) <= OPT + n (o - g*) < 2 OPT** for identical requests, whatever their arrivals: 2 for few
   requests, towards 1 for many. (Requests started in batches, by earliest fit too, stay near 2 when s = 0.)
4. `v/M <= g* <= min(2 v/M, v/(M - p))`, v the volume and p the peak: with f(x) = s + o - floor(x), whose integral over
   [0, o) is v, `g U(g) <= g p + v`; and `g U(g) < 2 v` for every g < o by summing the at most D + 1 = ceil(o/g) terms.
5. *Identical prompts, all there at round 0.* Sort by output, cut into classes of ratio r = 3/2, and run each class as a
   pipeline of its largest member, one after another. A start waits for at most 2 r**2/M times the volumes before it (4.)
   and for the last outputs of the classes before, a geometric sum of at most r/(r-1) times its own output. With
   A = (1/M) * (sum over pairs of the smaller volume), O = sum of outputs and the mean-busy-time bound OPT >= A + O/3,
   `TEL <= 2 r**2 A + (r/(r-1) + 1) O <= (4/3 r**2 + r/(r-1) + 1) OPT` = **7 OPT**, and r = 3/2 is the best ratio. Ordering the
   classes by Smith's rule instead can only help. (The paper: 10.67 for its geometric batching, 6.75 with large memory.)

Two further ways of holding back claim nothing, and are often the best (ours): a *pace* (the next request of the order
starts no sooner than its share of throughput after the last) and a *window* (a request may overtake only when a fluid
machine that serves smallest volumes first would be about to serve it).
"""

from __future__ import annotations

import heapq
from fractions import Fraction

import numpy as np

from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Proposal
from opt.solvers.ledger import FAR, advance, earliest, new_profile, occupy, pack_skip, pack_strict
from opt.solvers.orders import order_of
from opt.solvers.serial import pack_serial

__all__ = ["TICKS", "fluid_release", "least_gap", "pace_ticks", "paced", "pipeline_peak", "pipelines", "queues", "staggered"]

PACES = (15, 12)  # further paces, in sixteenths of that at which identical requests would just fill the memory
THOROUGH = 30_000  # requests up to which every form is tried; beyond, those that differ most
IDENTICAL_FACTOR = 2
PROMPT_FACTOR = 7
TICKS = 20  # bits of a round that a pace is counted in


def staggered(instance: Instance, *, seed: int = 0, time_limit: float | None = None) -> Proposal:
    """Return the best of staggered pipelines, paced and windowed smallest volume first, and its plain forms.

    Args:
        instance: the requests; arrivals are respected.
        seed, time_limit: unused; the method is deterministic and near-linear.

    Requests that are identical or nearly so gain most, up to half the latency of starting together. `stats["form"]` names
    the form that won; it is never worse than `svf` and `svf-pack`. `stats["factor"]` is 2
    for identical requests (whatever their arrivals), 7 for identical prompts all there at round 0 (both proved above for
    the pipelines, and the best form is no worse), and None otherwise.
    """
    order = order_of(instance, "svf")
    data = (order, instance.prompt, instance.output, instance.arrival, instance.memory)
    forms = {"pipeline": pipelines(instance), "strict": pack_strict(*data), "pack": pack_serial(*data)}
    forms |= {"pace 16/16": paced(instance, order, 16), "window 3": _windowed(instance, order, 3, wide=False)}
    if instance.n <= THOROUGH:
        forms |= {f"pace {pace}/16": paced(instance, order, pace) for pace in PACES}
        forms |= {f"window {width}": _windowed(instance, order, width, wide=False) for width in (1, 2)}
        forms |= {f"wide window {width}": _windowed(instance, order, width, wide=True) for width in (1, 2)}
    form = min(forms, key=lambda name: exact_sum(forms[name]))
    return Proposal(forms[form], stats={"form": form, "factor": _factor(instance)})


def _factor(instance: Instance) -> int | None:
    same_prompt = bool((instance.prompt == instance.prompt[:1]).all())
    if same_prompt and bool((instance.output == instance.output[:1]).all()):
        return IDENTICAL_FACTOR
    return PROMPT_FACTOR if same_prompt and instance.offline else None


def pipeline_peak(prompt: int, output: int, gap: Fraction) -> int:
    """Return U(gap): the most tokens that identical requests started at rounds floor(k * gap) ever hold together.

    With gap = output/B, that is B lanes each starting anew when it ends, this is `B s + (o (B+1) + B - gcd(o, B))/2`.

    >>> pipeline_peak(0, 100, Fraction(100, 18))  # 18 lanes where ten requests of peak 100 could start together
    958
    """
    active = -(-output * gap.denominator // gap.numerator)
    return active * (prompt + output) - _floor_sum(active, gap.numerator, gap.denominator)


def least_gap(prompt: int, output: int, memory: int) -> Fraction:
    """Return the least mean gap between starts that identical requests can keep up for ever, in rounds.

    A breakpoint of U is a multiple of 1/d for some d up to D = output/gap <= output*memory/volume, so a search on a grid
    finer than 1/(2 D**2) leaves one candidate. Exact; `O(log(output * D))` evaluations of `O(log D)` each.

    Raises:
        ValueError: one request alone does not fit.

    >>> least_gap(0, 100, 1000)
    Fraction(85, 16)
    """
    if prompt + output > memory:
        raise ValueError(f"peak {prompt + output} exceeds the memory of {memory} tokens")
    most = max(1, 2 * memory // (2 * prompt + output + 1))
    grid = 2 * most * most
    low, high = 0, output * grid  # U(low) > memory >= U(high); a gap of `output` runs one at a time
    while high - low > 1:
        middle = (low + high) // 2
        if pipeline_peak(prompt, output, Fraction(middle, grid)) <= memory:
            high = middle
        else:
            low = middle
    return Fraction(high, grid).limit_denominator(most)


def _floor_sum(n: int, a: int, m: int) -> int:
    """Return the sum of floor(k * a / m) over k = 0 .. n-1, by swapping the axes as in Euclid's algorithm."""
    total, b = 0, 0
    sign = 1
    while n > 0:
        total += sign * (n * (n - 1) // 2 * (a // m) + n * (b // m))
        a, b = a % m, b % m
        top = (a * (n - 1) + b) // m  # the largest value left; count lattice points by columns from here on
        if top == 0:
            break
        total += sign * top * (n - 1)
        n, a, b, m = top, m, m - b - 1, a
        sign = -sign
    return total


def pipelines(instance: Instance) -> IntArray:
    """Return starts (n,) when classes of similar requests run one after another, each as a staggered pipeline.

    A class holds prompts within a ratio of 3/2 and outputs within a ratio of 3/2, and is paced as if each request were as
    large as the largest prompt and output in it, which can only overstate what they hold. Classes go by Smith's
    rule: least (length/members) first. Guarantees: `staggered`.
    """
    start = np.zeros(instance.n, np.int64)
    classes = [_as_pipeline(instance, members) for members in _similar(instance)]
    now = 0
    for members, gap, longest in sorted(classes, key=_smith):
        start[members] = _beats(instance.arrival[members], gap.numerator, gap.denominator, now)
        now = int(start[members[-1]]) + longest
    return start


def _as_pipeline(instance: Instance, members: IntArray) -> tuple[IntArray, Fraction, int]:
    """Return the members in order of arrival, then output, with the gap between them and the longest output."""
    ordered = members[np.lexsort((instance.output[members], instance.arrival[members]))]
    largest, longest = int(instance.prompt[members].max()), int(instance.output[members].max())
    # Both maxima together may not fit; then the requests run one at a time, which always does.
    fits = largest + longest <= instance.memory
    return ordered, least_gap(largest, longest, instance.memory) if fits else Fraction(longest), longest


def _smith(pipeline: tuple[IntArray, Fraction, int]) -> Fraction:
    members, gap, longest = pipeline
    return Fraction(int((len(members) - 1) * gap) + longest, len(members))


def _similar(instance: Instance) -> list[IntArray]:
    """Return the members of each class: prompts within 3/2 of each other, then outputs within 3/2."""
    by_prompt = _grades(instance.prompt)
    found = []
    for grade in range(int(by_prompt.max(initial=-1)) + 1):
        members = np.flatnonzero(by_prompt == grade)
        by_output = _grades(instance.output[members])
        order = np.argsort(by_output, kind="stable")
        found += np.split(members[order], np.flatnonzero(np.diff(by_output[order])) + 1)
    return found


def _grades(values: IntArray) -> IntArray:
    """Return the class of each value, from 0: a class holds what is at most 3/2 times its least member."""
    distinct = np.unique(values)
    edges, at = [], 0
    while at < len(distinct):
        edges.append(distinct[at])
        at = int(np.searchsorted(distinct, 3 * distinct[at] // 2, side="right"))
    return np.searchsorted(np.array(edges, np.int64), values, side="right") - 1


@compiled
def _beats(arrival: IntArray, step: int, parts: int, now: int) -> IntArray:
    """Return starts from `now` on, each at or after its (ascending) arrival and floor(d * step/parts) after any d before."""
    start = np.empty(len(arrival), np.int64)
    whole, rest = np.int64(now), np.int64(0)
    for k in range(len(arrival)):
        if arrival[k] > whole:
            whole, rest = arrival[k], np.int64(0)
        start[k] = whole
        rest += step
        whole += rest // parts
        rest %= parts
    return start


def paced(instance: Instance, order: IntArray, pace: int = 16) -> IntArray:
    """Return head-of-line starts in `order`, each no sooner than the pace of the one before it allows.

    Args:
        instance: the requests; nobody starts before its arrival or where it does not fit for its whole life.
        order: the requests from first to last.
        pace: sixteenths of `v / (M - s - o/2)`, about the gap of a pipeline of such requests; 0 is plain head of line.
    """
    ticks = pace_ticks(instance, pace)
    return _paced(*queues(instance, order), instance.prompt, instance.output, instance.arrival, ticks, instance.memory)


def pace_ticks(instance: Instance, pace: int) -> IntArray:
    """Return how long each request (n,) keeps the next one from starting, in 2**-TICKS rounds, at a pace as in `paced`."""
    tokens = 2 * instance.memory - 2 * instance.prompt - instance.output
    whole, rest = np.divmod(2 * instance.volume, tokens)
    return ((whole << TICKS) + (rest << TICKS) // tokens) * pace >> 4


def queues(instance: Instance, order: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Return the order, the place of each request in it, and the requests by arrival. (Sorting compiles slowly.)"""
    rank = np.empty(instance.n, np.int64)
    rank[order] = np.arange(instance.n)
    return order, rank, np.argsort(instance.arrival, kind="stable")


@compiled
def _paced(
    order: IntArray,
    rank: IntArray,
    by_arrival: IntArray,
    prompt: IntArray,
    output: IntArray,
    arrival: IntArray,
    ticks: IntArray,
    memory: int,
) -> IntArray:
    n = len(order)
    start = np.zeros(n, np.int64)
    times, usage, count, after = new_profile(n)
    queue = [np.int64(0)]
    queue.pop()
    point, used, arrived = np.int64(0), np.int64(1), 0
    t, whole, rest = np.int64(0), np.int64(0), np.int64(0)  # the pace allows a start from `whole` on
    while arrived < n or len(queue) > 0:
        if len(queue) == 0:
            t = max(t, arrival[by_arrival[arrived]])
        while arrived < n and arrival[by_arrival[arrived]] <= t:
            heapq.heappush(queue, rank[by_arrival[arrived]])
            arrived += 1
        i = order[queue[0]]
        from_then = max(t, whole)
        point = advance(times, after, point, t)
        ahead = advance(times, after, point, from_then)
        begin = earliest(times, usage, count, after, after[ahead], from_then, prompt[i], output[i], memory, FAR)
        if arrived < n and arrival[by_arrival[arrived]] <= begin:
            t = arrival[by_arrival[arrived]]
            continue
        t = begin
        point = advance(times, after, point, t)
        used = occupy(times, usage, count, after, point, used, t, prompt[i], output[i])
        start[i] = t
        heapq.heappop(queue)
        if t > whole:
            whole, rest = t, np.int64(0)
        rest += ticks[i]
        whole += rest >> TICKS
        rest &= (1 << TICKS) - 1
    return start


def _windowed(instance: Instance, order: IntArray, width: int, *, wide: bool) -> IntArray:
    """Return skipping starts in `order` when nobody may start before its fluid release less `width` typical outputs.

    Typical is the mean output, weighted by volume, of all requests where `wide`, else of those up to the request in the
    order. (A float only places the window; whether a start fits is decided by integers.)
    """
    weight = instance.volume[order].astype(np.float64)
    typical = np.cumsum(weight * instance.output[order]) / np.cumsum(weight)
    early = np.empty(instance.n, np.int64)
    early[order] = width * (typical[-1:] if wide else typical)
    release = np.maximum(instance.arrival, fluid_release(instance, order) - early)
    return pack_skip(order, instance.prompt, instance.output, release, instance.memory)


def fluid_release(instance: Instance, order: IntArray) -> IntArray:
    """Return the round (n,) from which a fluid machine of M token-rounds a round would serve each request without a break.

    The machine always serves the first in `order` that has arrived, preemptively: the relaxation behind the
    mean-busy-time bound when `order` is by volume. A request's release is its completion there less volume/M, rounded
    down.
    """
    return _fluid(*queues(instance, order), instance.volume, instance.arrival, instance.memory)


@compiled
def _fluid(order: IntArray, rank: IntArray, by_arrival: IntArray, volume: IntArray, arrival: IntArray, memory: int) -> IntArray:
    n = len(order)
    release = np.zeros(n, np.int64)
    left = volume.copy()
    queue = [np.int64(0)]
    queue.pop()
    whole, rest, arrived = np.int64(0), np.int64(0), 0  # the time is whole + rest/memory
    while arrived < n or len(queue) > 0:
        if len(queue) == 0 and arrival[by_arrival[arrived]] > whole:
            whole, rest = arrival[by_arrival[arrived]], np.int64(0)
        while arrived < n and (arrival[by_arrival[arrived]] <= whole or len(queue) == 0):
            heapq.heappush(queue, rank[by_arrival[arrived]])
            arrived += 1
        i = order[queue[0]]
        end, over = whole + (rest + left[i]) // memory, (rest + left[i]) % memory
        if arrived < n and arrival[by_arrival[arrived]] < end + (over > 0):
            left[i] -= (arrival[by_arrival[arrived]] - whole) * memory - rest
            whole, rest = arrival[by_arrival[arrived]], np.int64(0)
            continue
        whole, rest = end, over
        heapq.heappop(queue)
        release[i] = whole - volume[i] // memory - (rest < volume[i] % memory)
    return release
