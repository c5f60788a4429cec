"""The reduction from 3-Partition, there and back, and that a wrong one is noticed."""

import numpy as np
import pytest
from exhaustive import optimum

from opt.core.certify import check_schedule
from opt.solvers.door import solve
from proofs.claim import prove
from proofs.hardness import ThreePartition, apply, hardness, invert, partition, problems, threshold

YES = ThreePartition((4, 5, 6, 4, 5, 6), 15)
NO = ThreePartition((4, 4, 4, 6, 6, 6), 15)


def test_a_problem_with_a_partition():
    """4 + 5 + 6 = 15 twice: K = 3 * 2 * 3 / 2 = 9, three requests end in round 1 and three in round 2."""
    assert threshold(YES) == 9
    result = solve(apply(YES), "exact")
    assert result.total_latency == 9
    for triple in invert(YES, result.schedule):
        assert sorted(YES.numbers[i] for i in triple) == [4, 5, 6]


def test_a_problem_without():
    """No three of 4 and 6 add up to 15, so somebody ends in round 3."""
    assert partition(NO) is None
    result = solve(apply(NO), "exact")
    assert result.total_latency == optimum(apply(NO))[0] == 10
    with pytest.raises(ValueError, match="total latency 10 is over the threshold 9"):
        invert(NO, result.schedule)


def test_the_optimum_of_all_small_problems_tells_whether_there_is_a_partition():
    """By the other exhaustive search, the one over all starts of any instance."""
    for problem in problems(2, range(3, 20)):
        assert (optimum(apply(problem))[0] <= threshold(problem)) == (partition(problem) is not None)


@pytest.mark.parametrize(
    ("numbers", "target"), [((4, 5, 6, 4, 5), 15), ((4, 5, 6), 16), ((3, 5, 7), 15), ((2, 5, 8), 15), ((), 3)]
)
def test_what_is_no_3_partition_problem_is_refused(numbers, target):
    with pytest.raises(ValueError, match=r"not 3m numbers|not strictly between"):
        ThreePartition(numbers, target)


def test_the_claim_is_established():
    report = prove(hardness())
    assert report.outcome == "established", report.summary


@pytest.mark.parametrize(
    "wrong",
    [
        lambda problem: apply(problem).replace(memory=problem.target + 1),
        lambda problem: apply(problem).replace(memory=problem.target - 1),
        lambda problem: apply(problem).replace(prompt=np.array(problem.numbers) - 2),
        lambda problem: apply(problem).replace(output=np.full(len(problem.numbers), 2), prompt=np.array(problem.numbers) - 2),
    ],
    ids=["memory one too large", "memory one too small", "prompts one too small", "two tokens each"],
)
def test_a_reduction_off_by_one_is_refuted(wrong):
    report = prove(hardness(wrong))
    assert report.outcome == "refuted"
    assert not all(finding.holds for finding in report.findings[4:])


def test_a_schedule_within_the_threshold_inverts_whatever_the_order():
    problem = ThreePartition((4, 6, 5, 6, 4, 5, 4, 5, 6), 15)
    start = np.array([2, 2, 0, 1, 1, 1, 0, 2, 0])
    assert sorted(invert(problem, check_schedule(apply(problem), start))) == [(0, 1, 7), (2, 6, 8), (3, 4, 5)]
