"""The hunt for bad instances: how far from the optimum can a solver be driven?

`hunt_small` anneals over a handful of requests, whose optimum an exhaustive search in compiled code knows at once.
`hunt_groups` anneals over a few groups of equal requests at larger size: there the total latency is held against the
best schedule that any other policy finds, so its ratio is a lower bound on the true one, and against a proved bound,
which gives an upper bound on it. Both report the worst ratio seen, with the instance; both repeat for a seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from opt.core.certify import check_schedule
from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.jit import compiled
from opt.solvers.bounds import best_bound
from opt.solvers.registry import SOLVERS

__all__ = ["Champion", "fastest", "hunt_groups", "hunt_small", "latency", "optimum"]

RIVALS = ("svf-pack", "staggered", "svf", "sof-pack", "lof-pack", "total-size-skip", "sorted-rate", "fcfs-pack", "best-fit-pack")


@dataclass(frozen=True)
class Champion:
    """The worst instance a hunt has found for a solver.

    Args:
        solver: its name in `SOLVERS`.
        instance: the requests.
        slow: the solver's certified total latency.
        fast: the optimum, or the best total latency known where `exact` is False.
        exact: whether `fast` is the optimum, by exhaustive search.
    """

    solver: str
    instance: Instance
    slow: int
    fast: int
    exact: bool

    @property
    def ratio(self) -> Fraction:
        """slow / fast: the solver's worst case is at least this, whether or not `fast` is the optimum."""
        return Fraction(self.slow, self.fast)


@compiled
def _least_wait(prompt: IntArray, output: IntArray, memory: int, below: int) -> int:
    """Return the least sum of starts of a feasible schedule, or `below` if every one has that many or more.

    Depth first over requests and their starts. Of two equal requests the later never starts first.
    """
    n = len(prompt)
    held = np.zeros(below + output.sum() + 2, np.int64)
    start, waited = np.full(n, -1, np.int64), np.zeros(n + 1, np.int64)
    placed = np.zeros(n, np.bool_)
    depth = 0
    while depth >= 0:
        s, o = prompt[depth], output[depth]
        if placed[depth]:
            for k in range(1, o + 1):
                held[start[depth] + k] -= s + k
            placed[depth] = False
        start[depth] += 1
        x = start[depth]
        if waited[depth] + x >= below:
            depth -= 1
            continue
        fits = True
        for k in range(1, o + 1):
            if held[x + k] + s + k > memory:
                fits = False
                break
        if not fits:
            continue
        if depth == n - 1:
            below = waited[depth] + x
            depth -= 1
            continue
        for k in range(1, o + 1):
            held[x + k] += s + k
        placed[depth] = True
        waited[depth + 1] = waited[depth] + x
        depth += 1
        twin = prompt[depth] == s and output[depth] == o
        start[depth] = x - 1 if twin else -1
    return below


def optimum(instance: Instance) -> int:
    """Return the least total latency of a few requests that are all there at round 0, by trying all starts.

    Raises:
        ValueError: somebody arrives later.
    """
    if not instance.offline:
        raise ValueError("the search over all starts is for requests that are all there at round 0")
    known = min(latency(instance, rival) for rival in ("svf-pack", "sof-pack")) - int(instance.output.sum())
    order = np.lexsort((instance.prompt, instance.output, -instance.volume))
    waits = _least_wait(instance.prompt[order], instance.output[order], instance.memory, known) if known else 0
    return int(waits) + int(instance.output.sum())


def latency(instance: Instance, solver: str) -> int:
    """Return a solver's total latency, uncertified: hunts look at thousands; `check` certifies what they keep."""
    start = SOLVERS[solver](instance, seed=0, time_limit=None).start
    assert start is not None, f"{solver} found no schedule"
    return int(start.sum() + instance.output.sum())


def fastest(instance: Instance) -> int:
    """Return the least total latency among the rivals."""
    return min(latency(instance, rival) for rival in RIVALS)


def check(champion: Champion) -> Champion:
    """Return the champion with its latency certified, held against a proved bound.

    Raises:
        CertificateError: the solver's schedule is not feasible.
        ArithmeticError: the solver claims a factor and breaks it, or the figures contradict a proved bound.
    """
    proposal = SOLVERS[champion.solver](champion.instance, seed=0, time_limit=None)
    assert proposal.start is not None, f"{champion.solver} found no schedule"
    slow = check_schedule(champion.instance, proposal.start).total_latency
    bound, factor = best_bound(champion.instance).value, proposal.stats.get("factor")
    if bound > champion.fast:
        raise ArithmeticError(f"the bound {bound} is above a total latency of {champion.fast}")
    if factor is not None and slow > factor * champion.fast:
        raise ArithmeticError(f"{champion.solver} claims a factor of {factor} and takes {slow} against {champion.fast}")
    return Champion(champion.solver, champion.instance, slow, champion.fast, champion.exact)


