"""Laws of cost models: the formula by hand, monotone in every quantity, files that come back the same."""

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import opt
from opt.cli import run
from opt.core.cost import COSTS, UNIT, CostModel, Load, batch, cost_model, read_cost, write_cost
from opt.core.cost.layout import TERMS
from opt.core.cost.plans import seconds
from opt.core.errors import InstanceError
from opt.core.model import Instance, Schedule
from opt.solvers.measured import machine_seconds, run_measured
from opt.solvers.orders import run_order

LOAD = Load(prefill_tokens=300, prefill_pairs=50_000, prefill_sequences=2, prefill_context=40, decodes=5, kv_tokens=900)


def test_pairs_of_chunks_do_not_depend_on_the_cut():
    whole = batch(chunks=[(700, 0)])
    parts = [batch(chunks=[(size, at)]) for at, size in ((0, 256), (256, 256), (512, 188))]
    assert sum(part.prefill_pairs for part in parts) == whole.prefill_pairs == 700 * 701 // 2
    assert sum(part.prefill_tokens for part in parts) == whole.prefill_tokens == 700


def test_batch_leaves_out_empty_chunks():
    assert batch(chunks=[(0, 99), (3, 2)], lengths=[4]) == Load(3, 3 * 2 + 6, 1, 2, 1, 4, 0)


def test_unit_cost_is_one_round_whatever_the_load():
    assert UNIT.seconds(Load()) == UNIT.seconds(LOAD) == 1.0


@pytest.mark.parametrize(
    ("form", "dense"), [("linear", 10 + 3 * 305), ("max", 915), ("p-norm", math.hypot(10, 915)), ("piecewise", 610)]
)
def test_forms_by_hand(form, dense):
    knots = ((0.0, 0.0), (100.0, 200.0), (200.0, 400.0)) if form == "piecewise" else ()
    terms = {"base": 1000} | ({} if knots else {"floor": 10, "per_token": 3})
    model = CostModel("x", form, terms, knots=knots, exponent=2 if form == "p-norm" else 1)
    assert model.seconds(LOAD) == pytest.approx(1000 + dense, rel=1e-12)


def test_every_term_by_hand():
    terms = {name: 10.0**-k for k, name in enumerate(TERMS)}
    model = CostModel("x", "linear", terms, decode_knee=3, locality=0.25)
    load = LOAD._replace(repeated_kv=400)
    amounts = dict.fromkeys(("base", "prefill_base", "decode_base", "floor", "mix_base"), 1)
    amounts |= {"per_token": 305, "per_prefill_token": 300, "mix_per_token": 300, "per_sequence": 2, "per_context_token": 40}
    amounts |= {"per_pair": 50_000, "per_decode": 5, "mix_per_decode": 5, "per_decode_above": 2}
    amounts |= {"per_kv_token": 900 - 300, "mix_per_kv_token": 900 - 300}
    assert amounts.keys() == TERMS.keys()
    assert model.seconds(load) == pytest.approx(sum(terms[name] * amounts[name] for name in TERMS), rel=1e-12)


def models():
    price = st.floats(0, 1e-2)
    steps = st.lists(st.tuples(st.floats(1, 5000), price), min_size=2, max_size=6)

    def build(form, terms, steps, exponent, locality):
        if form != "piecewise":
            return CostModel("x", form, terms, exponent=exponent, locality=locality, decode_knee=7)
        knots = tuple(zip(*(np.cumsum(part).tolist() for part in zip(*steps, strict=True)), strict=True))
        rest = {name: value for name, value in terms.items() if name not in ("floor", "per_token")}
        return CostModel("x", form, rest, knots=knots, locality=locality, decode_knee=7)

    terms = st.fixed_dictionaries(dict.fromkeys(TERMS, price))
    forms = st.sampled_from(["linear", "max", "p-norm", "piecewise"])
    return st.builds(build, forms, terms, steps, st.floats(1, 8), st.floats(0, 1))


@given(models(), st.lists(st.integers(0, 10_000), min_size=6, max_size=6), st.integers(0, 5), st.integers(0, 3000))
def test_more_work_never_takes_less_time(model, amounts, which, more):
    load = Load(*amounts)
    larger = list(amounts)
    larger[which] += more
    assert model.seconds(Load(*larger)) >= model.seconds(load) * (1 - 1e-12)


@given(models(), st.lists(st.lists(st.integers(0, 10_000), min_size=7, max_size=7), max_size=5))
def test_rows_are_single_loads(model, rows):
    rows = [[*row[:6], min(row[5:])] for row in rows]
    many = model.seconds_of_rows(np.array(rows, float).reshape(-1, 7))
    assert many.tolist() == [model.seconds(Load(*row)) for row in rows]


@given(models())
def test_files_come_back_the_same(tmp_path_factory, model):
    path = tmp_path_factory.mktemp("cost") / "model.json"
    write_cost(model, path)
    assert read_cost(path) == model


