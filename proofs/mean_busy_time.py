"""Lower bounds on total latency: mean busy times, with and without arrivals, and prices. Exposition: mean_busy_time.md."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial
from itertools import combinations

import numpy as np
import sympy as sp

from opt.core.instance import Instance
from opt.solvers.bounds import mean_busy_time as bound
from opt.solvers.bounds import volume as volume_bound
from proofs.claim import Claim, Reference, Step
from proofs.small import draw, schedules, solved
from proofs.steps import argued, exhaustive, identity, inequality, tested

__all__ = ["dual_feasible", "mean_busy_time", "naive", "price_bound", "tail"]

Memory = Callable[[int, int], Fraction]  # (tokens held, budget) -> what counts against a capacity of one

s, o, k, M, V, v = sp.symbols("s o k M V v", positive=True)
prompts = (s, 0, None)
outputs = (o, 1, None)
tail = (6 * s * o + (2 * o + 1) * (o + 1)) / (6 * (2 * s + o + 1))
whole = s * o + o * (o + 1) / 2


def share(tokens: int, memory: int) -> Fraction:
    """Return the plain share of the memory."""
    return Fraction(tokens, memory)


def dual_feasible(parts: int) -> Memory:
    """Return the function u of Fekete and Schepers: x where (parts + 1) x is whole, else floor((parts + 1) x)/parts."""

    def counted(tokens: int, memory: int) -> Fraction:
        whole, rest = divmod((parts + 1) * tokens, memory)
        return Fraction(tokens, memory) if not rest else Fraction(whole, parts)

    return counted


def busy(instance: Instance, counts: Memory) -> list[tuple[Fraction, Fraction]]:
    """Return (v, d) of each request: what it takes of a capacity of one, and how far its mean is from its end."""
    found = []
    for prompt, output in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True):
        held = [counts(prompt + k, instance.memory) for k in range(1, output + 1)]
        moment = sum(((2 * k - 1) * h / 2 for k, h in enumerate(held, 1)), Fraction(0))
        found.append((sum(held, Fraction(0)), output - moment / sum(held) if any(held) else Fraction(output)))
    return found


def least_means(instance: Instance, counts: Memory) -> Fraction:
    """Return sum of (mean busy time + d - arrival) when the smallest v there is always served at full capacity."""
    jobs = busy(instance, counts)
    left, moment, now = [v for v, _ in jobs], [Fraction(0)] * len(jobs), Fraction(0)
    arrivals = instance.arrival.tolist()
    while any(left):
        there = [i for i in range(len(jobs)) if left[i] and arrivals[i] <= now]
        later = [Fraction(a) for i, a in enumerate(arrivals) if left[i] and a > now]
        if not there:
            now = min(later)
            continue
        i = min(there, key=lambda i: jobs[i][0])
        end = min([now + left[i], *later])
        moment[i] += (end - now) * (end + now) / 2
        left[i] -= end - now
        now = end
    means = (m / v if v else Fraction(a) for m, (v, _), a in zip(moment, jobs, arrivals, strict=True))
    return sum(means, Fraction(0)) + sum((d for _, d in jobs), Fraction(-sum(arrivals)))


def naive(instance: Instance) -> Fraction:
    """Return the formula for requests at round 0; when they arrive later it bounds no total latency."""
    return least_means(instance.replace(arrival=None), share)


def _means(instance: Instance, start: list[int]) -> list[Fraction]:
    """Return the memory-weighted mean time of each request, from its definition."""
    found = []
    for x, prompt, output in zip(start, instance.prompt.tolist(), instance.output.tolist(), strict=True):
        held = [prompt + k for k in range(1, output + 1)]
        found.append(sum((x + k - Fraction(1, 2)) * h for k, h in enumerate(held, 1)) / sum(held))
    return found


def _completion_is_mean_plus_tail(case: tuple[Instance, list[int]]) -> bool:
    instance, start = case
    ends = [x + int(output) for x, output in zip(start, instance.output, strict=True)]
    return all(y + d == c for y, (_, d), c in zip(_means(instance, start), busy(instance, share), ends, strict=True))


def _every_set(case: tuple[Instance, list[int]]) -> bool:
    instance, start = case
    means, volumes = _means(instance, start), instance.volume.tolist()
    sets = (chosen for size in range(1, instance.n + 1) for chosen in combinations(range(instance.n), size))
    return all(
        2 * instance.memory * sum(volumes[i] * means[i] for i in chosen) >= sum(volumes[i] for i in chosen) ** 2
        for chosen in sets
    )


def _all_schedules(arrivals: int = 0) -> Iterator[tuple[Instance, list[int]]]:
    """Yield all schedules with little waiting beyond what the best one has, of small instances."""
    for instance, best, _ in solved(arrivals)[:25]:
        slack = best - int(instance.output.sum())
        yield from ((instance, start) for start in schedules(instance, slack + 2))


def mean_busy_time(formula: Callable[[Instance], Fraction] = lambda instance: least_means(instance, share)) -> Claim:
    """Return the claim; another `formula` is for tests that plant a mistake."""
    return Claim(
        "mean-busy-time",
        "TEL >= sum of (y + d - a), y the mean busy times when a machine of speed M always serves the smallest volume there",
        ("rounds of one unit, separate KV caches", "arrivals in whole rounds, or none"),
        (
            Reference("mean busy times on one machine: Goemans et al., SIAM J. Discrete Math. 15 (2002)", "published"),
            Reference("the volume bound, which this one dominates: Kong, Qi, Ye, Zhou, arXiv 2606.22327", "published"),
            Reference("the bound for growing memory, the tails d, and arrivals", "new"),
        ),
        (*_tails(), *_machine(), *_confirmed(formula)),
    )


def _tails() -> tuple[Step, ...]:
    moment = sp.summation((k - sp.Rational(1, 2)) * (s + k), (k, 1, o))
    return (
        identity("the volume is v = s o + o(o + 1)/2", sp.summation(s + k, (k, 1, o)), whole),
        identity("the tail d = o - (1/v) sum of (k - 1/2)(s + k) in closed form", o - moment / whole, tail),
        inequality("d >= (2 o + 1)/6", tail, (2 * o + 1) / 6, [prompts, outputs]),
        inequality("d <= o/2", o / 2, tail, [prompts, outputs]),
        inequality(
            "d >= v/(2M), so each term y + d of the bound is at least that of the volume bound",
            tail,
            whole / (2 * M),
            [prompts, outputs, (M, s + o, None)],
        ),
    )


def _machine() -> tuple[Step, ...]:
    return (
        argued(
            "in every schedule a completion is c = y + d, y the memory-weighted mean time",
            _all_schedules,
            _completion_is_mean_plus_tail,
            domain="all schedules of small instances with little waiting",
            because="a request holds the same tokens whenever it runs; started at x its mean is x + o - d",
        ),
        argued(
            "for every set S, the sum of v y over S is at least v(S)^2/(2M)",
            _all_schedules,
            _every_set,
            domain="all sets of requests in all these schedules",
            because="S holds at most M a round and v(S) in all; the moment of a fixed mass of density at most M is least if the "
            "mass fills [0, v(S)/M]",
        ),
        identity(
            "serving volumes in turn from V on, the mean is (V + v/2)/M",
            ((V + v) ** 2 - V**2) / (2 * M) / v,
            (V + v / 2) / M,
        ),
        identity(
            "1/v is the integral of 1/z^2 over z >= v: the sum of means weighs, for every z, the moment of all volumes <= z",
            sp.integrate(1 / k**2, (k, v, sp.oo)),
            1 / v,
        ),
        argued(
            "serving the smallest volume there, preemptively, is least for every z at once, with and without arrivals",
            lambda: [(i, start) for arrivals in (0, 6) for i, _, start in solved(arrivals)],
            lambda case: (
                sum(_means(*case))
                >= least_means(case[0], share) - sum(d for _, d in busy(case[0], share)) + int(case[0].arrival.sum())
            ),
            domain="120 small instances, half with arrivals, against the means of an optimal schedule",
            because="volumes <= z always come before larger ones, so their work done by any time t is the most that arrivals and "
            "speed M allow; their moment is the integral of the work not yet done",
        ),
    )


def _confirmed(formula: Callable[[Instance], Fraction]) -> tuple[Step, ...]:
    counter = Instance(5, [0, 2, 1], [2, 3, 4], arrival=[9, 1, 3])
    return (
        tested(
            "the bound is at most the optimum",
            lambda: [case for arrivals in (0, 3, 6) for case in solved(arrivals)],
            lambda case: formula(case[0]) <= case[1] or f"bound {float(formula(case[0])):.3f} above the optimum {case[1]}",
            domain="180 small instances, two thirds with arrivals, all starts tried",
        ),
        tested(
            "the library computes it, rounded down",
            lambda: draw(150, seed=1, requests=(1, 9), memory=(1, 40), arrivals=7),
            lambda instance: 0 <= formula(instance) - bound(instance).value < Fraction(instance.n, 2**31),
            domain="random instances with arrivals",
        ),
        tested(
            "it is at least the volume bound",
            lambda: draw(150, seed=2, requests=(1, 30), memory=(1, 90)),
            lambda instance: bound(instance).value >= volume_bound(instance).value,
            domain="random instances at round 0",
        ),
        exhaustive(
            "with arrivals the formula for round 0 is no bound: it says 10.31 where 10 is possible",
            lambda: [counter],
            lambda instance: 10 == min(sum(x) for x in schedules(instance, 1)) + 9 - 13 < naive(instance),
            domain="M = 5; (prompt, output) at arrival: (0, 2) at 9, (2, 3) at 1, (1, 4) at 3",
        ),
    )


def priced(instance: Instance, prices: list[Fraction], counts: Memory) -> Fraction:
    """Return the bound that a price per round and unit of capacity proves; rounds after the last price are free."""
    last, total = len(prices), -sum(prices, Fraction(0))
    for prompt, output, arrival in zip(
        instance.prompt.tolist(), instance.output.tolist(), instance.arrival.tolist(), strict=True
    ):
        costs = (
            x
            + output
            - arrival
            + sum(prices[x + k] * counts(prompt + k, instance.memory) for k in range(1, output + 1) if x + k < last)
            for x in range(arrival, max(last, arrival) + 1)
        )
        total += min(costs)
    return total


def _random_prices(seed: int) -> Iterator[tuple[Instance, int, list[Fraction]]]:
    """Yield instances with optimum and prices: about the requests unfinished, which is a good guess, times up to two."""
    raw = np.random.PCG64(seed)
    for arrivals in (0, 6):
        for instance, best, start in solved(arrivals):
            end = max((x + int(o) for x, o in zip(start, instance.output, strict=True)), default=0)
            guess = [Fraction(instance.n * (end - t), end) for t in range(end + 1)]
            yield instance, best, [price * (int(raw.random_raw()) % 9) / 4 for price in guess]
            yield instance, best, [price / (1 + int(raw.random_raw()) % 2) for price in guess]


def price_bound(capacity: Fraction = Fraction(1)) -> Claim:
    """Return the claim; a `capacity` other than one is for tests that plant a mistake."""
    held, price, prices_paid = sp.symbols("held price paid", nonnegative=True)

    def law(case: tuple[Instance, int, list[Fraction]], counts: Memory) -> bool | str:
        instance, best, prices = case
        value = priced(instance, prices, counts) + (1 - capacity) * sum(prices)
        return value <= best or f"bound {float(value):.3f} above the optimum {best}"

    return Claim(
        "prices",
        "TEL >= sum_i min_x [x + o - a + sum_k price(x + k) u((s + k)/M)] - sum of prices, for prices >= 0, u dual-feasible",
        ("prices are non-negative, one for every round", "u maps [0, 1] to [0, 1] and sum x <= 1 implies sum u(x) <= 1"),
        (
            Reference("Lagrangian relaxation of the capacity rows of a time-indexed program", "published"),
            Reference("dual-feasible functions: Fekete, Schepers, Math. Programming 91 (2001)", "published"),
            Reference("both together for growing memory", "new"),
        ),
        (
            inequality(
                "what a round takes in never exceeds its price: price * (sum of u) <= price",
                price,
                price * held,
                [(price, 0, None), (held, 0, 1)],
                because="held is the sum of u over the requests running in a round of a feasible schedule, at most 1",
            ),
            identity(
                "so TEL >= TEL + paid - sum of prices, and TEL + paid is a sum of terms, one for each request and its start",
                (price + prices_paid) - prices_paid,
                price,
                because="each term is at least its minimum over all starts from the arrival on",
            ),
            exhaustive(
                "the functions used here are dual-feasible: shares that add up to at most one count at most one",
                _multisets,
                lambda case: sum(dual_feasible(case[0])(x, case[1]) for x in case[2]) <= 1,
                domain="parts 1 to 4, all multisets of shares x/M with M <= 10 and sum at most 1",
            ),
            *(
                tested(
                    f"no prices exceed the optimum, with {name}",
                    lambda: _random_prices(3),
                    partial(law, counts=counts),
                    domain="120 small instances, half with arrivals, two random sets of prices each",
                )
                for name, counts in (
                    ("plain memory", share),
                    ("u for 1 part", dual_feasible(1)),
                    ("u for 2 parts", dual_feasible(2)),
                )
            ),
            tested(
                "mean busy times stay a bound under a dual-feasible function, v and d counted with u (v = 0: d = o)",
                lambda: [(case, parts) for arrivals in (0, 6) for case in solved(arrivals) for parts in (1, 2, 3)],
                lambda both: least_means(both[0][0], dual_feasible(both[1])) <= both[0][1],
                domain="120 small instances, half with arrivals, three functions",
                because="the proof of `mean-busy-time` uses only that running requests take at most the capacity in every round",
            ),
        ),
    )


def _multisets() -> Iterator[tuple[int, int, tuple[int, ...]]]:
    def split(budget: int, most: int) -> Iterator[tuple[int, ...]]:
        yield ()
        for x in range(1, min(budget, most) + 1):
            yield from ((x, *rest) for rest in split(budget - x, x))

    for parts in range(1, 5):
        for memory in range(1, 11):
            yield from ((parts, memory, chosen) for chosen in split(memory, memory))