Shape = tuple[int, list[list[int]]]  # memory, and [prompt, output] or [prompt, output, count] of each row


def hunt_small(
    solver: str, *, seed: int = 0, requests: tuple[int, int] = (2, 6), memory: tuple[int, int] = (3, 16), tries: int = 5000
) -> Champion:
    """Return the worst instance found for a solver among small ones with known optimum.

    Args:
        solver: a name in `SOLVERS`; it is run with seed 0, without a time limit.
        seed: of the annealing.
        requests, memory: the least and the most.
        tries: instances looked at.
    """

    def judge(shape: Shape) -> tuple[Fraction, Instance, int, int]:
        instance = Instance(shape[0], [row[0] for row in shape[1]], [row[1] for row in shape[1]])
        slow = latency(instance, solver)
        fast = slow if slow == instance.output.sum() else optimum(instance)
        return Fraction(slow, fast), instance, slow, fast

    _, instance, slow, fast = _anneal(judge, _Ranges(requests, memory, 1), seed, tries)
    return check(Champion(solver, instance, slow, fast, exact=True))


def hunt_groups(
    solver: str, *, seed: int = 0, groups: tuple[int, int] = (2, 3), memory: tuple[int, int] = (20, 120), tries: int = 600
) -> Champion:
    """Return the worst instance found for a solver among groups of equal requests, against the best schedule known."""

    def judge(shape: Shape) -> tuple[Fraction, Instance, int, int]:
        rows = [row for row in shape[1] for _ in range(row[2])]
        instance = Instance(shape[0], [row[0] for row in rows], [row[1] for row in rows])
        slow = latency(instance, solver)
        fast = min(slow, fastest(instance))
        return Fraction(slow, fast), instance, slow, fast

    _, instance, slow, fast = _anneal(judge, _Ranges(groups, memory, 60), seed, tries)
    return check(Champion(solver, instance, slow, fast, exact=False))


@dataclass(frozen=True)
class _Ranges:
    rows: tuple[int, int]
    memory: tuple[int, int]
    count: int  # of equal requests in a row, at most


def _anneal(
    judge: Callable[[Shape], tuple[Fraction, Instance, int, int]], ranges: _Ranges, seed: int, tries: int
) -> tuple[Fraction, Instance, int, int]:
    """Return what `judge` says of the worst shape found; the temperature falls to a hundredth, with a restart at half time."""
    rng = np.random.default_rng(seed)
    here = best = judge(shape := _draw(rng, ranges))
    for k in range(tries):
        if k == tries // 2:
            shape, here = _draw(rng, ranges), judge(shape)
        moved = _move(rng, shape, ranges)
        there = judge(moved)
        heat = 0.1 * 0.01 ** (2 * k / tries % 1)
        if there[0] >= here[0] or rng.random() < math.exp(float(there[0] - here[0]) / heat):
            shape, here = moved, there
        best = max(best, here, key=lambda judged: judged[0])
    return best


def _draw(rng: np.random.Generator, ranges: _Ranges) -> Shape:
    memory = int(rng.integers(ranges.memory[0], ranges.memory[1] + 1))
    return memory, [_row(rng, memory, ranges) for _ in range(int(rng.integers(ranges.rows[0], ranges.rows[1] + 1)))]


def _row(rng: np.random.Generator, memory: int, ranges: _Ranges) -> list[int]:
    output = int(rng.integers(1, memory + 1))
    return [int(rng.integers(0, memory - output + 1)), output, int(rng.integers(1, ranges.count + 1))]


def _move(rng: np.random.Generator, shape: Shape, ranges: _Ranges) -> Shape:
    """Return a neighbour: another memory, or one row changed, replaced, copied, moved, added or removed."""
    memory, rows = shape[0], [list(row) for row in shape[1]]
    kind, at = int(rng.integers(8)), int(rng.integers(len(rows)))
    if kind == 0:
        memory = int(np.clip(memory + rng.integers(-2, 3), *ranges.memory))
    elif kind == 1 and len(rows) < ranges.rows[1]:
        rows.insert(at, _row(rng, memory, ranges))
    elif kind == 2 and len(rows) > ranges.rows[0]:
        del rows[at]
    elif kind == 3:
        rows[at] = list(rows[int(rng.integers(len(rows)))])
    elif kind == 4:
        rows.insert(int(rng.integers(len(rows))), rows.pop(at))
    elif kind == 5:
        rows[at] = _row(rng, memory, ranges)
    else:
        column = int(rng.integers(3 if ranges.count > 1 else 2))
        rows[at][column] += int(rng.integers(-3, 4))
    return memory, [_fitted(row, memory, ranges) for row in rows]


def _fitted(row: Sequence[int], memory: int, ranges: _Ranges) -> list[int]:
    output = min(max(row[1], 1), memory)
    return [min(max(row[0], 0), memory - output), output, min(max(row[2], 1), ranges.count)]
