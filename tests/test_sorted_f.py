"""Batch greedy: the rate rule is exact, the serial schedule is what the theorems speak of, the factors hold."""

from itertools import pairwise

import numpy as np
import pytest
from exhaustive import batches, feasible, latency, random_instance, rate_of, subsets, tiny

from opt.core.instance import Instance
from opt.solvers.fmetric import exact_batches
from opt.solvers.sorted_f import batch_serial, rate_batches, sorted_f, sorted_f_serial, sorted_rate


def least_rates(instance):
    """The rate of every batch of `rate_batches`, and the least rate among the sets of what was left."""
    left = set(range(instance.n))
    for batch in batches(rate_batches(instance)):
        sets = (x for x in subsets(sorted(left)) if sum(instance.peak[list(x)]) <= instance.memory)
        assert set(batch) <= left
        assert sum(instance.peak[batch]) <= instance.memory
        yield rate_of(instance, batch), min(rate_of(instance, x) for x in sets)
        left -= set(batch)
    assert not left


def test_rate_batches_have_the_least_rate_of_all_sets():
    rng = np.random.default_rng(1)
    for k in range(200):
        instance = random_instance(rng, int(rng.integers(1, 9)), int(rng.integers(1, 30)), outputs=(None, 3)[k % 2])
        for rate, least in least_rates(instance):
            assert rate == least, instance.columns()


@pytest.mark.parametrize(
    ("memory", "prompt", "output"),
    [
        (10, [6, 1, 0], [1, 3, 4]),  # {(6, 1)} at 1; then (1, 3) and (0, 4) have peaks 4 + 4 and rate 4/2, below 3 and 4
        (21, [6, 6, 6, 20, 0, 0, 0, 0, 0], [1, 1, 1, 1, 4, 4, 4, 4, 4]),  # three at 1/3; then five at 4/5, below (20, 1) at 1
    ],
)
def test_a_long_duration_may_pay_later(memory, prompt, output):
    """The first batch rules out the longest duration by the number of requests; the second must look at it again."""
    instance = Instance(memory, prompt, output)
    assert all(rate == least for rate, least in least_rates(instance))


def test_rates_never_fall():
    """Each set was there to be chosen before."""
    rng = np.random.default_rng(2)
    for _ in range(40):
        instance = random_instance(rng, 60, 50)
        rates = [rate_of(instance, batch) for batch in batches(rate_batches(instance))]
        assert all(a <= b for a, b in pairwise(rates))


def test_batches_run_one_after_another_once_all_members_are_there():
    """Batch 0 waits for round 4 and lasts 3; batch 1 follows at 7 and lasts 5; batch 2 waits for round 20."""
    instance = Instance(9, [1] * 5, [3, 2, 5, 1, 2], arrival=[0, 4, 2, 7, 20])
    assert batch_serial(instance, np.array([0, 0, 1, 1, 2])).tolist() == [4, 4, 7, 7, 20]
    assert batch_serial(Instance(9, [], []), np.zeros(0, np.int64)).tolist() == []


@pytest.mark.parametrize("former", [exact_batches, rate_batches])
def test_serial_schedules_are_feasible_and_within_the_factor(former):
    """32 OPT for least F, 16 OPT for least rate, when all are there at round 0; the optimum by trying all starts."""
    factor = {exact_batches: 32, rate_batches: 16}[former]
    worst = 0
    for instance, best in tiny():
        start = batch_serial(instance, former(instance)).tolist()
        assert feasible(instance, start)
        if instance.offline:
            worst = max(worst, latency(instance, start) / best)
    assert 1 <= worst <= factor


def test_a_factor_is_claimed_only_where_it_is_proved():
    instance = Instance(9, [1, 2, 3], [3, 2, 1])
    late = instance.replace(arrival=[0, 0, 1])
    for solver, factor in ((sorted_f, 32), (sorted_f_serial, 32), (sorted_rate, 16)):
        assert solver(instance).stats["factor"] == factor
        assert solver(late).stats["factor"] is None
    for solver in (sorted_f, sorted_f_serial):
        assert (solver(instance, former="exact").stats["batches"], solver(late, former="exact").stats["factor"]) == (
            "exact",
            None,
        )
        assert (solver(instance, former="fast").stats["batches"], solver(instance, former="fast").stats["factor"]) == (
            "fast",
            None,
        )


def test_auto_takes_the_exact_former_while_its_work_is_small():
    small, large = Instance(9, [1] * 3, [2] * 3), Instance(10**6, [1] * 1100, [2] * 1100)
    assert sorted_f(small).stats["batches"] == "exact"
    assert sorted_f(large).stats["batches"] == "fast"


@pytest.mark.parametrize("solver", [sorted_f, sorted_rate])
def test_the_better_of_serial_and_overlapped_is_returned(solver):
    former = {sorted_f: exact_batches, sorted_rate: rate_batches}[solver]
    forms = set()
    for instance, _ in tiny():
        found = solver(instance)
        forms.add(found.stats["form"])
        assert sum(found.start) <= sum(batch_serial(instance, former(instance)))
    assert forms <= {"serial", "strict", "skip", "pack"}
    assert len(forms) > 1


@pytest.mark.parametrize("solver", [sorted_f, sorted_f_serial])
def test_an_unknown_former(solver):
    with pytest.raises(ValueError, match="former = 'best': must be auto, exact or fast"):
        solver(Instance(9, [1], [1]), former="best")
