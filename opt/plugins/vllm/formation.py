"""Batch formers of `opt.serve.feather` inside vLLM: whom they would admit in this step."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from opt.core.cost import cost_model
from opt.plugins.settings import Settings
from opt.plugins.vllm.mirror import ROWS, Mirror
from opt.serve.feather.analytic import Analytic
from opt.serve.feather.bandit import Bandit
from opt.serve.feather.loop import Former
from opt.serve.feather.seeded import Seeded
from opt.serve.feather.tracker import Tracker
from opt.serve.prefix.groups import grouped
from opt.serve.prefix.tree import ChunkedHashTree
from opt.sim.batch import View
from opt.sim.config import EngineConfig
from opt.sim.door import simulate

__all__ = ["FORMERS", "Formation", "Window"]

FORMERS: dict[str, Callable[[Settings], Former]] = {
    "analytic": lambda settings: Analytic(settings.patience_s),
    "bandit": lambda settings: Bandit(),
    "seeded": lambda settings: Seeded(Analytic(settings.patience_s)),
}


@dataclass
class Window(Tracker):
    """A tracker that shows nobody who came more than `patience_s` after the oldest waiting request, whoever asks.

    So nobody who arrives after a_i + `patience_s` is admitted before request i; what this means for its wait is said in
    `opt.serve.feather.analytic`.
    """

    patience_s: float = math.inf

    def sync(self, view: View, latest_s: float = math.inf) -> None:
        """Catch up with the engine, within the window."""
        head = view.waiting.head
        if head is not None:
            latest_s = min(latest_s, float(view.requests.arrival_s[head]) + self.patience_s)
        super().sync(view, latest_s)


class Formation:
    """A former, the tree it looks at, and the mirror both stand on.

    A former is asked again when somebody has come, gone or been admitted, when the time is up for which its last answer
    held, or when the wait is over that the look-ahead has found.

    Args:
        scheduler: of `opt.plugins.vllm.feather`.
        former: its name in `FORMERS`.
        now: the clock.
    """

    def __init__(self, scheduler: Any, former: str, now: Callable[[], float] = time.monotonic) -> None:
        settings: Settings = scheduler.settings
        self._scheduler, self.now = scheduler, now
        self.former = FORMERS[former](settings)
        self.tracker = Window([], [], patience_s=settings.patience_s)
        self.mirror = self._mirror(ROWS)
        self._ask_at = 0
        simulate(grouped(8, groups=2, shared=256, longest=4, memory=10_000), f"feather-{former}", self.mirror.cost)  # compiles

    def _mirror(self, size: int) -> Mirror:
        scheduler, settings = self._scheduler, self._scheduler.settings
        cost = cost_model(settings.cost)
        config = EngineConfig(
            name="vllm",
            kv_tokens=(scheduler.kv_cache_config.num_blocks - 1) * scheduler.block_size,
            block_size=scheduler.block_size,
            token_budget=scheduler.max_num_scheduled_tokens,
            max_running=scheduler.seats,
            shared_reads=settings.shared_reads,
            cache_tokens=settings.cache_tokens,
        )
        every = scheduler.hash_block_size
        unit = every * max(1, settings.chunk // every)
        return Mirror(scheduler, cost.with_locality(scheduler.locality), config, unit, every, size)

    def choose(self, moved: list[Any], budget: int) -> list[Any]:
        """Return whom the former admits, in order.

        Args:
            moved: who has joined or left vLLM's waiting queue since the last call.
            budget: the tokens that running requests leave.
        """
        if len(self.mirror.requests) + len(moved) > self.mirror.size:
            self._start_over(moved)
        mirror = self.mirror
        mirror.now = self.now()
        mirror.steps += 1
        known = len(mirror.requests)
        changed = mirror.follow(moved)
        self._arrived(known)
        if budget <= 0 or not (changed or mirror.steps >= self._ask_at):
            return []
        mirror.measure()
        mirror.memory.begin()
        if mirror.memory.available < 0:  # vLLM will preempt, and admits nobody in such a step
            return []
        batch = mirror.view.batch()
        batch.budget = budget
        held = self.former.fill(mirror.view, batch, self.tracker)
        again = 1 if mirror.chosen or batch.budget <= 0 else min(held, mirror.memory.wait)
        self._ask_at = mirror.steps + again
        return [mirror.requests[i] for i in mirror.chosen]

    def _arrived(self, known: int) -> None:
        """Tell the tracker of new requests."""
        new = range(known, len(self.mirror.requests))
        self.tracker.order += new
        self.tracker.arrival_s += self.mirror.workload.requests.arrival_s[new.start : new.stop].tolist()

    def _start_over(self, moved: list[Any]) -> None:
        """Number the requests anew, now that the numbers are used up; what was learned stays."""
        old = self.mirror
        live = sorted(old.numbers.items(), key=lambda item: item[1])
        self.mirror = self._mirror(max(ROWS, 4 * (len(live) + len(moved))))
        for _, i in live:
            self.mirror.number(old.requests[i], float(old.workload.requests.arrival_s[i]))
        self.mirror.steps = old.steps
        self.tracker = replace(self.tracker, order=[], arrival_s=[], tree=ChunkedHashTree(), known=[], arrived=0, held_back=0)
        self._arrived(0)
        moved += [old.requests[i] for _, i in live]
