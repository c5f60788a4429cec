"""Two families on which bounds take the place of closed forms: a random order, and volumes that are all distinct."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import sympy as sp

from instances import generate
from instances.families import distinct_pairs
from opt.core.certify import check_schedule
from opt.core.instance import Instance
from opt.solvers.orders import order_of
from opt.solvers.registry import SOLVERS
from proofs.claim import Claim, Finding, Reference, Step
from proofs.steps import argued, growth, identity, inequality, limit, tested
from proofs.unbounded import ENOUGH, MANY, Phase, latency_of, timetable

__all__ = ["all_volumes_distinct", "random_order", "random_order_any_rule"]

M, k, a, P = sp.symbols("M k a P", positive=True)
NEW = (Reference("family and argument of this project", "new"),)
STRICT = "offline; strict head of line with the exact look-ahead check"
SEEDS = 20


def random_order() -> Claim:
    """Return the claim that a random order is M/2 times too slow in expectation."""
    slow = k * M * (M * k * (k - 1) / (2 * (k + 1)) + 1) + M * k * (k + 1) / 2
    fast = k * k * M + k * k + k * M  # as in head-of-line-unbounded
    return Claim(
        "random-unbounded",
        "A uniformly random order takes at least about M/2 times the optimum in expectation",
        (STRICT, "the order is uniform and does not depend on the requests"),
        NEW,
        (
            argued(
                "a short request with b of the k long ones before it ends after round (b - 1) M",
                lambda: ((_trap(*size), seed) for size in ((4, 3), (16, 5), (64, 8)) for seed in range(SEEDS)),
                lambda case: _total(*case) >= _least(*case),
                domain=f"fcfs-trap-strong, M = 4, 16, 64, seeds 0 .. {SEEDS - 1}: total latency against the sum of these bounds",
                because="each long one fills the memory in its last round, so they run one after another, and who comes later "
                "in the "
                "order starts no sooner than the last long one before it, in round (b - 1) M at the earliest",
            ),
            identity(
                "b is uniform on 0 .. k, so the mean of (b - 1)^+ is k(k - 1)/(2(k + 1))",
                sp.summation((P - 1) / (k + 1), (P, 1, k)),
                k * (k - 1) / (2 * (k + 1)),
                because="by symmetry a short request is as likely in each of the k + 1 places among the long ones",
            ),
            limit("the expected ratio tends to M/2 as k does to infinity", slow / fast, k, M / 2),
            growth("which is linear in M", M / 2, M, sp.Rational(1, 2), 1),
            Step(f"with at most {MANY:,} requests the mean ratio passes {ENOUGH}", _mean_ratio),
        ),
    )


def _trap(memory: int, copies: int) -> Instance:
    return generate("fcfs-trap-strong", memory=memory, n=copies * (memory + 1))


def _total(instance: Instance, seed: int, rule: str = "random") -> int:
    start = SOLVERS[rule](instance, seed=seed, time_limit=None).start
    assert start is not None
    return check_schedule(instance, start).total_latency


def _least(instance: Instance, seed: int) -> int:
    """Return the sum over short requests of M (b - 1)^+ + 1, and of the long ones' ends, for the order of a seed."""
    long = instance.output[order_of(instance, "random", seed=seed)] > 1
    before = np.cumsum(long)[~long]
    count = int(long.sum())
    return int((instance.memory * np.maximum(before - 1, 0) + 1).sum()) + instance.memory * count * (count + 1) // 2


def _mean_ratio() -> Finding:
    instance = _trap(64, 10)
    better = check_schedule(instance, timetable(instance, [Phase(0, 1, 64, 1), Phase(0, 64, 1, 64)])).total_latency
    ratios = [_total(instance, seed) / better for seed in range(SEEDS)]
    mean, count = sum(ratios) / SEEDS, instance.n
    shows = f"fcfs-trap-strong with M = 64: {count:,} requests, mean ratio {mean:.2f} over {SEEDS} seeds, certified"
    return Finding(mean > ENOUGH and count <= MANY, "exhaustive", shows, SEEDS)


