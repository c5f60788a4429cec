"""The offline problem with common prefixes stored once: how good the bound is, and what sharing does to SVF and Sorted-F.

For each load: total latencies of both with separate caches; of their orders packed with sharing; and of the same rules on
prompts reduced to a fair share of common chunks. Every schedule is certified, with sharing where it is claimed.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Table, grouped, median_of
from opt.core.columns import IntArray
from opt.core.instance import Instance

__all__ = ["measure", "tables", "tasks"]

N = 120
LONGEST = 30
CHUNK = 16
GROUPS, SHARED = (1, 4, 20, 60), (64, 256)
RULES = ("svf", "sorted-f")


def tasks(seeds: int) -> list[Params]:
    """Return loads of groups that share a prefix."""
    return [
        {"part": "offline", "groups": groups, "shared": shared, "seed": seed}
        for groups in GROUPS
        for shared in SHARED
        for seed in range(seeds)
    ]


def measure(params: Params) -> dict[str, Any]:
    """Schedule one load in all ways."""
    from opt.core.certify import certify
    from opt.serve.prefix.offline import fair_instance, pack_shared
    from opt.solvers.door import lower_bound, solve

    instance = _load(params)
    bound = lower_bound(instance, kv="shared")
    busy, least = (float(lower_bound(instance, name, kv="shared").value) for name in ("shared-mean-busy-time", "trivial"))
    found: dict[str, Any] = {"bound": float(bound.value), "busy": busy, "trivial": least}
    for rule in RULES:
        separate = solve(instance, rule, bound="trivial")
        assert separate.schedule is not None
        fair = solve(fair_instance(instance), rule, bound="trivial")
        assert fair.schedule is not None
        orders = {"same order": separate.schedule.start, "fair shares": fair.schedule.start}
        found[f"{rule}, separate"] = separate.total_latency
        for name, start in orders.items():
            result = certify(instance, pack_shared(instance, _order(start)), solver=rule, bound=bound)
            found[f"{rule}, {name}"] = result.total_latency
    return found


def _load(params: Params) -> Instance:
    """Return groups of different prompts and outputs: private tokens 1 .. 64, memory for about twelve separate requests."""
    rng = np.random.Generator(np.random.PCG64(params["seed"]))
    groups, shared = params["groups"], params["shared"]
    group = rng.integers(0, groups, N)
    private = rng.integers(1, 65, N)
    depth = shared // CHUNK
    rows = [
        [*(int(g) * 1000 + k for k in range(depth)), *(10**6 + i * 100 + k for k in range(-(-int(p) // CHUNK)))]
        for i, (g, p) in enumerate(zip(group, private, strict=True))
    ]
    memory = 12 * (shared + 32 + LONGEST // 2)
    return Instance(memory, shared + private, rng.integers(1, LONGEST + 1, N), prefix=rows, prefix_chunk=CHUNK)


def _order(start: IntArray) -> IntArray:
    return np.argsort(start, kind="stable")


def tables(records: list[Record]) -> list[Table]:
    """Return ratios to the shared bound, medians over seeds."""
    names = [f"{rule}, {how}" for rule in RULES for how in ("separate", "same order", "fair shares")]
    rows = []
    for (groups, shared), mine in grouped(records, "groups", "shared").items():
        ratios = [float(np.median([record["values"][name] / record["values"]["bound"] for record in mine])) for name in names]
        over = float(np.median([record["values"]["busy"] / record["values"]["trivial"] for record in mine]))
        rows.append([groups, shared, median_of(mine, "bound"), over, *ratios])
    columns = ["groups", "shared tokens", "best bound", "shared-mean-busy-time / trivial", *names]
    return [
        Table("off line with common prefixes stored once: total latency against the best bound that holds then", columns, rows)
    ]
