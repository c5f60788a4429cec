"""Phases are within 7 times the optimum in near-linear time. Exposition: phases.md."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import sympy as sp

from opt.core.instance import Instance
from opt.solvers.bounds import mean_busy_time, trivial
from opt.solvers.phases import OFFSETS, PHASES_FACTOR, RATIO, in_phases, keys
from proofs.claim import Claim, Reference, Step
from proofs.mean_busy_time import outputs, prompts, tail, whole
from proofs.small import draw, latency
from proofs.steps import argued, identity, inequality, limit, tested

__all__ = ["REFERENCES", "greedy", "growth_by_key", "packing", "phases", "split_bound"]

s, o, M, T, m, n, L = sp.symbols("s o M T m n L", positive=True)
a, D, K, beta, x = sp.symbols("a D K beta x", nonnegative=True)
k = sp.Symbol("k", integer=True, nonnegative=True)
half = sp.Rational(1, 2)


def growth_by_key(offsets: int | sp.Expr) -> sp.Expr:
    """Return K: starts add up to at most K times the keys less half the outputs, for the best of so many offsets."""
    return sp.Rational(201, 40) / sp.log(sp.Rational(5, 2)) * spread(offsets, sp.log(sp.Rational(5, 2)))


def spread(offsets: int | sp.Expr, height: sp.Expr) -> sp.Expr:
    """Return h/(1 - exp(-h)) for h = height/offsets: how much the mean over some offsets may exceed that over all."""
    return height / offsets / (1 - sp.exp(-height / offsets))


def greedy(instance: Instance, order: list[int]) -> list[int]:
    """Return starts when, in every round, whoever waits in `order` starts if its peak fits beside the running peaks."""
    start, waiting, t = [0] * instance.n, list(order), 0
    peak, output = instance.peak.tolist(), instance.output.tolist()
    running: list[int] = []
    while waiting:
        running = [i for i in running if start[i] + output[i] > t]
        for i in list(waiting):
            if peak[i] + sum(peak[j] for j in running) <= instance.memory:
                start[i] = t
                running.append(i)
                waiting.remove(i)
        t += 1
    return start


def _packs(case: tuple[Instance, list[int]]) -> bool:
    """Length at most a + max(o, a), from the schedule of any order."""
    instance, order = case
    length = max(int(out) + begun for out, begun in zip(instance.output, greedy(instance, order), strict=True))
    area = Fraction(int((instance.peak * instance.output).sum()), instance.memory)
    return length <= area + int(instance.output.max()) or length <= 2 * area


def _orders() -> Iterator[tuple[Instance, list[int]]]:
    for number, instance in enumerate(draw(300, seed=10, requests=(1, 14), memory=(1, 30))):
        raw = np.random.PCG64(number).random_raw(instance.n)
        yield instance, np.argsort(raw).tolist()
    for budget in range(3, 40):  # peaks just above a half: the bound is nearly reached
        yield Instance(budget, [budget // 2 - 1] * 3 + [0] * 3, [2, 2, 2, 1, 1, 1]), [0, 3, 1, 4, 2, 5]


def _plans(instance: Instance) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return in_phases(instance, keys(instance), RATIO, OFFSETS)


def _volumes_and_outputs(instance: Instance) -> bool:
    """Up to phase k, volumes are at most M times the end of k, and outputs at most 3/2 of that."""
    key = keys(instance)
    for number, (phase_of, _) in enumerate(_plans(instance)):
        for phase in np.unique(phase_of):
            end = RATIO ** (phase + number / OFFSETS) * (1 + 1e-9)
            chosen = phase_of <= phase
            within = (key[chosen] <= end).all() and (2 * instance.output[chosen] <= 3 * end).all()
            if not within or instance.volume[chosen].sum() > instance.memory * end:
                return False
    return True


def _one_by_one(instance: Instance) -> bool:
    """Phases do not overlap, and the starts of each, from its own beginning, add up to at most half of n L - outputs."""
    for phase_of, start in _plans(instance):
        base = 0
        for phase in np.unique(phase_of):
            chosen = phase_of == phase
            length = int((start + instance.output)[chosen].max()) - base
            waits = 2 * int((start[chosen] - base).sum())
            if int(start[chosen].min()) < base or waits > length * int(chosen.sum()) - int(instance.output[chosen].sum()):
                return False
            base += length
    return True


def _some() -> Iterator[Instance]:
    yield from draw(100, seed=11, requests=(1, 15), memory=(1, 40))
    yield from draw(30, seed=12, requests=(50, 150), memory=(10, 300))


def _within(instance: Instance, factor: int) -> bool:
    total = min(latency(instance, start.tolist()) for _, start in _plans(instance))
    return total <= factor * max(mean_busy_time(instance).value, trivial(instance).value, split_bound(instance))


REFERENCES = (
    Reference("general constant 16: Feng, Liu, Yang, Zhang, arXiv 2607.09248", "published"),
    Reference("greedy packing against one resource: Garey and Graham, SIAM J. Computing 4 (1975)", "published"),
    Reference("random geometric phases, half of each counted: Goemans and Kleinberg, Math. Programming 82 (1998)", "published"),
)


def phases(factor: int = PHASES_FACTOR) -> Claim:
    """Return the claim on the solver; another `factor` is for tests that plant a mistake."""
    return Claim(
        "phases",
        f"TEL(phases) <= {factor} OPT, in near-linear time, for any peaks",
        ("offline: all requests are there at round 0", f"at least 11 offsets; the solver tries {OFFSETS}"),
        (*REFERENCES, Reference("the keys, the algorithm and the constant", "new")),
        (*packing(), *_by_keys(), *_against_the_bound(factor)),
    )


def packing() -> tuple[Step, ...]:
    """Return the steps on one phase: greedy packing of rectangles, and its reflection."""
    return (
        inequality("a request at its peak all along has area p o <= 2 v", 2 * whole, (s + o) * o, [prompts, outputs]),
        argued(
            "greedy packing with peaks reserved ends within a + max(o, a) rounds, a = (sum of p o)/M, o the longest output",
            _orders,
            _packs,
            domain="337 random instances and orders, some with peaks just above half the memory",
            because="Let it take L rounds. Who runs in round t' >= t + o started after t, so waited at t and did not fit: the "
            "peaks in t and in t' add up to more than M. If L <= 2 o, take the L - o pairs (t, t + o): M (L - o) <= M a. If "
            "L > 2 o, take pairs at distance L/2, or for odd L at distances (L - 1)/2 and (L + 1)/2, leaving out the last and "
            "the middle round in turn, a pair too: the average round holds M/2, so L <= 2 a",
        ),
        identity(
            "reflected in time, x becomes L - o - x and peaks still fit; the better of both starts at (n L - sum of o)/2 in all",
            (n * x + (n * L - n * o - n * x)) / 2,
            (n * L - n * o) / 2,
        ),
        tested(
            "phases run one after another, and the starts of each add up to at most that",
            _some,
            _one_by_one,
            domain="130 random instances, all offsets",
        ),
    )


def _by_keys() -> tuple[Step, ...]:
    """Phase k holds the keys in (2T/5, T], T = c (5/2)^k; U is the volume over M of phases up to k, D that of phase k alone."""
    u, ratio = sp.Symbol("u", nonnegative=True), sp.Rational(5, 2)
    h, half_of = sp.log(ratio) / m, [(T, 0, None), (x, 0, T / ratio), (D, 0, T - x)]
    longest, area = (o, 0, sp.Rational(3, 2) * T), (a, 0, 2 * D)
    return (
        argued(
            "with key max(F, 2o/3), F the fluid completion in order of volume: U <= T, and outputs are at most 3T/2",
            _some,
            _volumes_and_outputs,
            domain="130 random instances, all offsets and phases",
            because="the largest of those with F <= T has F at least their whole volume over M; and 2o/3 <= key",
        ),
        inequality(
            "an earlier phase takes at most a + max(o, a) <= 3T/2 + 5D/2 rounds, as a <= 2D and D <= U <= T (where a is larger)",
            (3 * T + 5 * D) / 2,
            a + a,
            [(T, 0, None), (D, 0, T), area],
        ),
        inequality("and where the output is larger", (3 * T + 5 * D) / 2, a + o, [(T, 0, None), (D, 0, T), area, longest]),
        identity(
            "earlier phases: the sum of (3/2) T (2/5)^j over j >= 1 is T, and their D add up to x <= 2T/5",
            sp.summation(sp.Rational(3, 2) * T * ratio ** (-k - 1), (k, 0, sp.oo)),
            T,
        ),
        inequality(
            "T + 5x/2 and half of phase k, with D <= T - x, are at most (67/20) T (where a is larger)",
            sp.Rational(67, 20) * T,
            T + 5 * x / 2 + (a + a) / 2,
            [*half_of, area],
        ),
        inequality(
            "and where the output is larger",
            sp.Rational(67, 20) * T,
            T + 5 * x / 2 + (a + o) / 2,
            [*half_of, area, longest],
            because="so a request of phase k starts, on average, by (67/20) T, less half its output",
        ),
        identity(
            "the mean of T/key over m offsets is a geometric sum: the values (5/2)^((j + u)/m) for one u in [0, 1)",
            sp.exp(u * h) * (ratio - 1) / (m * (sp.exp(h) - 1)),
            sp.exp((u - 1) * h) * (ratio - 1) / sp.log(ratio) * spread(m, sp.log(ratio)),
            because="T/key runs through them, j = 0 .. m - 1, as the offset c does; and u - 1 < 0",
        ),
        identity(
            "so starts add up to at most K G - O/2, G the sum of keys, K = (67/20)(3/2)/ln(5/2) theta",
            sp.Rational(67, 20) * (ratio - 1) / sp.log(ratio) * spread(m, sp.log(ratio)),
            growth_by_key(m),
        ),
    )


def thin(instance: Instance) -> np.ndarray:
    """Return who is thin (n,): 2/3 of the output is above the fluid completion."""
    return keys(instance) <= 2 * instance.output / 3


def split_bound(instance: Instance) -> Fraction:
    """Return a lower bound: outputs of the thin ones, and mean busy times of the others as if these were alone."""
    left = instance.take(np.flatnonzero(~thin(instance)))
    return int(instance.output[thin(instance)].sum()) + mean_busy_time(left).value


def _pairs(instance: Instance) -> bool:
    """Sums over pairs of smaller volumes: what the keys, mean busy times and Cauchy-Schwarz say of them."""
    Q, w = thin(instance), [Fraction(int(volume), instance.memory) for volume in instance.volume]

    def pairs(first: bool, second: bool) -> Fraction:
        chosen = ([i for i in range(instance.n) if Q[i] == side] for side in (first, second))
        left, right = chosen
        return sum((min(w[i], w[j]) for i in left for j in right), Fraction(0))

    S, z, rest = pairs(True, True), pairs(True, False), pairs(False, False)
    X = (rest + sum((w[i] for i in range(instance.n) if not Q[i]), Fraction(0))) / 2
    Y = int(instance.output[Q].sum())
    keyed = float(keys(instance).sum()) <= float(Fraction(2, 3) * Y + X + z) * (1 + 1e-9)
    return bool(
        keyed
        and z * z <= 2 * S * X
        and mean_busy_time(instance).value >= S / 2 + Fraction(Y, 3) + z + X - Fraction(instance.n, 2**31)
        and split_bound(instance) >= Y + X - Fraction(instance.n, 2**31)
    )


def _against_the_bound(factor: int) -> tuple[Step, ...]:
    """G <= (17/15) OPT. Y: outputs of the thin; X: volume bound of the others alone; S, z: pairs of thin, and across."""
    S, X, Y, z, y = sp.symbols("S X Y z y", nonnegative=True)
    c, rho = sp.Rational(17, 15), sp.Rational(17, 15) * K + half
    busy, split = S / 2 + Y / 3 + z + X, Y + X
    return (
        inequality("d >= o/3", tail, o / 3, [prompts, outputs]),
        inequality("d >= w/2, w = v/M", tail, whole / (2 * M), [prompts, outputs, (M, s + o, None)]),
        argued(
            "Q: those with key 2o/3. G <= 2Y/3 + X + z, OPT >= S/2 + Y/3 + z + X, OPT >= Y + X, z^2 <= 2 S X",
            lambda: draw(200, seed=16, requests=(1, 14), memory=(1, 40)),
            _pairs,
            domain="200 random instances",
            because="F of another request is its F among the others plus volumes of Q up to its own, each the smaller of a pair. "
            "Mean busy times are half the sum of the smaller volume over all ordered pairs, plus d: at least o/3 on Q and w/2 "
            "elsewhere. Without Q the others keep their own bound, and Q takes its outputs. min(w, w') is the integral of "
            "1(r <= w) 1(r <= w'), so Cauchy-Schwarz gives z^2 <= S times the sum over pairs of the others, at most 2X",
        ),
        identity(
            "7/10 of the first bound and 13/30 of the second make 17/15; less G they leave 7S/20 + 2X/15 - 3z/10",
            sp.Rational(7, 10) * busy + sp.Rational(13, 30) * split - (sp.Rational(2, 3) * Y + X + z),
            7 * S / 20 + 2 * X / 15 - 3 * z / 10,
        ),
        identity(
            "at least 0, as z <= sqrt(2 S X): with S = x^2 and 2X = y^2 it is a sum of squares. So G <= 17/15 OPT",
            7 * x**2 / 20 + y**2 / 15 - 3 * x * y / 10,
            sp.Rational(7, 20) * (x - 3 * y / 7) ** 2 + y**2 / 420,
        ),
        identity("the weights", sp.Rational(7, 10) + sp.Rational(13, 30), c),
        inequality(
            f"TEL <= K G + O/2 <= (17K/15 + 1/2) OPT, at most {factor} with the {OFFSETS} offsets of the solver",
            factor,
            rho.subs(K, growth_by_key(OFFSETS)),
            [],
        ),
        inequality("and with 11", factor, rho.subs(K, growth_by_key(11)), []),
        limit(
            "with ever more offsets it tends to 1139/200/ln(5/2) + 1/2, which is 6.72",
            rho.subs(K, growth_by_key(m)),
            m,
            sp.Rational(1139, 200) / sp.log(sp.Rational(5, 2)) + half,
        ),
        tested(
            f"phases one after another stay within {factor} times the larger of both bounds",
            _some,
            lambda instance: _within(instance, factor),
            domain="130 random instances",
        ),
    )
