"""Kairos: prompts that wait for a prefill node computed on decode nodes instead, in chunks; two of each, bursts, long tails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opt.bench.claims.claim import Cells, Claim, Verdict, listed, mean
from opt.bench.claims.dots import dots
from opt.bench.deflect import DEFLECT
from opt.bench.runner import Params, Picture, Record, Table, grouped

__all__ = ["KAIROS"]

THEIRS, NEVER, OURS = "kairos", "never", "rolling"
SHOWN = {
    THEIRS: "Kairos",
    "co-locate": "no roles",
    "joint-least-ttft": "joint least TTFT",
    "slo-externality": "externality",
    "taichi": "TaiChi",
    OURS: "rolling (ours)",
}
QUICK = ("code", "conversation", "tenants", "chat and 16K")
MATTERS = 0.01  # of all requests: a change in attainment below it is none


def _tasks(seeds: int, quick: bool) -> list[Params]:
    """The suite's own cells with like nodes; where quick, one seed of four workloads on two and two."""
    cells = [params for params in DEFLECT.tasks(seeds) if params["part"] == "map" and params["kind"] == "homogeneous"]
    if not quick:
        return cells
    return [cell for cell in cells if cell["workload"] in QUICK and cell["size"] == "2P2D" and cell["seed"] == 0]


def _cells(records: list[Record]) -> Cells:
    return grouped(records, "size", "workload", "load")


def _figure(records: list[Record], router: str, name: str) -> float:
    return mean(float(record["values"]["routers"][router][name]) for record in records)


def _late(records: list[Record], router: str) -> float:
    """Return the P95 of the time to the first token, over that without deflection."""
    return _figure(records, router, "ttft_p95_s") / _figure(records, NEVER, "ttft_p95_s")


def _met(records: list[Record], router: str) -> float:
    """Return how much the share of requests that meet their targets is above that without deflection."""
    return _figure(records, router, "attainment") - _figure(records, NEVER, "attainment")


def _label(cell: tuple[Any, ...]) -> str:
    size, workload, load = cell
    return f"{size}, {workload}, load {load:g}"


def _verdict(records: list[Record]) -> Verdict:
    cells = _cells(records)
    there = list(cells.values())
    shares = [_figure(mine, THEIRS, "prefill_share") for mine in there]
    holds = [_label(cell) for cell, mine in cells.items() if _late(mine, THEIRS) < 1 and _met(mine, THEIRS) > MATTERS]
    fails = [_label(cell) for cell, mine in cells.items() if _late(mine, THEIRS) >= 1 or _met(mine, THEIRS) <= MATTERS]
    beaten = [_label(cell) for cell, mine in cells.items() if _beaten(mine)]
    tail = f"{100 * min(shares):.0f} to {100 * max(shares):.0f} % of the slowest twentieth's TTFT"
    return Verdict(
        f"against no deflection, over {len(cells)} cells: Kairos {_spread(there, THEIRS)}; ours ({OURS}) {_spread(there, OURS)}; "
        f"execution of the prompt is {tail} under Kairos",
        f"lower P95 TTFT and attainment up by over a point in {len(holds)} of {len(cells)} cells: {listed(holds)}",
        f"no lower P95 or no more attainment than by a point in {len(fails)}: {listed(fails)}; another published router attains "
        f"over a point more than Kairos in {len(beaten)}: {listed(beaten)}",
    )


def _beaten(records: list[Record]) -> bool:
    """Tell whether a published router other than Kairos attains more."""
    others = [_figure(records, name, "attainment") for name in SHOWN if name not in (THEIRS, OURS)]
    return max(others) > _figure(records, THEIRS, "attainment") + MATTERS


def _spread(cells: Sequence[list[Record]], router: str) -> str:
    late = sorted(100 * (_late(mine, router) - 1) for mine in cells)
    met = sorted(100 * _met(mine, router) for mine in cells)
    more = sorted(
        100 * (_figure(mine, router, "attainment") / max(_figure(mine, NEVER, "attainment"), 1e-3) - 1) for mine in cells
    )
    return (
        f"P95 TTFT {late[0]:+.0f} to {late[-1]:+.0f} %, attainment {met[0]:+.0f} to {met[-1]:+.0f} points "
        f"({more[0]:+.0f} to {more[-1]:+.0f} %)"
    )


def _tables(records: list[Record]) -> list[Table]:
    routers = [NEVER, *SHOWN]
    columns = ["nodes", "workload", "load", "seeds", NEVER, *SHOWN.values()]

    def table(title: str, name: str, digits: int) -> Table:
        rows = [
            [*cell, len(mine), *(round(_figure(mine, r, name), digits) for r in routers)]
            for cell, mine in _cells(records).items()
        ]
        return Table(title, columns, rows)

    return [
        table("P95 of the time to the first token, s", "ttft_p95_s", 3),
        table("share of requests that meet their targets", "attainment", 3),
        table("share of prompts computed on decode nodes", "deflected", 3),
        table("share of requests with a gap between tokens over its target", "gap_broken", 3),
    ]


def _pictures(records: list[Record]) -> list[Picture]:
    rows = [(_label(cell), {shown: _late(mine, name) for name, shown in SHOWN.items()}) for cell, mine in _cells(records).items()]
    return [
        dots(
            rows,
            axis="P95 TTFT over that without deflection",
            title="Prefill deflection: the slowest first tokens of each router",
            caption="P95 of the time to the first token over that of a cluster that never deflects, a line for each workload and "
            "load; left of the mark is better.",
            one="never to deflect",
        )
    ]


KAIROS = Claim(
    "kairos",
    "Kairos: queued prompts deflected to decode nodes",
    "arXiv 2607.02043",
    "On 2 prefill and 2 decode A100 nodes under bursts with heavy tails, P95 TTFT down by up to 81 % and attainment of targets "
    "up by up to 79 % against disaggregated schedulers; execution of the prompt is 2 to 23 % of P95 TTFT.",
    "2 + 2 A100 nodes of Llama-3-8B (fitted), bursts as in public traces, loads from 0.7 to 2 of what the prefill nodes can do, "
    "state of nodes up to 0.1 s old.",
    _tasks,
    DEFLECT.measure,
    _verdict,
    _tables,
    _pictures,
)
