"""What a family of instances is, and the small ones on which standard policies do badly.

The adversarial families here are those of which the theorems in `proofs` speak. Each takes its size from the memory; a
larger `n`, where allowed, means more copies. The order of the requests matters: it is the order of arrival, by which
policies break ties.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isqrt
from typing import Any, TypeAlias

import numpy as np

from instances.sampling import ranks, uniform
from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["GENERATOR", "MAX_REQUESTS", "TRAPS", "Columns", "Family"]

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


def _requests(*groups: tuple[int, int, int]) -> Columns:
    """Return the columns of `count` requests (prompt, output) for each group, in that order."""
    count, prompt, output = (np.array(column, np.int64) for column in zip(*groups, strict=True))
    return {"prompt": np.repeat(prompt, count), "output": np.repeat(output, count)}


def _fcfs_size(memory: int) -> int:
    if memory % 2:
        raise InstanceError(f"memory = {memory}: fcfs-trap needs an even memory, such as {memory - 1} or {memory + 1}")
    return memory + 3


def _fcfs(n: int, memory: int, seed: int) -> Columns:
    """Three requests of which no two fit together, then M short ones that all wait behind them."""
    return _requests((3, memory // 2, memory // 2), (memory, 1, 1))


def _fcfs_strong(n: int, memory: int, seed: int) -> Columns:
    """k requests that own the memory for M rounds each, then kM that take one round and one token."""
    copies = n // (memory + 1)
    return _requests((copies, 0, memory), (copies * memory, 0, 1))


def _skip_unit(memory: int) -> int:
    return isqrt(memory) + 1


def _skip(n: int, memory: int, seed: int) -> Columns:
    """k requests that fill the memory for one round each: nothing can slip past; then k * sqrt(M) tiny ones."""
    copies = n // _skip_unit(memory)
    return _requests((copies, memory - 1, 1), (n - copies, 0, 1))


def _sof(n: int, memory: int, seed: int) -> Columns:
    """sqrt(M) short outputs with huge prompts, served first by their output though M small requests would fit at once."""
    return _requests((isqrt(memory), memory - 1, 1), (memory, 1, 2))


def _total_size(n: int, memory: int, seed: int) -> Columns:
    """8 requests that last M/4 rounds are one token smaller than many that last one round."""
    long = memory // 4
    return _requests((8, 1, long), (n - 8, long + 1, 1))


def _total_size_strong(n: int, memory: int, seed: int) -> Columns:
    """k requests of M - 1 rounds are one token smaller than the k * sqrt(M) that last one round; none fit together."""
    copies = n // _skip_unit(memory)
    return _requests((copies, 0, memory - 1), (n - copies, memory - 1, 1))


def _svf_memory(long: int) -> int:
    return long * (long + 3) // 2 + 1


def _svf_size(memory: int) -> int:
    return 2 * _largest(_svf_memory, memory, "svf-trap")


def _svf(n: int, memory: int, seed: int) -> Columns:
    """L long thin requests alternate with L short fat ones of the same volume M - 1; no fat one fits beside a thin one."""
    return _requests(*[(1, 1, n // 2), (1, memory - 2, 1)] * (n // 2))


def _svf_no_ties_memory(long: int) -> int:
    return long**3 + long**2 + long * (long + 1) // 2 + 2


def _svf_no_ties_size(memory: int) -> int:
    return 2 * _largest(_svf_no_ties_memory, memory, "svf-trap-no-ties")


def _svf_no_ties(n: int, memory: int, seed: int) -> Columns:
    """Volumes rise strictly and alternate in shape: (L*L + i, L), then one of one round that is larger by 1.

    The L long ones fit together; no short one fits beside any of them.
    """
    long = n // 2
    pairs = [(long * long + i, long**3 + i * long + long * (long + 1) // 2) for i in range(1, long + 1)]
    return _requests(*[request for thin, volume in pairs for request in ((1, thin, long), (1, volume, 1))])


def _largest(needed: Callable[[int], int], memory: int, name: str) -> int:
    """Return the L with `needed(L) == memory`, or refuse, naming the nearest memories."""
    long = 2
    while needed(long + 1) <= memory:
        long += 1
    if needed(long) != memory:
        raise InstanceError(f"memory = {memory}: the nearest that {name} can use are {needed(long)} and {needed(long + 1)}")
    return long


def _four(n: int, memory: int, seed: int) -> Columns:
    if memory != 17:
        raise InstanceError(f"memory = {memory}: the four requests are made for a memory of 17")
    return {"prompt": [9, 2, 6, 2], "output": [5, 5, 4, 3]}


def _trap(
    name: str,
    description: str,
    memory: int,
    least: int,
    columns: Callable[[int, int, int], Columns],
    count: Callable[[int], int],
    unit: Callable[[int], int] | None = None,
) -> Family:
    return Family(name, description, memory, count(memory), least, columns, count, unit)


_TRAPS = (
    _trap("fcfs-trap", "first come first served takes 2M/9 times too long", 64, 2, _fcfs, _fcfs_size),
    _trap(
        "fcfs-trap-strong",
        "first come first served takes M(k-1)/(k+1) times too long; n = k(M+1)",
        32,
        1,
        _fcfs_strong,
        lambda memory: 4 * (memory + 1),
        lambda memory: memory + 1,
    ),
    _trap(
        "skip-trap",
        "skipping a blocked head does not save first come first served: about sqrt(M); n = k(sqrt(M)+1)",
        64,
        2,
        _skip,
        lambda memory: isqrt(memory) * _skip_unit(memory),
        _skip_unit,
    ),
    _trap("sof-trap", "shortest output first takes (2/9)sqrt(M) times too long", 64, 3, _sof, lambda m: m + isqrt(m)),
    _trap(
        "total-size-trap",
        "smallest prompt + output first takes 0.16 sqrt(M) times too long",
        128,
        8,
        _total_size,
        lambda memory: 8 + 8 * isqrt(memory // 8),
    ),
    _trap(
        "total-size-trap-strong",
        "smallest prompt + output first takes about sqrt(M) times too long, skipping or not; n = k(sqrt(M)+1)",
        64,
        2,
        _total_size_strong,
        lambda memory: isqrt(memory) * _skip_unit(memory),
        _skip_unit,
    ),
    _trap("svf-trap", "smallest volume first, ties against it: (sqrt(2)/3)sqrt(M); M = L(L+3)/2 + 1", 66, 6, _svf, _svf_size),
    _trap(
        "svf-trap-no-ties",
        "smallest volume first without ties: about M^(1/3); M = L^3 + L^2 + L(L+1)/2 + 2",
        614,
        17,
        _svf_no_ties,
        _svf_no_ties_size,
    ),
    _trap("four", "four requests whose optimum, 24, no priority order reaches", 17, 17, _four, lambda m: 4),
)

TRAPS: dict[str, Family] = {family.name: family for family in _TRAPS}
