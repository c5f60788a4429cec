"""Least total latency is strongly NP-hard: a reduction from 3-Partition that one can run, both ways.

3-Partition: given 3m integers with sum m B, each strictly between B/4 and B/2, split them into m triples of sum B.
`apply` makes each number a request of one output token whose peak is the number, under a memory of B. A round is then a
bin of capacity B, and total latency the sum of bin numbers: min-sum bin packing. `invert` reads the triples off any
schedule of total latency at most `threshold`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement
from typing import TypeAlias

import numpy as np
import sympy as sp

from opt.core.certify import check_schedule
from opt.core.errors import CertificateError
from opt.core.instance import Instance
from opt.core.model import Schedule
from proofs.claim import Claim, Reference, Step
from proofs.steps import argued, exhaustive, identity, inequality

__all__ = ["ThreePartition", "apply", "hardness", "invert", "partition", "threshold"]


@dataclass(frozen=True)
class ThreePartition:
    """3m numbers that add up to m * `target`, each strictly between a quarter and a half of it.

    Raises:
        ValueError: they do not.
    """

    numbers: tuple[int, ...]
    target: int

    def __post_init__(self) -> None:
        groups, rest = divmod(len(self.numbers), 3)
        if rest or not groups or sum(self.numbers) != groups * self.target:
            raise ValueError(f"{self.numbers}: not 3m numbers of sum m * {self.target}")
        wrong = [a for a in self.numbers if not self.target < 4 * a < 2 * self.target]
        if wrong:
            raise ValueError(f"{wrong[0]} is not strictly between {self.target}/4 and {self.target}/2")

    @property
    def groups(self) -> int:
        """The number m of triples wanted."""
        return len(self.numbers) // 3


def apply(problem: ThreePartition) -> Instance:
    """Return the requests: prompt a - 1 and output 1 for each number a, memory B. Numbers grow by nothing."""
    prompt = np.array(problem.numbers, np.int64) - 1
    return Instance(problem.target, prompt, np.ones(len(prompt), np.int64), name=f"3-partition-{problem.groups}")


def threshold(problem: ThreePartition) -> int:
    """Return 3 m (m + 1) / 2: the total latency of three requests in each of rounds 1 .. m."""
    return 3 * problem.groups * (problem.groups + 1) // 2


def invert(problem: ThreePartition, schedule: Schedule) -> list[tuple[int, ...]]:
    """Return triples of indices whose numbers add up to B each, from a schedule of at most the threshold.

    Raises:
        ValueError: the schedule takes longer, and then shows nothing.
    """
    if schedule.total_latency > threshold(problem):
        raise ValueError(f"total latency {schedule.total_latency} is over the threshold {threshold(problem)}")
    triples = [tuple(np.flatnonzero(schedule.start == t).tolist()) for t in range(problem.groups)]
    for triple in triples:
        if len(triple) != 3 or sum(problem.numbers[i] for i in triple) != problem.target:
            raise ArithmeticError(f"the round of {triple} is no triple of sum {problem.target}: the reduction is wrong")
    return triples


def partition(problem: ThreePartition) -> list[tuple[int, ...]] | None:
    """Return triples of indices that solve the problem, or None if there are none, by trying all."""

    def split(left: tuple[int, ...]) -> list[tuple[int, ...]] | None:
        if not left:
            return []
        for pair in combinations(left[1:], 2):
            triple = (left[0], *pair)
            if sum(problem.numbers[i] for i in triple) == problem.target:
                rest = split(tuple(i for i in left if i not in triple))
                if rest is not None:
                    return [triple, *rest]
        return None

    return split(tuple(range(len(problem.numbers))))


def problems(groups: int, targets: Sequence[int]) -> Iterator[ThreePartition]:
    """Yield every 3-Partition problem, up to order, of so many triples with these targets."""
    for target in targets:
        allowed = range(target // 4 + 1, (target + 1) // 2)
        for numbers in combinations_with_replacement(allowed, 3 * groups):
            if sum(numbers) == groups * target:
                yield ThreePartition(numbers, target)


def schedules(instance: Instance, most: int) -> Iterator[Schedule]:
    """Yield every feasible schedule of requests of one round each whose total latency is at most `most`."""
    peaks, start = instance.peak.tolist(), [0] * instance.n
    free = [instance.memory] * (most + 1)

    def place(i: int, budget: int) -> Iterator[Schedule]:
        if i == len(peaks):
            yield check_schedule(instance, np.array(start))
            return
        for t in range(budget + 1):
            if peaks[i] <= free[t]:
                free[t] -= peaks[i]
                start[i] = t
                yield from place(i + 1, budget - t)
                free[t] += peaks[i]

    return place(0, most - instance.n)


Reduction: TypeAlias = Callable[[ThreePartition], Instance]


def _equivalent(problem: ThreePartition, reduce: Reduction) -> bool | str:
    """Check both directions on one problem: a schedule within the threshold exists iff a partition does, and all invert."""
    known = partition(problem)
    read = [invert(problem, schedule) for schedule in schedules(reduce(problem), threshold(problem))]
    if bool(read) == (known is not None):
        return True
    return f"{len(read)} schedules within the threshold, but {'a' if known else 'no'} partition"


def _forward(problem: ThreePartition, reduce: Reduction) -> bool | str:
    """Check that the triples of a partition, one in each round, certify and meet the threshold exactly."""
    triples = partition(problem)
    assert triples is not None
    start = np.zeros(len(problem.numbers), np.int64)
    for t, triple in enumerate(triples):
        start[list(triple)] = t
    try:
        schedule = check_schedule(reduce(problem), start)
    except CertificateError as error:
        return str(error)
    return schedule.total_latency == threshold(problem) and sorted(invert(problem, schedule)) == sorted(triples)


def _solvable(count: int) -> Iterator[ThreePartition]:
    """Yield problems with larger numbers and more triples, each with a partition by design."""
    for seed in range(count):
        raw = np.random.PCG64(seed).random_raw(40).astype(object)
        groups, target = 2 + seed % 4, 200 + seed
        triples = []
        for k in range(groups):
            a, b = (target // 4 + 12 + int(raw[2 * k + j]) % 10 for j in (0, 1))
            triples += [a, b, target - a - b]
        yield ThreePartition(tuple(triples), target)


def hardness(reduce: Reduction = apply) -> Claim:
    """Return the claim; another `reduce` than `apply` is for tests that plant a mistake."""
    return Claim(
        "hardness",
        "Deciding whether total latency at most K is possible is strongly NP-complete, even when every output is one token",
        ("offline: all requests are there at round 0", "memory, prompts and K are part of the input, in unary if one likes"),
        (
            Reference("Garey and Johnson 1979, problem SP15: 3-Partition is strongly NP-complete", "published"),
            Reference("min-sum bin packing has a PTAS: Epstein, Johnson, Levin 2018; so no APX-hardness here", "published"),
            Reference("the reduction, and its executable inverse", "new"),
        ),
        (*_counting(), *_reduction(reduce)),
    )


def _counting() -> tuple[Step, ...]:
    """K is the least total latency when at most three requests fit in a round, and only three in each reach it."""
    m, t, e, B = sp.symbols("m t e B", positive=True)
    done = sp.Symbol("done", nonnegative=True)
    least = sp.Rational(3, 2) * m * (m + 1)
    return (
        identity(
            "three requests in each of rounds 1 .. m have total latency K = 3m(m + 1)/2", sp.summation(3 * t, (t, 1, m)), least
        ),
        inequality(
            "four numbers above B/4 exceed B, so a round holds at most three requests",
            4 * (B / 4 + e),
            B,
            [(B, 1, None), (e, sp.Rational(1, 4), None)],
            strict=True,
            because="numbers are integers above B/4, so each is at least B/4 + 1/4",
        ),
        identity(
            "if at most 3t requests have ended by round t, for every t, total latency is at least K",
            sp.summation(3 * m - 3 * t, (t, 0, m - 1)),
            least,
            because="total latency is the sum over t >= 0 of the requests not yet ended at t, at least 3m - 3t each",
        ),
        inequality(
            "with equality only if exactly 3t have ended by every round t <= m",
            3 * m - done,
            3 * m - 3 * t,
            [(m, 1, None), (t, 0, m), (done, 0, 3 * t)],
            because="no term is below its bound, so equal sums make all terms equal, and each of rounds 1 .. m has exactly 3",
        ),
    )


def _reduction(reduce: Reduction) -> tuple[Step, ...]:
    """Both directions: by argument for all problems, and exhaustively for small ones, solvable or not."""
    small = [problem for groups, end in ((1, 30), (2, 24), (3, 17)) for problem in problems(groups, range(3, end))]
    return (
        argued(
            "then the three peaks of each round add up to exactly B, so `invert` returns a partition",
            lambda: _solvable(40),
            lambda problem: _forward(problem, reduce),
            domain="problems of 2 to 5 triples with targets from 200 on",
            because="each round holds at most B, there are m rounds, and all peaks add up to m B, so no round is below B",
        ),
        exhaustive(
            "a schedule within K exists exactly if a partition does, and every one of them inverts",
            lambda: small,
            lambda problem: _equivalent(problem, reduce),
            domain="all problems with m = 1 (B < 30), m = 2 (B < 24), m = 3 (B < 17), and all their schedules within K",
        ),
        exhaustive(
            "some of these have no partition, and then no schedule is within K",
            lambda: [problem for problem in small if partition(problem) is None],
            lambda problem: next(schedules(reduce(problem), threshold(problem)), None) is None,
            domain="those of the problems above that have no partition",
        ),
        argued(
            "the reduction is polynomial in unary, and a schedule is checked in polynomial time: strongly NP-complete",
            lambda: small,
            lambda problem: bool(reduce(problem).memory == problem.target and (reduce(problem).peak == problem.numbers).all()),
            domain="the problems above",
            because="peaks are the numbers and memory is B, so no number grows; no start above the sum of outputs is needed",
        ),
    )
