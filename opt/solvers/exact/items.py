"""The running states that tables and searches speak of: request `i` with so many rounds to go."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opt.core.columns import IntArray

__all__ = ["INF", "NEVER", "Items", "items_of"]

INF = 1_000_000_000  # above every value: an infeasible pair or triple
NEVER = -(1 << 28)  # the price of a request that may still run, but can no longer start


class Items(NamedTuple):
    """Request `i` with 1 .. `rows[i]` rounds to go is item `off[i] + rounds - 1`.

    `memory`: tokens. `prompt`, `output`, `rows`, `off`: (n,) per request; `own`, `left`: (N,) request and rounds to go
    per item. Index N stands for "nothing".
    """

    memory: int
    prompt: IntArray
    output: IntArray
    rows: IntArray
    off: IntArray
    own: IntArray
    left: IntArray


def items_of(memory: int, prompt: IntArray, output: IntArray, rows: IntArray) -> Items:
    """Return the items of requests of which request i has `rows[i]` running states (0: it can neither run nor start)."""
    off = np.concatenate([[0], np.cumsum(rows)[:-1]]).astype(np.int64)
    own = np.repeat(np.arange(len(rows)), rows)
    left = (np.arange(len(own)) - off[own] + 1).astype(np.int64)
    return Items(memory, prompt, output, rows.astype(np.int64), off, own, left)
