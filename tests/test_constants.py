"""Constants: every claim is established, no planted mistake is, and the lemmas meet exhaustive search and worked numbers."""

from dataclasses import replace
from fractions import Fraction
from itertools import combinations_with_replacement, permutations, product

import numpy as np
import pytest
from exhaustive import feasible, fits_together, latency, optimum, random_instance, rate_of, subsets, tiny
from hypothesis import given
from hypothesis import strategies as st

from instances import FAMILIES
from opt.core.instance import Instance
from opt.solvers.bounds import mean_busy_time, trivial
from opt.solvers.phases import OFFSETS, PHASES_FACTOR, RATIO, in_phases, keys, phases
from opt.solvers.sorted_f import rate_batches, sorted_rate
from proofs import CLAIMS
from proofs import mean_busy_time as bounds
from proofs.claim import prove
from proofs.density import density, density_by_hand, find_weights, least_batch, least_volume, verdict
from proofs.phases import greedy, split_bound
from proofs.phases import phases as phases_claim
from proofs.phases_by_order import best_order, phases_by_order
from proofs.small import draw
from proofs.small import optimum as searched
from proofs.sorted_f import histogram_fits
from proofs.sorted_f import sorted_f as sorted_f_claim
from proofs.sorted_f import sorted_rate as sorted_rate_claim
from proofs.staggered import identical_prompts, identical_requests
from proofs.svf import ratio, smallest_volume_first, smallest_volume_first_anyway

# `density` is run by `sorted-f`, of which it is a step.
NAMES = ["mean-busy-time", "prices", "svf", "svf-sqrt", "density-by-hand", "sorted-f", "sorted-rate"]
NAMES += ["phases", "phases-by-order", "staggered", "staggered-prompts"]


@pytest.mark.parametrize("name", NAMES)
def test_claims_are_established(name):
    report = prove(CLAIMS[name].load())
    assert report.outcome == "established", report.summary


def doubled_tail(instance):
    return bounds.least_means(instance, bounds.share) + sum(d for _, d in bounds.busy(instance, bounds.share))


PLANTED = {
    "the formula for round 0 with arrivals": lambda: bounds.mean_busy_time(bounds.naive),
    "a tail counted twice": lambda: bounds.mean_busy_time(doubled_tail),
    "prices that pay for half the capacity only": lambda: bounds.price_bound(Fraction(1, 2)),
    "a tail of half the output": lambda: smallest_volume_first(Fraction(1, 2)),
    "2 sqrt(M) + 4": lambda: smallest_volume_first_anyway(4),
    "C = 3.9": lambda: density(Fraction(39, 10)),
    "C = 4 with one set of weights": lambda: density_by_hand(Fraction(4)),
    "Sorted-F with C = 9/2, not what the solver states": lambda: sorted_f_claim(Fraction(9, 2)),
    "Sorted-rate with C = 3.9": lambda: sorted_rate_claim(Fraction(39, 10)),
    "phases within 6": lambda: phases_claim(6),
    "phases by order within 5.5": lambda: phases_by_order(Fraction(11, 2)),
    "identical requests within 1": lambda: identical_requests(1),
    "identical prompts within 6": lambda: identical_prompts(6),
}


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_refuted(mistake):
    """Steps run until one fails, as in `prove`, whose verdict is then `refuted`."""
    failed = next((step for step in PLANTED[mistake]().steps if not step.check().holds), None)
    assert failed is not None


# Bounds


def test_mean_busy_times_never_exceed_the_optimum_of_another_search():
    for instance, best in tiny():
        assert bounds.least_means(instance, bounds.share) <= best
        for parts in (1, 2, 3):
            assert bounds.least_means(instance, bounds.dual_feasible(parts)) <= best


def test_the_two_searches_for_the_optimum_agree():
    for instance, best in tiny():
        if instance.n <= 4:
            assert searched(instance)[0] == best == optimum(instance)[0]


def test_a_dual_feasible_function_can_say_more():
    """Three requests (2, 1) under 5 tokens run one a round: 1 + 2 + 3. Volumes 3 say (9/2 + ...)/5, halves say all of it."""
    instance = Instance(5, [2, 2, 2], [1, 1, 1])
    plain, halves = (bounds.least_means(instance, counts) for counts in (bounds.share, bounds.dual_feasible(1)))
    assert plain == Fraction(3, 5) * Fraction(9, 2) + Fraction(3, 2)
    assert halves == 6 == optimum(instance)[0]


