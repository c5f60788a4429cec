"""Certify the instance library again, and improve its best known values where a certificate allows it.

For each instance: the file must equal what its recipe makes, the stored plan must certify, and a fresh run competes with
it. A better plan or a larger proved bound replaces the old one when a library folder is given.
"""

from __future__ import annotations

import csv
import datetime
import importlib.metadata
from pathlib import Path
from typing import Any

from opt.bench.runner import Params, Record, Suite, Table
from opt.core.model import Result

__all__ = ["COLUMNS", "LIBRARY"]

COLUMNS = (
    *("instance", "n", "memory", "total_latency", "known_by", "lower_bound", "bound_method", "status", "proof"),
    *("version", "date", "sha256"),
)
TIME_LIMIT = 20.0  # seconds for each fresh run
EXACT_UP_TO = 20  # requests; beyond, a few seconds rarely prove anything


def _tasks(seeds: int, library: str | None = None) -> list[Params]:
    from instances import library as bundled

    if library is not None:
        bundled.build(Path(library))
    found = bundled.names(None if library is None else Path(library))
    return [{"instance": name, "library": library, "seed": seeds - 1} for name in found]


def _measure(params: Params) -> dict[str, Any]:
    from instances import library
    from opt.core.files import Plan, digest, read_instance, verify, write
    from opt.solvers.door import solve

    source = None if params["library"] is None else Path(params["library"])
    instance = read_instance(library.path(params["instance"], source))
    if digest(library.regenerate(instance)) != digest(instance):
        raise ValueError(f"{params['instance']} differs from what its recipe makes")
    plan = library.plan_path(params["instance"], source)
    stored = verify(plan) if plan.exists() else None
    tried = ("portfolio", "exact") if instance.n <= EXACT_UP_TO else ("portfolio",)
    fresh = [solve(instance, solver, time_limit=TIME_LIMIT, seed=params["seed"]) for solver in tried]
    results = [*([] if stored is None else [stored]), *fresh]  # the stored one first: it stays on a tie
    best = min(results, key=lambda result: result.total_latency or 0)
    bound = max((result.bound for result in results if result.bound is not None), key=lambda bound: bound.value)
    assert best.schedule is not None
    known_by = best.solver if best is stored else _signature(best)
    kept = Plan(best.schedule.instance, best.schedule.start, known_by, bound=bound)
    improved = stored is None or best is not stored or bound is not stored.bound
    if improved and source is not None:
        write(kept, plan, instance_path=library.path(params["instance"], source))
    certified = verify(kept)
    return {
        "instance": params["instance"],
        "n": instance.n,
        "memory": instance.memory,
        "total_latency": certified.total_latency,
        "known_by": known_by,
        "lower_bound": bound.ceil,
        "bound_method": bound.method,
        **_known(certified, fresh),
        "sha256": digest(instance),
        "improved": improved,
    }


def _known(certified: Result, fresh: list[Result]) -> dict[str, str]:
    """Return status and proof: what the plan's certificate shows or, short of that, what a search has just exhausted."""
    searched = any(r.status == "optimal" and r.total_latency == certified.total_latency for r in fresh)
    if certified.status != "optimal" and searched:
        return {"status": "optimal", "proof": "search"}
    return {"status": certified.status, "proof": certified.proof}


def _signature(result: Result) -> str:
    """Return who found it: the solver, the member that won, the seed."""
    winner = f":{result.stats['winner']}" if "winner" in result.stats else ""
    return f"{result.solver}{winner} seed {result.seed}"


def _finish(records: list[Record]) -> None:
    """Write `best.csv`; a row whose facts have not changed keeps its version and date."""
    folder = records[0]["params"]["library"]
    if folder is None:
        return
    path = Path(folder) / "best.csv"
    old = {row["instance"]: row for row in _rows(path)}
    today, version = datetime.date.today().isoformat(), importlib.metadata.version("kvopt")
    for record in records:
        facts = {key: str(record["values"][key]) for key in COLUMNS if key in record["values"]}
        before = old.get(facts["instance"], {})
        if before.get("total_latency") == facts["total_latency"] and before["status"] == "optimal":
            facts |= {key: before[key] for key in ("status", "proof") if facts["status"] != "optimal"}  # proved once is proved
        unchanged = all(before.get(key) == value for key, value in facts.items())
        stamp = before if unchanged else {"version": version, "date": today}
        old[facts["instance"]] = {**facts, "version": stamp["version"], "date": stamp["date"]}
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(old.values())


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _tables(records: list[Record]) -> list[Table]:
    shown = ("instance", "n", "memory", "total_latency", "lower_bound", "status", "known_by", "improved")
    rows = []
    for record in records:
        values = record["values"]
        gap = 1 - values["lower_bound"] / values["total_latency"] if values["total_latency"] else 0.0
        rows.append([*(values[key] for key in shown[:5]), gap, *(values[key] for key in shown[5:])])
    title = "best known values, all certified again"
    return [Table(title, [*(name.replace("_", " ") for name in shown[:5]), "gap", *shown[5:]], rows)]


LIBRARY = Suite(
    "library",
    "certify the bundled instances' best known values again",
    _tasks,
    _measure,
    _tables,
    _finish,
    clocked=frozenset(  # what the fresh runs find within their time limit
        {"total_latency", "known_by", "lower_bound", "bound_method", "status", "proof", "improved"}
    ),
)
