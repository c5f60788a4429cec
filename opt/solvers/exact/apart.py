"""What all exact solvers share: a good schedule to start from, a worker to search in, and the best of all it reports.

The portfolio's plans and a brief local search come first, here: a good incumbent prunes, and something is always at
hand. The search then runs in a worker (`opt.solvers.worker`), which reports every better schedule and every better bound
at once. Each schedule is checked by `check_schedule` before it counts, so a rounding error in a foreign solver can cost a
claim of optimality but never an answer.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from opt.core.certify import check_schedule
from opt.core.clock import now
from opt.core.columns import IntArray
from opt.core.errors import CertificateError
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Proposal, StopReason
from opt.solvers.portfolio import incumbent
from opt.solvers.worker import Outcome, run_apart

__all__ = ["MEMORY_MB", "Progress", "Refusal", "Task", "Tell", "positive", "solve_apart"]

Tell: TypeAlias = Callable[[tuple[str, Any]], None]  # ("start", (n,) starts) or ("bound", an integer below every total latency)
Task: TypeAlias = Callable[..., Proposal]  # (tell, instance, start, deadline, seed, settings)
Progress: TypeAlias = Callable[[int | None, int | None], None]  # (incumbent, lower bound), both total latencies
AtOnce: TypeAlias = Callable[[Instance, IntArray, float], Proposal | None]  # (instance, start, deadline)
Refusal: TypeAlias = Callable[[Instance, IntArray | None], str | None]

MEMORY_MB = 2000  # what a search may take, unless its caller says otherwise


def positive(name: str, value: object) -> int:
    """Return a parameter that must be an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} = {value!r}: must be an integer, at least 1")
    return value


def solve_apart(
    task: Task,
    instance: Instance,
    refusal: Refusal,
    *,
    seed: int,
    time_limit: float | None,
    on_progress: Progress | None,
    settings: Mapping[str, Any],
    at_once: AtOnce | None = None,
) -> Proposal:
    """Return the best schedule of the portfolio and of `task` in a worker, within the time limit.

    Args:
        task: the search; a module-level function.
        instance: the requests.
        refusal: says why the method does not apply, if so: first without a schedule, then with one to beat. The answer
            is then the portfolio's, claims nothing, and gives the reason in `stats["refused"]`.
        seed, time_limit: as everywhere; the limit covers the portfolio, the start of the worker and the search.
        on_progress: told the incumbent and the bound whenever one of them improves.
        settings: passed on to the task.
        at_once: tried before in this process, for tenths of a second: starting a worker takes longer.
    """
    begun = now()
    refused = refusal(instance, None)
    share = None if time_limit is None else time_limit * (0.5 if refused is None else 1.0)
    first = incumbent(instance, seed=seed, time_limit=share)
    assert first.start is not None
    best = _Best(instance, first.start, on_progress)
    best.tell()
    stats = {"start": first.stats.get("winner"), "start_latency": best.latency}
    if bool((first.start == instance.arrival).all()):
        return Proposal(first.start, exhausted=True, stop_reason="proved", stats=stats)
    refused = refused or refusal(instance, first.start)
    if refused is not None or first.stop_reason == "interrupted":
        reasons = {} if refused is None else {"refused": refused}
        return Proposal(first.start, stop_reason=first.stop_reason, stats={**stats, **reasons})
    deadline = math.inf if time_limit is None else begun + time_limit
    if at_once is not None:
        try:
            quick = at_once(instance, first.start, deadline)
        except KeyboardInterrupt:
            return best.proposal(Outcome("interrupted"), stats)
        if quick is not None and quick.exhausted:
            return best.proposal(Outcome("done", quick), stats)
        best.hear(("start", None if quick is None else quick.start))
    ends = time.monotonic() + deadline - now()  # on the worker's clock
    kill = ends if time_limit is None else ends + 0.1 + 0.02 * time_limit  # it should end by itself and say how far it came
    outcome = run_apart(task, instance, best.start, ends, seed, dict(settings), deadline=kill, heard=best.hear)
    return best.proposal(outcome, stats)


@dataclass
class _Best:
    """The best schedule so far, and the best bound told (not proved to us, so only for progress and `stats`)."""

    instance: Instance
    start: IntArray
    on_progress: Progress | None = None
    bound: int | None = None
    latency: int = field(init=False)

    def __post_init__(self) -> None:
        self.latency = self.latency_of(self.start)

    def latency_of(self, start: IntArray) -> int:
        return exact_sum(start) - exact_sum(self.instance.arrival) + exact_sum(self.instance.output)

    def tell(self) -> None:
        if self.on_progress is not None:
            self.on_progress(self.latency, self.bound)

    def hear(self, message: tuple[str, Any]) -> None:
        """Take in a message of the task."""
        kind, what = message
        if kind == "start" and self.offer(what):
            self.tell()
        if kind == "bound" and (self.bound is None or what > self.bound):
            self.bound = int(what)
            self.tell()

    def offer(self, start: IntArray | None) -> bool:
        """Keep a schedule if it is valid and better."""
        if start is None or self.latency_of(np.asarray(start, np.int64)) >= self.latency:
            return False
        try:
            schedule = check_schedule(self.instance, start)
        except CertificateError:
            return False
        self.start, self.latency = schedule.start, schedule.total_latency
        return True

    def proposal(self, outcome: Outcome, stats: dict[str, Any]) -> Proposal:
        """Return what the search came to."""
        if self.bound is not None:
            stats["search_bound"] = self.bound
        found = outcome.result
        if outcome.ended != "done" or not isinstance(found, Proposal):
            reason: StopReason = "interrupted" if outcome.ended == "interrupted" else "work_limit"
            if outcome.ended == "time_limit":
                reason = "time_limit"
            if outcome.error:
                stats["failed"] = outcome.error
            return Proposal(self.start, stop_reason=reason, stats=stats)
        self.offer(found.start)
        # A claim about a schedule that did not pass the check is void.
        proved = found.exhausted and found.start is not None and self.latency_of(found.start) >= self.latency
        reason = "time_limit" if found.stop_reason == "proved" and not proved else found.stop_reason
        return Proposal(self.start, found.bound, proved, reason, {**stats, **found.stats})