# Smallest volume first


def test_the_ratio_of_smallest_volume_first_by_hand():
    """Ten requests (0, 2) under 11 tokens: c = 4/3, c' = 4/3 * 11/10 = 22/15, d = 5/12, so 1 + 7/12 * 22/15 = 167/90."""
    assert ratio(Instance(11, [0] * 10, [2] * 10)) == Fraction(167, 90)
    assert ratio(Instance(100, [9] * 3, [1] * 3)) == Fraction(141, 91)  # c' = 100/91 and d = 1/2


# The density lemma


def test_least_volume_in_a_cell_by_hand():
    """Cell (1, 1): x = 1, y = min(2, mu), so 1/2 - 1/(2 mu) from mu = 2 on, 1/(2 mu) before: least at the knee, 1/4."""
    assert least_volume(1, 1, Fraction(3), Fraction(4)) == Fraction(1, 3)
    assert least_volume(1, 1, Fraction(1), Fraction(3, 2)) == Fraction(1, 3)
    assert least_volume(1, 1, Fraction(1), None) == Fraction(1, 4)


@given(st.integers(1, 6), st.integers(1, 6), st.fractions(0, 1), st.fractions(0, 1), st.fractions(0, 1))
def test_no_point_of_a_cell_is_below_its_least_volume(j, b, across, up, far):
    low, high = Fraction(j * b), Fraction(j * b + 9)
    x, mu = j + across * Fraction(99, 100), low + far * 9
    y = b + up * Fraction(99, 100)
    if x * y <= mu:
        assert x / y - x * x / (2 * mu) >= least_volume(j, b, low, high)


def test_weights_are_checked_exactly():
    found = find_weights(5, 6, Fraction(4))
    assert verdict(found, Fraction(4)) is True
    assert "costs more than 3 tau" in verdict(found, Fraction(3))
    assert "collects less than 1" in verdict(replace(found, volume=found.volume / 2), Fraction(4))
    assert "collects less than 1" in verdict(replace(found, last=dict.fromkeys(found.last, Fraction(0))), Fraction(4))
    with pytest.raises(ValueError, match="no weights cover 3 <= mu <= 4 with constant 3"):
        find_weights(3, 4, Fraction(3))


def test_least_batches_are_those_of_the_library_and_of_exhaustive_search():
    for instance in draw(40, seed=1, requests=(1, 6), memory=(1, 20)):
        everyone = list(range(instance.n))
        first = np.flatnonzero(rate_batches(instance) == 0).tolist()
        assert least_batch(instance, everyone, "rate") == rate_of(instance, first)
        together = [chosen for chosen in subsets(everyone) if fits_together(instance, chosen)]
        least = min(Fraction(int(instance.output[list(x)].sum()), len(x) ** 2) for x in together)
        assert least_batch(instance, everyone, "f") == least


def test_the_density_lemma_under_attack():
    """Hill climbing for N f/T in optimal schedules of four requests: never above 4, and well above 1."""
    rng = np.random.default_rng(3)

    def density_of(instance):
        ends = np.array(optimum(instance)[1]) + instance.output
        return max(
            Fraction(int((ends <= T).sum())) * least_batch(instance, np.flatnonzero(ends <= T).tolist(), "rate") / int(T)
            for T in ends
        )

    worst = Fraction(0)
    for _ in range(6):
        best = random_instance(rng, 4, 8)
        value = density_of(best)
        for _ in range(25):
            at, other = int(rng.integers(4)), random_instance(rng, 1, 8)
            prompt, output = best.prompt.copy(), best.output.copy()
            prompt[at], output[at] = other.prompt[0], other.output[0]
            changed = Instance(8, prompt, output)
            if density_of(changed) >= value:
                best, value = changed, density_of(changed)
        worst = max(worst, value)
    assert Fraction(5, 4) < worst <= 4


def test_the_histogram_needs_its_height():
    """Heights over 8 fit under every optimum here; heights over 1/2 do not fit under all."""
    cases = [(x, optimum(x)[1], rate_batches(x)) for x, _ in tiny() if x.offline and x.n <= 4]
    assert all(histogram_fits(instance, batch_of, start, Fraction(8)) for instance, start, batch_of in cases)
    assert not all(histogram_fits(instance, batch_of, start, Fraction(1, 2)) for instance, start, batch_of in cases)


