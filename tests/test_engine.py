"""The clock's engine: its numbered invariants, memory, and the faults that engines are known for."""

from __future__ import annotations

import math

import numpy as np
import pytest
from engines import SECONDS, chaos, check, checked, configs, loads, run
from hypothesis import given
from hypothesis import strategies as st

import opt
from opt.core.cost import UNIT, CostModel
from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.sim.batch import FOREVER
from opt.sim.config import EngineConfig, read_engine, write_engine
from opt.sim.engine import Engine, Policy, StalledError
from opt.sim.memory import Memory
from opt.sim.policies import POLICIES
from opt.sim.prefix import Prefixes
from opt.sim.workload import DONE, REJECTED, workload

ROUNDS = POLICIES["fcfs"].engine


@given(loads(), configs, st.integers(0, 999))
def test_any_legal_policy_keeps_the_invariants(instance, config, seed):
    """M1, M3, M4, E1, E2, E4, E5 under a policy that does anything."""
    engine = run(instance, checked(chaos(seed)), config)
    progress = engine.workload.progress
    assert (engine.memory.used, engine.count, len(engine.waiting), engine.queued) == (0, 0, 0, 0)
    done = progress.state == DONE
    assert (done | (progress.state == REJECTED)).all()
    assert (progress.produced[done] == instance.output[done]).all()
    arrival = instance.arrival_s[done]
    assert (arrival <= progress.start_s[done]).all()
    assert (progress.start_s[done] < progress.first_s[done]).all()
    assert (progress.first_s[done] <= progress.finish_s[done]).all()
    assert (progress.last_s[done] == progress.finish_s[done]).all()
    gaps = len(engine.log.single_gaps.values) + int(engine.log.weights.values.sum())
    assert gaps == int((instance.output[done] - 1).sum())  # a token is made once: every one after the first has one gap
    total = engine.log.single_gaps.values.sum() + (engine.log.equal_gaps.values * engine.log.weights.values).sum()
    assert total == pytest.approx((progress.finish_s - progress.first_s)[done].sum())


@given(loads(), configs, st.integers(0, 99))
def test_steps_in_one_go_are_the_same_steps_one_by_one(instance, config, seed):
    """E6, to the last bit."""

    def single(policy):
        def decide(view):
            batch = policy.decide(view)
            batch.repeat = 1
            return batch

        return Policy(decide, policy.rank)

    made = POLICIES["vllm-fcfs"].make
    together = run(instance, lambda r, c: made(r, c), config)
    alone = run(instance, lambda r, c: single(made(r, c)), config)
    assert together.steps == alone.steps
    assert np.array_equal(together.workload.progress.finish_s, alone.workload.progress.finish_s, equal_nan=True)
    assert np.array_equal(together.log.durations.values, alone.log.durations.values)


@given(loads(), configs, st.lists(st.floats(0.001, 1.0), max_size=6))
def test_stopping_and_going_on_changes_nothing(instance, config, stops):
    """An engine advanced in pieces is the engine advanced at once; no step starts at or after the stop."""
    whole = run(instance, lambda r, c: POLICIES["vllm-fcfs"].make(r, c), config)
    load = workload(instance)
    pieces = Engine(load, POLICIES["vllm-fcfs"].make(load.requests, config), config, SECONDS, kv_tokens=instance.memory)
    pieces.submit(range(instance.n))
    for stop in sorted(stops):
        pieces.advance(stop)
        assert all(run.start_s < stop for run in pieces.log.runs)
        check(pieces)
    pieces.advance()
    assert np.array_equal(whole.workload.progress.finish_s, load.progress.finish_s, equal_nan=True)


