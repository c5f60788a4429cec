"""The suite `engines`: real engines beside this project's simulator, and our schedulers inside them.

It needs vLLM and SGLang (`make test-engines` sets an environment up); without one, its tasks fail and say so.

Parts:
    oracle    vLLM's own scheduler against our vLLM policies, step by step, on random requests and settings
    serve     vLLM on a small model with random weights: a backlog of mixed lengths on few blocks, stock and our schedulers
              (without hints, limits stand in at first, and here a request's limit is its true output, so that all have it
              whoever schedules; the quantile takes over after 16 requests: no harder test than that)
    overhead  processor time of deciding a step with 1,000 requests waiting, in one process; the first step, in which they all
              come, stands apart
    fit       an iteration log of vLLM on an eight-layer model, in processor time, fitted, and replayed by our engine
    groups, deadline         see `opt.bench.engines_vllm`
    policy, replay, log, trees, sglang    see `opt.bench.engines_sglang`
"""

from __future__ import annotations

import time
from statistics import fmean, median
from typing import Any

import numpy as np

from opt.bench import engines_sglang, engines_vllm
from opt.bench.engines_vllm import EIGHT_LAYERS, fitted
from opt.bench.parts import Part, suite_of
from opt.bench.runner import Params, Record, Table, grouped
from opt.core.instance import Instance

__all__ = ["ENGINES"]

CONFIGS = 25  # random settings in a task
REQUESTS, BLOCKS, BLOCK = 40, 24, 32
WAITING, OVERHEAD_STEPS = 1000, 400

# name: (scheduler class, vLLM's policy). SortedF is last: it loads numba, after which vLLM does not start again in a process.
SCHEDULERS: dict[str, tuple[str | None, str]] = {
    "vLLM fcfs": (None, "fcfs"),
    "vLLM priority (by output)": (None, "priority"),
    "LookAheadFCFS": ("opt.plugins.vllm.LookAheadFCFS", "fcfs"),
    "MCSF": ("opt.plugins.vllm.MCSF", "fcfs"),
    "SmallestVolume": ("opt.plugins.vllm.SmallestVolume", "fcfs"),
    "SortedF": ("opt.plugins.vllm.SortedF", "fcfs"),
}


def _oracle_tasks(seeds: int) -> list[Params]:
    return [{"part": "oracle", "max_chunk": chunked, "seed": seed} for chunked in (False, True) for seed in range(seeds)]


def _oracle(params: Params) -> dict[str, Any]:
    """Compare the two on some random settings."""
    from opt.plugins.vllm.oracle import compare, draw

    found = []
    for k in range(CONFIGS):
        instance, settings = draw(
            1000 * params["seed"] + k + 500 * params["max_chunk"], **({} if params["max_chunk"] else {"max_chunk": 0})
        )
        found.append((compare(instance, settings), settings))
    agree = [comparison for comparison, _ in found if comparison.at is None]
    return {
        "configs": len(found),
        "agree": len(agree),
        "steps": sum(comparison.steps for comparison, _ in found),
        "agreed_steps": sum(comparison.steps if comparison.at is None else comparison.at for comparison, _ in found),
        "preemptions": sum(comparison.preemptions for comparison, _ in found),
        "cached_tokens": sum(comparison.cached_tokens for comparison, _ in found),
        "documented": sum(comparison.known for comparison, _ in found),
        "differences": [
            {"settings": settings, "step": comparison.at, "what": comparison.what, "documented": comparison.known}
            for comparison, settings in found
            if comparison.at is not None
        ],
    }


def _oracle_tables(records: list[Record]) -> list[Table]:
    names = ["configs", "agree", "documented", "steps", "agreed_steps", "preemptions", "cached_tokens"]
    rows = []
    for (chunked,), mine in grouped(records, "max_chunk").items():
        sums = [sum(record["values"][name] for record in mine) for name in names]
        rows.append(["with and without" if chunked else "without", *sums, sums[0] - sums[1] - sums[2]])
    columns = ["largest chunk", "settings", "agree", "known difference", "steps", "equal steps", "preemptions", "cached tokens"]
    return [Table("vLLM's scheduler and our policy, step by step", [*columns, "unknown difference"], rows)]


def _serve_tasks(seeds: int) -> list[Params]:
    return [{"part": "serve", "hints": hints, "seed": seed} for hints in ("true", "none") for seed in range(seeds)]


