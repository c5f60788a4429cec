"""Every policy: one conformance suite; the offline orders and plans met exactly; worked cases for each engine."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from engines import SECONDS, checked, configs, loads, run
from hypothesis import given, settings
from hypothesis import strategies as st

import opt
from opt.core.cost import UNIT, CostModel
from opt.core.instance import Instance
from opt.sim.config import EngineConfig
from opt.sim.policies import POLICIES
from opt.sim.workload import DONE, Requests, workload
from opt.solvers.orders import KEYS
from opt.solvers.registry import SOLVERS

BY_ARRIVAL = ("vllm-fcfs", "sarathi", "orca", "static", "fcfs", "sglang-fcfs", "random")
ROUNDS = POLICIES["fcfs"].engine
EXACT = EngineConfig(block_size=1, token_budget=10**6, prefix_cache=False)
NAMES = [name for name in POLICIES if name != "replay"]


def make(name, **params):
    """What makes the policy; a replay follows a plan in which nobody is alone for long."""
    kind = POLICIES[name]
    if name == "replay":
        return lambda requests, config: kind.make(requests, config, start=np.arange(requests.n) * 3, **params)
    return lambda requests, config: kind.make(requests, config, **params)


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=25)
@given(loads(), st.one_of(st.none(), configs), st.sampled_from([0.0, 0.3]), st.sampled_from([None, 2]))
def test_conformance(name, instance, given_config, watermark, max_chunk):
    """P1, P3, P4, P5, on the policy's own engine (with small blocks for small loads) and on any other."""
    config = POLICIES[name].engine.replace(block_size=2)
    if given_config is not None:
        config = given_config.replace(watermark=watermark, max_chunk=max_chunk)
    seen, again = [], []
    engine = run(instance, lambda r, c: checked(make(name)(r, c), seen), config)
    run(instance, lambda r, c: checked(make(name)(r, c), again), config)
    assert seen == again
    assert engine.completed + engine.rejected == instance.n
    assert engine.memory.used == 0
    if name != "replay":
        assert all(singles or chunks or preempted for _, singles, chunks, preempted in seen)
    if name in BY_ARRIVAL[:6]:
        started = engine.workload.progress.start_s[engine.workload.progress.state == DONE]
        arrived = instance.arrival_s[engine.workload.progress.state == DONE]
        assert (np.diff(started[np.argsort(arrived, kind="stable")]) >= 0).all()


@pytest.mark.parametrize("name", POLICIES)
@settings(max_examples=8)
@given(loads(), st.integers(0, 99))
def test_no_policy_sees_the_outputs(name, instance, seed):
    """Two loads with the same announcements: until the first request of either ends, every decision is the same."""
    longer = instance.output + np.random.default_rng(seed).integers(0, 9, instance.n)
    told = instance.replace(predicted=instance.output, memory=instance.memory + 9)
    config = POLICIES[name].engine.replace(block_size=2)
    logs = []
    for true in (instance.output, longer):
        seen = []
        engine = run(told.replace(output=true), lambda r, c: checked(make(name)(r, c), seen), config)  # noqa: B023
        ends = engine.workload.progress.finish_s
        logs.append((np.nanmin(ends) if not np.isnan(ends).all() else np.inf, seen))
    first = min(end for end, _ in logs)
    assert [entry for entry in logs[0][1] if entry[0] < first] == [entry for entry in logs[1][1] if entry[0] < first]
    assert "output" not in {field.name for field in dataclasses.fields(Requests)}


