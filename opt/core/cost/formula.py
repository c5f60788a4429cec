"""The formula of `opt.core.cost.layout` in machine code, for one iteration and for many. Importing this loads numba.

A compiled loop of another module may call `iteration_seconds` itself: it is numba code, and its first argument is
`CostModel.coefficients`.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import FloatArray
from opt.core.cost.layout import (
    BASE,
    DECODE_BASE,
    DECODE_KNEE,
    EXPONENT,
    FIRST_KNOT,
    FLOOR,
    KNOTS,
    LOCALITY,
    MIX_BASE,
    MIX_PER_DECODE,
    MIX_PER_KV_TOKEN,
    MIX_PER_TOKEN,
    PER_CONTEXT_TOKEN,
    PER_DECODE,
    PER_DECODE_ABOVE,
    PER_KV_TOKEN,
    PER_PAIR,
    PER_PREFILL_TOKEN,
    PER_SEQUENCE,
    PER_TOKEN,
    PREFILL_BASE,
)
from opt.core.jit import compiled

__all__ = ["iteration_seconds", "rows_seconds"]


@compiled
def _line_between(c: FloatArray, knots: int, tokens: float) -> float:
    """Return the piecewise linear function through the knots at `tokens`."""
    if tokens <= c[FIRST_KNOT]:
        return float(c[FIRST_KNOT + knots])
    k = FIRST_KNOT + 1
    while k < FIRST_KNOT + knots - 1 and c[k] < tokens:
        k += 1
    share = (tokens - c[k - 1]) / (c[k] - c[k - 1])
    low = c[k - 1 + knots]
    return float(low + share * (c[k + knots] - low))


@compiled
def _dense(c: FloatArray, tokens: float) -> float:
    """Return the time of all that depends on the number of tokens alone."""
    knots = int(c[KNOTS])
    if knots > 0:
        return _line_between(c, knots, tokens)
    slope, floor, exponent = c[PER_TOKEN] * tokens, c[FLOOR], c[EXPONENT]
    if exponent == 1.0:
        return float(floor + slope)
    high, low = max(floor, slope), min(floor, slope)
    if exponent == 0.0 or low == 0.0:
        return float(high)
    return float(high * (1.0 + (low / high) ** exponent) ** (1.0 / exponent))


@compiled
def iteration_seconds(
    c: FloatArray,
    prefill_tokens: float,
    prefill_pairs: float,
    prefill_sequences: float,
    prefill_context: float,
    decodes: float,
    kv_tokens: float,
    repeated_kv: float,
) -> float:
    """Return the seconds of one iteration; after the coefficients come the fields of `Load` in their order."""
    read = kv_tokens - (1.0 - c[LOCALITY]) * repeated_kv
    seconds = c[BASE] + _dense(c, prefill_tokens + decodes)
    if prefill_tokens > 0:
        seconds += c[PREFILL_BASE] + c[PER_PREFILL_TOKEN] * prefill_tokens + c[PER_SEQUENCE] * prefill_sequences
        seconds += c[PER_CONTEXT_TOKEN] * prefill_context + c[PER_PAIR] * prefill_pairs
    if decodes > 0:
        seconds += c[DECODE_BASE] + c[PER_DECODE] * decodes + c[PER_KV_TOKEN] * read
        seconds += c[PER_DECODE_ABOVE] * max(0.0, decodes - c[DECODE_KNEE])
    if prefill_tokens > 0 and decodes > 0:
        seconds += c[MIX_BASE] + c[MIX_PER_TOKEN] * prefill_tokens + c[MIX_PER_DECODE] * decodes + c[MIX_PER_KV_TOKEN] * read
    return float(seconds)


@compiled
def rows_seconds(c: FloatArray, rows: FloatArray) -> FloatArray:
    """Return the seconds (m,) of the iterations in `rows` (m, 7), a column for each field of `Load`."""
    found = np.empty(len(rows), np.float64)
    for k in range(len(rows)):
        row = rows[k]
        found[k] = iteration_seconds(c, row[0], row[1], row[2], row[3], row[4], row[5], row[6])
    return found
