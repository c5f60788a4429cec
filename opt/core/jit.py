"""The one place that loads numba: compiled loops, cached on disk, free of the interpreter lock."""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numba.core.event import Event, Listener, register

from opt.core.clock import Pauses

__all__ = ["compiled", "digest"]

Loop = TypeVar("Loop", bound=Callable[..., object])

PACKAGE = Path(__file__).resolve().parents[1]


class _Compiling(Listener):
    """Stops the clock of time limits."""

    def on_start(self, event: Event) -> None:
        Pauses.begin()

    def on_end(self, event: Event) -> None:
        Pauses.end()


cast(Any, register)("numba:compile", _Compiling())


def compiled(function: Loop) -> Loop:
    """Compile `function` on first call and cache the machine code beside the package, or else in `~/.cache/kvopt`.

    Machine code holds copies of what it calls and of constants from other modules. Numba finds a cached copy by the source
    of the function's own module alone, so after a change elsewhere (an edit, an upgrade) it would run old code. Here the
    `digest` of the module is part of the path.
    """
    config: Any = numba.config  # it fills itself from the environment
    before = config.CACHE_DIR
    try:
        config.CACHE_DIR = str(Path(before or _folder()) / f"kernels-{digest(function.__module__)}")
        return cast(Loop, numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:  # nowhere to write, or no home: it is compiled in every process
        return cast(Loop, numba.njit(nogil=True)(function))
    finally:
        config.CACHE_DIR = before


@functools.cache
def _folder() -> Path:
    """Return where the cache is, unless `NUMBA_CACHE_DIR` says where."""
    beside = PACKAGE / "__pycache__"
    if os.access(beside if beside.exists() else PACKAGE, os.W_OK):
        return beside
    return Path("~/.cache/kvopt").expanduser()


@functools.cache
def digest(name: str) -> str:
    """Return a digest of a module's source, of the numbers it has imported, and of the modules whose compiled loops it has."""
    module = sys.modules[name]
    summed = hashlib.sha256(Path(str(module.__file__)).read_bytes())
    for key, value in sorted(vars(module).items()):
        if isinstance(value, int | float | np.number | tuple) and "0x" not in repr(value):
            summed.update(f"{key} = {value!r}\n".encode())
        elif hasattr(value, "py_func") and value.py_func.__module__ != name:
            summed.update(f"{key} from {digest(value.py_func.__module__)}\n".encode())
    return summed.hexdigest()[:16]
