"""How many tokens a request will make: what its client announces, or what finished requests made, or its limit.

The rule, in this order:

1. A hint. It is taken at its word until the request outlives it.
2. Without a hint, with the predictor "quantile": a quantile of the outputs of the latest finished requests, once enough
   have finished. With the predictor "limit", or before that: the request's own limit `max_tokens`.
3. A request that has made as many as was expected is expected to make as many again; so a wrong guess costs at most a
   factor of two, and it is never above `max_tokens`.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Lengths", "as_length"]

RECENT = 256  # finished requests that are remembered
ENOUGH = 16  # finished requests before their outputs say anything


def as_length(hint: object) -> int | None:
    """Return a hint as a number of tokens, at least 1; None for what is none (a hint must not break an engine).

    >>> as_length("120"), as_length(0.2), as_length(True), as_length("many"), as_length(float("nan"))
    (120, 1, None, None, None)
    """
    if isinstance(hint, bool) or not isinstance(hint, int | float | str):
        return None
    try:
        number = float(hint)
    except ValueError:
        return None
    return max(1, math.ceil(number)) if math.isfinite(number) and number >= 0 else None


@dataclass
class Lengths:
    """The predictor.

    Args:
        quantile: which quantile of the latest outputs stands for requests without a hint; None: their limit does.
        recent: outputs of the latest finished requests.
    """

    quantile: float | None = 0.75
    recent: deque[int] = field(default_factory=lambda: deque(maxlen=RECENT))
    _guess: int | None = None
    _ordered_at: int = 0
    _seen: int = 0

    def saw(self, output: int) -> None:
        """Count a finished request that made so many tokens."""
        if output > 0:
            self.recent.append(output)
            self._seen += 1

    @property
    def guess(self) -> int | None:
        """The quantile, None while too few have finished or none is wanted; renewed after every 16 of them."""
        if self.quantile is None or self._seen < ENOUGH:
            return None
        if self._guess is None or self._seen - self._ordered_at >= ENOUGH:
            ordered = sorted(self.recent)
            self._guess = ordered[min(len(ordered) - 1, int(self.quantile * len(ordered)))]
            self._ordered_at = self._seen
        return self._guess

    def total(self, hint: int | None, limit: int, made: int = 0) -> int:
        """Return the output tokens that a request is expected to make in all, those made included; more than `made`.

        >>> Lengths().total(100, limit=1000), Lengths().total(None, limit=1000), Lengths().total(100, limit=1000, made=130)
        (100, 1000, 200)
        """
        expected = hint if hint is not None else self.guess
        if expected is None:
            expected = limit
        while expected <= made:
            expected *= 2
        return max(min(expected, limit), made + 1)
