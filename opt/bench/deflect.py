"""Routers of disaggregated clusters: the whole map, where it comes from, what a decision costs, and how far the optimum is.

* `map`: every workload, load, kind of nodes and size is a cell (`opt.bench.pools`), and every router runs in it: attainment
  of targets (first token, every gap), P95 of the time to the first token, the share of prompt execution in it, deflections,
  broken gaps.
* `cost`, `optimum`, `error`, `stale`: see `opt.bench.routing`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opt.bench import routing
from opt.bench.parts import Part, suite_of
from opt.bench.pools import TWO, WORKLOADS, cluster, requests_of, traces
from opt.bench.routing import OURS
from opt.bench.runner import Params, Record, Table, grouped

__all__ = ["DEFLECT"]

LOADS = (0.7, 1.3, 2.0)
VARIANTS: dict[str, Mapping[str, Any]] = {
    "rolling, by arrival": {"choose": False},
    "rolling, sent at once": {"late_binding": False, "choose": False},
    "rolling, no deflection": {"deflect": False},
    "rolling, none stays": {"stay": False},
}


def _map_tasks(seeds: int) -> list[Params]:
    cells = [(kind, TWO, name) for kind in ("homogeneous", "heterogeneous") for name in WORKLOADS]
    cells += [("homogeneous", TWO, name) for name in traces()]
    cells += [("homogeneous", "4P4D", "code"), ("heterogeneous", "4P4D", "tenants")]
    return [
        {"part": "map", "kind": kind, "size": size, "workload": name, "load": load, "seed": seed}
        for kind, size, name in cells
        for load in LOADS
        for seed in range(seeds)
    ]


def _map(params: Params) -> dict[str, Any]:
    """Run every router in a cell."""
    from opt.serve.cluster import ROUTERS, simulate_pools

    pools, speed = cluster(params["kind"], params["size"])
    instance = requests_of(params["workload"], params["load"], params["seed"], speed)
    found = {name: _figures(simulate_pools(instance, pools, name)) for name in ROUTERS}
    more = {name: _figures(simulate_pools(instance, pools, OURS, **how)) for name, how in VARIANTS.items()}
    return {"routers": found | more}


def _figures(timeline: Any) -> dict[str, Any]:
    metrics, ttft = timeline.metrics, timeline.ttft_s
    done = np.isfinite(ttft)
    tail = done & (ttft >= np.quantile(ttft[done], 0.95))
    itl = timeline.workload.requests.itl_s
    return {
        "attainment": metrics["slo_attainment"],
        "goodput_req_s": metrics["goodput_req_s"],
        "ttft_p50_s": metrics["ttft_s"]["p50"],
        "ttft_p95_s": metrics["ttft_s"]["p95"],
        "prefill_share": float(np.mean(timeline.cluster.parts.prefill_s[tail] / ttft[tail])),
        "deflected": metrics["deflected"] / metrics["submitted"],
        "gap_broken": float(np.mean(timeline.workload.progress.max_gap_s[done] > itl[done] + 1e-9)),
        "late_by_chunks": metrics["late_by_chunks"],
        "preemptions": metrics["preemptions"],
        "rejected": metrics["rejected"],
    }


def _mean(records: list[Record], router: str, what: str) -> float:
    return float(np.mean([record["values"]["routers"][router][what] for record in records]))


def _map_tables(records: list[Record]) -> list[Table]:
    routers = list(records[0]["values"]["routers"])
    rivals = [router for router in routers if router not in VARIANTS]
    cells = grouped(records, "kind", "size", "workload", "load")

    def table(title: str, what: str, digits: str, shown: list[str] = rivals) -> Table:
        rows = [
            [f"{kind[:3]} {size} {name} {load}", *(format(_mean(mine, router, what), digits) for router in shown)]
            for (kind, size, name, load), mine in cells.items()
        ]
        return Table(title, ["nodes, workload, load", *(name.removeprefix(f"{OURS}, ") for name in shown)], rows)

    return [
        table("attainment of all targets", "attainment", ".3f"),
        table("P95 of the time to the first token, s", "ttft_p95_s", ".2f"),
        table("share of prompt execution in the slowest 5 % of first tokens", "prefill_share", ".2f"),
        table("share of prompts computed on decode nodes", "deflected", ".2f"),
        table("share of requests with a gap over its target", "gap_broken", ".3f"),
        table("attainment of rolling, and with one idea off", "attainment", ".3f", [OURS, *VARIANTS]),
        _against_never(cells, routers),
        *(_regrets(cells, routers, kind) for kind in dict.fromkeys(cell[0] for cell in cells)),
    ]


def _against_never(cells: Mapping[tuple[Any, ...], list[Record]], routers: list[str]) -> Table:
    """Return the largest and the least change against no deflection, and in how many cells it is none or a loss."""
    rows = []
    for router in routers:
        change = [_mean(mine, router, "ttft_p95_s") / _mean(mine, "never", "ttft_p95_s") - 1 for mine in cells.values()]
        gain = [_mean(mine, router, "attainment") - _mean(mine, "never", "attainment") for mine in cells.values()]
        shown = [f"{min(change):+.0%}", f"{max(change):+.0%}", f"{max(gain):+.3f}", f"{min(gain):+.3f}"]
        rows.append([router, *shown, sum(cell <= 0.001 for cell in gain), len(gain)])
    columns = ["router", "P95 best", "P95 worst", "attainment best", "attainment worst", "cells without gain", "cells"]
    return Table("against no deflection", columns, rows)


def _regrets(cells: Mapping[tuple[Any, ...], list[Record]], routers: list[str], kind: str) -> Table:
    """Return the regret of each router: the share of the best router's goodput in the cell that it misses."""
    mine = [records for cell, records in cells.items() if cell[0] == kind]
    rows = []
    for router in routers:
        regrets, losses = [], []
        for records in mine:
            got = {name: _mean(records, name, "attainment") for name in routers}
            best = max(got.values())
            regrets.append(1 - got[router] / best if best else 0.0)
            losses.append(best - got[router])
        rows.append(
            [router, f"{max(regrets):.4f}", f"{np.mean(regrets):.4f}", f"{max(losses):.4f}", sum(r <= 0 for r in regrets)]
        )
    columns = ["router", "worst regret", "mean regret", "worst difference", "cells where it is best"]
    return Table(f"regret in goodput against the best router of the cell, {kind}, {len(mine)} cells", columns, rows)


PARTS = {
    "map": Part(_map_tasks, _map, _map_tables),
    "cost": Part(routing.cost_tasks, routing.cost, routing.cost_tables),
    "optimum": Part(routing.optimum_tasks, routing.optimum, routing.optimum_tables),
    "error": Part(routing.error_tasks, routing.error, routing.error_tables),
    "stale": Part(routing.stale_tasks, routing.stale, routing.stale_tables),
}


DEFLECT = suite_of(
    "deflect",
    "routers of disaggregated clusters: map, regret, decisions, optimum, wrong and stale knowledge",
    PARTS,
    clocked=routing.CLOCKED,
)
