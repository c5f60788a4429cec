"""Whole iterations to fit a cost model on: composed of measured operators, or read from a log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.load import Load

if TYPE_CHECKING:
    from opt.fit.operators import Operators, Points

__all__ = ["KINDS", "Iterations", "compose", "halves"]

KINDS = ("decode", "prefill", "mixed")
SHARES = {"decode": 0.4, "prefill": 0.4, "mixed": 0.2}  # of the weight, whatever the number of points of each kind

TOKENS, DECODES, KV = (Load._fields.index(name) for name in ("prefill_tokens", "decodes", "kv_tokens"))
SEQUENCES, CONTEXT = (Load._fields.index(name) for name in ("prefill_sequences", "prefill_context"))


@dataclass(frozen=True)
class Iterations:
    """Loads `rows` (m, 7), a column for each field of `Load`, and the `seconds` (m,) each took."""

    rows: FloatArray
    seconds: FloatArray

    def __len__(self) -> int:
        return len(self.seconds)

    def __getitem__(self, which: IntArray | npt.NDArray[np.bool_]) -> Iterations:
        return Iterations(self.rows[which], self.seconds[which])

    @property
    def kinds(self) -> IntArray:
        """The place in `KINDS` of each (m,)."""
        return kinds_of(self.rows)

    @property
    def weights(self) -> FloatArray:
        """Weights (m,) of sum 1: each kind that is there has its share, alike within the kind."""
        kinds = self.kinds
        counts = np.bincount(kinds, minlength=len(KINDS))
        shares = np.array([SHARES[kind] for kind in KINDS]) * (counts > 0)
        return (shares / shares.sum() / np.maximum(counts, 1))[kinds] if len(self) else np.zeros(0)


def kinds_of(rows: FloatArray) -> IntArray:
    """Return 0 for decodes alone, 1 for prefill alone, 2 for both (m,)."""
    prefill, decode = rows[:, TOKENS] > 0, rows[:, DECODES] > 0
    return np.where(prefill & decode, 2, np.where(prefill, 1, 0))


def halves(rows: FloatArray, seed: int) -> tuple[IntArray, IntArray]:
    """Return two random halves of the row numbers, each kind halved."""
    rng, kinds = np.random.default_rng(seed), kinds_of(rows)
    first: list[IntArray] = []
    second: list[IntArray] = []
    for kind in range(len(KINDS)):
        shuffled = rng.permutation(np.flatnonzero(kinds == kind))
        first.append(shuffled[: (len(shuffled) + 1) // 2])
        second.append(shuffled[(len(shuffled) + 1) // 2 :])
    return np.concatenate(first), np.concatenate(second)


def compose(
    operators: Operators, which: IntArray, *, seed: int, pairs: int, limits: Load, memory: int | None = None
) -> Iterations:
    """Return an iteration for each measured attention point, and mixed ones.

    Where prefill and decode were measured apart, `pairs` random pairs of a prefill and a decode point are mixed batches
    whose attention is the sum of the two.

    Args:
        operators: the measured parts.
        which: the attention points to use.
        seed: for the pairs.
        pairs: how many mixed batches at most.
        limits: iterations with a quantity above its limit are left out; a limit of 0 is none.
        memory: KV tokens that all contexts of an iteration together may take.
    """
    points = operators.attention[which]
    if not operators.joint:
        points = points + _pairs(points, seed, pairs)
    rows = points.rows
    tokens = rows[:, TOKENS] + rows[:, DECODES]
    ceilings = np.array([limit or np.inf for limit in limits], np.float64)
    held = rows[:, KV] + rows[:, CONTEXT] + rows[:, TOKENS]
    keep = (rows <= ceilings).all(axis=1) & (tokens <= operators.dense.sizes[-1]) & (held <= (memory or np.inf))
    sequences = rows[:, SEQUENCES] + rows[:, DECODES]
    seconds = points.seconds + operators.dense.at(tokens) + operators.logits.at(sequences)
    return Iterations(rows[keep], seconds[keep])


def _pairs(points: Points, seed: int, pairs: int) -> Points:
    """Return sums of random prefill and decode points: mixed batches of kernels that know nothing of each other."""
    rng, kinds = np.random.default_rng(seed), kinds_of(points.rows)
    decode, prefill = np.flatnonzero(kinds == 0), np.flatnonzero(kinds == 1)
    if not len(decode) or not len(prefill):
        return points[np.zeros(0, np.int64)]
    chosen = rng.permutation(len(decode) * len(prefill))[:pairs]
    first, second = points[decode[chosen % len(decode)]], points[prefill[chosen // len(decode)]]
    return type(points)(first.rows + second.rows, first.seconds + second.seconds)
