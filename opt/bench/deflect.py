"""Routers of disaggregated clusters: the whole map, where it comes from, what a decision costs, and how far the optimum is.

* `map`: every workload, load, kind of nodes and size is a cell, and every router runs in it: attainment of targets (first
  token, every gap), P95 of the time to the first token, the share of prompt execution in it, deflections, broken gaps.
  Load is prompt work over what the prefill nodes alone can do, so a load above 1 needs deflection, or waits. Arrivals keep
  the bursts of their workload; only time is stretched. Where `KVOPT_DATA` names the public data, traces are among them.
* `cost`: seconds of the interpreter's thread for one decision, by requests held or queued, with 8 + 8 nodes.
* `optimum`: small bursts beside residents, against the planning model, which no router can beat.
* `error`: what is broken when every coefficient of the cost models is off by up to 10 %.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Suite, Table, grouped
from opt.core.columns import FloatArray
from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["DEFLECT"]

A100, H100 = "a100-llama-3-8b", "h100-llama-3-8b"
BUDGET = 4096  # tokens of a step on prefill nodes, and at most on decode nodes
MEMORY = 400_000
REQUESTS = 400
LOADS = (0.7, 1.3, 2.0)
REFERENCE = 4096  # tokens by which the speed of a node is measured
TWO = "2P2D"
SIZES = {TWO: (2, 2), "4P4D": (4, 4)}


@dataclass(frozen=True)
class Workload:
    """A family of instances, its targets, and the variation of gaps where the family has no arrivals of its own."""

    family: str
    ttft_s: float
    itl_s: float
    gap_cv: float = 4.0


WORKLOADS: dict[str, Workload] = {
    "code": Workload("code", 2.0, 0.1),
    "code, strict": Workload("code", 1.0, 0.05),
    "conversation": Workload("conversation", 1.0, 0.1),
    "tenants": Workload("tenants", 1.0, 0.05),
    "agent": Workload("agent", 2.0, 0.1),
    "chat": Workload("chat", 0.25, 0.05),
    "chat and 16K": Workload("long mix", 3.0, 0.1),
    "reasoning": Workload("reasoning", 2.0, 0.1),
}
TRACES: dict[str, Workload] = {
    "Azure code": Workload("azure", 2.0, 0.1),
    "Mooncake": Workload("mooncake", 8.0, 0.1),
}
FILES = {"azure": "azure/AzureLLMInferenceTrace_code.csv.gz", "mooncake": "mooncake/conversation_trace.jsonl.gz"}
FIRST = 2000  # requests of a trace before the first one of seed 0
OURS = "rolling"
VARIANTS: dict[str, Mapping[str, Any]] = {
    "rolling, by arrival": {"choose": False},
    "rolling, sent at once": {"late_binding": False, "choose": False},
    "rolling, no deflection": {"deflect": False},
    "rolling, none stays": {"stay": False},
}


def _instance(name: str, load: float, seed: int, speed: float, requests: int = REQUESTS) -> Instance:
    """Return a cell's requests: `load` times what prefill nodes of this speed (prompts like the A100's a second) can do."""
    from instances import FAMILIES

    workload = {**WORKLOADS, **TRACES}[name]
    rng = np.random.default_rng([seed, 7])
    if workload.family == "long mix":
        long = rng.random(requests) < 0.15
        prompt = np.where(
            long, rng.integers(4096, 16_385, requests), rng.lognormal(5.5, 1.0, requests).astype(np.int64).clip(8, 4000)
        )
        base = Instance(MEMORY, prompt, rng.lognormal(4.9, 0.8, requests).astype(np.int64).clip(4, 1000))
    elif name in TRACES:
        base = _window(workload.family, seed, requests)
    else:
        base = FAMILIES[workload.family].build(requests, MEMORY, seed)
    arrival = base.arrival_s
    if arrival is None:
        arrival = np.cumsum(rng.gamma(1 / workload.gap_cv**2, workload.gap_cv**2, requests))
    arrival = arrival - arrival[0]
    work = float(_alone_s(base).sum())
    arrival = arrival * (work / speed / load / arrival[-1])
    changes = {"ttft_s": np.full(requests, workload.ttft_s), "itl_s": np.full(requests, workload.itl_s)}
    return base.replace(arrival=None, arrival_s=arrival, **changes)


def _window(form: str, seed: int, requests: int) -> Instance:
    """Return successive requests of a public trace, others for every seed."""
    from opt.core.traces import read_trace
    from opt.fit.recipes import data_folder

    first = FIRST + seed * requests
    whole = read_trace(str(data_folder() / FILES[form]), form, memory=MEMORY, limit=first + requests)
    return whole.take(np.arange(first, first + requests))


def _traces() -> list[str]:
    """Return the public traces, none where there is no folder of public data."""
    from opt.fit.recipes import data_folder

    try:
        folder = data_folder()
    except InstanceError:
        return []
    return [name for name, workload in TRACES.items() if (folder / FILES[workload.family]).exists()]


def _alone_s(instance: Instance) -> FloatArray:
    """Return (n,) the seconds of each prompt alone on an A100, nothing cached."""
    from opt.core.cost import cost_model
    from opt.serve.cluster.kernels import alone_s

    spent: FloatArray = alone_s(cost_model(A100).coefficients, np.zeros(2), instance.prompt, BUDGET)
    return spent


def _pools(kind: str, size: str) -> tuple[Any, float]:
    """Return a cluster, and how many A100 its prefill nodes are worth.

    Of heterogeneous nodes the first prefill node and the last decode node are H100, and A100 decode nodes have a fifth of
    the memory.
    """
    from opt.core.cost import cost_model
    from opt.serve.cluster import Node, Pools
    from opt.sim.config import EngineConfig

    slow, fast = cost_model(A100), cost_model(H100)
    config = EngineConfig(token_budget=BUDGET)
    prefill, decode = SIZES[size]
    nodes = []
    for role, count in (("prefill", prefill), ("decode", decode)):
        for k in range(count):
            quick = kind == "heterogeneous" and k == (0 if role == "prefill" else count - 1)
            small = kind == "heterogeneous" and role == "decode" and not quick
            mine = config.replace(name=f"{role}{k}", kv_tokens=(slow.memory or MEMORY) // 5 if small else None)
            nodes.append(Node(f"{role}{k}", role, fast if quick else slow, mine))  # type: ignore[arg-type]
    pools = Pools(tuple(nodes), name=f"{kind} {size}")
    whole = Instance(MEMORY, [REFERENCE], [1])
    quicker = float(_alone_s(whole)[0]) / _quick_s(fast)
    return pools, prefill - 1 + quicker if kind == "heterogeneous" else float(prefill)


def _quick_s(cost: Any) -> float:
    from opt.serve.cluster.kernels import alone_s

    return float(alone_s(cost.coefficients, np.zeros(2), np.array([REFERENCE], np.int64), BUDGET)[0])


# The map.


def _map_tasks(seeds: int) -> list[Params]:
    cells = [(kind, TWO, name) for kind in ("homogeneous", "heterogeneous") for name in WORKLOADS]
    cells += [("homogeneous", TWO, name) for name in _traces()]
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

    pools, speed = _pools(params["kind"], params["size"])
    instance = _instance(params["workload"], params["load"], params["seed"], speed)
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


# What a decision costs.

COUNTS = (10, 100, 1000, 3000)
TIMED = (OURS, "kairos", "joint-least-ttft")


def _cost_tasks(seeds: int) -> list[Params]:
    return [{"part": "cost", "router": router, "queued": n, "seed": 0} for router in TIMED for n in COUNTS if seeds]


def _cost(params: Params) -> dict[str, Any]:
    """Let so many requests come at once to 8 + 8 nodes, and 300 more one by one, and time the decisions about these."""
    from opt.core.cost import cost_model
    from opt.serve.cluster import Node, Pools, simulate_pools
    from opt.sim.config import EngineConfig

    config, queued, later = EngineConfig(token_budget=BUDGET), params["queued"], 300
    nodes = [Node(f"{role}{k}", role, cost_model(A100), config) for role in ("prefill", "decode") for k in range(8)]
    rng = np.random.default_rng(1)
    n = queued + later
    prompt = rng.lognormal(7.5, 0.8, size=n).astype(np.int64).clip(16, 16_000)
    arrival = np.concatenate((np.zeros(queued), np.sort(rng.uniform(0.05, 1.0, later))))
    spent: list[tuple[int, float]] = []

    def timed(router: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def asked(view: Any) -> Iterator[Any]:
            held, total = len(view.held), 0.0
            begun = time.thread_time()
            routes = iter(router(view))
            while True:
                route = next(routes, None)
                total += time.thread_time() - begun
                if route is None:
                    break
                yield route
                begun = time.thread_time()
            if view.now > 0:
                spent.append((held, total))

        return asked

    for count in (20, n):  # the first run compiles
        spent.clear()
        take = np.r_[:count]
        instance = Instance(
            MEMORY,
            prompt[take],
            np.full(count, 2),
            arrival_s=arrival[take],
            ttft_s=np.full(count, 30.0),
            itl_s=np.full(count, 0.1),
        )
        simulate_pools(instance, Pools(tuple(nodes)), params["router"], wrap=timed)
    seconds = np.array([cell for _, cell in spent[:later]])
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return {
        "p50_ms": 1e3 * p50,
        "p99_ms": 1e3 * p99,
        "max_ms": 1e3 * seconds.max(),
        "decisions": len(seconds),
        "held": spent[0][0],
    }


def _cost_tables(records: list[Record]) -> list[Table]:
    rows = [
        [
            record["params"]["router"],
            record["params"]["queued"],
            *(record["values"][name] for name in ("p50_ms", "p99_ms", "max_ms")),
        ]
        for record in records
    ]
    return [Table("milliseconds of a decision, 8 + 8 nodes", ["router", "queued", "P50", "P99", "max"], rows)]


# Against the optimum.

RESIDENTS, SETTLED = 24, 2.0  # decodes on the decode nodes, and when the burst comes
DUE_S = 0.6  # target of the first tokens, where they are to be in time


def _optimum_tasks(seeds: int) -> list[Params]:
    return [
        {"part": "optimum", "objective": objective, "n": n, "case": case, "seed": seed}
        for objective in ("total", "in time")
        for n in (5, 8)
        for case in range(4)
        for seed in range(seeds)
    ]


def _optimum(params: Params) -> dict[str, Any]:
    """Run the routers on a burst beside residents, nodes computing one prompt at a time, and plan the same burst."""
    import dataclasses

    from opt.serve.cluster import ROUTERS, Route, simulate_pools
    from opt.serve.cluster.planning import burst_of, plan

    n, (pools, _) = params["n"], _pools("homogeneous", TWO)
    rng = np.random.default_rng([params["seed"], params["case"], n])
    burst = list(range(RESIDENTS, RESIDENTS + n))
    prompt = np.concatenate((np.full(RESIDENTS, 500), np.exp(rng.normal(7.8, 0.8, n)).clip(64, 16_000).astype(np.int64)))
    arrival = np.concatenate((np.zeros(RESIDENTS), np.sort(SETTLED + rng.uniform(0, 0.3, n))))
    due = DUE_S if params["objective"] == "in time" else np.nan
    instance = Instance(
        MEMORY,
        prompt,
        [1500] * RESIDENTS + [2] * n,
        arrival_s=arrival,
        itl_s=np.full(RESIDENTS + n, 0.1),
        ttft_s=np.concatenate((np.full(RESIDENTS, np.nan), np.full(n, due))),
    )
    planned: list[Any] = []

    def settled(router: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def asked(view: Any) -> Any:
            residents = [Route(i, 2 + i % 2, 2 + i % 2) for i in view.held if i < RESIDENTS]
            if residents:
                return residents
            if not planned:
                planned.append(burst_of(view, burst))
            return router(view)

        return asked

    found: dict[str, Any] = {}
    for name, kind in ROUTERS.items():
        if kind.roles == "own" and not kind.small:
            serial = dataclasses.replace(kind, params={**kind.params, "share": False})
            ttft = simulate_pools(instance, pools, serial, wrap=settled).ttft_s[burst]
            found[name] = {"total_s": float(ttft.sum()), "in_time": int((ttft <= DUE_S + 1e-9).sum())}
    best = plan(planned[0], time_limit=20.0)
    return {"routers": found, "total_s": best.total_s, "in_time": best.in_time, "proved": best.proved}


def _optimum_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (objective, n), mine in grouped(records, "objective", "n").items():
        proved = sum(record["values"]["proved"] for record in mine)
        for router in mine[0]["values"]["routers"]:
            key = "total_s" if objective == "total" else "in_time"
            pairs = [(record["values"]["routers"][router][key], record["values"][key]) for record in mine]
            if objective == "total":
                ratios = [got / best for got, best in pairs]
                rows.append([objective, n, router, np.mean(ratios), max(ratios), len(mine), proved])
            else:
                shares = [got / best for got, best in pairs if best]
                rows.append([objective, n, router, float(np.mean(shares)), min(shares), len(shares), proved])
    columns = ["objective", "prompts", "router", "mean ratio to the optimum", "worst", "cases", "proved"]
    return [Table("small bursts beside residents: total time to the first tokens, first tokens in time", columns, rows)]


# Wrong cost models.

ERRORS = ("none", "drawn", "hopeful")  # of each coefficient: 0, from -10 % to +10 %, -10 %
ERROR = 0.1
MARGINS = (0.0, 0.1)


def _error_tasks(seeds: int) -> list[Params]:
    return [
        {"part": "error", "workload": name, "error": error, "margin": margin, "seed": seed}
        for name in ("code", "tenants", "chat and 16K")
        for error in ERRORS
        for margin in MARGINS
        for seed in range(seeds)
    ]


def _error(params: Params) -> dict[str, Any]:
    """Run our router and Kairos where every node's coefficients are believed with an error."""
    import dataclasses

    from opt.serve.cluster import ROUTERS, disturbed, simulate_pools

    pools, speed = _pools("homogeneous", TWO)
    instance = _instance(params["workload"], 1.3, params["seed"], speed)
    seeds = np.random.default_rng(params["seed"]).integers(0, 2**31, len(pools.nodes)).tolist()
    low, high = {"none": (0.0, 0.0), "drawn": (-ERROR, ERROR), "hopeful": (-ERROR, -ERROR)}[params["error"]]
    beliefs = [disturbed(node.cost, low, high, seed) for node, seed in zip(pools.nodes, seeds, strict=True)]
    found = {}
    for name in (OURS, "kairos"):
        kind = ROUTERS[name]
        own = {"margin": params["margin"]} if name == OURS else {}
        timeline = simulate_pools(instance, pools, dataclasses.replace(kind, params=own), beliefs=beliefs, **own)
        assert timeline.cluster is not None
        harm, metrics = timeline.cluster.harm, timeline.metrics
        found[name] = {"tokens": harm.tokens, "late": harm.late, "worst_s": harm.worst_s, "attainment": metrics["slo_attainment"]}
        found[name]["all"] = int(timeline.workload.progress.produced.sum())
    return {"routers": found}


