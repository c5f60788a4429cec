"""A plan in seconds: every round of a schedule lasts as long as the iteration of its active requests.

In its first round a request computes its prompt and makes its first token (a request without a prompt decodes from the
start); in its k-th round it decodes and reads `prompt + k - 1` tokens. A round without requests lasts as long as an idle
iteration. Arrivals stay where they are among the rounds. With the unit cost, seconds are rounds.

With `kv` "shared", a prefix that another request holds when a request starts is not computed again (at least one token of
the prompt is), and reads of a shared chunk beyond the first are repeated reads, which the model prices by its locality.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.load import Load
from opt.core.cost.model import CostModel
from opt.core.cost.registry import cost_model
from opt.core.model import Schedule

__all__ = ["Clocked", "seconds"]


@dataclass(frozen=True, eq=False)
class Clocked:
    """A schedule on the clock of a cost model, which starts with round 0.

    Args:
        schedule: the plan.
        cost: the model.
        arrival_s, first_token_s, finish_s: (n,) seconds at the end of the rounds of arrival, first token and completion.
        makespan_s: when the last request is finished.
        warnings: what of the largest iterations lies beyond the range that was measured.
    """

    schedule: Schedule
    cost: CostModel
    arrival_s: FloatArray
    first_token_s: FloatArray
    finish_s: FloatArray
    makespan_s: float
    warnings: Sequence[str]

    @cached_property
    def latency_s(self) -> FloatArray:
        """Seconds from arrival to completion (n,)."""
        return self.finish_s - self.arrival_s

    @property
    def total_latency_s(self) -> float:
        """The sum of all latencies."""
        return float(self.latency_s.sum())

    @property
    def mean_latency_s(self) -> float | None:
        """Seconds per request, None without requests."""
        return float(self.latency_s.mean()) if len(self.latency_s) else None

    @property
    def mean_ttft_s(self) -> float | None:
        """Seconds from arrival to the first token on average, None without requests."""
        return float((self.first_token_s - self.arrival_s).mean()) if len(self.latency_s) else None


@dataclass(frozen=True)
class _Segments:
    """Runs of rounds over which the same requests decode: the first round of each, one more, and the loads at both ends."""

    edges: IntArray
    first: FloatArray
    last: FloatArray


def seconds(schedule: Schedule, cost: CostModel | str | Path) -> Clocked:
    """Return a plan on the clock of a cost model.

    Args:
        schedule: the plan, in rounds.
        cost: a model, its name in `COSTS`, or a cost file.

    >>> import opt
    >>> plan = opt.Schedule(opt.Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3]), np.array([5, 1, 1, 0]))
    >>> opt.seconds(plan, "unit").total_latency_s, plan.total_latency
    (24.0, 24)
    """
    model, instance = cost_model(cost), schedule.instance
    segments = _segments(schedule)
    begins, ends = model.seconds_of_rows(segments.first), model.seconds_of_rows(segments.last)
    lengths = np.diff(segments.edges)
    # Within a run only the KV tokens grow, by as many in every round, and the seconds are linear in them.
    slopes = (ends - begins) / np.maximum(lengths - 1, 1)
    passed = np.concatenate([[0.0], np.cumsum(lengths * (begins + ends) / 2)])

    def clock(rounds: IntArray) -> FloatArray:
        at = np.clip(np.searchsorted(segments.edges, rounds, side="right") - 1, 0, len(lengths) - 1)
        done = rounds - segments.edges[at] + 1  # rounds of the run that are over; none before the first round
        within = done * begins[at] + slopes[at] * (done * (done - 1) / 2)
        return np.where(rounds <= 0, 0.0, passed[at] + within)

    largest = np.maximum(segments.first, segments.last).max(axis=0, initial=0.0)
    finish = clock(schedule.finish)
    return Clocked(
        schedule=schedule,
        cost=model,
        arrival_s=clock(instance.arrival),
        first_token_s=clock(schedule.start + 1),
        finish_s=finish,
        makespan_s=float(finish.max(initial=0.0)),
        warnings=model.outside(Load(*largest.tolist())),
    )


def _segments(schedule: Schedule) -> _Segments:
    instance, start, finish = schedule.instance, schedule.start, schedule.finish
    edges = np.unique(np.concatenate([np.ones(1, np.int64), start + 1, start + 2, finish + 1]))
    if len(edges) < 2:
        edges = np.array([1, 2])
    runs = len(edges) - 1
    cached, repeated = _sharing(schedule, edges) if schedule.kv == "shared" else (np.zeros_like(start), np.zeros(runs, np.int64))
    first = np.zeros((runs, len(Load._fields)))
    columns = dict(zip(Load._fields, first.T, strict=True))
    computes = instance.prompt > 0
    tokens = np.where(computes, np.maximum(instance.prompt - cached, 1), 0)
    context = instance.prompt - tokens
    at = np.searchsorted(edges, start + 1)
    for name, amount in (
        ("prefill_tokens", tokens),
        ("prefill_pairs", tokens * context + tokens * (tokens + 1) // 2),
        ("prefill_sequences", computes.astype(np.int64)),
        ("prefill_context", context),
    ):
        columns[name] += np.bincount(at, weights=amount, minlength=runs)[:runs]
    begin = start + 1 + computes  # the first round in which it decodes
    opened, closed = np.searchsorted(edges, begin), np.searchsorted(edges, finish + 1)
    decodes = _running(np.ones_like(start), opened, closed, runs)
    offset = _running(instance.prompt - start - 1, opened, closed, runs)
    columns["decodes"] += decodes
    columns["kv_tokens"] += offset + decodes * edges[:-1]
    columns["repeated_kv"] += repeated
    last = first.copy()
    last[:, Load._fields.index("kv_tokens")] = offset + decodes * (edges[1:] - 1)
    return _Segments(edges, first, last)


def _running(amounts: IntArray, opened: IntArray, closed: IntArray, runs: int) -> IntArray:
    """Return the sum of the amounts of those that are open in each run."""
    change = np.zeros(runs + 1, np.int64)
    np.add.at(change, opened, amounts)
    np.subtract.at(change, closed, amounts)
    return np.cumsum(change)[:runs]


def _sharing(schedule: Schedule, edges: IntArray) -> tuple[IntArray, IntArray]:
    """Return the prompt tokens (n,) that others hold when a request starts, and the repeated reads of each run.

    Requests that start in the same round share too: the one with the smaller index computes.
    """
    instance = schedule.instance
    cached, change = np.zeros(instance.n, np.int64), np.zeros(len(edges), np.int64)
    if instance.prefix_ids is None or instance.prefix_offsets is None or instance.prefix_chunk is None:
        return cached, change[:-1]
    offsets, chunk = instance.prefix_offsets, instance.prefix_chunk
    computed: dict[int, int] = {}  # chunk: the last round in which somebody so far holds it
    decoded: dict[int, int] = {}  # chunk: the last round in which somebody so far reads it while decoding
    for who in np.lexsort((np.arange(instance.n), schedule.start)).tolist():
        begin, end, prompt = int(schedule.start[who]) + 1, int(schedule.finish[who]), int(instance.prompt[who])
        found = True
        for level, key in enumerate(instance.prefix_ids[offsets[who] : offsets[who + 1]].tolist()):
            size = min(chunk, prompt - level * chunk)
            found = found and computed.get(key, 0) >= begin
            cached[who] += size * found
            computed[key] = max(computed.get(key, 0), end)
            shared = min(decoded.get(key, 0), end)
            if shared > begin:
                change[np.searchsorted(edges, begin + 1)] += size
                change[np.searchsorted(edges, shared + 1)] -= size
            decoded[key] = max(decoded.get(key, 0), end)
    return cached, np.cumsum(change)[:-1]
