"""Where keys and values live: blocks of tokens, counted exactly, with prefixes kept for reuse when asked.

Token-exact memory is paging with blocks of one token. Whatever is asked for is checked first and taken then, all or
nothing, so a refusal leaves no trace.

Convention for the token being made: with `spare` = 1 its slot is held in the step that makes it, as in the model of
rounds (`s + k` tokens in the k-th step, the last included). With `spare` = 0 it is written by the next step, as in
engines: `s + k - 1` tokens, and the last token of an output is never written.

Invariants (each has a test):
    M1. 0 <= used <= capacity after every call, and cached + used <= capacity.
    M2. A refused call changes nothing.
    M3. `used` is 0 when nobody holds anything.
    M4. A cached chunk's predecessors are cached too: the least recently used leaf goes first.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np

from opt.core.columns import IntArray
from opt.sim.workload import Requests

__all__ = ["Memory", "PrefixCache"]


@dataclass(eq=False)
class PrefixCache:
    """Full chunks of prompts that are, or were lately, in memory; what nobody holds goes in least-recent-first order.

    A unit is the least number of tokens that is a multiple of both the block and the chunk of the hashes. Units are
    matched from the first on, and at least one token of a prompt is always computed.

    Args:
        requests: whose hashes to use.
        unit: tokens in a unit.
        held: holders of each cached unit that somebody holds.
        idle: cached units that nobody holds, first to go first.
        linked: (n,) leading units of a request that it holds in the cache.
        seen: the hashes of all chunks of admitted requests, whatever their size and whether or not they are still there.
    """

    requests: Requests
    unit: int
    held: dict[int, int] = field(default_factory=dict)
    idle: OrderedDict[int, None] = field(default_factory=OrderedDict)
    linked: IntArray = field(init=False)
    seen: set[int] = field(default_factory=set)
    _units: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.linked = np.zeros(self.requests.n, np.int64)

    @classmethod
    def of(cls, requests: Requests, block: int) -> PrefixCache | None:
        """Return an empty cache, None where no request has hashes."""
        if requests.prefix_ids is None or requests.prefix_chunk is None:
            return None
        return cls(requests, math.lcm(block, requests.prefix_chunk))

    def units(self, i: int) -> list[int]:
        """Return the hashes of a request's full units: each names all tokens up to its end."""
        found = self._units.get(i)
        if found is None:
            requests = self.requests
            assert requests.prefix_ids is not None and requests.prefix_offsets is not None and requests.prefix_chunk
            step = self.unit // requests.prefix_chunk
            low = int(requests.prefix_offsets[i])
            full = int(requests.prompt[i]) // self.unit
            found = requests.prefix_ids[low + step - 1 : low + full * step : step].tolist()
            self._units[i] = found
        return found

    def shareable(self, i: int) -> int:
        """Return the leading tokens that an earlier admitted request had too, chunk by chunk, and remember the prompt.

        It says what an unlimited cache with blocks as small as the chunks would find, so that few hits explain themselves.
        """
        requests = self.requests
        assert requests.prefix_ids is not None and requests.prefix_offsets is not None and requests.prefix_chunk
        chunks = requests.prefix_ids[requests.prefix_offsets[i] : requests.prefix_offsets[i + 1]].tolist()
        known = next((k for k, name in enumerate(chunks) if name not in self.seen), len(chunks))
        self.seen.update(chunks[known:])
        return min(known * requests.prefix_chunk, int(requests.prompt[i]))

    def match(self, i: int) -> tuple[int, int]:
        """Return how many leading units of a request are cached, and how many of these nobody holds."""
        held, idle = self.held, self.idle
        most = (int(self.requests.prompt[i]) - 1) // self.unit
        count, unheld = 0, 0
        for unit in self.units(i)[:most]:
            if unit in held:
                count += 1
            elif unit in idle:
                count += 1
                unheld += 1
            else:
                break
        return count, unheld


