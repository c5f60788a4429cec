"""The density lemma behind Sorted-F and Sorted-rate: where many requests end early, some batch is good. See density.md.

Let N requests all end by round T in some schedule, let f be the least rate (longest output)/size among sets of them whose
peaks add up to at most M (or the least F), and put x = o/f, y = M/p, mu = M/f, tau = T/f. The lemma says N <= C tau. What
is known of the requests is a count for every k and one volume; `N <= C tau` follows once each request is *covered*,
collecting at least 1 from weights on these constraints that cost at most C tau in all.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from itertools import accumulate, combinations, pairwise

import numpy as np
import sympy as sp

from opt.core.instance import Instance
from opt.solvers.fmetric import batch_f, batch_fits
from proofs.claim import Claim, Finding, Reference, Report, Step, prove
from proofs.mean_busy_time import outputs, prompts, whole
from proofs.small import draw, schedules, solved
from proofs.steps import argued, exhaustive, identity, inequality, tested

__all__ = ["Harmonic", "Weights", "density", "density_by_hand", "find_weights", "least_batch", "the_lemma", "verdict"]

GRID = 10**6  # weights found in floats are rounded down to this grid, then checked exactly
LARGE = 80  # mu from which harmonic weights do for C = 4
FAR = 16  # outputs floor(x) from which an inequality in one variable takes over
CUTS = ((1, 0), (sp.Rational(6, 5), "91/500"), (sp.Rational(3, 2), "81/200"), (2, "693/1000"), (3, "549/500"), (8, "2079/1000"))

s, o, M, mu, x, y, t = sp.symbols("s o M mu x y t", positive=True)


@dataclass(frozen=True)
class Weights:
    """A cover for low <= mu <= high: a weight for volume, counts k = 2 .. floor(high), and the count after the last output.

    Args:
        low, high: the interval of mu.
        volume: weight of the volume constraint.
        count: weight of the constraint "fewer than k requests have y >= k and x < k", by k.
        last: for m = floor(tau), weight of that constraint for k = m + 1, by m; none is needed from floor(high) on.
    """

    low: Fraction
    high: Fraction
    volume: Fraction
    count: dict[int, Fraction]
    last: dict[int, Fraction]


@dataclass(frozen=True)
class Harmonic:
    """Weights for every mu >= `low` at once: `volume`, `slope/(k - 1)` on count k, and 1 on the last."""

    low: int
    volume: Fraction
    slope: Fraction


def least_volume(j: int, b: int, low: Fraction, high: Fraction | None) -> Fraction:
    """Return a lower bound on x/y - x**2/(2 mu) for x in [j, j+1), y in [b, b+1), x y <= mu, mu in [low, high].

    It rises in x up to mu/y and falls in y. So the least is at x = j and y = min(b + 1, mu/j): falling in mu up to
    the knee j (b + 1), where it is j/(2 (b + 1)), and rising afterwards.
    """
    knee, begin = Fraction(j * (b + 1)), max(low, Fraction(j * b))

    def at(value: Fraction) -> Fraction:
        return Fraction(j, b + 1) - Fraction(j * j) / (2 * value) if value >= knee else Fraction(j * j) / (2 * value)

    ends = [begin] if high is None else [begin, high]
    return min(at(value) for value in ([*ends, knee] if begin <= knee and (high is None or knee <= high) else ends))


def cells(high: int) -> Iterator[tuple[int, int]]:
    """Yield the (floor x, floor y) that x y <= high allows."""
    yield from ((j, b) for j in range(1, high + 1) for b in range(1, high // j + 1))


def verdict(weights: Weights, constant: Fraction) -> bool | str:
    """Check a cover exactly: every cell collects 1, and the cost is at most constant * tau for every tau >= 1."""
    most = int(weights.high)
    counts = [Fraction(0), *accumulate(weights.count.get(k, Fraction(0)) for k in range(1, most + 1))]
    costs = [Fraction(0), *accumulate((k - 1) * weights.count.get(k, Fraction(0)) for k in range(1, most + 1))]
    for j, b in cells(most):
        volume = weights.volume * least_volume(j, b, weights.low, weights.high) - counts[j]
        for m in range(j, max(b, j) + 1):
            if volume + counts[max(min(b, m), j)] + (weights.last[m] if b > m else 0) < 1:
                return f"a request with floor x = {j}, floor y = {b} collects less than 1 where floor tau = {m}"
    for m in range(1, most + 1):  # tau in [m, m + 1), and beyond for m = most: the counts cost no more there
        if costs[m] + m * weights.last.get(m, Fraction(0)) > (constant - weights.volume) * m:
            return f"floor tau = {m} costs more than {constant} tau"
    return weights.volume <= constant and min([*weights.count.values(), *weights.last.values(), weights.volume]) >= 0


def find_weights(low: int, high: int, constant: Fraction) -> Weights:
    """Return the cover of most slack for low <= mu <= high, by a linear program in floats, rounded down to a grid.

    Raises:
        ValueError: there is none.
    """
    from scipy.optimize import linprog

    most = high
    width = max(most - 1, 0)
    rows, limits = [], []
    for j, b in cells(most):
        volume = float(least_volume(j, b, Fraction(low), Fraction(high)))
        for m in range(j, max(b, j) + 1):
            row = np.zeros(2 + 2 * width)
            row[0], row[-1] = -volume, 1.0
            row[j : max(min(b, m), j)] = -1.0  # the counts k = j + 1 .. min(b, m)
            if b > m:
                row[width + m] = -1.0
            rows.append(row)
            limits.append(-1.0)
    for m in range(1, most + 1):
        row = np.zeros(2 + 2 * width)
        row[0], row[1:m] = m, np.arange(1, m)
        if m < most:
            row[width + m] = m
        rows.append(row)
        limits.append(float(constant) * m)
    aim = [0.0] * (1 + 2 * width) + [-1.0]
    free = [(0, None)] * (1 + 2 * width) + [(None, None)]
    found = linprog(aim, A_ub=np.array(rows), b_ub=limits, bounds=free, method="highs")
    if found.x is None or found.x[-1] <= 0:
        raise ValueError(f"no weights cover {low} <= mu <= {high} with constant {constant}")
    exact = [Fraction(int(value * GRID), GRID) for value in found.x[:-1]]
    count = {k: exact[k - 1] for k in range(2, most + 1)}
    return Weights(Fraction(low), Fraction(high), exact[0], count, {m: exact[width + m] for m in range(1, most)})


def near_cells(weights: Harmonic) -> Iterator[tuple[int, int]]:
    """Yield the cells with floor x < FAR up to the first floor y whose counts alone give 1."""
    for j in range(1, FAR):
        counted, b = Fraction(0), j
        while counted < 1:
            yield j, b
            counted += weights.slope / b
            b += 1


def collected(weights: Harmonic, j: int, b: int) -> Fraction:
    """Return what a request of the cell collects at least, for any mu from `weights.low` on."""
    counted = weights.slope * sum((Fraction(1, k) for k in range(j, b)), Fraction(0))
    return weights.volume * least_volume(j, b, Fraction(weights.low), None) + counted


def least_batch(instance: Instance, members: list[int], kind: str) -> Fraction:
    """Return the least rate ("rate") or F ("f") over feasible sets of members, by trying all."""
    sets = (list(chosen) for size in range(1, len(members) + 1) for chosen in combinations(members, size))
    if kind == "f":
        return min(batch_f(instance, chosen) for chosen in sets if batch_fits(instance, chosen))
    fitting = (chosen for chosen in sets if int(instance.peak[chosen].sum()) <= instance.memory)
    return min(Fraction(int(instance.output[chosen].max()), len(chosen)) for chosen in fitting)


def _counts(case: tuple[Instance, str]) -> bool:
    instance, kind = case
    least = least_batch(instance, list(range(instance.n)), kind)
    pairs = list(zip(instance.peak.tolist(), instance.output.tolist(), strict=True))
    return all(sum(k * p <= instance.memory and out < k * least for p, out in pairs) < k for k in range(1, instance.n + 2))


def _ended(instance: Instance, start: list[int], constant: Fraction) -> bool:
    ends = [begun + int(out) for begun, out in zip(start, instance.output, strict=True)]
    for T in set(ends):
        early = [i for i, end in enumerate(ends) if end <= T]
        if any(len(early) * least_batch(instance, early, kind) > constant * T for kind in ("rate", "f")):
            return False
    return True


def _lemma(constant: Fraction) -> Step:
    def cases() -> Iterator[tuple[Instance, list[int]]]:
        for instance, best, start in solved():
            yield instance, start
            if instance.n <= 4:
                yield from ((instance, other) for other in schedules(instance, best - int(instance.output.sum())))
        for half in range(3, 12):  # requests just above half the memory, in two lanes: mu = 2, where the accounting is tight
            yield Instance(2 * half, [0] * 4, [half + 1] * 4), [0, 2, half + 1, half + 3]

    def law(case: tuple[Instance, list[int]]) -> bool:
        return _ended(*case, constant)

    return tested(
        f"N f <= {constant} T, for rates and for F, whoever has ended by whichever T",
        cases,
        law,
        domain="optimal and all no longer schedules of 60 small instances, and steep requests near half the memory",
    )


def _constraints() -> tuple[Step, ...]:
    """What is known of N requests that end by T."""
    return (
        argued(
            "for each k fewer than k requests have y >= k and x < k; so x >= 1 (k = 1)",
            lambda: (
                (instance, kind) for instance in draw(80, seed=6, requests=(1, 7), memory=(1, 24)) for kind in ("rate", "f")
            ),
            _counts,
            domain="80 random instances, least rate and least F",
            because="k requests with p <= M/k fit together at their peaks; with outputs below k f their rate is below f, and so "
            "is their F, (sum of outputs)/k^2",
        ),
        inequality("v >= p o - o^2/2, and the volumes add up to at most M T", whole, (s + o) * o - o**2 / 2, [prompts, outputs]),
        identity(
            "divided by M f: the sum of x/y - x^2/(2 mu) is at most tau, with x <= tau and, since o <= p, x y <= mu",
            ((M / y) * (x * M / mu) - (x * M / mu) ** 2 / 2) / (M * M / mu),
            x / y - x**2 / (2 * mu),
        ),
    )


def _small_mu(constant: Fraction) -> tuple[Step, ...]:
    """mu <= 3, by hand."""
    c, tau = sp.Rational(constant.numerator, constant.denominator), sp.Symbol("tau", positive=True)
    each = (mu - 1) / (2 * mu)
    return (
        inequality(
            "mu <= 2: since y <= mu/x each term is at least x^2/(2 mu) >= 1/(2 mu) >= 1/C", 1 / (2 * mu), 1 / c, [(mu, 1, 2)]
        ),
        inequality(
            "2 <= mu <= 3, y < 2: each term is at least (mu - 1)/(2 mu), its value at x = 1, y = 2",
            x / y - x**2 / (2 * mu),
            each,
            [(mu, 2, 3), (y, 1, 2), (x, 1, mu / y)],
        ),
        inequality(
            "2 <= mu <= 3: only one has y >= 2 (then x <= mu/2 < 2, and count 2), with a term of at least 1/(2 mu): N <= C tau",
            c * tau,
            1 + (tau - 1 / (2 * mu)) / each,
            [(mu, sp.Rational(2), 3), (tau, 1, None)],
        ),
    )


def _cell_bound() -> tuple[Step, ...]:
    return (
        inequality(
            "x/y - x^2/(2 mu) rises in x while x y <= mu: from x = j on it is at least its value at j",
            x / y - x**2 / (2 * mu),
            t / y - t**2 / (2 * mu),
            [(y, 1, None), (t, 1, None), (x, t, None), (mu, x * y, None)],
        ),
        inequality(
            "a request with x >= floor(y) + 1 has x/y - x^2/(2 mu) >= x/(2 y) >= 1/2",
            x / y - x**2 / (2 * mu),
            sp.Rational(1, 2),
            [(y, 1, None), (x, y, None), (mu, x * y, None)],
        ),
    )


def _large_mu(weights: Harmonic, constant: Fraction) -> tuple[Step, ...]:
    """Harmonic weights: cells near the corner one by one, the others by an inequality in y/x."""
    volume, slope, c = (sp.Rational(v.numerator, v.denominator) for v in (weights.volume, weights.slope, constant))
    m = sp.Symbol("m", positive=True)
    return (
        inequality(
            f"mu >= {weights.low}: volume weight {volume}, {slope}/(k - 1) on count k <= m, 1 on count m + 1 cost at most C tau",
            c * m,
            volume * m + slope * (m - 1) + m,
            [(m, 1, None)],
            because="count k <= m costs slope/(k - 1) * (k - 1), the last m, and the volume tau >= m, of weight at most C; "
            "y >= m + 1 collects 1 from the last",
        ),
        exhaustive(
            f"every cell with floor x < {FAR} collects 1",
            lambda: near_cells(weights),
            lambda cell: collected(weights, *cell) >= 1 or f"only {float(collected(weights, *cell)):.4f}",
            domain=f"floor x < {FAR}, floor y up to where the counts alone give 1; exact, for all mu >= {weights.low} together",
        ),
        *_far_cells(volume, slope),
    )


def _far_cells(volume: sp.Expr, slope: sp.Expr) -> Iterator[Step]:
    """With t = b/j: 1/j + .. + 1/(b - 1) >= ln t, and the volume gives volume/(2 (t + 1/j))."""
    k = sp.Symbol("k", positive=True)
    yield inequality(
        "1/k >= 1/x for x in [k, k + 1], so the counts j + 1 .. b give at least slope times the integral, ln(b/j)",
        1 / k,
        1 / x,
        [(k, 1, None), (x, k, k + 1)],
    )
    for (begin, log), (end, _) in pairwise(CUTS):
        if log:
            yield inequality(f"ln {begin} >= {log}", sp.log(begin), sp.Rational(log), [])
        yield inequality(
            f"floor x >= {FAR}, {begin} <= t <= {end}: collects at least 1, as ln t >= {log} + 1 - {begin}/t",
            volume / (2 * (t + sp.Rational(1, FAR))) + slope * (sp.Rational(log) + 1 - begin / t),
            1,
            [(t, begin, end)],
        )
    last, log = CUTS[-1]
    yield inequality(f"ln {last} >= {log}", sp.log(last), sp.Rational(log), [])
    yield inequality(f"t >= {last}: the counts alone give 1", slope * sp.Rational(log), 1, [])


def intervals() -> list[tuple[int, int]]:
    """Return the intervals from 3 to LARGE, each of length 1 or of an eighth of its start."""
    ends = [3]
    while ends[-1] < LARGE:
        ends.append(min(LARGE, ends[-1] + max(1, ends[-1] // 8)))
    return list(pairwise(ends))


def _medium_mu(constant: Fraction) -> Step:
    def law(interval: tuple[int, int]) -> bool | str:
        return verdict(find_weights(*interval, constant), constant)

    return exhaustive(
        f"3 <= mu <= {LARGE}: on each of some intervals there are weights that cover all cells at a cost of at most C tau",
        intervals,
        law,
        domain="intervals of length 1 or an eighth; weights by a linear program, checked in exact fractions, for all mu and tau",
        because="only cells with floor x * floor y <= mu exist, so from floor tau = floor mu on no further count is needed",
    )


@cache
def proved(constant: Fraction) -> Report:
    """Return the report on `density`, run once."""
    return prove(density(constant))


def the_lemma(constant: Fraction) -> Step:
    """Return the step that uses `density`: it holds if that claim does."""

    def check() -> Finding:
        report = proved(constant)
        return Finding(report.outcome == "established", "argued", f"claim density: {report.outcome}, {report.summary}")

    return Step(f"the density lemma with C = {constant}", check, "this is the claim `density`, which is run")


REFERENCES = (
    Reference("Sorted-F and its constant 48: Wang, Ye, Zhou, arXiv 2508.06133", "published"),
    Reference("the lemma, for F and for rates", "new"),
)
HYPOTHESES = ("N requests all end by round T in some feasible schedule", "f: the least rate or F over their feasible sets")


def density(constant: Fraction = Fraction(4)) -> Claim:
    """Return the lemma with C = 4, the limit of this accounting; another `constant` is for tests that plant a mistake."""
    weights = Harmonic(LARGE, Fraction(23, 10), Fraction(7, 10))
    return Claim(
        "density",
        f"N f <= {constant} T: if N requests end by T, some set of them has rate, and some has F, of at most {constant} T/N",
        HYPOTHESES,
        REFERENCES,
        (
            *_constraints(),
            *_small_mu(constant),
            *_cell_bound(),
            _medium_mu(constant),
            *_large_mu(weights, constant),
            _lemma(constant),
        ),
    )


def density_by_hand(constant: Fraction = Fraction(9, 2)) -> Claim:
    """Return the lemma with C = 9/2 and one set of weights; another `constant` is for tests that plant a mistake."""
    weights = Harmonic(3, Fraction(3), Fraction(1, 2))
    return Claim(
        "density-by-hand",
        f"N f <= {constant} T by harmonic weights alone, without a linear program",
        HYPOTHESES,
        REFERENCES,
        (*_constraints(), *_small_mu(constant), *_cell_bound(), *_large_mu(weights, constant), _lemma(constant)),
    )
