"""Lower bounds: worked numbers, the definitions in fractions, and never above the optimum."""

from fractions import Fraction

import numpy as np
import pytest
from exhaustive import four, optimum, random_instance, tiny
from hypothesis import given
from hypothesis import strategies as st

from opt.core.exact import exact_dot, exact_sum
from opt.core.instance import MAX_MEMORY, Instance
from opt.solvers.bounds import best_bound, mean_busy_time, tails, trivial, volume
from opt.solvers.door import lower_bound

UNIT = Fraction(1, 2**32)


def tail(s, o):
    """d by its definition: from the memory-weighted mean of the active rounds to the completion."""
    return o - sum((k - Fraction(1, 2)) * (s + k) for k in range(1, o + 1)) / sum(s + k for k in range(1, o + 1))


def test_four_requests():
    """Volumes 12, 25, 34, 60 under 17 tokens.

    Volume bound: (4*12 + 3*25 + 2*34 + 60)/17 = 251/17. Mean busy times (7*12 + 5*25 + 3*34 + 60)/34 = 371/34, tails
    4/3, 21/10, 63/34 and 7/3, so 18.53 in all, rounded up 19; the optimum is 24, which whole ramps prove.
    """
    assert trivial(four()).value == 17
    assert volume(four()).value == Fraction(251, 17)
    exact = Fraction(371, 34) + Fraction(4, 3) + Fraction(21, 10) + Fraction(63, 34) + Fraction(7, 3)
    assert 0 <= exact - mean_busy_time(four()).value < 4 * UNIT
    assert mean_busy_time(four()).ceil == 19
    assert (best_bound(four()).method, best_bound(four()).value) == ("ramps", 24)
    assert [round(float(x), 6) for x in tails(four()) * float(UNIT)] == [2.333333, 2.1, 1.852941, 1.333333]


@given(st.integers(0, 40), st.integers(1, 40))
def test_the_closed_form_of_the_tail_is_its_definition(s, o):
    found = int(tails(Instance(80, [s], [o]))[0]) * UNIT
    assert 0 <= tail(s, o) - found < UNIT
    assert Fraction(2 * o + 1, 6) <= tail(s, o) <= Fraction(o, 2)


@given(st.integers(1, MAX_MEMORY), st.floats(0, 1))
def test_tails_of_large_requests(o, share):
    """d = (6 s o + (2 o + 1)(o + 1)) / (6 (2 s + o + 1)) up to the largest memory, without overflow."""
    s = int((MAX_MEMORY - o) * share)
    exact = Fraction(6 * s * o + (2 * o + 1) * (o + 1), 6 * (2 * s + o + 1))
    found = int(tails(Instance(MAX_MEMORY, [s], [o]))[0]) * UNIT
    assert 0 <= exact - found < UNIT


def test_the_formula_in_fractions():
    """All at round 0: (1/M) * sum of (volumes before + v/2) + sum of d, rounded down by less than 2^-32 a request."""
    rng = np.random.default_rng(1)
    for _ in range(60):
        instance = random_instance(rng, int(rng.integers(1, 12)), int(rng.integers(1, 40)))
        before, means = 0, Fraction(0)
        for v in sorted(instance.volume.tolist()):
            means += (before + Fraction(v, 2)) / instance.memory
            before += v
        exact = means + sum(tail(s, o) for s, o in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True))
        assert 0 <= exact - mean_busy_time(instance).value < instance.n * UNIT


def stepped(instance):
    """Sum of mean busy times under arrivals, one token-round after another: the smallest volume there is served."""
    volumes = instance.volume.tolist()
    left, moment, step = list(volumes), [Fraction(0)] * instance.n, 0
    while any(left):
        there = [i for i in range(instance.n) if left[i] and instance.arrival[i] * instance.memory <= step]
        if there:
            i = min(there, key=lambda k: (volumes[k], k))
            moment[i] += (step + Fraction(1, 2)) / instance.memory
            left[i] -= 1
        step += 1
    return sum(m / v for m, v in zip(moment, volumes, strict=True))


def test_preemptive_means_with_arrivals_in_fractions():
    rng = np.random.default_rng(2)
    for k in range(40):
        instance = random_instance(rng, int(rng.integers(1, 7)), int(rng.integers(1, 9)), arrivals=(3, 9)[k % 2])
        jobs = zip(instance.prompt.tolist(), instance.output.tolist(), instance.arrival.tolist(), strict=True)
        exact = stepped(instance) + sum(tail(s, o) - a for s, o, a in jobs)
        assert 0 <= exact - mean_busy_time(instance).value < 2 * instance.n * UNIT


