"""What a simulation comes to: numbers worked out by hand, nothing undefined, nothing lost."""

from __future__ import annotations

import csv
import gzip
import json
import math

import numpy as np
import pytest
from engines import SECONDS, configs, loads
from hypothesis import given, settings
from hypothesis import strategies as st

import opt
from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.core.strict_json import as_json
from opt.sim.config import EngineConfig
from opt.sim.export import perfetto, write_perfetto, write_requests
from opt.sim.metrics import slo_met

EXACT = EngineConfig(block_size=1)
ONE = CostModel("one", "linear", {"base": 1.0})


@settings(max_examples=30)
@given(loads(), configs, st.sampled_from(["vllm-fcfs", "sglang-lpm", "fcfs"]), st.sampled_from([None, 0.02, 0.3]))
def test_the_figures_are_numbers_and_add_up(instance, config, name, until):
    """P34, P35, P41: valid JSON whatever happens, no negative time, and every request is somewhere."""
    timeline = opt.simulate(instance, name, SECONDS, engine=config, until_s=until)
    found = timeline.metrics
    json.loads(as_json(found))
    assert found["submitted"] == sum(found[key] for key in ("completed", "rejected", "queued", "running"))
    gaps, counts = timeline.gaps_s
    by_hand = np.sort(np.repeat(gaps, counts))
    assert len(by_hand) == int((timeline.workload.progress.produced - 1).clip(0).sum())
    if len(by_hand):
        assert found["itl_s"]["mean"] == pytest.approx(by_hand.mean())
        assert found["itl_s"]["max"] == by_hand.max() == timeline.workload.progress.max_gap_s.max()
        assert found["itl_s"]["p50"] == np.quantile(by_hand, 0.5, method="inverted_cdf")


def test_latencies_worked_by_hand():
    """Steps of one second. A comes at 0 with 3 tokens: first at 1, last at 3. B comes at 1.5: starts at 2, 3 and 4."""
    timeline = opt.simulate(Instance(100, [5, 5], [3, 2], arrival_s=[0.0, 1.5]), "vllm-fcfs", ONE, engine=EXACT)
    found = timeline.metrics
    assert timeline.ttft_s.tolist() == [1.0, 1.5]
    assert timeline.e2e_s.tolist() == [3.0, 2.5]
    assert timeline.tpot_s.tolist() == [1.0, 1.0]  # (3 - 1) / (3 - 1): the first token is not among them
    assert (found["total_latency_s"], found["duration_s"], found["throughput_tok_s"]) == (5.5, 4.0, 1.25)
    assert (found["max_wait_s"], found["iterations"], found["prefill_tokens"]) == (0.5, 4, 10)
    assert found["e2e_s"] == pytest.approx({"mean": 2.75, "p50": 2.75, "p95": 2.975, "p99": 2.995, "max": 3.0})


def test_one_token_has_no_time_per_token_and_meets_any_target_on_it():
    instance = Instance(100, [5, 5], [1, 1], tpot_s=[0.001, 0.001])
    found = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT).metrics
    assert found["tpot_s"] == dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    assert found["itl_s"]["mean"] is None
    assert found["slo_attainment"] == 1.0


def test_nothing_completed_is_none_and_a_count():
    instance = Instance(100, [50, 50], [9, 9])
    found = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT.replace(kv_tokens=20)).metrics
    assert (found["submitted"], found["rejected"], found["completed"]) == (2, 2, 0)
    assert (found["slo_attainment"], found["total_latency_s"], found["e2e_s"]["mean"]) == (0.0, 0.0, None)
    empty = opt.simulate(Instance(100, [], []), "vllm-fcfs", ONE).metrics
    assert (empty["submitted"], empty["slo_attainment"], empty["goodput_req_s"], empty["max_wait_s"]) == (0, None, None, None)


def test_targets_count_when_all_are_met_and_a_rejected_request_has_missed():
    """First tokens at 1, 2, 2; the fourth is too large for the engine."""
    instance = Instance(
        100,
        [4, 4, 4, 90],
        [4, 4, 4, 9],
        arrival_s=[0.0, 0.1, 0.2, 0.3],
        ttft_s=[1.0, 1.8, 1.8, None],
        itl_s=[1.0, 1.0, None, None],
    )
    timeline = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT.replace(kv_tokens=60))
    assert slo_met(timeline).tolist() == [True, False, True, False]
    found = timeline.metrics
    assert (found["slo_attainment"], found["goodput_req_s"]) == (0.5, 2 / 5)
    tight = opt.simulate(instance.replace(itl_s=[0.9, None, None, None]), "vllm-fcfs", ONE, engine=EXACT.replace(kv_tokens=60))
    assert slo_met(tight).tolist() == [False, False, True, False]


