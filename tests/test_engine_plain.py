"""vLLM's policy on the engine against a plain reading of its rules: one step at a time, lists and dictionaries only."""

from __future__ import annotations

import math

import numpy as np
from engines import SECONDS, configs, loads, run
from hypothesis import given, settings

from opt.core.cost import batch as load_of
from opt.sim.policies import POLICIES


def plain(instance, config):
    """Finish times, steps, preemptions and recomputed tokens of vLLM V1 with first come, first served, without reuse."""
    block, spare, capacity = config.block_size, int(config.reserve_sampled), instance.memory // config.block_size
    arrival, prompt, output = instance.arrival_s.tolist(), instance.prompt.tolist(), instance.output.tolist()

    def blocks(tokens):
        return math.ceil(tokens / block)

    fits = [blocks(s + o - 1 + spare) <= capacity for s, o in zip(prompt, output, strict=True)]
    coming = sorted((arrival[i], i) for i in range(instance.n) if fits[i])
    computed, produced, held, reached = ([0] * instance.n for _ in range(4))
    waiting, running, now, steps, preemptions, recomputed = [], [], 0.0, 0, 0, 0
    finish = [math.nan] * instance.n

    def needs(i):
        return prompt[i] + produced[i] - computed[i]

    def hold(i, tokens):
        more = blocks(computed[i] + tokens + (spare if tokens == needs(i) else 0)) - held[i]
        if more > capacity - sum(held):
            return False
        held[i] += max(more, 0)
        return True

    def decoding(i):
        return produced[i] > 0 and needs(i) == 1

    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            waiting.append(coming.pop(0)[1])
        waiting.sort(key=lambda i: (arrival[i], i))
        work, budget, lost = {}, config.token_budget, False
        for phase in (True, False):  # decodes, then unfinished prompts
            for i in [i for i in running if decoding(i) is phase]:
                if i not in running or budget == 0:
                    continue
                size = min(needs(i), budget)
                while not hold(i, size):
                    victim = running.pop()
                    waiting.insert(0, victim)
                    held[victim], reached[victim], computed[victim] = 0, max(reached[victim], computed[victim]), 0
                    budget += work.pop(victim, 0)
                    preemptions, lost = preemptions + 1, True
                    if victim == i:
                        break
                else:
                    work[i] = size
                    budget -= size
        waiting.sort(key=lambda i: (arrival[i], i))
        while not lost and waiting and len(running) < config.max_running and budget > 0:
            i = waiting[0]
            if config.admit == "prompt" and blocks(needs(i) + spare) > capacity - sum(held):
                break
            size = min(needs(i), budget)
            if not hold(i, size):
                break
            running.append(waiting.pop(0))
            work[i] = size
            budget -= size
        if not work:
            assert lost
            continue
        chunks = [(size, computed[i]) for i, size in work.items() if not decoding(i)]
        lengths = [computed[i] + 1 for i in work if decoding(i)]
        real = sum(size > 0 for size, _ in chunks)
        now += config.host(len(lengths) + real) + SECONDS.seconds(load_of(chunks, lengths))
        steps += 1
        for i, size in work.items():
            recomputed += max(0, min(reached[i], computed[i] + size) - computed[i])
            computed[i] += size
            produced[i] += computed[i] == prompt[i] + produced[i]
            if produced[i] == output[i]:
                finish[i], held[i] = now, 0
                running.remove(i)
    return finish, steps, preemptions, recomputed


@settings(max_examples=150)
@given(loads(), configs)
def test_the_engine_is_its_plain_reading(instance, config):
    config = config.replace(prefix_cache=False, token_budget=max(config.token_budget, instance.n))
    engine = run(instance, POLICIES["vllm-fcfs"].make, config)
    finish, steps, preemptions, recomputed = plain(instance, config)
    assert (engine.steps, engine.preemptions, engine.recomputed) == (steps, preemptions, recomputed)
    assert np.allclose(engine.workload.progress.finish_s, finish, rtol=1e-12, atol=0, equal_nan=True)
