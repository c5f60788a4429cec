"""The door and the verb of the clock; the two public runs of a real engine, where the data is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

import opt
from opt.bench.engine import RUNS, compare_run
from opt.cli import run
from opt.core.cost import CostModel, write_cost
from opt.core.instance import Instance
from opt.sim.config import EngineConfig, EngineFile

DATA = Path(os.environ["KVOPT_DATA"]) if os.environ.get("KVOPT_DATA") else None
public = pytest.mark.skipif(DATA is None or not DATA.is_dir(), reason="KVOPT_DATA does not name the folder of public data")

KEYS = {
    *("submitted", "completed", "rejected", "queued", "running", "total_latency_s", "throughput_tok_s", "goodput_req_s"),
    *("ttft_s", "tpot_s", "itl_s", "e2e_s", "slo_attainment", "max_wait_s", "saturated"),
    *("preemptions", "recomputed_tokens", "iterations"),
}


@pytest.fixture
def four(tmp_path):
    path = tmp_path / "four.json"
    opt.write(Instance(17, [9, 2, 6, 2], [5, 5, 4, 3], name="four"), path)
    return str(path)


def test_the_verb_prints_the_keys_of_the_contract(four, capsys):
    assert run(["simulate", four, "--policy", "svf", "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    assert value.keys() >= KEYS
    assert all(set(value[name]) == {"mean", "p50", "p95", "p99", "max"} for name in ("ttft_s", "tpot_s", "itl_s", "e2e_s"))
    assert (value["total_latency_s"], value["policy"], value["cost"], value["instance"]["n"]) == (25.0, "svf", "unit", 4)
    assert run(["simulate", four, "--policy", "svf"]) == 0
    assert ["total", "latency", "s", "25.0000"] in [line.split() for line in capsys.readouterr().out.splitlines()]


def test_a_plan_file_is_replayed_and_files_are_written(four, tmp_path, capsys):
    plan, trace, rows = (str(tmp_path / name) for name in ("plan.json", "trace.json", "rows.csv"))
    assert run(["solve", four, "--solver", "exact", "-o", plan, "--quiet"]) == 0
    capsys.readouterr()
    assert run(["simulate", plan, "--json", "--perfetto", trace, "--requests", rows]) == 0
    value = json.loads(capsys.readouterr().out)
    assert (value["policy"], value["total_latency_s"]) == ("replay", 24.0)
    assert json.loads(Path(trace).read_text())["traceEvents"]
    assert len(Path(rows).read_text().splitlines()) == 5


def test_an_engine_file_sets_policy_cost_and_capacity_and_options_win(four, tmp_path, capsys):
    engine = tmp_path / "engine.json"
    engine.write_text(
        '{"format": "kvopt-engine/1", "policy": "vllm-fcfs", "block_size": 1, "kv_tokens": 20, "params": {"victim": "last"}}'
    )
    assert run(["simulate", four, "--engine", str(engine), "--json"]) == 0
    first = json.loads(capsys.readouterr().out)
    assert (first["policy"], first["params"]) == ("vllm-fcfs", {"victim": "last"})
    assert run(["simulate", four, "--engine", str(engine), "--param", "victim=least-computed", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["params"] == {"victim": "least-computed"}


def test_wrong_names_and_values_have_one_line_and_a_code(four, tmp_path, capsys):
    engine = tmp_path / "engine.json"
    engine.write_text('{"format": "kvopt-engine/1", "max_chunk": 0}')
    timed = str(tmp_path / "timed.json")
    opt.write(Instance(17, [9, 2], [5, 5], arrival=[0, 4]), timed)
    cases = [
        (["--policy", "vlm-fcfs"], 2, "did you mean vllm-fcfs"),
        (["--cost", "no-such-cost"], 3, "neither a name nor a file"),
        (["--param", "speed=9"], 3, "has no parameter speed"),
        (["--engine", str(engine)], 3, "max_chunk = 0"),
        (["--engine", "nowhere.json"], 3, "cannot be read"),
        (["--policy", "replay"], 3, "replay needs a plan"),
        (["--until", "0"], 2, "--until"),
        (["--lengths", "predicted"], 3, "no column `predicted`"),
    ]
    for options, code, message in cases:
        assert run(["simulate", four, *options]) == code
        assert message in capsys.readouterr().err
    cost = str(tmp_path / "cost.json")
    write_cost(CostModel("slow", "linear", {"base": 0.5}), cost)
    assert run(["simulate", timed, "--cost", cost]) == 3
    assert "arrivals in rounds" in capsys.readouterr().err
    assert run(["simulate", timed, "--cost", cost, "--round-s", "0.5", "--json"]) == 0
    assert run(["simulate", timed, "--json"]) == 0


def test_a_cost_measured_on_less_says_so(tmp_path, capsys):
    """The machine had 50 tokens and batches of up to 2 decodes."""
    model = CostModel("small", "linear", {"base": 0.1}, memory=50, machine={"gpu": "G", "model": "M"}, valid={"decodes": (0, 2)})
    write_cost(model, tmp_path / "cost.json")
    opt.write(Instance(100, [5] * 4, [5] * 4), tmp_path / "i.json")
    assert run(["simulate", str(tmp_path / "i.json"), "--cost", str(tmp_path / "cost.json"), "--json"]) == 0
    out, err = capsys.readouterr()
    notes = json.loads(out)["notes"]
    assert notes == [
        "engine has 96 tokens of KV cache; the machine of cost small (G M) has 50",
        "beyond what cost small was measured on: decodes = 4 (measured up to 2)",
    ]
    assert all(note in err for note in notes)


def test_a_saturated_run_is_said_to_be_one(tmp_path, capsys):
    opt.write(Instance(100, [5] * 60, [5] * 60, arrival_s=np.arange(60.0)), tmp_path / "i.json")
    (tmp_path / "e.json").write_text('{"format": "kvopt-engine/1", "max_running": 1}')
    assert run(["simulate", str(tmp_path / "i.json"), "--engine", str(tmp_path / "e.json"), "--json"]) == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["saturated"] is True
    assert "warning: saturated" in err


def test_the_same_seed_gives_the_same_bytes(tmp_path, capsys):
    opt.write(Instance(60, [5] * 30, range(3, 33), arrival_s=np.linspace(0, 3, 30)), tmp_path / "i.json")
    for name in ("random", "sglang-random"):
        said = []
        for seed in ("1", "1", "2"):
            assert run(["simulate", str(tmp_path / "i.json"), "--policy", name, "--seed", seed, "--requests", "-"]) == 0
            said.append(capsys.readouterr().out)
        assert said[0] == said[1] != said[2]


def test_every_way_to_name_an_engine():
    instance = Instance(40, [5] * 4, [5] * 4)
    one = opt.simulate(instance, "vllm-fcfs", engine=EngineConfig(block_size=1, max_running=1))
    two = opt.simulate(instance, "vllm-fcfs", engine=EngineFile({"block_size": 1, "max_running": 1}))
    assert one.metrics["total_latency_s"] == two.metrics["total_latency_s"] == 5 + 10 + 15 + 20
    with pytest.raises(ValueError, match="until_s = -1"):
        opt.simulate(instance, until_s=-1)
    with pytest.raises(ValueError, match="unknown policy 'fcf'; did you mean"):
        opt.simulate(instance, "fcf")
    with pytest.raises(ValueError, match="seed = -1"):
        opt.simulate(instance, seed=-1)


def test_help_and_list_know_the_policies(capsys):
    assert run(["list", "policies"]) == 0
    assert "sglang-dfs-weight" in capsys.readouterr().out


@public
@pytest.mark.parametrize("name", RUNS)
def test_a_real_run_is_met_within_a_few_per_cent(name):
    """Means of a real vLLM 0.19 run, the same host time for both: end to end within 4 %, TPOT 3 %, TTFT 6 %."""
    found = compare_run(DATA, name)
    assert abs(found["e2e_s"]["error"]) <= 0.04
    assert abs(found["tpot_s"]["error"]) <= 0.03
    assert abs(found["ttft_s"]["error"]) <= 0.06


@public
@pytest.mark.parametrize(("kv_tokens", "share"), [(200_000_000, 0.3734), (5_120_000, 0.21)])
def test_the_prefix_cache_finds_what_a_count_of_blocks_says(kv_tokens, share):
    """Mooncake's hour: 37.4 % of prompt tokens lie in leading blocks seen before; an LRU cache of 10,000 blocks keeps 21."""
    trace = opt.read_trace(DATA / "mooncake" / "conversation_trace.jsonl.gz", "mooncake", memory=450_480)
    seen, shareable = set(), 0
    for row in trace.prefix_rows():
        known = next((k for k, name in enumerate(row) if name not in seen), len(row))
        shareable += known
        seen.update(row)
    assert shareable / sum(map(len, trace.prefix_rows())) == pytest.approx(0.366, abs=0.001)
    found = opt.simulate(trace, "vllm-fcfs", "h100-llama-3-8b", engine=EngineFile({"kv_tokens": kv_tokens})).metrics
    assert found["completed"] == trace.n
    assert found["cached_tokens"] / trace.prompt.sum() == pytest.approx(share, abs=0.01)