def _serve(params: Params) -> dict[str, Any]:
    """Serve one backlog under every scheduler."""
    from opt.plugins.small import backlog
    from opt.plugins.vllm.serve import serve

    instance = backlog(REQUESTS, BLOCKS, BLOCK, params["seed"])
    expected = instance.output.tolist() if params["hints"] == "true" else [-1] * instance.n  # -1 is no hint
    serve(instance.take(np.arange(8)), None)  # the first start is slow
    values: dict[str, Any] = {}
    tokens = None
    for name, (scheduler, policy) in SCHEDULERS.items():
        run = serve(instance, scheduler, policy=policy, priority=instance.output.tolist(), hints=expected)
        tokens = tokens or run.tokens
        values[name] = {
            "latency_ms": 1e3 * fmean(run.latency_s.values()),
            "busy_ms": 1e3 * fmean(run.busy_s.values()),
            "finished_at": fmean(run.finished_at.values()),
            "iterations": len(run.iterations),
            "preemptions": run.preemptions,
            "recomputed": run.recomputed,
            "same_tokens": run.tokens == tokens and len(run.tokens) == instance.n,
        }
    return values


def _serve_tables(records: list[Record]) -> list[Table]:
    tables = []
    for (hints,), mine in grouped(records, "hints").items():
        rows = []
        for name in SCHEDULERS:
            runs = [record["values"][name] for record in mine]
            stock = [record["values"]["vLLM fcfs"] for record in mine]
            ratios = [run["busy_ms"] / base["busy_ms"] for run, base in zip(runs, stock, strict=True)]
            figures = [median(run[key] for run in runs) for key in ("latency_ms", "busy_ms", "finished_at", "iterations")]
            sums = [sum(run[key] for run in runs) for key in ("preemptions", "recomputed")]
            same = f"{sum(run['same_tokens'] for run in runs)}/{len(runs)}"
            rows.append([name, *figures[:2], median(ratios), min(ratios), max(ratios), *figures[2:], *sums, same])
        columns = [
            "scheduler",
            "mean latency ms",
            "in processor ms",
            "to fcfs",
            "least",
            "most",
            "mean end, iteration",
            "iterations",
        ]
        title = f"vLLM serving {REQUESTS} requests on {BLOCKS} blocks of {BLOCK}, hints: {hints}; {len(mine)} repetitions"
        tables.append(Table(title, [*columns, "preemptions", "recomputed tokens", "same tokens"], rows))
    return tables


def _overhead_tasks(seeds: int) -> list[Params]:
    return [{"part": "overhead", "seats": seats, "seed": seed} for seats in (16, 64) for seed in range(seeds)]


def _overhead(params: Params) -> dict[str, Any]:
    """Time deciding, in processor time of this thread: it does not count what other programs take."""
    from opt.plugins import vllm as plugin
    from opt.plugins.vllm.drive import build, run

    seats = params["seats"]
    rng = np.random.default_rng(params["seed"])
    n = WAITING + 2 * seats
    more = OVERHEAD_STEPS * seats // 150  # about as many as leave in the meantime
    arrival = np.concatenate([np.zeros(n, np.int64), np.sort(rng.integers(1, OVERHEAD_STEPS, more))])
    blocks, n = 30 * seats, n + more
    instance = Instance(blocks * 16, rng.integers(20, 600, n), rng.integers(50, 400, n), arrival=arrival)
    classes = {name: getattr(plugin, path.rpartition(".")[2]) for name, (path, _) in SCHEDULERS.items() if path}
    formers = {name: getattr(plugin, name) for name in ("FeatherAnalytic", "FeatherBandit")}
    settings = {"cost": engines_vllm.COST, "locality": engines_vllm.LOCALITY}
    values = {}
    for name, scheduler in {"warm-up": plugin.SortedF, "vLLM fcfs": None, **classes, **formers}.items():
        made = build(scheduler, blocks=blocks, seats=seats, budget=2048, settings=settings)
        times: list[float] = []
        _timed(made, times)
        steps = run(made, instance, most=OVERHEAD_STEPS)
        first, *rest = times
        values[name] = {
            "first_ms": 1e3 * first,
            "median_us": 1e6 * median(rest),
            "mean_us": 1e6 * fmean(rest),
            "batch": fmean(len(step.tokens) for step in steps),
            "ended": sum(len(step.finished) for step in steps),
        }
    del values["warm-up"]
    return values


