"""SLOWeave: chunks as large as the tightest decode allows, against whole prompts and chunks of one size."""

from __future__ import annotations

from typing import Any

from opt.bench.chunking import CHUNKING, LOADS, MACHINES
from opt.bench.claims.claim import Cells, Claim, Verdict, listed, mean, percent
from opt.bench.claims.dots import dots
from opt.bench.runner import Params, Picture, Record, Table, grouped

__all__ = ["SLOWEAVE"]

THEIRS, WHOLE, OURS = "sloweave", "full-prefill", "banked-slack"
FIXED = ("chunk-64", "chunk-256", "chunk-1024")
SHOWN = {
    THEIRS: "SLOWeave",
    "sarathi": "Sarathi, 512",
    "qoserve-own": "QoServe, gaps kept",
    "two-step": "SlidingServe, two steps",
    OURS: "banked slack (ours)",
}
SYNTHETIC = "sloweave-synthetic"
REPORTED = {10: "3.35", 25: "about 1.4", 50: "1.0"}  # over whole prompts, by target, on the synthetic step
QUICK = ((SYNTHETIC, "mixed"), ("h100-llama-3-8b", "mixed"), ("h100-llama-3-70b-tp4", "long"))

Cell = tuple[str, int, str, str]  # cost model, target in ms, workload, load


def _tasks(seeds: int, quick: bool) -> list[Params]:
    """The suite's own tasks with a target for every gap, which is the reading of the claim."""
    tasks = [params for params in CHUNKING.tasks(seeds) if params["target"] == "gap"]
    return [params for params in tasks if (params["cost"], params["kind"]) in QUICK] if quick else tasks


def _cells(records: list[Record]) -> Cells:
    """Return the records by cost model, target, workload and load."""
    cells = grouped(records, "cost", "tpot_ms", "kind")
    return {(*cell, load): mine for cell, mine in cells.items() for load in LOADS}


def _figure(cell: tuple[Any, ...], records: list[Record], policy: str, name: str = "goodput_req_s") -> float:
    return mean(float(record["values"][cell[3]][policy][name]) for record in records)


def _over(cell: tuple[Any, ...], records: list[Record], policy: str, other: str) -> float:
    """Return goodput over goodput, of which one in a thousand requests a second is the least that counts."""
    return max(_figure(cell, records, policy), 1e-3) / max(_figure(cell, records, other), 1e-3)


def _best_fixed(cell: tuple[Any, ...], records: list[Record]) -> str:
    return max(FIXED, key=lambda policy: _figure(cell, records, policy))


def _label(cell: tuple[Any, ...]) -> str:
    cost, tpot, kind, load = cell
    return f"{cost}, {tpot} ms, {kind}, {load}"


def _verdict(records: list[Record]) -> Verdict:
    cells = _cells(records)
    measured = [_by_target(tpot, cells) for tpot in REPORTED] + [
        _by_machine(cost, cells) for cost in MACHINES if cost != SYNTHETIC
    ]
    gains = {cell: min(_over(cell, mine, THEIRS, rival) for rival in (WHOLE, *FIXED)) for cell, mine in cells.items()}
    holds = [f"{_label(cell)}: {gain:.2f}" for cell, gain in gains.items() if gain >= 1.05]
    fails = [f"{_label(cell)}: {gain:.2f}" for cell, gain in gains.items() if gain < 0.98]
    level = sum(0.98 <= gain < 1.05 for gain in gains.values())
    return Verdict(
        listed([text for text in measured if text], most=9),
        f"goodput at least 5 % above whole prompts and every fixed chunk in {len(holds)} of {len(cells)} cells: {listed(holds)}",
        f"level (to 5 %) with the best of them in {level}, below it by over 2 % in {len(fails)}: {listed(fails)}",
    )


def _by_target(tpot: int, cells: Cells) -> str:
    """Return the published relation and what it is here at each load, on the published synthetic step."""
    there = {cell: mine for cell, mine in cells.items() if cell[:3] == (SYNTHETIC, tpot, "mixed")}
    ratios = ", ".join(f"{_over(cell, mine, THEIRS, WHOLE):.2f} at {cell[3]} load" for cell, mine in there.items())
    return f"synthetic step, {tpot} ms: {ratios} times the goodput of whole prompts, reported {REPORTED[tpot]}" if there else ""


def _by_machine(cost: str, cells: Cells) -> str:
    """Return goodput and first tokens on a measured machine at the middle load, and how ours stands to it."""
    there = [(cell, mine) for cell, mine in cells.items() if cell[0] == cost and cell[3] == LOADS[1]]
    if not there:
        return ""
    cell, mine = there[0]
    fixed = _best_fixed(cell, mine)
    late = _figure(cell, mine, THEIRS, "ttft_p99_s") / _figure(cell, mine, fixed, "ttft_p99_s")
    return (
        f"{_label(cell)}: {_over(cell, mine, THEIRS, WHOLE):.2f} times the goodput of whole prompts, "
        f"{_over(cell, mine, THEIRS, fixed):.2f} times that of {fixed}, the best fixed chunk, with P99 TTFT {percent(late)}; "
        f"{OURS} has {_over(cell, mine, OURS, THEIRS):.2f} times the goodput of SLOWeave"
    )


def _tables(records: list[Record]) -> list[Table]:
    rows = []
    for cell, mine in _cells(records).items():
        fixed = _best_fixed(cell, mine)
        ratios = [_over(cell, mine, THEIRS, rival) for rival in (WHOLE, fixed)]
        goodput = [_figure(cell, mine, policy) for policy in (WHOLE, fixed, *SHOWN)]
        rows.append([*cell, len(mine), *goodput[:2], fixed, *goodput[2:], *ratios])
    columns = ["cost", "gap ms", "workload", "load", "seeds", "whole prompts", "best fixed", "which", *SHOWN.values()]
    return [Table("goodput, requests a second", [*columns, "SLOWeave over whole", "over best fixed"], rows)]


def _pictures(records: list[Record]) -> list[Picture]:
    rows = [
        (_label(cell), {shown: _over(cell, mine, name, _best_fixed(cell, mine)) for name, shown in SHOWN.items()})
        for cell, mine in _cells(records).items()
        if _figure(cell, mine, _best_fixed(cell, mine)) > 0
    ]
    return [
        dots(
            rows,
            axis="goodput over that of the best fixed chunk",
            title="Chunks under targets: goodput against the best fixed chunk of the cell",
            caption="Goodput over that of the best fixed chunk, a line for each machine, target, workload and load.",
            one="the best of 64, 256 and 1024 tokens",
        )
    ]


SLOWEAVE = Claim(
    "sloweave",
    "SLOWeave: prefill chunks as large as the tightest decode allows",
    "arXiv 2609.07883",
    "On the authors' simulated step, 3.35 times the goodput of whole prompts at a target of 10 ms between tokens, about 1.4 at "
    "25 ms, no gain at 50 ms; on A100 8B 38.4 and 52.7 to 67.1 requests a second, P99 TTFT 1,510 ms (fixed 1,024) to 1,190 ms.",
    "Prompts to 7,000 tokens at three loads each, a target for every gap; the published step, and Llama-3 8B and 70B on H100s "
    "(fitted); outputs unknown.",
    _tasks,
    CHUNKING.measure,
    _verdict,
    _tables,
    _pictures,
)
