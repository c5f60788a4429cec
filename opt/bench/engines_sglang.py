"""The parts of the suite `engines` that run SGLang.

Parts:
    policy    SGLang's sorting of its queue beside our policies of the same names, whenever one of our runs asks for an order
    trees     prefix trees: SGLang's beside ours, the same prompts, hit lengths compared
    replay    SGLang without overlap beside our engine under the policy of the same name: every iteration compared
    log       an iteration log of SGLang on an eight-layer model, in processor time, fitted, and other runs replayed with it
    sglang    SGLang on backlogs with some common prefixes: its own policies and our orders, one start for each
"""

from __future__ import annotations

import json
from hashlib import sha256
from statistics import fmean, median
from typing import Any

import numpy as np

from opt.bench.engines_vllm import EIGHT_LAYERS, fitted
from opt.bench.parts import Part
from opt.bench.runner import Params, Record, Table, grouped
from opt.core.instance import Instance

__all__ = ["PARTS"]

REQUESTS, MEMORY = 40, 768
RUNS = 15  # random runs in a task
WINDOW = 100  # prompts that run at a time

# name: (our order, SGLang's policy)
SGLANG = {
    **{f"SGLang {policy}": ("", policy) for policy in ("fcfs", "lpm", "dfs-weight", "lof")},
    **{f"kvopt {order}": (order, "fcfs") for order in ("fcfs", "svf", "mc-sf", "total-size", "best-fit", "lof", "random")},
}


def _policy_tasks(seeds: int) -> list[Params]:
    kinds = [("lpm", "radix"), ("dfs-weight", "radix"), ("dfs-weight", "rust")]
    return [{"part": "policy", "order": order, "tree": tree, "seed": seed} for order, tree in kinds for seed in range(seeds)]


def _policy(params: Params) -> dict[str, Any]:
    """Compare all orders of some random runs."""
    from opt.plugins.sglang.oracle import compare, draw

    roomy = None if params["tree"] == "radix" else True
    runs = [compare(*draw(RUNS * params["seed"] + k, roomy=roomy), params["order"], params["tree"]) for k in range(RUNS)]
    counts = {name: sum(getattr(run, name) for run in runs) for name in ("orders", "sorted", "equal", "retracted", "merged")}
    return {
        "runs": RUNS,
        "long": sum(run.longest > 128 for run in runs),
        "lost": sum(run.lost for run in runs),
        **counts,
        "differences": [{"there": run.there, "here": run.here} for run in runs if run.there],
    }


def _policy_tables(records: list[Record]) -> list[Table]:
    names = ["runs", "long", "lost", "orders", "sorted", "equal", "retracted", "merged"]
    rows = []
    for (order, tree), mine in grouped(records, "order", "tree").items():
        unknown = sum(len(record["values"]["differences"]) for record in mine)
        rows.append([order, tree, *(sum(record["values"][name] for record in mine) for name in names), unknown])
    columns = ["order", "tree", "runs", "with over 128 waiting", "with evictions", "orders", "not sorted before", "equal"]
    stated = ["retracted elsewhere", "same prefix, after evictions", "unknown difference"]
    return [Table("SGLang's queue and ours, sorted at the same moments: whole orders compared", [*columns, *stated], rows)]


def _trees_tasks(seeds: int) -> list[Params]:
    kinds = [(page, window) for page in (1, 16) for window in (None, WINDOW)]
    return [{"part": "trees", "page": page, "window": window, "seed": seed} for page, window in kinds for seed in range(seeds)]


def _trees(params: Params) -> dict[str, Any]:
    """Match and insert the same prompts in every tree."""
    from opt.plugins.sglang.trees import race

    found: dict[str, Any] = race(seed=params["seed"], page=params["page"], window=params["window"])
    return found


