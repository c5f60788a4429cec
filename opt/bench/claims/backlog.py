"""Sorted-F against the orders, on backlogs whose prompts differ, and on some whose prompts hardly do."""

from __future__ import annotations

from typing import Any

from opt.bench.claims.claim import Cells, Claim, Verdict, listed, mean, percent
from opt.bench.claims.dots import dots
from opt.bench.runner import Params, Picture, Record, Table, grouped

__all__ = ["SORTED_F"]

ORDERS = ("fcfs", "sof", "total-size", "svf")  # `sof` is the order of MC-SF
RULES = ("", "-skip", "-pack")
OURS = "staggered"
SHOWN = {"fcfs": "FCFS", "sof": "shortest output (MC-SF)", "total-size": "total size", "svf": "smallest volume"}
BEATEN = ("fcfs", "sof", "total-size")  # the baselines of the claim; SVF is later than it

QUICK = (("mixture", 1_000, 16_492), ("mixture", 1_000, 131_072), ("chat", 1_000, 16_492), ("summarization", 1_000, 16_492))
MORE = (
    *(("mixture", 10_000, 16_492), ("mixture", 10_000, 131_072), ("chat", 10_000, 16_492), ("summarization", 10_000, 131_072)),
    *(("translation", 1_000, 16_492), ("reasoning", 1_000, 131_072)),
)


def _tasks(seeds: int, quick: bool) -> list[Params]:
    cells = QUICK if quick else (*QUICK, *MORE)
    return [{"family": name, "n": n, "memory": memory, "seed": seed} for name, n, memory in cells for seed in range(seeds)]


def _measure(params: Params) -> dict[str, Any]:
    """Return the certified total latency of every solver, and a bound for all of them."""
    from instances import generate
    from opt.solvers.door import lower_bound, solve

    instance = generate(params["family"], n=params["n"], memory=params["memory"], seed=params["seed"])
    names = [*(order + rule for order in ORDERS for rule in RULES), "sorted-f", OURS]
    latency = {name: solve(instance, name, bound=None, seed=0).total_latency for name in names}
    return {"bound": lower_bound(instance, "mean-busy-time").ceil, "latency": latency}


def _ratio(record: Record, solver: str, over: str | None = None) -> float:
    """Return a solver's total latency over another's, or over the bound."""
    values = record["values"]
    return float(values["latency"][solver] / (values["bound"] if over is None else values["latency"][over]))


def _best_form(records: list[Record], order: str) -> str:
    """Return the rule under which an order does best in a cell: what an honest rival would use."""
    return min((order + rule for rule in RULES), key=lambda name: mean(_ratio(record, name) for record in records))


def _cells(records: list[Record]) -> Cells:
    return grouped(records, "family", "n", "memory")


def _label(cell: tuple[Any, ...]) -> str:
    family, n, memory = cell
    return f"{family}, {n:,} in {memory:,}"


def _verdict(records: list[Record]) -> Verdict:
    mixed = {cell: mine for cell, mine in _cells(records).items() if cell[0] == "mixture"}
    measured = [_said_of(cell, mine) for cell, mine in mixed.items()]
    holds, fails = [], []
    for cell, mine in _cells(records).items():
        over = {order: _best_form(mine, order) for order in ORDERS}
        ahead = [name for order, name in over.items() if _worst(mine, name) >= 1 and order in BEATEN]
        behind = [name for order, name in over.items() if name not in ahead and (order not in BEATEN or _worst(mine, name) < 1)]
        lost = [f"{name} {percent(1 / mean(_ratio(r, 'sorted-f', name) for r in mine))}" for name in _better(mine, behind)]
        holds += [_label(cell)] if len(ahead) == len(BEATEN) else []
        fails += [f"{_label(cell)}: {', '.join(lost)}"] if lost else []
    return Verdict(
        listed(measured),
        "below all three baselines, each under its best rule, for every seed: " + listed(holds),
        "total latency of what is better than Sorted-F in the cell: " + listed(fails),
    )


def _said_of(cell: tuple[Any, ...], records: list[Record]) -> str:
    """Return how Sorted-F stands to the strict orders and to the bound in a cell."""
    against = ", ".join(f"{percent(mean(_ratio(r, 'sorted-f', order) for r in records))} than {SHOWN[order]}" for order in ORDERS)
    above = {name: mean(_ratio(record, name) for record in records) - 1 for name in ("sorted-f", OURS)}
    return (
        f"{_label(cell)}: Sorted-F's mean latency is {against} (all head of line); it is {100 * above['sorted-f']:.1f} % above "
        f"a certified lower bound, {OURS} {100 * above[OURS]:.1f} %"
    )


def _worst(records: list[Record], rival: str) -> float:
    """Return the least ratio of a rival's latency to that of Sorted-F over the seeds: 1 or more says never worse."""
    return min(_ratio(record, rival, "sorted-f") for record in records)


def _better(records: list[Record], names: list[str]) -> list[str]:
    return [name for name in names if mean(_ratio(record, name, "sorted-f") for record in records) < 1]


def _tables(records: list[Record]) -> list[Table]:
    strict, best = [], []
    for cell, mine in _cells(records).items():
        over = {name: mean(_ratio(record, name) for record in mine) for name in mine[0]["values"]["latency"]}
        strict.append([*cell, len(mine), *(over[order] for order in ORDERS), over["sorted-f"], over[OURS]])
        forms = [_best_form(mine, order) for order in ORDERS]
        shown = [f"{over[name]:.4f} {name}" for name in forms]
        best.append([*cell, len(mine), *shown, over["sorted-f"], over[OURS]])
    columns = ["family", "n", "memory", "seeds", *(SHOWN[order] for order in ORDERS), "Sorted-F", f"{OURS} (ours)"]
    title = "total latency over a certified lower bound (mean-busy-time), mean over seeds"
    return [Table(f"{title}; orders head of line", columns, strict), Table(f"{title}; orders at their best rule", columns, best)]


def _pictures(records: list[Record]) -> list[Picture]:
    cells = []
    for cell, mine in _cells(records).items():
        names = {SHOWN[order]: _best_form(mine, order) for order in ORDERS} | {"Sorted-F": "sorted-f", f"{OURS} (ours)": OURS}
        cells.append((_label(cell), {shown: mean(_ratio(record, name) for record in mine) for shown, name in names.items()}))
    return [
        dots(
            cells,
            axis="total latency over a certified lower bound",
            title="Backlogs: how far from the bound each rule ends, orders under their best rule",
            caption="Total latency over a certified lower bound, a line for each kind of backlog.",
            one="the bound",
        )
    ]


SORTED_F = Claim(
    "sorted-f",
    "Sorted-F: batches of small outputs for their size, for backlogs whose prompts differ",
    "arXiv 2508.06133",
    "Average latency is consistently below that of first come first served, shortest first and total size on chats mixed with "
    "long-document summaries; those baselines can be arbitrarily bad, Sorted-F is within a constant (48).",
    "Backlogs that arrive together, lengths known; lengths of public chats and arXiv summaries, and each kind alone; "
    "every schedule certified.",
    _tasks,
    _measure,
    _verdict,
    _tables,
    _pictures,
)
