"""vLLM's scheduler with our order of the waiting queue and our admission; everything else is vLLM's own.

Two levers are used, both before vLLM decides a step: the queue it takes requests from, and the number of requests it may
run (`max_num_active_reqs`), which is lowered to those who run and those of the queue's head who fit by the look-ahead.
So tokens are what they would have been: only who runs when is changed.
"""

from __future__ import annotations

from itertools import islice
from typing import Any, ClassVar

from vllm.v1.core.sched.scheduler import Scheduler

from opt.plugins.keys import key_of
from opt.plugins.lengths import Lengths, as_length
from opt.plugins.lookahead import Profile
from opt.plugins.settings import Settings, settings_from
from opt.plugins.vllm.queue import RankedQueue

__all__ = ["MCSF", "LookAheadFCFS", "Ordered", "SmallestPeak", "SmallestVolume", "SortedF", "extra"]

OUTPUT = "kvopt_output"


def extra(request: Any, name: str) -> object:
    """Return what a request's extra arguments say, None if nothing."""
    params = request.sampling_params
    return None if params is None or not params.extra_args else params.extra_args.get(name)


class Ordered(Scheduler):
    """The common part: an order, expected outputs, look-ahead. Subclasses name the order."""

    order: ClassVar[str] = "fcfs"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        config = self.vllm_config.additional_config
        self.settings: Settings = settings_from(config.get("kvopt") if isinstance(config, dict) else None)
        self._refuse()
        self.lengths = Lengths(self.settings.quantile if self.settings.predictor == "quantile" else None)
        self.seats = self.max_num_active_reqs
        self.waiting = RankedQueue(self.key, self.settings.patience_s)
        self._hints: dict[str, int | None] = {}
        self._coming: set[Any] = set()  # hashes of the blocks that those admitted in this step will compute
        self._ends: dict[str, int] = {}  # prompt + expected output of those who run
        self._blocked: tuple[str, int, int] = ("", 0, 0)  # the head, the blocks it shared, the step before which it cannot start

    def _refuse(self) -> None:
        """Raise ValueError for what was not thought through."""
        wrong = {
            "--scheduling-policy priority: the plug-in has an order of its own; start without it": self.policy.value != "fcfs",
            "models with several kinds of KV cache: the look-ahead knows one": len(self.kv_cache_config.kv_cache_groups) != 1,
            "more than one pipeline stage": self.parallel_config.pipeline_parallel_size > 1,
        }
        for what, is_so in wrong.items():
            if is_so:
                raise ValueError(f"kvopt's scheduler does not support {what}")

    def key(self, request: Any) -> float:
        """Return the place of a waiting request in the order, smaller first."""
        return key_of(self.order, request.num_tokens, self.left(request), self.settings.seed)

    def required_cost(self) -> str:
        """Return the setting `cost` of a scheduler that cannot do without.

        Raises:
            ValueError: there is none.
        """
        if not self.settings.cost:
            raise ValueError(
                f'kvopt: {type(self).__name__} needs the setting cost: --additional-config \'{{"kvopt": {{"cost": '
                '"h100-llama-3-8b"}}\' (`kvopt list costs` shows all; `kvopt fit` makes one of your own)'
            )
        return self.settings.cost

    def hint(self, request: Any) -> int | None:
        """Return the output tokens that a request's client announces, None if it does not."""
        name = request.request_id
        if name not in self._hints:
            self._hints[name] = as_length(extra(request, OUTPUT))
        return self._hints[name]

    def left(self, request: Any) -> int:
        """Return the tokens that a request is still expected to make, at least 1."""
        made = request.num_output_tokens
        return self.lengths.total(self.hint(request), request.max_tokens, made) - made

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Decide a step: how many may be admitted is ours, the rest is vLLM's."""
        self._coming.clear()
        self.prepare()
        self.max_num_active_reqs = len(self.running) + self.num_waiting_for_streaming_input + self.admissible()
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_active_reqs = self.seats

    def prepare(self) -> None:
        """Bring the queue into order, where it is not kept so."""

    def admissible(self) -> int:
        """Return how many of the queue's head may be admitted in this step."""
        free, budget = self.room()
        if free <= 0 or not self.waiting:
            return free
        if not self.settings.look_ahead:
            return free
        if budget <= 0 or self._known_blocked() or self._full():
            return 0
        return self._fitting(self.profile(), free, budget)

    def room(self) -> tuple[int, int]:
        """Return the free seats, and the tokens of the step that running requests leave; none if no block is free."""
        free = self.seats - len(self.running) - self.num_waiting_for_streaming_input
        if free <= 0 or not self.waiting or not self.kv_cache_manager.block_pool.get_num_free_blocks():
            return max(free, 0), 0
        partial = [request for request in self.running if request.is_prefill_chunk]
        owed = sum(request.num_tokens - request.num_computed_tokens for request in partial)
        for request in partial:
            self.comes(request, request.num_tokens)
        return free, self.max_num_scheduled_tokens - (len(self.running) - len(partial)) - owed

    def _known_blocked(self) -> bool:
        """Whether the head was seen not to fit before a later step, and nothing has happened since."""
        name, shared, step = self._blocked
        if self.current_step >= step:
            return False
        head = next(iter(self.waiting))
        return head.request_id == name and self._found(head)[1] == shared

    def _full(self) -> bool:
        """Whether the head's own blocks, those it finds left out, are not there now: a look that saves the look ahead."""
        head = next(iter(self.waiting))
        free = self.kv_cache_manager.block_pool.get_num_free_blocks()
        return (head.num_tokens - self.hit(head)[1] - 1) // self.block_size >= free

    def _fitting(self, profile: Profile, most: int, budget: int) -> int:
        """Return how many of the queue's head fit one after another; one may always run alone, whatever is expected of it."""
        count = 0
        for request in islice(self.waiting, most):
            if self._is_blocked_waiting_status(request.status):
                continue
            found, shared = self._found(request)
            left = self.left(request)
            wait = profile.wait(request.num_tokens, left, shared)
            if wait and (self.running or count):
                self._blocked = (request.request_id, shared, 0 if count else self.current_step + wait)
                break
            count += 1
            size = min(budget, request.num_tokens - found)
            budget -= size
            if budget <= 0:
                break
            profile.add(request.num_tokens, left, shared)
            self.comes(request, found + size)
        return count

    def hit(self, request: Any) -> tuple[Any, int]:
        """Return the blocks that a waiting request finds in the prefix cache, and its tokens that it need not compute.

        Those include what others who are admitted in the same step will have computed before it: vLLM shares that too.
        """
        blocks, tokens, *_ = self.kv_cache_manager.get_computed_blocks(request)
        if self._coming:
            every, hashes = self.hash_block_size, request.block_hashes
            reach, most = tokens // every, (request.num_tokens - 1) // every
            while reach < most and hashes[reach] in self._coming:
                reach += 1
            tokens = max(tokens, reach * every // self.block_size * self.block_size)
        return (blocks.blocks[0] if blocks.blocks else ()), tokens

    def comes(self, request: Any, tokens: int) -> None:
        """Note that a request is to be admitted in this step, and will then have so many tokens computed."""
        self._coming.update(request.block_hashes[: tokens // self.hash_block_size])

    def _found(self, request: Any) -> tuple[int, int]:
        """Return the tokens that a request need not compute, and the blocks it finds that several others hold already."""
        row, tokens = self.hit(request)
        return tokens, sum(block.ref_cnt > 1 for block in row)

    def profile(self) -> Profile:
        """Return the blocks that the running requests will hold."""
        manager = self.kv_cache_manager
        layers = manager.coordinator.single_type_managers[0]
        rows = [layers.req_to_blocks[request.request_id] for request in self.running]
        held = list(map(len, rows))
        capacity = self.kv_cache_config.num_blocks - 1  # one block is vLLM's own
        used = capacity - manager.block_pool.get_num_free_blocks()
        repeated = sum(held) - used
        shared = [_shared(row) for row in rows] if repeated > 0 else None
        common = used - sum(held) + sum(shared) if shared is not None else 0
        tokens, left = self._expected()
        return Profile(layers.block_size, capacity, tokens, left, held, shared, common)

    def _expected(self) -> tuple[list[int], list[int]]:
        """Return the tokens of each running request, and the steps until it ends; what was expected stands until outlived.

        Who has finished its prompt makes one token a step, so that its end in tokens, once looked up, is all there is to know.
        """
        ends, tokens, left = self._ends, [], []
        for request in self.running:
            size = request.num_tokens
            steps = ends.get(request.request_id, 0) - size
            if steps <= 0:
                steps = self.left(request)
                ends[request.request_id] = size + steps
            if request.is_prefill_chunk:
                steps += (size - request.num_computed_tokens - 1) // self.max_num_scheduled_tokens
            tokens.append(size)
            left.append(steps)
        return tokens, left

    def _preempt_request(self, *args: Any, **kwargs: Any) -> Any:
        self._blocked = ("", 0, 0)
        return super()._preempt_request(*args, **kwargs)

    def _free_request(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.get_finished_reason() is not None and not str(request.get_finished_reason()).endswith("abort"):
            self.lengths.saw(request.num_output_tokens)
        self._blocked = ("", 0, 0)
        self._hints.pop(request.request_id, None)
        self._ends.pop(request.request_id, None)
        return super()._free_request(request, *args, **kwargs)


def _shared(row: Any) -> int:
    """Return how many blocks of a request somebody else holds too: a prefix of them, since hashes are chained."""
    low, high = 0, len(row)
    while low < high:
        middle = (low + high) // 2
        if row[middle].ref_cnt > 1:
            low = middle + 1
        else:
            high = middle
    return low


class SmallestVolume(Ordered):
    """Smallest volume first: within a constant of the optimum when no single request fills the memory."""

    order = "svf"


class MCSF(Ordered):
    """Shortest expected output first, with the look-ahead: MC-SF."""

    order = "sof"


class SmallestPeak(Ordered):
    """Smallest prompt + expected output first."""

    order = "total-size"


class LookAheadFCFS(Ordered):
    """First come, first served, with the look-ahead."""

    order = "fcfs"


class SortedF(Ordered):
    """Batches of least F = (sum of expected outputs)/size**2 over the waiting requests, smallest volume first within one.

    Batches are formed anew when a tenth of the queue, or more, has joined since; until then newcomers go last.
    """

    order = "svf"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._formed_at = 0
        self._rank: dict[str, float] = {}
        self._compile()

    def _compile(self) -> None:
        """Compile the former now, so that no request waits for it."""
        from opt.core.instance import Instance
        from opt.solvers.fmetric import fast_batches

        fast_batches(Instance(10, [1, 2], [1, 2]))

    def key(self, request: Any) -> float:
        """Return the place of the batches; newcomers have none yet."""
        return self._rank.get(request.request_id, float("inf"))

    def prepare(self) -> None:
        """Form batches if enough has changed."""
        queue = self.waiting
        joined = queue.joined - self._formed_at
        if joined and 10 * joined >= len(queue):
            self._formed_at = queue.joined
            self._rank = self._ranks(list(queue))
            queue.rekey(self.key)

    def _ranks(self, waiting: list[Any]) -> dict[str, float]:
        import numpy as np

        from opt.core.instance import Instance
        from opt.solvers.fmetric import fast_batches

        if not waiting:
            return {}
        capacity = (self.kv_cache_config.num_blocks - 1) * self.block_size
        prompt = np.array([min(request.num_tokens, capacity - 1) for request in waiting], np.int64)
        output = np.array([self.left(request) for request in waiting], np.int64)
        instance = Instance(capacity, prompt, np.minimum(output, capacity - prompt))
        order = np.lexsort((instance.volume, fast_batches(instance)))
        return {waiting[at].request_id: float(place) for place, at in enumerate(order.tolist())}
