"""Who proves optima: the exact method against plain time-indexed models, sixty seconds an instance.

Two families: `small` (memory 30 to 50, prompts up to 5, any output that fits; two to four requests run together) and
`small-short` (outputs up to a quarter of the memory; many run together). The plain models are the rivals at their
textbook best: `milp` and `cpsat` with `plain=True`.
"""

from __future__ import annotations

import math
from typing import Any

from opt.bench.runner import Params, Record, Suite, Table, grouped

__all__ = ["EXACT"]

FAMILIES = ("small", "small-short")
SIZES = (8, 10, 12, 15, 20, 25)
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "exact": ("exact", {}),
    "plain HiGHS": ("milp", {"plain": True}),
    "plain CP-SAT": ("cpsat", {"plain": True}),
}
TIME_LIMIT = 60.0


def _tasks(seeds: int) -> list[Params]:
    return [
        {"family": family, "n": n, "seed": seed, "method": method}
        for family in FAMILIES
        for n in SIZES
        for seed in range(seeds)
        for method in METHODS
    ]


def _measure(params: Params) -> dict[str, Any]:
    from instances import generate
    from opt.solvers.door import solve

    solver, options = METHODS[params["method"]]
    # Ours runs compiled loops, all of which twelve requests need: the first run on a machine compiles them, and none may pay.
    solve(generate("small", n=12 if solver == "exact" else 4, seed=0), solver, time_limit=600, seed=0, **options)
    instance = generate(params["family"], n=params["n"], seed=params["seed"])
    result = solve(instance, solver, time_limit=TIME_LIMIT, seed=0, **options)
    return {"status": result.status, "total_latency": result.total_latency, "gap": result.gap, "seconds": result.seconds}


def _tables(records: list[Record]) -> list[Table]:
    return [_table(family, group) for (family,), group in grouped(records, "family").items()]


def _table(family: str, records: list[Record]) -> Table:
    columns = ["n", "instances"]
    for method in METHODS:
        columns += [f"{method}: proved", "mean gap", "geo. mean s"]
    rows = []
    for (n,), group in grouped(records, "n").items():
        row: list[Any] = [n, len({record["params"]["seed"] for record in group})]
        for method in METHODS:
            mine = [record["values"] for record in group if record["params"]["method"] == method]
            row += [sum(values["status"] == "optimal" for values in mine), _mean_gap(mine), _geometric_mean(mine)]
        rows.append(row)
    rows.append(["all", None, *_totals(records)])
    wrong = _disagreements(records)
    note = f"; DIFFERENT OPTIMA CLAIMED: {wrong}" if wrong else "; all claimed optima agree"
    return Table(f"{family}, {TIME_LIMIT:.0f} s an instance{note}", columns, rows)


def _mean_gap(values: list[dict[str, Any]]) -> float | None:
    gaps = [0.0 if v["status"] == "optimal" else v["gap"] for v in values if v["gap"] is not None]
    return sum(gaps) / len(gaps) if gaps else None


def _geometric_mean(values: list[dict[str, Any]]) -> float | None:
    seconds = [max(v["seconds"], 1e-3) for v in values]
    return math.exp(sum(map(math.log, seconds)) / len(seconds)) if seconds else None


def _totals(records: list[Record]) -> list[Any]:
    totals: list[Any] = []
    for method in METHODS:
        mine = [record["values"] for record in records if record["params"]["method"] == method]
        totals += [sum(values["status"] == "optimal" for values in mine), _mean_gap(mine), _geometric_mean(mine)]
    return totals


def _disagreements(records: list[Record]) -> list[str]:
    """Return the instances on which a claimed optimum is above what another method found."""
    wrong = []
    for (family, n, seed), group in grouped(records, "family", "n", "seed").items():
        best = min(record["values"]["total_latency"] for record in group if record["values"]["total_latency"] is not None)
        claims = {r["values"]["total_latency"] for r in group if r["values"]["status"] == "optimal"}
        if claims - {best}:
            wrong.append(f"{family} n={n} seed={seed}")
    return wrong


EXACT = Suite(
    "exact",
    "proved optima on small instances: ours, plain HiGHS, plain CP-SAT",
    _tasks,
    _measure,
    _tables,
    clocked=frozenset({"seconds", "status", "total_latency", "gap"}),  # the time limit decides what is found and proved
)
