"""Routers of clusters under a lens: parts of the suite `deflect` beside its map.

* `cost`: seconds of the interpreter's thread for one decision, by requests held or queued, with 8 + 8 nodes.
* `optimum`: small bursts beside residents, against the planning model, which no router can beat.
* `error`: what is broken when every coefficient of the cost models is off by up to 10 %.
* `stale`: attainment by the seconds between two heartbeats.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from opt.bench.pools import A100, BUDGET, MEMORY, TWO, cluster, requests_of
from opt.bench.runner import Params, Record, Table, grouped
from opt.core.instance import Instance

__all__ = [
    "CLOCKED",
    "OURS",
    "cost",
    "cost_tables",
    "cost_tasks",
    "error",
    "error_tables",
    "error_tasks",
    "optimum",
    "optimum_tables",
    "optimum_tasks",
    "stale",
    "stale_tables",
    "stale_tasks",
]

OURS = "rolling"
CLOCKED = frozenset({"p50_ms", "p99_ms", "max_ms"})

# What a decision costs.

COUNTS = (10, 100, 1000, 3000)
LATER = 300  # requests that come one by one, and whose decisions are timed
TIMED = (OURS, "kairos", "joint-least-ttft")


def cost_tasks(seeds: int) -> list[Params]:
    """Return the routers and the queues to time."""
    return [{"part": "cost", "router": router, "queued": n, "seed": 0} for router in TIMED for n in COUNTS if seeds]


def cost(params: Params) -> dict[str, Any]:
    """Let so many requests come at once to 8 + 8 nodes, and 300 more one by one, and time the decisions about these."""
    from opt.core.cost import cost_model
    from opt.serve.cluster import Node, Pools, simulate_pools
    from opt.sim.config import EngineConfig

    config = EngineConfig(token_budget=BUDGET)
    nodes = [Node(f"{role}{k}", role, cost_model(A100), config) for role in ("prefill", "decode") for k in range(8)]
    whole = _rush(params["queued"])
    spent: list[tuple[int, float]] = []
    for count in (20, whole.n):  # the first run compiles
        spent.clear()
        simulate_pools(whole.take(np.arange(count)), Pools(tuple(nodes)), params["router"], wrap=_timed(spent))
    seconds = np.array([cell for _, cell in spent[:LATER]])
    p50, p99 = np.quantile(seconds, [0.5, 0.99])
    return {
        "p50_ms": 1e3 * p50,
        "p99_ms": 1e3 * p99,
        "max_ms": 1e3 * seconds.max(),
        "decisions": len(seconds),
        "held": spent[0][0],
    }


def _rush(queued: int) -> Instance:
    """Return so many requests that are there at once, and `LATER` that come within the next second."""
    rng = np.random.default_rng(1)
    n = queued + LATER
    prompt = rng.lognormal(7.5, 0.8, size=n).astype(np.int64).clip(16, 16_000)
    arrival = np.concatenate((np.zeros(queued), np.sort(rng.uniform(0.05, 1.0, LATER))))
    return Instance(MEMORY, prompt, np.full(n, 2), arrival_s=arrival, ttft_s=np.full(n, 30.0), itl_s=np.full(n, 0.1))


def _timed(spent: list[tuple[int, float]]) -> Callable[[Callable[[Any], Any]], Callable[[Any], Any]]:
    """Return what makes a router note, once the rush is in, how many requests are held and the seconds it thought."""

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

    return timed


def cost_tables(records: list[Record]) -> list[Table]:
    """Return the milliseconds of a decision."""
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


def optimum_tasks(seeds: int) -> list[Params]:
    """Return the bursts."""
    return [
        {"part": "optimum", "objective": objective, "n": n, "case": case, "seed": seed}
        for objective in ("total", "in time")
        for n in (5, 8)
        for case in range(4)
        for seed in range(seeds)
    ]


def optimum(params: Params) -> dict[str, Any]:
    """Run the routers on a burst beside residents, nodes computing one prompt at a time, and plan the same burst."""
    from opt.serve.cluster import ROUTERS, Route, simulate_pools
    from opt.serve.cluster.planning import burst_of, plan

    n, (pools, _) = params["n"], cluster("homogeneous", TWO)
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


def optimum_tables(records: list[Record]) -> list[Table]:
    """Return the ratios to the optimum."""
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


def error_tasks(seeds: int) -> list[Params]:
    """Return the workloads, errors and margins."""
    return [
        {"part": "error", "workload": name, "error": error, "margin": margin, "seed": seed}
        for name in ("code", "tenants", "chat and 16K")
        for error in ERRORS
        for margin in MARGINS
        for seed in range(seeds)
    ]


def error(params: Params) -> dict[str, Any]:
    """Run our router and Kairos where every node's coefficients are believed with an error."""
    from opt.serve.cluster import ROUTERS, disturbed, simulate_pools

    pools, speed = cluster("homogeneous", TWO)
    instance = requests_of(params["workload"], 1.3, params["seed"], speed)
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


def error_tables(records: list[Record]) -> list[Table]:
    """Return what was late."""
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


# Stale knowledge.

HEARTBEATS = (0.02, 0.1, 0.5, 2.0)


def stale_tasks(seeds: int) -> list[Params]:
    """Return the workloads and heartbeats."""
    return [
        {"part": "stale", "workload": name, "heartbeat_s": heartbeat, "seed": seed}
        for name in ("code", "tenants", "chat and 16K")
        for heartbeat in HEARTBEATS
        for seed in range(seeds)
    ]


def stale(params: Params) -> dict[str, Any]:
    """Run every router where reports come so many seconds apart."""
    from opt.serve.cluster import ROUTERS, simulate_pools

    pools, speed = cluster("homogeneous", TWO)
    slow = dataclasses.replace(pools, heartbeat_s=params["heartbeat_s"])
    instance = requests_of(params["workload"], 1.3, params["seed"], speed)
    return {"routers": {name: simulate_pools(instance, slow, name).metrics["slo_attainment"] for name in ROUTERS}}


def stale_tables(records: list[Record]) -> list[Table]:
    """Return the attainments."""
    routers = list(records[0]["values"]["routers"])
    rows = [
        [name, heartbeat, *(float(np.mean([record["values"]["routers"][router] for record in mine])) for router in routers)]
        for (name, heartbeat), mine in grouped(records, "workload", "heartbeat_s").items()
    ]
    return [Table("attainment by the seconds between heartbeats, load 1.3", ["workload", "heartbeat s", *routers], rows)]
