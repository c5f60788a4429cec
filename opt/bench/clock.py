"""The clock against measurements: held-out errors of cost models, plans in seconds.

Parts are independent: each has its tasks, its measure and its tables, and a line in `PARTS`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from opt.bench import engine
from opt.bench.parts import Part, suite_of
from opt.bench.plans import plan_tables, plan_tasks, plans
from opt.bench.runner import Params, Record, Table, grouped, median_of

__all__ = ["CLOCK", "PARTS"]


# Held-out errors of the forms, over the tables the presets are made from.

SPLITS = 4  # for each seed
CLASSES = {"A100, H100, H200": ("a100-", "h100-", "h200-"), "RTX": ("rtx-",)}
# What a fit has not seen: half of the measured attention points, or half of the dense points as well.
WITHHELD = {"attention": False, "attention and dense": True}


def _held_out_tasks(seeds: int) -> list[Params]:
    from opt.core.cost import FORMS

    return [
        {"part": "held-out", "cards": cards, "form": form, "withheld": withheld, "seed": seed}
        for seed in range(seeds)
        for cards in CLASSES
        for withheld in WITHHELD
        for form in FORMS
    ]


def _held_out(params: Params) -> dict[str, Any]:
    """Fit the form on half of every machine's points, and return the errors on the other half: each machine, and all."""
    from opt.fit.recipes import RECIPES, data_folder

    folder, first = data_folder(), SPLITS * params["seed"]
    found: dict[str, Any] = {}
    pooled = None
    for name, recipe in RECIPES.items():
        if name.startswith(CLASSES[params["cards"]]):
            splits, thin = range(first, first + SPLITS), WITHHELD[params["withheld"]]
            errors = recipe.setting(folder).errors(params["form"], splits=splits, thin=thin)
            pooled = errors if pooled is None else pooled + errors
            found[name] = errors.summary()
    assert pooled is not None
    return {"pooled": pooled.summary(), "machines": found}


def _held_out_tables(records: list[Record]) -> list[Table]:
    columns = ["withheld", "form", *(f"{kind} {what}" for kind in ("all", *KINDS) for what in ("median", "P95")), "iterations"]
    tables = []
    for (cards,), mine in grouped(records, "cards").items():
        rows = [
            [withheld, form, *_cells([record["values"]["pooled"] for record in part])]
            for (withheld, form), part in grouped(mine, "withheld", "form").items()
        ]
        tables.append(Table(f"held-out relative error of an iteration, {cards}, pooled", columns, rows))
    return [*tables, _by_machine(records)]


KINDS = ("decode", "prefill", "mixed")


def _cells(summaries: list[dict[str, Any]]) -> list[Any]:
    """Return medians over seeds, in per cent, and the iterations of all."""
    errors = [summary if kind == "all" else summary[kind] for kind in ("all", *KINDS) for summary in summaries]
    parts = [errors[at : at + len(summaries)] for at in range(0, len(errors), len(summaries))]
    cells = [_percent([part[what] for part in group]) for group in parts for what in ("median", "p95")]
    return [*cells, sum(summary["iterations"] for summary in summaries)]


def _percent(shares: list[float]) -> str:
    middle = median_of([{"values": {"share": share}} for share in shares], "share")
    return "-" if middle is None else f"{middle:.2%}"


def _by_machine(records: list[Record]) -> Table:
    """Return the errors of every machine and form, with half of the attention points withheld."""
    chosen = [record for record in records if record["params"]["withheld"] == "attention"]
    forms = list(dict.fromkeys(record["params"]["form"] for record in chosen))
    machines = list(dict.fromkeys(name for record in chosen for name in record["values"]["machines"]))
    rows = []
    for name in machines:
        there = [record for record in chosen if name in record["values"]["machines"]]
        row = [name]
        for form in forms:
            errors = [record["values"]["machines"][name] for record in there if record["params"]["form"] == form]
            row += [_percent([error["median"] for error in errors]), _percent([error["p95"] for error in errors])]
        rows.append(row)
    columns = ["machine", *(f"{form} {what}" for form in forms for what in ("median", "P95"))]
    return Table("by machine, half of the attention points withheld", columns, rows)


PARTS: dict[str, Part] = {
    "held-out": Part(_held_out_tasks, _held_out, _held_out_tables),
    "plans": Part(plan_tasks, plans, plan_tables),
    "replay": Part(engine.replay_tasks, engine.replay, engine.replay_tables),
    "traces": Part(engine.traces_tasks, engine.traces, engine.traces_tables),
    "growth": Part(engine.growth_tasks, engine.growth, engine.growth_tables),
}


_WHOLE = suite_of(
    "clock", "held-out errors of cost models, plans in seconds, the engine against real runs", PARTS, clocked=engine.CLOCKED
)


def _tasks(seeds: int) -> list[Params]:
    from opt.fit.recipes import data_folder

    data_folder()  # without it every task would fail
    return _WHOLE.tasks(seeds)


CLOCK = replace(_WHOLE, tasks=_tasks)
