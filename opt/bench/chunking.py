"""Chunking under targets: goodput of every policy, with the published synthetic step and on two measured H100 machines.

Three workloads. `mixed`: prompts lognormal, median 400 tokens, sigma 1.3 (a tenth above 2,100); `long`: prompts uniform from
2,000 to 7,000; `bursty`: the prompts of `mixed`, gaps between arrivals of coefficient of variation 4 (1 elsewhere). Outputs
are lognormal, median 120, sigma 0.7, and nobody is told them. No prompt exceeds 7,000 tokens, so that with the synthetic
step one whole prompt fits into 50 ms, most do into 25 ms, and one of a thousand into 10 ms: the region in which the
published relations were taken is that where whole prompts are in the way of decodes, and not yet of one another. There the
load `light` lies; at `knee` the better policies begin to miss first tokens, at `heavy` all do.

Two readings of the target beside that for the first token: every gap between tokens (`gap`, the reading of SLOWeave), or the
mean gap of a request (`mean`), where slack can be banked. Goodput is requests that met both targets, a second, until all
requests are served: whoever is put off still costs. All policies have the same engine but for Sarathi's token budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Suite, Table, grouped
from opt.core.instance import Instance

__all__ = ["CHUNKING", "LOADS", "MACHINES", "POLICIES_COMPARED", "Machine", "requests"]

OURS, PUBLISHED, WHOLE = "banked-slack", "sloweave", "full-prefill"
FIXED = ("chunk-64", "chunk-256", "chunk-1024")
POLICIES_COMPARED = (
    *FIXED,
    WHOLE,
    "sarathi",
    "sarathi-2048",
    PUBLISHED,
    "sloweave-learned",
    "sloweave-shared",
    "fair-batching",
    "fair-batching-own",
    "qoserve",
    "qoserve-own",
    "two-step",
    OURS,
)
LOADS = ("light", "knee", "heavy")
LONGEST = 7000  # tokens
DEFAULT_MEMORY = 450_000  # tokens, where the cost model has none


@dataclass(frozen=True)
class Machine:
    """A cost model, its targets, and what is asked of it.

    Args:
        cost: its name.
        ttft_s: target for the first token.
        tpot_ms: targets for the gaps between tokens, by reading.
        seconds: how long requests arrive.
        rates: requests a second by workload, in the order of `LOADS`.
    """

    cost: str
    ttft_s: float
    tpot_ms: dict[str, tuple[int, ...]]
    seconds: float
    rates: dict[str, tuple[float, ...]]


MACHINES: dict[str, Machine] = {
    machine.cost: machine
    for machine in (
        Machine(
            "sloweave-synthetic",
            1.0,
            {"gap": (10, 25, 50), "mean": (25,)},
            6.0,
            {"mixed": (34, 60, 90), "long": (10, 20, 30), "bursty": (25, 45, 70)},
        ),
        Machine(
            "h100-llama-3-8b",
            1.0,
            {"gap": (25,), "mean": (25,)},
            15.0,
            {"mixed": (15, 25, 32), "long": (3.5, 5, 6.5), "bursty": (8, 12, 18)},
        ),
        Machine(
            "h100-llama-3-70b-tp4",
            2.0,
            {"gap": (25,), "mean": (25,)},
            25.0,
            {"mixed": (2.5, 4.5, 6.5), "long": (0.6, 1, 1.5), "bursty": (1.5, 3, 5)},
        ),
    )
}


def requests(
    kind: str, rate: float, seconds: float, seed: int, *, ttft_s: float, tpot_s: float, target: str, memory: int
) -> Instance:
    """Return a workload: `kind` and `target` as at the head of this module, `rate` a second for so many seconds."""
    random = np.random.default_rng(seed)
    n = max(int(rate * seconds), 1)
    prompt = random.uniform(2000, LONGEST, n) if kind == "long" else np.exp(random.normal(math.log(400), 1.3, n))
    output = np.exp(random.normal(math.log(120), 0.7, n))
    variation = 4.0 if kind == "bursty" else 1.0
    gaps = random.gamma(1 / variation**2, variation**2 / rate, n)
    return Instance(
        memory,
        np.clip(prompt, 16, LONGEST).astype(np.int64),
        np.clip(output, 2, 1000).astype(np.int64),
        arrival_s=np.cumsum(gaps) - gaps[0],
        ttft_s=[ttft_s] * n,
        itl_s=[tpot_s if target == "gap" else None] * n,
        tpot_s=[tpot_s if target == "mean" else None] * n,
    )


def _tasks(seeds: int) -> list[Params]:
    return [
        {"cost": name, "target": target, "tpot_ms": tpot, "kind": kind, "rates": list(machine.rates[kind]), "seed": seed}
        for name, machine in MACHINES.items()
        for target, targets in machine.tpot_ms.items()
        for tpot in targets
        for kind in machine.rates
        for seed in range(seeds)
    ]


def _measure(params: Params) -> dict[str, Any]:
    """Return the figures of every policy at every load."""
    from opt.core.cost import cost_model

    machine = MACHINES[params["cost"]]
    memory = cost_model(machine.cost).memory or DEFAULT_MEMORY
    found: dict[str, Any] = {}
    for load, rate in zip(LOADS, params["rates"], strict=True):
        times = {"ttft_s": machine.ttft_s, "tpot_s": params["tpot_ms"] / 1e3, "target": params["target"]}
        instance = requests(params["kind"], rate, machine.seconds, params["seed"], memory=memory, **times)
        found[load] = {name: _figures(instance, name, machine.cost) for name in POLICIES_COMPARED}
    return found


def _figures(instance: Instance, policy: str, cost: str) -> dict[str, float]:
    from opt.sim.config import EngineFile
    from opt.sim.door import simulate

    changes = {"max_running": 512} | ({} if policy.startswith("sarathi") else {"token_budget": 16384})
    found = simulate(instance, policy, cost, engine=EngineFile(changes), lengths="none").metrics
    assert found["completed"] == instance.n, f"{policy} served {found['completed']} of {instance.n}"
    return {
        "goodput_req_s": found["goodput_req_s"],
        "slo_attainment": found["slo_attainment"],
        "ttft_p99_s": found["ttft_s"]["p99"],
        "tpot_p99_s": found["tpot_s"]["p99"],
        "itl_max_s": found["itl_s"]["max"],
        "iterations": found["iterations"],
    }


def _tables(records: list[Record]) -> list[Table]:
    cells = grouped(records, "cost", "target", "tpot_ms", "kind")
    return [
        *(_all_policies(cell, mine) for cell, mine in cells.items()),
        _relations(records),
        _against(PUBLISHED, records),
        _against_the_best(records),
    ]


def _mean(records: Sequence[Record], load: str, policy: str, figure: str) -> float:
    return sum(float(record["values"][load][policy][figure]) for record in records) / len(records)


def _all_policies(cell: tuple[Any, ...], records: list[Record]) -> Table:
    cost, target, tpot, kind = cell
    machine = MACHINES[cost]
    columns = ["policy"]
    for load, rate in zip(LOADS, machine.rates[kind], strict=True):
        columns += [f"{load} {rate:g}/s: goodput", "P99 TTFT s", "SLO met"]
    rows = []
    for policy in POLICIES_COMPARED:
        row: list[Any] = [policy]
        for load in LOADS:
            goodput, ttft, met = (_mean(records, load, policy, key) for key in ("goodput_req_s", "ttft_p99_s", "slo_attainment"))
            row += [f"{goodput:.2f}", f"{ttft:.2f}", f"{met:.1%}"]
        rows.append(row)
    what = "every gap" if target == "gap" else "mean gap"
    return Table(f"{cost}, {kind}, {what} <= {tpot} ms, TTFT <= {machine.ttft_s:g} s, {len(records)} seeds", columns, rows)


def _relations(records: list[Record]) -> Table:
    """Return SLOWeave against what its paper compares it with, and the relations reported there."""
    reported = {10: "3.35", 25: "about 1.4", 50: "1.0"}
    mine = [
        record for record in records if record["params"]["cost"] == "sloweave-synthetic" and record["params"]["target"] == "gap"
    ]
    rows = []
    for (kind, tpot), part in grouped(mine, "kind", "tpot_ms").items():
        row: list[Any] = [kind, tpot, reported[tpot]]
        for load in LOADS:
            best = max(FIXED, key=lambda policy: _mean(part, load, policy, "goodput_req_s"))
            row += [_spread(part, load, PUBLISHED, WHOLE), f"{_ratio(part, load, PUBLISHED, best):.2f} {best}"]
        rows.append(row)
    columns = ["workload", "TPOT ms", "reported"]
    for load in LOADS:
        columns += [f"{load}: over {WHOLE}", "over the best fixed chunk"]
    return Table("goodput of SLOWeave with the published synthetic step: means over seeds (least to most)", columns, rows)


def _against(rival: str, records: list[Record]) -> Table:
    """Return our policy's goodput over a rival's in every cell."""
    rows = []
    cells = grouped(records, "cost", "target", "tpot_ms", "kind")
    for cell, part in cells.items():
        words = (_word(_ratio(part, load, OURS, rival)) for load in LOADS)
        rows.append([*cell, *(_spread(part, load, OURS, rival) for load in LOADS), *words])
    for cost in dict.fromkeys(cell[0] for cell in cells):
        there = [part for cell, part in cells.items() if cell[0] == cost and cell[2] == 25]
        over = [_geometric([_ratio(part, load, OURS, rival) for part in there]) for load in LOADS] if there else []
        rows += [[cost, "both", 25, "all", *(f"{ratio:.2f}" for ratio in over), *map(_word, over)]] if over else []
    columns = ["cost", "target", "TPOT ms", "workload", *LOADS, *(f"at {load}" for load in LOADS)]
    title = f"goodput of {OURS} over {rival}: means over seeds (least to most); `all` is the geometric mean of cells"
    return Table(title, columns, rows)


def _against_the_best(records: list[Record]) -> Table:
    """Return our policy's goodput over that of whichever other policy is best, chosen afresh for every cell and load."""
    others = [policy for policy in POLICIES_COMPARED if policy != OURS]
    rows = []
    for cell, part in grouped(records, "cost", "target", "tpot_ms", "kind").items():
        row: list[Any] = list(cell)
        for load in LOADS:
            best = max(others, key=lambda policy: _mean(part, load, policy, "goodput_req_s"))
            row += [f"{_spread(part, load, OURS, best)} {_word(_ratio(part, load, OURS, best))}", best]
        rows.append(row)
    columns = ["cost", "target", "TPOT ms", "workload", *(cell for load in LOADS for cell in (load, "best other"))]
    return Table(f"goodput of {OURS} over the best of all others in each cell: means over seeds (least to most)", columns, rows)


def _ratio(records: Sequence[Record], load: str, above: str, below: str) -> float:
    """Return mean goodput over mean goodput."""
    low, high = (_mean(records, load, policy, "goodput_req_s") for policy in (below, above))
    return high / low if low > 0 else math.inf if high > 0 else 1.0


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _spread(records: Sequence[Record], load: str, above: str, below: str) -> str:
    each = [_ratio([record], load, above, below) for record in records]
    return f"{_ratio(records, load, above, below):.2f} ({min(each):.2f} to {max(each):.2f})"


def _word(ratio: float) -> str:
    return "win" if ratio > 1.005 else "LOSS" if ratio < 0.995 else "even"


CHUNKING = Suite("chunking", "goodput of chunking policies under targets, published and our own", _tasks, _measure, _tables)
