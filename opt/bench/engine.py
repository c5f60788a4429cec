"""The engine against real runs, and its speed: parts of the suite `clock`.

Two runs of vLLM 0.19 are replayed (300 ShareGPT requests, Llama-3.1-8B in bf16, budget 2,048, prefix caching on; KV cache
of 41,408 tokens on an RTX 4090, 128 sequences on an RTX PRO 6000), with cost models fitted on operator tables only.
Arrivals are the times at which the engine queued the requests. One rule covers what kernels leave out: the host adds
`HOST_PER_REQUEST_S` for each request in a step (scheduling, sampling, detokenising grow with the batch). It is the one
number taken from these runs, to the nearest 5 us; 12 to 20 us meet all limits, and the tables show its neighbours.
"""

from __future__ import annotations

import gzip
import json
import math
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Table, grouped, median_of
from opt.core.instance import Instance

__all__ = [
    "CLOCKED",
    "HOST_PER_REQUEST_S",
    "RUNS",
    "compare_run",
    "growth",
    "growth_tables",
    "growth_tasks",
    "replay",
    "replay_tables",
    "replay_tasks",
    "traces",
    "traces_tables",
    "traces_tasks",
]

HOST_PER_REQUEST_S = 15e-6
HOSTS = (0.0, 10e-6, HOST_PER_REQUEST_S, 20e-6)
CLOCKED = frozenset({"wall_s", "iterations_per_s", "decisions_per_s", "tokens_per_s"})
LIMITS = {"e2e_s": 0.04, "tpot_s": 0.03, "ttft_s": 0.06}
COST = "h100-llama-3-8b"


@dataclass(frozen=True)
class RealRun:
    """A logged run: the file's stem, the cost model, KV tokens and sequence cap of the engine."""

    stem: str
    cost: str
    kv_tokens: int
    max_running: int


RUNS: dict[str, RealRun] = {
    "RTX 4090": RealRun("RTX4090_Llama-3.1-8B", "rtx-4090-llama-3.1-8b", 41_408, 256),
    # Its KV capacity was not logged and never mattered; this is what the cost model's machine has.
    "RTX PRO 6000": RealRun("RTXPRO6000_Llama-3.1-8B", "rtx-pro-6000-llama-3.1-8b", 567_408, 128),
}


def compare_run(folder: Path, name: str, host_per_request_s: float = HOST_PER_REQUEST_S) -> dict[str, Any]:
    """Return measured and simulated means and P95s of a real run, with the relative error of the means."""
    from opt.sim.config import EngineFile
    from opt.sim.door import simulate

    run = RUNS[name]
    path = folder / "llmservingsim" / f"{run.stem}_vllm_run_requests.jsonl.gz"
    rows = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    queued, first, last = (np.array([row[key] for row in rows]) for key in ("queued_ts", "first_token_ts", "last_token_ts"))
    prompt, output = (np.array([row[key] for row in rows]) for key in ("input_toks", "output_toks"))
    instance = Instance(run.kv_tokens, prompt, output, arrival_s=queued - queued.min(), name=name)
    changes = {"token_budget": 2048, "max_running": run.max_running, "host_per_request_s": host_per_request_s}
    timeline = simulate(instance, "vllm-fcfs", run.cost, engine=EngineFile(changes))
    measured = {"ttft_s": first - queued, "tpot_s": (last - first) / (output - 1), "e2e_s": last - queued}
    simulated = {"ttft_s": timeline.ttft_s, "tpot_s": timeline.tpot_s, "e2e_s": timeline.e2e_s}
    found = timeline.metrics
    return {
        **{key: _against(measured[key], simulated[key]) for key in measured},
        **{key: found[key] for key in ("preemptions", "recomputed_tokens", "iterations", "completed")},
    }


def _against(measured: Any, simulated: Any) -> dict[str, float]:
    real, ours = float(measured.mean()), float(simulated.mean())
    real95, ours95 = (float(np.quantile(values, 0.95)) for values in (measured, simulated))
    return {
        "measured": real,
        "simulated": ours,
        "error": ours / real - 1,
        "measured_p95": real95,
        "p95_error": ours95 / real95 - 1,
    }


def replay_tasks(seeds: int) -> list[Params]:
    """Return the runs and host rules; nothing in them is random, so seeds do not matter."""
    return [{"part": "replay", "run": name, "host_us": host * 1e6} for name in RUNS for host in HOSTS]


def replay(params: Params) -> dict[str, Any]:
    """Replay one run."""
    from opt.fit.recipes import data_folder

    return compare_run(data_folder(), params["run"], params["host_us"] / 1e6)


def replay_tables(records: list[Record]) -> list[Table]:
    """Return the errors by run and host rule."""
    columns = [
        "run",
        "host us a request",
        *(f"{key[:-2]} {what}" for key in LIMITS for what in ("measured s", "error", "P95 error")),
    ]
    rows = []
    for record in records:
        values = record["values"]
        cells = [cell for key in LIMITS for cell in _error_cells(values[key])]
        met = all(abs(values[key]["error"]) <= limit for key, limit in LIMITS.items())
        rows.append([record["params"]["run"], record["params"]["host_us"], *cells, values["preemptions"], "yes" if met else "no"])
    title = "two real vLLM runs replayed; the rule is 15 us of host time for each request in a step"
    return [Table(title, [*columns, "preemptions", "within 4 / 3 / 6 %"], rows)]