@pytest.mark.parametrize("name", [*KEYS, *(f"{key}-skip" for key in KEYS), "mc-sf"])
@settings(max_examples=20)
@given(st.integers(0, 10**6), st.integers(1, 25), st.booleans())
def test_an_order_on_line_is_the_order_off_line(name, seed, n, arrivals):
    """With unit cost and exact tokens: the very starts of the solver of the same name, with arrivals too."""
    rng = np.random.default_rng(seed)
    prompt, output = rng.integers(0, 12, n), rng.integers(1, 9, n)
    extra = {"arrival": rng.integers(0, 20, n)} if arrivals else {}
    instance = Instance(int((prompt + output).max() + rng.integers(0, 20)), prompt, output, **extra)
    engine = run(instance, make(name, seed=7), ROUNDS, UNIT)
    start = SOLVERS[name](instance, seed=7, time_limit=None).start
    assert engine.workload.progress.start_s.tolist() == start.tolist()
    assert engine.workload.progress.finish_s.tolist() == (start + instance.output).tolist()
    assert engine.preemptions == 0


@settings(max_examples=40)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from(["svf-pack", "sorted-f", "staggered", "fcfs"]))
def test_a_replayed_plan_is_the_plan(seed, n, solver):
    """Starts, finishes and the peak of memory, also of plans that hold requests back and leave rounds empty."""
    rng = np.random.default_rng(seed)
    prompt, output, arrival = rng.integers(0, 12, n), rng.integers(1, 9, n), rng.integers(0, 30, n)
    instance = Instance(int((prompt + output).max() + rng.integers(0, 20)), prompt, output, arrival=arrival)
    start = SOLVERS[solver](instance, seed=0, time_limit=None).start
    late = start + 3  # nothing runs at first although requests wait
    schedule = opt.certify(instance, opt.Proposal(late), solver="test").schedule
    timeline = opt.simulate(schedule, cost="unit")
    progress = timeline.workload.progress
    assert progress.start_s.tolist() == late.tolist()
    assert progress.finish_s.tolist() == schedule.finish.tolist()
    assert timeline.metrics["total_latency_s"] == schedule.total_latency
    assert timeline.engines[0].memory.peak == _peak(schedule)


def _peak(schedule):
    rounds = np.arange(schedule.makespan + 1)[:, None]
    active = (rounds > schedule.start) & (rounds <= schedule.finish)
    return int(((schedule.instance.prompt + rounds - schedule.start) * active).sum(1).max())


def test_a_plan_replayed_in_seconds_keeps_its_rounds_but_not_their_length():
    """Two requests, the second two rounds after the first: it starts when two steps have run."""
    schedule = opt.certify(Instance(40, [4, 6], [5, 3]), opt.Proposal(np.array([0, 2])), solver="test").schedule
    cost = CostModel("t", "linear", {"base": 1.0, "per_prefill_token": 0.5})
    progress = opt.simulate(schedule, cost=cost).workload.progress
    assert progress.start_s.tolist() == [0.0, 4.0]  # 1 + 4/2, then 1
    assert progress.finish_s.tolist() == [10.0, 10.0]  # steps of 3, 1, 1 + 6/2, 1, 1


def test_a_plan_that_does_not_fit_the_requests_is_refused():
    with pytest.raises(ValueError, match="2 starts for 1 requests"):
        opt.simulate(Instance(9, [3], [2]), "replay", start=np.zeros(2, np.int64))
    with pytest.raises(ValueError, match="replay needs a plan"):
        opt.simulate(Instance(9, [3], [2]), "replay")
    shared = opt.Schedule(Instance(9, [3], [2]), np.zeros(1, np.int64), "shared")
    with pytest.raises(ValueError, match="shared prefixes cannot be replayed"):
        opt.simulate(shared)


def test_planners_need_announced_outputs_and_say_so():
    for name in ("sof", "svf-skip", "orca", "static"):
        with pytest.raises(ValueError, match=r"needs announced outputs, and request 'a' has none"):
            opt.simulate(Instance(9, [3], [2], ids=["a"]), name, lengths="none")
    capped = Instance(20, [3], [2], max_output=[6])
    assert workload(capped, lengths="none").requests.expected.tolist() == [6]
    assert opt.simulate(capped, "orca", lengths="none", engine=EXACT).metrics["completed"] == 1