def test_locality_prices_repeats():
    model = CostModel("x", "linear", {"per_kv_token": 1.0})
    shared = batch(lengths=[1000, 1000, 1000], repeated_kv=1800)  # three requests, 900 tokens in common
    assert [model.with_locality(share).seconds(shared) for share in (1, 0.5, 0)] == [3000, 2100, 1200]


def test_outside_names_what_was_not_measured():
    model = CostModel("x", "linear", {"base": 1.0}, valid={"decodes": (1, 256), "kv_tokens": (0, 1e6)})
    assert model.outside(Load(decodes=256)) == []
    assert model.outside(Load(decodes=300, kv_tokens=2e6)) == [
        "decodes = 300 (measured up to 256)",
        "kv_tokens = 2e+06 (measured up to 1e+06)",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms": {"base": -1e-3}}, "term base = -0.001: must be finite and at least 0"),
        ({"terms": {"base": math.nan}}, "term base = nan"),
        ({"terms": {"basis": 1.0}}, "term 'basis' is not known; known: base, "),
        ({"form": "cubic"}, "must be one of linear, max, p-norm, piecewise"),
        ({"form": "piecewise"}, "0 knots: `piecewise` takes two or more"),
        ({"form": "piecewise", "knots": ((1, 2.0), (2, 1.0))}, "tokens must rise, and seconds never fall"),
        ({"form": "piecewise", "knots": ((1, 2.0), (1, 3.0))}, "tokens must rise, and seconds never fall"),
        ({"locality": 1.5}, "locality = 1.5: must be from 0 to 1"),
        ({"exponent": 0.5}, "exponent = 0.5: must be from 1 to 64"),
        ({"valid": {"tokens": (0, 1)}}, "must be a range of a field of Load"),
    ],
)
def test_damaged_models_are_refused(change, message):
    with pytest.raises(InstanceError, match=r"x: .*") as caught:
        CostModel(**{"name": "x", "form": "linear", "terms": {"base": 1.0}, **change})
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "not a cost file"),
        ('{"format": "kvopt-plan/1"}', "not a cost file"),
        ('{"format": "kvopt-cost/1", "name": "x", "form": "linear", "terms": {}, "speed": 1}', "unknown field `speed`"),
        ('{"format": "kvopt-cost/1", "name": "x", "form": "linear", "terms": {"base": 1, "base": 2}}', "stands twice"),
        ('{"format": "kvopt-cost/1", "name": "x", "form": "linear", "terms": {"base": NaN}}', "NaN is not a number"),
        ('{"format": "kvopt-cost/1", "name": "x", "form": "linear", "terms": {"base": -1}}', "at least 0"),
    ],
)
def test_damaged_files_are_refused(tmp_path, text, message):
    path = tmp_path / "cost.json"
    path.write_text(text)
    with pytest.raises(InstanceError) as caught:
        read_cost(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_names_and_files(tmp_path):
    path = tmp_path / "own.json"
    write_cost(UNIT, path)
    assert cost_model("unit") == cost_model(path) == cost_model(UNIT) == UNIT
    with pytest.raises(InstanceError, match="neither a name nor a file; did you mean unit"):
        cost_model("units")


@pytest.mark.parametrize("name", COSTS)
def test_presets_are_named_by_their_files(name):
    assert cost_model(name).name == name


# Plans in seconds.


def loads_by_round(schedule):
    """The load of rounds 1, 2, .. counted request by request, chunk by chunk."""
    instance = schedule.instance
    hashes = instance.prefix_rows() if schedule.kv == "shared" else None
    for t in range(1, schedule.makespan + 1):
        chunks, lengths, read = [], [], {}
        for i in range(instance.n):
            prompt, first = int(instance.prompt[i]), int(schedule.start[i]) + 1
            if t == first and prompt > 0:
                held = leading(schedule, i, t) if hashes else 0
                computed = max(prompt - held, 1)
                chunks.append((computed, prompt - computed))
            elif first <= t <= schedule.finish[i]:
                lengths.append(prompt + t - first)
                for level, key in enumerate(hashes[i] if hashes else ()):
                    size = min(instance.prefix_chunk, prompt - level * instance.prefix_chunk)
                    read.setdefault(key, []).append(size)
        yield batch(chunks, lengths, sum(sum(sizes) - max(sizes) for sizes in read.values()))


def leading(schedule, i, t):
    """Prompt tokens in chunks, from the first on, that somebody who started before holds in round t."""
    instance, hashes = schedule.instance, schedule.instance.prefix_rows()
    before = [j for j in range(instance.n) if (schedule.start[j], j) < (schedule.start[i], i) and schedule.finish[j] >= t]
    there = {key for j in before for key in hashes[j]}
    chunk, prompt, tokens = instance.prefix_chunk, int(instance.prompt[i]), 0
    for level, key in enumerate(hashes[i]):
        if key not in there:
            break
        tokens += min(chunk, prompt - level * chunk)
    return tokens


@st.composite
def schedules(draw):
    n = draw(st.integers(0, 6))
    shared = draw(st.booleans())
    rows = [(draw(st.integers(0, 9)), draw(st.integers(1, 6)), draw(st.integers(0, 12))) for _ in range(n)]
    families = [draw(st.integers(0, 2)) for _ in range(n)]
    prefix = [
        [1000 * family + level for level in range(-(-prompt // 3))] for family, (prompt, _, _) in zip(families, rows, strict=True)
    ]
    # A whole chunk and the same chunk cut short by the end of a prompt are different chunks.
    prefix = [
        [key if (level + 1) * 3 <= prompt else 10_000 * (i + 1) + key for level, key in enumerate(keys)]
        for i, (keys, (prompt, _, _)) in enumerate(zip(prefix, rows, strict=True))
    ]
    instance = Instance(
        memory=1000,
        prompt=[row[0] for row in rows],
        output=[row[1] for row in rows],
        arrival=[draw(st.integers(0, row[2])) for row in rows],
        prefix=prefix if n else None,
        prefix_chunk=3 if n else None,
    )
    return Schedule(instance, np.array([row[2] for row in rows], np.int64), "shared" if shared else "separate")


@given(schedules(), models())
def test_plan_in_seconds_is_the_sum_over_its_rounds(schedule, model):
    ends = np.cumsum([0.0, *(model.seconds(load) for load in loads_by_round(schedule))])
    found = seconds(schedule, model)
    assert found.finish_s.tolist() == pytest.approx(ends[schedule.finish].tolist(), rel=1e-9, abs=1e-12)
    assert found.arrival_s.tolist() == pytest.approx(ends[schedule.instance.arrival].tolist(), rel=1e-9, abs=1e-12)
    assert found.first_token_s.tolist() == pytest.approx(ends[schedule.start + 1].tolist(), rel=1e-9, abs=1e-12)
    assert found.makespan_s == pytest.approx(ends[-1], rel=1e-9)


@given(schedules())
def test_with_unit_cost_seconds_are_rounds(schedule):
    found = seconds(schedule, "unit")
    assert found.total_latency_s == schedule.total_latency
    assert found.makespan_s == schedule.makespan


def test_plan_beyond_the_measured_range_says_so():
    model = CostModel("x", "linear", {"base": 1.0}, valid={"decodes": (0, 1)})
    plan = Schedule(Instance(memory=99, prompt=[2, 2], output=[3, 3]), np.array([0, 0]))
    assert seconds(plan, model).warnings == ["decodes = 2 (measured up to 1)"]


# Orders in seconds.


@given(schedules())
def test_with_unit_cost_the_order_in_seconds_is_by_volume(schedule):
    instance = schedule.instance
    for rule in ("strict", "skip", "pack"):
        found = run_measured("svf-seconds", rule, instance, cost="unit").start
        assert found.tolist() == run_order("svf", rule, instance).start.tolist()


def test_machine_seconds_by_hand():
    model = CostModel("x", "linear", {"base": 2.0, "per_prefill_token": 0.5, "per_decode": 0.25, "per_kv_token": 0.125})
    instance = Instance(memory=100, prompt=[4, 0], output=[3, 2])
    # Volumes 4*3 + 6 = 18 and 3; a round costs 2.25 where one decodes; 2 and 1 decodes; reads 5 + 6 and 1.
    expected = [18 / 100 * 2.25 + 4 * 0.5 + 2 * 0.25 + 11 * 0.125, 3 / 100 * 2.25 + 1 * 0.25 + 1 * 0.125]
    assert machine_seconds(instance, model).tolist() == pytest.approx(expected)


def test_compare_in_seconds():
    instance = Instance(memory=60, prompt=[30, 4, 9], output=[3, 9, 5])
    rows = opt.compare([instance], solvers=["fcfs", "svf-seconds"], cost="unit")
    assert [row["total_latency_s"] for row in rows] == [row["total_latency"] for row in rows]
    assert "svf-seconds" in {row["solver"] for row in opt.compare([instance], cost="h100-llama-3-8b")}
    assert "svf-seconds" not in {row["solver"] for row in opt.compare([instance])}


def test_seconds_on_the_command_line(capsys, tmp_path):
    plan = str(tmp_path / "plan.json")
    assert run(["solve", "@tiny-four", "--solver", "svf-pack", "--cost", "unit", "--json", "-o", plan]) == 0
    solved = json.loads(capsys.readouterr().out)
    assert solved["total_latency_s"] == solved["total_latency"]
    assert run(["verify", plan, "--cost", "h100-llama-3-8b", "--json"]) == 0
    assert 0 < json.loads(capsys.readouterr().out)["total_latency_s"] < 1
    assert run(["verify", plan, "--cost", "h100"]) == 2
    assert "did you mean" in capsys.readouterr().err
    assert run(["list", "costs", "--json"]) == 0
    assert "7.5 times the peak" in json.loads(capsys.readouterr().out)["costs"]["sloweave-synthetic"]
