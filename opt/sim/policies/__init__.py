"""The visible dictionary of policies. A new one is a function and a line here; see `opt.sim` on how to write it.

What every entry keeps, on any load (one conformance suite runs over all):

    P1. Every request that fits the engine alone is served, and the invariants of the engine hold at every step.
    P2. Blindness: decisions depend on announced outputs, never on true ones before a request ends.
    P3. Same load, same seed: the same decisions.
    P4. No idling beside work: a batch is empty only where it made room by preemption (`replay` waits for its rounds).
    P5. By arrival: under `vllm-fcfs`, `sarathi`, `orca`, `static`, `fcfs` and `sglang-fcfs` requests start in the order
        in which they came.
    P6. Under unit cost with exact tokens an order has the starts of the offline solver of its name, and `replay` those of
        its plan.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from opt.sim.config import MAX_TOKENS, EngineConfig
from opt.sim.engine import Policy
from opt.sim.policies.classic import orca, sarathi, static
from opt.sim.policies.orders import ROUNDS, order
from opt.sim.policies.replay import replay
from opt.sim.policies.sglang import ORDERS, sglang
from opt.sim.policies.vllm import vllm
from opt.solvers.orders import KEYS
from opt.solvers.registry import DESCRIPTIONS

__all__ = ["POLICIES", "Above", "Maker", "PolicyKind"]

Maker: TypeAlias = Callable[..., Policy]  # (requests, config, *, seed, **params)


@dataclass(frozen=True)
class PolicyKind:
    """An entry of `POLICIES`: how to make the policy, one line about it, and the engine it runs on by default."""

    make: Maker
    summary: str
    engine: EngineConfig = field(default_factory=EngineConfig)


@dataclass(frozen=True)
class Above:
    """A maker on a floor above, named rather than imported: it is loaded when it is first used.

    Args:
        module, function: where it is.
    """

    module: str
    function: str

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self._load())

    def _load(self) -> Maker:
        maker: Maker = getattr(importlib.import_module(self.module), self.function)
        return maker

    def __call__(self, *args: Any, **params: Any) -> Policy:
        """Make the policy."""
        return self._load()(*args, **params)


FEATHER = "opt.serve.feather.policies"
CHUNKING = "opt.serve.chunking"
SGLANG = EngineConfig(name="sglang", block_size=1, max_running=2048)
STRICT = EngineConfig(name="sarathi", token_budget=512)
WHOLE_PROMPTS = EngineConfig(name="whole prompts", prefix_cache=False, token_budget=MAX_TOKENS)

POLICIES: dict[str, PolicyKind] = {
    "vllm-fcfs": PolicyKind(
        partial(vllm, priority=False), "vLLM V1: running first, then the queue by arrival; the last admitted is preempted"
    ),
    "vllm-priority": PolicyKind(partial(vllm, priority=True), "vLLM V1 by (priority, arrival); the worst is preempted"),
    **{
        f"sglang-{name}": PolicyKind(partial(sglang, order=name), f"SGLang: prefill first, the queue by {name}", SGLANG)
        for name in ORDERS
    },
    "sarathi": PolicyKind(
        sarathi, "Sarathi-Serve: decodes, unfinished prompts, new ones, 512 tokens a step", EngineConfig(token_budget=512)
    ),
    "orca": PolicyKind(orca, "Orca: by arrival at every iteration, whole prompts, peaks set aside", WHOLE_PROMPTS),
    "static": PolicyKind(static, "a batch by arrival, peaks set aside, until all of it is done", WHOLE_PROMPTS),
    "feather-bandit": PolicyKind(Above(FEATHER, "bandit"), "Feather: prefix-homogeneous batches, add or stop learned by UCB1"),
    "feather-cht": PolicyKind(Above(FEATHER, "plain"), "fewest prompt chunks missing first, by the Chunked Hash Tree"),
    "feather-oracle": PolicyKind(Above(FEATHER, "oracle"), "one group (client) at a time, the largest next"),
    "feather-analytic": PolicyKind(Above(FEATHER, "analytic"), "prefix groups weighed by the cost model, waiting bounded"),
    "feather-seeded": PolicyKind(Above(FEATHER, "seeded"), "the bandit where the analytic former is not sure"),
    **{
        f"chunk-{size}": PolicyKind(
            partial(Above(CHUNKING, "fixed_chunk"), chunk=size), f"decodes, and {size} prompt tokens a step, by arrival"
        )
        for size in (64, 256, 1024)
    },
    "full-prefill": PolicyKind(Above(CHUNKING, "full_prefill"), "decodes, and one prompt a step, whole, by arrival"),
    "sarathi-2048": PolicyKind(sarathi, "Sarathi-Serve with 2048 tokens a step", EngineConfig(token_budget=2048)),
    "sloweave": PolicyKind(Above(CHUNKING, "sloweave"), "SLOWeave: the largest chunk of one prompt that keeps every gap"),
    "sloweave-shared": PolicyKind(
        partial(Above(CHUNKING, "sloweave"), prompts=MAX_TOKENS), "SLOWeave with chunks of as many prompts as fit"
    ),
    "sloweave-learned": PolicyKind(
        partial(Above(CHUNKING, "sloweave"), predictor="learned"), "SLOWeave with step times learned on the run, and a margin"
    ),
    "fair-batching": PolicyKind(Above(CHUNKING, "fair_batching"), "FairBatching: slack banked on an envelope from arrival"),
    "fair-batching-own": PolicyKind(
        partial(Above(CHUNKING, "fair_batching"), anchor="own"), "FairBatching on an envelope from the first token"
    ),
    "qoserve": PolicyKind(Above(CHUNKING, "qoserve"), "QoServe: banked slack, by due time and remaining work, late ones last"),
    "qoserve-own": PolicyKind(partial(Above(CHUNKING, "qoserve"), anchor="own"), "QoServe on an envelope from the first token"),
    "two-step": PolicyKind(Above(CHUNKING, "two_step"), "the chunk that lets two steps together prefill most, slack banked"),
    "banked-slack": PolicyKind(
        Above(CHUNKING, "banked_slack"), "banked slack, looked ahead, on the most prompts that can be in time; all gaps kept"
    ),
    "replay": PolicyKind(replay, "the starts of a plan, a round for each step", ROUNDS),
    **{key: PolicyKind(partial(order, key=key), f"{DESCRIPTIONS[key]}; head of line, exact look-ahead", ROUNDS) for key in KEYS},
    **{
        f"{key}-skip": PolicyKind(partial(order, key=key, rule="skip"), f"{DESCRIPTIONS[key]}; whoever fits starts", ROUNDS)
        for key in KEYS
    },
    "mc-sf": PolicyKind(partial(order, key="sof"), "the published name of sof", ROUNDS),
}
