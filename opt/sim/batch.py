"""What a policy is shown (`View`), and what it answers with (`Batch`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from opt.core.columns import IntArray, frozen
from opt.core.cost import CostModel, Load
from opt.sim import kernels
from opt.sim.config import EngineConfig
from opt.sim.memory import NOTHING
from opt.sim.waiting import Queue
from opt.sim.workload import RUNNING, WAITING, Progress, Requests

if TYPE_CHECKING:
    from opt.sim.engine import Engine

__all__ = ["FOREVER", "Batch", "Chunk", "View"]

Chunk: TypeAlias = tuple[int, int, int]  # request, tokens in memory before it, tokens computed


FOREVER = 2**62  # steps; in practice: until something arrives, finishes or needs memory


@dataclass(frozen=True, eq=False)
class View:
    """An engine at the start of a step, without the true outputs. What it shows is for reading only."""

    _engine: Engine

    @property
    def now(self) -> float:
        """Seconds."""
        return self._engine.now

    @property
    def steps(self) -> int:
        """Steps run so far."""
        return self._engine.steps

    @property
    def idle_s(self) -> float:
        """Seconds without a step so far."""
        return self._engine.idle_s

    @property
    def requests(self) -> Requests:
        """What is known of all requests."""
        return self._engine.workload.requests

    @property
    def progress(self) -> Progress:
        """How far each has come."""
        return self._engine.workload.progress

    @property
    def waiting(self) -> Queue:
        """Arrived requests without memory, by the policy's rank, then arrival."""
        return self._engine.waiting

    @property
    def running(self) -> IntArray:
        """Requests that hold memory, in the order of their admission."""
        return frozen(self._engine.running[: self._engine.count])

    @property
    def config(self) -> EngineConfig:
        """The engine's settings."""
        return self._engine.config

    @property
    def cost(self) -> CostModel:
        """How long steps take."""
        return self._engine.cost

    @property
    def memory(self) -> tuple[int, int]:
        """(available, all) tokens, in whole blocks; idle cached prefixes count as available."""
        memory = self._engine.memory
        return memory.available * memory.block, memory.capacity * memory.block

    def ready(self) -> IntArray:
        """Return the running requests whose next step is a decode, in the order of admission."""
        return kernels.ready(*self._columns())

    def partial(self) -> list[int]:
        """Return the running requests whose prompt (or recomputation) is not finished, in the order of admission."""
        found: list[int] = kernels.unfinished(*self._columns()).tolist()
        return found

    def _columns(self) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        engine = self._engine
        progress = engine.workload.progress
        return engine.running[: engine.count], engine.workload.requests.prompt, progress.computed, progress.produced

    def needs(self, i: int) -> int:
        """Return the tokens a request has to compute before it makes its next one; cached ones are not among them."""
        progress = self.progress
        return int(self.requests.prompt[i] + progress.produced[i]) - self.base(i)

    def base(self, i: int) -> int:
        """Return the tokens a request has in memory, or would find there if it were admitted now."""
        computed = int(self.progress.computed[i])
        if self.progress.state[i] == RUNNING:
            return computed
        return max(computed, self._engine.memory.match(i, self._engine.tokens_of(i)).tokens)

    def units(self, i: int) -> list[int]:
        """Return names of a request's full prompt units, equal where all tokens up to there are; none without hashes."""
        prefixes = self._engine.memory.prefixes
        return [] if prefixes is None else prefixes.units(i)

    def cached_units(self, who: IntArray) -> IntArray:
        """Return how many leading prompt units of each of these requests are in memory now (at most all of its prompt)."""
        memory = self._engine.memory
        if memory.prefixes is None:
            return np.zeros(len(who), np.int64)
        return kernels.match_all(who, memory.prefixes.names, memory.prefixes.starts, memory.present)

    def names_at(self, who: IntArray, depth: int) -> IntArray:
        """Return the names of the requests' prompt units number `depth`, which all of them must have."""
        prefixes = self._engine.memory.prefixes
        assert prefixes is not None, "nobody has prompt units without prefix hashes"
        return prefixes.names[prefixes.starts[who] + depth]

    @property
    def unit(self) -> int:
        """Tokens in a reusable prompt unit, 0 without a cache."""
        return self._engine.memory.unit

    def batch(self) -> Batch:
        """Return an empty batch to fill."""
        return Batch(self._engine)


