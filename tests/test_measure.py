"""Measuring: loads are those of the steps, attention is right, a tiny run on the CPU gives a log that fits."""

import json
import sys

import pytest

from opt.cli import run
from opt.core.cost import read_cost
from opt.core.errors import InstanceError
from opt.fit.log import read_log
from opt.measure.grid import GRIDS, Step, steps
from opt.measure.run import _gpu


@pytest.fixture
def torch():
    """Torch on one thread: several spin for each other's sake where processors are busy."""
    found = pytest.importorskip("torch", reason="torch is not installed (extra gpu)")
    threads = found.get_num_threads()
    found.set_num_threads(1)
    yield found
    found.set_num_threads(threads)


def test_loads_of_steps():
    mixed = Step(chunk=10, context=5, decodes=4, length=7)
    assert mixed.load._asdict() == {
        "prefill_tokens": 10,
        "prefill_pairs": 10 * 5 + 55,
        "prefill_sequences": 1,
        "prefill_context": 5,
        "decodes": 4,
        "kv_tokens": 28,
        "repeated_kv": 0,
    }
    shared = Step(decodes=6, length=100, group=3)
    assert (shared.load.kv_tokens, shared.load.repeated_kv, shared.kv_tokens) == (600, 400, 200)


@pytest.mark.parametrize("name", GRIDS)
def test_grids_hold_every_kind_and_obey_the_pool(name):
    kept, dropped = steps(GRIDS[name], seed=0, kv_tokens=20_000)
    assert all(step.kv_tokens <= 20_000 for step in kept)
    everything, none = steps(GRIDS[name], seed=0, kv_tokens=10**9)
    assert none == 0
    assert len(kept) + dropped == pytest.approx(len(everything), abs=GRIDS[name].mixed)
    assert {bool(step.chunk) + 2 * bool(step.decodes) for step in kept} == {1, 2, 3}
    assert any(step.group > 1 for step in kept)
    assert steps(GRIDS[name], seed=0, kv_tokens=20_000)[0] == kept


@pytest.mark.parametrize(
    ("reported", "known"),
    [
        ("NVIDIA H100 80GB HBM3", "H100-80"),
        ("NVIDIA A100-SXM4-80GB", "A100-80"),
        ("NVIDIA A100-SXM4-40GB", "A100-40"),
        ("NVIDIA H200", "H200-141"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "RTX-PRO-6000"),
        ("Some Other Chip", "Some Other Chip"),
    ],
)
def test_names_that_drivers_report(reported, known):
    assert _gpu(reported) == known


def test_without_torch_the_extra_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["measure", "--device", "cpu", "-o", str(tmp_path / "log")]) == 3
    assert "measuring needs torch: pip install 'kvopt[gpu]'" in capsys.readouterr().err


def small(torch, kv_tokens=64):
    from opt.measure.run import TINY
    from opt.measure.transformer import Transformer

    options = {"device": torch.device("cpu"), "dtype": torch.float64}
    return Transformer(TINY, layers=1, kv_tokens=kv_tokens, seed=1, **options)


def inputs(torch, step, shape):
    rows = step.chunk + step.decodes
    torch.manual_seed(5)
    tokens = torch.randint(shape.vocab, (rows,))
    return tokens, torch.randn(rows, 2, shape.head_dim // 2, dtype=torch.float64)


def test_a_prompt_in_chunks_is_the_whole_prompt(torch):
    model, whole = small(torch), Step(chunk=12)
    tokens, angles = inputs(torch, whole, model.shape)
    expected = model.run(whole, tokens, angles, once=False)
    model.run(Step(chunk=5), tokens[:5], angles[:5], once=False)
    found = model.run(Step(chunk=7, context=5), tokens[5:], angles[5:], once=False)
    assert torch.allclose(found, expected, atol=1e-12)
    model.run(Step(chunk=11), tokens[:11], angles[:11], once=False)
    found = model.run(Step(decodes=1, length=12), tokens[11:], angles[11:], once=False)
    assert torch.allclose(found, expected, atol=1e-12)


def test_sharing_a_context_changes_no_result(torch):
    step, apart = Step(decodes=6, length=5, group=3), Step(decodes=6, length=5)
    model = small(torch)
    tokens, angles = inputs(torch, step, model.shape)
    pool = model.pool[:, :, :10].clone()
    first = model.run(step, tokens, angles, once=False)
    model.pool[:, :, :10] = pool
    assert torch.allclose(model.run(step, tokens, angles, once=True), first, atol=1e-12)
    # Copies of the two contexts, each newest token being the group's first.
    tokens, angles = tokens.repeat_interleave(1), angles.clone()
    for group in range(2):
        tokens[3 * group : 3 * group + 3], angles[3 * group : 3 * group + 3] = tokens[3 * group].item(), angles[3 * group]
    model.pool[:, :, :10] = pool
    shared = model.run(step, tokens, angles, once=False)
    contexts = pool.unflatten(2, (2, 5)).repeat_interleave(3, 2).flatten(2, 3)
    model.pool[:, :, :30] = contexts
    assert torch.allclose(model.run(apart, tokens, angles, once=False), shared, atol=1e-12)


@pytest.mark.parametrize("kernel", ["plain", "once"])
@pytest.mark.usefixtures("torch")
def test_a_tiny_run_on_the_cpu(tmp_path, capsys, kernel):
    log, cost = tmp_path / "log.jsonl", tmp_path / "cost.json"
    options = ["--device", "cpu", "--model", "tiny", "--grid", "tiny", "--repeat", "1", "--prefix-kernel", kernel]
    assert run(["measure", *options, "--form", "linear", "-o", str(log), "--cost", str(cost), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    found = read_log(log)
    assert document["form"] == "linear"
    assert len(found.iterations) == len(steps(GRIDS["tiny"], seed=0, kv_tokens=10**9)[0])
    assert found.machine["gpu"].startswith("cpu")
    assert found.origin["settings"]["prefix_kernel"] == kernel
    assert 0 <= read_cost(cost).locality <= 1


@pytest.mark.usefixtures("torch")
def test_no_time_leaves_everything_out(tmp_path, capsys):
    options = ["--device", "cpu", "--model", "tiny", "--grid", "tiny", "--budget-s", "1e-9"]
    assert run(["measure", *options, "-o", str(tmp_path / "log.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["iterations"] == 0


def test_what_cannot_be_measured_is_refused(torch, tmp_path, capsys):
    from opt.measure import measure

    with pytest.raises(InstanceError, match="its layer sizes are not known here"):
        measure(device="cpu", model="GPT-7")
    with pytest.raises(InstanceError, match=r"GiB of weights, but .* GiB are free; take fewer layers"):
        measure(device="cpu", model="Llama-3-70B")
    if not torch.cuda.is_available():
        assert run(["measure", "--device", "cuda", "-o", str(tmp_path / "log")]) == 3
        assert "torch sees no CUDA device" in capsys.readouterr().err
