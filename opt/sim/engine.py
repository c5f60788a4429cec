"""The engine: a state, and one function that moves it by a step, or by a run of equal ones.

A step starts at `now`, with everything that arrived by then in the waiting queue. The policy fills a batch; the cost
model says how long it takes; at its end every decode and every completed prompt makes one token. Time only moves here.
An engine stops before any step that would start at or after a given time, so several engines can be interleaved.

Invariants (each has a test):
    E1. A token is made once: every finished request has made exactly its output, whatever was preempted.
    E2. Causality: arrival <= start < first token <= last token = finish; tokens of a request are strictly in order.
    E3. The memory is never above its capacity (M1), and empty when all is done (M3).
    E4. Conservation: submitted = completed + rejected + waiting + running, at any time.
    E5. No step exceeds the token budget, and no more requests run than `max_running`.
    E6. Running equal steps in one go gives what running them one by one does.
    E7. Work conservation: the engine idles only when the policy had an empty batch, and a policy that leaves it idle
        forever is an error, not a hang.
    E8. The number of steps is bounded by the work: a policy that keeps preempting without making tokens is an error.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Sequence

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost import UNIT, CostModel, Load
from opt.core.cost.layout import LOCALITY
from opt.core.errors import InstanceError
from opt.sim import kernels
from opt.sim.batch import FOREVER, Batch, Chunk, View
from opt.sim.config import EngineConfig
from opt.sim.memory import Memory
from opt.sim.policy import Policy, StalledError
from opt.sim.prefix import Prefixes
from opt.sim.recorder import Recorder, Run
from opt.sim.sharing import repeated_kv
from opt.sim.waiting import Queue
from opt.sim.workload import DONE, FUTURE, REJECTED, RUNNING, WAITING, Workload

__all__ = ["Engine", "Policy", "StalledError"]

LONGEST_RUN = 4096  # steps in one go
PATIENCE = 1000  # preemptions, beyond four for each request there, without a token


class Engine:
    """One engine with its requests, its memory and its clock.

    Args:
        workload: the requests and their progress; engines of a cluster share it.
        policy: what to run.
        config: the settings.
        cost: how long steps take.
        kv_tokens: capacity in tokens where `config` has none.

    Raises:
        InstanceError: the capacity is less than one block.
    """

    def __init__(
        self,
        workload: Workload,
        policy: Policy,
        config: EngineConfig | None = None,
        cost: CostModel = UNIT,
        *,
        kv_tokens: int | None = None,
    ) -> None:
        self.workload, self.policy, self.cost = workload, policy, cost
        self.config = config or EngineConfig()
        self.memory = _memory(workload, self.config, kv_tokens)
        self.goal = workload.output.copy()
        self.arrived_s = workload.requests.arrival_s.copy()
        self.waiting = Queue()
        self.running = np.empty(64, np.int64)
        self.count = 0
        self.now = 0.0
        self.steps = 0
        self.idle_s = 0.0
        self.log = Recorder()
        self.submitted = self.completed = self.rejected = self.preemptions = self.recomputed = self.shareable = 0
        self.finished: list[int] = []
        self.view = View(self)
        self._coming: list[tuple[float, int]] = []
        self._keep: set[int] = set()
        self._since_token = 0
        self._durations = np.empty(LONGEST_RUN)

    def submit(
        self,
        requests: Iterable[int],
        at_s: float | None = None,
        *,
        computed: int = 0,
        tokens: int | None = None,
        keep: bool = False,
    ) -> None:
        """Let requests arrive: at their own arrival, or at `at_s`.

        Args:
            requests: their indices.
            at_s: seconds; not before `now` if the engine has run past it, since the past cannot change.
            computed: tokens of keys and values that they bring along, as after a transfer.
            tokens: output tokens after which they leave this engine, all by default.
            keep: their memory stays taken when they leave, until `release`, as while it is being transferred.

        Raises:
            ValueError: a request is already in an engine.
        """
        progress = self.workload.progress
        for i in requests:
            if progress.state[i] != FUTURE:
                raise ValueError(f"request {self.named(i)} was submitted before")
            progress.computed[i] = computed
            self.submitted += 1
            if keep:
                self._keep.add(i)
            if not self._fits(i, tokens):
                progress.state[i] = REJECTED
                self.rejected += 1
                continue
            if at_s is not None:
                self.arrived_s[i] = at_s
            heapq.heappush(self._coming, (float(self.arrived_s[i]), i))

    def _fits(self, i: int, tokens: int | None) -> bool:
        """Whether a request can ever hold what its last token needs."""
        self.goal[i] = self.workload.output[i] if tokens is None else min(tokens, self.workload.output[i])
        most = int(self.workload.requests.prompt[i] + self.goal[i]) - 1 + self.memory.spare
        return self.memory.blocks_of(most) <= self.memory.capacity

    @property
    def next_arrival_s(self) -> float:
        """When the next submitted request arrives; infinity without one."""
        return self._coming[0][0] if self._coming else math.inf

    @property
    def queued(self) -> int:
        """Submitted requests that wait, those to come included."""
        return len(self.waiting) + len(self._coming)

    @property
    def busy(self) -> bool:
        """Whether anything is waiting, running or to come."""
        return bool(self._coming or self.count or len(self.waiting))

    def advance(self, until_s: float = math.inf) -> None:
        """Run every step that starts before `until_s`, and be idle up to then if there is nothing to do."""
        while self.step(until_s):
            pass

    def step(self, until_s: float = math.inf) -> bool:
        """Run one step, or a run of equal ones, that starts before `until_s`; False if none does.

        Raises:
            StalledError: the policy leaves work undone with nothing to come, or preempts without end.
        """
        while True:
            self._arrive()
            if not self.count and not len(self.waiting):
                if self.next_arrival_s >= until_s:
                    return self._idle(until_s)
                self._wait_until(self.next_arrival_s)
                continue
            if self.now >= until_s:
                return False
            batch = self.policy.decide(self.view)
            self._check_patience(batch)
            if len(batch):
                self._execute(batch, min(until_s, self.next_arrival_s))
                return True
            wake = min(self.next_arrival_s, batch.wake_s if batch.wake_s > self.now else math.inf)
            lent = bool(self._keep) and until_s < math.inf  # whoever calls may give memory back then
            if wake == math.inf and not batch.preempted and not lent:
                raise self._stalled("leaves the engine idle with nothing to come")
            if wake >= until_s:
                return self._idle(until_s)
            if wake < math.inf:
                self._wait_until(wake)

    def _idle(self, until_s: float) -> bool:
        if until_s < math.inf:
            self._wait_until(until_s)
        return False

    def _wait_until(self, time_s: float) -> None:
        if time_s > self.now:
            self.idle_s += time_s - self.now
            self.now = time_s

    def _arrive(self) -> None:
        """Move those who have arrived into the waiting queue."""
        coming, progress, rank = self._coming, self.workload.progress, self.policy.rank
        while coming and coming[0][0] <= self.now:
            arrival, i = heapq.heappop(coming)
            progress.state[i] = WAITING
            self.waiting.add(i, 0 if rank is None else rank[i].item(), arrival)

    def _execute(self, batch: Batch, until_s: float) -> None:
        """Run the steps of a batch."""
        progress, memory, members, chunks = self.workload.progress, self.memory, batch.singles, batch.chunks
        begun, size = self.now, len(members)
        tokens, pairs, sequences, context = _prefill_of(chunks)
        gaps = np.empty(size + len(chunks))
        steps, self.now, taken, kv = kernels.run_steps(
            self.cost.coefficients,
            float(tokens),
            float(pairs),
            float(sequences),
            float(context),
            self._repeated(members),
            members,
            progress.computed,
            progress.produced,
            self.goal,
            progress.last_s,
            progress.max_gap_s,
            memory.blocks,
            memory.block,
            memory.spare,
            memory.available,
            self.now,
            self.config.host(size + sequences),
            until_s,
            1 if chunks else min(batch.repeat, LONGEST_RUN),
            self._durations,
            gaps,
        )
        self.steps += steps
        if taken:
            memory.grow(taken)
        written = size + (self._finish_chunks(chunks, gaps[size:]) if chunks else 0)
        if size:
            self._since_token = 0
        run = Run(begun, steps, tokens, len(chunks), size, kv, memory.used, self.count, len(self.waiting))
        self.log.steps(run, self._durations[:steps], gaps[:written])
        self._retire()

    def _finish_chunks(self, chunks: list[Chunk], gaps: FloatArray) -> int:
        """Let chunks count as computed; return how many gaps between tokens ended."""
        progress, prompt = self.workload.progress, self.workload.requests.prompt
        counts = (progress.computed, progress.produced, progress.reached)
        times = (progress.first_s, progress.last_s, progress.max_gap_s)
        written, made, again = kernels.finish_chunks(np.array(chunks, np.int64), self.now, prompt, *counts, *times, gaps)
        self.recomputed += again
        if made:
            self._since_token = 0
        return written

    def _retire(self) -> None:
        """Let those go that have made all their tokens here; who has more to make elsewhere may be submitted there."""
        progress, output = self.workload.progress, self.workload.output
        self.count, done = kernels.retire(self.running, self.count, progress.produced, self.goal)
        for i in done.tolist():
            if i not in self._keep:
                self.memory.release(i, int(progress.computed[i]))
            whole = progress.produced[i] >= output[i]
            progress.state[i] = DONE if whole else FUTURE
            if whole:
                progress.finish_s[i] = self.now
            self.finished.append(i)
        self.completed += len(done)

    def admit(self, i: int, base: int, cached: int) -> None:
        """Move a waiting request to the running ones; `Batch.add` calls it once its memory is there."""
        progress = self.workload.progress
        self.waiting.remove(i)
        if self.count == len(self.running):
            self.running = np.concatenate([self.running, np.empty_like(self.running)])
        self.running[self.count] = i
        self.count += 1
        progress.state[i] = RUNNING
        if math.isnan(progress.start_s[i]):
            progress.start_s[i] = self.now
            progress.cached[i] = cached
            if self.memory.prefixes is not None:
                self.shareable += self.memory.prefixes.shareable(i)
        progress.computed[i] = base

    def evict(self, i: int) -> None:
        """Take a running request's memory and let it wait; `Batch.preempt` calls it.

        Raises:
            ValueError: the request is not running.
        """
        progress = self.workload.progress
        if progress.state[i] != RUNNING:
            raise ValueError(f"request {self.named(i)} is not running, so it cannot be preempted")
        self.memory.release(i, int(progress.computed[i]), returning=True)
        self.count = kernels.drop(self.running, self.count, i)
        progress.reached[i] = max(progress.reached[i], progress.computed[i])
        progress.computed[i] = 0
        progress.preemptions[i] += 1
        progress.state[i] = WAITING
        rank = self.policy.rank
        self.waiting.add(i, 0 if rank is None else rank[i].item(), float(self.arrived_s[i]))
        self.preemptions += 1
        self._since_token += 1

    def release(self, i: int) -> None:
        """Give the memory back of a request that has left with `keep`.

        Raises:
            ValueError: it has not left, or was not kept.
        """
        if i not in self._keep or self.workload.progress.state[i] in (WAITING, RUNNING):
            raise ValueError(f"request {self.named(i)} holds nothing here that could be released")
        self._keep.discard(i)
        self.memory.release(i, int(self.workload.requests.prompt[i] + self.goal[i]) - 1)

    @property
    def pending_tokens(self) -> int:
        """Tokens that waiting and unfinished requests have to compute before their next token, cached ones not deducted."""
        progress, prompt = self.workload.progress, self.workload.requests.prompt
        who = np.array([*self.waiting, *self.view.partial()], np.int64)
        return int((prompt[who] + progress.produced[who] - progress.computed[who]).sum())

    def withdraw(self, i: int) -> None:
        """Take a waiting request back, as if it had never been submitted here: a router sends it elsewhere."""
        if self.workload.progress.state[i] != WAITING:
            raise ValueError(f"request {self.named(i)} is not waiting, so it cannot be withdrawn")
        self.waiting.remove(i)
        self._keep.discard(i)
        self.workload.progress.state[i] = FUTURE
        self.submitted -= 1

    def load_of(self, members: IntArray, chunks: Sequence[Chunk]) -> Load:
        """Return the load of a step: `members` decode, `chunks` are (request, context, tokens)."""
        tokens, pairs, sequences, context = _prefill_of(chunks)
        kv = int(self.workload.progress.computed[members].sum()) + len(members)
        return Load(tokens, pairs, sequences, context, len(members), kv, self._repeated(members))

    def _repeated(self, members: IntArray) -> float:
        """Return the shared tokens that decodes read again cheaply; not counted where they cost as much as others."""
        memory, config = self.memory, self.config
        if memory.prefixes is None or self.cost.coefficients[LOCALITY] >= 1 or len(members) < 2:
            return 0.0
        kv = 0 if config.cache_tokens is None else int(self.workload.progress.computed[members].sum()) + len(members)
        common = memory.common(members) if config.shared_reads == "all" else 0
        return repeated_kv(config, decodes=len(members), kv=kv, again=memory.repeated(members), common=common)

    def tokens_of(self, i: int) -> int:
        """Return a request's tokens, those it has made included."""
        return int(self.workload.requests.prompt[i] + self.workload.progress.produced[i])

    def named(self, i: int) -> str:
        """Return a request's id and index for a message."""
        return f"{self.workload.requests.ids[i]!r} (index {i})"

    def _check_patience(self, batch: Batch) -> None:
        if self._since_token > PATIENCE + 4 * (self.count + len(self.waiting)):
            raise self._stalled(f"has preempted {self._since_token} times without a token in between")
        if batch.repeat < 1:
            raise ValueError(f"policy {self.policy.name}: repeat = {batch.repeat}: must be at least 1")

    def _stalled(self, what: str) -> StalledError:
        state = f"{len(self.waiting)} waiting, {self.count} running, {self.memory.available} blocks available"
        return StalledError(f"policy {self.policy.name} {what} at {self.now:g} s ({state}); its decision has to change")


def _prefill_of(chunks: Sequence[Chunk]) -> tuple[int, int, int, int]:
    """Return tokens, attention pairs, sequences and cached context of chunks, as `Load` counts them."""
    tokens = pairs = sequences = cached = 0
    for _, context, size in chunks:
        tokens += size
        pairs += size * context + size * (size + 1) // 2
        sequences += size > 0
        cached += context
    return tokens, pairs, sequences, cached


def _memory(workload: Workload, config: EngineConfig, kv_tokens: int | None) -> Memory:
    tokens = config.kv_tokens if config.kv_tokens is not None else kv_tokens
    if tokens is None:
        raise InstanceError(f"{config.name}: no KV capacity; give kv_tokens")
    capacity = tokens // config.block_size
    if capacity < 1:
        raise InstanceError(f"{config.name}: kv_tokens = {tokens} is less than one block (block_size = {config.block_size})")
    blocks = np.zeros(workload.requests.n, np.int64)
    prefixes = Prefixes.of(workload.requests, config.block_size) if config.prefix_cache else None
    return Memory(capacity, config.block_size, int(config.reserve_sampled), blocks, config.prefix_cache, prefixes)


assert FOREVER > LONGEST_RUN
