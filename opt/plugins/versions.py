"""Which engine versions the plug-ins were tested with. Engines change their inner interfaces without notice."""

from __future__ import annotations

import importlib.metadata
import re

__all__ = ["require"]


def require(engine: str, names: tuple[str, ...], lowest: str, below: str, install: str) -> str:
    """Return the installed version of an engine.

    Args:
        engine: for messages.
        names: distributions that may provide it.
        lowest, below: tested versions, the second one excluded.
        install: how to get one of them.

    Raises:
        ImportError: none is installed, or a version that was not tested.
    """
    found = next((version for name in names if (version := _version(name)) is not None), None)
    if found is None:
        raise ImportError(f"{engine} is not installed; kvopt's plug-in works with {engine} {lowest} up to {below} ({install})")
    if not _numbers(lowest) <= _numbers(found) < _numbers(below):
        raise ImportError(
            f"{engine} {found} is installed; kvopt's plug-in works with {engine} {lowest} up to but not including {below} "
            f"({install})"
        )
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version: of 0.32.1rc2+cpu, (0, 32, 1)."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
