"""The visible dictionary of policies. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.policies.vllm import vllm

__all__ = ["POLICIES", "Maker", "PolicyKind"]

Maker: TypeAlias = Callable[..., Policy]  # (requests, config, *, seed, **params)


@dataclass(frozen=True)
class PolicyKind:
    """An entry of `POLICIES`: how to make the policy, the engine it runs on by default, and one line about it."""

    make: Maker
    summary: str
    engine: EngineConfig = field(default_factory=EngineConfig)


POLICIES: dict[str, PolicyKind] = {
    "vllm-fcfs": PolicyKind(vllm, "vLLM V1: running first, then the queue by arrival; the last admitted is preempted"),
    "vllm-priority": PolicyKind(partial(vllm, priority=True), "vLLM V1 by (priority, arrival); the worst is preempted"),
}
