"""Published ways to choose the prompt tokens of a step, each at its best, over one engine and one cost model.

All decode everybody who is ready in every step, and go by arrival unless said otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from opt.core.columns import FloatArray
from opt.serve.chunking.kernels import two_steps
from opt.serve.chunking.learned import Learned
from opt.serve.chunking.step import UNLIMITED, Step, budget_s, by_arrival, fill
from opt.serve.chunking.targets import DUE, Targets
from opt.sim.batch import Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.workload import Requests

__all__ = ["fair_batching", "fixed_chunk", "full_prefill", "qoserve", "sloweave", "two_step"]

SLOWEAVE_LARGEST = 4096  # tokens
FIRST_CHUNK = 256  # tokens, until a learned predictor has seen enough
SIZES = np.array([0, 32, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192], np.int64)

Anchor = Literal["arrival", "own"]
Predictor = Literal["cost", "learned"]


def fixed_chunk(requests: Requests, config: EngineConfig, *, chunk: int, seed: int = 0) -> Policy:
    """Return the policy that adds at most `chunk` prompt tokens to a step, of as many prompts as they hold.

    Raises:
        ValueError: `chunk` is below 1.
    """
    _at_least_one("chunk", chunk)

    def decide(view: View) -> Batch:
        step = Step(view)
        fill(step, by_arrival(step), np.inf, most=chunk)
        return step.end()

    return Policy(decide)


def full_prefill(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return the policy that computes the earliest prompt whole, one prompt a step, as far as the engine's budget goes."""

    def decide(view: View) -> Batch:
        step = Step(view)
        fill(step, by_arrival(step), np.inf, prompts_most=1)
        return step.end()

    return Policy(decide)


def sloweave(
    requests: Requests,
    config: EngineConfig,
    *,
    seed: int = 0,
    largest: int = SLOWEAVE_LARGEST,
    prompts: int = 1,
    predictor: Predictor = "cost",
    margin_s: float = 0.0,
) -> Policy:
    """Return SLOWeave (arXiv 2609.07883): the largest chunk of the earliest prompt that keeps every decode's next gap.

    The budget at the start of a step is the least, over decodes, of last token + target - now, at least 0; the target is
    the smaller of those for the mean and for every gap. While nobody decodes, the whole remainder is computed.

    Args:
        requests: their targets are used.
        config: unused; the view has it.
        seed: unused.
        largest: tokens of a chunk, at most.
        prompts: chunks of a step, at most; 1 as published.
        predictor: "cost" knows the engine's cost model; "learned" learns step times on the run, and keeps a margin.
        margin_s: added to what is predicted.

    With the cost model, in every step: whoever's next gap the decodes alone would have kept has it kept.

    Raises:
        ValueError: a parameter is out of range.
    """
    _at_least_one("largest", largest)
    _at_least_one("prompts", prompts)
    if not margin_s >= 0:
        raise ValueError(f"margin_s = {margin_s!r}: must be a number of seconds, at least 0")
    if predictor not in get_args(Predictor):
        raise ValueError(f"predictor = {predictor!r}: must be one of {', '.join(get_args(Predictor))}")
    learned = Learned() if predictor == "learned" else None
    return Policy(_Sloweave(Targets.of(requests), largest, prompts, margin_s, learned).decide)


@dataclass
class _Sloweave:
    targets: Targets
    largest: int
    prompts: int
    margin_s: float
    learned: Learned | None

    def decide(self, view: View) -> Batch:
        """Fill a step."""
        if self.learned is not None:
            self.learned.notice(view)
        step = Step(view)
        limit = budget_s(DUE["gap"](self.targets, view, step.batch.singles), view.now) - self.margin_s
        if self.learned is None:
            most = self.largest if len(step.batch.singles) else UNLIMITED
            fill(step, by_arrival(step), limit, most=most, prompts_most=self.prompts)
        else:
            self._fill_learned(step, limit)
        batch = step.end()
        if self.learned is not None:
            self.learned.remember(view, batch)
        return batch

    def _fill_learned(self, step: Step, limit: float) -> None:
        assert self.learned is not None
        decodes = len(step.batch.singles)
        most = UNLIMITED if not decodes else self.largest if self.learned.model else min(FIRST_CHUNK, self.largest)
        i = next(by_arrival(step), None)
        if i is not None:
            tokens = self.learned.largest(step, i, limit, most)
            if tokens > 0 or step.view.needs(i) == 0:
                step.chunk(i, tokens)


