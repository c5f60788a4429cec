"""Local search and the portfolio at scale: against every order and CP-SAT, over time, on known optima, and how fast.

Quick by default (five to ten minutes); `--full` gives every solver a minute, takes the larger instances and more small ones
(about an hour). Parts are independent: each has its tasks, its measure and its tables, and a line in `PARTS`.
"""

from __future__ import annotations

import time
from typing import Any

from opt.bench.account import account, account_tables, account_tasks
from opt.bench.parts import Part, suite_of
from opt.bench.runner import Params, Record, Table, grouped, median_of
from opt.bench.searching import INSTANCES, PROOF_S, SMALL_S, warm

__all__ = ["PARTS", "SEARCH"]


# Every solver against the bounds.

SECONDS = {False: 20.0, True: 60.0}
TIMED = ("search", "portfolio", "cpsat")  # they get the same time; all others end by themselves


def _rival_tasks(seeds: int, full: bool = False) -> list[Params]:
    tasks: list[Params] = []
    for name in INSTANCES[full]:
        tasks += [{"part": "rivals", "instance": name, "solver": solver, "seed": 0} for solver in ("bounds", "constructed")]
        tasks += [
            {"part": "rivals", "instance": name, "solver": solver, "seed": seed, "seconds": SECONDS[full]}
            for solver in TIMED
            for seed in range(seeds)
        ]
    return tasks


def _rival(params: Params) -> dict[str, Any]:
    from instances import library
    from opt.comparison import compare
    from opt.solvers.door import lower_bound, solve

    instance = library.load(params["instance"])
    if params["solver"] == "bounds":
        return {"bounds": {name: lower_bound(instance, name).ceil for name in ("mean-busy-time", "prices")}}
    if params["solver"] == "constructed":
        rows = compare([instance], solvers=_constructed(), bound="mean-busy-time")
        return {"plans": {row["solver"]: {"latency": row["total_latency"], "seconds": row["seconds"]} for row in rows}}
    warm()
    result = solve(instance, params["solver"], bound=None, seed=params["seed"], time_limit=params["seconds"])
    refused = result.stats.get("refused")
    latency = None if refused else result.total_latency
    return {"total_latency": latency, "seconds": result.seconds, "refused": refused, "winner": result.stats.get("winner")}


def _constructed() -> list[str]:
    """Return every solver that builds one plan and is done: all orders under all rules, the batch rules, staggered forms."""
    from opt.solvers.orders import KEYS

    orders = [name + rule for name in KEYS for rule in ("", "-skip", "-pack")]
    return [*orders, "sorted-f", "sorted-f-serial", "sorted-rate", "staggered"]


def _rival_tables(records: list[Record]) -> list[Table]:
    return [_rival_table(name, group) for (name,), group in grouped(records, "instance").items()]


def _rival_table(name: str, records: list[Record]) -> Table:
    bounds: dict[str, int] = {}
    rows: list[list[Any]] = []
    for (solver,), group in grouped(records, "solver").items():
        values = [record["values"] for record in group]
        if solver == "bounds":
            bounds = values[0]["bounds"]
        elif solver == "constructed":
            rows += [[each, plan["latency"], plan["seconds"], 1] for each, plan in values[0]["plans"].items()]
        elif values[0]["refused"]:
            rows.append([f"{solver}: {values[0]['refused'][:60]}", None, None, len(group)])
        else:
            rows.append([solver, median_of(group, "total_latency"), median_of(group, "seconds"), len(group)])
    rows.sort(key=lambda row: (row[1] is None, row[1]))
    gaps = [[None if row[1] is None else 100 * (1 - bound / row[1]) for bound in bounds.values()] for row in rows]
    columns = ["solver", "total latency", "seconds", "seeds", *(f"% above {bound}" for bound in bounds)]
    said = ", ".join(f"{bound} {value:,}" for bound, value in bounds.items())
    return Table(
        f"{name}: {said} (gaps over the total latency)", columns, [[*row, *gap] for row, gap in zip(rows, gaps, strict=True)]
    )


