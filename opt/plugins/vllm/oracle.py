"""vLLM's own scheduler beside our vLLM policies, step by step: the same requests, the same settings, the same decisions.

And the other way round (`formed`): our batch formers inside vLLM beside the same ones in our engine.

Compared in every step: the tokens of every request, who is preempted, who ends, what those admitted find in the prefix cache,
and the blocks in use. Steps in which nothing is computed are put together with the next one on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from opt.core.cost import UNIT, CostModel, cost_model
from opt.core.instance import Instance
from opt.plugins.vllm.drive import Step, build, run
from opt.sim.batch import Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine
from opt.sim.policies import POLICIES
from opt.sim.policy import Policy
from opt.sim.workload import workload

__all__ = ["Comparison", "compare", "draw", "formed", "ours"]

FIELDS = ("preempted", "cached", "tokens", "finished", "used")


@dataclass(frozen=True)
class Comparison:
    """Two runs of the same requests.

    Args:
        steps: of vLLM.
        preemptions, cached_tokens: of vLLM.
        at: the first step that differs, None if none does.
        what: the first field that differs in it.
        there, here: its value in vLLM and in ours.
    """

    steps: int
    preemptions: int
    cached_tokens: int
    at: int | None = None
    what: str = ""
    there: Any = None
    here: Any = None

    @property
    def known(self) -> bool:
        """Whether the difference is of the kind that `opt.sim.policies.vllm` states: vLLM's cache has a second copy.

        Then somebody finds more there and nobody less, and whoever is admitted here is admitted there too.
        """
        if self.what != "cached" or not self.here.keys() <= self.there.keys():
            return False
        more = [self.there[i] - found for i, found in self.here.items()]
        return min(more, default=0) >= 0 and max(more, default=0) > 0


def draw(seed: int, **fixed: Any) -> tuple[Instance, dict[str, Any]]:
    """Return random requests and settings of `opt.plugins.vllm.drive.build`; `fixed` settings are not drawn."""
    rng = np.random.default_rng(seed)
    block, n = int(rng.choice([8, 16, 32])), int(rng.integers(30, 120))
    budget = int(rng.choice([64, 256, 1024]))
    settings: dict[str, Any] = {
        "block_size": block,
        "budget": budget,
        "seats": min(int(rng.choice([4, 16, 64])), budget),
        "policy": str(rng.choice(["fcfs", "priority"])),
        "max_chunk": int(rng.choice([0, 0, budget // 4])),
        "whole_prompt": bool(rng.random() < 0.7),
        "watermark": float(rng.choice([0, 0, 0.05])),
        "prefix_cache": bool(rng.random() < 0.8),
        "blocks": int(rng.integers(4000, 14000)) // (2 * block),
    } | fixed
    block = settings["block_size"]
    capacity = settings["blocks"] * block
    prompt = np.minimum(rng.integers(1, 300, n), capacity // 2)
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 200, 1500])), n))
    extra = _prefixes(rng, prompt, block) if rng.random() < 0.7 else {}
    output, rank = rng.integers(1, 80, n), rng.integers(0, 3, n)
    return Instance(capacity, prompt, output, arrival=arrival, priority=rank, **extra), settings


def _prefixes(rng: np.random.Generator, prompt: Any, block: int) -> dict[str, Any]:
    """Return hashes of prompts in four families that share up to ten blocks."""
    family, common = rng.integers(0, 4, len(prompt)), rng.integers(0, 10, len(prompt))
    rows = [
        [1000 * (int(family[i]) + 1) + k if k < common[i] else 10**6 + 1000 * i + k for k in range(-(-int(prompt[i]) // block))]
        for i in range(len(prompt))
    ]
    return {"prefix": rows, "prefix_chunk": block}


def compare(instance: Instance, settings: Mapping[str, Any]) -> Comparison:
    """Return how vLLM's scheduler and our policy of the same name serve the requests, up to the first difference."""
    return _compared(run(build(**settings), instance), ours(instance, settings)[0])


