"""vLLM's state as an engine of `opt.sim`: what batch formers see of it, and what they fill.

A former reads a `View` and fills a `Batch`. Both stand on an engine; the one here holds nothing of its own, but speaks for
vLLM's scheduler: its waiting queue, its running list, its blocks. Filling a batch only notes who was chosen. Whether vLLM
then admits them shows in its lists, which the mirror follows at the next step.

Prompt units are every k-th of vLLM's own block hashes. These are chained, so one of them names all tokens up to its end, and
they tell apart what vLLM tells apart: adapters, images, cache salts.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy as np

from opt.core.columns import ABSENT, frozen
from opt.core.cost import CostModel
from opt.plugins.lookahead import Profile
from opt.sim.batch import FOREVER, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine
from opt.sim.memory import Match
from opt.sim.waiting import Queue
from opt.sim.workload import DONE, RUNNING, WAITING, Progress, Requests, Workload

__all__ = ["Blocks", "Mirror"]

ROWS = 2**16  # requests that a mirror has place for


class Blocks:
    """vLLM's block pool, asked as `opt.sim.memory.Memory` is. Nothing is taken: what was promised in a step is counted.

    Args:
        mirror: whose requests ask.
        unit: tokens in a prompt unit, a multiple of `every`.
        every: tokens in one of vLLM's hashes.
    """

    spare = 0

    def __init__(self, mirror: Mirror, unit: int, every: int) -> None:
        self._mirror, self.unit, self._every = mirror, unit, every
        self.block: int = mirror.scheduler.block_size
        self.capacity: int = mirror.scheduler.kv_cache_config.num_blocks - 1
        self.wait = FOREVER  # steps for which nobody who was refused can start
        self._promised = 0
        self._claimed: set[int] = set()  # cached blocks that nobody held, promised to somebody
        self._profile: Profile | None = None

    @property
    def prefixes(self) -> Blocks:
        """Who names the prompt units."""
        return self

    def units(self, i: int) -> list[Hashable]:
        """Return the names of a request's full prompt units."""
        request, step = self._mirror.requests[i], self.unit // self._every
        found: list[Hashable] = request.block_hashes[step - 1 : request.num_prompt_tokens // self._every : step]
        return found

    def begin(self) -> None:
        """Forget what was promised in an earlier step; running requests have theirs before anybody who waits."""
        self.wait, self._profile = FOREVER, None
        self._claimed.clear()
        running = self._mirror.scheduler.running
        self._promised = sum(not request.num_computed_tokens % self.block for request in running if not request.is_prefill_chunk)

    @property
    def available(self) -> int:
        """Blocks that can be had, cached ones that nobody holds included."""
        free: int = self._mirror.scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        return free - self._promised

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take."""
        return -(-tokens // self.block)

    def match(self, i: int, total: int | None = None) -> Match:
        """Return the full blocks that a waiting request would find, those included that others will have computed by then."""
        return self._match(i)[0]

    def _match(self, i: int) -> tuple[Match, int]:
        """Return what a request would find, and the blocks of it that several others hold already."""
        row, tokens = self._mirror.scheduler.hit(self._mirror.requests[i])
        unheld = sum(block.ref_cnt == 0 and block.block_id not in self._claimed for block in row)
        return Match(tokens // self.block, unheld, 0, tokens), sum(block.ref_cnt > 1 for block in row)

    def price(self, i: int, tokens: int, match: Match) -> int:
        """Return the available blocks it costs to let a request hold so many tokens."""
        return max(0, self.blocks_of(tokens) - (match.units - match.unheld))

    def take(self, i: int, tokens: int, match: Match) -> bool:
        """Promise a request its blocks, now and, with look-ahead, until it ends; False if they are not there.

        vLLM admits by the whole prompt, whatever of it is computed in the first step.
        """
        scheduler, request = self._mirror.scheduler, self._mirror.requests[i]
        found, shared = self._match(i)
        price = self.price(i, request.num_tokens, found)
        if price > self.available:
            return False
        if scheduler.settings.look_ahead:
            profile = self._profile = self._profile or scheduler.profile()
            left = scheduler.left(request)
            wait = profile.wait(request.num_tokens, left, shared) if self._mirror.count else 0
            if wait:
                self.wait = min(self.wait, wait)
                return False
            profile.add(request.num_tokens, left, shared)
        self._promised += price
        self._claimed.update(block.block_id for block in scheduler.hit(request)[0] if not block.ref_cnt)
        return True

    def register(self, i: int, computed: int) -> None:
        """Note that a chosen request will have so many tokens computed, for others chosen after it."""
        self._mirror.scheduler.comes(self._mirror.requests[i], computed)


class Mirror:
    """The engine that views and batches stand on.

    Args:
        scheduler: of `opt.plugins.vllm.scheduler`, with its settings.
        cost: how long steps take.
        config: the engine's settings.
        unit, every: as for `Blocks`.
        size: requests there is place for, the finished ones included.
    """

    def __init__(self, scheduler: Any, cost: CostModel, config: EngineConfig, unit: int, every: int, size: int = ROWS) -> None:
        self.scheduler, self.cost, self.config = scheduler, cost, config
        self._prompt, self._arrival_s, self._expected = np.zeros(size, np.int64), np.zeros(size), np.full(size, ABSENT)
        nothing = np.full(size, np.nan)
        requests = Requests(  # read-only views, as our engine has: loops are compiled for these
            prompt=frozen(self._prompt),
            arrival_s=frozen(self._arrival_s),
            expected=frozen(self._expected),
            rank=frozen(np.zeros(size, np.int64)),
            ttft_s=nothing,
            tpot_s=nothing,
            itl_s=nothing,
            ids=[],
        )
        self.workload = Workload(requests, np.empty(0, np.int64), Progress.of(size))
        self.size = size
        self.requests: list[Any] = []
        self.numbers: dict[str, int] = {}
        self.waiting = Queue()
        self.running = np.empty(0, np.int64)
        self.chosen: list[int] = []
        self._followed: list[Any] = []
        self.now, self.steps, self.idle_s = 0.0, 0, 0.0
        self.memory = Blocks(self, unit, every)
        self.view = View(cast(Engine, self))

    @property
    def count(self) -> int:
        """How many run, those chosen included."""
        return len(self.running)

    def number(self, request: Any, arrival_s: float | None = None) -> int:
        """Return a request's number; one that has none yet, or another prompt than it had, gets the next one."""
        i = self.numbers.get(request.request_id)
        if i is None or self._prompt[i] != request.num_prompt_tokens:
            i = self.numbers[request.request_id] = len(self.requests)
            self.requests.append(request)
            self._prompt[i] = request.num_prompt_tokens
            self._arrival_s[i] = self.now if arrival_s is None else arrival_s
            hint = self.scheduler.hint(request)
            self._expected[i] = ABSENT if hint is None else min(hint, request.max_tokens)
        return i

    def follow(self, moved: Sequence[Any]) -> bool:
        """Catch up with vLLM's lists; return whether anybody has come, gone or been admitted since.

        Args:
            moved: who has joined or left the waiting queue.
        """
        numbers, running = self.numbers, self.scheduler.running
        if not moved and not self.chosen and running == self._followed:
            return False
        self._followed = list(running)
        stirred = {numbers[name] for name in (request.request_id for request in moved) if name in numbers}
        stirred |= {self.number(request) for request in moved if request in self.scheduler.waiting}
        now = [self.number(request) for request in running]
        before = self.running.tolist()
        self.chosen = []
        if now == before and not stirred:
            return False
        self.running = np.array(now, np.int64)
        members = set(now)
        for i in stirred | members.symmetric_difference(before):
            self._place(i, members)
        return True

    def _place(self, i: int, running: set[int]) -> None:
        """Bring one request's state up to date."""
        request, progress = self.requests[i], self.workload.progress
        current = self.numbers.get(request.request_id) == i
        waits = current and i not in running and request in self.scheduler.waiting
        if waits and i not in self.waiting:
            self.waiting.add(i, 0, float(self.workload.requests.arrival_s[i]))
        elif not waits and i in self.waiting:
            self.waiting.remove(i)
        progress.produced[i] = request.num_output_tokens
        progress.state[i] = RUNNING if i in running else WAITING if waits else DONE
        if progress.state[i] == DONE:
            self.requests[i] = None
            if current:
                del self.numbers[request.request_id]

    def measure(self) -> None:
        """Note how far the running requests have come."""
        running, progress = self.scheduler.running, self.workload.progress
        progress.produced[self.running] = [request.num_output_tokens for request in running]
        progress.computed[self.running] = [request.num_computed_tokens for request in running]

    def tokens_of(self, i: int) -> int:
        """Return a request's tokens, those it has made included."""
        tokens: int = self.requests[i].num_tokens
        return tokens

    def admit(self, i: int, base: int, cached: int) -> None:
        """Note that a request was chosen; `Batch.add` calls it."""
        self.waiting.remove(i)
        self.running = np.append(self.running, i)
        self.workload.progress.state[i] = RUNNING
        self.chosen.append(i)
