"""Bundled instances, by name: `@demo` on the command line, `library.load("demo")` in Python."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from opt.core.errors import InstanceError
from opt.core.files import read_instance
from opt.core.instance import Instance

__all__ = ["load", "names", "path"]

SUFFIX = ".json.gz"


def names() -> list[str]:
    """Return the names of the bundled instances."""
    folder = resources.files(__name__)
    return sorted(entry.name.removesuffix(SUFFIX) for entry in folder.iterdir() if entry.name.endswith(SUFFIX))


def path(name: str) -> Path:
    """Return the file of a bundled instance.

    Raises:
        InstanceError: there is none of that name.
    """
    file = Path(str(resources.files(__name__))) / f"{name}{SUFFIX}"
    if name not in names():
        raise InstanceError(f"there is no bundled instance {name!r}; there are {', '.join(names())}")
    return file


def load(name: str) -> Instance:
    """Return a bundled instance."""
    return read_instance(path(name))
