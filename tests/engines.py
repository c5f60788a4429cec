"""Random loads, a policy that does anything legal, and checks at every step: shared by the tests of the clock."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from opt.core.cost import UNIT, CostModel
from opt.core.instance import Instance
from opt.sim.batch import FOREVER
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine, Policy
from opt.sim.workload import RUNNING, WAITING, workload

SECONDS = CostModel(
    "toy", "max", {"base": 0.004, "floor": 0.003, "per_token": 2e-5, "per_decode": 1e-4, "per_kv_token": 1e-6, "per_pair": 1e-8}
)


@st.composite
def loads(draw, most=8):
    """A small instance with arrivals in seconds, and often shared prefixes in chunks of 4 tokens."""
    n = draw(st.integers(1, most))
    prompt = draw(st.lists(st.integers(0, 24), min_size=n, max_size=n))
    output = draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    arrival = draw(st.lists(st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.5]), min_size=n, max_size=n))
    families = draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    extra = {}
    if draw(st.booleans()):
        common = draw(st.integers(0, 4))
        rows = [[1000 * (families[i] if k < common else 10 + i) + k for k in range(-(-prompt[i] // 4))] for i in range(n)]
        extra = {"prefix": rows, "prefix_chunk": 4}
    memory = max(p + o for p, o in zip(prompt, output, strict=True)) + draw(st.integers(4, 40))
    return Instance(memory, prompt, output, arrival_s=arrival, **extra)


configs = st.builds(
    EngineConfig,
    block_size=st.sampled_from([1, 2, 4]),
    reserve_sampled=st.booleans(),
    token_budget=st.sampled_from([3, 8, 1000]),
    max_running=st.sampled_from([1, 3, 100]),
    admit=st.sampled_from(["prompt", "chunk"]),
    host_s=st.sampled_from([0.0, 0.001]),
)


def chaos(seed):
    """A policy that takes random legal steps, but sometimes only decodes, and preempts when nothing else is left to do."""
    rng = np.random.default_rng(seed)

    def decide(view):
        batch = view.batch()
        if rng.random() < 0.6:
            if batch.decode() and rng.random() < 0.5:
                batch.repeat = int(rng.integers(1, 5)) if rng.random() < 0.5 else FOREVER
                if len(batch):
                    return batch
        elif len(view.running):
            batch.decode(np.array([i for i in view.ready() if rng.random() < 0.5], np.int64))
        for i in rng.permutation(view.partial() + list(view.waiting)).tolist():
            if rng.random() < 0.7:
                batch.add(i, None if rng.random() < 0.5 else int(rng.integers(1, 9)))
        if len(view.running) and (rng.random() < 0.05 or not len(batch)):
            chunked = {i for i, _, _ in batch.chunks}
            free = [i for i in view.running.tolist() if i not in chunked]
            if len(free) > 1:
                batch.preempt(free[-1])
        if not len(batch):
            batch.wake_s = view.now + 0.001
        return batch

    return Policy(decide, name="chaos")


def checked(policy, seen=None):
    """The same policy, with the invariants of memory, conservation and limits checked around every decision."""

    def decide(view):
        engine = view._engine
        check(engine)
        batch = policy.decide(view)
        check(engine, batch)
        if seen is not None:
            seen.append((view.now, sorted(batch.singles.tolist()), list(batch.chunks), list(batch.preempted)))
        return batch

    return Policy(decide, policy.rank, policy.name)


def check(engine, batch=None):
    """The invariants M1, M4, E4, E5 of an engine as it stands."""
    memory, progress = engine.memory, engine.workload.progress
    assert 0 <= memory.used <= memory.capacity
    assert memory.used + memory.idle_blocks <= memory.capacity
    assert memory.idle_blocks == sum(memory.idle.values())
    linked = int(memory.linked.sum()) * memory.per_unit
    assert memory.used == int(memory.blocks.sum()) - linked + len(memory.held) * memory.per_unit
    check_chains(memory)
    running = engine.running[: engine.count]
    assert len(set(running.tolist())) == engine.count <= engine.config.max_running
    assert (progress.state[running] == RUNNING).all()
    assert all(progress.state[i] == WAITING for i in engine.waiting)
    assert engine.submitted == engine.completed + engine.rejected + engine.queued + engine.count
    for i in running.tolist():
        assert memory.blocks[i] * memory.block >= progress.computed[i]
    if batch is not None:
        who = batch.singles.tolist() + [i for i, _, _ in batch.chunks]
        assert len(set(who)) == len(who)
        assert set(who) <= set(running.tolist())
        assert len(batch.singles) + sum(size for _, _, size in batch.chunks) <= engine.config.token_budget
        assert batch.budget == engine.config.token_budget - len(batch.singles) - sum(size for _, _, size in batch.chunks)


def check_chains(memory):
    """M4: whoever is cached has all its predecessors cached."""
    if memory.prefixes is None:
        return
    cached = set(memory.held) | {key for key in memory.idle if not isinstance(key, tuple)}
    for i in range(len(memory.blocks)):
        names = [name in cached for name in memory.prefixes.units(i)]
        assert names == sorted(names, reverse=True)


def run(instance, policy, config, cost=SECONDS, **how):
    """An engine that has served the whole instance."""
    load = workload(instance, round_s=1.0 if cost is UNIT else None, **how)
    made = policy(load.requests, config) if not isinstance(policy, Policy) else policy
    engine = Engine(load, made, config, cost, kv_tokens=instance.memory)
    engine.submit(range(instance.n))
    engine.advance()
    return engine
