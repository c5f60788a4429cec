"""Suites of independent parts, each with its own tasks, measure and tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from opt.bench.runner import Params, Record, Suite, Table, grouped

__all__ = ["Part", "suite_of"]


@dataclass(frozen=True)
class Part:
    """One kind of task of a suite; its parameters carry `part`, its name.

    Args:
        tasks: from the number of seeds (and options of the suite, by name) to the parameters of its tasks.
        measure: runs one task.
        tables: from its records, in order, to what is printed.
    """

    tasks: Callable[..., list[Params]]
    measure: Callable[[Params], dict[str, Any]]
    tables: Callable[[list[Record]], list[Table]]


def suite_of(name: str, description: str, parts: Mapping[str, Part], *, clocked: frozenset[str] = frozenset()) -> Suite:
    """Return the suite of some parts, in their order; the other arguments are those of `Suite`."""

    def tasks(seeds: int, **options: Any) -> list[Params]:
        return [task for part in parts.values() for task in part.tasks(seeds, **options)]

    def measure(params: Params) -> dict[str, Any]:
        return parts[params["part"]].measure(params)

    def tables(records: list[Record]) -> list[Table]:
        found = grouped(records, "part")
        return [table for known, part in parts.items() if (known,) in found for table in part.tables(found[(known,)])]

    return Suite(name, description, tasks, measure, tables, clocked=clocked)