def _error_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (name, error, margin), mine in grouped(records, "workload", "error", "margin").items():
        for router in mine[0]["values"]["routers"]:
            cells = [record["values"]["routers"][router] for record in mine]
            tokens, late, everything = (sum(cell[key] for cell in cells) for key in ("tokens", "late", "all"))
            attainment = float(np.mean([cell["attainment"] for cell in cells]))
            share, of_all = (f"{late / max(count, 1):.4%}" for count in (tokens, everything))
            worst = 1e3 * max(cell["worst_s"] for cell in cells)
            rows.append([name, error, f"{margin:.0%}", router, late, share, of_all, worst, attainment])
    columns = [
        "workload",
        "error",
        "margin",
        "router",
        "late tokens",
        "of those beside chunks",
        "of all",
        "worst ms",
        "attainment",
    ]
    return [Table("tokens of residents that deflections made late, load 1.3", columns, rows)]


PARTS = {
    "map": (_map_tasks, _map, _map_tables),
    "cost": (_cost_tasks, _cost, _cost_tables),
    "optimum": (_optimum_tasks, _optimum, _optimum_tables),
    "error": (_error_tasks, _error, _error_tables),
}


def _tasks(seeds: int) -> list[Params]:
    return [task for tasks, _, _ in PARTS.values() for task in tasks(seeds)]


def _measure(params: Params) -> dict[str, Any]:
    return PARTS[params["part"]][1](params)


def _tables(records: list[Record]) -> list[Table]:
    parts = grouped([record for record in records if "values" in record], "part")
    return [table for name, (_, _, tables) in PARTS.items() if (name,) in parts for table in tables(parts[(name,)])]


DEFLECT = Suite(
    "deflect", "routers of disaggregated clusters: map, regret, decisions, optimum, wrong models", _tasks, _measure, _tables
)