class Batch:
    """The work of one step. Memory is taken as it is filled: what is refused leaves no trace.

    Set `repeat` to the number of equal steps that may follow one another (1 unless said otherwise; `FOREVER` for a
    batch of decodes that only an arrival, a completion or a lack of memory would change), and `wake_s` on an empty
    batch to be asked again at that time even if nothing arrives.
    """

    __slots__ = ("_engine", "budget", "chunks", "max_chunk", "preempted", "repeat", "seats", "singles", "wake_s")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.budget = engine.config.token_budget
        self.seats = engine.config.max_running - engine.count
        self.max_chunk = engine.config.max_chunk
        self.chunks: list[Chunk] = []
        self.singles: IntArray = np.empty(0, np.int64)
        self.preempted: list[int] = []
        self.repeat = 1
        self.wake_s = float("inf")

    def __len__(self) -> int:
        return len(self.chunks) + len(self.singles)

    def decode(self, members: IntArray | None = None) -> bool:
        """Add one token for each of `members`, every decode by default; False, and nothing, if they do not all fit."""
        engine, memory, progress = self._engine, self._engine.memory, self._engine.workload.progress
        chosen = engine.view.ready() if members is None else np.asarray(members, np.int64)
        if len(self.singles):
            raise ValueError("a batch takes its decodes once; collect them first")
        if len(chosen) > self.budget:
            return False
        more = kernels.reserve_all(chosen, progress.computed, memory.blocks, memory.block, memory.spare, memory.available)
        if more < 0:
            return False
        memory.grow(more)
        self.singles = chosen
        self.budget -= len(chosen)
        return True

    def add(self, i: int, tokens: int | None = None) -> bool:
        """Let request i compute up to `tokens` of what it needs, all by default; False if it is refused.

        The budget and the engine's largest chunk cap it: `budget` tells what is left. A waiting request is admitted by it,
        with what the cache has. A decode counts as one token, an empty prompt as none.
        """
        engine = self._engine
        memory, progress = engine.memory, engine.workload.progress
        state = progress.state[i]
        if state not in (WAITING, RUNNING):
            raise ValueError(f"request {engine.named(i)} is neither waiting nor running, so it cannot be scheduled")
        if state == WAITING and self.seats <= 0:
            return False
        found = memory.match(i, engine.tokens_of(i)) if state == WAITING else NOTHING
        computed = int(progress.computed[i])
        if found.tokens <= computed:
            found = NOTHING  # what it has, or brings along, is more than what is cached
        base = max(computed, found.tokens)
        need = int(engine.workload.requests.prompt[i] + progress.produced[i]) - base
        largest = min(need, self.budget, self.max_chunk or need)
        size = largest if tokens is None else min(largest, int(tokens))
        if (size <= 0 and need > 0) or not memory.take(i, base + size + (memory.spare if size == need else 0), found):
            return False
        if state == WAITING:
            engine.admit(i, base, found.tokens)
            self.seats -= 1
            if base > found.tokens:  # what a request brings along is there for others too
                memory.register(i, base)
        self._schedule(i, base, size, need)
        return True

    def fits(self, i: int, tokens: int | None = None, *, keep_free: int = 0) -> bool:
        """Whether a waiting request could hold `tokens` more than the cache has, all it needs by default, now.

        `keep_free` tokens must be left over. Nothing is taken.
        """
        engine = self._engine
        memory, progress = engine.memory, engine.workload.progress
        found = memory.match(i, engine.tokens_of(i))
        computed = int(progress.computed[i])
        if found.tokens <= computed:
            found = NOTHING
        whole = int(engine.workload.requests.prompt[i] + progress.produced[i]) + memory.spare
        wanted = whole if tokens is None else min(whole, max(computed, found.tokens) + tokens)
        return memory.price(i, wanted, found) + memory.blocks_of(keep_free) <= memory.available

    def _schedule(self, i: int, base: int, size: int, need: int) -> None:
        self.budget -= size
        if need == 1 and self._engine.workload.progress.produced[i] > 0:
            self.singles = np.append(self.singles, np.int64(i))
        else:
            self.chunks.append((i, base, size))
            self._engine.memory.register(i, base + size)

    def preempt(self, i: int) -> None:
        """Take a running request's memory; it waits again, and will compute everything anew.

        A decode of this batch is taken out of it. A request whose chunk is in the batch cannot be preempted.
        """
        if any(i == chunk[0] for chunk in self.chunks):
            raise ValueError(f"request {self._engine.named(i)} has a chunk in this batch, so it cannot be preempted now")
        if len(self.singles) and i in self.singles:
            self.singles = self.singles[self.singles != i]
            self.budget += 1
        self._engine.evict(i)
        self.seats += 1
        self.preempted.append(i)

    def load(self, i: int | None = None, tokens: int = 0) -> Load:
        """Return the load of the step as it stands, or as it would be with `tokens` more of request i."""
        chunks = self.chunks if i is None or tokens <= 0 else [*self.chunks, (i, self._engine.view.base(i), tokens)]
        return self._engine.load_of(self.singles, chunks)

    def seconds(self, i: int | None = None, tokens: int = 0) -> float:
        """Return how long the step takes by the cost model, host time included; `i`, `tokens` as in `load`."""
        load = self.load(i, tokens)
        return self._engine.cost.seconds(load) + self._engine.config.host(int(load.decodes + load.prefill_sequences))

    def largest(self, i: int, limit_s: float, most: int | None = None) -> int:
        """Return the most tokens of request i with which the step, host time included, takes at most `limit_s`; 0 if none.

        At most `most`, what i needs, and what budget and the engine's largest chunk leave; whether memory has room is not
        asked.
        """
        engine = self._engine
        base = engine.view.base(i)
        need = int(engine.workload.requests.prompt[i] + engine.workload.progress.produced[i]) - base
        room = min(need, self.budget, self.max_chunk or need, need if most is None else most)
        load = self.load()
        host = engine.config.host(int(load.decodes + load.prefill_sequences) + 1)
        tokens, pairs, sequences, context, decodes, kv, repeated = map(float, load)
        coefficients = engine.cost.coefficients
        return kernels.largest_chunk(
            coefficients, tokens, pairs, sequences, context, decodes, kv, repeated, base, max(room, 0), limit_s - host
        )