# Quality over time.

LARGE, LARGE_MEMORY = 100_000, 400_000
CURVE_S = {False: 30.0, True: 120.0}
MARKS = (2, 5, 10, 20, 30, 60, 90, 120)


def _curve_tasks(seeds: int, full: bool = False) -> list[Params]:
    solvers = ("search", "portfolio") if full else ("search",)
    return [
        {"part": "curve", "n": LARGE, "solver": solver, "seconds": CURVE_S[full], "seed": seed}
        for solver in solvers
        for seed in range(seeds if full else 1)
    ]


def _curve(params: Params) -> dict[str, Any]:
    """Search a large backlog and note every improvement; the best order of all is what it has to beat."""
    from instances import generate
    from opt.comparison import compare
    from opt.solvers.door import lower_bound, solve
    from opt.solvers.orders import KEYS

    warm()
    instance = generate("mixture", n=params["n"], memory=LARGE_MEMORY, seed=params["seed"])
    orders = [name + rule for name in ("svf", "total-size", "sof") for rule in ("", "-skip", "-pack") if name in KEYS]
    best = compare([instance], solvers=orders, bound="trivial")[0]
    bound = lower_bound(instance, "mean-busy-time").ceil
    told: list[tuple[float, int]] = []
    begun = time.monotonic()

    def progress(latency: int | None, _bound: int | None) -> None:
        told.append((time.monotonic() - begun, latency or 0))

    result = solve(
        instance, params["solver"], bound=None, time_limit=params["seconds"], seed=params["seed"], on_progress=progress
    )
    at = {str(mark): min((latency for when, latency in told if when <= mark), default=None) for mark in MARKS}
    return {
        "order": best["solver"],
        "order_latency": best["total_latency"],
        "bound": bound,
        "at": at,
        "last": result.total_latency,
    }


def _curve_tables(records: list[Record]) -> list[Table]:
    columns = ["n", "solver", "seed", "best order", "its % above the bound", *(f"{mark} s" for mark in MARKS), "end"]
    rows = []
    for record in records:
        values, params = record["values"], record["params"]
        seen = [values["at"][str(mark)] if mark <= params["seconds"] else None for mark in MARKS]
        gaps = [None if latency is None else _above(latency, values["bound"]) for latency in (values["order_latency"], *seen)]
        row = [params["n"], params["solver"], params["seed"], values["order"], *gaps, _above(values["last"], values["bound"])]
        rows.append(row)
    return [Table("quality over time: % above the mean-busy-time bound after so many seconds", columns, rows)]


def _above(latency: int, bound: int) -> float:
    return 100 * (1 - bound / latency)


# Known optima.

SMALL_SIZES = {False: (8, 10, 12), True: (8, 10, 12, 15, 20, 25)}
REPEAT = {False: 3, True: 5}  # instances for each seed asked for


def _small_tasks(seeds: int, full: bool = False) -> list[Params]:
    tasks: list[Params] = [{"part": "small", "family": "four", "n": 4, "seed": 0}]
    for family in ("small", "small-short"):
        for n in SMALL_SIZES[full]:
            tasks += [{"part": "small", "family": family, "n": n, "seed": seed} for seed in range(REPEAT[full] * seeds)]
    return tasks


def _small(params: Params) -> dict[str, Any]:
    """Search for five seconds, then prove the optimum if a minute allows."""
    from instances import generate
    from opt.solvers.door import solve

    warm()
    named = {} if params["family"] == "four" else {"n": params["n"], "seed": params["seed"]}
    instance = generate(params["family"], **named)
    told: list[tuple[float, int]] = []
    begun = time.monotonic()

    def progress(latency: int | None, _bound: int | None) -> None:
        told.append((time.monotonic() - begun, latency or 0))

    found = solve(instance, "search", bound=None, time_limit=SMALL_S, work=10**9, on_progress=progress)
    proof = solve(instance, "exact", time_limit=PROOF_S)
    optimum = proof.total_latency if proof.status == "optimal" else None
    best_known = min(found.total_latency or 0, proof.total_latency or 0)
    return {"found": found.total_latency, "optimum": optimum, "best_known": best_known, "seconds": told[-1][0]}


