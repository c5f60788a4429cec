"""Fit a cost model to iterations: non-negative least squares on relative errors, made robust by reweighting.

All terms of `opt.core.cost.layout` enter linearly but the bend of the dense layers. A piecewise dense part is a sum of
ramps between knots with non-negative slopes, so it never falls; for `max` and `p-norm` the knee floor / per_token and
the exponent are searched on a grid, and everything else is solved for at each grid point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from scipy.optimize import nnls

from opt.core.columns import FloatArray
from opt.core.cost.load import Load
from opt.core.cost.model import FORMS, CostModel, Form
from opt.core.errors import InstanceError
from opt.fit.iterations import Iterations

__all__ = ["FEWEST", "fit_iterations"]

KNOTS = (1, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096, 8192, 16384)
KNEES = np.geomspace(16, 1024, 25)  # tokens
EXPONENTS = (1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 6.0)
FEWEST = 8  # iterations
ROUNDS = 5  # of reweighting
SEARCH_ROUNDS = 2  # while the bend is searched,
SAMPLE = 1500  # on as many iterations
SMALL = 0.01  # relative error from which on a larger one counts less than its square

P, A, S, X, B, K, R = range(len(Load._fields))


@dataclass(frozen=True)
class _Problem:
    """What is fitted: seconds (m,) with weights (m,), tokens (m,), the columns that enter linearly, seconds that are held."""

    seconds: FloatArray
    weights: FloatArray
    tokens: FloatArray
    others: Mapping[str, FloatArray]
    held: FloatArray

    def sample(self) -> _Problem:
        """Return at most `SAMPLE` random rows: enough to choose a bend."""
        which = np.random.default_rng(0).permutation(len(self.seconds))[:SAMPLE]
        others = {name: column[which] for name, column in self.others.items()}
        return _Problem(self.seconds[which], self.weights[which], self.tokens[which], others, self.held[which])


@dataclass(frozen=True)
class _Solved:
    terms: Mapping[str, float]
    loss: float


def fit_iterations(
    iterations: Iterations,
    form: Form,
    *,
    mixing: bool,
    name: str = "fit",
    least: Mapping[str, float] | None = None,
    **fields: Any,
) -> CostModel:
    """Return the cost model of a form that fits best.

    Args:
        iterations: what was measured.
        form: one of `FORMS`.
        mixing: whether mixed batches were measured as such, so that their extra cost may be fitted.
        name, fields: kept in the model.
        least: seconds below which a term must not fall, such as what the peak bandwidth of the machine allows.

    Raises:
        InstanceError: the form is not known, there are too few iterations, or one took no time.
    """
    if form not in FORMS:
        raise InstanceError(f"form = {form!r}: must be one of {', '.join(FORMS)}")
    if len(iterations) < FEWEST:
        raise InstanceError(f"{len(iterations)} iterations are too few to fit a cost model; measure at least {FEWEST}")
    if (iterations.seconds <= 0).any():
        raise InstanceError(f"iteration {int(np.argmax(iterations.seconds <= 0))} took no time; leave it out")
    others, count = _features(iterations.rows, mixing), len(iterations)
    least = {name: floor for name, floor in (least or {}).items() if name in others}
    held = sum((others[name] * floor for name, floor in least.items()), np.zeros(count))
    tokens = iterations.rows[:, P] + iterations.rows[:, B]
    problem = _Problem(iterations.seconds, iterations.weights, tokens, {"base": np.ones(count), **others}, held)
    found = _linear(problem) if form == "linear" else _piecewise(problem) if form == "piecewise" else _bent(problem, form)
    free: dict[str, float] = found.pop("terms")
    terms, locality = _locality({**free, **{name: free[name] + floor for name, floor in least.items()}})
    terms = {key: float(f"{seconds:.6g}") for key, seconds in terms.items() if seconds > 0}
    return CostModel(name=name, form=form, terms=terms, locality=locality, valid=_valid(iterations.rows), **found, **fields)


def _features(rows: FloatArray, mixing: bool) -> dict[str, FloatArray]:
    """Return the columns that enter linearly, by term; those that are nowhere positive are left out."""
    columns = rows.T
    prefill, decode = (columns[P] > 0).astype(np.float64), (columns[B] > 0).astype(np.float64)
    distinct = columns[K] - columns[R]
    found = {
        "prefill_base": prefill,
        "decode_base": decode,
        "per_prefill_token": columns[P],
        "per_sequence": columns[S],
        "per_context_token": columns[X],
        "per_pair": columns[A],
        "per_decode": columns[B],
        "per_kv_token": distinct,
        "repeated": columns[R],
    }
    if mixing:
        both = prefill * decode
        found |= {"mix_base": both, "mix_per_token": both * columns[P]}
        found |= {"mix_per_decode": both * columns[B], "mix_per_kv_token": both * distinct}
    return {name: column for name, column in found.items() if (column > 0).any()}


def _solve(problem: _Problem, columns: Mapping[str, FloatArray], rounds: int = ROUNDS) -> _Solved:
    """Return the non-negative coefficients of the columns and of the others.

    They make relative errors small: squares for small ones, sizes for large ones. What is held is there whatever they are.
    """
    features = {**columns, **problem.others}
    matrix = np.column_stack(list(features.values()))
    scale = np.maximum(matrix.max(axis=0), np.finfo(float).tiny)  # a sample may miss a rare column
    relative = matrix / scale / problem.seconds[:, None]
    weights, wanted = problem.weights, 1 - problem.held / problem.seconds
    for _ in range(rounds + 1):
        root = np.sqrt(weights)
        coefficients, _ = nnls(relative * root[:, None], wanted * root, maxiter=100 * len(features))
        errors = np.abs(relative @ coefficients - wanted)
        weights = problem.weights / np.maximum(errors, SMALL)
    loss = float((problem.weights * errors).sum())
    return _Solved(dict(zip(features, (coefficients / scale).tolist(), strict=True)), loss)


def _linear(problem: _Problem) -> dict[str, Any]:
    return {"terms": _solve(problem, {"per_token": problem.tokens}).terms}


def _bent(problem: _Problem, form: Form) -> dict[str, Any]:
    """Return the best knee (and exponent): (knee^q + n^q)^(1/q) is one more column for each."""
    exponents = EXPONENTS if form == "p-norm" else (np.inf,)
    few = problem.sample()
    tried = ((exponent, float(knee)) for exponent in exponents for knee in KNEES)
    exponent, knee = min(tried, key=lambda bend: _solve(few, {"per_token": _bend(few.tokens, *bend)}, SEARCH_ROUNDS).loss)
    terms = dict(_solve(problem, {"per_token": _bend(problem.tokens, exponent, knee)}).terms)
    terms["floor"] = terms["per_token"] * knee
    return {"terms": terms, "exponent": exponent if form == "p-norm" else 1.0}


def _bend(tokens: FloatArray, exponent: float, knee: float) -> FloatArray:
    larger, smaller = np.maximum(tokens, knee), np.minimum(tokens, knee)
    if exponent == np.inf:
        return larger
    bent: FloatArray = larger * (1 + (smaller / larger) ** exponent) ** (1 / exponent)
    return bent


def _piecewise(problem: _Problem) -> dict[str, Any]:
    knots = _knots(problem.tokens)
    ramps = {f"ramp {k}": np.clip(problem.tokens - low, 0, high - low) for k, (low, high) in enumerate(pairwise(knots))}
    terms = dict(_solve(problem, ramps).terms)
    seconds = [terms.pop("base")]
    for k, (low, high) in enumerate(pairwise(knots)):
        seconds.append(seconds[-1] + terms.pop(f"ramp {k}") * (high - low))
    return {"terms": terms, "knots": tuple((at, float(f"{value:.6g}")) for at, value in zip(knots, seconds, strict=True))}


def _knots(tokens: FloatArray) -> Sequence[float]:
    """Return the knots: those of `KNOTS` with at least one measured number of tokens in every span, and the two ends."""
    sizes = np.unique(tokens)
    if len(sizes) < 2:
        raise InstanceError(
            f"all iterations have {sizes[0]:g} tokens in the batch; measure several sizes, or take the form linear"
        )
    knots = [float(sizes[0])]
    for knot in (*KNOTS, float(sizes[-1])):
        if knots[-1] < knot <= sizes[-1] and ((sizes > knots[-1]) & (sizes <= knot)).any():
            knots.append(float(knot))
    return knots


def _locality(terms: Mapping[str, float]) -> tuple[dict[str, float], float]:
    """Return the terms without that of repeated reads, and their price against first reads (at most as dear)."""
    kept = dict(terms)
    repeated, first = kept.pop("repeated", None), kept.get("per_kv_token", 0.0)
    if repeated is None or first <= 0:
        return kept, 1.0
    return kept, float(f"{min(repeated / first, 1.0):.4g}")


def _valid(rows: FloatArray) -> dict[str, tuple[float, float]]:
    highs = rows.max(axis=0)
    return {name: (0.0, float(high)) for name, high in zip(Load._fields, highs, strict=True) if high > 0}
