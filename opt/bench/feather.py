"""Throughput of batch formers in the engine: groups that share prefixes, for every price of a repeated read, and traces.

Cost model: Llama-3-8B on one H100. All engines have the same seats, budget, blocks and memory; nobody is told an output,
only the client's cap. The price of a repeated read (`locality`) is a parameter, not a measured fact: 1 is no locality,
0.43 a bound for KV that stays in the L2 cache, with and without its size, 0.02 a kernel that knows the tree of prefixes, or
one that works only if all share (vLLM's rule).

The scheduler's share is the processor time of all decisions, what the engine keeps of an admission included, over the
modelled time of the steps. Most of it is paid once for each request: 12 to 17 us of Python in the engine itself,
which `vllm-fcfs` pays, too, and 4 to 25 us in the tree and the weighing. A step that admits a few requests keeps it well under
1 %. Where outputs are 10 tokens at most and a thousand requests are there at once, a step of 30 ms admits 36: one per cent of
it is 8 us for each of them, less than the engine's own part, so first come, first served is above it, too. The tables of
shares say so cell by cell.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Table, grouped
from opt.core.instance import Instance

__all__ = ["CLOCKED", "measure", "tables", "tasks", "trace_measure", "trace_tables", "trace_tasks"]

CLOCKED = frozenset({"scheduler_share", "scheduler_us"})

COST = "h100-llama-3-8b"
SEATS = 256
N = 1_000
L2_TOKENS = 12_500  # of one layer of Llama-3-8B, 4 KiB each, in the 50 MB of an H100
RATE = 200.0

READS: dict[str, tuple[float, dict[str, Any]]] = {
    "1": (1.0, {}),
    "0.43": (0.43, {}),
    "0.43 in 50 MB": (0.43, {"cache_tokens": L2_TOKENS}),
    "0.02 tree": (0.02, {}),
    "0.02 all-share": (0.02, {"shared_reads": "all"}),
}
GROUPS = (0, 1, 2, 5, 20, 100)
SHARED = (1_024, 5_120, 10_240)
LONGEST = (10, 200)
ARRIVALS = ("burst", "poisson")
RIVALS = ("vllm-fcfs", "sglang-fcfs", "sglang-lpm", "sglang-dfs-weight", "feather-oracle", "feather-cht", "feather-bandit")
OURS = ("feather-analytic", "feather-seeded")
POLICIES_RUN = (*RIVALS, *OURS)
SHORT = {name: name.replace("feather-", "").replace("vllm-", "").replace("sglang-", "sg-") for name in POLICIES_RUN}


def tasks(seeds: int) -> list[Params]:
    """Return a task for each price, number of groups and seed; each runs all lengths, arrivals and policies."""
    return [
        {"part": "throughput", "reads": reads, "groups": groups, "seed": seed}
        for seed in range(seeds)
        for reads in READS
        for groups in GROUPS
    ]


def measure(params: Params) -> dict[str, Any]:
    """Run all policies on every cell of a task."""
    from opt.core.cost import cost_model
    from opt.serve.prefix.groups import grouped as generate

    memory = cost_model(COST).memory
    assert memory is not None
    _warm(memory, params["reads"])
    cells = []
    for shared in SHARED:
        for longest in LONGEST:
            for arrivals in ARRIVALS:
                instance = generate(
                    N,
                    groups=params["groups"],
                    shared=shared,
                    longest=longest,
                    rate=None if arrivals == "burst" else RATE,
                    memory=memory,
                    seed=params["seed"],
                )
                runs = {name: run(instance, name, params["reads"]) for name in POLICIES_RUN}
                cells.append({"shared": shared, "longest": longest, "arrivals": arrivals, "runs": runs})
    return {"cells": cells}


def _warm(memory: int, reads: str) -> None:
    """Load every compiled loop before anything is timed."""
    from opt.serve.prefix.groups import grouped as generate

    for name in POLICIES_RUN:
        run(generate(40, groups=3, shared=1_024, longest=10, memory=memory), name, reads)


def run(instance: Instance, name: str, reads: str) -> dict[str, Any]:
    """Return throughput, waits and what the scheduler cost, decisions and admissions included."""
    from opt.core.cost import cost_model
    from opt.sim.door import simulate
    from opt.sim.policies import POLICIES

    locality, changes = READS[reads]
    clock = [0.0]
    engine = POLICIES[name].engine.replace(max_running=SEATS, token_budget=8192, block_size=16, **changes)
    timeline = simulate(instance, _timed(name, clock), cost_model(COST).with_locality(locality), engine=engine, lengths="none")
    found = timeline.metrics
    return {
        "tokens_per_s": found["throughput_tok_s"],
        "max_wait_s": found["max_wait_s"],
        "mean_e2e_s": found["e2e_s"]["mean"],
        "prefill_tokens": found["prefill_tokens"],
        "iterations": found["iterations"],
        "preemptions": found["preemptions"],
        "scheduler_share": clock[0] / found["busy_s"],
        "scheduler_us": 1e6 * clock[0] / found["iterations"],
    }


def _timed(name: str, clock: list[float]) -> Callable[..., Any]:
    """Return a maker of the policy that adds the processor time of its decisions to `clock`."""
    from opt.sim.engine import Policy
    from opt.sim.policies import POLICIES

    def make(requests: Any, config: Any, *, seed: int = 0) -> Policy:
        made = POLICIES[name].make(requests, config, seed=seed)

        def decide(view: Any) -> Any:
            begun = time.thread_time()
            batch = made.decide(view)
            clock[0] += time.thread_time() - begun
            return batch

        return Policy(decide, made.rank, name)

    return make


Cell = tuple[Params, Mapping[str, Any]]


def _cells(records: list[Record]) -> list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]:
    """Return, for each (reads, groups, shared, longest, arrivals), the medians over seeds of every policy's figures."""
    found: dict[tuple[Any, ...], list[dict[str, dict[str, float]]]] = {}
    for record in records:
        params = record["params"]
        for cell in record["values"]["cells"]:
            key = (params["reads"], params["groups"], cell["shared"], cell["longest"], cell["arrivals"])
            found.setdefault(key, []).append(cell["runs"])
    return [(key, {name: _medians([runs[name] for runs in mine]) for name in mine[0]}) for key, mine in found.items()]


