"""Banked slack: chunks that spend what decodes have saved, on the prompts that can still be in time.

Four ideas, each of which can be switched off:

* **Bank.** A target for the mean gap is kept by an envelope from the first token: token j by first token + j * target. Time
  saved by short steps is spent by long ones. A target for every gap is kept as it stands.
* **Look ahead.** What a step prefills is not proportional to its length: kernels have floors and jumps. The best mix of two
  kinds of step, at the mean length that bank and pace allow over the steps to come, is a linear program; its solution says
  whether to prefill some in every step, or nothing now and much once there is slack for it.
* **Share.** As many prompts share a step as fit.
* **Choose.** Prompts go by due time; if not all can be in time, first a largest set that can (Moore and Hodgson), at the rate
  seen lately; then the others that could make it alone; last those that cannot, in what the pace leaves. All are served.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost.layout import PER_PAIR
from opt.serve.chunking.kernels import best_mix, in_time, seconds_with
from opt.serve.chunking.step import UNLIMITED, Step, fill
from opt.serve.chunking.targets import DUE, Due, Targets
from opt.sim.batch import Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.workload import Requests

__all__ = ["banked_slack"]

# Tokens of a step, decodes included, among which the best mix is sought; a model's own knots come on top.
TOTALS = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384)
HORIZONS = (1, 2, 4, 8, 16, 32)  # steps
MEMORY_S = 0.3  # a dozen steps at 25 ms: the rate of prefilling is known after these, and follows the decodes
PRIOR_S = 0.1  # what the cost model expects counts as much as so many seconds seen


def banked_slack(
    requests: Requests,
    config: EngineConfig,
    *,
    seed: int = 0,
    bank: bool = True,
    look_ahead: bool = True,
    share: bool = True,
    choose: bool = True,
) -> Policy:
    """Return the policy that is described at the head of this module.

    In every step: whoever's next token the decodes alone would have brought by its due time has it by then. With `bank`
    off, and under a target for every gap, that is: every gap that the decodes alone would have kept is kept.

    Args:
        requests: their targets are used; without any, prompts are computed whole, by arrival.
        config: unused; the view has it.
        seed: unused.
        bank: off: a target for the mean is read as one for every gap.
        look_ahead: off: the largest chunks that the slack allows, in every step.
        share: off: one prompt a step.
        choose: off: by due time alone.
    """
    return Policy(_Banked(Targets.of(requests), DUE["own" if bank else "gap"], bank, look_ahead, share, choose).decide)


@dataclass(frozen=True)
class Allowed:
    """What decodes allow: the longest step now, the mean step, the longest step ever; infinity for no limit."""

    slack_s: float
    pace_s: float
    cap_s: float

    def mean_s(self, steps: int) -> float:
        """Return the mean length of so many steps: the slack is spent once, the pace is granted every time."""
        if steps == 1 or self.pace_s == np.inf:
            return self.slack_s
        return self.pace_s + (self.slack_s - self.pace_s) / steps


@dataclass(frozen=True, eq=False)
class Steps:
    """Steps that could be run now: the prompt tokens of each, rising from none, and its seconds."""

    sizes: IntArray
    seconds: FloatArray

    @classmethod
    def of(cls, step: Step, tokens: int, allowed: Allowed) -> Steps:
        """Return the steps of up to `tokens` and the engine's budget, none longer than is ever allowed."""
        most = min(tokens, step.batch.budget)
        totals = {*TOTALS, *(int(at) for at, _ in step.view.cost.knots)}
        chosen = {total - int(step.load[4]) for total in totals}
        exact = {step.within(most, limit) for limit in (allowed.slack_s, allowed.pace_s)}
        sizes = np.array(sorted({0, most} | exact | {size for size in chosen if 0 < size < most}), np.int64)
        seconds = step.seconds_of(sizes)
        fits = (seconds <= allowed.cap_s) | (sizes == 0)
        return cls(sizes[fits], seconds[fits])

    def rate(self, mean_s: float) -> float:
        """Return the prompt tokens a second of the best mix at this mean."""
        _, _, tokens, mean = best_mix(self.sizes, self.seconds, mean_s)
        return tokens / mean if tokens > 0 and mean > 0 else 1e-9

    def choice(self, allowed: Allowed, tokens: int) -> int:
        """Return how many prompt tokens to take now, of `tokens` to be done as soon as may be.

        The least number of steps is sought in which the best mix is done with all; its longer kind of step goes first if
        the slack has room for it.
        """
        for steps in HORIZONS:
            low, high, mixed, _ = best_mix(self.sizes, self.seconds, allowed.mean_s(steps))
            if mixed * steps >= tokens:
                break
        return int(self.sizes[high if self.seconds[high] <= allowed.slack_s else low])


@dataclass
class Rate:
    """Prompt tokens a second of late, over the steps that left some undone; the decodes to come slow it down, so it is seen."""

    tokens: float = 0.0
    seconds: float = 0.0
    _at: float = np.nan
    _taken: float = 0.0

    def blended(self, now: float, expected: float) -> float:
        """Return the rate seen, or what is expected where little has been seen."""
        passed = now - self._at
        if passed > 0:
            fade = math.exp(-passed / MEMORY_S)
            self.tokens, self.seconds = self.tokens * fade + self._taken, self.seconds * fade + passed
        return (self.tokens + expected * PRIOR_S) / (self.seconds + PRIOR_S)

    def remember(self, now: float, taken: float, wanted: int) -> None:
        """Keep what the step that begins now takes of all that is wanted."""
        self._at, self._taken = (now, taken) if taken < wanted else (np.nan, 0.0)