def test_a_wrong_prediction_costs_preemptions_not_correctness():
    """Everybody is announced with one token and makes eight."""
    instance = Instance(30, [5] * 6, [8] * 6, predicted=[1] * 6)
    for name in ("svf", "fcfs-skip", "orca", "static"):
        found = opt.simulate(instance, name, engine=EXACT).metrics
        assert (found["completed"], found["preemptions"] > 0) == (6, True)


# --- the memory of engines ---------------------------------------------------------------------------------------


def starts(instance, name, engine=ROUNDS, **params):
    return opt.simulate(instance, name, engine=engine, **params).workload.progress.start_s.tolist()


def test_the_first_blocked_request_blocks_the_others_unless_they_may_pass():
    """M = 100: A and B of (80, 10) do not fit together; C of (5, 5) fits beside A."""
    instance = Instance(100, [80, 80, 5], [10, 10, 5])
    assert starts(instance, "fcfs") == [0.0, 10.0, 10.0]
    assert starts(instance, "fcfs-skip") == [0.0, 10.0, 0.0]


def test_optimistic_admission_preempts_a_bounded_number_of_times():
    """Five prompts of 100 in chunks of 50, memory 450: all get in, one has to go; recomputed tokens are reported."""
    instance = Instance(450, [100] * 5, [10] * 5)
    config = EXACT.replace(max_chunk=50, token_budget=250, admit="chunk")
    found = opt.simulate(instance, "vllm-fcfs", engine=config).metrics
    assert (found["completed"], found["preemptions"]) == (5, 1)
    assert found["recomputed_tokens"] == 50
    assert found["recompute_share"] == 50 / 550
    careful = opt.simulate(instance, "vllm-fcfs", engine=config.replace(watermark=0.5)).metrics
    assert (careful["completed"], careful["preemptions"]) == (5, 0)


def test_who_is_preempted_is_a_rule_and_the_lost_work_is_counted():
    """A (10 tokens) and B (3000) run; there are 20 slots beyond their prompts. B came last; A has computed least."""
    instance = Instance(3030, [10, 3000], [20, 20])
    lost = {
        rule: opt.simulate(instance, "vllm-fcfs", engine=EXACT, victim=rule).metrics["recomputed_tokens"]
        for rule in ("last", "least-computed")
    }
    assert lost == {"last": 3000 + 10, "least-computed": 10 + 10}
    with pytest.raises(ValueError, match="victim = 'first': must be one of last, worst, least-computed"):
        opt.simulate(instance, "vllm-fcfs", victim="first")


def test_setting_peaks_aside_and_using_all_memory_differ_only_under_pressure():
    instance = Instance(1000, [40] * 10, [30] * 10)
    for memory, same in ((1000, True), (400, False)):
        ends = [
            opt.simulate(instance.replace(memory=memory), name, engine=EXACT).workload.progress.finish_s.tolist()
            for name in ("orca", "vllm-fcfs")
        ]
        assert (ends[0] == ends[1]) == same


def test_shortest_first_lets_the_long_one_wait_and_the_figures_show_it():
    n = 40
    stream = Instance(60, [50] + [9] * n, [10] + [2] * n, arrival_s=[0.0] + [0.5 * k for k in range(n)])
    ends = {name: opt.simulate(stream, name).metrics for name in ("sof", "fcfs")}
    assert all(found["completed"] == n + 1 for found in ends.values())
    assert ends["sof"]["wait_by_size_s"]["large"]["max"] == ends["sof"]["max_wait_s"] > 20
    assert ends["sof"]["wait_by_size_s"]["small"]["p50"] < 1 < 9 < ends["fcfs"]["wait_by_size_s"]["small"]["max"]
    assert ends["sof"]["jain_slowdown"] < 1


# --- vLLM ----------------------------------------------------------------------------------------------------------