def _error_cells(values: dict[str, float]) -> list[Any]:
    return [values["measured"], f"{values['error']:+.1%}", f"{values['p95_error']:+.1%}"]


# The speed of the engine on whole public traces.

TRACES = {
    "Azure conversation": ("azure/AzureLLMInferenceTrace_conv.csv.gz", "azure"),
    "Mooncake conversation": ("mooncake/conversation_trace.jsonl.gz", "mooncake"),
}
POLICIES_TIMED = ("vllm-fcfs", "sglang-fcfs", "sglang-lpm", "sarathi", "orca", "static", "svf", "svf-skip")
# Beside the GPU's own KV cache: what a store of that many tokens would hold (10,000 and 30,000 blocks of 512 tokens).
STORES = (5_120_000, 15_360_000)
SIZES = (1_000, 2_000, 4_000, 8_000, 12_000)


def _load_trace(name: str, limit: int | None = None) -> Instance:
    from opt.core.cost import cost_model
    from opt.core.traces import read_trace
    from opt.fit.recipes import data_folder

    path, form = TRACES[name]
    memory = cost_model(COST).memory
    assert memory is not None
    return read_trace(data_folder() / path, form, memory=memory, limit=limit)


def _timed(instance: Instance, policy: str, kv_tokens: int | None = None) -> dict[str, Any]:
    """Simulate once, after a small run that loads every compiled loop."""
    from opt.sim.config import EngineFile
    from opt.sim.door import simulate

    engine = EngineFile({} if kv_tokens is None else {"kv_tokens": kv_tokens})
    simulate(instance.take(np.arange(min(40, instance.n))), policy, COST, engine=engine)
    begun = time.perf_counter()
    timeline = simulate(instance, policy, COST, engine=engine)
    wall_s = time.perf_counter() - begun
    found = timeline.metrics
    decisions = sum(len(engine.log.runs) for engine in timeline.engines)
    tokens = int(instance.output.sum() + found["prefill_tokens"])
    return {
        "wall_s": wall_s,
        "iterations": found["iterations"],
        "decisions": decisions,
        "iterations_per_s": found["iterations"] / wall_s,
        "decisions_per_s": decisions / wall_s,
        "tokens_per_s": tokens / wall_s,
        "simulated_s": found["duration_s"],
        "completed": found["completed"],
        "cached_share": found["cached_tokens"] / int(instance.prompt.sum()),
        "saturated": found["saturated"],
    }


def traces_tasks(seeds: int) -> list[Params]:
    """Return every trace under every timed policy, once for each seed: only the timing varies."""
    cases = [(trace, policy, None) for trace in TRACES for policy in POLICIES_TIMED]
    stores = [("Mooncake conversation", "vllm-fcfs", tokens) for tokens in STORES]
    return [
        {"part": "traces", "trace": trace, "policy": policy, "kv_tokens": tokens, "seed": seed}
        for trace, policy, tokens in [*cases, *stores]
        for seed in range(seeds)
    ]


def traces(params: Params) -> dict[str, Any]:
    """Simulate one whole trace."""
    return _timed(_load_trace(params["trace"]), params["policy"], params["kv_tokens"])


def traces_tables(records: list[Record]) -> list[Table]:
    """Return times and rates."""
    rows = []
    for (trace, policy, tokens), mine in grouped(records, "trace", "policy", "kv_tokens").items():
        first = mine[0]["values"]
        figures = [median_of(mine, "wall_s"), first["iterations"], first["decisions"]]
        figures += [median_of(mine, key) for key in ("iterations_per_s", "decisions_per_s")]
        shares = [f"{first['cached_share']:.1%}", first["saturated"], first["completed"]]
        rows.append([trace, policy, tokens or "the GPU's", *figures, *shares])
    timed = ["seconds", "iterations", "decisions", "iterations/s", "decisions/s"]
    columns = ["trace", "policy", "KV tokens", *timed, "cached", "saturated", "completed"]
    return [Table(f"whole traces on one core, warm, one engine, cost {COST}: medians", columns, rows)]


def growth_tasks(seeds: int) -> list[Params]:
    """Return the first n requests of each trace."""
    return [{"part": "growth", "trace": trace, "n": n, "seed": seed} for trace in TRACES for n in SIZES for seed in range(seeds)]


def growth(params: Params) -> dict[str, Any]:
    """Simulate the head of a trace under vLLM's policy."""
    return _timed(_load_trace(params["trace"], params["n"]), "vllm-fcfs")


def growth_tables(records: list[Record]) -> list[Table]:
    """Return seconds by size and the slope of log seconds over log n: 1 is linear."""
    rows = []
    for (trace,), mine in grouped(records, "trace").items():
        seconds = [(n, median_of(part, "wall_s") or math.nan) for (n,), part in grouped(mine, "n").items()]
        slopes = [math.log(b / a) / math.log(m / n) for (n, a), (m, b) in pairwise(seconds)]
        rows += [[trace, n, spent, spent / n * 1e6, slope] for (n, spent), slope in zip(seconds, [None, *slopes], strict=True)]
    columns = ["trace", "n", "seconds", "us a request", "slope from the size before"]
    return [Table("growth with the number of requests, vllm-fcfs", columns, rows)]
