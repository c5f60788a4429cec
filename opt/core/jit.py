"""The one place that loads numba: compiled loops, cached on disk, free of the interpreter lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

__all__ = ["compiled"]

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(function: Loop) -> Loop:
    """Compile `function` on first call and cache the machine code beside it, or in the user's cache directory."""
    return cast(Loop, numba.njit(cache=True, nogil=True)(function))