def _timed(scheduler: Any, times: list[float]) -> None:
    """Let a scheduler note the processor seconds of each of its steps."""
    schedule, update = scheduler.schedule, scheduler.update_from_output

    def decide(*args: Any, **kwargs: Any) -> Any:
        begun = time.thread_time()
        found = schedule(*args, **kwargs)
        times.append(time.thread_time() - begun)
        return found

    def follow(*args: Any, **kwargs: Any) -> Any:
        begun = time.thread_time()
        found = update(*args, **kwargs)
        times[-1] += time.thread_time() - begun
        return found

    scheduler.schedule, scheduler.update_from_output = decide, follow


def _overhead_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (seats,), mine in grouped(records, "seats").items():
        for name in mine[0]["values"]:
            runs = [record["values"][name] for record in mine]
            stock = [record["values"]["vLLM fcfs"] for record in mine]
            cells = [median(run[key] for run in runs) for key in ("first_ms", "median_us", "mean_us", "batch", "ended")]
            ratios = [
                median(run[key] / base[key] for run, base in zip(runs, stock, strict=True)) for key in ("median_us", "mean_us")
            ]
            rows.append([seats, name, *cells, *ratios])
    columns = ["seats", "scheduler", "first step ms", "median us", "mean us", "mean batch", "ended", "median ratio", "mean ratio"]
    return [Table(f"processor time of deciding a step, about {WAITING:,} requests waiting", columns, rows)]


def _fit_tasks(seeds: int) -> list[Params]:
    return [{"part": "fit", "seed": seed} for seed in range(seeds)]


def _fit(params: Params) -> dict[str, Any]:
    """Fit the log of one backlog, and replay another one of the same kind that the fit has not seen."""
    from opt.plugins.small import TINY, backlog
    from opt.plugins.vllm.serve import serve

    how: dict[str, Any] = {"shape": TINY | EIGHT_LAYERS, "processor": True}
    serve(backlog(8, BLOCKS, BLOCK), None, **how)
    seen, unseen = (backlog(REQUESTS, BLOCKS, BLOCK, 100 + 2 * params["seed"] + k) for k in range(2))
    first, second = (serve(instance, None, **how) for instance in (seen, unseen))
    # Only now: vLLM does not start in a process that has loaded numba.
    from opt.sim.config import EngineConfig
    from opt.sim.door import simulate

    cost = fitted(first.iterations, "vLLM")
    config = EngineConfig(block_size=BLOCK, token_budget=512, max_running=16, prefix_cache=False)
    timeline = simulate(unseen, "vllm-fcfs", cost, engine=config)
    real, ours = fmean(second.latency_s.values()), float(timeline.e2e_s.mean())
    return {
        "iterations": len(second.iterations),
        "replayed_iterations": timeline.metrics["iterations"],
        "preemptions": second.preemptions,
        "replayed_preemptions": timeline.metrics["preemptions"],
        "latency_s": real,
        "replayed_s": ours,
        "error": ours / real - 1,
        "held_out": cost.error.get("held_out"),
    }


def _fit_tables(records: list[Record]) -> list[Table]:
    rows = []
    for record in records:
        values = record["values"]
        held = values["held_out"] or {}
        counts = [values[key] for key in ("iterations", "replayed_iterations", "preemptions", "replayed_preemptions")]
        rows.append(
            [record["params"]["seed"], held.get("median"), held.get("p95"), *counts, values["latency_s"], values["error"]]
        )
    columns = [
        "seed",
        "held-out median",
        "held-out P95",
        "iterations",
        "replayed",
        "preemptions",
        "replayed",
        "mean latency s",
        "error",
    ]
    return [Table("vLLM on eight layers: its log fitted, a run that the fit has not seen replayed", columns, rows)]


PARTS = {
    "oracle": Part(_oracle_tasks, _oracle, _oracle_tables),
    "serve": Part(_serve_tasks, _serve, _serve_tables),
    "overhead": Part(_overhead_tasks, _overhead, _overhead_tables),
    "fit": Part(_fit_tasks, _fit, _fit_tables),
    **engines_vllm.PARTS,
    **engines_sglang.PARTS,
}


ENGINES = suite_of("engines", "inside vLLM and SGLang: the oracle, latency, overhead, a fitted log", PARTS)
