"""Adversarial families: their counts, and that the policy each is made for does as badly as it promises."""

from fractions import Fraction
from math import isqrt, sqrt

import numpy as np
import pytest

from instances import FAMILIES, generate
from instances.families import TRAPS, distinct_pairs
from opt.core.certify import check_schedule
from opt.core.errors import InstanceError

SVF_MEMORIES = [long * (long + 3) // 2 + 1 for long in range(2, 15)]
NO_TIES_MEMORIES = [long**3 + long**2 + long * (long + 1) // 2 + 2 for long in range(2, 9)]


def groups(instance):
    """The distinct (prompt, output) in order of first appearance, with their counts."""
    found = {}
    for pair in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True):
        found[pair] = found.get(pair, 0) + 1
    return found


@pytest.mark.parametrize("half", [1, 2, 7, 50, 500])
def test_fcfs_trap(half):
    memory = 2 * half
    made = groups(generate("fcfs-trap", memory=memory))
    if half == 1:
        assert made == {(1, 1): 5}
    else:
        assert list(made.items()) == [((half, half), 3), ((1, 1), memory)]


@pytest.mark.parametrize(("memory", "copies"), [(2, 1), (5, 2), (32, 4), (99, 7)])
def test_fcfs_trap_strong(memory, copies):
    made = generate("fcfs-trap-strong", memory=memory, n=copies * (memory + 1))
    assert list(groups(made).items()) == [((0, memory), copies), ((0, 1), copies * memory)]


@pytest.mark.parametrize(("memory", "copies"), [(4, 1), (9, 4), (64, 8), (70, 3)])
def test_skip_trap(memory, copies):
    made = generate("skip-trap", memory=memory, n=copies * (isqrt(memory) + 1))
    assert list(groups(made).items()) == [((memory - 1, 1), copies), ((0, 1), copies * isqrt(memory))]


@pytest.mark.parametrize("memory", [3, 4, 64, 65, 400])
def test_sof_trap(memory):
    assert list(groups(generate("sof-trap", memory=memory)).items()) == [((memory - 1, 1), isqrt(memory)), ((1, 2), memory)]


@pytest.mark.parametrize("root", [1, 2, 4, 9])
def test_total_size_trap(root):
    """M = 8 m^2 and L = 2 m^2: the count 8 sqrt(L/2) is 8 m exactly."""
    memory, long = 8 * root**2, 2 * root**2
    made = generate("total-size-trap", memory=memory)
    assert list(groups(made).items()) == [((1, long), 8), ((long + 1, 1), 8 * root)]
    assert set(made.peak.tolist()) == {long + 1, long + 2}


@pytest.mark.parametrize(("memory", "copies"), [(4, 2), (64, 8), (50, 1)])
def test_total_size_trap_strong(memory, copies):
    made = generate("total-size-trap-strong", memory=memory, n=copies * (isqrt(memory) + 1))
    assert list(groups(made).items()) == [((0, memory - 1), copies), ((memory - 1, 1), copies * isqrt(memory))]


@pytest.mark.parametrize("memory", SVF_MEMORIES)
def test_svf_trap(memory):
    made = generate("svf-trap", memory=memory)
    long = made.n // 2
    assert list(zip(made.prompt.tolist(), made.output.tolist(), strict=True)) == [(1, long), (memory - 2, 1)] * long
    assert set(made.volume.tolist()) == {memory - 1}


@pytest.mark.parametrize("memory", NO_TIES_MEMORIES)
def test_svf_trap_no_ties(memory):
    made = generate("svf-trap-no-ties", memory=memory)
    assert (np.diff(made.volume) > 0).all()
    assert made.output.tolist() == [made.n // 2, 1] * (made.n // 2)
    assert made.peak[::2].sum() <= memory  # the long ones fit together
    assert made.peak[1::2].min() + made.prompt[::2].min() + 1 > memory  # no short one fits beside any of them


@pytest.mark.parametrize(("memory", "copies"), [(2, 1), (5, 2), (32, 4)])
def test_fcfs_trap_sealed(memory, copies):
    made = groups(generate("fcfs-trap-sealed", memory=memory, n=copies * (memory + 2)))
    assert list(made.items()) == [((0, memory), copies), ((memory - 1, 1), copies), ((0, 1), copies * memory)]


@pytest.mark.parametrize("copies", [1, 3])
def test_fcfs_trap_log(copies):
    """M = 64 = 4^3: lengths 32, 16, 8 occur 2, 4, 8 times a copy, 14 seals, and 64 * isqrt(9) short ones."""
    made = groups(generate("fcfs-trap-log", memory=64, n=copies * 220))
    thin = {(0, 64 >> i): copies << i for i in (1, 2, 3)}
    assert made == {**thin, (63, 1): 14 * copies, (0, 1): 192 * copies}


def test_lof_sof_skip_ahead_and_one_bit_traps():
    assert groups(generate("one-bit-trap", memory=12, n=14)) == {(0, 1): 7, (0, 4): 6, (0, 12): 1}  # q = 3, k = 2
    assert groups(generate("skip-ahead-trap", memory=9, n=8)) == {(7, 1): 6, (0, 9): 2}
    assert groups(generate("lof-trap", memory=16, n=40)) == {(14, 2): 8, (1, 1): 32}
    assert groups(generate("sof-trap-strong", memory=36, n=276)) == {(35, 1): 60, (0, 2): 216}


@pytest.mark.parametrize("memory", SVF_MEMORIES)
def test_svf_trap_strong(memory):
    """The thin ones, one a round, fill the memory but one token: 2 + 3 + .. + (L + 1) = M - 1."""
    made = generate("svf-trap-strong", memory=memory, n=6)
    assert made.prompt.tolist() == [1, memory - 2] * 3
    assert sum(1 + age for age in range(1, int(made.output[0]) + 1)) == memory - 1 == made.volume.min() == made.volume.max()


@pytest.mark.parametrize("longest", [2, 3, 10, 24, 77])
def test_svf_trap_distinct(longest):
    made = generate("svf-trap-distinct", memory=distinct_pairs(longest)[-1][2] + 1)
    assert (np.diff(made.volume) > 0).all()
    assert made.peak[::2].sum() <= made.memory  # the thin ones fit together
    assert made.peak[1::2].min() + made.prompt[::2].min() + 1 > made.memory  # no fat one fits beside any of them
    assert (made.output[1::2] == 1).all()


@pytest.mark.parametrize("together", [2, 3, 4, 7])
def test_equal_trap(together):
    """k = 2, 3, ..: peaks of 2k - 1 under M = k(2k - 1), which ages 1 .. 2k - 1 fill exactly."""
    made = generate("equal-trap", memory=together * (2 * together - 1), n=3 * together)
    assert groups(made) == {(0, 2 * together - 1): 3 * together}
    assert sum(range(1, 2 * together)) == made.memory


def test_four():
    assert list(groups(generate("four"))) == [(9, 5), (2, 5), (6, 4), (2, 3)]
    assert check_schedule(generate("four"), np.array([5, 1, 1, 0])).total_latency == 24


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_the_least_memory_is_enough_and_no_more(name):
    family = FAMILIES[name]
    made = generate(name, memory=family.least)
    assert made.peak.max() <= family.least
    if family.least > 1:
        with pytest.raises(InstanceError, match=f"memory = {family.least - 1}: {name} needs at least {family.least} tokens"):
            generate(name, memory=family.least - 1)


@pytest.mark.parametrize("name", sorted(TRAPS))
def test_the_seed_changes_nothing_but_the_origin(name):
    first, second = generate(name, seed=0), generate(name, seed=9)
    assert first.prompt.tolist() == second.prompt.tolist()
    assert first.output.tolist() == second.output.tolist()
    assert first.name == second.name
    assert (first.origin["seed"], second.origin["seed"]) == (0, 9)


@pytest.mark.parametrize(
    ("name", "memory", "n", "message"),
    [
        ("fcfs-trap", 64, 66, "n = 66: fcfs-trap with a memory of 64 has exactly 67 requests"),
        ("fcfs-trap", 63, None, "memory = 63: fcfs-trap needs an even memory, such as 62 or 64"),
        ("fcfs-trap-strong", 32, 34, "n = 34: fcfs-trap-strong with a memory of 32 has a multiple of 33 requests"),
        ("fcfs-trap-strong", 32, 0, "n = 0: fcfs-trap-strong"),
        ("skip-trap", 64, 10, "n = 10: skip-trap with a memory of 64 has a multiple of 9 requests"),
        ("svf-trap", 67, None, "memory = 67: the nearest that svf-trap can use are 66 and 78"),
        ("svf-trap-no-ties", 18, None, "memory = 18: the nearest that svf-trap-no-ties can use are 17 and 44"),
        ("four", 18, None, "memory = 18: the four requests are made for a memory of 17"),
        ("four", 17, 5, "n = 5: four with a memory of 17 has exactly 4 requests"),
        ("fcfs-trap", 2 * 10**7, None, "n = 20000003: must be an integer from 0 to 10000000"),
    ],
)
def test_sizes_that_do_not_fit_the_family_are_refused(name, memory, n, message):
    with pytest.raises(InstanceError, match=message):
        generate(name, memory=memory, n=n)


def strict(instance, key, *, skip=False):
    """Total latency of a list order: each round, start the head while it fits to the end (exact look-ahead)."""
    s, o = instance.prompt.tolist(), instance.output.tolist()
    queue, start, now = sorted(range(instance.n), key=key), [0] * instance.n, 0
    active = []

    def fits(new):
        held = [*active, (now, new)]
        ends = {x + o[j] for x, j in held}
        return all(sum(s[j] + t - x for x, j in held if t <= x + o[j]) <= instance.memory for t in ends)

    while queue:
        active, at = [(x, j) for x, j in active if x + o[j] > now], 0
        while at < len(queue):
            if fits(queue[at]):
                start[queue[at]] = now
                active.append((now, queue.pop(at)))
            elif skip:
                at += 1
            else:
                break
        now += 1
    return check_schedule(instance, np.array(start)).total_latency


ORDERS = {
    "fcfs": lambda instance: lambda k: k,
    "size": lambda instance: lambda k: (int(instance.peak[k]), k),
    "output": lambda instance: lambda k: (int(instance.output[k]), k),
    "longest": lambda instance: lambda k: (-int(instance.output[k]), k),
    "volume": lambda instance: lambda k: (int(instance.volume[k]), k),
}


def quotient(name, memory, policy, better, *, skip=False):
    """How many times longer the policy takes than another order, itself no optimum."""
    instance = generate(name, memory=memory)
    return Fraction(strict(instance, ORDERS[policy](instance), skip=skip), strict(instance, ORDERS[better](instance)))


@pytest.mark.parametrize("memory", [36, 40, 64, 100])
def test_fcfs_is_as_bad_as_its_formula(memory):
    """(M^2 + 11/2 M + 13) / (9/2 M + 6): everybody waits for two of M/2 rounds, against small ones first.

    Multiples of 4 from 36 on: beside the third large one, which grows, the small ones take exactly five rounds.
    """
    expected = (memory**2 + Fraction(11, 2) * memory + 13) / (Fraction(9, 2) * memory + 6)
    assert quotient("fcfs-trap", memory, "fcfs", "size") == expected


@pytest.mark.parametrize("memory", [15, 28, 45, 66])
def test_svf_is_as_bad_as_its_formula(memory):
    """2L(L + 2) / (6L - 1) with L(L + 3)/2 = M - 1: pairs one after another, against all short ones first; L even,
    so that the long ones then make two equal batches.
    """
    long = generate("svf-trap", memory=memory).n // 2
    assert quotient("svf-trap", memory, "volume", "output") == Fraction(2 * long * (long + 2), 6 * long - 1)


@pytest.mark.parametrize(
    ("name", "memory", "policy", "better", "skip", "least"),
    [
        ("fcfs-trap-strong", 32, "fcfs", "output", False, 32 * 3 / 5),
        ("skip-trap", 64, "fcfs", "size", True, 0.7 * sqrt(64)),
        ("sof-trap", 64, "output", "size", False, 2 / 9 * sqrt(64)),
        ("total-size-trap", 128, "size", "output", False, 0.16 * sqrt(128)),
        ("total-size-trap-strong", 36, "size", "output", False, 0.9 * sqrt(36)),
        ("total-size-trap-strong", 36, "size", "output", True, 0.9 * sqrt(36)),
        ("fcfs-trap-sealed", 32, "fcfs", "output", False, 32 / 3),
        ("fcfs-trap-log", 64, "fcfs", "output", False, 64 / 6),
        ("lof-trap", 64, "longest", "size", True, 0.6 * sqrt(64)),
        ("sof-trap-strong", 36, "output", "size", True, 0.35 * sqrt(36)),
        ("skip-ahead-trap", 64, "volume", "size", True, 0.7 * sqrt(64)),
        ("svf-trap-strong", 66, "volume", "output", False, 0.5 * sqrt(66)),
        ("svf-trap-distinct", 898, "volume", "output", False, 3),
        ("svf-trap-no-ties", 614, "volume", "output", False, 0.4 * 614 ** (1 / 3)),
    ],
)
def test_each_policy_falls_into_its_trap(name, memory, policy, better, skip, least):
    assert quotient(name, memory, policy, better, skip=skip) > least