def _trees_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (page, window), mine in grouped(records, "page", "window").items():
        for name in mine[0]["values"]:
            runs = [record["values"][name] for record in mine]
            cells = [median(run[key] for run in runs) for key in ("match_us", "again_us", "insert_us", "drop_us", "hit_share")]
            rows.append([page, window or "all", name, *cells, all(run["equal_hits"] for run in runs)])
    columns = ["tokens to a page", "prompts kept", "tree", "match us", "again us", "insert us", "drop us", "hit share"]
    title = "prefix trees: one call each for every prompt, medians over seeds of the means"
    return [Table(title, [*columns, "equal hits"], rows)]


def _sglang_tasks(seeds: int) -> list[Params]:
    return [{"part": "sglang", "scheduler": name, "seeds": seeds} for name in SGLANG]


def _sglang(params: Params) -> dict[str, Any]:
    """Serve some backlogs under one scheduler."""
    from opt.plugins.sglang.serve import serve
    from opt.plugins.small import backlog

    order, policy = SGLANG[params["scheduler"]]
    backlogs = [_in_families(backlog(REQUESTS, MEMORY // 32, 32, seed), seed) for seed in range(params["seeds"])]
    runs = []
    for run in serve(backlogs, order, policy=policy, prefix_cache=True):
        figures = {
            "latency_ms": 1e3 * fmean(run.latency_s),
            "busy_ms": 1e3 * fmean(run.busy_s),
            "finished_at": fmean(run.finished_at),
            "iterations": len(run.iterations),
            "retractions": run.retractions,
            "cached": sum(run.cached),
        }
        runs.append({**figures, "tokens": sha256(json.dumps(run.tokens).encode()).hexdigest()})
    return {"runs": runs}


def _in_families(instance: Instance, seed: int) -> Instance:
    """Give every prompt the first 64 tokens of one of four families, as far as it is long enough."""
    family = np.random.default_rng([3, seed]).integers(0, 4, instance.n).tolist()
    count = (-(-instance.prompt // 16)).tolist()
    rows = [[1000 * f + k if k < 4 else 10**6 + 100 * i + k for k in range(count[i])] for i, f in enumerate(family)]
    return instance.replace(prefix=rows, prefix_chunk=16)


def _sglang_tables(records: list[Record]) -> list[Table]:
    runs_of = {record["params"]["scheduler"]: record["values"]["runs"] for record in records}
    stock = runs_of.get("SGLang fcfs")
    rows = []
    for name, runs in runs_of.items():
        figures = [median(run[key] for run in runs) for key in ("latency_ms", "busy_ms", "finished_at")]
        ratios = [run["finished_at"] / base["finished_at"] for run, base in zip(runs, stock or runs, strict=True)]
        counts = [
            median(run["iterations"] for run in runs),
            *(sum(run[key] for run in runs) for key in ("retractions", "cached")),
        ]
        same = sum(run["tokens"] == base["tokens"] for run, base in zip(runs, stock or runs, strict=True))
        spread = [median(ratios), min(ratios), max(ratios)]
        rows.append([name, *figures, *spread, *counts, f"{same}/{len(runs)}"])
    columns = ["scheduler", "mean latency ms", "in processor ms", "mean end, iteration", "to fcfs", "least", "most"]
    title = f"SGLang serving {REQUESTS} requests on {MEMORY} tokens; medians over backlogs, one start for each scheduler"
    return [Table(title, [*columns, "iterations", "retractions", "cached tokens", "same tokens"], rows)]


REPLAYED = [("fcfs", 16, 512), ("fcfs", 6, 128), ("lof", 16, 512)]  # SGLang's policy, seats, tokens in a step


def _replay_tasks(seeds: int) -> list[Params]:
    names = ("policy", "seats", "budget")
    return [{"part": "replay", **dict(zip(names, kind, strict=True)), "seeds": seeds} for kind in REPLAYED]


def _replay(params: Params) -> dict[str, Any]:
    """Serve some backlogs with the real engine and with ours."""
    from opt.plugins.sglang.replay import replay
    from opt.plugins.sglang.serve import serve
    from opt.plugins.small import backlog

    policy, how = params["policy"], {"seats": params["seats"], "budget": params["budget"]}
    backlogs = [backlog(REQUESTS, MEMORY // 32, 32, seed) for seed in range(params["seeds"])]
    runs = []
    for instance, run in zip(backlogs, serve(backlogs, policy=policy, overlap=False, **how), strict=True):
        found = replay(run, instance, policy, **how)
        ends = (fmean(run.finished_at), float(found.timeline.e2e_s.mean()))
        runs.append(
            {
                "iterations": found.iterations,
                "equal": found.equal,
                "retractions": run.retractions,
                "end": ends[0],
                "replayed_end": ends[1],
                "there": found.there,
                "here": found.here,
            }
        )
    return {"runs": runs}


def _replay_tables(records: list[Record]) -> list[Table]:
    rows = []
    for record in records:
        runs = record["values"]["runs"]
        sums = [sum(run[key] for run in runs) for key in ("iterations", "equal", "retractions")]
        whole = sum(run["equal"] == run["iterations"] and run["here"] is None for run in runs)
        early = sum(run["equal"] < run["iterations"] and not run["retractions"] for run in runs)
        worst = max(abs(run["replayed_end"] / run["end"] - 1) for run in runs)
        cells = [record["params"][key] for key in ("policy", "seats", "budget")]
        rows.append([*cells, len(runs), *sums, whole, early, worst])
    columns = ["policy", "seats", "tokens", "backlogs", "iterations", "equal from the first on", "retractions", "equal backlogs"]
    rest = ["different without retractions", "largest error of mean end"]
    return [Table("SGLang's iterations and ours", [*columns, *rest], rows)]


def _log_tasks(seeds: int) -> list[Params]:
    return [{"part": "log", "seeds": seeds}]


def _log(params: Params) -> dict[str, Any]:
    """Fit the log of each backlog, and replay another one that the fit has not seen."""
    from opt.plugins.sglang.replay import replay
    from opt.plugins.sglang.serve import serve
    from opt.plugins.small import TINY, backlog

    backlogs = [backlog(REQUESTS, MEMORY // 32, 32, 100 + seed) for seed in range(2 * params["seeds"])]
    served = serve(backlogs, overlap=False, shape=TINY | EIGHT_LAYERS)
    runs = []
    for k in range(0, len(backlogs), 2):
        cost = fitted(served[k].busy_iterations, "SGLang")
        found = replay(served[k + 1], backlogs[k + 1], "fcfs", cost=cost)
        real, ours = fmean(served[k + 1].busy_s), float(found.timeline.e2e_s.mean())
        figures = {"iterations": found.iterations, "equal": found.equal, "latency_s": real, "replayed_s": ours}
        runs.append({**figures, "error": ours / real - 1, "held_out": cost.error.get("held_out")})
    return {"runs": runs}


def _log_tables(records: list[Record]) -> list[Table]:
    rows = []
    for k, run in enumerate(run for record in records for run in record["values"]["runs"]):
        held = run["held_out"] or {}
        rows.append(
            [k, held.get("median"), held.get("p95"), *(run[key] for key in ("iterations", "equal", "latency_s", "error"))]
        )
    columns = ["pair", "held-out median", "held-out P95", "iterations", "equal", "mean latency s, processor", "error"]
    return [Table("SGLang on eight layers: its log fitted, a run that the fit has not seen replayed", columns, rows)]


PARTS = {
    "replay": Part(_replay_tasks, _replay, _replay_tables),
    "log": Part(_log_tasks, _log, _log_tables),
    "policy": Part(_policy_tasks, _policy, _policy_tables),
    "trees": Part(_trees_tasks, _trees, _trees_tables),
    "sglang": Part(_sglang_tasks, _sglang, _sglang_tables),
}
