"""Batches of least F: the dynamic program against all subsets, the fast former against the program."""

from fractions import Fraction

import numpy as np
import pytest
from exhaustive import batches, f_of, fits_together, four, random_instance, subsets

from instances import generate
from opt.core.instance import Instance
from opt.solvers.fmetric import batch_f, batch_fits, exact_batches, exact_work, fast_batches


def drawn(seed, count, most=9):
    """Small instances of three kinds: any output, short outputs, hardly any prompt."""
    rng = np.random.default_rng(seed)
    for k in range(count):
        memory = int(rng.integers(1, 40))
        instance = random_instance(rng, int(rng.integers(1, most + 1)), memory, outputs=(None, 3, None)[k % 3])
        yield instance if k % 3 < 2 else instance.replace(prompt=np.minimum(instance.prompt, 2))


def test_f_and_fit():
    """(2, 5) and (2, 3): F = 8/4, and 4 + 6 tokens in round 3, 7 in round 5. With (9, 5): 9 + 2 + 2 + 9 = 22 in round 3."""
    assert batch_f(four(), [1, 3]) == Fraction(2)
    assert batch_fits(four(), [1, 3])
    assert not batch_fits(four(), [0, 1, 3])
    assert batch_fits(four(), [])


def test_fit_means_that_no_round_exceeds_the_memory():
    for instance in drawn(1, 60, most=7):
        for batch in subsets(range(instance.n)):
            assert batch_fits(instance, batch) == fits_together(instance, batch)


def test_exact_batches_are_the_least_of_all_subsets():
    """Each among what the earlier ones left; of equal F the larger."""
    for instance in drawn(2, 150):
        left = set(range(instance.n))
        for batch in batches(exact_batches(instance)):
            choices = [(f_of(instance, x), -len(x)) for x in subsets(sorted(left)) if fits_together(instance, x)]
            assert set(batch) <= left
            assert fits_together(instance, batch)
            assert (f_of(instance, batch), -len(batch)) == min(choices)
            left -= set(batch)
        assert not left


def test_the_longest_member_of_a_least_batch_is_bounded():
    """Taking it out lowers nothing: o <= (2k - 1) F, on which the ratio of Sorted-F rests."""
    for instance in drawn(3, 60):
        for batch in batches(exact_batches(instance)):
            assert max(instance.output[batch]) <= (2 * len(batch) - 1) * f_of(instance, batch)


@pytest.mark.parametrize("source", ["small", "mixture", "ties"])
def test_fast_batches_are_feasible_trimmed_and_complete(source):
    made = {
        "small": lambda: drawn(4, 150),
        "mixture": lambda: [generate("mixture", n=400, seed=1), generate("chat", n=300, memory=4000)],
        "ties": lambda: [
            Instance(12, [0, 3] * 20, [4, 1] * 20),
            Instance(9, [8] * 12, [1] * 12),
            Instance(9, [0] * 30, [1] * 30),
        ],
    }
    for instance in made[source]():
        found = batches(fast_batches(instance))
        assert sorted(i for batch in found for i in batch) == list(range(instance.n))
        for batch in found:
            assert batch_fits(instance, batch)
            for i in batch if len(batch) > 1 else []:
                assert f_of(instance, [k for k in batch if k != i]) >= f_of(instance, batch)


def test_fast_batches_come_close_to_the_least_f():
    """Over 200 seeded instances of five kinds the first batch is within 1 % of the least F on average."""
    made = [*drawn(5, 80), *drawn(6, 40, most=30)]
    made += [generate("small", n=20, seed=seed) for seed in range(40)]
    made += [generate("small-short", n=30, seed=seed) for seed in range(40)]
    ratios = [float(f_of(x, batches(fast_batches(x))[0]) / f_of(x, batches(exact_batches(x))[0])) for x in made]
    assert len(ratios) == 200
    assert min(ratios) >= 1
    assert np.mean(ratios) <= 1.01, f"mean {np.mean(ratios):.5f}, worst {max(ratios):.5f}"


@pytest.mark.parametrize("former", [exact_batches, fast_batches])
def test_none_and_one(former):
    assert former(Instance(5, [], [])).tolist() == []
    assert former(Instance(5, [3], [2])).tolist() == [0]


@pytest.mark.parametrize("former", [exact_batches, fast_batches])
def test_batches_do_not_depend_on_arrivals_nor_change_between_runs(former):
    for instance in drawn(7, 20):
        late = instance.replace(arrival=np.arange(instance.n))
        assert former(instance).tolist() == former(late).tolist() == former(instance).tolist()


def test_exact_work_covers_the_table():
    """A batch's table has n * (largest + 1) * (memory + 1) cells and a least batch is never larger than `largest`."""
    for instance in drawn(8, 60):
        largest = max(len(batch) for batch in batches(exact_batches(instance)))
        assert exact_work(instance) >= instance.n * (instance.memory + 1) * largest


def test_sums_of_a_large_batch_do_not_wrap():
    """65538 requests (0, 32766) fit under 2^31 - 1 tokens together; outputs times size squared pass 2^63 there."""
    assert not fast_batches(Instance(2**31 - 1, np.zeros(65538, np.int64), np.full(65538, 32766))).any()
