"""The clock of time limits. It stands still while loops are compiled, which happens once on a machine."""

from __future__ import annotations

import time

__all__ = ["Pauses", "now"]


class Pauses:
    """Seconds during which the clock stood still; `opt.core.jit` says when, from any thread, nested as they come."""

    total, depth, since = 0.0, 0, 0.0

    @classmethod
    def begin(cls) -> None:
        """Stop the clock."""
        if cls.depth == 0:
            cls.since = time.monotonic()
        cls.depth += 1

    @classmethod
    def end(cls) -> None:
        """Let the clock go on, if this was the first to stop it."""
        cls.depth -= 1
        if cls.depth == 0:
            cls.total += time.monotonic() - cls.since


def now() -> float:
    """Return seconds that only differ meaningfully from each other, in one process."""
    moment = time.monotonic()
    return moment - Pauses.total - (moment - Pauses.since if Pauses.depth else 0.0)
