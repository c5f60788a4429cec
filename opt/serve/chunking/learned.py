"""A predictor of step times learned on the run, for engines whose cost model is not known."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np

from opt.core.columns import FloatArray
from opt.core.cost import CostModel
from opt.serve.chunking.step import Step
from opt.sim.batch import Batch, View

__all__ = ["Learned"]

TERMS = ("base", "decode_base", "per_decode", "per_kv_token", "prefill_base", "per_prefill_token", "per_pair")
REMEMBERED = 400  # steps
EVERY = 50  # steps between fits
LEAST = 20  # steps before the first fit
QUANTILE = 0.99  # of the steps that took longer than predicted: the margin


@dataclass
class Learned:
    """Non-negative least squares over the last steps seen; the margin is a high quantile of what it missed by.

    A step counts when the next decision comes right after it. The chunk sizes until the first fit are the caller's.
    """

    rows: deque[FloatArray] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    model: CostModel | None = None
    margin_s: float = 0.0
    _row: FloatArray | None = None
    _at: tuple[float, float, int] = (0.0, 0.0, 0)  # now, idle seconds, steps at the last decision

    def notice(self, view: View) -> None:
        """Take in how long the last step took."""
        now, idle, steps = self._at
        if self._row is not None and view.steps == steps + 1:
            self.rows.append(self._row)
            self.seconds.append(view.now - now - (view.idle_s - idle))
            if len(self.rows) >= LEAST and (self.model is None or view.steps % EVERY == 0):
                self._fit()

    def remember(self, view: View, batch: Batch) -> None:
        """Keep what the step that begins now does."""
        tokens, pairs, _, _, decodes, kv, _ = batch.load()
        self._row = np.array([1.0, decodes > 0, decodes, kv, tokens > 0, tokens, pairs], np.float64)
        self._at = (view.now, view.idle_s, view.steps)

    def largest(self, step: Step, i: int, limit_s: float, most: int) -> int:
        """Return the most tokens of i with which the step, as predicted, and the margin take at most `limit_s`."""
        if self.model is None or limit_s == np.inf:
            return min(most, step.most(i))
        return step.largest(i, limit_s - self.margin_s, most, self.model)

    def _fit(self) -> None:
        from scipy.optimize import nnls

        rows, seconds = np.array(self.rows), np.array(self.seconds)
        scale = np.maximum(np.abs(rows).max(0), 1e-300)
        found = nnls(rows / scale, seconds)[0] / scale
        self.model = CostModel("learned", "linear", dict(zip(TERMS, found.tolist(), strict=True)))
        self.margin_s = max(0.0, float(np.quantile(seconds - rows @ found, QUANTILE)))