def test_arrivals_are_not_ignored():
    """M = 5: (0, 2) at 9, (2, 3) at 1, (1, 4) at 3, volumes 3, 12, 14, tails 5/6, 11/8, 52/28.

    The optimum is 10: starts 9, 1, 4. The offline formula less arrivals would not see that the smallest comes last.
    Preemptively the second runs from 1 to 3.4, the third from 3.4 to 6.2, the first from 9 to 9.6: means 2.2, 4.8, 9.3.
    """
    instance = Instance(5, [0, 2, 1], [2, 3, 4], arrival=[9, 1, 3])
    assert optimum(instance) == (10, [9, 1, 4])
    wrong = mean_busy_time(instance.replace(arrival=None)).value
    exact = Fraction(22 + 48 + 93, 10) + tail(0, 2) + tail(2, 3) + tail(1, 4) - 13
    found = mean_busy_time(instance).value
    assert 0 <= exact - found < 6 * UNIT
    assert found <= 10 < wrong


def test_no_bound_exceeds_the_optimum():
    for instance, best in tiny():
        for bound in (trivial, volume, mean_busy_time, best_bound):
            if bound is not volume or instance.offline:
                assert bound(instance).value <= best, (bound.__name__, instance.columns())


def test_mean_busy_time_is_never_below_the_volume_bound():
    rng = np.random.default_rng(3)
    for k in range(100):
        instance = random_instance(rng, int(rng.integers(1, 60)), int(rng.integers(1, 100)), outputs=(None, 2, 1)[k % 3])
        assert volume(instance).value <= mean_busy_time(instance).value <= best_bound(instance).value


def test_equality_where_one_request_fills_the_memory_for_a_round():
    """k requests (M - 1, 1): one a round, so every bound and the optimum is k(k + 1)/2."""
    instance = Instance(7, [6] * 5, [1] * 5)
    assert volume(instance).value == mean_busy_time(instance).value == optimum(instance)[0] == 15


def test_more_memory_helps_and_fewer_requests_help():
    """The optimum and every bound fall with the memory; they rise with requests, by at least the newcomer's output."""
    for instance, best in tiny()[:24]:
        roomy = instance.replace(memory=instance.memory + 2)
        fewer = instance.take(np.arange(instance.n - 1))
        last = int(instance.output[-1])
        assert optimum(roomy)[0] <= best
        assert optimum(fewer)[0] + last <= best
        assert mean_busy_time(roomy).value <= mean_busy_time(instance).value
        assert mean_busy_time(fewer).value <= mean_busy_time(instance).value


def test_order_of_the_requests_does_not_matter():
    rng = np.random.default_rng(4)
    for instance, _ in tiny():
        shuffled = instance.take(rng.permutation(instance.n))
        assert mean_busy_time(shuffled) == mean_busy_time(instance)


def test_a_later_clock_changes_no_bound():
    """Arrivals of 2^50 and more, so that moments pass 64 bits by far."""
    for instance, _ in tiny()[:20]:
        arrival = instance.arrival + np.arange(instance.n) % 2
        early, late = (mean_busy_time(instance.replace(arrival=arrival + shift)).value for shift in (1, 2**50))
        assert abs(early - late) < 2 * instance.n * UNIT


def test_bounds_of_nobody():
    empty = Instance(5, [], [])
    assert [bound(empty).value for bound in (trivial, volume, mean_busy_time, best_bound)] == [0] * 4
    assert mean_busy_time(Instance(5, [], [], arrival=[])).value == 0


def test_the_largest_instance_stays_exact():
    """Two requests (0, M) under M = 2^31 - 1: M(M + 1)/2 each, so 2(M + 1) of mean busy time and (2M + 1)/6 a tail."""
    instance = Instance(MAX_MEMORY, [0, 0], [MAX_MEMORY] * 2)
    exact = Fraction(4 * (MAX_MEMORY + 1), 4) + 2 * Fraction(2 * MAX_MEMORY + 1, 6)
    assert 0 <= exact - mean_busy_time(instance).value < 2 * UNIT


def test_the_door_names_what_is_wrong():
    with pytest.raises(ValueError, match=r"unknown bound 'volum'; did you mean volume\?"):
        lower_bound(four(), "volum")
    with pytest.raises(ValueError, match="proved for separate KV caches"):
        lower_bound(four(), "mean-busy-time", kv="shared")
    assert lower_bound(four(), kv="shared").value == lower_bound(four(), "mean-busy-time").value  # nothing is shared
    with pytest.raises(ValueError, match="kv"):
        lower_bound(four(), kv="both")


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20))
def test_exact_sum(values):
    assert exact_sum(np.array(values, np.int64)) == sum(values)


@given(st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**31 - 1)), max_size=20))
def test_exact_dot(pairs):
    values, factors = np.array(pairs, np.int64).reshape(-1, 2).T
    assert exact_dot(values, factors) == sum(a * b for a, b in pairs)


def test_exact_sums_of_many_large_terms():
    """More terms than one chunk of `exact_dot`, all at their largest."""
    n, most, factor = 5000, 2**63 - 1, 2**31 - 1
    assert exact_sum(np.full(n, most)) == n * most
    assert exact_dot(np.full(n, most), np.full(n, factor)) == n * most * factor