def test_a_better_priority_takes_a_seat_only_if_told_to_and_equals_never_swap():
    """One seat: the low one runs, the high one comes at 1.5."""
    config = EXACT.replace(max_running=1)
    for priority, swap, first_tokens, swaps in (
        ([5, 1], False, [1.0, 11.0], 0),
        ([5, 1], True, [1.0, 3.0], 1),
        ([1, 1], True, [1.0, 11.0], 0),
    ):
        instance = Instance(100, [5, 5], [10, 3], arrival_s=[0.0, 1.5], priority=priority)
        timeline = opt.simulate(instance, "vllm-priority", engine=config, swap=swap)
        assert timeline.workload.progress.first_s.tolist() == first_tokens
        assert timeline.metrics["preemptions"] == swaps


def test_priorities_order_the_queue_and_choose_the_victim():
    """Two seats: the two better ones first. Memory 20 and two of (5, 8): the worse gives way although it came first."""
    instance = Instance(20, [5, 5, 5], [8, 8, 1], priority=[3, 1, 2])
    assert starts(instance, "vllm-priority", EXACT.replace(max_running=2)) == [1.0, 0.0, 0.0]
    later = Instance(20, [5, 5], [8, 8], priority=[3, 1], arrival_s=[0.0, 1.5])
    for name, victims in (("vllm-priority", [1, 0]), ("vllm-fcfs", [0, 1])):
        assert opt.simulate(later, name, engine=EXACT).workload.progress.preemptions.tolist() == victims


def test_a_long_prompt_freezes_decodes_for_as_long_as_its_chunk():
    """A decodes while B's prompt of 8192 arrives: the longest gap of A is a step of one chunk and one decode."""
    cost = CostModel("t", "linear", {"base": 0.005, "per_token": 1e-4})
    instance = Instance(20_000, [10, 8192], [400, 2], arrival_s=[0.0, 0.5])
    for chunk in (512, 8192):
        timeline = opt.simulate(instance, "vllm-fcfs", cost, engine=EXACT.replace(max_chunk=chunk))
        assert timeline.workload.progress.max_gap_s[0] == pytest.approx(0.005 + 1e-4 * (chunk + 1))


def test_a_long_prompt_takes_the_whole_budget_unless_chunks_are_capped():
    """Budget 64: a prompt of 640 takes ten steps, and a newcomer waits for all of them, or for one."""
    instance = Instance(2000, [640, 4], [2, 2], arrival_s=[0.0, 0.5])
    config = EXACT.replace(token_budget=64)
    assert starts(instance, "vllm-fcfs", config) == [0.0, 10.0]
    assert starts(instance, "vllm-fcfs", config.replace(max_chunk=32)) == [0.0, 1.0]


def test_the_time_to_first_token_grows_with_the_place_in_a_burst():
    """Sixteen equal prompts, one a step: the k-th has its first token after k steps."""
    cost = CostModel("t", "linear", {"per_prefill_token": 0.001})
    timeline = opt.simulate(Instance(20_000, [512] * 16, [1] * 16), "vllm-fcfs", cost, engine=EXACT.replace(token_budget=512))
    assert timeline.ttft_s == pytest.approx(0.512 * np.arange(1, 17))


def test_a_prefix_computed_in_a_step_serves_the_next_request_of_the_same_step():
    rows = [[1, 2, 3, 10 + i] for i in range(3)]
    instance = Instance(1000, [64] * 3, [2] * 3, prefix=rows, prefix_chunk=16)
    timeline = opt.simulate(instance, "vllm-fcfs")
    assert timeline.workload.progress.cached.tolist() == [0, 48, 48]
    assert timeline.engines[0].log.runs[0].prefill_tokens == 64 + 16 + 16


# --- Sarathi, static ----------------------------------------------------------------------------------------------


def test_sarathi_never_stalls_decodes_and_keeps_to_its_budget():
    """One decode and a prompt of 1200 in steps of 512 tokens: 511, 511, 178."""
    instance = Instance(5000, [8, 1200], [50, 2], arrival_s=[0.0, 2.5])
    timeline = opt.simulate(instance, "sarathi")
    mixed = [run.prefill_tokens for run in timeline.engines[0].log.runs if run.chunks and run.decodes]
    assert mixed == [511, 511, 178]
    assert timeline.workload.progress.max_gap_s[0] == 1.0


