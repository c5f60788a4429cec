"""Phases by the best order of a relaxation are within 5.51 times the optimum. Exposition: phases.md."""

from __future__ import annotations

from fractions import Fraction
from itertools import permutations

import numpy as np
import sympy as sp

from opt.core.instance import Instance
from opt.solvers.phases import in_phases
from proofs.claim import Claim, Reference, Step
from proofs.phases import REFERENCES, packing
from proofs.small import draw, latency, solved
from proofs.steps import argued, identity, inequality, tested

__all__ = ["best_order", "growth_by_order", "phases_by_order"]

o, T = sp.symbols("o T", positive=True)
a, D, beta, x = sp.symbols("a D beta x", nonnegative=True)
k = sp.Symbol("k", integer=True, nonnegative=True)
half = sp.Rational(1, 2)


def growth_by_order(ratio: sp.Expr) -> sp.Expr:
    """Return the same factor for phases of this ratio (from 2 on) cut by the completions of an order, over all offsets."""
    return (2 * ratio - 1 / ratio) / sp.log(ratio)


def best_order(instance: Instance) -> tuple[Fraction, list[Fraction]]:
    """Return the least R = sum of max(volumes up to j / M, output of j) over all orders, and these completions (n,)."""
    best: tuple[Fraction, list[Fraction]] | None = None
    for order in permutations(range(instance.n)):
        done, ends = 0, [Fraction(0)] * instance.n
        for i in order:
            done += int(instance.volume[i])
            ends[i] = max(Fraction(done, instance.memory), Fraction(int(instance.output[i])))
        if best is None or sum(ends) < best[0]:
            best = (sum(ends, Fraction(0)), ends)
    assert best is not None
    return best


ORDER_RATIO = 2.3
TRIES = 64


def _by_best_order(instance: Instance) -> bool:
    """Total latency of the best of 64 offsets against K R + (sum of outputs)/2, K for so many offsets."""
    least, ends = best_order(instance)
    plans = in_phases(instance, np.array([float(end) for end in ends]), ORDER_RATIO, TRIES)
    total = min(latency(instance, start.tolist()) for _, start in plans)
    h = np.log(ORDER_RATIO) / TRIES
    factor = (2 * ORDER_RATIO - 1 / ORDER_RATIO) / np.log(ORDER_RATIO) * h / (1 - np.exp(-h))
    return bool(total <= factor * float(least) + instance.output.sum() / 2 + 1e-9)


def phases_by_order(constant: Fraction = Fraction(551, 100)) -> Claim:
    """Return the theorem; another `constant` is for tests that plant a mistake."""
    return Claim(
        "phases-by-order",
        f"TEL <= {float(constant)} OPT for phases of ratio 2.3 cut by the best order of R = min sum of max(volume so far/M, o)",
        (
            "offline: all requests are there at round 0",
            "the order attains R, or comes within 1 + epsilon of it: then the constant holds up to 1 + epsilon",
        ),
        (
            *REFERENCES,
            Reference(
                "R is total tardiness on one machine plus the outputs: pseudo-polynomial (Lawler 1977), FPTAS (1982)", "published"
            ),
            Reference("the relaxation, the algorithm and the constant", "new"),
        ),
        (*packing()[:3], *_relaxation(), *_by_order(sp.Rational(constant.numerator, constant.denominator))),
    )


def _relaxation() -> tuple[Step, ...]:
    return (
        argued(
            "R <= OPT",
            solved,
            lambda case: best_order(case[0])[0] <= case[1],
            domain="60 small instances, all orders and all starts tried",
            because="in the optimum's order of completion, the requests up to j take their volume by c_j, at most M a round; "
            "and c_j >= o_j",
        ),
        argued(
            "with the completions of that order as keys, volumes up to phase k are at most M T, and outputs at most T",
            lambda: draw(60, seed=13, requests=(1, 6), memory=(1, 20)),
            lambda instance: all(
                sum(int(volume) for volume, end in zip(instance.volume, ends, strict=True) if end <= T) <= instance.memory * T
                for ends in [best_order(instance)[1]]
                for T in ends
            ),
            domain="60 random instances, all phases there can be",
            because="the last in the order of those with completion <= T comes after all the others",
        ),
    )


def _by_order(constant: sp.Expr) -> tuple[Step, ...]:
    ratio = sp.Rational(23, 10)
    return (
        inequality(
            "an earlier phase takes at most a + max(o, a) <= T + 3 D rounds, as a <= 2 D, o <= T and D <= T",
            T + 3 * D,
            a + a,
            [(T, 0, None), (D, 0, T), (a, 0, 2 * D)],
        ),
        inequality("and where the output is larger", T + 3 * D, a + o, [(T, 0, None), (D, 0, T), (a, 0, 2 * D), (o, 0, T)]),
        identity(
            "earlier phases: the sum of T/beta^j is T/(beta - 1), and their D add up to x <= T/beta",
            sp.summation(T * ratio ** (-k - 1), (k, 0, sp.oo)),
            T / (ratio - 1),
        ),
        inequality(
            "half of phase k, D <= T - x: at most 2 (T - x), as x <= T/beta <= T/2 (where a is larger)",
            2 * (T - x),
            (a + a) / 2,
            [(T, 0, None), (x, 0, T / 2), (a, 0, 2 * (T - x))],
        ),
        inequality(
            "and where the output is larger",
            2 * (T - x),
            (a + o) / 2,
            [(T, 0, None), (x, 0, T / 2), (a, 0, 2 * (T - x)), (o, 0, T)],
        ),
        inequality(
            "so a request of phase k starts, on average, by T/(beta - 1) + 3 x + 2 (T - x) <= T (2 + 1/beta + 1/(beta - 1))",
            T * (2 + 1 / beta),
            3 * x + 2 * (T - x),
            [(beta, 2, None), (T, 0, None), (x, 0, T / beta)],
        ),
        identity(
            "the mean of T/key over all offsets is (beta - 1)/ln beta: K = (2 beta - 1/beta)/ln beta",
            (2 + 1 / beta + 1 / (beta - 1)) * (beta - 1) / sp.log(beta),
            growth_by_order(beta),
        ),
        inequality("K + 1/2 at beta = 2.3, for OPT >= R and OPT >= sum of o", constant, growth_by_order(ratio) + half, []),
        tested(
            "the best of 64 offsets stays within K R + (sum of o)/2, K for so many offsets",
            lambda: draw(150, seed=14, requests=(1, 6), memory=(1, 20)),
            _by_best_order,
            domain="150 random instances, all orders tried",
        ),
    )