def random_order_any_rule() -> Claim:
    """Return the claim that a random order is sqrt(M)/2 times too slow in expectation, skipping or packing or not."""
    r = sp.Symbol("r", positive=True)
    thin = (r**2 - 2) * k * (k - 1) / 2 + k * (r**2 - 1)
    slow = k * r * ((r**2 - 2) * k / 2 + 1) + thin
    fast = k * r * (k * r + 1) / 2 + k * r * k + thin  # as in total-size-unbounded
    rules = ("random", "random-skip", "random-pack")

    def least(instance: Instance, seed: int) -> int:
        long = instance.output[order_of(instance, "random", seed=seed)] > 1
        before, count, step = np.cumsum(long)[~long], int(long.sum()), instance.memory - 2
        return int((step * before + 1).sum()) + sum(i * step + instance.memory - 1 for i in range(count))

    def law(case: tuple[int, int, int, str]) -> bool:
        memory, copies, seed, rule = case
        instance = generate("total-size-trap-strong", memory=memory, n=copies * (math.isqrt(memory) + 1))
        return _total(instance, seed, rule) >= least(instance, seed)

    return Claim(
        "random-unbounded-any-rule",
        "A uniformly random order takes at least about sqrt(M)/2 times the optimum in expectation, under every rule",
        ("offline", "the order is uniform and does not depend on the requests", "head of line, skipping or serial earliest fit"),
        NEW,
        (
            argued(
                "a fat request with b of the k thin ones before it in the order ends after round b (M - 2)",
                lambda: ((m, c, seed, rule) for m, c in ((4, 3), (16, 5), (64, 8)) for seed in range(SEEDS) for rule in rules),
                law,
                domain=f"total-size-trap-strong, M = 4, 16, 64, seeds 0 .. {SEEDS - 1}, three rules",
                because="two thin ones share one round at most, a fat one shares none, and who comes later in the "
                "order goes first only if it is thin",
            ),
            identity(
                "b is uniform on 0 .. k, so its mean is k/2", sp.summation(P / (k + 1), (P, 0, k)), k / 2, because="by symmetry"
            ),
            limit(
                "the expected ratio tends to a function of r = sqrt(M) as k does to infinity",
                slow / fast,
                k,
                sp.limit(sp.together(slow / fast), k, sp.oo),
            ),
            growth("which grows like r/2", sp.limit(sp.together(slow / fast), k, sp.oo), r, sp.Rational(1, 2), 1),
        ),
    )