def test_a_static_batch_runs_to_its_end():
    """Two seats: the third waits for both, although the first leaves early."""
    instance = Instance(1000, [5, 5, 5], [2, 9, 1])
    assert starts(instance, "static", EXACT.replace(max_running=2)) == [0.0, 0.0, 9.0]
    assert starts(instance, "orca", EXACT.replace(max_running=2)) == [0.0, 0.0, 2.0]


# --- SGLang -------------------------------------------------------------------------------------------------------

SGLANG = POLICIES["sglang-fcfs"].engine


def test_sglang_prefills_first_and_lets_decodes_wait():
    """The gap of the one that decodes is its own step and the prefill that came between."""
    cost = CostModel("t", "linear", {"base": 1.0, "per_prefill_token": 0.01})
    instance = Instance(5000, [10, 300], [8, 2], arrival_s=[0.0, 2.5])
    timeline = opt.simulate(instance, "sglang-fcfs", cost)
    assert timeline.workload.progress.max_gap_s[0] == pytest.approx(1.0 + 1.0 + 3.0)
    assert all(not (run.chunks and run.decodes) for run in timeline.engines[0].log.runs)


def test_sglang_sets_output_aside_and_retracts_who_has_made_least():
    """Memory 100. Two of (10, 60): 70 tokens for the second are not left beside the first's 10 and 0.7 * 60.

    Announced with 20 tokens both get in; at 40 tokens each the memory is full, and the later of two equals goes.
    """
    instance = Instance(100, [10] * 2, [60] * 2)
    honest = opt.simulate(instance, "sglang-fcfs")
    assert (honest.workload.progress.start_s.tolist(), honest.metrics["preemptions"]) == ([0.0, 60.0], 0)
    short = opt.simulate(instance.replace(predicted=[20, 20]), "sglang-fcfs", engine=SGLANG.replace(prefix_cache=False))
    assert short.workload.progress.start_s.tolist() == [0.0, 0.0]
    assert short.workload.progress.preemptions.tolist() == [0, 1]
    assert short.metrics["completed"] == 2


def test_sglang_tries_again_at_once_after_the_first_batch_of_an_idle_engine():
    """Memory 130. Beside all 10 + 60 + 1 tokens of the first the second's 71 do not fit, beside its 10 and 0.7 * 59 they do."""
    cost = CostModel("t", "linear", {"base": 1.0})
    assert starts(Instance(130, [10] * 2, [60] * 2), "sglang-fcfs", SGLANG, cost=cost) == [0.0, 1.0]
    assert starts(Instance(122, [10] * 2, [60] * 2), "sglang-fcfs", SGLANG, cost=cost)[1] > 1.0


def test_sglang_orders_the_queue():
    """A holds the only seat; meanwhile three wait: B cold, C with 16 cached tokens, D with 32, of different outputs."""
    cached = [1, 2, 3]
    rows = [[*cached], [50, 51, 52], [1, 61, 62], [1, 2, 72]]
    instance = Instance(1000, [48] * 4, [5, 2, 3, 4], arrival_s=[0.0, 0.1, 0.2, 0.3], prefix=rows, prefix_chunk=16)
    config = SGLANG.replace(max_running=1)

    def order(name):
        return np.argsort(starts(instance, name, config)).tolist()

    assert order("sglang-fcfs") == [0, 1, 2, 3]
    assert order("sglang-lpm") == [0, 3, 2, 1]
    assert order("sglang-lof") == [0, 3, 2, 1]
    assert sorted(order("sglang-random")) == [0, 1, 2, 3]


