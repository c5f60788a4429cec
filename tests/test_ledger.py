"""The three packers give the starts that stepping through the rounds gives."""

from itertools import permutations, product

import numpy as np
import pytest
from exhaustive import RULES, feasible, four, latency, optimum, random_instance

from opt.core.instance import Instance
from opt.solvers.ledger import pack_skip, pack_strict
from opt.solvers.orders import KEYS, order_of
from opt.solvers.serial import pack_serial

PACKERS = {"strict": pack_strict, "skip": pack_skip, "pack": pack_serial}


def packed(rule, instance, order):
    """Starts by the packer under test, as a list."""
    columns = instance.prompt, instance.output, instance.arrival, instance.memory
    return PACKERS[rule](np.array(order, np.int64), *columns).tolist()


def test_four_requests_that_no_order_solves():
    """Trying every start gives 24, by holding the longest back to 5; all 24 orders under all three rules give 25 at best."""
    assert optimum(four()) == (24, [5, 1, 1, 0])
    for rule in PACKERS:
        assert min(latency(four(), packed(rule, four(), order)) for order in permutations(range(4))) == 25, rule


def test_the_search_for_the_optimum_leaves_nothing_out():
    """Against all starts up to the last finish of running one after another: no optimum goes past it."""
    rng = np.random.default_rng(0)
    for k in range(40):
        instance = random_instance(rng, int(rng.integers(1, 4)), int(rng.integers(1, 8)), arrivals=(0, 4)[k % 2])
        last = int(instance.arrival.max() + instance.output.sum())
        starts = product(*(range(int(a), last) for a in instance.arrival))
        best = min(latency(instance, start) for start in starts if feasible(instance, start))
        value, start = optimum(instance)
        assert (value, latency(instance, start), feasible(instance, start)) == (best, best, True)


@pytest.mark.parametrize("rule", PACKERS)
@pytest.mark.parametrize("arrivals", [0, 6, 40])
def test_packers_equal_stepping_through_the_rounds(rule, arrivals):
    rng = np.random.default_rng(arrivals)
    for k in range(120):
        memory = int(rng.integers(1, 31))
        outputs = (None, 4)[k % 2]
        instance = random_instance(rng, int(rng.integers(1, 9)), memory, arrivals=arrivals, outputs=outputs)
        order = rng.permutation(instance.n).tolist()
        assert packed(rule, instance, order) == RULES[rule](instance, order)


@pytest.mark.parametrize("rule", PACKERS)
@pytest.mark.parametrize(("memory", "outputs"), [(40, None), (40, 3), (500, 45), (12, 12)])
def test_many_requests(rule, memory, outputs):
    """Long enough for the serial packer to cut time into buckets, jump over full ones and double their width."""
    rng = np.random.default_rng(memory)
    for k in range(8):
        instance = random_instance(rng, 30 + 7 * k, memory, arrivals=(0, 90)[k % 2], outputs=outputs)
        for order in (rng.permutation(instance.n), order_of(instance, "svf"), order_of(instance, "lof")):
            assert packed(rule, instance, order) == RULES[rule](instance, order.tolist())


