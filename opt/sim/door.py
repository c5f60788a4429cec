"""`simulate`: names in, a timeline out."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from opt.core.cost import UNIT, CostModel, Load, cost_model
from opt.core.errors import InstanceError
from opt.core.files import Plan
from opt.core.instance import Instance
from opt.core.model import Result, Schedule
from opt.sim.config import EngineConfig, EngineFile, read_engine
from opt.sim.engine import Engine
from opt.sim.policies import POLICIES, Maker, PolicyKind
from opt.sim.timeline import Timeline
from opt.sim.workload import Lengths, workload

__all__ = ["simulate"]


def simulate(
    thing: Instance | Plan | Schedule | Result,
    policy: str | Maker | None = None,
    cost: str | Path | CostModel | None = None,
    *,
    engine: EngineConfig | EngineFile | str | Path | None = None,
    seed: int = 0,
    lengths: Lengths = "auto",
    until_s: float | None = None,
    round_s: float | None = None,
    **params: Any,
) -> Timeline:
    """Return what happens when an engine serves the requests.

    Args:
        thing: an instance, or a plan, schedule or result, which is replayed unless a policy is named.
        policy: a name in `POLICIES`, or a function (requests, config, *, seed, **params) -> Policy. By default what the
            engine file names, `replay` for a plan, `vllm-fcfs` otherwise.
        cost: a name in `COSTS`, a cost file, or a model; by default what the engine file names, or `unit`.
        engine: settings, or an engine file, whose fields replace those of the policy's own engine.
        seed: same seed, same timeline.
        lengths: what policies are told of the outputs, see `opt.sim.workload.workload`.
        until_s: stop before the first step that starts then or later; requests that arrive later are not submitted.
        round_s: how long a round of `arrival` is. Under the unit cost it is one second.
        params: further arguments of the policy.

    Raises:
        ValueError: an unknown name or parameter, a value out of range, or a policy that makes no progress.

    >>> instance = Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
    >>> timeline = simulate(instance, "sof")
    >>> timeline
    Timeline(sof, cost unit: 4 of 4 requests completed, 13 s)
    >>> timeline.workload.progress.finish_s.tolist(), timeline.metrics["total_latency_s"]
    ([9.0, 13.0, 4.0, 3.0], 29.0)
    """
    instance, start = _instance_of(thing)
    file = _engine_of(engine)
    name = policy or file.policy or ("vllm-fcfs" if start is None else "replay")
    kind = _kind_of(name)
    given = {**file.params, **params} | ({"start": start} if name == "replay" and start is not None else {})
    config = kind.engine.replace(**file.changes)
    model = cost_model(cost or file.cost or UNIT)
    load = workload(instance, lengths=lengths, round_s=1.0 if round_s is None and model.name == UNIT.name else round_s)
    _check(kind.make, name, given, seed, until_s)
    made = kind.make(load.requests, config, seed=seed, **given)
    machine = Engine(load, made, config, model, kv_tokens=instance.memory)
    limit = np.inf if until_s is None else until_s
    machine.submit(np.flatnonzero(load.requests.arrival_s < limit).tolist())
    machine.advance(limit)
    shown = {key: value for key, value in given.items() if key != "start"}
    label = name if isinstance(name, str) else getattr(name, "__name__", "policy")
    return Timeline(instance, load, (machine,), label, model.name, seed, shown, until_s, _notes(machine))


def _instance_of(thing: Instance | Plan | Schedule | Result) -> tuple[Instance, Any]:
    """Return the instance, and the start rounds of a plan."""
    if isinstance(thing, Instance):
        return thing, None
    plan = thing.schedule if isinstance(thing, Result) else thing
    if plan is None:
        raise InstanceError("the result has no schedule, so there is nothing to replay")
    if plan.kv == "shared":
        raise InstanceError("a plan for shared prefixes cannot be replayed: the engine's memory counts every request's tokens")
    return plan.instance, plan.start


def _engine_of(engine: EngineConfig | EngineFile | str | Path | None) -> EngineFile:
    if engine is None:
        return EngineFile()
    if isinstance(engine, EngineConfig):
        return EngineFile({name: getattr(engine, name) for name in engine.__dataclass_fields__})
    return engine if isinstance(engine, EngineFile) else read_engine(engine)


def _kind_of(policy: str | Maker) -> PolicyKind:
    if not isinstance(policy, str):
        return PolicyKind(policy, "given by the caller")
    if policy not in POLICIES:
        close = difflib.get_close_matches(policy, list(POLICIES), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"unknown policy {policy!r}{hint}; `kvopt list policies` shows all")
    return POLICIES[policy]


def _check(make: Maker, name: str | Maker, params: Mapping[str, Any], seed: int, until_s: float | None) -> None:
    """Refuse parameters that the policy does not take, a missing plan, and a seed or an end out of range."""
    bound = make.keywords if isinstance(make, partial) else {}
    known = set(inspect.signature(make).parameters) - {"requests", "config", "seed", *bound}
    takes_any = any(p.kind is p.VAR_KEYWORD for p in inspect.signature(make).parameters.values())
    unknown = sorted(set(params) - known)
    if unknown and not takes_any:
        have = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise ValueError(f"policy {name} has no parameter {', '.join(unknown)}; {have}")
    if name == "replay" and "start" not in params:
        raise ValueError("policy replay needs a plan: simulate a plan file, or pass start=, a round for each request")
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**63:
        raise ValueError(f"seed = {seed!r}: must be an integer from 0 to 2**63 - 1")
    if until_s is not None and not 0 < until_s < np.inf:
        raise ValueError(f"until_s = {until_s!r}: must be a number of seconds above 0")


def _notes(engine: Engine) -> tuple[str, ...]:
    """Return in words where the figures rest on something that was not measured."""
    cost, config, runs = engine.cost, engine.config, engine.log.runs
    notes = []
    tokens = engine.memory.capacity * engine.memory.block
    if cost.memory is not None and tokens > cost.memory:
        machine = " ".join(str(cost.machine[key]) for key in ("gpu", "model") if key in cost.machine) or cost.name
        notes.append(
            f"{config.name} has {tokens:,} tokens of KV cache; the machine of cost {cost.name} ({machine}) has {cost.memory:,}"
        )
    if runs:
        most = Load(
            prefill_tokens=max(run.prefill_tokens for run in runs),
            prefill_sequences=max(run.chunks for run in runs),
            decodes=max(run.decodes for run in runs),
            kv_tokens=max(run.kv_tokens + run.decodes * (run.steps - 1) for run in runs),
        )
        notes += [f"beyond what cost {cost.name} was measured on: {what}" for what in cost.outside(most)]
    if engine.rejected:
        notes.append(f"{engine.rejected} requests were rejected: they would never fit {tokens:,} tokens")
    return tuple(notes)