def test_the_heavier_subtree_goes_first():
    """After A and B, three wait under A's prefix and one, who came first, under B's."""
    rows = [[1, 2], [5, 6], [5, 90], [1, 91], [1, 92], [1, 93]]
    arrival = [0.0, 0.0, 0.2, 0.3, 0.4, 0.5]
    instance = Instance(1000, [32] * 6, [4] * 6, arrival_s=arrival, prefix=rows, prefix_chunk=16)
    begun = np.array(starts(instance, "sglang-dfs-weight", SGLANG.replace(max_running=2)))
    assert begun[2] == begun.max()
    assert np.array(starts(instance, "sglang-fcfs", SGLANG.replace(max_running=2)))[2] < begun.max()


def test_of_equal_subtrees_the_one_that_was_cached_first_goes_first():
    """A and B run; one waits under B's prefix, and one, who came later, under A's: it takes A's seat."""
    rows = [[1, 2], [5, 6], [5, 90], [1, 91]]
    instance = Instance(1000, [32] * 4, [4, 6, 4, 4], arrival_s=[0.0, 0.0, 0.2, 0.3], prefix=rows, prefix_chunk=16)
    begun = starts(instance, "sglang-dfs-weight", SGLANG.replace(max_running=2))
    assert begun[3] < begun[2]


def test_the_postponed_stay_in_the_order_of_the_queue():
    """Behind one with 16 cached tokens and a cold one come two who share 48 with them: by arrival, not by cached tokens.

    The step has 128 tokens: 48 for the third, 64 for the first, the last 16 of the second, who is postponed, none for the last.
    """
    rows = [[1], [9, 10, 11, 12], [9, 10, 11, 13], [1, 20, 21, 22], [1, 20, 21, 23]]
    arrival = [0.0, 0.5, 0.5, 0.5, 0.5]
    instance = Instance(2000, [16, 64, 64, 64, 64], [1, 5, 5, 5, 5], arrival_s=arrival, prefix=rows, prefix_chunk=16)
    config = SGLANG.replace(token_budget=128)
    begun = starts(instance, "sglang-lpm", config, cost=CostModel("t", "linear", {"base": 1.0}))
    assert begun[1] == begun[2] == begun[3] < begun[4]


def test_who_would_find_its_prefix_after_another_goes_last():
    """Nothing is cached; the second shares 48 tokens with the first: it lets the third go before it, and then hits."""
    rows = [[1, 2, 3, 4], [1, 2, 3, 5], [7, 8, 9, 10]]
    instance = Instance(2000, [64] * 3, [3] * 3, prefix=rows, prefix_chunk=16)
    config = SGLANG.replace(max_running=2)
    assert [starts(instance, f"sglang-{name}", config) for name in ("lpm", "fcfs")] == [[0.0, 3.0, 0.0], [0.0, 0.0, 3.0]]


def test_longest_prefix_first_falls_back_to_arrival_in_a_long_queue():
    n = 140
    rows = [[1, 2]] + [[100 + i, 5] for i in range(n - 1)] + [[1, 900]]
    instance = Instance(100_000, [32] * (n + 1), [2] * (n + 1), arrival_s=[0.0] + [0.5] * n, prefix=rows, prefix_chunk=16)
    begun = np.array(starts(instance, "sglang-lpm", SGLANG.replace(max_running=1)))
    assert begun[-1] < begun[1:-1].max()  # it is last by arrival, and goes first once at most 128 wait
    assert begun[-1] > begun[1]


# --- the whole toy figure -----------------------------------------------------------------------------------------


def test_a_policy_of_your_own_runs_like_any_other():
    from opt.sim.engine import Policy

    def mine(requests, config, *, seed, only=1):
        def decide(view):
            batch = view.batch()
            batch.decode()
            if len(view.running) < only and len(view.waiting):
                batch.add(view.waiting.head)
            return batch

        return Policy(decide)

    timeline = opt.simulate(Instance(50, [4, 4], [3, 3]), mine, only=1)
    assert timeline.policy == "mine"
    assert timeline.workload.progress.finish_s.tolist() == [3.0, 6.0]
    assert timeline.metrics["completed"] == 2
    assert SECONDS.seconds(opt.core.cost.Load()) > 0