def test_what_is_refused_leaves_no_trace():
    """M2: 10 blocks of 4; 30 tokens are 8 blocks, and 12 more do not fit beside them."""
    requests = workload(Instance(100, [30, 30], [5, 5])).requests
    memory = Memory(10, 4, 0, np.zeros(2, np.int64), True, Prefixes.of(requests, 4))
    assert memory.take(0, 30)
    before = (memory.used, memory.blocks.copy().tolist(), memory.idle_blocks)
    assert not memory.take(1, 12)
    assert (memory.used, memory.blocks.tolist(), memory.idle_blocks) == before == (8, [8, 0], 0)
    assert memory.take(1, 8)
    assert memory.available == 0


def test_partial_blocks_go_first_and_the_deepest_of_a_request_before_its_prefix():
    """Two prompts of 10 tokens share their first 4: 2 full units each and a partial block."""
    instance = Instance(100, [10, 10, 9], [1, 1, 1], prefix=[[1, 2, 3], [1, 5, 6], [7, 8, 9]], prefix_chunk=4)
    requests = workload(instance).requests
    memory = Memory(6, 4, 0, np.zeros(3, np.int64), True, Prefixes.of(requests, 4))
    assert memory.take(0, 10)
    memory.register(0, 10)
    found = memory.match(1)
    assert (found.units, found.unheld, found.tokens) == (1, 0, 4)
    assert memory.take(1, 10, found)  # three blocks, one of them shared
    memory.register(1, 10)
    assert memory.used == 5
    memory.release(0, 10)
    memory.release(1, 10)
    shared, first, second = memory.prefixes.units(0)[0], memory.prefixes.units(0)[1], memory.prefixes.units(1)[1]
    assert (memory.used, list(memory.idle)) == (0, [first, second, shared])  # partial blocks are free, the prefix goes last
    assert memory.take(2, 9)  # three blocks: the three free ones, nothing cached is lost
    assert list(memory.idle) == [first, second, shared]
    assert memory.take(2, 13)
    assert list(memory.idle) == [second, shared]
    assert memory.present.tolist() == [name in (second, shared) for name in range(memory.prefixes.distinct)]


def test_units_are_multiples_of_block_and_chunk_and_no_hit_explains_itself():
    """240 shared tokens: 15 chunks of 16. With blocks of 784 none is a full unit; with blocks of 16 all but one are."""
    shared = list(range(15))
    rows = [[*shared, *range(100 * i, 100 * i + 5)] for i in (1, 2)]
    instance = Instance(4000, [320, 320], [3, 3], arrival_s=[0.0, 5.0], prefix=rows, prefix_chunk=16)
    for block, hit in ((784, 0), (16, 240)):
        found = opt.simulate(instance, "vllm-fcfs", SECONDS, engine=EngineConfig(block_size=block)).metrics
        assert (found["shareable_tokens"], found["cached_tokens"]) == (240, hit)


