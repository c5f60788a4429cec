"""What a node of a cluster runs: decodes first, then those who bring their keys and values along, then prompts in chunks.

How many prompt tokens a step may take beside decodes is the chunk rule:

* `budget`: as many as the token budget leaves, whatever the decodes' targets (Sarathi-Serve's rule).
* `ladder`: of one prompt at a time, the largest of 2048, 1024, ... 128 tokens with which the step stays within `beta` times
  the strictest gap target of the decodes (Kairos).
* `slack`: any number with which nobody's next token is late that would not be late anyway. A target for every gap counts
  from the last token, one for the mean gap from the first token, so that time saved is banked. A prompt is begun only if
  the residents' own growth still has room, and if all of them could still keep their gaps with it among them. Where steps
  turn out longer than the model said, limits shrink by the largest such factor so far: a model that is wrong by a constant
  factor is wrong once.

Invariant (with a test):
    D1. Under `slack` and an exact cost model no chunk makes a token late: every token that the decodes of a step alone
        would have brought in time comes in time. `Harm` counts what is broken where the model is not exact.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost import CostModel
from opt.serve.cluster.kernels import LADDER, largest_chunk, step_s
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.policies.vllm import decode_or_preempt
from opt.sim.policy import Policy
from opt.sim.workload import WAITING, Requests

__all__ = ["CHUNK_RULES", "ChunkRule", "Harm", "gap_targets", "node_policy", "peak_growth"]

ChunkRule: TypeAlias = Literal["budget", "ladder", "slack"]
CHUNK_RULES: tuple[ChunkRule, ...] = get_args(ChunkRule)


@dataclass
class Harm:
    """What chunks did to decodes.

    Args:
        mixed_steps: steps with decodes and chunks.
        tokens: tokens that decodes made in them.
        late: those of them that came late, and would have been in time without the chunks.
        worst_s: the longest delay among these, beyond the due time.
    """

    mixed_steps: int = 0
    tokens: int = 0
    late: int = 0
    worst_s: float = 0.0


def gap_targets(requests: Requests) -> FloatArray:
    """Return (n,) the strictest target for gaps: that for every gap, else that for the mean, else infinity."""
    strictest = np.fmin(requests.itl_s, requests.tpot_s)
    return np.where(np.isnan(strictest), np.inf, strictest)


def node_policy(
    requests: Requests,
    *,
    rule: ChunkRule = "slack",
    beta: float = 1.0,
    share: bool = True,
    bank: bool = True,
    headroom: bool = True,
    belief: CostModel | None = None,
    margin: float = 0.0,
    joined_s: FloatArray | None = None,
    harm: Harm | None = None,
) -> Policy:
    """Return the policy of a node.

    Args:
        requests: what is known of them; their gap targets are used.
        rule: how large chunks may be beside decodes.
        beta: share of the gap target that a step may take, for `ladder`.
        share: whether several prompts share a step.
        bank: for `slack`: a target for the mean gap is kept over all tokens, else at every one.
        headroom: for `slack`: whether prompts wait until the residents' growth has room as well.
        belief: the cost model by which chunks are chosen, the engine's own by default.
        margin: for `slack`: share of a step that is kept free for what the model does not know.
        joined_s: (n,) receives when each request that brought its keys and values along was admitted.
        harm: receives what chunks did to decodes.
    """
    if rule not in CHUNK_RULES:
        raise ValueError(f"rule = {rule!r}: must be one of {', '.join(CHUNK_RULES)}")
    joined = np.full(requests.n, np.nan) if joined_s is None else joined_s
    made = _Mixer(gap_targets(requests), rule, beta, share, bank, headroom, belief, margin, joined, harm or Harm())
    return Policy(made.decide, name=f"chunks by {rule}")


@dataclass
class _Mixer:
    strict_s: FloatArray
    rule: ChunkRule
    beta: float
    share: bool
    bank: bool
    headroom: bool
    belief: CostModel | None
    margin: float
    joined_s: FloatArray
    harm: Harm
    load: FloatArray = field(default_factory=lambda: np.zeros(7))
    begun_s: float = 0.0  # when the last step with chunks began
    longer: float = 1.0  # the largest factor by which a step with chunks has been longer than the model said
    said: tuple[int, float, float] = (-1, 0.0, 0.0)  # steps and idle seconds before it, and its length as said

    def decide(self, view: View) -> Batch:
        """Fill a step."""
        self._learn(view)
        batch = view.batch()
        decode_or_preempt(view, batch)
        left = self._join(view, batch)
        self.load = np.array(batch.load(), np.float64)
        members = batch.singles
        blocked = self._chunks(view, batch) if not batch.preempted else True
        while not len(batch) and not batch.preempted and len(view.running):
            batch.preempt(int(view.running[-1]))
        if batch.chunks and len(members):
            self._count(view, batch, members)
            self._say(view)
        if not batch.chunks and not batch.preempted and not blocked and not left:
            batch.repeat = FOREVER
        return batch

    def _say(self, view: View) -> None:
        """Note when the step that is filled should end, by what is believed."""
        if self.belief is not None and self.rule == "slack":
            host = np.array([view.config.host_s, view.config.host_per_request_s])
            self.said = (view.steps, view.idle_s, step_s(self.belief.coefficients, host, self.load, 0.0, 0.0))
            self.begun_s = view.now

    def _learn(self, view: View) -> None:
        """Compare the step before this one with what was said of it."""
        steps, idle_s, seconds = self.said
        if view.steps == steps + 1 and view.idle_s == idle_s and seconds > 0:
            self.longer = max(self.longer, (view.now - self.begun_s) / seconds)

    def _join(self, view: View, batch: Batch) -> bool:
        """Admit those who need no more than a decode, in order; return whether one is left."""
        if batch.preempted:
            return True
        for i in [i for i in view.waiting if view.progress.produced[i] > 0 and view.needs(i) == 1]:
            if not batch.add(i):
                return True
            self.joined_s[i] = view.progress.first_s[i] = view.progress.last_s[i] = view.now  # its first token is shown now
        return False

    def _chunks(self, view: View, batch: Batch) -> bool:
        """Add chunks of prompts; return whether a prompt is left without all it needs."""
        cost = self.belief or view.cost
        host = np.array([view.config.host_s, view.config.host_per_request_s])
        limit = self._limit(view, batch.singles, cost, host)
        for i in self._prompts(view, batch):
            need = view.needs(i)
            most = min(need, batch.budget, view.config.max_chunk or need)
            size = self._size(cost, host, view.base(i), most, limit, alone=not len(batch))
            base = view.base(i)
            if (size <= 0 and need > 0) or not batch.add(i, size):
                return True
            self.load[:4] += (size, size * base + size * (size + 1) / 2, size > 0, base)
            if size < need or not self.share or self.rule == "ladder":
                return True
        return self._left(view, batch)

    def _left(self, view: View, batch: Batch) -> bool:
        return bool(len(view.waiting) or len(view.partial()) > len(batch.chunks))

    def _prompts(self, view: View, batch: Batch) -> Iterator[int]:
        """Yield unfinished prompts, then waiting ones for as long as they may be admitted."""
        partial = view.partial()
        yield from partial
        owed = sum(map(view.needs, partial)) - sum(size for _, _, size in batch.chunks)
        for i in list(view.waiting):
            if view.progress.state[i] != WAITING or (view.progress.produced[i] > 0 and view.needs(i) == 1):
                continue
            if len(view.running) and not self._admissible(view, batch, i, max(owed, 0)):
                return
            before = batch.budget
            yield i
            owed += view.needs(i) if view.progress.state[i] == WAITING else max(0, view.needs(i) - (before - batch.budget))

    def _admissible(self, view: View, batch: Batch, i: int, owed: int) -> bool:
        if batch.seats <= 0:
            return False
        if self.rule != "slack" or not self.headroom or not len(batch.singles):
            return batch.fits(i, keep_free=owed)
        return batch.fits(i, keep_free=owed + _growth(view)) and self._keeps_pace(view, batch.singles, i)

    def _keeps_pace(self, view: View, members: IntArray, i: int) -> bool:
        """Whether the decodes, with i among them, could still keep every gap that they can keep without it."""
        cost = self.belief or view.cost
        host = np.array([view.config.host_s, view.config.host_per_request_s])
        load = np.array([0, 0, 0, 0, *self.load[4:]], np.float64)
        now_s = step_s(cost.coefficients, host, load, 0.0, 0.0)
        load[4] += 1
        load[5] += view.requests.prompt[i]
        then_s = step_s(cost.coefficients, host, load, 0.0, 0.0)
        targets = self.strict_s[members]
        return not bool(((targets >= now_s) & (targets < then_s)).any())

    def _limit(self, view: View, members: IntArray, cost: CostModel, host: FloatArray) -> float:
        """Return the longest the step may be, in seconds; infinity where nothing limits it."""
        if not len(members) or self.rule == "budget":
            return np.inf
        if self.rule == "ladder":
            return self.beta * float(self.strict_s[members].min())
        left = self._due(view, members) - view.now
        alone = self.longer * step_s(cost.coefficients, host, self.load, 0.0, 0.0)
        kept = left[left >= alone]
        return float(kept.min()) * (1.0 - self.margin) / self.longer if len(kept) else np.inf

    def _due(self, view: View, members: IntArray) -> FloatArray:
        """Return when the next token of each is due."""
        progress, requests = view.progress, view.requests
        gap = np.fmin(requests.itl_s[members], np.inf)
        mean = np.fmin(requests.tpot_s[members], np.inf)
        if not self.bank:
            return progress.last_s[members] + np.minimum(gap, mean)
        banked = progress.first_s[members] + progress.produced[members] * mean
        return np.minimum(progress.last_s[members] + gap, banked)

    def _size(self, cost: CostModel, host: FloatArray, base: int, most: int, limit_s: float, *, alone: bool) -> int:
        if alone or limit_s == np.inf or most <= 0:
            return most
        if self.rule == "slack":
            return int(largest_chunk(cost.coefficients, host, self.load, float(base), most, limit_s))
        for rung in LADDER:
            size = min(int(rung), most)
            if step_s(cost.coefficients, host, self.load, float(base), float(size)) <= limit_s:
                return size
        return 0

    def _count(self, view: View, batch: Batch, members: IntArray) -> None:
        """Note which tokens the chunks of this step make late."""
        engine_s = batch.seconds()
        load = np.array([0, 0, 0, 0, *batch.load()[4:]], np.float64)
        host = np.array([view.config.host_s, view.config.host_per_request_s])
        alone = step_s(view.cost.coefficients, host, load, 0.0, 0.0)
        left = self._due(view, members) - view.now
        late = (left >= alone) & (left < engine_s - 1e-9)
        self.harm.mixed_steps += 1
        self.harm.tokens += len(members)
        self.harm.late += int(late.sum())
        if late.any():
            self.harm.worst_s = max(self.harm.worst_s, float((engine_s - left[late]).max()))


def peak_growth(held: IntArray, left: IntArray, block: int) -> int:
    """Return by how much the memory of some requests will grow at most, each making a token a step until it ends.

    Whoever has fewer tokens left is gone when others are at their longest: with the requests by tokens left, falling, the
    first k are there together for as many steps as the k-th has left. Blocks are rounded up.

    Args:
        held: tokens each has in memory.
        left: tokens each will still take.
        block: tokens in a block.

    >>> peak_growth(np.array([10, 90]), np.array([50, 5]), 1)
    10
    >>> peak_growth(np.array([10, 0]), np.array([50, 5]), 1)
    50
    """
    if not len(held):
        return 0
    order = np.argsort(-left, kind="stable")
    together = np.cumsum(held[order]) + np.arange(1, len(held) + 1) * left[order]
    return max(0, int(together.max() - held.sum())) + len(held) * (block - 1)


def _growth(view: View) -> int:
    """Return how much memory those who run here, or wait with their keys and values, will still take, as far as announced."""
    waiting = [i for i in view.waiting if view.progress.produced[i] > 0]
    who = np.concatenate((view.running, np.array(waiting, np.int64)))
    held = view.progress.computed[who].copy()
    held[len(view.running) :] = 0
    whole = view.requests.prompt[who] + np.maximum(view.requests.expected[who], view.progress.produced[who] + 1) - 1
    return peak_growth(held, np.maximum(whole - held, 0), view.config.block_size)
