"""The certifier agrees with the plain definition, and refuses whatever is not so."""

from fractions import Fraction

import numpy as np
import pytest
from exhaustive import feasible, four, latency, random_instance, tiny, usage
from hypothesis import given
from hypothesis import strategies as st

from opt.core import certify as module
from opt.core.certify import certify, check_bound, check_schedule, memory_at_completions
from opt.core.errors import CertificateError, InstanceError
from opt.core.instance import Instance
from opt.core.model import Bound, Proposal, Schedule
from opt.solvers.bounds import BOUNDS, mean_busy_time, trivial, volume


@st.composite
def schedules(draw):
    """Requests with any starts at or after their arrival, and prompts that branch off a common stem chunk by chunk."""
    chunk = draw(st.integers(1, 3))
    count = draw(st.integers(1, 6))
    prompts, prefixes, starts, outputs = [], [], [], []
    for _ in range(count):
        words = draw(st.lists(st.integers(0, 1), max_size=7))
        parts = [tuple(words[: k + chunk]) for k in range(0, len(words), chunk)]
        prompts.append(len(words))
        prefixes.append([int("".join(map(str, (1, *part))), 2) for part in parts])
        starts.append(draw(st.integers(0, 12)))
        outputs.append(draw(st.integers(1, 6)))
    instance = Instance(60, prompts, outputs, prefix=prefixes, prefix_chunk=chunk)
    return instance, starts


@given(schedules(), st.sampled_from(["separate", "shared"]))
def test_memory_equals_the_round_by_round_definition(drawn, kv):
    instance, start = drawn
    rounds, tokens = memory_at_completions(Schedule(instance, np.array(start), kv))
    held = usage(instance, start, kv)
    assert tokens.tolist() == [held[t] for t in rounds]
    assert sorted(set(rounds.tolist())) == sorted({x + int(o) for x, o in zip(start, instance.output, strict=True)})
    assert max(tokens) == max(held)  # so nothing is missed between completions


@given(schedules(), st.sampled_from(["separate", "shared"]))
def test_the_verdict_equals_the_definition(drawn, kv):
    instance, start = drawn
    peak = max(usage(instance, start, kv))
    least = int(instance.peak.max())
    fits = max(peak, least)
    assert check_schedule(instance.replace(memory=fits), np.array(start), kv=kv).total_latency == latency(instance, start)
    if peak > least:
        with pytest.raises(CertificateError, match=rf"holds \d+ tokens, over the memory of {peak - 1}"):
            check_schedule(instance.replace(memory=peak - 1), np.array(start), kv=kv)


def test_a_chunk_is_stored_at_the_largest_size_any_holder_gives_it():
    """Hash 7 stands for 3 tokens in one prompt and for 4 in the other: at round 1 chunks 7 and 8 take 8 and the outputs 2.

    Such prefixes contradict themselves; counted or refused, they must not hide memory.
    """
    for order in ([0, 1], [1, 0]):
        try:
            instance = Instance(30, [3, 8], [1, 1], prefix=[[7], [7, 8]], prefix_chunk=4).take(order)
        except InstanceError:
            continue
        assert memory_at_completions(Schedule(instance, np.zeros(2, np.int64), "shared"))[1].tolist() == [10]


def test_the_last_token_is_held_in_the_last_round():
    """(3, 1) started at 4 holds 4 tokens in round 5 alone, so (4, 1) may start at 5 under a memory of 5, and not at 4."""
    instance = Instance(5, [3, 4], [1, 1])
    assert usage(instance, [4, 5]) == [0, 0, 0, 0, 0, 4, 5]
    schedule = check_schedule(instance, np.array([4, 5]))
    assert [column.tolist() for column in memory_at_completions(schedule)] == [[5, 6], [4, 5]]
    with pytest.raises(CertificateError, match="round 5 holds 9 tokens, over the memory of 5"):
        check_schedule(instance, np.array([4, 4]))


def test_figures_of_a_schedule():
    """Finishes 10, 6, 5, 3 and no arrivals: 24 in all."""
    schedule = check_schedule(four(), np.array([5, 1, 1, 0]))
    assert schedule.finish.tolist() == [10, 6, 5, 3]
    assert (schedule.total_latency, schedule.makespan, schedule.wait.tolist()) == (24, 10, [5, 1, 1, 0])
    assert Schedule(Instance(3, [], []), np.zeros(0, np.int64)).makespan == 0


