"""Staggered pipelines: what they hold, how fast they can be, what that proves; and starts that know one bit."""

from fractions import Fraction
from itertools import combinations_with_replacement
from math import ceil, gcd, isqrt

import numpy as np
import pytest
from exhaustive import Shelf, feasible, latency, optimum, random_instance, rows, strict, usage
from hypothesis import given
from hypothesis import strategies as st

from instances import generate
from opt.core.instance import Instance
from opt.solvers import staggered as module
from opt.solvers.door import lower_bound, solve
from opt.solvers.ledger import pack_skip, pack_strict
from opt.solvers.orders import order_of
from opt.solvers.staggered import fluid_release, least_gap, paced, pipeline_peak, pipelines

prompts = st.integers(0, 6)
outputs = st.integers(1, 9)


def alike(memory, s, o, n, arrival=None):
    return Instance(memory, [s] * n, [o] * n, **({} if arrival is None else {"arrival": arrival}))


def beats(gap, n):
    return [k * gap.numerator // gap.denominator for k in range(n)]


@given(prompts, outputs, st.integers(1, 30), st.integers(1, 12))
def test_the_peak_of_a_pipeline_is_what_its_rounds_hold(s, o, step, parts):
    """Enough requests that the first one still sees a full pipeline behind it when it ends."""
    gap = Fraction(step, parts)
    many = alike(2**31 - 1, s, o, ceil(o / gap) + 3 * parts)
    assert pipeline_peak(s, o, gap) == max(usage(many, beats(gap, many.n)))


def test_the_peak_of_lanes_in_closed_form():
    """B lanes hold B s + (o (B+1) + B - gcd)/2; for 2 lanes of (0, 4): 4 and 2 tokens in rounds 4, 6, .., together 6."""
    assert pipeline_peak(0, 4, Fraction(4, 2)) == 6
    for s in range(3):
        for o in range(1, 13):
            for lanes in range(1, 16):
                assert pipeline_peak(s, o, Fraction(o, lanes)) == lanes * s + (o * (lanes + 1) + lanes - gcd(o, lanes)) // 2


@given(prompts, outputs, st.integers(0, 25))
def test_the_least_gap_fits_and_no_smaller_fraction_does(s, o, spare):
    memory = s + o + spare
    gap = least_gap(s, o, memory)
    assert pipeline_peak(s, o, gap) <= memory
    for parts in range(1, memory + 2):
        step = ceil(gap * parts) - 1
        assert step == 0 or pipeline_peak(s, o, Fraction(step, parts)) > memory


@given(prompts, outputs, st.integers(0, 60))
def test_the_least_gap_lies_between_its_bounds(s, o, spare):
    memory, volume = s + o + spare, s * o + o * (o + 1) // 2
    gap = least_gap(s, o, memory)
    assert Fraction(volume, memory) <= gap <= min(o, Fraction(2 * volume, memory))
    assert spare == 0 or gap <= Fraction(volume, spare)


def test_least_gaps_by_hand_and_at_the_ends_of_the_range():
    """(0, 4) under 8: starts 0, 1.5, 3 end with 4 + 3 + 1 = 8 in round 4. Outputs of 1 only share rounds."""
    assert least_gap(0, 4, 8) == Fraction(3, 2)
    assert least_gap(3, 1, 9) == Fraction(1, 2)
    assert least_gap(0, 1, 2**31 - 1) == Fraction(1, 2**31 - 1)
    assert least_gap(0, 2**31 - 1, 2**31 - 1) == 2**31 - 1
    with pytest.raises(ValueError, match="peak 10 exceeds the memory of 9"):
        least_gap(5, 5, 9)


@pytest.mark.parametrize(("s", "o", "memory"), [(0, 3, 5), (0, 4, 8), (1, 3, 9), (0, 5, 12), (2, 2, 11), (1, 4, 7)])
def test_no_periodic_pattern_is_faster(s, o, memory):
    """All ways to start K requests within L rounds and repeat: whatever fits has a mean gap of at least `least_gap`."""
    gap, fitting = least_gap(s, o, memory), []
    for period in range(1, 6):
        for count in range(1, 6):
            for first in combinations_with_replacement(range(period), count):
                start = [x + period * k for k in range(ceil(o / period) + 3) for x in first]
                if max(usage(alike(2**31 - 1, s, o, len(start)), start)) <= memory:
                    fitting.append(Fraction(period, count))
    assert fitting
    assert min(fitting) >= gap


def identical_cases(arrivals):
    rng = np.random.default_rng(arrivals)
    for _ in range(60):
        s, o = int(rng.integers(0, 5)), int(rng.integers(1, 7))
        memory, n = s + o + int(rng.integers(0, 14)), int(rng.integers(1, 6))
        arrival = np.sort(rng.integers(0, arrivals + 1, n)) if arrivals else np.zeros(n, np.int64)
        yield s, o, memory, alike(memory, s, o, n, arrival)


@pytest.mark.parametrize("arrivals", [0, 4, 15])
def test_pipelines_of_identical_requests_against_every_schedule(arrivals):
    """TEL <= OPT + n (o - gap) <= 2 OPT, and no schedule starts its k-th request much earlier than the pipeline."""
    for s, o, memory, instance in identical_cases(arrivals):
        gap = least_gap(s, o, memory)
        best, schedule = optimum(instance)
        starts = pipelines(instance).tolist()
        assert feasible(instance, starts)
        assert latency(instance, starts) <= best + instance.n * (o - gap)
        for ours, theirs in zip(sorted(starts), sorted(schedule), strict=True):
            assert ours <= theirs + o - gap
        result = solve(instance, "staggered")
        assert (result.stats["factor"], result.total_latency <= 2 * best) == (2, True)


def test_from_two_to_one():
    """Without prompts, starting ten at once takes n**2 o / (2 * 10), a pipeline of 19 lanes little more than the volume bound."""
    ratio, batch = {}, {}
    for n in (100, 1000, 10_000):
        instance = alike(1000, 0, 100, n)
        bound = lower_bound(instance).ceil
        ratio[n] = solve(instance, "staggered").total_latency / bound
        batch[n] = solve(instance, "svf-pack").total_latency / bound
    assert ratio[10_000] < ratio[1000] < ratio[100] < 1.3
    assert ratio[10_000] < 1.06
    assert 1.9 < batch[100] < batch[1000] < batch[10_000] < 2


def test_pipelines_respect_arrivals_as_the_closed_form_says():
    """The k-th start is the largest arrival + floor(steps since then * gap): starts may lag behind, and catch up."""
    instance = alike(8, 0, 4, 5, [0, 0, 0, 9, 9])  # gap 3/2
    assert pipelines(instance).tolist() == [0, 1, 3, 9, 10]


def identical_prompts(rng, n, memory):
    s = int(rng.integers(0, memory))
    return Instance(memory, [s] * n, rng.integers(1, memory - s + 1, n))


def test_identical_prompts_stay_within_seven_times_the_optimum():
    """Against exhaustive search on the smallest, against the proved bound on larger ones; and the pipelines alone hold it."""
    rng = np.random.default_rng(7)
    for _ in range(60):
        small = identical_prompts(rng, 4, int(rng.integers(2, 14)))
        assert latency(small, pipelines(small).tolist()) <= 7 * optimum(small)[0]
    for memory in (10, 100, 3000):
        instance = identical_prompts(rng, 300, memory)
        result = solve(instance, "staggered")
        assert result.stats["factor"] in (2, 7)
        assert result.total_latency <= latency(instance, pipelines(instance).tolist()) <= 7 * result.bound.value


def test_a_guarantee_is_claimed_under_its_hypotheses_alone():
    claimed = {
        2: [alike(9, 1, 2, 3), alike(9, 1, 2, 3, [0, 4, 5])],
        7: [Instance(9, [1, 1], [2, 3])],
        None: [Instance(9, [1, 1], [2, 3], arrival=[0, 1]), Instance(9, [1, 2], [2, 2])],
    }
    for factor, instances in claimed.items():
        for instance in instances:
            assert solve(instance, "staggered").stats["factor"] == factor


def test_classes_are_within_their_ratio_and_complete():
    rng = np.random.default_rng(2)
    for _ in range(30):
        instance = random_instance(rng, 50, 200)
        classes = module._similar(instance)
        assert sorted(np.concatenate(classes).tolist()) == list(range(50))
        for members in classes:
            for column in (instance.prompt, instance.output):
                assert 2 * column[members].max() <= 3 * column[members].min()


@pytest.mark.parametrize("arrivals", [0, 30])
def test_every_form_is_feasible_and_the_best_is_returned(arrivals):
    rng = np.random.default_rng(arrivals)
    for k in range(40):
        instance = random_instance(
            rng, int(rng.integers(1, 40)), int(rng.integers(1, 60)), arrivals=arrivals, outputs=(None, 9)[k % 2]
        )
        order = order_of(instance, "svf")
        forms = [pipelines(instance), paced(instance, order, 16), paced(instance, order, 12)]
        forms += [module._windowed(instance, order, width, wide=wide) for width in (0, 1, 2) for wide in (False, True)]
        assert all(feasible(instance, start.tolist()) for start in forms)
        best = min(latency(instance, start.tolist()) for start in [*forms[:3], *forms[5:]])
        orders = (solve(instance, order, bound=None).total_latency for order in ("svf", "svf-pack"))
        assert solve(instance, "staggered", bound=None).total_latency <= min(best, *orders)


def test_no_pace_is_head_of_line_and_no_window_is_skipping():
    rng = np.random.default_rng(5)
    for k in range(20):
        instance = random_instance(rng, 30, 40, arrivals=(0, 50)[k % 2])
        order = order_of(instance, "svf")
        columns = instance.prompt, instance.output, instance.arrival, instance.memory
        assert paced(instance, order, 0).tolist() == pack_strict(order, *columns).tolist()
        assert module._windowed(instance, order, 10**6, wide=False).tolist() == pack_skip(order, *columns).tolist()


def test_the_pace_spaces_starts_as_promised():
    """(0, 100) under 1000: v / (M - s - o/2) = 5050/950 rounds, in ticks of 2**-20; the next start is never sooner."""
    instance = alike(1000, 0, 100, 200)
    starts = paced(instance, np.arange(200), 16)
    ticks = 5050 * 2**20 // 950
    for far in (1, 2, 7, 50):
        assert (starts[far:] - starts[:-far] >= far * ticks // 2**20).all()
    assert starts[-1] == 199 * ticks // 2**20 == 1057


def test_the_fluid_machine_in_fractions():
    """Serve the smallest volume present, at M a round, and note completion - v/M, all in fractions."""
    rng = np.random.default_rng(9)
    for k in range(30):
        instance = random_instance(rng, 12, 15, arrivals=(0, 20, 60)[k % 3])
        order = order_of(instance, "svf")
        left = [Fraction(int(v)) for v in instance.volume]
        expected, now = [0] * 12, Fraction(0)
        while any(left):
            ready = [i for i in order.tolist() if left[i] and instance.arrival[i] <= now]
            later = [int(a) for i, a in enumerate(instance.arrival) if left[i] and a > now]
            if not ready:
                now = Fraction(min(later))
                continue
            i = ready[0]
            end = min([now + left[i] / instance.memory, *later])
            left[i] -= (end - now) * instance.memory
            now = end
            if not left[i]:
                expected[i] = (now - Fraction(int(instance.volume[i]), instance.memory)).__floor__()
        assert fluid_release(instance, order).tolist() == expected


def test_near_identical_requests_gain_too():
    rng = np.random.default_rng(1)
    instance = Instance(1000, rng.integers(0, 10, 1000), rng.integers(90, 111, 1000))
    assert solve(instance, "staggered").total_latency < 0.75 * solve(instance, "svf-pack").total_latency


def test_windows_gain_on_mixed_requests():
    """Half chats, half summaries: overtaking within a window halves the distance to the bound."""
    instance = generate("mixture", n=2000, seed=4)
    gap = {name: solve(instance, name).gap for name in ("staggered", "svf-pack")}
    assert gap["staggered"] < 0.65 * gap["svf-pack"]


def test_many_requests_take_the_short_list():
    instance = generate("chat", n=module.THOROUGH + 1, seed=1)
    result = solve(instance, "staggered")
    assert result.total_latency <= min(solve(instance, name).total_latency for name in ("svf", "svf-pack"))


# One bit: short or long.


def slow_one_bit(instance, bar, cap):
    """Round by round: the head starts when it fits beside the running at their upper bounds; ended ones have gone."""
    jobs = rows(instance)
    most = [min(bar if o <= bar else cap, instance.memory - s) for s, o, _ in jobs]
    order = sorted(range(len(jobs)), key=lambda i: (jobs[i][1] > bar, jobs[i][0], jobs[i][2], i))
    start, t = [None] * len(jobs), 0
    while None in start:
        shelf = Shelf(Instance(instance.memory, instance.prompt, most))
        shelf.held = np.zeros(t + 2 * sum(most) + 2, np.int64)
        for i, x in enumerate(start):
            if x is not None and x + jobs[i][1] > t:
                shelf.put(i, x)
        for i in (i for i in order if start[i] is None and jobs[i][2] <= t):
            if not shelf.fits(i, t):
                break
            shelf.put(i, t)
            start[i] = t
        t += 1
    return start


@pytest.mark.parametrize("arrivals", [0, 12])
def test_one_bit_equals_stepping_through_the_rounds(arrivals):
    rng = np.random.default_rng(arrivals + 1)
    for k in range(80):
        instance = random_instance(
            rng, int(rng.integers(1, 14)), int(rng.integers(2, 40)), arrivals=arrivals, outputs=(None, 8)[k % 2]
        )
        largest = int(instance.output.max())
        bar, cap = int(rng.integers(1, largest + 1)), largest + int(rng.integers(0, 4))
        result = solve(instance, "one-bit", threshold=bar, cap=cap)
        starts = result.schedule.start.tolist()
        assert starts == slow_one_bit(instance, bar, min(cap, instance.memory))
        assert feasible(instance, starts)


def test_one_bit_never_peeks():
    """Change outputs within their kinds: starts up to the first end in either run cannot tell the difference."""
    rng = np.random.default_rng(3)
    for k in range(60):
        memory, n, bar, cap = 60, 25, 6, 20
        prompt = rng.integers(0, 30, n)
        short = rng.random(n) < 0.5
        arrival = rng.integers(0, (1, 30)[k % 2], n)
        first, second = (np.where(short, rng.integers(1, bar + 1, n), rng.integers(bar + 1, cap + 1, n)) for _ in range(2))
        runs = []
        for output in (first, second):
            schedule = solve(
                Instance(memory, prompt, output, arrival=arrival), "one-bit", bound=None, threshold=bar, cap=cap
            ).schedule
            runs.append((schedule.start, int(schedule.finish.min())))
        until = min(end for _, end in runs)
        early = [np.where(start < until, start, -1).tolist() for start, _ in runs]
        assert early[0] == early[1]


def test_one_bit_that_says_everything_is_head_of_line():
    """All outputs at the bounds of their kinds: strict order by kind, then prompt."""
    rng = np.random.default_rng(4)
    for _ in range(20):
        output = np.where(rng.random(20) < 0.5, 3, 11)
        instance = Instance(40, rng.integers(0, 29, 20), output, arrival=rng.integers(0, 20, 20))
        order = np.lexsort((instance.arrival, instance.prompt, output))
        assert solve(instance, "one-bit", threshold=3).schedule.start.tolist() == strict(instance, order.tolist())


def test_one_bit_reserves_no_more_than_the_client_allows():
    """Both are long: at 10 tokens each they take turns under 12, but one may not exceed 2."""
    reserved = Instance(12, [0, 0], [2, 10])
    assert solve(reserved, "one-bit", threshold=1).schedule.start.tolist() == [0, 2]
    capped = Instance(12, [0, 0], [2, 10], max_output=[2, None])
    assert solve(capped, "one-bit", threshold=1).schedule.start.tolist() == [0, 0]


def test_one_bit_defaults_and_refusals():
    instance = Instance(50, [1] * 5, [2, 3, 4, 20, 36])
    stats = solve(instance, "one-bit").stats
    assert (stats["threshold"], stats["cap"], stats["short"], stats["factor"]) == (isqrt(4 * 36), 36, 3, None)
    for bad, message in [
        ({"threshold": 0}, "threshold = 0: must be"),
        ({"threshold": "long"}, "threshold = 'long'"),
        ({"threshold": 2.5}, "threshold = 2.5"),
        ({"cap": 35}, "cap = 35: must be .* at least 36"),
        ({"cap": "x"}, "cap = 'x'"),
    ]:
        with pytest.raises(ValueError, match=message):
            solve(instance, "one-bit", **bad)
