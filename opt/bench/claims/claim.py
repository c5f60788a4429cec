"""What a published claim is to the suite `headline`: its words, the cells it is held against, and what is found there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any

from opt.bench.runner import Params, Picture, Record, Table

__all__ = ["Claim", "Verdict", "listed", "mean", "percent", "summary"]


@dataclass(frozen=True)
class Verdict:
    """What the records say of a claim, in sentences with the figures in them.

    Args:
        measured: what is found here.
        holds: where the claim holds.
        fails: where it does not, or less than it says.
    """

    measured: str
    holds: str
    fails: str


@dataclass(frozen=True)
class Claim:
    """A published claim and how to hold it against measurements.

    Args:
        name: its key in `CLAIMS`.
        title: the system and what it is about.
        source: where it is published.
        published: what it says, in our words, with its own figures.
        setting: on what it is tested here.
        tasks: from the number of seeds and whether to be quick to the parameters of its tasks.
        measure: runs one task.
        verdict: from its records to what they say.
        tables: from its records to the cells behind that.
        pictures: the same, to look at.
    """

    name: str
    title: str
    source: str
    published: str
    setting: str
    tasks: Callable[[int, bool], list[Params]]
    measure: Callable[[Params], dict[str, Any]]
    verdict: Callable[[list[Record]], Verdict]
    tables: Callable[[list[Record]], list[Table]]
    pictures: Callable[[list[Record]], list[Picture]]


WIDTH = 60  # characters of a line in the summary: with the names beside it, a terminal of 80


def summary(claim: Claim, records: list[Record]) -> Table:
    """Return the claim beside what was measured."""
    verdict = claim.verdict(records)
    said = {
        "published": claim.published,
        "tested on": claim.setting,
        "measured here": verdict.measured,
        "holds": verdict.holds,
        "does not hold": verdict.fails,
    }
    rows = [[name, fill(text, WIDTH, break_on_hyphens=False)] for name, text in said.items()]
    return Table(f"{claim.title} ({claim.source})", ["", "claim and measurement"], rows)


def percent(ratio: float) -> str:
    """Return how far a ratio is from 1, as "38 % less" or "1.5 % more"."""
    away = 100 * abs(ratio - 1)
    return f"{away:.{0 if away >= 9.95 else 1}f} % {'less' if ratio < 1 else 'more'}"


def listed(items: Iterable[str], *, most: int = 6, none: str = "nowhere in these cells") -> str:
    """Return items as a list in a sentence, shortened with a count."""
    found: Sequence[str] = list(items)
    if not found:
        return none
    rest = len(found) - most
    return "; ".join(found[:most]) + (f"; and {rest} more" if rest > 0 else "")


def mean(values: Iterable[float]) -> float:
    """Return the mean of at least one value."""
    found = list(values)
    return sum(found) / len(found)


Cells = Mapping[tuple[Any, ...], list[Record]]