@pytest.mark.parametrize("rule", PACKERS)
def test_many_equal_requests(rule):
    """k of (0, 4) fit under 4k tokens: 30 of them under 12 run three at a time, whatever the rule."""
    instance = Instance(12, [0] * 30, [4] * 30)
    assert packed(rule, instance, range(30)) == [4 * (k // 3) for k in range(30)]


@pytest.mark.parametrize("rule", PACKERS)
def test_a_later_clock_changes_nothing_else(rule):
    """Add a constant to every arrival and the same is added to every start, up to the end of the clock."""
    rng = np.random.default_rng(3)
    for _ in range(20):
        instance = random_instance(rng, 40, 25, arrivals=50)
        order = rng.permutation(40)
        starts = packed(rule, instance, order)
        for shift in (1, 1000, 2**52):
            later = instance.replace(arrival=instance.arrival + shift)
            assert packed(rule, later, order) == [x + shift for x in starts]


@pytest.mark.parametrize("rule", PACKERS)
def test_a_quiet_spell_separates(rule):
    """What arrives when all is done starts as if it were alone."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        one, two = random_instance(rng, 12, 20, arrivals=8), random_instance(rng, 12, 20, arrivals=8)
        gap = 10**6
        columns = {key: np.concatenate([getattr(one, key), getattr(two, key)]) for key in ("prompt", "output")}
        both = Instance(20, **columns, arrival=np.concatenate([one.arrival, two.arrival + gap]))
        order = np.arange(24) if rule == "pack" else rng.permutation(24)
        first, second = order[order < 12], order[order >= 12] - 12
        expected = packed(rule, one, first) + [x + gap for x in packed(rule, two, second)]
        assert packed(rule, both, order) == expected


@pytest.mark.parametrize("rule", ["strict", "pack"])
def test_who_comes_later_in_the_order_is_not_felt(rule):
    rng = np.random.default_rng(5)
    for _ in range(20):
        instance = random_instance(rng, 30, 20)
        whole = packed(rule, instance, range(30))
        for k in (1, 9, 17, 29):
            assert packed(rule, instance.take(np.arange(k)), range(k)) == whole[:k]


@pytest.mark.parametrize("rule", PACKERS)
@pytest.mark.parametrize("name", sorted(KEYS.keys() - {"random"}))
def test_starts_follow_their_requests_under_permutation(rule, name):
    """With distinct keys and arrivals no tie is left for the index to break."""
    rng = np.random.default_rng(6)
    output = rng.permutation(np.arange(1, 21))
    prompt = 50 * rng.permutation(20)
    instance = Instance(2000, prompt, output, arrival=rng.permutation(20))
    assert len(set(instance.volume.tolist())) == len(set(instance.peak.tolist())) == 20
    starts = np.array(packed(rule, instance, order_of(instance, name)))
    shuffle = rng.permutation(20)
    moved = instance.take(shuffle)
    assert packed(rule, moved, order_of(moved, name)) == starts[shuffle].tolist()


def test_orders():
    """(s, o): volumes 60, 25, 34, 12 and peaks 14, 7, 10, 5; equal outputs fall back on arrival, then index."""
    orders = {name: order_of(four(), name).tolist() for name in KEYS if name != "random"}
    assert orders == {
        "fcfs": [0, 1, 2, 3],
        "sof": [3, 2, 0, 1],
        "lof": [0, 1, 2, 3],
        "total-size": [3, 1, 2, 0],
        "svf": [3, 1, 2, 0],
        "best-fit": [0, 2, 1, 3],
    }
    late = four().replace(arrival=[9, 0, 5, 0])
    assert order_of(late, "fcfs").tolist() == [1, 3, 2, 0]
    assert order_of(late, "sof").tolist() == [3, 2, 1, 0]
    assert order_of(late, "sof", ageing=1).tolist() == [3, 1, 2, 0]  # 3 + 0, 5 + 0, 4 + 5, 5 + 9
    shuffled = [order_of(Instance(9, [0] * 30, [1] * 30), "random", seed=seed).tolist() for seed in (0, 0, 1)]
    assert shuffled[0] == shuffled[1] != shuffled[2]
    assert sorted(shuffled[0]) == list(range(30))


@pytest.mark.parametrize("ageing", [-1, 2**32, 1.5, float("nan")])
def test_ageing_out_of_range(ageing):
    with pytest.raises(ValueError, match=f"ageing = {ageing}"):
        order_of(four(), "sof", ageing=ageing)


def test_ageing_cannot_leave_64_bits():
    with pytest.raises(ValueError, match="below 2"):
        order_of(Instance(9, [1], [1], arrival=[2**53]), "sof", ageing=2**20)


@pytest.mark.parametrize("rule", PACKERS)
def test_extreme_numbers(rule):
    """Two requests of half of the largest memory fit together; a third waits for the end."""
    half = 2**30 - 1
    instance = Instance(2 * half, [half - 1] * 2 + [0], [1, 1, 2 * half], arrival=[2**53] * 3)
    assert packed(rule, instance, [0, 1, 2]) == [2**53, 2**53, 2**53 + 1]
