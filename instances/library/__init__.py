"""Bundled instances with best known values: `@NAME` on the command line, `library.load("NAME")` in Python.

Each file regenerates byte for byte from the recipe in its origin. `plans/` holds the best plan known for each, with its
bound and certificate, and `best.csv` sums them up; `kvopt bench library` certifies all of it again and, with
`--library DIR`, writes what it can improve.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from instances import generate
from instances.champions import CHAMPIONS
from opt.core.errors import InstanceError
from opt.core.files import read_instance, write
from opt.core.instance import Instance

__all__ = ["MANIFEST", "Recipe", "build", "folder", "load", "names", "path", "plan_path", "regenerate"]

SUFFIX = ".json.gz"


class Recipe(NamedTuple):
    """How a bundled instance is made: the arguments of `generate`, and the length of a round where arrivals need one."""

    family: str
    n: int | None
    memory: int | None
    seed: int = 0
    round_s: str | None = None


def _manifest() -> Iterator[tuple[str, Recipe]]:
    yield "demo", Recipe("mixture", 1000, 16_492)
    yield "tiny-four", Recipe("four", None, None)
    for n in (5, 8):
        for seed in range(5):
            yield f"tiny-{n}-{seed}", Recipe("small", n, None, seed)
    for family, label in (("small", "small"), ("small-short", "short")):
        for n in (12, 20):
            for seed in range(3):
                yield f"{label}-{n}-{seed}", Recipe(family, n, None, seed)
    for n in (100, 300):
        yield f"mixture-{n}", Recipe("mixture", n, 16_492, 1)
    for family in ("chat", "summarization", "translation"):
        yield f"{family}-1000", Recipe(family, 1000, 16_492)
    yield "reasoning-1000", Recipe("reasoning", 1000, 131_072)
    for family in ("code", "conversation", "tenants"):
        yield f"{family}-1000", Recipe(family, 1000, 60_000, 0, "0.05")
    yield "agent-300", Recipe("agent", 300, 400_000, 0, "0.05")
    yield "mixture-5000", Recipe("mixture", 5000, 131_072)
    yield "mixture-20000", Recipe("mixture", 20_000, 400_000)
    yield "mixture-100000", Recipe("mixture", 100_000, 400_000)
    for family, memory in (("fcfs-trap", 64), ("sof-trap", 144), ("total-size-trap", 64), ("svf-trap", 45)):
        yield family, Recipe(family, None, memory)
    yield "skip-trap", Recipe("skip-trap", None, 100)
    for family, memory in (("chat", 16_492), ("translation", 16_492), ("reasoning", 131_072)):
        yield f"{family}-300", Recipe(family, 300, memory, 1)
    yield "tenants-300", Recipe("tenants", 300, 60_000, 1, "0.05")
    for family, rounds in (("conversation", ("0.0272", "0.0389", "0.0506")), ("code", ("0.3325", "0.4751", "0.6176"))):
        for load, round_s in zip((70, 100, 130), rounds, strict=True):  # percent of capacity, by the length of a round
            yield f"{family}-load-{load}", Recipe(family, 1000, 60_000, 1, round_s)
    yield "reasoning-5000", Recipe("reasoning", 5000, 131_072)
    yield "conversation-4000", Recipe("conversation", 4000, 131_072, 1, "0.0837")
    for family, memory in (
        *(("fcfs-trap-strong", 32), ("skip-ahead-trap", 64), ("lof-trap", 36), ("sof-trap-strong", 36)),
        *(("total-size-trap-strong", 64), ("svf-trap-strong", 66), ("svf-trap-no-ties", 614), ("equal-trap", 45)),
    ):
        yield family, Recipe(family, None, memory)
    for name in CHAMPIONS:
        yield name, Recipe(name, None, None)


MANIFEST: dict[str, Recipe] = dict(_manifest())


def make(name: str) -> Instance:
    """Return the instance of a name in `MANIFEST`, from its recipe."""
    recipe = MANIFEST[name]
    instance = generate(recipe.family, n=recipe.n, memory=recipe.memory, seed=recipe.seed)
    return (instance if recipe.round_s is None else instance.in_rounds(recipe.round_s)).replace(name=name)


def regenerate(instance: Instance) -> Instance:
    """Return the instance that the recipe in `instance.origin` makes; equal to it unless it was changed by hand."""
    origin: dict[str, Any] = instance.origin
    made = generate(origin["recipe"], n=origin["n"], memory=origin["memory"], seed=origin["seed"])
    return (made.in_rounds(origin["round_s"]) if "round_s" in origin else made).replace(name=instance.name)


def build(target: Path) -> None:
    """Write every instance of the manifest that the folder lacks."""
    target.mkdir(parents=True, exist_ok=True)
    (target / "plans").mkdir(exist_ok=True)
    for name in MANIFEST:
        if not path(name, target).exists():
            write(make(name), path(name, target))


def folder() -> Path:
    """Return the folder of the bundled library."""
    return Path(str(resources.files(__name__)))


def names(source: Path | None = None) -> list[str]:
    """Return the names of the instances in a library folder, the bundled one by default, as the manifest orders them."""
    found = {file.name.removesuffix(SUFFIX) for file in (source or folder()).glob(f"*{SUFFIX}")}
    return [name for name in MANIFEST if name in found] + sorted(found - set(MANIFEST))


def path(name: str, source: Path | None = None) -> Path:
    """Return the file of an instance in a library folder."""
    return (source or folder()) / f"{name}{SUFFIX}"


def plan_path(name: str, source: Path | None = None) -> Path:
    """Return the file of the best plan known for an instance."""
    return (source or folder()) / "plans" / f"{name}{SUFFIX}"


def load(name: str) -> Instance:
    """Return a bundled instance.

    Raises:
        InstanceError: there is none of that name.
    """
    if name not in names():
        raise InstanceError(f"there is no bundled instance {name!r}; `kvopt list instances` shows all")
    return read_instance(path(name))