@given(st.integers(0, 10**6))
def test_what_is_found_is_the_longest_common_prefix_with_anybody_before(seed):
    """With room for all, the cached tokens are those of a plain comparison, chunk by chunk; one token is always left."""
    rng = np.random.default_rng(seed)
    n, chunk = int(rng.integers(1, 12)), 4
    words = [rng.integers(0, 2, int(rng.integers(1, 8))).tolist() for _ in range(n)]
    rows = [[hash(tuple(word[: k + 1])) % 2**64 for k in range(len(word))] for word in words]
    prompt = [chunk * len(word) - int(rng.integers(0, chunk)) for word in words]
    instance = Instance(10_000, prompt, [2] * n, arrival_s=np.arange(n) * 100.0, prefix=rows, prefix_chunk=chunk)
    cached = opt.simulate(instance, "vllm-fcfs", engine=EngineConfig(block_size=chunk)).workload.progress.cached
    for i in range(n):
        full = (prompt[i] - 1) // chunk
        common = max((_common(words[i][:full], words[j][: prompt[j] // chunk]) for j in range(i)), default=0)
        assert cached[i] == common * chunk


def _common(one, other):
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


def test_a_prompt_found_whole_still_computes_its_last_token():
    instance = Instance(400, [32, 32], [4, 4], arrival_s=[0.0, 9.0], prefix=[[1, 2], [1, 2]], prefix_chunk=16)
    found = opt.simulate(instance, "vllm-fcfs", SECONDS)
    assert found.workload.progress.cached.tolist() == [0, 16]


def test_a_preempted_request_finds_its_own_blocks_unless_they_were_overwritten():
    """Ten blocks of one token, two requests (3 + 5): both fit up to 5 + 5; then the second gives way."""
    instance = Instance(10, [3, 3], [5, 5])
    config = EngineConfig(block_size=1)
    kept = opt.simulate(instance, "vllm-fcfs", UNIT, engine=config).metrics
    lost = opt.simulate(instance, "vllm-fcfs", UNIT, engine=config.replace(prefix_cache=False)).metrics
    assert kept["preemptions"] == lost["preemptions"] == 1
    # It is preempted with 5 tokens computed; the first request takes two blocks more, the deepest, before it ends.
    assert (lost["recomputed_tokens"], kept["recomputed_tokens"]) == (5, 2)


def test_the_convention_of_the_token_being_made():
    """s + k tokens in the k-th step where its slot is held, one less where engines write it a step later."""
    instance = Instance(30, [7], [3])
    peaks = [run(instance, POLICIES["fcfs"].make, ROUNDS.replace(reserve_sampled=held)).memory.peak for held in (True, False)]
    assert peaks == [10, 9]
    assert run(Instance(30, [7], [1]), POLICIES["fcfs"].make, ROUNDS).memory.peak == 8


def test_an_empty_prompt_makes_its_tokens():
    engine = run(Instance(9, [0, 4], [3, 2]), POLICIES["vllm-fcfs"].make, EngineConfig(block_size=1), UNIT)
    assert engine.workload.progress.finish_s.tolist() == [3.0, 2.0]


def test_who_can_never_fit_is_rejected_and_counted():
    load = workload(Instance(100, [50, 5, 60], [10, 5, 5]))
    engine = Engine(load, POLICIES["vllm-fcfs"].make(load.requests, EngineConfig()), EngineConfig(), kv_tokens=32)
    engine.submit(range(3))
    engine.advance()
    assert (engine.submitted, engine.rejected, engine.completed) == (3, 2, 1)
    check(engine)


def test_a_policy_that_leaves_work_undone_is_an_error_not_a_hang():
    """E7."""
    with pytest.raises(StalledError, match=r"policy lazy leaves the engine idle .* \(1 waiting, 0 running"):
        run(Instance(9, [3], [2]), Policy(lambda view: view.batch(), name="lazy"), EngineConfig(block_size=1))


def test_a_policy_that_preempts_without_end_is_an_error_not_a_hang():
    """E8."""

    def decide(view):
        batch = view.batch()
        for i in view.running.tolist():
            batch.preempt(i)
        batch.add(view.waiting.head, 1)
        return batch

    with pytest.raises(StalledError, match="preempted 1005 times without a token"):
        run(Instance(9, [3], [2]), Policy(decide), EngineConfig(block_size=1, prefix_cache=False))


def test_a_policy_cannot_schedule_what_is_not_there_nor_preempt_a_chunk():
    def late(view):
        batch = view.batch()
        batch.add(1)
        return batch

    with pytest.raises(ValueError, match=r"request 1 \(index 1\) is neither waiting nor running"):
        run(Instance(9, [3, 3], [2, 2], arrival_s=[0.0, 1.0]), Policy(late), EngineConfig(block_size=1))

    def regret(view):
        batch = view.batch()
        batch.add(0)
        batch.preempt(0)
        return batch

    with pytest.raises(ValueError, match="has a chunk in this batch"):
        run(Instance(9, [3], [2]), Policy(regret), EngineConfig(block_size=1))


def test_time_is_what_the_cost_says_plus_the_host():
    """One request, prompt 4, output 3: a prefill of 4 tokens, then decodes that read 5 and 6 tokens."""
    cost = CostModel("t", "linear", {"base": 1.0, "per_prefill_token": 0.5, "per_decode": 0.25, "per_kv_token": 0.125})
    config = EngineConfig(block_size=1, host_s=10.0, host_per_request_s=2.0)
    engine = run(Instance(20, [4], [3]), POLICIES["vllm-fcfs"].make, config, cost)
    assert engine.log.durations.values.tolist() == [12 + 1 + 2, 12 + 1 + 0.25 + 5 / 8, 12 + 1 + 0.25 + 6 / 8]
    assert engine.now == engine.workload.progress.finish_s[0] == 12 * 3 + 3 + 2 + 0.5 + 11 / 8


def test_shared_tokens_are_read_again_at_the_price_of_locality():
    """Three requests share 8 of 12 tokens: of 3 * 13 tokens read in the first decode, 16 are repeats."""
    rows = [[1, 2, 10 + i] for i in range(3)]
    instance = Instance(200, [12] * 3, [2] * 3, prefix=rows, prefix_chunk=4)
    config = EngineConfig(block_size=4)
    spent = {}
    for price in (1.0, 0.25):
        cost = CostModel("t", "linear", {"base": 1.0, "per_kv_token": 1.0}, locality=price)
        engine = run(instance, POLICIES["vllm-fcfs"].make, config, cost)
        spent[price] = engine.log.durations.values[-1]
    assert spent == {1.0: 1 + 39, 0.25: 1 + 39 - 0.75 * 16}


@given(loads(), configs, st.floats(0.001, 0.02))
def test_the_largest_chunk_is_the_largest_by_trying_all(instance, config, limit):
    """Sizes are tried one by one; a chunk one token larger would take too long, or there is no more to compute."""
    found = []

    def decide(view):
        batch = view.batch()
        batch.decode(view.ready()[: batch.budget])
        for i in [*view.partial(), *list(view.waiting)[:1]]:
            most = min(view.needs(i), batch.budget, config.max_chunk or 10**9)
            fitting = [size for size in range(1, most + 1) if batch.seconds(i, size) <= limit]
            found.append((batch.largest(i, limit), max(fitting, default=0)))
            batch.add(i)
        if not len(batch) and len(view.running):
            batch.preempt(int(view.running[-1]))
        return batch

    run(instance, Policy(decide), config)
    assert all(ours == plain for ours, plain in found)


def test_a_request_moves_from_one_engine_to_another():
    """A prefill engine makes the first token; a decode engine gets it with its keys and values, and goes on."""
    load = workload(Instance(100, [20, 10], [4, 2]))
    config = EngineConfig(block_size=1)
    first, second = (Engine(load, POLICIES["vllm-fcfs"].make(load.requests, config), config, UNIT, kv_tokens=50) for _ in "pd")
    first.submit([0], tokens=1)
    first.advance()
    assert (first.finished, first.now, first.memory.used, load.progress.produced[0]) == ([0], 1.0, 0, 1)
    assert math.isnan(load.progress.finish_s[0])
    second.submit([0], at_s=1.5, computed=20)
    second.submit([1], at_s=2.0)
    second.advance()
    assert load.progress.finish_s.tolist() == [4.5, 4.5]  # decodes end at 2.5, 3.5, 4.5; the other: 3.5, 4.5
    assert second.log.runs[0].prefill_tokens == 0
    assert second.memory.peak == 23 + 11
    assert load.progress.preemptions.sum() == second.recomputed == 0


def test_memory_stays_taken_while_it_is_transferred():
    load = workload(Instance(100, [20, 25], [4, 1]))
    config = EngineConfig(block_size=1)
    engine = Engine(load, POLICIES["vllm-fcfs"].make(load.requests, config), config, UNIT, kv_tokens=40)
    engine.submit([0], tokens=1, keep=True)
    engine.submit([1], at_s=0.5)
    engine.advance(3.0)
    assert (engine.finished, engine.memory.used, engine.pending_tokens, engine.count) == ([0], 20, 25, 0)
    with pytest.raises(ValueError, match="holds nothing here"):
        engine.release(1)
    engine.release(0)
    engine.advance()
    assert (engine.finished, engine.memory.used) == ([0, 1], 0)


def test_a_waiting_request_can_be_withdrawn_and_sent_elsewhere():
    load = workload(Instance(100, [20, 10], [4, 2]))
    config = EngineConfig(block_size=1, max_running=1)
    here, there = (Engine(load, POLICIES["vllm-fcfs"].make(load.requests, config), config, UNIT, kv_tokens=50) for _ in "ab")
    here.submit([0, 1])
    here.advance(1.0)
    here.withdraw(1)
    there.submit([1], at_s=here.now)
    here.advance()
    there.advance()
    assert (here.submitted, here.completed, there.completed) == (1, 1, 1)
    assert load.progress.finish_s.tolist() == [4.0, 3.0]
    with pytest.raises(ValueError, match="was submitted before"):
        there.submit([1])


def test_limits_that_contradict_each_other_are_refused_with_both_names():
    with pytest.raises(InstanceError, match=r"max_chunk = 600 exceeds token_budget = 512"):
        EngineConfig(max_chunk=600, token_budget=512)
    for bad in ({"max_chunk": 0}, {"token_budget": -1}, {"block_size": 0}, {"max_running": True}, {"watermark": 1.0}):
        with pytest.raises(InstanceError, match=next(iter(bad))):
            EngineConfig(**bad)
    with pytest.raises(InstanceError, match="less than one block"):
        Engine(load := workload(Instance(9, [1], [1])), Policy(lambda view: view.batch()), EngineConfig(), kv_tokens=9)
    assert load.requests.n == 1


def test_engine_files_are_read_strictly(tmp_path):
    path = tmp_path / "engine.json"
    write_engine(EngineConfig(kv_tokens=5000, max_chunk=512), path, policy="sarathi", cost="unit")
    file = read_engine(path)
    assert (file.policy, file.cost, file.changes["kv_tokens"], file.changes["max_chunk"]) == ("sarathi", "unit", 5000, 512)
    wrong = {
        '{"format": "kvopt-engine/1", "total_kv_block": 50}': "unknown field `total_kv_block`",
        '{"format": "kvopt-engine/1", "block_size": 16, "block_size": 32}': "stands twice",
        '{"format": "kvopt-engine/1", "block_size": 16.5}': r"\$\.block_size",
        '{"format": "kvopt-engine/1", "max_chunk": 9000, "token_budget": 8192}': "max_chunk = 9000 exceeds token_budget = 8192",
        '{"format": "kvopt-engine/1", "host_s": NaN}': "host_s",
        '{"format": "kvopt-plan/1"}': "not an engine file",
        "[]": "not an engine file",
    }
    for text, message in wrong.items():
        path.write_text(text)
        with pytest.raises(InstanceError, match=message):
            read_engine(path)


def test_a_chunk_larger_than_the_default_budget_needs_a_larger_budget(tmp_path):
    """A file may change one of the two; together with the policy's own engine they still have to agree."""
    path = tmp_path / "engine.json"
    path.write_text('{"format": "kvopt-engine/1", "max_chunk": 600}')
    with pytest.raises(InstanceError, match=r"max_chunk = 600 exceeds token_budget = 512"):
        opt.simulate(Instance(9, [3], [2]), "sarathi", engine=path)


def test_forever_is_longer_than_any_run():
    """A batch of decodes that never changes is run in pieces, and none is lost: 1 + 9,999 tokens."""
    engine = run(Instance(10_010, [1], [10_000]), POLICIES["vllm-fcfs"].make, EngineConfig(block_size=1), UNIT)
    assert (engine.steps, engine.now, len(engine.log.runs)) == (10_000, 10_000.0, 4)
    assert FOREVER > 10_000