def fair_batching(requests: Requests, config: EngineConfig, *, seed: int = 0, anchor: Anchor = "arrival") -> Policy:
    """Return FairBatching's envelope: token j is due at anchor + j * target, so time saved on earlier tokens is banked.

    Args:
        requests: their targets are used.
        config: unused; the view has it.
        seed: unused.
        anchor: "arrival", as published: the moment at which the first token was due; "own": when it came, and a target
            for every gap counts from the last token. Only the latter keeps both targets when the first token comes early.

    As many prompts share a step as fit before the first due time. With the anchor "own", in every step: whoever's next
    token the decodes alone would have brought in time has it in time.

    Raises:
        ValueError: the anchor is unknown.
    """
    due, targets = DUE[_anchor(anchor)], Targets.of(requests)

    def decide(view: View) -> Batch:
        step = Step(view)
        fill(step, by_arrival(step), budget_s(due(targets, view, step.batch.singles), view.now))
        return step.end()

    return Policy(decide)


def qoserve(
    requests: Requests, config: EngineConfig, *, seed: int = 0, anchor: Anchor = "arrival", weight: float = 1.0
) -> Policy:
    """Return QoServe (Niyama): chunks as large as the banked slack, prompts by due time plus weighted remaining work.

    Who cannot meet its first-token target any more goes after the others. Work is what the prompt takes alone.

    Args:
        requests: their targets are used.
        config: unused; the view has it.
        seed: unused.
        anchor: as in `fair_batching`.
        weight: of the remaining seconds beside the due time; 0 goes by due time.

    Raises:
        ValueError: the anchor is unknown, or the weight negative.
    """
    if not 0 <= weight < np.inf:
        raise ValueError(f"weight = {weight!r}: must be a finite number, at least 0")
    return Policy(_Qoserve(Targets.of(requests), _anchor(anchor), weight, np.full(requests.n, np.nan)).decide)


@dataclass
class _Qoserve:
    targets: Targets
    anchor: Anchor
    weight: float
    work_s: FloatArray  # (n,) what a prompt takes in the step in which it was first seen, or last worked on

    def decide(self, view: View) -> Batch:
        """Fill a step."""
        step = Step(view)
        limit = budget_s(DUE[self.anchor](self.targets, view, step.batch.singles), view.now)
        fill(step, self._order(step), limit)
        return step.end()

    def _order(self, step: Step) -> list[int]:
        view, who = step.view, step.waiting()
        new = np.concatenate((np.array(step.partial, np.int64), who[np.isnan(self.work_s[who])]))
        for i in new.tolist():
            self.work_s[i] = step.seconds(i, view.needs(i)) - step.alone_s
        work, begun = self.work_s[who], view.progress.produced[who] > 0
        due = view.requests.arrival_s[who] + self.targets.ttft_s[who]
        late = (view.now + work > due) & ~begun
        ranked = np.where(due < np.inf, due, view.requests.arrival_s[who]) + self.weight * work
        order: list[int] = who[np.lexsort((who, ranked, late))].tolist()
        return order


def two_step(requests: Requests, config: EngineConfig, *, seed: int = 0, anchor: Anchor = "own") -> Policy:
    """Return the joint choice over two steps (in the manner of SlidingServe): the chunk now that lets both prefill most.

    The first must end before the next token is due, both before the one after it, and the second within the least gap.

    Args:
        requests: their targets are used.
        config: unused; the view has it.
        seed: unused.
        anchor: as in `fair_batching`.

    Raises:
        ValueError: the anchor is unknown.
    """
    due, targets = DUE[_anchor(anchor)], Targets.of(requests)

    def decide(view: View) -> Batch:
        step = Step(view)
        decodes = step.batch.singles
        times = due(targets, view, decodes)
        limit, most = budget_s(times, view.now), UNLIMITED
        if limit < np.inf:
            both = budget_s(times + targets.mean_s[decodes], view.now)
            most = _first_of_two(step, limit, both, float(targets.gap_s[decodes].min()))
        fill(step, by_arrival(step), limit, most=most)
        return step.end()

    return Policy(decide)


def _first_of_two(step: Step, first_s: float, both_s: float, gap_s: float) -> int:
    """Return the prompt tokens of the first step: those that wait, taken as one prompt."""
    view = step.view
    waiting = [*step.partial, *view.waiting]
    if not waiting:
        return 0
    host = view.config.host(int(step.load[4]) + 1)
    most = min(sum(map(view.needs, waiting)), step.batch.budget)
    context = view.base(waiting[0])
    limits = (first_s - host, both_s - 2 * host, gap_s - host)
    return int(two_steps(view.cost.coefficients, step.load, context, most, SIZES, *limits))


def _anchor(anchor: str) -> Anchor:
    known: dict[str, Anchor] = {name: name for name in get_args(Anchor)}
    if anchor not in known:
        raise ValueError(f"anchor = {anchor!r}: must be one of {', '.join(known)}")
    return known[anchor]


def _at_least_one(name: str, value: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name} = {value!r}: must be an integer, at least 1")
