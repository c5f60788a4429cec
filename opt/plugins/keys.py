"""The offline orders as keys of single requests, by expected outputs."""

from __future__ import annotations

from opt.core.instance import MAX_MEMORY, Instance
from opt.solvers.orders import KEYS

__all__ = ["NAMES", "key_of"]

NAMES = {"mc-sf": "sof", "smallest-volume": "svf", "shortest-output": "sof"}  # other names of keys


def key_of(order: str, prompt: int, output: int, seed: int = 0) -> int:
    """Return the key of a request under an order of `opt.solvers.orders.KEYS`, smaller first.

    Args:
        order: its name.
        prompt: tokens to be computed before the next one is made: the prompt, and what was made before a preemption.
        output: tokens still to be made, at least 1.
        seed: for `random`.

    >>> key_of("svf", 9, 5), key_of("mc-sf", 9, 5)
    (60, 5)
    """
    prompt = min(prompt, MAX_MEMORY // 2)
    alone = Instance(MAX_MEMORY, [prompt], [min(max(output, 1), MAX_MEMORY - prompt)])
    return int(KEYS[NAMES.get(order, order)](alone, seed)[0])
