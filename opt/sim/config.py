"""How an engine is set up: a frozen record, and the file `kvopt-engine/1` it is read from.

A file is a JSON object with "format": "kvopt-engine/1" and any of the fields of `EngineConfig`; what it leaves out has
the value the policy's own engine gives it. Unknown keys, keys that stand twice and values out of range are errors.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from opt.core.errors import InstanceError
from opt.core.source import TraceSource
from opt.core.strict_json import as_json, load_as, write_bytes

__all__ = ["ENGINE_FORMAT", "EngineConfig", "EngineFile", "read_engine", "write_engine"]

ENGINE_FORMAT = "kvopt-engine/1"
MAX_TOKENS = 2**31 - 1


@dataclass(frozen=True)
class EngineConfig:
    """One engine.

    Args:
        name: for messages and timelines.
        kv_tokens: KV capacity in tokens, rounded down to whole blocks; None takes the instance's memory.
        block_size: tokens in a block; 1 counts every token exactly.
        reserve_sampled: hold the slot of the token being made in the step that makes it, as the model of rounds does;
            engines write it one step later.
        prefix_cache: keep full chunks of prompts for reuse, where the instance has prefix hashes.
        token_budget: the most tokens a step computes, prompt tokens and decodes together.
        max_chunk: the most prompt tokens of one request in a step; None for no limit but the budget.
        max_running: the most requests that hold memory at once.
        admit: "prompt" admits a request when its whole prompt would fit now; "chunk" when its first chunk does.
        watermark: share of the capacity that an admission must leave free while others run.
        host_s, host_per_request_s: seconds the host adds to every step, and for each request in it.
        shared_reads, cache_tokens: which repeated reads of shared tokens are cheap, see `opt.sim.sharing`.

    Raises:
        InstanceError: a value is out of range, or two of them contradict each other.
    """

    name: str = "engine"
    kv_tokens: int | None = None
    block_size: int = 16
    reserve_sampled: bool = False
    prefix_cache: bool = True
    token_budget: int = 8192
    max_chunk: int | None = None
    max_running: int = 256
    admit: Literal["prompt", "chunk"] = "prompt"
    watermark: float = 0.0
    host_s: float = 0.0
    host_per_request_s: float = 0.0
    shared_reads: Literal["each", "all"] = "each"
    cache_tokens: int | None = None

    def __post_init__(self) -> None:
        for name in ("kv_tokens", "block_size", "token_budget", "max_chunk", "max_running", "cache_tokens"):
            value = getattr(self, name)
            if value is None and name in ("kv_tokens", "max_chunk", "cache_tokens"):
                continue
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKENS:
                raise InstanceError(f"{self.name}: {name} = {value!r}: must be an integer from 1 to {MAX_TOKENS}")
        if self.max_chunk is not None and self.max_chunk > self.token_budget:
            raise InstanceError(
                f"{self.name}: max_chunk = {self.max_chunk} exceeds token_budget = {self.token_budget}: no step could hold "
                "such a chunk; lower max_chunk or raise token_budget"
            )
        for name, high in (("watermark", 1.0), ("host_s", math.inf), ("host_per_request_s", math.inf)):
            value = getattr(self, name)
            if not (isinstance(value, int | float) and math.isfinite(value) and 0 <= value < high):
                limit = f"from 0 to below {high:g}" if math.isfinite(high) else "a finite number, at least 0"
                raise InstanceError(f"{self.name}: {name} = {value!r}: must be {limit}")
        if self.admit not in ("prompt", "chunk"):
            raise InstanceError(f"{self.name}: admit = {self.admit!r}: must be prompt or chunk")
        if self.shared_reads not in ("each", "all"):
            raise InstanceError(f"{self.name}: shared_reads = {self.shared_reads!r}: must be each or all")
        if self.kv_tokens is not None and self.kv_tokens < self.block_size:
            raise InstanceError(
                f"{self.name}: kv_tokens = {self.kv_tokens} is less than one block (block_size = {self.block_size})"
            )

    def replace(self, **changes: Any) -> EngineConfig:
        """Return this configuration with other values."""
        return dataclasses.replace(self, **changes)

    def host(self, requests: int) -> float:
        """Return the host's seconds in a step with so many requests."""
        return self.host_s + self.host_per_request_s * requests


@dataclass(frozen=True)
class EngineFile:
    """What an engine file says: changes to the policy's own engine, a policy, its parameters, a cost."""

    changes: Mapping[str, Any] = field(default_factory=dict)
    policy: str | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    cost: str | None = None


class _EngineFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["kvopt-engine/1"]
    policy: str | None = None
    params: dict[str, Any] = {}
    cost: str | None = None
    name: str | msgspec.UnsetType = msgspec.UNSET
    kv_tokens: int | msgspec.UnsetType = msgspec.UNSET
    block_size: int | msgspec.UnsetType = msgspec.UNSET
    reserve_sampled: bool | msgspec.UnsetType = msgspec.UNSET
    prefix_cache: bool | msgspec.UnsetType = msgspec.UNSET
    token_budget: int | msgspec.UnsetType = msgspec.UNSET
    max_chunk: int | msgspec.UnsetType | None = msgspec.UNSET
    max_running: int | msgspec.UnsetType = msgspec.UNSET
    admit: Literal["prompt", "chunk"] | msgspec.UnsetType = msgspec.UNSET
    watermark: float | msgspec.UnsetType = msgspec.UNSET
    host_s: float | msgspec.UnsetType = msgspec.UNSET
    host_per_request_s: float | msgspec.UnsetType = msgspec.UNSET
    shared_reads: Literal["each", "all"] | msgspec.UnsetType = msgspec.UNSET
    cache_tokens: int | msgspec.UnsetType | None = msgspec.UNSET


def read_engine(source: TraceSource) -> EngineFile:
    """Return what an engine file says; `-` is standard input.

    Raises:
        InstanceError: unreadable, another format, an unknown key, or a value out of range; the message names the place.
    """
    place, file = load_as(source, _EngineFile, ENGINE_FORMAT, "an engine file")
    cells = {name: cell for name, cell in msgspec.structs.asdict(file).items() if cell is not msgspec.UNSET}
    changes = {name: cell for name, cell in cells.items() if name not in ("format", "policy", "params", "cost")}
    try:
        EngineConfig(**{**changes, "token_budget": changes.get("token_budget", MAX_TOKENS)})
    except InstanceError as error:
        raise InstanceError(f"{place}: {error}") from None
    return EngineFile(changes, file.policy, file.params, file.cost)


def write_engine(config: EngineConfig, path: str | Path, *, policy: str | None = None, cost: str | None = None) -> None:
    """Write a configuration as an engine file, `-` for standard output."""
    named = {name: value for name, value in (("policy", policy), ("cost", cost)) if value is not None}
    fields = {name: value for name, value in dataclasses.asdict(config).items() if value is not None}
    write_bytes(as_json({"format": ENGINE_FORMAT, **named, **fields}), path)
