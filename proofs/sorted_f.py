"""Sorted-F within 32 and Sorted-rate within 16 of the optimum, from the density lemma. Exposition: sorted_f.md."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
import sympy as sp

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.solvers.bounds import mean_busy_time, trivial
from opt.solvers.fmetric import exact_batches
from opt.solvers.sorted_f import SORTED_F_FACTOR, SORTED_RATE_FACTOR, batch_serial, rate_batches
from proofs.claim import Claim, Reference, Step
from proofs.density import the_lemma
from proofs.small import draw, latency, solved
from proofs.steps import argued, identity, inequality, tested

__all__ = ["columns", "histogram_fits", "sorted_f", "sorted_rate"]

C, w, k, S, F, D, R, T = sp.symbols("C w k S F D R T", positive=True)


def batches(batch_of: IntArray) -> list[list[int]]:
    """Return the members of each batch, in turn."""
    return [np.flatnonzero(batch_of == number).tolist() for number in range(int(batch_of.max(initial=-1)) + 1)]


def columns(instance: Instance, batch_of: IntArray) -> list[tuple[int, int, Fraction]]:
    """Return (requests left before it, size, price R D/size) of each batch; the prices of all requests add up to sum R D."""
    left, found = instance.n, []
    for members in batches(batch_of):
        found.append((left, len(members), Fraction(left * int(instance.output[members].max()), len(members))))
        left -= len(members)
    return found


def histogram_fits(instance: Instance, batch_of: IntArray, start: list[int], height: Fraction) -> bool:
    """Whether at least half of those left before each batch end in `start` no earlier than its price over `height`."""
    ends = [begun + int(output) for begun, output in zip(start, instance.output, strict=True)]
    return all(2 * sum(end * height >= price for end in ends) >= left for left, _, price in columns(instance, batch_of))


def _fits(kind: str, constant: Fraction) -> Step:
    former, height = (exact_batches, 4 * constant) if kind == "F" else (rate_batches, 2 * constant)
    return argued(
        f"prices over {height} and widths over 2 fit under the optimum: half of those left end no earlier than price/{height}",
        solved,
        lambda case: histogram_fits(case[0], former(case[0]), case[2], height),
        domain="60 small instances against an optimal schedule",
        because="otherwise more than R/2 of the R left end before T = price/height, so by the lemma some set of them has "
        f"{'F' if kind == 'F' else 'a rate'} below C T/(R/2); the batch is at least as good, and its price below height * T",
    )


def _bounded(kind: str) -> Step:
    former = exact_batches if kind == "F" else rate_batches
    factor = SORTED_F_FACTOR if kind == "F" else SORTED_RATE_FACTOR

    def law(instance: Instance) -> bool:
        total = latency(instance, batch_serial(instance, former(instance)).tolist())
        prices = sum((size * price for _, size, price in columns(instance, former(instance))), Fraction(0))
        return total <= prices and total <= factor * max(mean_busy_time(instance).value, trivial(instance).value)

    return tested(
        f"total latency <= the sum of prices, and <= {factor} times the proved bound (the factor the solver states)",
        _some,
        law,
        domain="120 random instances of up to 40 requests",
    )


def _some() -> Iterator[Instance]:
    yield from draw(100, seed=8, requests=(1, 9), memory=(1, 25))
    yield from draw(20, seed=9, requests=(20, 40), memory=(5, 60))


def _shared(constant: Fraction) -> tuple[Step, ...]:
    return (
        the_lemma(constant),
        identity(
            "batch k takes D rounds, in which each of the R left waits or runs: R D in all, size * (R D/size)",
            k * (R * D / k),
            R * D,
        ),
        inequality(
            "widths over w and heights over C w/(w - 1) cost C w^2/(w - 1), least at w = 2",
            C * w**2 / (w - 1),
            4 * C,
            [(C, 0, None), (w, sp.Rational(1001, 1000), None)],
        ),
    )


def _claim(kind: str, constant: Fraction, steps: tuple[Step, ...], factor: Fraction) -> Claim:
    name = "sorted-f" if kind == "F" else "sorted-rate"
    what = "the minimum of F = (sum of outputs)/size^2" if kind == "F" else "the least (longest output)/size"
    return Claim(
        name,
        f"TEL({name}) <= {factor} OPT: batches one after another, each {what}",
        ("offline: all requests are there at round 0", "every batch is an exact minimiser among what is left"),
        (
            Reference("Sorted-F within 48: Wang, Ye, Zhou, arXiv 2508.06133", "published"),
            Reference("the histogram argument for min-sum set cover: Feige, Lovasz, Tetali 2004", "published"),
            Reference(f"the constant {factor} from C = {constant}" + ("" if kind == "F" else ", and the rule"), "new"),
        ),
        steps,
    )


def sorted_f(constant: Fraction = Fraction(4)) -> Claim:
    """Return the claim on Sorted-F; another `constant` of the density lemma is for tests that plant a mistake."""
    steps = (
        identity(
            "8C is the factor the solver states", 8 * sp.Rational(constant.numerator, constant.denominator), SORTED_F_FACTOR
        ),
        *_shared(constant),
        inequality(
            "taking out a member of output D does not lower F = S/k^2: (S - D)/(k - 1)^2 >= F allows D up to (2k - 1) F, no more",
            F,
            (k**2 * F - (2 * k - 1) * F) / (k - 1) ** 2,
            [(F, 0, None), (k, sp.Rational(1001, 1000), None)],
            because="at D = (2k - 1) F both are equal, and (S - D)/(k - 1)^2 falls in D; for k = 1, D = F",
        ),
        inequality(
            "so D <= 2 k F, and the price R D/k <= 2 R F",
            2 * R * F,
            R * (2 * k - 1) * F / k,
            [(R, 0, None), (F, 0, None), (k, 1, None)],
        ),
        identity("2 R * C T/(R/2) = 4 C T", 2 * R * C * T / (R / 2), 4 * C * T),
        _fits("F", constant),
        identity("widths over 2, heights over 4C: TEL <= 8 C OPT", 2 * 4 * C, 8 * C),
        _bounded("F"),
    )
    return _claim("F", constant, steps, 8 * constant)


def sorted_rate(constant: Fraction = Fraction(4)) -> Claim:
    """Return the claim on Sorted-rate; another `constant` of the density lemma is for tests that plant a mistake."""
    steps = (
        identity(
            "4C is the factor the solver states", 4 * sp.Rational(constant.numerator, constant.denominator), SORTED_RATE_FACTOR
        ),
        *_shared(constant),
        identity("the price R D/k is R times the rate; R * C T/(R/2) = 2 C T", R * C * T / (R / 2), 2 * C * T),
        _fits("rate", constant),
        identity("widths over 2, heights over 2C: TEL <= 4 C OPT", 2 * 2 * C, 4 * C),
        _bounded("rate"),
    )
    return _claim("rate", constant, steps, 4 * constant)