@pytest.mark.parametrize(
    ("start", "message"),
    [
        ([4, 1, 1, 0], "round 5 holds 26 tokens, over the memory of 17"),
        ([5, 1, 1, -1], r"request 3 \(index 3\) starts at round -1, before its arrival at round 0"),
        ([5, 1, 1], "must hold 4 integers, got shape"),
        ([5.0, 1, 1, 0], "must hold 4 integers, got .* of float64"),
        ([True, True, True, False], "must hold 4 integers"),
        ([[5, 1, 1, 0]], "must hold 4 integers"),
        ([5, 1, 1, 2**62], "starts at round 4611686018427387904, after"),
        (np.array([5, 1, 1, 2**63 + 1], np.uint64), "starts at round 9223372036854775809, after"),
        ([5, 1, 1, 2**64], "must hold 4 integers"),
    ],
)
def test_a_damaged_schedule_is_refused(start, message):
    with pytest.raises(CertificateError, match=message):
        check_schedule(four(), np.array(start))


def test_one_round_before_the_arrival():
    instance = Instance(9, [1, 1], [2, 2], arrival=[0, 5], ids=["a", "b"])
    assert check_schedule(instance, np.array([0, 5])).total_latency == 4
    with pytest.raises(CertificateError, match=r"request 'b' \(index 1\) starts at round 4, before its arrival at round 5"):
        check_schedule(instance, np.array([0, 4]))


def test_far_rounds_do_not_wrap():
    """Started together in round 2^60, two requests hold 2 * (2^30 + 1) tokens at the end, one over."""
    far = np.full(2, 2**60)
    fits = Instance(2**31 - 1, [2**30 - 2, 2**30 - 1], [1, 1])
    assert check_schedule(fits, far).total_latency == 2**61 + 2
    with pytest.raises(CertificateError, match=f"holds {2**31} tokens"):
        check_schedule(fits.replace(prompt=[2**30 - 1, 2**30 - 1]), far)


def test_certify_keeps_what_it_was_given_and_nothing_can_change_it():
    start = np.array([5, 1, 1, 0])
    result = certify(four(), Proposal(start, stats={"k": 1}), solver="mine", seconds=2.0, seed=3, params={"a": 1})
    start[:] = 0
    assert result.schedule.start.tolist() == [5, 1, 1, 0]
    assert (result.solver, result.seconds, result.seed, result.params, result.stats) == ("mine", 2.0, 3, {"a": 1}, {"k": 1})
    assert not result.schedule.start.flags.writeable
    assert not result.schedule.finish.flags.writeable


def test_verdicts():
    """(0, 3) alone: the sum of outputs proves 3. The bound 19 leaves 24 open unless a search claims exhaustion."""
    alone = certify(Instance(3, [0], [3]), Proposal(np.array([0])), solver="x", bound=trivial(Instance(3, [0], [3])))
    assert (alone.status, alone.proof, alone.stop_reason, alone.gap, alone.ratio) == ("optimal", "certificate", "proved", 0, 1)
    best = np.array([5, 1, 1, 0])
    bound = mean_busy_time(four())
    open_ = certify(four(), Proposal(best, bound=bound), solver="x")
    assert (open_.status, open_.proof, open_.stop_reason, open_.bound.ceil) == ("feasible", "none", "done", 19)
    assert open_.gap == 5 / 24
    assert open_.ratio == 24 / 19
    closed = certify(four(), Proposal(best, bound=bound, exhausted=True), solver="x")
    assert (closed.status, closed.proof, closed.stop_reason, closed.gap) == ("optimal", "search", "proved", 0)
    none = certify(four(), Proposal(None, bound=bound, stop_reason="time_limit"), solver="x")
    assert (none.status, none.proof, none.total_latency, none.gap, none.ratio) == ("unknown", "none", None, None, None)
    assert none.stop_reason == "time_limit"


def test_no_requests_cost_nothing_and_that_is_optimal():
    result = certify(Instance(3, [], []), Proposal(np.zeros(0, np.int64)), solver="x")
    assert (result.status, result.total_latency, result.gap, result.ratio, result.mean_latency) == ("optimal", 0, 0, None, None)