def formed(instance: Instance, settings: Mapping[str, Any], former: str, own: Mapping[str, Any]) -> Comparison:
    """Return how a batch former serves the requests, all there at the start, inside vLLM and in our engine.

    vLLM's clock is that of our engine, whose steps take what the cost model says; admission is by the prompt alone.

    Args:
        instance: the requests.
        settings: of `opt.plugins.vllm.drive.build`.
        former: its name in `opt.plugins.vllm.formation.FORMERS`.
        own: settings of `opt.plugins.settings`, with cost and locality.
    """
    from opt.plugins import vllm

    cost = cost_model(own["cost"]).with_locality(own["locality"])
    here, times = ours(instance, settings, f"feather-{former}", cost)
    scheduler = build(getattr(vllm, f"Feather{former.capitalize()}"), **settings, settings={**own, "look_ahead": False})
    taken = iter([*times, *times[-1:] * len(times)])
    scheduler.formation.now = lambda: next(taken)
    return _compared(run(scheduler, instance), here)


def _compared(stock: list[Step], simulated: list[Step]) -> Comparison:
    """Return two runs up to the first difference."""
    there, here = _joined(stock), _joined(simulated)
    figures = (len(there), sum(len(step.preempted) for step in there), sum(sum(step.cached.values()) for step in there))
    for at, (theirs, mine) in enumerate(zip(there, here, strict=False)):
        for name in FIELDS:
            if getattr(theirs, name) != getattr(mine, name):
                return Comparison(*figures, at, name, getattr(theirs, name), getattr(mine, name))
    if len(there) != len(here):
        return Comparison(*figures, min(len(there), len(here)), "steps", len(there), len(here))
    return Comparison(*figures)


def config_of(settings: Mapping[str, Any]) -> EngineConfig:
    """Return our engine's settings for vLLM's."""
    return EngineConfig(
        name="vllm",
        kv_tokens=settings["blocks"] * settings["block_size"],
        block_size=settings["block_size"],
        token_budget=settings["budget"],
        max_running=settings["seats"],
        max_chunk=settings["max_chunk"] or None,
        admit="prompt" if settings["whole_prompt"] else "chunk",
        watermark=settings["watermark"],
        prefix_cache=settings["prefix_cache"],
    )


def ours(
    instance: Instance, settings: Mapping[str, Any], policy: str = "", cost: CostModel = UNIT
) -> tuple[list[Step], list[float]]:
    """Return every step of our engine, and when it began, under our policy of the settings' name or another one."""
    load = workload(instance, round_s=1.0, lengths="output")
    config = config_of(settings)
    made = POLICIES[policy or f"vllm-{settings['policy']}"].make(load.requests, config, seed=0)
    steps: list[Step] = []
    times: list[float] = []
    finished: list[list[int]] = []

    def decide(view: View) -> Batch:
        before = set(view.running.tolist())
        finished.append(list(engine.finished))
        times.append(view.now)
        batch = made.decide(view)
        batch.repeat = 1
        tokens = dict.fromkeys(batch.singles.tolist(), 1) | {i: size for i, _, size in batch.chunks}
        base = {i: context for i, context, _ in batch.chunks}
        new = [i for i in tokens if i not in before or i in batch.preempted]
        cached = {i: int(base.get(i, view.progress.computed[i])) for i in new}
        steps.append(Step(tokens, sorted(batch.preempted), [], cached, engine.memory.used))
        return batch

    engine = Engine(load, Policy(decide, made.rank), config, cost)
    engine.submit(range(instance.n))
    engine.advance()
    finished.append(list(engine.finished))
    ends = [sorted(after[len(before) :]) for before, after in pairwise(finished)]
    return [replace(step, finished=end) for step, end in zip(steps, ends, strict=True)], times


def _joined(steps: list[Step]) -> list[Step]:
    """Put steps that compute nothing together with the next one."""
    found, waiting = [], list[int]()
    for step in steps:
        waiting = sorted(waiting + step.preempted)
        if step.tokens:
            found.append(replace(step, preempted=waiting))
            waiting = []
    return found
