"""The worst small instances found for each solver by the hunts of `proofs.worst_case`, with their optimum.

A line comes from the records of `kvopt bench ratios` (mode `small`, the worst of all seeds). The ratio
`total_latency / optimum` bounds the solver's worst case from below; the order of the requests is the order of arrival.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from instances.family import Columns, Family
from opt.core.errors import InstanceError

__all__ = ["CHAMPIONS", "WORST", "Worst"]


class Worst(NamedTuple):
    """An instance, what the solver it was found for took, and the optimum by exhaustive search."""

    memory: int
    requests: tuple[tuple[int, int], ...]  # prompt and output
    total_latency: int
    optimum: int


WORST: dict[str, Worst] = {
    "sorted-f": Worst(14, ((6, 3), (6, 3), (6, 3), (0, 9), (3, 3)), 57, 35),
    "sorted-f-serial": Worst(13, ((5, 2), (5, 2), (0, 7), (0, 7), (0, 7), (0, 7)), 92, 49),
    "sorted-rate": Worst(10, ((4, 5), (6, 4), (3, 2), (0, 5), (5, 2), (5, 2)), 56, 43),
    "phases": Worst(8, ((0, 5), (0, 2), (0, 7), (7, 1), (3, 3)), 39, 26),
    "staggered": Worst(12, ((0, 5), (7, 2), (0, 3), (7, 2), (7, 2)), 35, 23),
    "one-bit": Worst(14, ((0, 13), (2, 6), (2, 6), (3, 2), (2, 5), (3, 1)), 107, 43),
    "fcfs": Worst(16, ((0, 14), (0, 9), (13, 1), (2, 1), (3, 1), (0, 1)), 126, 30),
    "sof": Worst(3, ((0, 1), (2, 1), (0, 1), (2, 1), (0, 1)), 15, 8),
    "lof": Worst(16, ((0, 16), (7, 5), (12, 1), (0, 1), (0, 1), (0, 1)), 125, 28),
    "total-size": Worst(14, ((13, 1), (0, 11), (12, 1), (13, 1), (7, 4), (13, 1)), 96, 34),
    "svf": Worst(12, ((0, 6), (9, 2), (10, 2), (3, 4)), 40, 23),
    "best-fit": Worst(16, ((0, 1), (4, 1), (13, 2), (0, 16), (4, 1), (3, 1)), 110, 25),
    "fcfs-skip": Worst(16, ((1, 14), (14, 1), (15, 1), (15, 1), (15, 1), (0, 8)), 129, 39),
    "sof-skip": Worst(16, ((0, 16), (10, 1), (14, 1), (14, 1), (14, 1), (14, 1)), 91, 34),
    "lof-skip": Worst(9, ((0, 5), (6, 2), (0, 9), (8, 1), (8, 1), (8, 1)), 93, 34),
    "horizon": Worst(13, ((2, 7), (0, 4), (2, 4), (2, 3), (0, 7), (0, 10)), 54, 50),
    "total-size-skip": Worst(16, ((4, 4), (12, 1), (13, 1), (11, 1), (0, 16), (12, 1)), 94, 34),
    "svf-skip": Worst(15, ((14, 1), (3, 2), (0, 15), (14, 1), (12, 1), (13, 1)), 87, 33),
    "best-fit-skip": Worst(13, ((0, 13), (12, 1), (12, 1), (12, 1), (12, 1), (12, 1)), 93, 33),
    "fcfs-pack": Worst(14, ((0, 14), (0, 8), (9, 3), (13, 1), (13, 1), (13, 1)), 142, 44),
    "sof-pack": Worst(9, ((5, 4), (0, 4), (1, 3), (0, 4), (0, 4), (0, 4)), 61, 37),
    "lof-pack": Worst(9, ((8, 1), (0, 5), (8, 1), (0, 9), (6, 2), (8, 1)), 93, 34),
    "total-size-pack": Worst(15, ((1, 6), (14, 1), (13, 1), (2, 12), (14, 1), (13, 1)), 95, 36),
    "svf-pack": Worst(12, ((0, 6), (9, 2), (1, 6)), 28, 17),
    "best-fit-pack": Worst(11, ((0, 11), (10, 1), (10, 1), (10, 1), (10, 1), (10, 1)), 81, 31),
}


def _family(solver: str, worst: Worst) -> Family:
    def columns(n: int, memory: int, seed: int) -> Columns:
        if memory != worst.memory:
            raise InstanceError(f"memory = {memory}: worst-{solver} is made for a memory of {worst.memory}")
        prompt, output = np.array(worst.requests, np.int64).T
        return {"prompt": prompt, "output": output}

    count = len(worst.requests)
    title = f"the worst small case found for {solver}: {worst.total_latency} against an optimum of {worst.optimum}"
    return Family(f"worst-{solver}", title, worst.memory, count, worst.memory, columns, lambda memory: count)


CHAMPIONS: dict[str, Family] = {f"worst-{solver}": _family(solver, worst) for solver, worst in WORST.items()}
