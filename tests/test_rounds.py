"""The round clock: equal to the packers when predictions are exact, blind to outputs and to the future, certified when not."""

from dataclasses import fields, replace

import numpy as np
import pytest
from exhaustive import optimum

from instances import generate
from instances.predicting import PREDICTORS, predict
from opt.cli import run
from opt.core.errors import CertificateError, InstanceError
from opt.core.files import read_instance
from opt.core.instance import Instance
from opt.sim.rounds import (
    EVERYBODY,
    ROUND_POLICIES,
    Caution,
    RoundPolicy,
    View,
    _certified,
    clairvoyant_bound,
    estimates,
    run_rounds,
    view_of,
)
from opt.solvers.orders import KEYS, order_of, run_order
from opt.solvers.serial import pack_serial
from opt.solvers.staggered import paced

every_policy = pytest.mark.parametrize("name", sorted(ROUND_POLICIES))
CAUTIONS = [
    Caution(),
    Caution("low", victim="least-estimate"),
    Caution("low", growth=50, victim="least-done", restart=True),
    Caution("high", margin=10),
    Caution("point", victim="least-estimate", restart=True),
]


def random_instance(seed, n=40, memory=60, arrivals=80):
    rng = np.random.default_rng(seed)
    prompt = rng.integers(0, memory // 3, n)
    output = rng.integers(1, memory - prompt + 1)
    arrival = np.sort(rng.integers(0, arrivals, n)) if arrivals else None
    return Instance(memory, prompt, output, arrival=arrival)


def starts(outcome):
    assert outcome.evictions == 0
    return outcome.schedule.start.tolist()


@pytest.mark.parametrize("name", sorted(KEYS))
@pytest.mark.parametrize("rule", ["strict", "skip"])
def test_exact_predictions_give_the_packers(name, rule):
    for seed in range(6):
        instance = random_instance(seed, arrivals=(0, 30, 400)[seed % 3])
        policy = name if rule == "strict" else f"{name}-{rule}"
        expected = run_order(name, rule, instance, seed=0).start.tolist()
        assert starts(run_rounds(instance, policy)) == expected
        assert starts(run_rounds(predict(instance, "exact"), policy)) == expected


def test_ageing_and_traces_give_the_packers_too():
    instance = generate("conversation", n=400, memory=16_492, seed=2).in_rounds("0.05")
    for name, ageing in (("sof", 3), ("svf", 500), ("svf", 0)):
        assert (
            starts(run_rounds(instance, name, ageing=ageing)) == run_order(name, "strict", instance, ageing=ageing).start.tolist()
        )
        assert starts(run_rounds(instance, f"{name}-skip")) == run_order(name, "skip", instance).start.tolist()


def test_places_for_everybody_on_a_backlog_is_serial_earliest_fit():
    for seed in range(5):
        instance = random_instance(seed, arrivals=0)
        order = order_of(instance, "svf")
        data = (instance.prompt, instance.output, instance.arrival, instance.memory)
        policy = RoundPolicy("svf", reach=EVERYBODY, depth=instance.n)
        assert starts(run_rounds(instance, policy)) == pack_serial(order, *data).tolist()


def test_the_pace_is_that_of_staggered():
    for seed in range(4):
        instance = random_instance(seed, arrivals=(0, 50)[seed % 2])
        for pace in (16, 13):
            expected = paced(instance, order_of(instance, "svf"), pace).tolist()
            assert starts(run_rounds(instance, RoundPolicy("svf", pace=pace))) == expected


def replay(instance, outcome):
    """Count memory round by round, and what every request produces, from the activity alone; return recomputed tokens."""
    last = int(outcome.finish.max(initial=0))
    held = np.zeros(last + 2, np.int64)
    produced, carried = {}, {}
    thrown = 0
    for request, begun, tokens, ran in sorted(outcome.activity.tolist(), key=lambda row: row[1]):
        assert begun >= instance.arrival[request]
        assert begun >= carried.get(request, (0, 0))[0]
        assert tokens == carried.get(request, (0, instance.prompt[request]))[1]
        held[begun + 1 : begun + ran + 1] += tokens + np.arange(1, ran + 1)
        produced[request] = ran + (0 if outcome.caution.restart else produced.get(request, 0))
        if produced[request] < instance.output[request]:
            carried[request] = (begun + ran, instance.prompt[request] if outcome.caution.restart else tokens + ran)
            thrown += tokens + ran
        else:
            assert outcome.finish[request] == begun + ran
    assert produced == dict(enumerate(instance.output.tolist()))
    assert held.max() <= instance.memory
    return thrown


@every_policy
def test_wrong_predictions_keep_memory_and_lose_no_request(name):
    evictions = 0
    for seed, kind in enumerate(PREDICTORS):
        instance = predict(random_instance(seed), kind, error=0.9, seed=seed)
        bound = clairvoyant_bound(instance)
        for caution in CAUTIONS:
            outcome = run_rounds(instance, name, caution=caution)
            assert replay(instance, outcome) == outcome.recomputed_tokens
            assert outcome.total_latency >= bound.value
            evictions += outcome.evictions
            assert outcome.evictions == 0 or kind != "exact"
    assert evictions > 0


def test_the_bound_is_below_every_outcome_and_the_optimum():
    for seed in range(12):
        instance = random_instance(seed, n=5, memory=14, arrivals=8)
        best, _ = optimum(instance)
        assert clairvoyant_bound(instance).value <= best
        assert all(run_rounds(instance, name).total_latency >= best for name in ROUND_POLICIES)


def test_a_view_has_no_outputs():
    assert not any("output" in field.name for field in fields(View))
    instance = predict(random_instance(1), "noisy", seed=1)
    view = view_of(instance)
    for field in fields(View):
        assert not np.array_equal(getattr(view, field.name), instance.output)


def other_truth(instance, seed):
    """The same requests to anyone who sees only prompts, arrivals and predictions; some outputs differ."""
    rng = np.random.default_rng(seed)
    change = rng.random(instance.n) < 0.3
    output = np.where(change, rng.integers(1, instance.memory - instance.prompt + 1), instance.output)
    return instance.replace(output=output)


@every_policy
@pytest.mark.parametrize("kind", sorted(PREDICTORS))
def test_policies_never_peek_at_the_truth(name, kind):
    """Until an output shows itself, by ending in one run and not in the other, both runs do the same."""
    for seed in range(3):
        first = predict(random_instance(seed, n=25), kind, seed=seed)
        second = other_truth(first, seed + 50)
        for caution in (CAUTIONS[seed], CAUTIONS[-1]):
            runs = [run_rounds(instance, name, caution=caution) for instance in (first, second)]
            ends = [set(zip(range(first.n), run.finish.tolist(), strict=True)) for run in runs]
            seen = min((end for _, end in ends[0] ^ ends[1]), default=2**40)
            before = [sorted(row[:3] for row in run.activity.tolist() if row[1] < seen) for run in runs]
            assert before[0] == before[1]


@every_policy
def test_policies_know_nothing_of_who_has_not_arrived(name):
    for seed in range(4):
        instance = predict(random_instance(seed), ("exact", "noisy")[seed % 2], seed=seed)
        cut = int(instance.arrival[instance.n * 2 // 3])
        known = np.flatnonzero(instance.arrival < cut)
        whole = run_rounds(instance, name, caution=Caution())
        part = run_rounds(instance.take(known), name, caution=Caution())
        rows = [sorted(row[:3] for row in run.activity.tolist() if row[1] < cut) for run in (whole, part)]
        assert rows[0] == rows[1]


def test_upper_ends_that_hold_never_evict_and_lower_ends_are_raised():
    instance = predict(random_instance(3), "interval", error=0.8, seed=1)
    assert run_rounds(instance, "svf", caution=Caution("high")).evictions == 0
    low = estimates(view_of(instance), Caution("low"))
    assert (low <= instance.output).all()
    # Two requests of 6 tokens each, believed to produce one: both start, hold 2 + 2, 3 + 3 .. and collide at 9 tokens.
    two = Instance(9, [1, 1], [5, 5], predicted_low=[1, 1])
    outcome = run_rounds(two, "fcfs", caution=Caution("low"))
    # Round 4 would hold 10: the second goes with 3 tokens, comes back after round 5 with a prompt of 4, and runs 2 rounds.
    assert outcome.activity.tolist() == [[1, 0, 1, 3], [0, 0, 1, 5], [1, 5, 4, 2]]
    assert (outcome.total_latency, outcome.evictions, outcome.recomputed_tokens) == (12, 1, 4)
    again = run_rounds(two, "fcfs", caution=Caution("low", restart=True))
    # Without its tokens it fits at once: 2 beside 5, then 3 beside 6.
    assert again.activity.tolist() == [[1, 0, 1, 3], [0, 0, 1, 5], [1, 3, 1, 5]]


def test_activity_that_does_not_add_up_is_refused():
    two = Instance(9, [1, 1], [5, 5], predicted_low=[1, 1])
    outcome = run_rounds(two, "fcfs", caution=Caution("low"))
    for row, column, by in ((1, 3, 1), (2, 2, 1), (2, 3, -1), (2, 1, -1), (0, 2, 1)):
        damaged = outcome.activity.copy()
        damaged[row, column] += by
        with pytest.raises(CertificateError):
            _certified(two, "fcfs", damaged, outcome.caution)


def test_empty_and_unknown():
    empty = run_rounds(Instance(5, [], []), "horizon")
    assert (empty.total_latency, empty.mean_latency, empty.evictions) == (0, None, 0)
    with pytest.raises(ValueError, match="did you mean svf"):
        run_rounds(random_instance(0), "svff")
    with pytest.raises(InstanceError, match="--round-s"):
        run_rounds(Instance(5, [1], [1], arrival_s=[0.5]), "svf")
    for wrong in ({"trust": "me"}, {"victim": "first"}, {"margin": -1}, {"growth": 1.5}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            Caution(**wrong)
    with pytest.raises(ValueError, match="ageing"):
        run_rounds(random_instance(0), "svf", ageing=-1)


def test_predictions_are_what_they_say():
    instance = random_instance(4, n=200)
    output = instance.output
    exact = predict(instance, "exact")
    assert all(np.array_equal(column, output) for column in (exact.predicted, exact.predicted_low, exact.predicted_high))
    noisy = predict(instance, "noisy", error=0.5, seed=3)
    assert (2 * np.abs(noisy.predicted - output) <= output + 1).all()
    assert not np.array_equal(noisy.predicted, output)
    for kind in ("interval", "quantile"):
        said = predict(instance, kind, error=1, seed=5)
        assert (said.predicted_low <= output).all()
        assert (said.predicted_high >= output).all()
        assert (said.predicted_low <= said.predicted).all()
        assert (said.predicted <= said.predicted_high).all()
    roomy = instance.replace(memory=200)  # no prediction is cut at what the memory allows
    assert len(np.unique(predict(roomy, "quantile").predicted)) == 4
    none = predict(noisy, "none")
    assert none.predicted is None
    assert none.origin["predictions"] == {"kind": "none", "error": "1/2", "seed": 0}


def test_predictions_repeat_and_refuse():
    instance = random_instance(4)
    one, two = (predict(instance, "noisy", error="0.3", seed=9) for _ in range(2))
    assert np.array_equal(one.predicted, two.predicted)
    assert predict(Instance(5, [], []), "quantile").n == 0
    part = predict(instance.take(np.arange(10)), "noisy", error="0.3", seed=9)
    assert np.array_equal(part.predicted, one.predicted[:10])
    with pytest.raises(InstanceError, match="known: exact"):
        predict(instance, "oracle")
    with pytest.raises(InstanceError, match="from 0 to 1"):
        predict(instance, "noisy", error=1.5)


def test_the_verb_attaches_predictions(tmp_path, capsys):
    path = tmp_path / "noisy.json"
    assert run(["predict", "@tiny-four", "--kind", "noisy", "--error", "1/4", "--seed", "3", "-o", str(path), "--quiet"]) == 0
    four = Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
    assert np.array_equal(read_instance(path).predicted, predict(four, "noisy", error="1/4", seed=3).predicted)
    assert run(["predict", "@tiny-four", "--kind", "oracle"]) == 2
    assert run(["predict", "@tiny-four", "--kind", "noisy", "--error", "2"]) == 3
    assert "from 0 to 1" in capsys.readouterr().err


def test_a_policy_may_be_changed():
    policy = replace(ROUND_POLICIES["horizon"], window=8, length=8, moves=20)
    instance = random_instance(2)
    assert run_rounds(instance, policy, seed=1).total_latency == run_rounds(instance, policy, seed=1).total_latency
