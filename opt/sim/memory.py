"""Where keys and values live: blocks of tokens, counted exactly, and kept for reuse when asked.

Token-exact memory is paging with blocks of one token. Whatever is asked for is checked first and taken then, all or
nothing, so a refusal leaves no trace.

Convention for the token being made: with `spare` = 1 its slot is held in the step that makes it, as in the model of
rounds (`s + k` tokens in the k-th step, the last included). With `spare` = 0 it is written by the next step, as in
engines: `s + k - 1` tokens, and the last token of an output is never written.

Reuse, as in engines: full blocks that nobody holds stay where they are until their place is needed, least recently
freed first, of one request the deepest first; a partial block is free at once. Prompt units with equal hashes serve any
request; a preempted request also finds its own blocks again, if the chain from its first block on is unbroken.

Invariants (each has a test):
    M1. 0 <= used <= capacity after every call, and used + idle <= capacity.
    M2. A refused call changes nothing.
    M3. `used` is 0 when nobody holds anything.
    M4. A cached unit's predecessors are cached too: the least recently used leaf goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.sim import kernels
from opt.sim.prefix import Prefixes

__all__ = ["NOTHING", "Match", "Memory"]

Key: TypeAlias = int | tuple[str, int]  # the name of a prompt unit; ("own", request) of a preempted one; ("past", number)


class Match(NamedTuple):
    """What a request would find if it were admitted now.

    Args:
        units: leading prompt units in the cache.
        unheld: how many of them nobody holds.
        own: blocks of its own behind these, from before a preemption.
        tokens: all of it in tokens.
    """

    units: int = 0
    unheld: int = 0
    own: int = 0
    tokens: int = 0


NOTHING = Match()


@dataclass(eq=False)
class Memory:
    """The blocks of one engine.

    Args:
        capacity: blocks.
        block: tokens in a block.
        spare: 1 to hold the slot of the token being made, see above.
        blocks: (n,) blocks each request holds, shared ones included.
        reuse: keep what nobody holds until its place is needed.
        prefixes: the hashes of the prompts, None where there are none or nothing is to be reused.
        used: blocks held by anybody, each once.
        peak: the largest `used` there has been.
        held: prompt units that somebody holds, and how many do.
        idle: what nobody holds any more, in the order in which it will go, and its blocks.
        idle_blocks: their sum.
        linked: (n,) leading prompt units that a request shares, or is ready to share, with others.
        present: (distinct units,) whether a prompt unit is in memory, held or idle.
    """

    capacity: int
    block: int
    spare: int
    blocks: IntArray
    reuse: bool = False
    prefixes: Prefixes | None = None
    used: int = 0
    peak: int = 0
    held: dict[int, int] = field(default_factory=dict)
    idle: OrderedDict[Key, int] = field(default_factory=OrderedDict)
    idle_blocks: int = 0
    present: npt.NDArray[np.bool_] = field(init=False)
    _past: int = 0
    _stamp: IntArray = field(init=False)
    linked: IntArray = field(init=False)
    _broke_at: dict[int, int] = field(default_factory=dict)  # the same of a preempted one, when it lost them

    def __post_init__(self) -> None:
        self.linked = np.zeros(len(self.blocks), np.int64)
        self._stamp = np.full(0 if self.prefixes is None else self.prefixes.distinct + 1, 0, np.int64)
        self.present = np.zeros(0 if self.prefixes is None else self.prefixes.distinct, bool)

    @property
    def available(self) -> int:
        """Blocks that can be had, idle ones included."""
        return self.capacity - self.used

    @property
    def unit(self) -> int:
        """Tokens in a reusable prompt unit, 0 without prefixes."""
        return 0 if self.prefixes is None else self.prefixes.unit

    @property
    def per_unit(self) -> int:
        """Blocks in a reusable prompt unit, 0 without prefixes."""
        return self.unit // self.block

    def blocks_of(self, tokens: int) -> int:
        """Return the blocks that so many tokens take."""
        return -(-tokens // self.block)

    def match(self, i: int, total: int | None = None) -> Match:
        """Return what a waiting request would find; at least one of its `total` tokens, the prompt by default, is computed."""
        units, unheld = (0, 0) if self.prefixes is None else self._match_units(self.prefixes, i, total)
        own = self.idle.get(("own", i), 0) if self.reuse and self._broke_at.get(i, -1) == units else 0
        if not units and not own:
            return NOTHING
        return Match(units, unheld, own, units * self.unit + own * self.block)

    def _match_units(self, prefixes: Prefixes, i: int, total: int | None) -> tuple[int, int]:
        held, idle = self.held, self.idle
        count, unheld = 0, 0
        for name in prefixes.units(i)[: prefixes.most(i) if total is None else (total - 1) // prefixes.unit]:
            if name in held:
                count += 1
            elif name in idle:
                count += 1
                unheld += 1
            else:
                break
        return count, unheld

    def repeated(self, members: IntArray) -> int:
        """Return the tokens of shared units that members hold beyond the first who holds each."""
        if self.prefixes is None:
            return 0
        again = kernels.repeats(members, self.prefixes.names, self.prefixes.starts, self.linked, self._stamp)
        return int(again) * self.unit

    def common(self, members: IntArray) -> int:
        """Return the tokens of the longest prefix that all members hold, in whole units."""
        if self.prefixes is None or not len(members):
            return 0
        starts, names = self.prefixes.starts[members], self.prefixes.names
        low, high = 0, int(self.linked[members].min())
        while low < high:  # equal units mean equal units before them
            depth = (low + high + 1) // 2
            here = names[starts + depth - 1]
            low, high = (depth, high) if (here == here[0]).all() else (low, depth - 1)
        return low * self.unit

    def price(self, i: int, tokens: int, match: Match = NOTHING) -> int:
        """Return the available blocks it costs to let a request hold `tokens`, `match` being what it found."""
        return max(0, self.blocks_of(tokens) - int(self.blocks[i]) - (match.units - match.unheld) * self.per_unit)

    def take(self, i: int, tokens: int, match: Match = NOTHING) -> bool:
        """Let a request hold `tokens`, or return False and change nothing."""
        cost = self.price(i, tokens, match)
        if cost > self.available:
            return False
        self._link(i, match)
        self.blocks[i] = max(int(self.blocks[i]), self.blocks_of(tokens))
        self.grow(cost)
        return True

    def grow(self, blocks: int) -> None:
        """Count blocks as used that are known to be available; idle ones make place for them."""
        self.used += blocks
        self.peak = max(self.peak, self.used)
        over = self.used + self.idle_blocks - self.capacity
        while over > 0:
            key, size = self.idle.popitem(last=False)
            gone = size
            if isinstance(key, tuple):
                gone = min(size, over)
            else:
                self.present[key] = False
            if gone < size:
                self.idle[key] = size - gone
                self.idle.move_to_end(key, last=False)
            self.idle_blocks -= gone
            over -= gone

    def _link(self, i: int, match: Match) -> None:
        """Hold what was found; `price` has counted what of it nobody held."""
        own = self.idle.pop(("own", i), 0)
        self.idle_blocks -= own
        self._broke_at.pop(i, None)
        if not match.units:
            return
        assert self.prefixes is not None
        for name in self.prefixes.units(i)[: match.units]:
            if name in self.held:
                self.held[name] += 1
            else:
                self.idle_blocks -= self.idle.pop(name)
                self.held[name] = 1
        self.linked[i] = match.units

    def register(self, i: int, computed: int) -> None:
        """Make the full prompt units among a request's first `computed` tokens available to others.

        A unit that is cached already, because somebody computed it meanwhile or because the last token of a prompt is
        always computed anew, stays an own copy, as in engines; so do those after it.
        """
        if self.prefixes is None:
            return
        units, linked = self.prefixes.units(i), int(self.linked[i])
        full = min(computed // self.unit, len(units))
        for name in units[linked:full]:
            if self.present[name]:
                break
            self.held[name] = 1
            self.present[name] = True
            linked += 1
        self.linked[i] = linked

    def release(self, i: int, computed: int = 0, *, returning: bool = False) -> None:
        """Take everything from a request.

        Args:
            i: the request.
            computed: its tokens in memory, of which full blocks stay for reuse.
            returning: it was preempted, and may find its own blocks again.
        """
        linked = int(self.linked[i])
        self.linked[i] = 0
        private = int(self.blocks[i]) - linked * self.per_unit
        self.blocks[i] = 0
        self.used -= private
        if self.reuse:
            self._keep(i, min(private, computed // self.block - linked * self.per_unit), linked, returning)
        if linked:
            self._unlink(i, linked)

    def _keep(self, i: int, full: int, linked: int, returning: bool) -> None:
        """Let full private blocks stay until their place is needed."""
        if full <= 0:
            return
        self._past += 1
        self.idle[("own", i) if returning else ("past", self._past)] = full
        self.idle_blocks += full
        if returning:
            self._broke_at[i] = linked

    def _unlink(self, i: int, linked: int) -> None:
        assert self.prefixes is not None
        for name in reversed(self.prefixes.units(i)[:linked]):
            holders = self.held[name] - 1
            if holders:
                self.held[name] = holders
            else:
                del self.held[name]
                self.idle[name] = self.per_unit
                self.idle_blocks += self.per_unit
                self.used -= self.per_unit