def test_the_better_of_two_bounds_is_kept_and_both_are_checked():
    weak, strong = volume(four()), mean_busy_time(four())
    start = np.array([5, 1, 1, 0])
    for a, b in ((weak, strong), (strong, weak)):
        assert certify(four(), Proposal(start, bound=a), solver="x", bound=b).bound.method == "mean-busy-time"
    false = Bound(weak.value + 1, "volume", "separate", weak.certificate)
    with pytest.raises(CertificateError, match="volume bound claims"):
        certify(four(), Proposal(start, bound=false), solver="x", bound=strong)


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_every_honest_bound_is_believed(name):
    """Over memories that are no powers of two, where quotients have no finite binary expansion."""
    rng = np.random.default_rng(5)
    slow = name in ("lp", "prices", "tree")
    for _ in range(20 if slow else 150):
        instance = random_instance(rng, int(rng.integers(1, 9)), int(rng.integers(1, 20)), outputs=int(rng.integers(1, 4)))
        check_bound(instance, BOUNDS[name](instance))
    for instance, _ in tiny()[:: 5 if slow else 1]:
        if name not in ("volume", "ramps") or instance.offline:
            check_bound(instance, BOUNDS[name](instance))


def test_an_honest_bound_whose_tails_are_exact_is_believed():
    """Unit requests (0, 1) under 3 tokens: y = 1/6, 3/6, .. and d = 1/2 each, so five prove 25/6 + 5/2 = 20/3."""
    instance = Instance(3, [0] * 5, [1] * 5)
    bound = mean_busy_time(instance)
    assert bound.value == Fraction(20, 3)
    check_bound(instance, bound)


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_a_bound_raised_by_one_is_refused(name):
    bound = BOUNDS[name](four())
    false = Bound(bound.value + 1, bound.method, bound.kv, bound.certificate)
    with pytest.raises(CertificateError, match=rf"{bound.method} bound claims .*, its certificate proves"):
        check_bound(four(), false)


def closed(formula, value, kv="separate", **more):
    return Bound(value, formula, kv, {"kind": "closed-form", "formula": formula, **more})


@pytest.mark.parametrize(
    ("bound", "kv", "message"),
    [
        (Bound(Fraction(1), "mine"), "separate", r"mine bound carries no certificate that can be checked \(kind None\)"),
        (Bound(Fraction(1), "lp", "separate", {"kind": "word of honour"}), "separate", "kind 'word of honour'"),
        (closed("magic", Fraction(1)), "separate", "unknown closed form 'magic'; known: .*trivial.*"),
        (closed("volume", Fraction(1), "shared"), "separate", "of the volume bound does not hold with shared"),
        (closed("volume", Fraction(1)), "shared", "volume bound is proved for separate KV caches"),
        (closed("trivial", float("nan")), "separate", "nan"),
        (closed("trivial", float("-inf")), "separate", "inf"),
    ],
)
def test_what_proves_nothing_is_refused(bound, kv, message):
    with pytest.raises(CertificateError, match=message):
        check_bound(four(), bound, kv=kv)


def test_the_volume_bound_is_refused_with_arrivals():
    """(0, 2) at rounds 0 and 9 under 2 tokens: three rounds of volume each, (3 + 6)/2 = 4.5, and the optimum is 4."""
    instance = Instance(2, [0, 0], [2, 2], arrival=[0, 9])
    with pytest.raises(CertificateError, match="proved only when every request arrives at round 0"):
        check_bound(instance, closed("volume", Fraction(9, 2)))
    with pytest.raises(ValueError, match="use mean-busy-time with arrivals"):
        volume(instance)


def test_a_bound_above_a_valid_schedule_is_an_alarm(monkeypatch):
    """Should a formula ever be wrong, a schedule that refutes it must stop everything."""
    monkeypatch.setitem(module.CLOSED_FORMS, "wrong", lambda instance: ("shared", Fraction(99, 4)))
    with pytest.raises(CertificateError, match="wrong bound 99/4 exceeds the total latency 24 of a valid schedule"):
        certify(four(), Proposal(np.array([5, 1, 1, 0])), solver="x", bound=closed("wrong", Fraction(99, 4)))


def test_a_memory_mode_nobody_knows_is_refused():
    with pytest.raises(ValueError, match="shard"):
        certify(four(), Proposal(np.array([5, 1, 1, 0]), kv="shard"), solver="x")


def test_feasible_agrees_with_the_certifier_on_random_starts():
    rng = np.random.default_rng(9)
    verdicts = set()
    for _ in range(300):
        instance = random_instance(rng, 4, 9, arrivals=3)
        start = (instance.arrival + rng.integers(-1, 14, 4)).tolist()
        try:
            verdict = check_schedule(instance, np.array(start)) is not None
        except CertificateError:
            verdict = False
        assert verdict == feasible(instance, start)
        verdicts.add(verdict)
    assert verdicts == {True, False}
