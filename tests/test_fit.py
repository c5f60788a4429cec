"""Laws of fitting: a model comes back from its own iterations, tables add up by hand, errors are of what was withheld."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opt.cli import run
from opt.core.capacity import MODELS
from opt.core.cost import COSTS, CostModel, Load, batch, read_cost
from opt.core.cost.plausible import checks, faults
from opt.core.cost.shapes import SHAPES, shape_of
from opt.core.errors import InstanceError
from opt.fit import Iterations, fit_iterations, fit_log, fit_tables, read_table
from opt.fit.holdout import errors_of
from opt.fit.iterations import halves
from opt.fit.log import read_log, write_log
from opt.fit.operators import operators_of
from opt.fit.recipes import PUBLISHED, RECIPES, make

DATA = os.environ.get("KVOPT_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="KVOPT_DATA names no folder of public tables")

TRUE = {
    "linear": CostModel(
        "x", "linear", {"base": 4e-3, "per_token": 2e-5, "per_decode": 6e-6, "per_kv_token": 4e-8, "per_pair": 1e-9}
    ),
    "max": CostModel("x", "max", {"base": 2e-3, "floor": 128 * 3e-5, "per_token": 3e-5, "per_kv_token": 8e-8, "per_pair": 1e-9}),
    "p-norm": CostModel("x", "p-norm", {"floor": 128 * 3e-5, "per_token": 3e-5, "per_kv_token": 8e-8}, exponent=2.0),
    "piecewise": CostModel(
        "x", "piecewise", {"per_kv_token": 5e-8}, knots=((1, 5e-3), (64, 6e-3), (256, 7e-3), (512, 1.2e-2), (2048, 5e-2))
    ),
}


def grid(locality=False):
    """Iterations of every kind; with `locality`, decodes whose contexts are shared too."""
    prefill = [batch([(chunk, context)]) for chunk in (1, 20, 64, 200, 256, 512, 1000, 2048) for context in (0, 1000)]
    decode = [batch(lengths=[length] * many) for many in (1, 8, 33, 64, 128, 256) for length in (10, 500, 3000)]
    mixed = [batch([(chunk, 0)], [length] * many) for chunk in (100, 700) for many in (3, 90) for length in (40, 2000)]
    shared = [batch(lengths=[800] * many, repeated_kv=800 * (many - 1)) for many in (4, 16, 100)] if locality else []
    return np.array([*prefill, *decode, *mixed, *shared], float)


@pytest.mark.parametrize("form", TRUE)
def test_a_model_comes_back_from_its_own_iterations(form):
    rows = grid()
    found = fit_iterations(Iterations(rows, TRUE[form].seconds_of_rows(rows)), form, mixing=True)
    allowed = 0.02 if form in ("max", "p-norm") else 1e-3  # the knee is one of a grid
    assert errors_of(found, Iterations(rows, TRUE[form].seconds_of_rows(rows))).quantile(1.0) < allowed


def test_mixing_and_locality_come_back():
    rows = grid(locality=True)
    terms = {"base": 3e-3, "per_token": 2e-5, "per_kv_token": 4e-8, "mix_base": 2e-3, "mix_per_kv_token": 3e-8}
    true = CostModel("x", "linear", terms, locality=0.3)
    found = fit_iterations(Iterations(rows, true.seconds_of_rows(rows)), "linear", mixing=True)
    assert found.locality == pytest.approx(0.3, rel=1e-3)
    assert found.terms["mix_base"] == pytest.approx(2e-3, rel=1e-2)
    without = fit_iterations(Iterations(rows, true.seconds_of_rows(rows)), "linear", mixing=False)
    assert not any(name.startswith("mix") for name in without.terms)


@settings(max_examples=20)
@given(st.integers(0, 10_000), st.sampled_from(["linear", "max", "piecewise"]))
def test_a_fit_to_noise_is_still_monotone_and_non_negative(seed, form):
    rows = grid()
    noise = np.random.default_rng(seed).uniform(1e-3, 1.0, len(rows))
    found = fit_iterations(Iterations(rows, noise), form, mixing=True)  # CostModel itself refuses anything else
    assert all(seconds >= 0 for seconds in found.terms.values())
    assert found.valid["decodes"] == (0, 256)


def test_terms_can_be_held():
    rows = grid()
    model = TRUE["linear"]
    iterations = Iterations(rows, model.seconds_of_rows(rows))
    held = fit_iterations(iterations, "linear", mixing=False, least={"per_kv_token": 6e-8})
    assert held.terms["per_kv_token"] >= 6e-8
    free = fit_iterations(iterations, "linear", mixing=False, least={"per_kv_token": 1e-8})
    assert free.terms["per_kv_token"] == pytest.approx(4e-8, rel=1e-3)


def test_halves_share_nothing_and_halve_every_kind():
    rows = grid()
    first, second = halves(rows, seed=3)
    assert sorted([*first, *second]) == list(range(len(rows)))
    kinds = [Iterations(rows[part], np.ones(len(part))).kinds for part in (first, second)]
    counts = [np.bincount(part, minlength=3) for part in kinds]
    assert np.abs(counts[0] - counts[1]).max() <= 1


def test_weights_give_each_kind_its_share():
    iterations = Iterations(grid(), np.ones(len(grid())))
    sums = [iterations.weights[iterations.kinds == kind].sum() for kind in range(3)]
    assert sums == pytest.approx([0.4, 0.4, 0.2])


@pytest.mark.parametrize(
    ("rows", "seconds", "message"),
    [
        (grid()[:5], np.ones(5), "5 iterations are too few"),
        (grid(), np.zeros(len(grid())), "iteration 0 took no time"),
        (np.tile(batch(lengths=[10]), (9, 1)), np.ones(9), "all iterations have 1 tokens in the batch"),
    ],
)
def test_what_cannot_be_fitted_is_refused(rows, seconds, message):
    with pytest.raises(InstanceError) as caught:
        fit_iterations(Iterations(np.array(rows, float), seconds), "piecewise", mixing=False)
    assert message in str(caught.value)


# Operator tables, small and made: one model, a handful of sizes, times one can add up.

LLAMA = shape_of("Llama-3-8B")
VIDUR_OPS = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")
VIDUR_SMALL = ("input_layernorm", "post_attention_layernorm", "attn_rope", "mlp_act", "add")


def write_vidur(path, tokens=(1, 256, 4096), per_token=1e-3, sizes=(32, 8, 4096, 14336)):
    """Each matrix product takes 0.1 + per_token * n ms, each other operator 0.01 ms."""
    names = [f"time_stats.{name}.median" for name in (*VIDUR_OPS, *VIDUR_SMALL)]
    head = [*names, "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers"]
    rows = [[*[0.1 + per_token * n] * 4, *[0.01] * 5, *sizes, n, 1] for n in tokens]
    path.write_text("\n".join(",".join(map(str, row)) for row in [head, *rows]) + "\n")
    return path


def write_aic(path, decode, unit=1.0):
    """A layer of prefill attention takes 0.02 ms + 20 ns a pair, of decode attention 0.01 ms + 2 us a thousand tokens."""
    head = ["batch_size", "isl", "num_heads", "num_key_value_heads", "step", "latency_ms"]
    if decode:
        points = [
            (b, 1, 32, 8, length - 1, (0.01 + 2e-6 * b * length) * unit) for b in (1, 8, 64, 256) for length in (64, 512, 1024)
        ]
    else:
        points = [(b, n, 32, 8, 0, 0.02 + 2e-5 * 1e-3 * b * n * (n + 1) / 2) for b in (1, 4) for n in (16, 128, 512, 1024)]
    path.write_text("\n".join(",".join(map(str, row)) for row in [head, *points]) + "\n")
    return path


def tables(tmp_path, **changes):
    unit = changes.pop("unit", 1.0)
    paths = [write_vidur(tmp_path / "mlp.csv", **changes), write_aic(tmp_path / "c.csv", decode=False)]
    return [*paths, write_aic(tmp_path / "g.csv", decode=True, unit=unit)]


def test_iterations_add_up_by_hand(tmp_path):
    operators = operators_of([read_table(path) for path in tables(tmp_path)], LLAMA, 1)
    # 32 layers: four products of 0.1 + 0.001 * 256 ms, five operators of 0.01 ms.
    assert operators.dense.at(256) == pytest.approx(32 * (4 * 0.356 + 0.05) * 1e-3)
    decode = operators.attention.rows[:, Load._fields.index("decodes")] == 64
    assert operators.attention.seconds[decode][0] == pytest.approx(32 * (0.01 + 2e-6 * 64 * 64) * 1e-3)


def test_kinds_are_known_by_their_columns(tmp_path):
    assert [read_table(path).kind for path in tables(tmp_path)] == ["vidur-mlp", "aic-prefill", "aic-decode"]


def test_a_fit_of_tables_carries_error_capacity_and_provenance(tmp_path):
    made = [read_table(path) for path in tables(tmp_path)]
    model = fit_tables(made, "linear", name="made", model="llama-3-8b", gpu="h100")
    assert model.error["held_out"]["median"] < 0.01  # the tables are linear
    assert model.memory == 450_480
    assert model.machine["gpu"] == "H100-80"
    assert [table["sha256"] for table in model.origin["tables"]] == [table.sha256 for table in made]
    assert model.terms["per_kv_token"] == pytest.approx(32 * 2e-9, rel=0.02)


def test_wrong_units_are_refused_by_the_peak(tmp_path):
    made = [read_table(path) for path in tables(tmp_path, unit=1e-3)]
    with pytest.raises(InstanceError, match=r"KV reads: .* times the peak: impossible. Check the machine"):
        fit_tables(made, "linear", name="made", model="Llama-3-8B", gpu="H100")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda paths: paths[1:], "no table for the dense layers: give a file of kind vidur-mlp"),
        (lambda paths: paths[:2], "no table for decode attention: give a file of kind aic-decode or vidur-attention"),
        (lambda paths: [paths[0], paths[2]], "no table for prefill attention"),
    ],
)
def test_a_missing_table_is_named(tmp_path, change, message):
    made = [read_table(path) for path in change(tables(tmp_path))]
    with pytest.raises(InstanceError) as caught:
        operators_of(made, LLAMA, 1)
    assert message in str(caught.value)


def test_tables_of_other_sizes_are_not_taken_for_the_model(tmp_path):
    made = [read_table(path) for path in tables(tmp_path, sizes=(32, 32, 4096, 11008))]
    with pytest.raises(InstanceError, match="no table for matrix products of these sizes"):
        operators_of(made, LLAMA, 1)
    with pytest.raises(InstanceError, match="measured for other sizes"):
        operators_of(made, LLAMA, 1, dense="vidur")
    large = read_table(write_vidur(tmp_path / "m.csv", sizes=(64, 8, 8192, 22016)))
    with pytest.raises(InstanceError, match="no prefill attention with 64 query and 8 KV heads"):
        operators_of([*made[1:], large], shape_of("CodeLlama-34b"), 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no known table of measured times has the columns a, b"),
        ("m,n,k,latency_ms\n1,2,3\n", ":2: 3 cells where the header has 4"),
        ("m,n,k,latency_ms\n1,2,3,-1\n", ":2: latency_ms = '-1': must be a finite number, at least 0"),
        ("m,n,k,latency_ms\n1,2,3,fast\n", ":2: latency_ms = 'fast'"),
    ],
)
def test_damaged_tables_are_refused(tmp_path, text, message):
    path = tmp_path / "table.csv"
    path.write_text(text)
    with pytest.raises(InstanceError) as caught:
        read_table(path)
    assert message in str(caught.value)


# Logs.


def test_logs_come_back(tmp_path):
    loads = [Load(*row) for row in grid(locality=True)]
    rows = [(load, 0.001 * (at + 1)) for at, load in enumerate(loads)]
    write_log(rows, tmp_path / "log.jsonl.gz", machine={"gpu": "x"}, origin={"source": "made"})
    found = read_log(tmp_path / "log.jsonl.gz")
    assert [Load(*row) for row in found.iterations.rows.tolist()] == loads
    assert found.iterations.seconds.tolist() == [seconds for _, seconds in rows]
    assert found.machine == {"gpu": "x"}


def test_a_log_by_hand_may_leave_columns_out(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("seconds,prefill_tokens,prefill_context,decodes,kv_tokens\n0.01,100,40,,\n0.02,0,0,4,400\n")
    found = read_log(path).iterations
    assert [Load(*row) for row in found.rows.tolist()] == [batch([(100, 40)]), batch(lengths=[100] * 4)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("seconds,tokens\n1,2\n", ":1: column 'tokens' is not known; known: prefill_tokens"),
        ("decodes\n1\n", "a log has the column `seconds`"),
        ("seconds,decodes\n", "no iterations"),
        ("seconds,decodes\n0.1,1\n0,1\n", ":3: seconds must be above 0"),
        ("seconds,decodes\n0.1,1\n,1\n", ":3: seconds must be above 0"),
        ("seconds,decodes\n0.1,0\n", ":2: an iteration without tokens"),
        ("seconds,decodes\n0.1,x\n", ":2: decodes = 'x'"),
        ("seconds,prefill_tokens,prefill_sequences\n0.1,10,2\n", ":2: several chunks need prefill_pairs"),
        ("seconds,decodes,kv_tokens,repeated_kv\n0.1,1,5,6\n", ":2: repeated_kv exceeds kv_tokens"),
        ('{"seconds": 0.1, "decodes": 1}\n{"seconds": 0.1, "decodes"}\n', ":2: not JSON"),
        ('{"format": "kvopt-iterations/2"}\n', "must be 'kvopt-iterations/1'"),
    ],
)
def test_damaged_logs_are_refused(tmp_path, text, message):
    path = tmp_path / "log.csv"
    path.write_text(text)
    with pytest.raises(InstanceError) as caught:
        read_log(path)
    assert message in str(caught.value)


def test_fit_of_a_log_on_the_command_line(tmp_path, capsys):
    rows = grid()
    model = TRUE["piecewise"]
    write_log(
        zip(map(Load._make, rows), model.seconds_of_rows(rows).tolist(), strict=True), tmp_path / "log", machine={}, origin={}
    )
    assert run(["fit", str(tmp_path / "log"), "-o", str(tmp_path / "cost.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["form"] == "piecewise"
    assert document["held_out"]["iterations"] == 4 * (len(rows) // 2)
    assert read_cost(tmp_path / "cost.json").name == "cost"


def test_wrong_uses_of_fit(tmp_path, capsys):
    paths = [str(path) for path in tables(tmp_path)]
    assert run(["fit"]) == 2
    assert run(["fit", *paths]) == 2
    assert "operator tables need --model and --gpu" in capsys.readouterr().err
    (tmp_path / "log.csv").write_text("seconds,decodes\n0.1,1\n")
    assert run(["fit", str(tmp_path / "log.csv"), *paths]) == 2
    assert run(["fit", str(tmp_path / "log.csv")]) == 3
    assert run(["fit", "--preset", "h100"]) == 2
    assert run(["fit", *paths, "--model", "Llama-3-8B", "--gpu", "H100", "--quiet", "-o", str(tmp_path / "cost.json")]) == 0


def test_several_logs_are_one(tmp_path):
    rows = grid()
    seconds = TRUE["linear"].seconds_of_rows(rows)
    for name, part in (("a", slice(0, 20)), ("b", slice(20, None))):
        pairs = zip(map(Load._make, rows[part]), seconds[part].tolist(), strict=True)
        write_log(pairs, tmp_path / name, machine={"gpu": "mine"}, origin={})
    model = fit_log([read_log(tmp_path / "a"), read_log(tmp_path / "b")], "linear", name="x")
    assert model.terms["per_kv_token"] == pytest.approx(4e-8, rel=1e-3)
    assert model.machine == {"gpu": "mine"}


# Presets and what the chip has.


def test_shapes_count_the_parameters_of_their_models():
    for name, shape in SHAPES.items():
        counted = shape.layer_parameters + (1 if shape.tied else 2) * shape.vocab * shape.hidden
        # Norms, biases and learned positions are left out: less than a thousandth.
        assert counted == pytest.approx(MODELS[name].parameters, rel=2e-3), name


IMPOSSIBLE = {"sloweave-synthetic": {"matrix products", "weight reads"}, "h100-llama-3.1-8b-fp8": {"KV reads"}}


@pytest.mark.parametrize("name", [name for name in COSTS if name != "unit"])
def test_presets_are_possible_or_known_not_to_be(name):
    model = COSTS[name]()
    figures = checks(model)
    assert len(figures) >= 2
    assert {check.what for check in figures if not check.possible} == IMPOSSIBLE.get(name, set())
    assert bool(faults(model)) == (name in IMPOSSIBLE)


def test_what_the_synthetic_step_asks_for():
    # 6 us a token, 2 FLOP for each of 6.98e9 parameters: 2,326 TFLOP/s, and an A100 has 312.
    figure = next(check for check in checks(COSTS["sloweave-synthetic"]()) if check.what == "matrix products")
    assert figure.implied == pytest.approx(2 * LLAMA.layer_parameters / 6e-6)
    assert str(figure) == "matrix products: 2,326 TFLOP/s against 312, 7.5 times the peak: impossible"


def test_published_step_as_published():
    model = COSTS["sloweave-synthetic"]()
    assert model.seconds(batch([(512, 0)], [100] * 8)) == pytest.approx(1e-3 * (0.35 + 0.90 + 0.055 * 8 + 0.40 + 0.006 * 512))
    distserve = COSTS["distserve-opt-13b-a100"]()
    assert distserve.seconds(batch([(1000, 0)])) == pytest.approx(1e-3 * (16.457 + 0.09265 * 1000 + 6.475e-6 * 1000**2))
    assert distserve.seconds(batch(lengths=[500] * 50)) == pytest.approx(1e-3 * (19.935 + 6.269e-4 * 25_000 + 0.03851 * 50))
    assert distserve.seconds(batch(lengths=[0] * 200)) == pytest.approx(1e-3 * (7.166 + 0.15831 * 200), rel=1e-4)


def test_every_preset_has_a_recipe():
    assert set(COSTS) - {"unit"} == {*RECIPES, *PUBLISHED}
    for name, model in PUBLISHED.items():
        assert COSTS[name]() == model


@needs_data
@pytest.mark.parametrize("name", ["h100-llama-3-8b", "rtx-4090-llama-3.1-8b"])
def test_presets_come_from_the_public_tables(name):
    made, shipped = make(name, Path(DATA)), COSTS[name]()
    assert made.terms == pytest.approx(dict(shipped.terms), rel=1e-3)
    assert [seconds for _, seconds in made.knots] == pytest.approx([seconds for _, seconds in shipped.knots], rel=1e-3)
    assert made.error["held_out"]["p95"] == pytest.approx(shipped.error["held_out"]["p95"], rel=1e-2)
    assert made.origin["tables"] == shipped.origin["tables"]
    assert shipped.error["held_out"]["median"] < 0.025
    assert shipped.error["held_out"]["p95"] < 0.11
