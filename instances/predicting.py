"""Predictions of outputs: what a predictor of a given kind and quality would have said of the requests of an instance.

* `exact`: the output itself.
* `noisy`: the output times a factor drawn evenly from `1 - error .. 1 + error`.
* `interval`: a lower and an upper end around the output, `error` times the output apart, the output anywhere between; the
  point prediction is the middle.
* `quantile`: which quarter of all outputs it falls into; the ends are the least and greatest output of the quarter, the point
  prediction is its median.
* `none`: nothing is said.

No prediction exceeds what the memory or the client's cap allow, for those are known to any predictor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

import numpy as np

from opt.core.columns import IntArray
from opt.core.errors import InstanceError
from opt.core.exact import rational
from opt.core.instance import Instance

__all__ = ["PREDICTORS", "predict"]

CLASSES = 4
UNIT = 2**16  # factors are whole numbers of this, so that the same seed gives the same bytes everywhere


def predict(instance: Instance, kind: str, *, error: str | float = 0.5, seed: int = 0) -> Instance:
    """Return the instance with predictions attached; those it had are replaced, and its origin says what was done.

    Args:
        instance: the requests.
        kind: a name in `PREDICTORS`.
        error: of `noisy` and `interval`, a number from 0 to 1: 0.5 is wrong by up to half of the output.
        seed: same seed, same bytes. The prediction of a request depends on its own output and place alone (`quantile`: on
            all outputs).

    Raises:
        InstanceError: an unknown kind, or an error out of range.

    >>> predict(Instance(memory=100, prompt=[5, 5], output=[10, 40]), "noisy", error=0.5, seed=1).predicted.tolist()
    [10, 58]
    """
    if kind not in PREDICTORS:
        raise InstanceError(f"predictions of kind {kind!r} are not known; known: {', '.join(PREDICTORS)}")
    share = rational("error", error)
    if not 0 <= share <= 1:
        raise InstanceError(f"error = {error}: must be from 0 to 1")
    words = np.random.PCG64(seed).random_raw(instance.n) >> np.uint64(48)
    said = PREDICTORS[kind](instance.output, words.astype(np.int64), int(share * UNIT)) if instance.n else {}
    most = _possible(instance)
    columns = {key: np.clip(values, 1, most) for key, values in said.items()}
    empty = dict.fromkeys(("predicted", "predicted_low", "predicted_high"))
    facts = {"kind": kind, "error": str(Fraction(share)), "seed": seed}
    return instance.replace(**{**empty, **columns}, origin={**instance.origin, "predictions": facts})


def _possible(instance: Instance) -> IntArray:
    """Return the most tokens (n,) each output can have, by what is known before it runs."""
    most = instance.memory - instance.prompt
    cap = instance.max_output
    return most if cap is None else np.where(cap >= 0, np.minimum(most, cap), most)


def _scaled(output: IntArray, factor: IntArray) -> IntArray:
    """Return output * factor / UNIT, rounded to the nearest integer, halves up."""
    return (output * factor + UNIT // 2) // UNIT


def _exact(output: IntArray, word: IntArray, error: int) -> Mapping[str, IntArray]:
    return {"predicted": output, "predicted_low": output, "predicted_high": output}


def _noisy(output: IntArray, word: IntArray, error: int) -> Mapping[str, IntArray]:
    return {"predicted": _scaled(output, UNIT - error + 2 * error * word // UNIT)}


def _interval(output: IntArray, word: IntArray, error: int) -> Mapping[str, IntArray]:
    below = error * word // UNIT
    low, high = output * (UNIT - below) // UNIT, -(-output * (UNIT + error - below) // UNIT)
    return {"predicted_low": low, "predicted": (low + high + 1) // 2, "predicted_high": high}


def _quantile(output: IntArray, word: IntArray, error: int) -> Mapping[str, IntArray]:
    ordered = np.sort(output)
    n = len(ordered)
    edges = ordered[np.arange(1, CLASSES) * n // CLASSES]
    group = np.searchsorted(edges, output, side="right")
    rank = np.searchsorted(edges, ordered, side="right")
    first, last = np.searchsorted(rank, group, side="left"), np.searchsorted(rank, group, side="right") - 1
    return {"predicted_low": ordered[first], "predicted": ordered[(first + last) // 2], "predicted_high": ordered[last]}


def _none(output: IntArray, word: IntArray, error: int) -> Mapping[str, IntArray]:
    return {}


PREDICTORS: dict[str, Callable[[IntArray, IntArray, int], Mapping[str, IntArray]]] = {
    "exact": _exact,
    "noisy": _noisy,
    "interval": _interval,
    "quantile": _quantile,
    "none": _none,
}
