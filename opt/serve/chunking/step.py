"""A step that is being filled, with the time it takes so far: what all policies of chunking share.

Decodes come first, all of them; where they do not fit in memory, the last admitted are preempted. A waiting request is
admitted when its prompt fits beside what unfinished prompts still need, and never in a step that preempted somebody. Who
comes with all but one of its tokens in memory joins as a decode, but is charged as a chunk of one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost import CostModel
from opt.serve.chunking.kernels import largest_chunk, seconds_with
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.policies.vllm import decode_or_preempt
from opt.sim.workload import WAITING

__all__ = ["UNLIMITED", "Step", "budget_s", "by_arrival", "fill"]

UNLIMITED = 2**31


class Step:
    """The batch of one step, with the load and the seconds of what is in it.

    Args:
        view: the engine; all its decodes are added at once.

    Attributes:
        batch: what is filled.
        load: (7,) the fields of `opt.core.cost.Load`.
        alone_s: the seconds of the step without any chunk.
    """

    def __init__(self, view: View) -> None:
        self.view, self.batch = view, view.batch()
        decode_or_preempt(view, self.batch)
        self.load = np.array(self.batch.load(), np.float64)
        self.alone_s = self.seconds()
        self.partial = view.partial()
        self._owed = sum(map(view.needs, self.partial))  # tokens that unfinished prompts have not taken memory for

    def seconds(self, i: int | None = None, tokens: int = 0) -> float:
        """Return how long the step takes as it stands, or with a chunk of `tokens` more of request i, host time included."""
        context = 0 if i is None else self.view.base(i)
        work = seconds_with(self.view.cost.coefficients, self.load, float(context), float(tokens))
        return work + self.view.config.host(int(self.load[4] + self.load[2]) + (tokens > 0))

    def seconds_of(self, tokens: IntArray, context: IntArray | int = 0) -> FloatArray:
        """Return the seconds (m,) of the step with one chunk more, of each of these sizes after so many cached tokens."""
        rows = np.tile(self.load, (len(tokens), 1))
        rows[:, 0] += tokens
        rows[:, 1] += tokens * context + tokens * (tokens + 1) / 2
        rows[:, 2] += tokens > 0
        rows[:, 3] += context * (tokens > 0)
        one = self.view.config.host_per_request_s
        return self.view.cost.seconds_of_rows(rows) + self.view.config.host(int(self.load[4] + self.load[2])) + one * (tokens > 0)

    def most(self, i: int) -> int:
        """Return the tokens of i that budget and largest chunk allow."""
        return min(self.view.needs(i), self.batch.budget, self.view.config.max_chunk or UNLIMITED)

    def largest(self, i: int, limit_s: float, most: int = UNLIMITED, cost: CostModel | None = None) -> int:
        """Return the most tokens of i, up to `most`, with which the step takes at most `limit_s`; 0 without any.

        By the engine's cost model, or by another one.
        """
        return self.within(min(most, self.most(i)), limit_s, self.view.base(i), cost)

    def within(self, most: int, limit_s: float, context: int = 0, cost: CostModel | None = None) -> int:
        """Return the same of any prompt that has `context` tokens in memory."""
        c = (cost or self.view.cost).coefficients
        host = self.view.config.host(int(self.load[4] + self.load[2]) + 1)
        return int(largest_chunk(c, self.load, context, most, limit_s - host))

    def waiting(self) -> IntArray:
        """Return all whose prompt is not finished: those that have memory, then the queue."""
        queue = self.view.waiting
        return np.concatenate((np.array(self.partial, np.int64), np.fromiter(queue, np.int64, len(queue))))

    def chunk(self, i: int, tokens: int) -> bool:
        """Add a chunk of i; False if it is refused."""
        if self.view.progress.state[i] == WAITING and not self._admissible(i):
            return False
        context, waits, need = self.view.base(i), self.view.progress.state[i] == WAITING, self.view.needs(i)
        if not self.batch.add(i, tokens):
            return False
        self._owed += need * waits - tokens
        self.load[:4] += (tokens, tokens * context + tokens * (tokens + 1) / 2, tokens > 0, context)
        return True

    def _admissible(self, i: int) -> bool:
        if self.batch.preempted or self.batch.seats <= 0:
            return False
        free = int(self.view.config.watermark * self.view.memory[1]) if len(self.view.running) else 0
        return self.batch.fits(i, keep_free=self._owed + free)

    def end(self) -> Batch:
        """Return the batch; where it would be empty for lack of memory, the last admitted makes room for the first."""
        view, batch = self.view, self.batch
        while not len(batch) and self.partial and not batch.add(self.partial[0]):
            batch.preempt(int(view.running[-1]))
        if not batch.chunks and not batch.preempted and not len(view.waiting) and not self.partial:
            batch.repeat = FOREVER
        return batch


def by_arrival(step: Step) -> Iterator[int]:
    """Yield unfinished prompts in the order of admission, then the head of the queue for as long as it is admitted."""
    yield from step.partial
    last = None
    while (head := step.view.waiting.head) is not None and head != last:
        last = head
        yield head


def fill(step: Step, prompts: Iterable[int], limit_s: float, *, most: int = UNLIMITED, prompts_most: int = UNLIMITED) -> None:
    """Add the largest chunks of the prompts, in this order, with which the step takes at most `limit_s`.

    Args:
        step: it.
        prompts: requests.
        limit_s: for the whole step; infinity for no limit.
        most: prompt tokens of all chunks together.
        prompts_most: chunks.
    """
    for i in prompts if prompts_most > 0 else ():
        need = step.view.needs(i)
        tokens = step.largest(i, limit_s, most)
        if (tokens <= 0 and need > 0) or not step.chunk(i, tokens):
            return
        most -= tokens
        prompts_most -= 1
        if tokens < need or prompts_most <= 0 or most <= 0:
            return


def budget_s(due_s: FloatArray, now: float) -> float:
    """Return the seconds until the first of these times, at least 0; infinity without any."""
    return max(0.0, float(due_s.min()) - now) if len(due_s) else np.inf
