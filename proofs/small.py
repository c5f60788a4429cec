"""Small instances with everything known about them: all schedules, the optimum. What lemmas are tried on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np

from opt.core.instance import Instance
from opt.solvers.ledger import pack_strict

__all__ = ["draw", "latency", "optimum", "schedules", "solved"]


def draw(
    count: int, *, seed: int, requests: tuple[int, int], memory: tuple[int, int], arrivals: int = 0, outputs: int | None = None
) -> Iterator[Instance]:
    """Yield `count` instances with n and memory in these ranges (ends included), in turn of any shape and with short outputs.

    Args:
        count, seed: the same seed gives the same instances.
        requests, memory: ranges.
        arrivals: the last round of arrival; 0 for all at round 0.
        outputs: the largest output; None: half of the instances have outputs of at most 3.
    """
    raw = np.random.PCG64(seed)

    def pick(low: int, high: int) -> int:
        return low + int(raw.random_raw()) % (high - low + 1)

    for k in range(count):
        n, budget = pick(*requests), pick(*memory)
        most = min(budget, outputs or (budget, 3)[k % 2])
        output = [pick(1, most) for _ in range(n)]
        prompt = [pick(0, budget - o) for o in output]
        arrival = [pick(0, arrivals) for _ in range(n)]
        yield Instance(budget, prompt, output, arrival=arrival if arrivals else None)


def latency(instance: Instance, start: list[int]) -> int:
    """Return the total latency of these starts."""
    return int(sum(start) + instance.output.sum() - instance.arrival.sum())


def schedules(instance: Instance, slack: int) -> Iterator[list[int]]:
    """Yield every feasible list of starts whose waits, start less arrival, add up to at most `slack` rounds."""
    jobs = list(zip(instance.prompt.tolist(), instance.output.tolist(), instance.arrival.tolist(), strict=True))
    held = [0] * (slack + sum(o + a for _, o, a in jobs) + 2)
    start = [0] * len(jobs)

    def place(i: int, left: int) -> Iterator[list[int]]:
        if i == len(jobs):
            yield list(start)
            return
        s, o, a = jobs[i]
        for x in range(a, a + left + 1):
            if all(held[x + k] + s + k <= instance.memory for k in range(1, o + 1)):
                for k in range(1, o + 1):
                    held[x + k] += s + k
                start[i] = x
                yield from place(i + 1, left - (x - a))
                for k in range(1, o + 1):
                    held[x + k] -= s + k

    return place(0, slack)


def optimum(instance: Instance) -> tuple[int, list[int]]:
    """Return the least total latency and starts that reach it, by trying all starts (for a handful of requests)."""
    order = np.lexsort((instance.arrival, instance.volume))
    start = pack_strict(order, instance.prompt, instance.output, instance.arrival, instance.memory).tolist()
    while True:  # a schedule with less waiting, as long as there is one
        slack = sum(start) - int(instance.arrival.sum())
        shorter = next(schedules(instance, slack - 1), None) if slack else None
        if shorter is None:
            return latency(instance, start), start
        start = shorter


@cache
def solved(arrivals: int = 0) -> tuple[tuple[Instance, int, list[int]], ...]:
    """Return sixty instances of up to five requests with their optimum and starts that reach it."""
    made = draw(60, seed=5 + arrivals, requests=(1, 5), memory=(2, 10), arrivals=arrivals)
    return tuple((instance, *optimum(instance)) for instance in made)