def _small_tables(records: list[Record]) -> list[Table]:
    columns = [
        "family",
        "n",
        "instances",
        "optimum proved",
        "found by search",
        "%",
        "missed by % (worst)",
        "s until found (median)",
    ]
    rows = [[family, n, *_small_row(group)] for (family, n), group in grouped(records, "family", "n").items()]
    rows.append(["all", None, *_small_row(records)])
    return [Table(f"optima found by search within {SMALL_S:.0f} s", columns, rows)]


def _small_row(records: list[Record]) -> list[Any]:
    proved = [record["values"] for record in records if record["values"]["optimum"] is not None]
    found = sum(values["found"] == values["optimum"] for values in proved)
    worst = max((100 * (values["found"] / values["optimum"] - 1) for values in proved), default=None)
    share = 100 * found / len(proved) if proved else None
    return [len(records), len(proved), found, share, worst, median_of(records, "seconds")]


# Speed.

SPEED = {False: ("demo",), True: ("mixture-100", "demo", "mixture-5000", "mixture-20000")}
SPEED_S = 5.0


def _speed_tasks(seeds: int, full: bool = False) -> list[Params]:
    return [{"part": "speed", "instance": name, "seed": seed} for name in SPEED[full] for seed in range(seeds)]


def _speed(params: Params) -> dict[str, Any]:
    """Count moves evaluated for some seconds, after the plans that come first; by the clock of this process alone."""
    from instances import library
    from opt.solvers.door import solve
    from opt.solvers.staggered import staggered

    warm()
    instance = library.load(params["instance"])
    start = staggered(instance).start
    before = time.process_time()
    solve(instance, "search", bound=None, work=0, start=start)
    plans = time.process_time() - before
    before = time.process_time()
    moves = 2000
    while (spent := time.process_time() - before - plans) < SPEED_S:
        before, moves = time.process_time(), moves * 4
        result = solve(instance, "search", bound=None, work=moves, time_limit=600, start=start, seed=params["seed"], tune=0)
    return {"moves": result.stats["moves"], "cpu_s": spent, "per_s": result.stats["moves"] / spent}


def _speed_tables(records: list[Record]) -> list[Table]:
    rows = [
        [name, round(median_of(group, "per_s") or 0), median_of(group, "moves"), median_of(group, "cpu_s"), len(group)]
        for (name,), group in grouped(records, "instance").items()
    ]
    columns = ["instance", "moves a second", "moves", "CPU s", "seeds"]
    return [Table("moves evaluated exactly a second of one core (medians)", columns, rows)]


PARTS: dict[str, Part] = {
    "speed": Part(_speed_tasks, _speed, _speed_tables),
    "rivals": Part(_rival_tasks, _rival, _rival_tables),
    "small": Part(_small_tasks, _small, _small_tables),
    "account": Part(account_tasks, account, account_tables),
    "curve": Part(_curve_tasks, _curve, _curve_tables),
}


CLOCKED = (
    *("total_latency", "seconds", "refused", "winner", "bounds"),  # rivals, and the prices among the bounds
    *("at", "last"),  # the curve
    *("found", "optimum", "best_known"),  # small instances
    *("plan", "gap", "idle"),  # the account
    *("moves", "cpu_s", "per_s"),  # speed
)

SEARCH = suite_of(
    "search",
    "local search and portfolio: rivals, quality over time, known optima, speed",
    PARTS,
    clocked=frozenset(CLOCKED),
)