def test_twice_the_capacity_saturates_and_most_of_it_does_not():
    """One request a second can be served; the figures of the saturated run look steady, so the flag has to say it."""
    cost = CostModel("t", "linear", {"base": 0.1})
    for rate, saturated in ((2.0, True), (0.8, False)):
        arrival = np.arange(200) / rate
        instance = Instance(100, [5] * 200, [10] * 200, arrival_s=arrival)
        found = opt.simulate(instance, "vllm-fcfs", cost, engine=EXACT.replace(max_running=1)).metrics
        assert found["saturated"] is saturated
        if saturated:
            assert found["queue_growth_req_s"] == pytest.approx(1.0, abs=0.05)
    assert opt.simulate(Instance(100, [5] * 9, [9] * 9), "vllm-fcfs", cost).metrics["saturated"] is None


def test_shifted_times_give_the_same_figures():
    """Only differences of times count: the same trace an hour later."""
    instance = Instance(200, [30, 40, 20], [5, 6, 7], arrival_s=[0.0, 0.25, 0.5])
    early = opt.simulate(instance, "vllm-fcfs", SECONDS).metrics
    late = opt.simulate(instance.replace(arrival_s=np.array([0.0, 0.25, 0.5]) + 3600), "vllm-fcfs", SECONDS).metrics
    for key in ("total_latency_s", "duration_s", "max_wait_s", "throughput_tok_s"):
        assert late[key] == pytest.approx(early[key], rel=1e-6)
    assert late["iterations"] == early["iterations"]


def test_stopping_early_counts_who_is_still_there():
    instance = Instance(12, [7, 7, 5], [5, 5, 6], arrival_s=[0.0, 0.0, 50.0])
    found = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT, until_s=3.0).metrics
    assert (found["submitted"], found["running"], found["queued"], found["completed"]) == (2, 1, 1, 0)
    assert (found["duration_s"], found["max_wait_s"]) == (3.0, 3.0)
    later = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT, until_s=30.0).metrics
    assert (later["submitted"], later["completed"], later["duration_s"]) == (2, 2, 10.0)  # idle time after the last is no part


def test_the_trace_of_perfetto_has_every_phase_and_no_negative_time(tmp_path):
    instance = Instance(12, [5, 5], [6, 3], arrival_s=[0.0, 1.5], ids=["a", "b"])
    timeline = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT)
    write_perfetto(timeline, tmp_path / "t.json.gz")
    value = json.loads(gzip.decompress((tmp_path / "t.json.gz").read_bytes()))
    assert value == json.loads(json.dumps(perfetto(timeline)))
    events = value["traceEvents"]
    assert all(event["ts"] >= 0 and event.get("dur", 0) >= 0 for event in events if "ts" in event)
    steps = [event for event in events if event["ph"] == "X"]
    assert sum(event["args"]["steps"] for event in steps) == timeline.metrics["iterations"]
    assert sum(event["dur"] for event in steps) == pytest.approx(timeline.metrics["busy_s"] * 1e6)
    opened = [event for event in events if event["ph"] == "b"]
    assert len(opened) == sum(event["ph"] == "e" for event in events) == 6
    assert {(event["args"]["request"], event["name"]) for event in opened} == {
        (who, what) for who in "ab" for what in ("waiting", "prefill", "decode")
    }


def test_a_stopped_request_is_open_to_the_end_in_the_trace():
    timeline = opt.simulate(Instance(100, [5], [60]), "vllm-fcfs", ONE, engine=EXACT, until_s=4.0)
    last = [event for event in perfetto(timeline)["traceEvents"] if event["ph"] == "e" and event["name"] == "decode"]
    assert [event["ts"] for event in last] == [4e6]


def test_rows_for_every_request(tmp_path):
    instance = Instance(100, [5, 5], [3, 1], arrival_s=[0.0, 1.5], ids=["a", "b"])
    timeline = opt.simulate(instance, "vllm-fcfs", ONE, engine=EXACT)
    write_requests(timeline, tmp_path / "r.jsonl")
    write_requests(timeline, tmp_path / "r.csv")
    rows = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    assert [(row["id"], row["ttft_s"], row["tpot_s"], row["e2e_s"]) for row in rows] == [
        ("a", 1.0, 1.0, 3.0),
        ("b", 1.5, None, 1.5),
    ]
    with (tmp_path / "r.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["id"], row["finish_s"], row["state"]) for row in table] == [("a", "3.0", "completed"), ("b", "3.0", "completed")]
    assert not any(math.isnan(cell) for row in rows for cell in row.values() if isinstance(cell, float))
