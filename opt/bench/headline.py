"""Each published claim beside what is measured here, with the conditions under which it holds.

The systems are ours, written from their papers, on simulated engines whose cost models come from measured operators; the
rivals run at their best. `quick` takes fewer cells and seeds. No figure depends on the machine that computes it, except
what a scheduler's own decisions take.
"""

from __future__ import annotations

from typing import Any

from opt.bench.claims import CLAIMS, Claim
from opt.bench.claims.claim import summary
from opt.bench.runner import Params, Record, Section, Suite, Table, grouped

__all__ = ["HEADLINE"]


def _tasks(seeds: int, quick: bool = False) -> list[Params]:
    return [{"claim": claim.name, **params} for claim in CLAIMS.values() for params in claim.tasks(seeds, quick)]


def _measure(params: Params) -> dict[str, Any]:
    return CLAIMS[params["claim"]].measure({name: value for name, value in params.items() if name != "claim"})


def _tested(records: list[Record]) -> list[tuple[Claim, list[Record]]]:
    """Return the claims that have records, in their order."""
    found = grouped(records, "claim")
    return [(claim, found[(name,)]) for name, claim in CLAIMS.items() if (name,) in found]


def _tables(records: list[Record]) -> list[Table]:
    tested = _tested(records)
    return [*(summary(claim, mine) for claim, mine in tested), *(table for claim, mine in tested for table in claim.tables(mine))]


def _sections(records: list[Record]) -> list[Section]:
    return [
        Section("Published claims beside what is measured here", OPENING, ()),
        *(
            Section(claim.title, (), [summary(claim, mine), *claim.tables(mine)], claim.pictures(mine))
            for claim, mine in _tested(records)
        ),
    ]


OPENING = (
    "Systems and rivals run on the same simulated engines, whose cost models are fitted to measured operators; rivals are "
    "implemented at their best. Schedules are certified in exact arithmetic, and distances are to proved lower bounds.",
    "Cells in which a claim does not hold are shown beside those in which it does.",
)

HEADLINE = Suite(
    "headline",
    "each published claim beside what is measured here, with its conditions",
    _tasks,
    _measure,
    _tables,
    sections=_sections,
    clocked=frozenset({"scheduler_share", "scheduler_us"}),
)
