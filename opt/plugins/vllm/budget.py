"""Token budgets from deadlines: a step computes as many prompt tokens as the decodes' time targets leave.

At the start of a step, the time left is the least over running decodes of (time the next token is due - now). Without
`bank`, it is due one target after the last one (SLOWeave, arXiv 2609.07883); with it, by first token + tokens made * target,
so that time which earlier tokens have saved may be spent. The largest number of prompt tokens with which the step takes no
longer by the cost model is found by halving, and given to vLLM as its token budget of the step. Steps without decodes under a
target have the whole budget.

The cost model is that of one prefill chunk with the context of the first unfinished prompt; vLLM may split the budget over
several. Clocks are those of this process: a token counts as made when its step's output is processed.
"""

from __future__ import annotations

import math
import time
from typing import Any

from opt.core.cost import CostModel, Load, cost_model
from opt.plugins.vllm.scheduler import Ordered, SmallestVolume, extra

__all__ = ["DeadlineBudget", "Deadlines", "SmallestVolumeDeadline", "largest_chunk"]

TPOT = "kvopt_tpot_s"


def largest_chunk(cost: CostModel, context: int, decodes: int, kv_tokens: int, limit_s: float, most: int) -> int:
    """Return the most prompt tokens, up to `most`, with which a step takes at most `limit_s`; 0 if none.

    Args:
        cost: how long steps take; it never falls as a chunk grows.
        context: tokens that the prompt has in memory.
        decodes, kv_tokens: the decodes of the step and the tokens they read.
        limit_s: seconds.
        most: tokens.
    """
    low, high = 0, most
    while low < high:
        size = (low + high + 1) // 2
        pairs = size * context + size * (size + 1) / 2
        if cost.seconds(Load(size, pairs, 1, context, decodes, kv_tokens)) <= limit_s:
            low = size
        else:
            high = size - 1
    return low


class Deadlines(Ordered):
    """The common part of schedulers with a budget from deadlines.

    Raises:
        ValueError: the setting `cost` is missing or unknown.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cost = cost_model(self.required_cost())
        largest_chunk(self.cost, 0, 1, 1, 0.0, 1)  # compiles the formula now, so that no request waits for it
        self.now = time.monotonic  # seconds
        self.whole_budget = self.max_num_scheduled_tokens
        self._first: dict[str, float] = {}
        self._last: dict[str, float] = {}
        self._targets: dict[str, float] = {}

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Decide a step within its budget."""
        self.running.sort(key=lambda request: request.is_prefill_chunk)  # vLLM gives the budget out in this order
        self.max_num_scheduled_tokens = self.step_budget(self.now())
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_scheduled_tokens = self.whole_budget

    def step_budget(self, now: float) -> int:
        """Return the tokens of the step that starts now, decodes included."""
        decodes = [request for request in self.running if not request.is_prefill_chunk and request.num_output_tokens > 0]
        left = min((self.due(request) - now for request in decodes), default=math.inf)
        most = self.whole_budget - len(decodes)
        if left == math.inf or most <= 0:
            return self.whole_budget
        context = next((request.num_computed_tokens for request in self.running if request.is_prefill_chunk), 0)
        kv_tokens = sum(request.num_tokens for request in decodes)
        size = largest_chunk(self.cost, context, len(decodes), kv_tokens, max(left, 0.0), most)
        return len(decodes) + max(size, min(self.settings.least_chunk, most))

    def due(self, request: Any) -> float:
        """Return when a decode's next token is due, in the clock's seconds; infinity without a target."""
        name = request.request_id
        target = self._targets.get(name)
        if target is None:
            target = self._targets[name] = self._target(request)
        if target == math.inf or name not in self._last:
            return math.inf
        if self.settings.bank:
            return self._first[name] + request.num_output_tokens * target
        return self._last[name] + target

    def _target(self, request: Any) -> float:
        given = extra(request, TPOT)
        try:
            seconds = float(given) if isinstance(given, int | float | str) and not isinstance(given, bool) else math.nan
        except ValueError:
            seconds = math.nan
        if seconds > 0:
            return seconds
        return math.inf if self.settings.tpot_s is None else self.settings.tpot_s

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Note when tokens came."""
        before = {name: self.requests[name].num_output_tokens for name in scheduler_output.num_scheduled_tokens}
        found = super().update_from_output(scheduler_output, *args, **kwargs)
        now = self.now()
        for name, made in before.items():
            request = self.requests.get(name)
            if request is not None and request.num_output_tokens > made:
                self._first.setdefault(name, now)
                self._last[name] = now
        return found

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        for known in (self._first, self._last, self._targets):
            known.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


class DeadlineBudget(Deadlines):
    """First come, first served, with look-ahead, and a budget from deadlines."""

    order = "fcfs"


class SmallestVolumeDeadline(Deadlines, SmallestVolume):
    """Smallest volume first, and a budget from deadlines."""
