"""What a family of instances is: a recipe from the number of requests, the memory and a seed to the same bytes everywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from instances.sampling import ranks, uniform
from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["GENERATOR", "MAX_REQUESTS", "Columns", "Family"]

Columns: TypeAlias = Mapping[str, Any]

GENERATOR = "kvopt-instances/1"  # names the recipes; a change in any byte they produce needs a new number
MAX_REQUESTS = 10**7


@dataclass(frozen=True)
class Family:
    """A recipe for instances: the same n, memory and seed give the same bytes on every machine.

    Args:
        name: its name in `FAMILIES`.
        description: one line.
        memory: the default budget in tokens; a range where the seed draws it.
        n: the default number of requests (at the default memory, where n follows from the memory).
        least: the smallest memory in which every request fits.
        columns: from n, memory and seed to the arguments of `Instance` other than the memory.
        count: the default n as a function of the memory, for a family whose size the memory fixes.
        unit: as a function of the memory, the number of requests in one copy; n may be any whole multiple.
    """

    name: str
    description: str
    memory: int | range
    n: int
    least: int
    columns: Callable[[int, int, int], Columns]
    count: Callable[[int], int] | None = None
    unit: Callable[[int], int] | None = None

    def build(self, n: int | None = None, memory: int | None = None, seed: int = 0) -> Instance:
        """Return the instance with `n` requests under `memory` tokens; None takes the default.

        `origin` holds the recipe, n, memory, seed and generator version: all it takes to make it again.

        Raises:
            InstanceError: n, memory or seed is out of range, or n is not one that the family allows.
        """
        seed = _integer("seed", seed, 0, 2**64 - 1)
        budget = self._memory(memory, seed)
        number = self._number(n, budget)
        name = f"{self.name}-n{number}-m{budget}" + ("" if self.count else f"-s{seed}")
        origin = {"recipe": self.name, "n": number, "memory": budget, "seed": seed, "generator": GENERATOR}
        return Instance(budget, **self.columns(number, budget, seed), name=name, origin=origin)

    def _memory(self, memory: int | None, seed: int) -> int:
        if memory is None:
            return self._default_memory(seed)
        budget = _integer("memory", memory, 1, 2**31 - 1)
        if budget < self.least:
            raise InstanceError(f"memory = {memory}: {self.name} needs at least {self.least} tokens, for its largest request")
        return budget

    def _default_memory(self, seed: int) -> int:
        if isinstance(self.memory, int):
            return self.memory
        return int(uniform(ranks(seed, f"{self.name}/memory", 1), self.memory[0], self.memory[-1])[0])

    def _number(self, n: int | None, memory: int) -> int:
        default = self.n if self.count is None else self.count(memory)
        number = _integer("n", default if n is None else n, 0, MAX_REQUESTS)
        if self.unit is not None:
            unit = self.unit(memory)
            if number < 1 or number % unit:
                raise InstanceError(f"n = {number}: {self.name} with a memory of {memory} has a multiple of {unit} requests")
        elif self.count is not None and number != default:
            raise InstanceError(f"n = {number}: {self.name} with a memory of {memory} has exactly {default} requests")
        return number


def _integer(name: str, value: object, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        raise InstanceError(f"{name} = {value!r}: must be an integer from {low} to {high}")
    return int(value)
