"""The nouns: requests under one memory budget, a schedule of their starts, and what is proved about it.

The model (offline, in rounds). Request `i` has a prompt of `s_i >= 0` tokens, an output of `o_i >= 1` tokens and an
arrival round `a_i >= 0`. Started at round `x_i >= a_i` it is active in rounds `x_i + 1 .. x_i + o_i`, produces one
token in each, holds `s_i + k` tokens of KV cache in its k-th active round, and nothing once that round is over. In
every round the tokens held may not exceed `memory`. The objective is the total latency, the sum of
`x_i + o_i - a_i`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, Literal, TypeAlias

from opt.core.columns import IntArray, frozen
from opt.core.exact import exact_sum
from opt.core.instance import Instance

__all__ = ["Bound", "Instance", "KvMode", "Proposal", "Result", "Schedule", "StopReason"]

KvMode: TypeAlias = Literal["separate", "shared"]


@dataclass(frozen=True, eq=False)
class Schedule:
    """A start round for every request of an instance.

    Args:
        instance: the requests.
        start: (n,) int64 rounds.
        kv: "separate" counts every request's tokens; "shared" counts a common prefix chunk once while anyone holds it.
    """

    instance: Instance
    start: IntArray
    kv: KvMode = "separate"

    @cached_property
    def finish(self) -> IntArray:
        """Completion rounds `start + output` (n,)."""
        return frozen(self.start + self.instance.output)

    @cached_property
    def wait(self) -> IntArray:
        """Rounds each request waits before it starts (n,)."""
        return frozen(self.start - self.instance.arrival)

    @cached_property
    def total_latency(self) -> int:
        """The sum of `finish - arrival`, exact."""
        return exact_sum(self.wait) + exact_sum(self.instance.output)

    @property
    def makespan(self) -> int:
        """The last completion round (0 without requests)."""
        return int(self.finish.max(initial=0))


@dataclass(frozen=True)
class Bound:
    """A number no schedule's total latency can fall below, with the evidence.

    Args:
        value: the bound, an exact fraction.
        method: its name in `BOUNDS`.
        kv: "separate" holds when every request keeps its own tokens; "shared" also when common prefixes count once.
        certificate: what `certify` needs to re-establish `value`; `kind` is "closed-form" (recomputed), "prices" (a
            non-negative rational per round) or "ramps" (a rational per request, see `opt.core.ramps`).
    """

    value: Fraction
    method: str
    kv: KvMode = "separate"
    certificate: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ceil(self) -> int:
        """The bound rounded up: total latencies are integers."""
        return -(-self.value.numerator // self.value.denominator)


StopReason: TypeAlias = Literal["proved", "time_limit", "work_limit", "interrupted", "done"]


@dataclass(frozen=True)
class Proposal:
    """What a solver offers; nothing in it is believed before `certify` has looked.

    Args:
        start: (n,) start rounds, or None where nothing was found.
        bound: a lower bound the solver found on the way.
        exhausted: the solver claims that its search left out no better schedule.
        stop_reason: why it stopped; "done" for a heuristic that ran to its end.
        stats: figures worth keeping (JSON values).
        kv: the memory mode the starts are meant for.
    """

    start: IntArray | None
    bound: Bound | None = None
    exhausted: bool = False
    stop_reason: StopReason = "done"
    stats: Mapping[str, Any] = field(default_factory=dict)
    kv: KvMode = "separate"


@dataclass(frozen=True)
class Result:
    """A certified answer; only `certify` builds one.

    `status` is "optimal", "feasible", "infeasible" or "unknown" (no schedule, nothing proved). `proof` tells how an
    optimum is known: "certificate" (the bound, rechecked here, meets the value), "search" (the named solver claims
    exhaustion) or "none".
    """

    schedule: Schedule | None
    bound: Bound | None
    solver: str
    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    proof: Literal["certificate", "search", "none"]
    stop_reason: StopReason
    seconds: float = 0.0
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    stats: Mapping[str, Any] = field(default_factory=dict)

    @property
    def total_latency(self) -> int | None:
        """The certified total latency in rounds, or None without a schedule."""
        return None if self.schedule is None else self.schedule.total_latency

    @property
    def mean_latency(self) -> float | None:
        """Rounds per request, or None without a schedule or requests."""
        if self.schedule is None or not self.schedule.instance.n:
            return None
        return self.schedule.total_latency / self.schedule.instance.n

    @property
    def gap(self) -> float | None:
        """(total_latency - bound rounded up) / total_latency; 0 for an optimum, None where either side is missing."""
        if self.total_latency is None or self.bound is None:
            return 0.0 if self.status == "optimal" else None
        if self.status == "optimal" or not self.total_latency:
            return 0.0
        return (self.total_latency - self.bound.ceil) / self.total_latency

    @property
    def ratio(self) -> float | None:
        """total_latency / bound rounded up, or None where either is missing or the bound is 0."""
        if self.total_latency is None or self.bound is None or self.bound.ceil <= 0:
            return None
        return self.total_latency / self.bound.ceil
