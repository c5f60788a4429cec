"""Instances one can make again: seeded workloads after public traces, and families on which standard policies fail."""

from __future__ import annotations

from instances.champions import CHAMPIONS
from instances.families import GENERATOR, TRAPS, Family
from instances.workloads import WORKLOADS
from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["FAMILIES", "GENERATOR", "Family", "generate"]

FAMILIES: dict[str, Family] = {**WORKLOADS, **TRAPS, **CHAMPIONS}


def generate(family: str, *, n: int | None = None, memory: int | None = None, seed: int = 0) -> Instance:
    """Return an instance of a named family; the same arguments give the same bytes on every machine.

    Args:
        family: a name in `FAMILIES`.
        n: the number of requests; None takes the family's default.
        memory: the budget in tokens; None takes the family's default.
        seed: from 0 to 2**64 - 1; the adversarial families do not use it. The first k requests do not depend on `n`.

    Raises:
        InstanceError: the family is not known, or n, memory or seed is not one it allows.

    >>> generate("small", n=3, seed=1)
    Instance('small-n3-m34-s1', n=3, memory=34)
    """
    if family not in FAMILIES:
        raise InstanceError(f"family {family!r} is not known; known: {', '.join(FAMILIES)}")
    return FAMILIES[family].build(n, memory, seed)
