"""The exact look-ahead of the offline orders in an engine's own unit: blocks.

Everybody who runs makes one token in every step until its expected output is there; so the blocks taken in every later
step are known. In step t from now (the next one is 1) a request of n tokens, of which the last is not in memory yet, has
`ceil((n + t - 1) / block)` blocks. Usage only grows until somebody ends, so it is enough to look at the ends.

Beyond `EXACT` different ends, ends are rounded up to a grid: everybody is then taken to stay a little longer than
expected, which is safe, and keeps the work of a step bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opt.core.columns import IntArray

__all__ = ["EXACT", "Profile"]

EXACT = 64


class Profile:
    """The blocks that running requests will hold.

    Args:
        block: tokens in a block.
        capacity: blocks.
        tokens: (n,) tokens of each running request, the one made last included.
        left: (n,) steps until each ends, at least 1.
        held: (n,) blocks each holds.
        shared: (n,) how many of these somebody else holds too.
        common: blocks that several hold, counted once; they are taken to stay.
    """

    def __init__(
        self,
        block: int,
        capacity: int,
        tokens: list[int],
        left: list[int],
        held: list[int],
        shared: list[int] | None = None,
        common: int = 0,
    ) -> None:
        self._block, self._room = block, capacity - common
        self._tokens = np.array(tokens, np.int64)
        self._left = np.array(left, np.int64)
        self._held = np.array(held, np.int64)
        self._shared = np.zeros(len(tokens), np.int64) if shared is None else np.array(shared, np.int64)
        self._solve()

    def _solve(self) -> None:
        """Find the ends and the blocks taken at each of them."""
        left = self._left
        ends = np.array(sorted(set(left.tolist())), np.int64)
        if len(ends) > EXACT:
            grid = -(-int(ends[-1]) // EXACT)
            left = -(-left // grid) * grid
            ends = np.unique(left)
        self._ends = ends
        self._used = self._blocks(ends, left)

    def _blocks(self, times: IntArray, left: IntArray) -> IntArray:
        """Return the blocks taken in each of these steps."""
        tokens = self._tokens[:, None] + np.minimum(times[None, :], self._left[:, None]) - 1
        blocks = np.maximum(-(-tokens // self._block), self._held[:, None]) - self._shared[:, None]
        used: IntArray = (blocks * (times[None, :] <= left[:, None])).sum(axis=0)
        return used

    def fits(self, tokens: int, left: int, shared: int = 0) -> bool:
        """Whether a request can start in the next step; arguments as in `wait`."""
        return self.wait(tokens, left, shared) == 0

    def wait(self, tokens: int, left: int, shared: int = 0) -> int:
        """Return a number of steps for which a request cannot start: 0 if it can start in the next one.

        It holds while nobody ends sooner than expected, joins or is preempted.

        Args:
            tokens: of its prompt, and of what it had made before it lost its memory.
            left: steps until it ends.
            shared: blocks it finds that are counted as common.
        """
        times = np.append(self._ends[self._ends < left], left)
        others = np.append(self._used[: len(times) - 1], self._blocks(times[-1:], self._left))
        most = (self._room - others + shared) * self._block  # the tokens it may have by then
        over = tokens + times - 1 - most
        if over.max() <= 0:
            return 0
        blocked = over[:-1] > 0  # started so much later it would fit by then, or the other one would have ended
        return max(1, int(np.minimum(over[:-1], times[:-1])[blocked].max(initial=0)))

    def add(self, tokens: int, left: int, shared: int = 0) -> None:
        """Let a request start in the next step."""
        self._tokens = np.append(self._tokens, tokens)
        self._left = np.append(self._left, left)
        self._held = np.append(self._held, 0)
        self._shared = np.append(self._shared, shared)
        at = int(np.searchsorted(self._ends, left))
        known = at < len(self._ends) and self._ends[at] == left
        if not known and len(self._ends) >= EXACT:
            self._solve()
            return
        if not known:
            others = self._blocks(np.array([left]), self._left)[0] - self._own(left, tokens, shared)
            self._ends, self._used = np.insert(self._ends, at, left), np.insert(self._used, at, others)
        self._used[: at + 1] += self._own(self._ends[: at + 1], tokens, shared)

    def _own(self, times: IntArray | int, tokens: int, shared: int) -> Any:
        """Return the blocks in these steps, before it ends, of a request of so many tokens that starts in the next one."""
        return -(-(tokens + times - 1) // self._block) - shared
