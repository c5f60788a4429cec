"""Errors on what a fit has not seen.

Half of the measured attention points (of a log: half of its iterations), drawn at random within each kind, train; the
other half tests, and its iterations contain no trained point. Errors are relative, pooled over several splits, each kind
of iteration with its fixed share of the weight. `thin` withholds half of the dense points from training as well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.load import Load
from opt.core.cost.model import CostModel, Form
from opt.fit.fitting import fit_iterations
from opt.fit.iterations import KINDS, Iterations, compose, halves
from opt.fit.operators import Operators

__all__ = ["PAIRS", "SPLITS", "Errors", "errors_of", "held_out", "held_out_log"]

SPLITS = 4
PAIRS = 2000  # mixed iterations of a split, where prefill and decode were measured apart


@dataclass(frozen=True)
class Errors:
    """Relative errors (m,), signed, with weights (m,) and kinds (m,)."""

    errors: FloatArray
    weights: FloatArray
    kinds: IntArray

    def __add__(self, other: Errors) -> Errors:
        return Errors(
            np.concatenate([self.errors, other.errors]),
            np.concatenate([self.weights, other.weights]),
            np.concatenate([self.kinds, other.kinds]),
        )

    def quantile(self, share: float) -> float:
        """Return the size of error that the given share of the weight stays within."""
        sizes = np.abs(self.errors)
        order = np.argsort(sizes)
        reached = np.cumsum(self.weights[order])
        at = int(np.searchsorted(reached, share * reached[-1]))
        return float(sizes[order][min(at, len(order) - 1)])

    def summary(self) -> dict[str, Any]:
        """Return median and P95, of all and of each kind that is there, the bias, and the number of test iterations."""
        found: dict[str, Any] = {"median": _round(self.quantile(0.5)), "p95": _round(self.quantile(0.95))}
        found["bias"] = _round(float(np.average(self.errors, weights=self.weights)))
        for at, kind in enumerate(KINDS):
            mine = self.kinds == at
            if mine.any():
                part = Errors(self.errors[mine], self.weights[mine], self.kinds[mine])
                found[kind] = {"median": _round(part.quantile(0.5)), "p95": _round(part.quantile(0.95))}
        return {**found, "iterations": len(self.errors)}


def _round(value: float) -> float:
    return float(f"{value:.4g}")


def held_out(
    operators: Operators,
    form: Form,
    *,
    limits: Load,
    memory: int | None,
    splits: range = range(SPLITS),
    thin: bool = False,
    least: Mapping[str, float] | None = None,
) -> Errors:
    """Return the errors of a form on iterations of operators it has not seen; `splits` are the seeds."""

    def pairs_of(seed: int) -> tuple[Iterations, Iterations]:
        first, second = halves(operators.attention.rows, seed)
        seen = operators.thinned(seed) if thin else operators
        train = compose(seen, first, seed=seed, pairs=PAIRS, limits=limits, memory=memory)
        return train, compose(operators, second, seed=seed, pairs=PAIRS, limits=limits, memory=memory)

    return _pooled(form, operators.joint, splits, pairs_of, least)


def held_out_log(
    iterations: Iterations,
    form: Form,
    *,
    mixing: bool,
    splits: range = range(SPLITS),
    least: Mapping[str, float] | None = None,
) -> Errors:
    """Return the errors of a form on the withheld halves of a log."""

    def pairs_of(seed: int) -> tuple[Iterations, Iterations]:
        first, second = halves(iterations.rows, seed)
        return iterations[first], iterations[second]

    return _pooled(form, mixing, splits, pairs_of, least)


def _pooled(
    form: Form,
    mixing: bool,
    splits: range,
    pairs_of: Callable[[int], tuple[Iterations, Iterations]],
    least: Mapping[str, float] | None,
) -> Errors:
    """Return the errors over all splits together."""
    found = []
    for seed in splits:
        train, test = pairs_of(seed)
        found.append(errors_of(fit_iterations(train, form, mixing=mixing, least=least), test))
    return reduce(Errors.__add__, found)


def errors_of(model: CostModel, iterations: Iterations) -> Errors:
    """Return the relative errors of a model on iterations."""
    predicted = model.seconds_of_rows(iterations.rows)
    return Errors(predicted / iterations.seconds - 1, iterations.weights, iterations.kinds)
