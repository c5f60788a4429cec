"""The standard orders and the three rules to run them: head of line, skipping, serial earliest fit.

An order is a key; smaller goes first, ties by arrival, then index. `fcfs` first come, first served; `sof` shortest
output first (published with the look-ahead check as MC-SF, arXiv 2502.07115); `lof` longest output first;
`total-size` smallest peak; `svf` smallest volume (arXiv 2606.22327; within a constant of the optimum when peaks are
small); `best-fit` largest peak, which with skipping starts the waiting request that fills the free memory best;
`random` by seed. Strict head-of-line `fcfs`, `sof`, `lof` and `total-size` can be arbitrarily bad.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, TypeAlias

import numpy as np

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.model import Proposal

__all__ = ["KEYS", "Rule", "order_by", "order_of", "packed", "run_order"]

Rule: TypeAlias = Literal["strict", "skip", "pack"]

KEYS: dict[str, Callable[[Instance, int], IntArray]] = {
    "fcfs": lambda instance, _: np.zeros(instance.n, np.int64),
    "sof": lambda instance, _: instance.output,
    "lof": lambda instance, _: -instance.output,
    "total-size": lambda instance, _: instance.peak,
    "svf": lambda instance, _: instance.volume,
    "best-fit": lambda instance, _: -instance.peak,
    "random": lambda instance, seed: _random_key(instance.n, seed),
}

MAX_AGEING = 2**31  # so that key + ageing * arrival stays far inside 64 bits for any sane trace


def order_of(instance: Instance, name: str, *, seed: int = 0, ageing: int = 0) -> IntArray:
    """Return the requests (n,) from first to last under the order `name`.

    Args:
        instance: the requests.
        name: a key of `KEYS`.
        seed: used by `random` alone.
        ageing: key units that a waiting request gains in every round. Since all wait at the same speed, the order
            by `key - ageing * waited` is the fixed order by `key + ageing * arrival`. 0: none; the larger, the closer
            to first come, first served, and nobody starves under any positive value.

    Raises:
        ValueError: `ageing` is no integer, negative, or so large that a key would leave 64 bits.
    """
    return order_by(instance, KEYS[name](instance, seed), ageing=ageing)


def order_by(instance: Instance, key: IntArray, *, ageing: int = 0) -> IntArray:
    """Return the requests (n,) by a key (n,), smaller first, with `ageing` as in `order_of`."""
    if not isinstance(ageing, int) or not 0 <= ageing <= MAX_AGEING or ageing * int(instance.arrival.max(initial=0)) >= 2**62:
        raise ValueError(f"ageing = {ageing!r}: must be an integer from 0 to {MAX_AGEING}, and ageing * arrival below 2**62")
    return np.lexsort((instance.arrival, key + ageing * instance.arrival))


def run_order(
    name: str, rule: Rule, instance: Instance, *, seed: int = 0, time_limit: float | None = None, ageing: int = 0
) -> Proposal:
    """Return the schedule of an order under a rule; `time_limit` is unused, a million requests take seconds."""
    return packed(instance, order_of(instance, name, seed=seed, ageing=ageing), rule)


def packed(instance: Instance, order: IntArray, rule: Rule) -> Proposal:
    """Return the schedule of the requests in a given order (n,) under a rule."""
    from opt.solvers.ledger import pack_skip, pack_strict
    from opt.solvers.serial import pack_serial

    pack = {"strict": pack_strict, "skip": pack_skip, "pack": pack_serial}[rule]
    return Proposal(pack(order, instance.prompt, instance.output, instance.arrival, instance.memory))


def _random_key(n: int, seed: int) -> IntArray:
    """Raw 62-bit integers of PCG64: the same on every platform and numpy version."""
    return (np.random.PCG64(seed).random_raw(n) >> np.uint64(2)).astype(np.int64)