def all_volumes_distinct() -> Claim:
    """Return the claim that strict SVF is at least sqrt(M)/log(M) times too slow, up to a constant, without any tie."""
    peak, goal = 3 * a + 1 + a / 4 + sp.Rational(1, 2), a * (3 * a + 1) / 2
    slow, fast = a / 2 * P**2, P * (P + 1) / 2 + P**2 + P * a
    fewest = a / (24 * sp.log(a))
    return Claim(
        "svf-unbounded-distinct",
        "Smallest volume first takes at least sqrt(M)/(30 log(M)) times the optimum, for large M, though all volumes are "
        "distinct",
        (STRICT, "some peak reaches the memory"),
        (*NEW, Reference("more than x/(3 ln 2x) primes between x and 2x, x >= 3: Erdos 1932", "published")),
        (
            argued(
                "thin and fat requests alternate, and none fit together: pairs of L + 1 rounds",
                lambda: range(2, 150),
                _pairs_in_turn,
                domain="svf-trap-distinct, longest output a = 2 .. 149, real packer",
                because="volumes, and the peaks of the fat ones, lie in V .. V + a = M at most, thin prompts are at least a, and "
                "each fat one is larger by 1 than the thin one before it",
            ),
            inequality(
                "P pairs with L > a/2 take at least a P^2/2",
                P * (P - 1) * (a / 2 + 1) + P * (a + 1),
                slow,
                [(P, 1, None), (a, 2, None)],
            ),
            inequality(
                "P <= a/3 thin ones fit together", goal, a / 3 * peak, [(a, 2, None)], because="a peak is at most V/L + L/2 + 1/2"
            ),
            argued(
                "fat ones first, then all thin ones at once: at most P(P + 1)/2 + P^2 + P a",
                lambda: range(6, 150),
                lambda longest: _fast(longest) <= fast.subs({P: len(distinct_pairs(longest)), a: longest}) or f"{_fast(longest)}",
                domain="the same instances, certified",
                because="each fat one takes a round, and thin ones take a rounds at most",
            ),
            inequality(
                "(a/2)^3 > 2(V + a), so three primes above a/2 never divide one 2v", a**3 / 8, 2 * (goal + a), [(a, 27, None)]
            ),
            argued(
                "P is at least a quarter of the number of primes in (a/2, a]",
                lambda: range(27, 400),
                lambda longest: 4 * len(distinct_pairs(longest)) >= sp.primepi(longest) - sp.primepi(longest // 2),
                domain="a = 27 .. 399",
                because="2v = L(2s + L + 1), so a volume belongs to two primes L at most; of d distinct volumes at least d/2 "
                "are kept two "
                "apart; and a/3 is more",
            ),
            inequality("the ratio of these rises with P", sp.diff(slow / fast, P), 0, [(P, 1, None), (a, 2, None)]),
            limit(
                "with P >= a/(24 ln a) the ratio is at least about a/(48 ln a)",
                (slow / fast).subs(P, fewest) * sp.log(a) / a,
                a,
                sp.Rational(1, 48),
            ),
            limit("and M <= V + a, so a is about sqrt(2M/3), and ln(a) about ln(M)/2", (goal + a) / a**2, a, sp.Rational(3, 2)),
            inequality(
                "which gives the constant 2 sqrt(2/3)/48 >= 1/30", 2 * sp.sqrt(sp.Rational(2, 3)) / 48, sp.Rational(1, 30), []
            ),
            tested(
                "in truth P is near a/4, and the measured exponent within 10 % of 1/2",
                lambda: [None],
                _slope,
                domain="a = 100 .. 800",
            ),
            Step(f"with at most {MANY:,} requests the ratio passes {ENOUGH}", _distinct_witness),
        ),
    )


def _distinct(longest: int) -> Instance:
    return generate("svf-trap-distinct", memory=distinct_pairs(longest)[-1][2] + 1)


def _pairs_in_turn(longest: int) -> bool | str:
    """Whether SVF takes what pairs one after another take, and no volume occurs twice."""
    instance, now, total = _distinct(longest), 0, 0
    for output in instance.output[::2].tolist():
        total += (now + output) + (now + output + 1)
        now += output + 1
    if len(set(instance.volume.tolist())) < instance.n:
        return "a volume occurs twice"
    found = latency_of(instance, "svf")
    return found == total or f"the packer takes {found}, pairs in turn {total}"


def _fast(longest: int) -> int:
    instance = _distinct(longest)
    start = np.full(instance.n, instance.n // 2, np.int64)
    start[1::2] = np.arange(instance.n // 2)
    return check_schedule(instance, start).total_latency


def _measured(longests: list[int]) -> Iterator[tuple[float, float]]:
    for longest in longests:
        instance = _distinct(longest)
        yield math.log(instance.memory), math.log(latency_of(instance, "svf") / _fast(longest))


def _slope(_: None) -> bool | str:
    points = list(_measured([100, 150, 220, 330, 500, 800]))
    slope = float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])
    return abs(slope - 0.5) <= 0.05 or f"the slope is {slope:.3f}"


def _distinct_witness() -> Finding:
    instance = _distinct(100)
    ratio = latency_of(instance, "svf") / _fast(100)
    shows = f"svf-trap-distinct with M = {instance.memory:,}: {instance.n:,} requests, ratio {ratio:.2f}, certified"
    return Finding(ratio > ENOUGH and instance.n <= MANY, "exhaustive", shows, 1)
