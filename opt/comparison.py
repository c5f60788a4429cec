"""A table of solvers against a bound, every row certified."""

from __future__ import annotations

import csv
import inspect
import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from opt.core.cost.plans import seconds
from opt.core.fairness import fairness
from opt.core.instance import Instance
from opt.core.model import KvMode, Result
from opt.solvers.door import lower_bound, solve
from opt.solvers.measured import MEASURED
from opt.solvers.registry import SOLVERS

__all__ = ["Comparison", "Row", "compare", "on_the_clock"]

Row = dict[str, Any]

# An alias, a composite, a form of another row, local and exact search, which use up any time limit, and
# the orders in seconds, which need a cost model.
LEFT_OUT = (
    *("mc-sf", "portfolio", "search", "sorted-f-serial", "dp", "milp", "cpsat", "exact"),
    *(f"{name}{rule}" for name in MEASURED for rule in ("", "-skip", "-pack")),
)


@dataclass(frozen=True)
class Comparison(Sequence[Row]):
    """Rows (one for each instance and solver) that can be printed, iterated and exported.

    A row has `instance`, `n`, `memory`, `solver`, `total_latency`, `mean_latency`, `lower_bound`, `bound_method`, `ratio`
    (total latency over the bound), `gap`, `makespan`, `max_wait`, `status`, `factor` (a proved guarantee, or None),
    `verified` and `seconds` (of computing). `interrupted` tells that Ctrl-C cut the comparison short; the rows that are
    there stand.
    """

    rows: tuple[Row, ...]
    interrupted: bool = False

    def __getitem__(self, at: Any) -> Any:
        """Return a row, or rows."""
        return self.rows[at]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        """Iterate over the rows."""
        return iter(self.rows)

    def __str__(self) -> str:
        """Return a plain-text table."""
        if not self.rows:
            return "(no rows)"
        cells = [list(self.rows[0]), *([_shown(cell) for cell in row.values()] for row in self.rows)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(cells[0]))]
        return "\n".join("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)) for line in cells)

    def to_csv(self) -> str:
        """Return the rows as CSV text."""
        buffer = io.StringIO()
        if self.rows:
            writer = csv.DictWriter(buffer, list(self.rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(self.rows)
        return buffer.getvalue()


def compare(
    instances: Iterable[Instance],
    *,
    solvers: Sequence[str] | None = None,
    bound: str = "best",
    time_limit: float = 10.0,
    seed: int = 0,
    kv: KvMode = "separate",
    cost: str | None = None,
    progress: Callable[[str], None] | None = None,
) -> Comparison:
    """Return a certified row for every instance and solver, best first within an instance.

    Args:
        instances: what to solve.
        solvers: names in `SOLVERS`; None takes every order under every rule, Sorted-F and Sorted-rate.
        bound: the name of the bound all are held against; it is computed once for each instance.
        time_limit, seed, kv: as in `solve`.
        cost: a name in `COSTS` or a cost file: rows are in seconds too (`total_latency_s`, `mean_ttft_s`, `makespan_s`), and
            the orders in seconds take part.
        progress: is told the name of each solver before it runs.
    """
    names = _names(cost) if solvers is None else list(solvers)
    rows: list[Row] = []
    try:
        for instance in instances:
            held_against = lower_bound(instance, bound, kv=kv)
            for name in names:
                if progress is not None:
                    progress(f"{instance.name or 'instance'}: {name}")
                params: dict[str, Any] = {"cost": cost} if cost is not None and name in ordered_by_seconds() else {}
                result = solve(instance, name, bound=held_against, time_limit=time_limit, seed=seed, kv=kv, **params)
                rows.append(_row(instance, result) | (on_the_clock(result, cost) if cost is not None else {}))
    except KeyboardInterrupt:
        return Comparison(_ranked(rows), interrupted=True)
    return Comparison(_ranked(rows))


def ordered_by_seconds() -> list[str]:
    """Return the names of the solvers that take a cost model."""
    return [name for name, run in SOLVERS.items() if "cost" in inspect.signature(run).parameters]


def _names(cost: str | None) -> list[str]:
    """Return the solvers compared where none are named; orders in seconds only where a cost model says what those are."""
    kept = [name for name in SOLVERS if name not in LEFT_OUT]
    return kept if cost is None else [*kept, *ordered_by_seconds()]


def on_the_clock(result: Result, cost: str) -> Row:
    """Return the seconds of a result's schedule on a cost model; None where there is no schedule."""
    names = ("total_latency_s", "mean_latency_s", "mean_ttft_s", "makespan_s")
    found = None if result.schedule is None else seconds(result.schedule, cost)
    return {"cost": cost, **{name: getattr(found, name, None) for name in names}}


def _ranked(rows: list[Row]) -> tuple[Row, ...]:
    """Return the rows by instance in their first order, best first within each."""
    place = {key: at for at, key in enumerate(dict.fromkeys(_instance_of(row) for row in rows))}
    best_first = sorted(rows, key=lambda row: (row["total_latency"] is None, row["total_latency"], row["solver"]))
    return tuple(sorted(best_first, key=lambda row: place[_instance_of(row)]))


def _instance_of(row: Row) -> tuple[str, int, int]:
    return row["instance"], row["n"], row["memory"]


def _row(instance: Instance, result: Result) -> Row:
    schedule = result.schedule
    return {
        "instance": instance.name,
        "n": instance.n,
        "memory": instance.memory,
        "solver": result.solver,
        "total_latency": result.total_latency,
        "mean_latency": result.mean_latency,
        "lower_bound": None if result.bound is None else result.bound.ceil,
        "bound_method": None if result.bound is None else result.bound.method,
        "ratio": result.ratio,
        "gap": result.gap,
        "makespan": None if schedule is None else schedule.makespan,
        "max_wait": None if schedule is None else fairness(schedule)["max_wait"],
        "status": result.status,
        "factor": result.stats.get("factor"),
        "verified": schedule is not None,
        "seconds": result.seconds,
    }


def _shown(cell: object) -> str:
    if cell is None:
        return "-"
    return f"{cell:.4f}" if isinstance(cell, float) else str(cell)
