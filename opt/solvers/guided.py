"""Plans guided by prices: where the linear relaxation would start each request, and what a start costs there.

Prices for memory (`opt.solvers.prices`) give every request a cost for every start: its completion, and rent for the tokens
it holds in every round. At good prices many starts cost nearly the same, and a soft minimum over them is close to the
fractional schedule of the time-indexed linear program. From that distribution come

* *alpha points*: the start below which a share alpha of it lies (Phillips, Stein, Wein 1998; Goemans et al., SIAM J.
  Discrete Math. 15, 2002), one alpha for all or a random one for each request, and the mean start;
* *releases*: an early quantile, before which a request had better not begin.

Each order is packed in every way there is: head of line, serially, at a pace, and skipping no sooner than the releases.

*LP-swap*, then: the reduced cost of a request, what its start costs above its cheapest start, says who is badly placed. Those
with the most are moved to where their cheapest start stands in the order, or exchanged with somebody near; what is no worse
stays.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np

from opt.core.clock import now
from opt.core.columns import FloatArray, IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.core.model import Proposal

__all__ = ["alpha_points", "guided"]

INTERVALS, TEMPERATURE, STEPS = 400, 1e-3, 60  # of one climb (see `opt.solvers.prices`); sharper prices make no better plans
LEVELS = (0.02, 0.1, 0.2, 0.5, 0.75)  # alphas
RELEASES = (0.02, 0.2, 0.5)  # alphas before which nobody may start, where starts are held back
PACES = (16, 14, 12)
SPREAD = 1e-3  # temperature of the soft minimum, in units of the mean end
STARTS = 1500  # starts looked at
DRAWS = 16  # orders with an alpha for each request
SWAPS = 400  # changes that LP-swap tries
THOROUGH = 30_000  # requests; beyond, only the alphas in the middle, and no draws or swaps


class _Plan(NamedTuple):
    """A plan: its order, how it was packed, its starts and their sum."""

    total: int
    form: str
    order: IntArray
    start: IntArray


class _Guide(NamedTuple):
    """Prices, laid out for compiled code: the ends of the intervals and the price within each."""

    ends: IntArray
    level: FloatArray


def guided(
    instance: Instance, *, seed: int = 0, time_limit: float | None = None, draws: int = DRAWS, swaps: int = SWAPS
) -> Proposal:
    """Return the best plan in the order of alpha points of priced starts, improved by exchanges along reduced costs.

    Args:
        instance: the requests; arrivals are respected (and known beforehand, as in any offline solver).
        seed: of random alphas and exchanges.
        time_limit: seconds; nothing new is begun beyond it. Prices and one plan are always made.
        draws: orders with a random alpha for each request.
        swaps: changes that LP-swap tries.

    A guide claims nothing; `stats["form"]` names the order and the packing, `stats["swaps"]` the exchanges that helped.

    Raises:
        ValueError: `draws` or `swaps` is negative or no integer.
    """
    for name, value in (("draws", draws), ("swaps", swaps)):
        if type(value) is not int or value < 0:
            raise ValueError(f"{name} = {value!r}: must be an integer, at least 0")
    if not instance.n:
        return Proposal(np.zeros(0, np.int64), stats={"form": "nothing to plan", "swaps": 0})
    deadline = np.inf if time_limit is None else now() + time_limit
    guide = _guide(instance, deadline)
    points, means = alpha_points(instance, guide.ends, guide.level, LEVELS)
    best = _best_order(instance, points, means, seed, draws if instance.n <= THOROUGH else 0, deadline)
    best, helped = _swapped(instance, guide, best, points, seed, swaps if instance.n <= THOROUGH else 0, deadline)
    late = now() > deadline
    return Proposal(best.start, stop_reason="time_limit" if late else "done", stats={"form": best.form, "swaps": helped})


def _guide(instance: Instance, deadline: float) -> _Guide:
    """Return the last prices of the climb that there is time for."""
    from opt.solvers.prices import Dual, climbed

    stage = (min(INTERVALS, 20 + 4 * instance.n), TEMPERATURE, STEPS)

    found = None
    for found in climbed(instance, Dual(instance), (stage,), deadline):  # noqa: B007
        pass
    assert found is not None
    return _Guide(*found)


def alpha_points(instance: Instance, ends: IntArray, level: FloatArray, levels: tuple[float, ...]) -> tuple[IntArray, FloatArray]:
    """Return the starts (n, len(levels)) at which the soft minimum passes each level, and the mean starts (n,).

    Args:
        instance: the requests.
        ends, level: prices `level[j]` in rounds `ends[j-1] + 1 .. ends[j]`, nothing afterwards.
        levels: ascending shares from 0 to 1.
    """
    total, moment = _sums(ends, level, int(instance.output.max()))
    starts = np.unique(np.concatenate([[0], ends[:: max(1, len(ends) // STARTS)]]))
    tau = SPREAD * float(ends.mean())
    sizes = (instance.prompt, instance.output, instance.arrival)
    points: tuple[IntArray, FloatArray] = _alpha_points(*sizes, starts, total, moment, tau, np.array(levels))
    return points


def _sums(ends: IntArray, level: FloatArray, longest: int) -> tuple[FloatArray, FloatArray]:
    """Return the sums over rounds 1 .. y of the price and of round times price, for every y a request can touch."""
    price = np.concatenate([[0.0], np.repeat(level, np.diff(ends, prepend=0)), np.zeros(longest + 1)])
    return np.cumsum(price), np.cumsum(price * np.arange(len(price)))


@compiled
def _cost(x: int, s: int, o: int, total: FloatArray, moment: FloatArray) -> float:
    """Return completion and rent of (s, o) started at x; beyond the last price only completion grows."""
    last = len(total) - 1
    begin, end = min(x, last), min(x + o, last)
    paid: float = x + o + (s - x) * (total[end] - total[begin]) + moment[end] - moment[begin]
    return paid


@compiled
def _alpha_points(
    s: IntArray,
    o: IntArray,
    a: IntArray,
    starts: IntArray,
    total: FloatArray,
    moment: FloatArray,
    tau: float,
    levels: FloatArray,
) -> tuple[IntArray, FloatArray]:
    points, means = np.zeros((len(s), len(levels)), np.int64), np.zeros(len(s))
    cost = np.empty(len(starts))
    for i in range(len(s)):
        least = np.inf
        for k in range(len(starts)):
            cost[k] = _cost(max(starts[k], a[i]), s[i], o[i], total, moment)
            least = min(least, cost[k])
        mass = 0.0
        for k in range(len(starts)):
            width = max(1.0, float(starts[k] - starts[k - 1])) if k > 0 and starts[k] > a[i] else 1.0
            cost[k] = width * np.exp((least - cost[k]) / tau) if cost[k] < least + 30 * tau else 0.0
            mass += cost[k]
        below, place = 0.0, 0
        for k in range(len(starts)):
            below += cost[k]
            means[i] += cost[k] / mass * max(starts[k], a[i])
            while place < len(levels) and below >= levels[place] * mass:
                points[i, place] = max(starts[k], a[i])
                place += 1
    return points, means


@compiled
def _reduced(s: IntArray, o: IntArray, start: IntArray, cheapest: IntArray, total: FloatArray, moment: FloatArray) -> FloatArray:
    """Return what each start costs above the cheapest one."""
    excess = np.empty(len(s))
    for i in range(len(s)):
        here = _cost(start[i], s[i], o[i], total, moment)
        excess[i] = here - _cost(cheapest[i], s[i], o[i], total, moment)
    return excess


def _ways(instance: Instance, points: IntArray) -> dict[str, Callable[[IntArray], IntArray]]:
    """Return the ways to pack an order, by name; some of the alpha points are releases."""
    from opt.solvers.ledger import pack_strict
    from opt.solvers.serial import pack_serial

    sizes = (instance.prompt, instance.output)
    return {
        "strict": lambda order: pack_strict(order, *sizes, instance.arrival, instance.memory),
        "pack": lambda order: pack_serial(order, *sizes, instance.arrival, instance.memory),
        **{
            f"release {alpha}": partial(_released, instance, np.maximum(instance.arrival, points[:, LEVELS.index(alpha)]))
            for alpha in RELEASES
        },
        **{f"pace {pace}/16": partial(_at_pace, instance, pace) for pace in PACES},
    }


def _released(instance: Instance, release: IntArray, order: IntArray) -> IntArray:
    from opt.solvers.ledger import pack_skip

    return pack_skip(order, instance.prompt, instance.output, release, instance.memory)


def _at_pace(instance: Instance, pace: int, order: IntArray) -> IntArray:
    from opt.solvers.staggered import paced

    return paced(instance, order, pace)


def _best_order(instance: Instance, points: IntArray, means: FloatArray, seed: int, draws: int, deadline: float) -> _Plan:
    """Return the best plan over all orders and ways to pack them, in a fixed sequence until the deadline."""
    ways = _ways(instance, points)
    levels = range(len(LEVELS)) if instance.n <= THOROUGH else (LEVELS.index(0.5),)
    keys: dict[str, FloatArray | IntArray] = {f"alpha {LEVELS[k]}": points[:, k] for k in levels}
    keys |= {"mean": means, "volume": instance.volume}
    rng = np.random.Generator(np.random.PCG64(seed))
    for draw in range(draws):
        level = rng.integers(0, len(LEVELS), instance.n)
        keys[f"random alphas {draw}"] = points[np.arange(instance.n), level]
    best: _Plan | None = None
    for name, key in keys.items():
        order = np.lexsort((instance.volume, key))
        for way, pack in ways.items():
            if best is not None and now() > deadline:
                return best
            start = pack(order)
            total = exact_sum(start)
            if best is None or total < best.total:
                best = _Plan(total, f"{name}, {way}", order, start)
    assert best is not None
    return best


def _swapped(
    instance: Instance, guide: _Guide, plan: _Plan, points: IntArray, seed: int, swaps: int, deadline: float
) -> tuple[_Plan, int]:
    """Return the plan after exchanges, and how many were kept because they helped."""
    pack = _ways(instance, points)[plan.form.rsplit(", ", 1)[1]]
    total, moment = _sums(guide.ends, guide.level, int(instance.output.max()))
    cheapest = points[:, LEVELS.index(0.5)]
    rng, helped = np.random.Generator(np.random.PCG64(seed)), 0
    excess = _reduced(instance.prompt, instance.output, plan.start, cheapest, total, moment)
    for _ in range(swaps if instance.n > 1 else 0):
        if now() > deadline:
            break
        order = _exchanged(plan, excess, cheapest, rng)
        start = pack(order)
        found = exact_sum(start)
        if found <= plan.total:
            helped += found < plan.total
            plan = _Plan(found, plan.form, order, start)
            excess = _reduced(instance.prompt, instance.output, start, cheapest, total, moment)
    return plan, helped


def _exchanged(plan: _Plan, excess: FloatArray, cheapest: IntArray, rng: np.random.Generator) -> IntArray:
    """Return the order with a badly placed request moved to its cheapest start, or exchanged with one near it."""
    weight = np.maximum(excess, 0.0) + 1e-9
    who = int(rng.choice(len(weight), p=weight / weight.sum()))
    at = int(np.flatnonzero(plan.order == who)[0])
    if rng.integers(2):
        rest = np.delete(plan.order, at)
        to = int(np.searchsorted(np.sort(plan.start[rest]), cheapest[who]))
        return np.insert(rest, min(max(to + int(rng.integers(-5, 6)), 0), len(rest)), who)
    to = min(max(at + int(rng.integers(-40, 41)), 0), len(plan.order) - 1)
    order = plan.order.copy()
    order[at], order[to] = order[to], order[at]
    return order
