"""A finished (or stopped) simulation: what every request lived through, and every step of every engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.instance import Instance
from opt.sim.engine import Engine
from opt.sim.workload import DONE, FUTURE, REJECTED, RUNNING, WAITING, Workload

__all__ = ["STATES", "Timeline"]

STATES = {FUTURE: "future", WAITING: "waiting", RUNNING: "running", DONE: "completed", REJECTED: "rejected"}


@dataclass(frozen=True, eq=False, repr=False)
class Timeline:
    """What happened. Times are seconds from the start of the trace; NaN where something did not happen.

    Args:
        instance: the requests.
        workload: their columns and their progress.
        engines: the engines with their logs.
        policy, cost: names.
        seed, params: what the policy was made with.
        until_s: when the simulation was stopped, None if it ran to its end.
        notes: what a reader of the figures should know, one line each.
    """

    instance: Instance
    workload: Workload
    engines: tuple[Engine, ...]
    policy: str
    cost: str
    seed: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    until_s: float | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        done = f"{len(self.completed):,} of {len(self.submitted):,} requests completed"
        return f"Timeline({self.policy}, cost {self.cost}: {done}, {self.end_s:.6g} s)"

    @property
    def submitted(self) -> IntArray:
        """The requests that came before the end."""
        arrival = self.workload.requests.arrival_s
        return np.flatnonzero(arrival < (np.inf if self.until_s is None else self.until_s))

    @property
    def completed(self) -> IntArray:
        """The requests that have all their tokens."""
        return np.flatnonzero(self.workload.progress.state == DONE)

    @cached_property
    def end_s(self) -> float:
        """When the last step ended, or the simulation was stopped with work left."""
        ends = [engine.log.runs[-1].start_s + _tail(engine) for engine in self.engines if engine.log.runs]
        left = self.until_s is not None and any(engine.busy for engine in self.engines)
        return max([*ends, self.until_s or 0.0] if left else ends, default=0.0)

    @property
    def ttft_s(self) -> FloatArray:
        """(n,) seconds from arrival to the first token."""
        return self.workload.progress.first_s - self.workload.requests.arrival_s

    @property
    def e2e_s(self) -> FloatArray:
        """(n,) seconds from arrival to the last token."""
        return self.workload.progress.finish_s - self.workload.requests.arrival_s

    @property
    def tpot_s(self) -> FloatArray:
        """(n,) seconds for each token after the first: (finish - first token) / (output - 1); NaN for one token."""
        progress = self.workload.progress
        after_first = np.where(self.workload.output > 1, self.workload.output - 1.0, np.nan)
        return (progress.finish_s - progress.first_s) / after_first

    @property
    def metrics(self) -> dict[str, Any]:
        """The figures of `kvopt simulate --json`; see `opt.sim.metrics`."""
        from opt.sim.metrics import metrics

        return metrics(self)

    @cached_property
    def gaps_s(self) -> tuple[FloatArray, IntArray]:
        """Every gap between two tokens of a request, sorted, and how many gaps each value stands for."""
        logs = [engine.log for engine in self.engines]
        values = np.concatenate([column for log in logs for column in (log.single_gaps.values, log.equal_gaps.values)])
        counts = [column for log in logs for column in (np.ones(len(log.single_gaps.values)), log.weights.values)]
        order = np.argsort(values, kind="stable")
        return values[order], np.concatenate(counts).astype(np.int64)[order]

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each request, None where something did not happen."""
        requests, progress = self.workload.requests, self.workload.progress
        columns: dict[str, list[Any]] = {
            "id": list(requests.ids),
            "state": [STATES[state] for state in progress.state.tolist()],
            "prompt": requests.prompt.tolist(),
            "output": self.workload.output.tolist(),
            "produced": progress.produced.tolist(),
            "cached": progress.cached.tolist(),
            "preemptions": progress.preemptions.tolist(),
        }
        times = {
            "arrival_s": requests.arrival_s,
            "start_s": progress.start_s,
            "first_token_s": progress.first_s,
            "finish_s": progress.finish_s,
            "ttft_s": self.ttft_s,
            "tpot_s": self.tpot_s,
            "e2e_s": self.e2e_s,
            "max_gap_s": np.where(progress.produced > 1, progress.max_gap_s, np.nan),
        }
        columns |= {name: [None if cell != cell else cell for cell in column.tolist()] for name, column in times.items()}
        return [dict(zip(columns, cells, strict=True)) for cells in zip(*columns.values(), strict=True)]


def _tail(engine: Engine) -> float:
    """Return the seconds of an engine's last run of steps."""
    return float(engine.log.durations.values[-engine.log.runs[-1].steps :].sum())
