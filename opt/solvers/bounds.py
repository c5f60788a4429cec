"""Lower bounds on the total latency, each with the certificate that `certify` checks.

* `trivial`: the sum of outputs. Holds with arrivals and with shared prefixes.
* `volume` (Kong, Qi, Ye, Zhou, arXiv 2606.22327): with volumes ascending, `M * TEL >= sum over k of the k least`.
* `mean-busy-time` (ours): the memory-weighted mean time of each request, minimised over all schedules that never
  exceed M, plus the exact distance from there to its completion. Always at least the volume bound.
* `shared-mean-busy-time` (ours): the same where common prefixes are stored once: every chunk is charged to its holders in
  equal shares, as many as can be active at once. Holds with shared prefixes, and for separate caches all the more.
* `prices`: a price for every round, see `opt.solvers.prices`; seconds of work, and sharper on backlogs.
* `ramps`: memory ramps kept whole, see `opt.solvers.ramps`; for small instances where few requests fit together.
* `lp`: the time-indexed linear program itself, see `opt.solvers.lp`; small instances.
* `tree`: branch and bound on start windows, see `opt.solvers.tree`; proves optima of small instances where many fit together.
* `best`: the largest of the closed forms, of `ramps` where it is quick and few fit together, of a short `tree` where more do.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.exact import exact_dot, exact_sum
from opt.core.instance import Instance
from opt.core.model import Bound, KvMode

__all__ = [
    "BOUNDS",
    "best_bound",
    "fair_prompts",
    "mean_busy_time",
    "shared_mean_busy_time",
    "tails",
    "together",
    "trivial",
    "volume",
]

QUICK_TREE = 14  # requests up to which 200 nodes, a tenth of a second, often prove the optimum
FEW = 4.0  # requests that fit together, below which whole ramps say more than a closed form
BITS = 32  # quotients are rounded down to multiples of 2**-32, so a million terms stay fast and the bound stays true


def trivial(instance: Instance) -> Bound:
    """Return the sum of outputs: a request waits at least for its own tokens."""
    return _closed_form(Fraction(exact_sum(instance.output)), "trivial", "shared")


def volume(instance: Instance) -> Bound:
    """Return `(1/M) * sum over k of (the k least volumes)`.

    Raises:
        ValueError: requests arrive after round 0; the bound is not proved then (`mean-busy-time` is).
    """
    if not instance.offline:
        raise ValueError("the volume bound needs every request at round 0; use mean-busy-time with arrivals")
    ranks = np.arange(instance.n, 0, -1, dtype=np.int64)
    return _closed_form(Fraction(exact_dot(np.sort(instance.volume), ranks), instance.memory), "volume")


def mean_busy_time(instance: Instance) -> Bound:
    """Return the mean-busy-time bound.

    Let y be the mean time of a request's memory use, weighted by the tokens it holds. Its completion is y + d with the
    fixed tail `d = o - (1/v) * sum over k of (k - 1/2)(s + k)`, and in every schedule the pairs (v, y) obey the
    constraints of one machine of speed M: for every set S, `sum of v y >= v(S)**2 / (2 M)`. The sum of y is least
    when volumes are served smallest first, preemptively where requests arrive. Hence, all at round 0 and v ascending,

        TEL >= (1/M) * sum over j of (sum of v before j + v_j / 2) + sum of d.

    Proved for unit rounds and separate KV caches, with or without arrivals (`proofs`); Smith's rule on a polymatroid,
    mean busy times after Goemans et al., SIAM J. Discrete Math. 15 (2002). `O(n log n)`.
    """
    tail = Fraction(exact_sum(tails(instance)), 1 << BITS)
    if instance.offline:
        weights = np.arange(2 * instance.n - 1, 0, -2, dtype=np.int64)
        means = Fraction(exact_dot(np.sort(instance.volume), weights), 2 * instance.memory)
    else:
        means = _preemptive_means(instance) - exact_sum(instance.arrival)
    return _closed_form(means + tail, "mean-busy-time")


def shared_mean_busy_time(instance: Instance) -> Bound:
    """Return the mean busy time bound for memory in which a common chunk is stored once.

    If at most m of a chunk's holders can be active in one round, the chunk's z tokens in memory are at least z/m for each
    who is. With those shares as prompts the requests need no more memory, in any round of any schedule with shared
    prefixes, than they really do; so every bound for separate caches, of the requests with the smaller prompts, holds.
    m is the largest number of holders whose private tokens fit beside the chunk. The shares are rounded down to
    2**-20 tokens, and a prompt to whole tokens.
    """
    smaller = Instance(instance.memory, fair_prompts(instance), instance.output, arrival=instance.arrival)
    return _closed_form(mean_busy_time(smaller).value, "shared-mean-busy-time", "shared")


def fair_prompts(instance: Instance) -> IntArray:
    """Return (n,) prompt tokens where a chunk counts for each holder with its share of one copy, rounded down."""
    ids, offsets, chunk = instance.prefix_ids, instance.prefix_offsets, instance.prefix_chunk
    if ids is None or offsets is None or chunk is None or not len(ids):
        return instance.prompt
    owner = np.repeat(np.arange(instance.n), np.diff(offsets))
    tokens = np.minimum(chunk, instance.prompt[owner] - (np.arange(len(ids)) - offsets[owner]) * chunk)
    _, which, holders = np.unique(ids, return_inverse=True, return_counts=True)
    size = np.full(len(holders), chunk, np.int64)
    np.minimum.at(size, which, tokens)
    common = np.where(holders > 1, size, 0)
    private = instance.prompt - _per_request(common[which], owner, instance.n)
    most = _holders_at_once(which, private[owner] + 1, holders, instance.memory - size)
    saved = size - (size << SHARE_BITS) // most / (1 << SHARE_BITS)
    less: IntArray = np.ceil(_per_request(saved[which], owner, instance.n)).astype(np.int64)
    shares: IntArray = np.maximum(instance.prompt - less, 0)
    return shares


SHARE_BITS = 20


def _per_request(values: npt.NDArray[Any], owner: IntArray, n: int) -> npt.NDArray[Any]:
    """Return the sums of values by their owner; sums of multiples of 2**-20 below 2**31 are exact in floats."""
    return np.bincount(owner, weights=values, minlength=n).astype(values.dtype)


def _holders_at_once(which: IntArray, least: IntArray, holders: IntArray, room: IntArray) -> IntArray:
    """Return, for each chunk, how many of its holders fit at once: their least tokens, ascending, summed up to its room."""
    order = np.lexsort((least, which))
    used = np.cumsum(least[order])
    begin = np.cumsum(holders) - holders
    before = np.where(begin > 0, used[begin - 1], 0)
    fits = used - before[which[order]] <= room[which[order]]
    return np.maximum(np.bincount(which[order], weights=fits, minlength=len(holders)).astype(np.int64), 1)


def tails(instance: Instance) -> IntArray:
    """Return `d` of every request (n,) in units of 2**-32, rounded down.

    In closed form `d = (6 s o + (2 o + 1)(o + 1)) / (6 (2 s + o + 1))`, between (2 o + 1)/6 (no prompt) and o/2.
    """
    s, o = instance.prompt.astype(np.uint64), instance.output.astype(np.uint64)
    numerator = np.uint64(6) * s * o + (np.uint64(2) * o + np.uint64(1)) * (o + np.uint64(1))
    denominator = np.uint64(6) * (np.uint64(2) * s + o + np.uint64(1))
    quotient, rest = numerator // denominator, numerator % denominator
    for _ in range(2):  # two steps of 16 bits: the rest is below 2**36
        rest = rest << np.uint64(16)
        quotient = (quotient << np.uint64(16)) + rest // denominator
        rest = rest % denominator
    return quotient.astype(np.int64)


def best_bound(instance: Instance) -> Bound:
    """Return the largest of the closed forms, and on small instances of `ramps` or a short `tree`, whichever suits."""
    found = [trivial(instance), mean_busy_time(instance)]
    if instance.n and together(instance) < FEW:
        if quick_ramps(instance):
            found.append(_ramps(instance))
    elif 0 < instance.n <= QUICK_TREE:
        from opt.solvers.orders import run_order

        start = run_order("svf", "pack", instance).start
        found.append(_tree(instance, time_limit=1.0, max_nodes=200, start=start))
    return max(found, key=lambda bound: bound.value)


def together(instance: Instance) -> Fraction:
    """Return how many requests memory holds at once on average: memory / (total volume / total output).

    >>> together(Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3]))
    Fraction(289, 131)
    """
    return Fraction(instance.memory * exact_sum(instance.output), max(1, exact_sum(instance.volume)))


def quick_ramps(instance: Instance) -> bool:
    """Return whether the ramps bound takes no more than a second or two."""
    return instance.offline and 2 <= instance.n <= 30 and instance.n * int(instance.output.sum()) <= 15_000


def _closed_form(value: Fraction, formula: str, kv: KvMode = "separate") -> Bound:
    return Bound(value, formula, kv, {"kind": "closed-form", "formula": formula})


def _preemptive_means(instance: Instance) -> Fraction:
    """Return the sum of mean busy times when the smallest volume present is always served, preemptively.

    Time runs in units of 1/M round: a volume v takes v units, and a piece from b to e adds (e - b)(e + b) / (2 v M).
    """
    memory, volumes = instance.memory, instance.volume.tolist()
    order = np.argsort(instance.arrival, kind="stable").tolist()
    released = [arrival * memory for arrival in instance.arrival.tolist()]
    left, moment = list(volumes), [0] * instance.n
    waiting: list[tuple[int, int]] = []
    now = seen = total = 0
    while seen < instance.n or waiting:
        if not waiting:
            now = max(now, released[order[seen]])
        while seen < instance.n and released[order[seen]] <= now:
            heapq.heappush(waiting, (volumes[order[seen]], seen))
            seen += 1
        i = order[waiting[0][1]]
        end = now + left[i]
        if seen < instance.n:
            end = min(end, released[order[seen]])
        moment[i] += (end - now) * (end + now)
        left[i] -= end - now
        now = end
        if not left[i]:
            heapq.heappop(waiting)
            total += (moment[i] << BITS) // (2 * volumes[i] * memory)
    return Fraction(total, 1 << BITS)


def _prices(instance: Instance) -> Bound:
    """Return a price bound: close to the time-indexed linear program, above every closed form on deep backlogs."""
    from opt.solvers.prices import prices

    return prices(instance)


def _ramps(instance: Instance) -> Bound:
    """Return a bound that keeps memory ramps whole: the sharpest on small instances where few requests fit together."""
    from opt.solvers.ramps import ramps

    return ramps(instance)


def _lp(instance: Instance) -> Bound:
    """Return the value of the time-indexed linear program, by HiGHS, as prices; for small instances."""
    from opt.solvers.lp import lp

    return lp(instance)


def _tree(instance: Instance, **limits: Any) -> Bound:
    """Return what branch and bound on start windows proves; optima of a dozen requests where many fit together."""
    from opt.solvers.tree import tree

    return tree(instance, **limits)


BOUNDS: dict[str, Callable[[Instance], Bound]] = {
    "trivial": trivial,
    "volume": volume,
    "mean-busy-time": mean_busy_time,
    "shared-mean-busy-time": shared_mean_busy_time,
    "prices": _prices,
    "ramps": _ramps,
    "lp": _lp,
    "tree": _tree,
    "best": best_bound,
}