# Phases


def test_greedy_packing_of_every_small_set():
    """All sets of up to three rectangles of peak at most 4 and output at most 3 under 4 tokens, in every order."""
    for size in (1, 2, 3):
        for chosen in combinations_with_replacement(list(product(range(1, 5), range(1, 4))), size):
            if any(p < o for p, o in chosen):
                continue
            instance = Instance(4, [p - o for p, o in chosen], [o for _, o in chosen])
            area, longest = Fraction(sum(p * o for p, o in chosen), 4), max(o for _, o in chosen)
            for order in set(permutations(range(size))):
                length = max(x + o for x, (_, o) in zip(greedy(instance, list(order)), chosen, strict=True))
                assert length <= area + max(longest, area)


def test_keys_and_phases_by_hand():
    """M = 10: volumes 1, 6, 55 fill 0.1, 0.7 and 6.2 rounds; 2/3 of outputs are 2/3, 2, 20/3. Phases end at 1, 5/2, .., 15.6."""
    instance = Instance(10, [0, 0, 0], [10, 3, 1])
    assert keys(instance) == pytest.approx([20 / 3, 2, 2 / 3])
    ((phase_of, start),) = in_phases(instance, keys(instance), RATIO, 1)
    assert phase_of.tolist() == [3, 1, 0]
    assert start.tolist() == [4, 1, 0]


def test_the_split_bound_by_hand():
    """M = 10, (0, 4) and two (9, 1): the first has F = 1 < 8/3, the others 2 and 3 rounds. Alone these take 1 + 2 rounds."""
    instance = Instance(10, [0, 9, 9], [4, 1, 1])
    assert keys(instance) == pytest.approx([8 / 3, 2, 3])
    assert split_bound(instance) == 4 + 3
    assert optimum(instance)[0] == 9  # (9, 1) and (9, 1), then (0, 4): 1 + 2 + 6, or 4 + 5 + 6 the other way


def test_phases_are_feasible_forwards_and_reflected():
    rng = np.random.default_rng(4)
    for _ in range(60):
        instance = random_instance(rng, int(rng.integers(1, 9)), int(rng.integers(1, 20)))
        for _, start in in_phases(instance, keys(instance), RATIO, 3):
            assert feasible(instance, start.tolist())


def test_sums_of_starts_do_not_wrap():
    """One phase of 100,000 requests that own the memory, one of them short: first, not last, though n * length is 2 * 10**19."""
    memory, n = 2**31 - 1, 100_000
    instance = Instance(memory, [memory - 1] + [0] * (n - 1), [1] + [memory] * (n - 1))
    ((_, start),) = in_phases(instance, np.ones(n), RATIO, 1)
    assert (start[0], sorted(start.tolist())[2]) == (0, memory + 1)


def test_phases_stay_within_their_factor_where_other_policies_do_not():
    """On every family made against some policy, against the proved bound, and with the serial form alone."""
    for family in FAMILIES.values():
        if family.count is not None:
            instance = family.build()
            proved = max(mean_busy_time(instance).value, trivial(instance).value)
            for solver in (phases, sorted_rate):
                found = solver(instance)
                assert latency(instance, found.start.tolist()) <= found.stats["factor"] * proved
            serial = min(latency(instance, start.tolist()) for _, start in in_phases(instance, keys(instance), RATIO, OFFSETS))
            assert serial <= PHASES_FACTOR * max(proved, split_bound(instance))


def test_phases_respect_arrivals_and_claim_nothing_then():
    rng = np.random.default_rng(5)
    for _ in range(30):
        instance = random_instance(rng, 6, 12, arrivals=9)
        found = phases(instance)
        assert feasible(instance, found.start.tolist())
        assert found.stats["factor"] == (7 if instance.offline else None)


def test_the_relaxation_by_hand():
    """M = 4, (3, 1) twice and (0, 2): volumes 4, 4, 3. Smallest first: max(3/4, 2) + 7/4 + 11/4 = 6.5; the long one may go last:
    1 + 2 + max(11/4, 2) = 5.75."""
    assert best_order(Instance(4, [3, 3, 0], [1, 1, 2]))[0] == Fraction(23, 4)
