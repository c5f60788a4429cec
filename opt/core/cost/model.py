"""Cost models: how many seconds an iteration takes, with machine, source, error and the range where they were measured."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from opt.core.columns import FloatArray, frozen
from opt.core.cost.layout import DECODE_KNEE, EXPONENT, FIRST_KNOT, KNOTS, LOCALITY, TERMS
from opt.core.cost.load import Load
from opt.core.errors import InstanceError

__all__ = ["FORMS", "UNIT", "CostModel", "Form"]

Form: TypeAlias = Literal["linear", "max", "p-norm", "piecewise"]
FORMS: tuple[Form, ...] = get_args(Form)


@dataclass(frozen=True)
class CostModel:
    """The seconds of an iteration as a function of its `Load`; see `opt.core.cost.layout` for the formula.

    Args:
        name: its key in `COSTS`, or your own.
        form: how the time of the dense layers bends with the number of tokens.
        terms: seconds by the names in `layout.TERMS`; those left out are 0.
        knots: for `piecewise`, (tokens, seconds) rising in tokens and never falling in seconds.
        exponent: for `p-norm`, above 1.
        decode_knee: decodes from which `per_decode_above` counts.
        locality: price of a repeated read of a shared KV token against a first one: 1 where repeats cost as much.
        valid: for fields of `Load`, the (least, largest) value measured; beyond, the model extrapolates.
        memory: KV capacity in tokens of the machine it was measured on, None where unknown.
        machine: gpu, tp, model, dtype, engine: what it was measured on.
        error: held-out relative errors and how they were taken.
        origin: source, licence, date, method.

    Raises:
        InstanceError: a number is negative or not finite, a name is not known, or knots fall.
    """

    name: str
    form: Form
    terms: Mapping[str, float]
    knots: tuple[tuple[float, float], ...] = ()
    exponent: float = 1.0
    decode_knee: float = 0.0
    locality: float = 1.0
    valid: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    memory: int | None = None
    machine: Mapping[str, Any] = field(default_factory=dict)
    error: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @cached_property
    def coefficients(self) -> FloatArray:
        """The flat list that `formula.iteration_seconds` takes; read-only."""
        knots = len(self.knots)
        flat = np.zeros(FIRST_KNOT + 2 * knots)
        for name, seconds in self.terms.items():
            flat[TERMS[name]] = seconds
        flat[DECODE_KNEE], flat[LOCALITY], flat[KNOTS] = self.decode_knee, self.locality, knots
        flat[EXPONENT] = {"linear": 1.0, "max": 0.0, "p-norm": self.exponent, "piecewise": 1.0}[self.form]
        flat[FIRST_KNOT:] = [tokens for tokens, _ in self.knots] + [seconds for _, seconds in self.knots]
        return frozen(flat)

    def seconds(self, load: Load) -> float:
        """Return the seconds of one iteration."""
        from opt.core.cost.formula import iteration_seconds

        return float(iteration_seconds(self.coefficients, *map(float, load)))

    def seconds_of_rows(self, rows: FloatArray) -> FloatArray:
        """Return the seconds (m,) of many iterations, given as (m, 7) with a column for each field of `Load`."""
        from opt.core.cost.formula import rows_seconds

        return rows_seconds(self.coefficients, np.ascontiguousarray(rows, np.float64))

    def with_locality(self, locality: float) -> CostModel:
        """Return the model with another price of a repeated read, from 0 (free) to 1 (as a first read)."""
        return dataclasses.replace(self, locality=locality)

    def outside(self, load: Load) -> list[str]:
        """Return, in words, what of a load lies above the range that was measured; empty where nothing does."""
        given = load._asdict()
        limits = {name: high for name, (_, high) in self.valid.items()}
        return [f"{name} = {given[name]:,g} (measured up to {high:,g})" for name, high in limits.items() if given[name] > high]


def _check(model: CostModel) -> None:
    if model.form not in FORMS:
        raise InstanceError(f"{model.name}: form = {model.form!r}: must be one of {', '.join(FORMS)}")
    for name, seconds in model.terms.items():
        if name not in TERMS:
            raise InstanceError(f"{model.name}: term {name!r} is not known; known: {', '.join(TERMS)}")
        _require(model, f"term {name}", seconds, 0, math.inf)
    _require(model, "locality", model.locality, 0, 1)
    _require(model, "decode_knee", model.decode_knee, 0, math.inf)
    _require(model, "exponent", model.exponent, 1, 64)
    for name, (low, high) in model.valid.items():
        if name not in Load._fields or not 0 <= low <= high < math.inf:
            raise InstanceError(f"{model.name}: valid[{name!r}] = {(low, high)}: must be a range of a field of Load")
    _check_knots(model)


def _require(model: CostModel, what: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        limit = f"from {low} to {high}" if math.isfinite(high) else f"finite and at least {low}"
        raise InstanceError(f"{model.name}: {what} = {value}: must be {limit}; time never falls as work grows")


def _check_knots(model: CostModel) -> None:
    if (model.form == "piecewise") != (len(model.knots) >= 2):
        raise InstanceError(f"{model.name}: {len(model.knots)} knots: `piecewise` takes two or more, the other forms none")
    for at, (tokens, seconds) in enumerate(model.knots):
        _require(model, f"knots[{at}] tokens", tokens, 0, math.inf)
        _require(model, f"knots[{at}] seconds", seconds, 0, math.inf)
        if at and (tokens <= model.knots[at - 1][0] or seconds < model.knots[at - 1][1]):
            raise InstanceError(f"{model.name}: knots[{at}] = {(tokens, seconds)}: tokens must rise, and seconds never fall")
    if model.form == "piecewise" and (model.terms.get("floor") or model.terms.get("per_token")):
        raise InstanceError(f"{model.name}: `piecewise` has knots in place of floor and per_token")


UNIT = CostModel("unit", "linear", {"base": 1.0}, origin={"source": "definition: every iteration costs one round"})