def _medians(runs: list[dict[str, float]]) -> dict[str, float]:
    return {key: float(np.median([values[key] for values in runs])) for key in runs[0]}


def _gain(runs: Mapping[str, Mapping[str, float]], name: str) -> float:
    return runs[name]["tokens_per_s"] / runs["vllm-fcfs"]["tokens_per_s"]


def tables(records: list[Record]) -> list[Table]:
    """Return a summary, what has to hold, the scheduler's shares, the cells, and the cells where we lose."""
    cells = _cells(records)
    return [_summary(cells), _claims(cells), _shares(cells), _beyond(cells), *_full(cells), _losses(cells)]


def _summary(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> Table:
    rows = []
    for reads in dict.fromkeys(key[0] for key, _ in cells):
        for name in POLICIES_RUN:
            gains = sorted(_gain(runs, name) for key, runs in cells if key[0] == reads and key[1])
            geometric = math.exp(sum(map(math.log, gains)) / len(gains)) if gains else math.nan
            low, high = (gains[0], gains[-1]) if gains else (math.nan, math.nan)
            twice = sum(gain >= 2 for gain in gains)
            rows.append(
                [reads, SHORT[name], geometric, low, high, f"{twice} of {len(gains)}", sum(gain < 0.98 for gain in gains)]
            )
    columns = [
        "price of repeats",
        "policy",
        "geometric mean",
        "least",
        "most",
        "cells at 2x or more",
        "cells more than 2 % below",
    ]
    return Table("throughput against vllm-fcfs, cells with sharing", columns, rows)


def _claims(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> Table:
    """What the formers have to keep, over all cells."""
    unshared = [_gain(runs, "feather-bandit") for key, runs in cells if not key[1]]
    level = [_at_least(runs, "feather-analytic", "feather-bandit") for _, runs in cells]
    seeded = [_at_least(runs, "feather-seeded", "feather-analytic") for _, runs in cells]
    least = {name: min(_gain(runs, name) for _, runs in cells) for name in OURS}
    shares = {name: [runs[name]["scheduler_share"] for _, runs in cells] for name in ("vllm-fcfs", "feather-bandit", *OURS)}
    beyond = np.subtract(shares["feather-analytic"], shares["vllm-fcfs"])
    rows = [
        ["bandit without sharing, least against fcfs (limit 0.99)", min(unshared, default=math.nan)],
        ["analytic at least the bandit (half a per cent), share of cells (limit 0.95)", sum(level) / len(level)],
        ["analytic, least against fcfs (limit 0.98)", least["feather-analytic"]],
        ["seeded, least against fcfs", least["feather-seeded"]],
        ["seeded at least the analytic former (half a per cent), share of cells", sum(seeded) / len(seeded)],
        *(
            [f"scheduler's share of modelled time, {SHORT[name]}: median", float(np.median(mine))]
            for name, mine in shares.items()
        ),
        *([f"scheduler's share of modelled time, {SHORT[name]}: most (limit 0.01)", max(mine)] for name, mine in shares.items()),
        *(
            [f"cells above 0.01, {SHORT[name]}, of {len(cells)}", sum(share > 0.01 for share in mine)]
            for name, mine in shares.items()
        ),
        ["beyond what vllm-fcfs spends, analytic: median", float(np.median(beyond))],
        ["beyond what vllm-fcfs spends, analytic: most", max(beyond)],
    ]
    return Table("what has to hold", ["what", "value"], rows)


SHARE = 0.01  # of the modelled time, for the scheduler


def _shares(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> Table:
    """What the scheduler takes, by how long outputs are and how requests arrive."""
    rows = []
    for longest, arrivals in dict.fromkeys((key[3], key[4]) for key, _ in cells):
        mine = [runs for key, runs in cells if key[3:] == (longest, arrivals)]
        for name in ("vllm-fcfs", "feather-bandit", *OURS):
            shares = [runs[name]["scheduler_share"] for runs in mine]
            admitted = float(np.median([N / runs[name]["iterations"] for runs in mine]))
            each = float(np.median([runs[name]["scheduler_us"] * runs[name]["iterations"] / N for runs in mine]))
            above = f"{sum(share > SHARE for share in shares)} of {len(shares)}"
            rows.append([longest, arrivals, SHORT[name], admitted, each, float(np.median(shares)), max(shares), above])
    columns = [
        "longest",
        "arrivals",
        "policy",
        "admissions a step",
        "us a request",
        "share, median",
        "share, most",
        f"above {SHARE}",
    ]
    return Table(f"scheduler's processor time over modelled time (limit {SHARE})", columns, rows)


def _beyond(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> Table:
    """The cells in which the analytic former takes more than its share, beside first come, first served."""
    rows = []
    for key, runs in cells:
        ours, fcfs = runs["feather-analytic"], runs["vllm-fcfs"]
        if ours["scheduler_share"] > SHARE:
            step_us, admitted = ours["scheduler_us"] / ours["scheduler_share"], N / ours["iterations"]
            rows.append([*key, admitted, SHARE * step_us / admitted, ours["scheduler_share"], fcfs["scheduler_share"]])
    columns = ["price", "groups", "shared", "longest", "arrivals", "admissions a step", "us allowed for each", "analytic", "fcfs"]
    return Table(f"cells in which the analytic former takes more than {SHARE}", columns, sorted(rows, key=lambda row: -row[7]))


def _at_least(runs: Mapping[str, Mapping[str, float]], name: str, other: str) -> bool:
    return runs[name]["tokens_per_s"] >= 0.995 * runs[other]["tokens_per_s"]


def _full(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> list[Table]:
    found = []
    for reads in dict.fromkeys(key[0] for key, _ in cells):
        rows = [[*key[1:], runs["vllm-fcfs"]["tokens_per_s"], *_row(runs)] for key, runs in cells if key[0] == reads]
        columns = ["groups", "shared", "longest", "arrivals", "fcfs tokens/s", *(SHORT[name] for name in POLICIES_RUN[1:])]
        waits = ["longest wait s: fcfs", "bandit", "analytic"]
        found.append(Table(f"price of repeats {reads}: throughput against vllm-fcfs", [*columns, *waits], rows))
    return found


def _row(runs: Mapping[str, Mapping[str, float]]) -> list[float]:
    waits = [runs[name]["max_wait_s"] for name in ("vllm-fcfs", "feather-bandit", "feather-analytic")]
    return [*(_gain(runs, name) for name in POLICIES_RUN[1:]), *waits]


def _losses(cells: list[tuple[tuple[Any, ...], dict[str, dict[str, float]]]]) -> Table:
    """The cells in which one of ours is behind the best rival by more than 2 %."""
    rows = []
    for key, runs in cells:
        best = max(RIVALS, key=lambda name: runs[name]["tokens_per_s"])
        for name in OURS:
            share = runs[name]["tokens_per_s"] / runs[best]["tokens_per_s"]
            if share < 0.98:
                rows.append([*key, SHORT[name], share, SHORT[best], _gain(runs, best)])
    columns = ["price", "groups", "shared", "longest", "arrivals", "ours", "against the best rival", "which is", "at"]
    return Table("cells in which ours is more than 2 % behind the best rival", columns, sorted(rows, key=lambda row: row[6]))


# Traces, and agents that share system prompts and sessions.

TRACES = {
    "Mooncake conversation": ("mooncake/conversation_trace.jsonl.gz", 4_000),
    "Mooncake synthetic": ("mooncake/synthetic_trace.jsonl.gz", 3_993),
    "agent": (None, 2_000),
}
TRACE_READS = ("1", "0.43", "0.02 all-share")


def trace_tasks(seeds: int) -> list[Params]:
    """Return every trace under some prices; only the agents depend on the seed."""
    return [
        {"part": "traces", "trace": trace, "reads": reads, "seed": seed}
        for trace, (path, _) in TRACES.items()
        for reads in TRACE_READS
        for seed in range(1 if path else seeds)
    ]


def trace_measure(params: Params) -> dict[str, Any]:
    """Run all policies but the oracle: traces have no groups to tell."""
    from opt.core.cost import cost_model

    memory = cost_model(COST).memory
    assert memory is not None
    instance = _trace(params["trace"], memory, params["seed"])
    _warm(memory, params["reads"])
    return {"runs": {name: run(instance, name, params["reads"]) for name in POLICIES_RUN if name != "feather-oracle"}}


def _trace(name: str, memory: int, seed: int) -> Instance:
    path, n = TRACES[name]
    if path is None:
        import instances

        return instances.generate("agent", n=n, memory=memory, seed=seed)
    from opt.core.traces import read_trace
    from opt.fit.recipes import data_folder

    return read_trace(data_folder() / path, "mooncake", memory=memory, limit=n)


def trace_tables(records: list[Record]) -> list[Table]:
    """Return throughput, mean latency and the longest wait by trace."""
    rows = []
    for (trace, reads), mine in grouped(records, "trace", "reads").items():
        names = list(mine[0]["values"]["runs"])
        runs = {name: _medians([record["values"]["runs"][name] for record in mine]) for name in names}
        for name in names:
            mine_ = runs[name]
            shown = [mine_[key] for key in ("mean_e2e_s", "max_wait_s", "prefill_tokens", "scheduler_share")]
            rows.append([trace, reads, SHORT[name], mine_["tokens_per_s"], _gain(runs, name), *shown])
    columns = [
        "trace",
        "price",
        "policy",
        "tokens/s",
        "against fcfs",
        "mean e2e s",
        "longest wait s",
        "prefill tokens",
        "scheduler share",
    ]
    return [Table("traces: throughput, latency, waits", columns, rows)]