@dataclass
class _Banked:
    targets: Targets
    due: Due
    bank: bool
    look_ahead: bool
    share: bool
    choose: bool
    rate: Rate = field(default_factory=Rate)

    def decide(self, view: View) -> Batch:
        """Fill a step."""
        step = Step(view)
        who = step.waiting()
        if not len(who):
            return step.end()
        allowed = self._allowed(step, who)
        need = _needs(view, who)
        steps = Steps.of(step, int(need.sum()), allowed)
        early, late, first_s = self._order(step, who, need, self.rate.blended(view.now, steps.rate(allowed.pace_s)))
        self._fill(step, early, late, first_s, allowed, steps)
        batch = step.end()
        self.rate.remember(view.now, float(step.load[0]), int(need.sum()))
        return batch

    def _fill(self, step: Step, early: IntArray, late: IntArray, first_s: float, allowed: Allowed, steps: Steps) -> None:
        """Add chunks: the early ones, the first due in `first_s`, in the slack; the late ones in what they leave of the pace."""
        if len(step.batch.singles):
            wanted = int(_needs(step.view, early).sum())
            held = self.look_ahead and allowed.slack_s < np.inf and len(early) > 0
            self._add(step, early, allowed.slack_s, steps.choice(allowed, wanted) if held else UNLIMITED)
        else:
            # Nobody waits for a token, so the first prompt is computed whole, and others join while the step is short.
            wanted = int(_needs(step.view, early[:1]).sum())
            self._add(step, early[:1], np.inf, UNLIMITED)
            self._add(step, early[1:], min(allowed.pace_s, first_s), UNLIMITED)
        left = min(allowed.slack_s, allowed.pace_s)
        if step.load[0] >= wanted and (left < np.inf or not len(early)):
            self._add(step, late, left if len(step.batch) else np.inf, UNLIMITED)

    def _add(self, step: Step, who: IntArray, limit_s: float, most: int) -> None:
        fill(step, who.tolist(), limit_s, most=most, prompts_most=UNLIMITED if self.share else 1 - len(step.batch.chunks))

    def _allowed(self, step: Step, who: IntArray) -> Allowed:
        """Return what the decodes allow; without any, what those who wait will need.

        Who is behind and can catch up is given half of what the pace leaves; who could not keep pace even alone counts
        for nothing.
        """
        view, decodes, pace = step.view, step.batch.singles, self.targets.strict_s
        if not len(decodes):
            return Allowed(np.inf, float(pace[who].min()), np.inf)
        possible = pace[decodes] > _one_decode_s(step)
        left = self.due(self.targets, view, decodes) - view.now
        kept = left >= step.alone_s
        slack = float(left[kept].min(initial=np.inf))
        behind = float(pace[decodes[~kept & possible]].min(initial=np.inf))
        catching_up = step.alone_s + max(0.0, behind - step.alone_s) / 2
        gaps = (self.targets.gap_s if self.bank else pace)[decodes[kept]]
        return Allowed(
            min(slack, catching_up), float(pace[decodes[possible]].min(initial=np.inf)), float(gaps.min(initial=np.inf))
        )

    def _order(self, step: Step, who: IntArray, need: IntArray, rate: float) -> tuple[IntArray, IntArray, float]:
        """Return those who may be in time, in order, those who cannot, and in how many seconds the first of them is due."""
        view = step.view
        begun = view.progress.produced[who] > 0  # they were preempted, and their next token is due like any other
        due = view.requests.arrival_s[who] + self.targets.ttft_s[who]
        due[begun] = self.due(self.targets, view, who[begun])
        order = np.lexsort((who, view.requests.arrival_s[who], due))
        who, left, need = who[order], due[order] - view.now, need[order]
        if not self.choose:
            return who, who[:0], float(left[0])
        base = view.requests.prompt[who] + view.progress.produced[who] - need
        work = need / rate + view.cost.coefficients[PER_PAIR] * (need * base + need * (need + 1) / 2)
        possible = step.seconds_of(need, base) - step.alone_s <= left
        first = np.zeros(len(who), np.bool_)
        first[possible] = in_time(work[possible], left[possible])
        due_s = float(left[possible].min(initial=np.inf))
        return np.concatenate((who[first], who[possible & ~first])), who[~possible], due_s


def _needs(view: View, who: IntArray) -> IntArray:
    """Return what each has to compute, cached prefixes taken off."""
    whole = view.requests.prompt[who] + view.progress.produced[who]
    found: IntArray = whole - np.maximum(view.progress.computed[who], view.cached_units(who) * view.unit)
    return np.maximum(found, 0)


def _one_decode_s(step: Step) -> float:
    """Return the seconds of the shortest step with a decode."""
    one = np.array([0, 0, 0, 0, 1, 1, 0], np.float64)
    return seconds_with(step.view.cost.coefficients, one, 0.0, 0.0) + step.view.config.host(1)