@dataclass(eq=False)
class Memory:
    """The blocks of one engine.

    Args:
        capacity: blocks.
        block: tokens in a block.
        spare: 1 to hold the slot of the token being made, see above.
        blocks: (n,) blocks each request holds, cached ones included.
        used: blocks held by anybody, each once.
        cache: the prefix cache, or None.
        peak: the largest `used` there has been.
    """

    capacity: int
    block: int
    spare: int
    blocks: IntArray
    cache: PrefixCache | None = None
    used: int = 0
    peak: int = 0

    @property
    def available(self) -> int:
        """Blocks that can be had, those of idle cached units included."""
        return self.capacity - self.used

    @property
    def per_unit(self) -> int:
        """Blocks in a unit of the cache."""
        return 0 if self.cache is None else self.cache.unit // self.block

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take."""
        return -(-tokens // self.block)

    def cached_tokens(self, i: int) -> int:
        """Return the leading prompt tokens of a request that the cache has now."""
        return 0 if self.cache is None else self.cache.match(i)[0] * self.cache.unit

    def price(self, i: int, tokens: int, matched: tuple[int, int] = (0, 0)) -> int:
        """Return the available blocks it costs to let a request hold `tokens`; `matched` is its match, if it is new."""
        return max(0, self.blocks_of(tokens) - int(self.blocks[i]) - (matched[0] - matched[1]) * self.per_unit)

    def take(self, i: int, tokens: int, matched: tuple[int, int] = (0, 0)) -> bool:
        """Let a request hold `tokens`, or return False and change nothing."""
        cost = self.price(i, tokens, matched)
        if cost > self.available:
            return False
        if matched[0]:
            self._link(i, matched[0])
        self.blocks[i] = max(int(self.blocks[i]), self.blocks_of(tokens))
        self.grow(cost)
        return True

    def grow(self, blocks: int) -> None:
        """Count blocks as used that are known to be available; idle units make place for them."""
        self.used += blocks
        self.peak = max(self.peak, self.used)
        if self.cache is not None and self.cache.idle:
            self._evict()

    def release(self, i: int) -> None:
        """Take everything from a request. Its cached units become idle, the deepest as the first to go."""
        cache = self.cache
        linked = 0 if cache is None else int(cache.linked[i])
        self.used -= int(self.blocks[i]) - linked * self.per_unit
        self.blocks[i] = 0
        if cache is None or not linked:
            return
        cache.linked[i] = 0
        for unit in reversed(cache.units(i)[:linked]):
            holders = cache.held[unit] - 1
            if holders:
                cache.held[unit] = holders
            else:
                del cache.held[unit]
                cache.idle[unit] = None
                self.used -= self.per_unit

    def register(self, i: int, computed: int) -> None:
        """Make the full prompt units among a request's first `computed` tokens available to others.

        A unit that somebody else has cached meanwhile is shared from now on, and the own copy is given back.
        """
        cache = self.cache
        if cache is None:
            return
        units = cache.units(i)
        full = min(computed // cache.unit, len(units))
        for unit in units[int(cache.linked[i]) : full]:
            if unit in cache.held:
                cache.held[unit] += 1
                self.used -= self.per_unit
            else:
                cache.idle.pop(unit, None)
                cache.held[unit] = 1
        cache.linked[i] = max(full, int(cache.linked[i]))

    def _link(self, i: int, count: int) -> None:
        """Hold cached units without using more than the idle ones among them; `price` has counted those."""
        cache = self.cache
        assert cache is not None
        for unit in cache.units(i)[:count]:
            if unit in cache.held:
                cache.held[unit] += 1
            else:
                del cache.idle[unit]
                cache.held[unit] = 1
        cache.linked[i] = count

    def _evict(self) -> None:
        assert self.cache is not None
        idle = self.cache.idle
        over = self.used + len(idle) * self.per_unit - self.capacity
        while over > 0:
            idle.popitem(last=False)
            over -= self.per_unit
