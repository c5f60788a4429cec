"""The parts of the suite `engines` that show what our schedulers add to vLLM: prefix groups, and targets for token gaps.

Parts:
    groups    vLLM's real scheduler without a model: requests in groups of common prefixes, first come first served and under
              our batch formers; and whether these decide there, step by step, what they decide in our engine. What is left
              without preemptions is the stated kind: vLLM's cache has a second copy of a block (`opt.sim.policies.vllm`)
    deadline  vLLM on an eight-layer model with random weights: chats and long prompts arrive by Poisson, each with a target for
              its token gaps; stock against our token budgets, with a cost model fitted to a log of the same engine. All on
              the clock of this process's processor time, so that what else runs on the machine counts little.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from opt.bench.parts import Part
from opt.bench.runner import Params, Record, Table, grouped
from opt.core.cost import CostModel, Load
from opt.core.instance import Instance

__all__ = ["EIGHT_LAYERS", "PARTS", "fitted"]

EIGHT_LAYERS = {
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
}
COST, LOCALITY, CHUNK = "h100-llama-3-8b", 0.02, 256
GROUPED, SHARED, SEATS = 300, 2_048, 64  # requests, tokens of a group's prefix
CONFIGS = 5  # random settings in a task
FORMERS = {"vLLM fcfs": "", "analytic": "FeatherAnalytic", "bandit": "FeatherBandit", "seeded": "FeatherSeeded"}
CHATS, RATE, TARGETS = 60, 8.0, (0.03, 0.1)


def write_small_log(rows: list[tuple[Load, float]], path: Path, source: str) -> None:
    """Write the log of iterations that an engine has run on the eight-layer model."""
    from opt.fit.log import write_log

    write_log(rows, path, machine={"gpu": "CPU, one thread", "model": "random Llama, 8 layers"}, origin={"source": source})


def fitted(rows: list[tuple[Load, float]], source: str) -> CostModel:
    """Return the cost model that `kvopt fit` makes of such a log. It loads numba, after which vLLM does not start."""
    from opt.fit.log import read_log
    from opt.fit.models import fit_log

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        write_small_log(rows, path, source)
        return fit_log([read_log(path)], "linear", name="cpu")


def _groups_tasks(seeds: int) -> list[Params]:
    return [{"part": "groups", "groups": groups, "seed": seed} for groups in (2, 6, 20) for seed in range(seeds)]


def _groups(params: Params) -> dict[str, Any]:
    """Run every former on one load, and hold the formers against our engine."""
    from opt.serve.prefix.groups import grouped as generate

    made = generate(GROUPED, groups=params["groups"], shared=SHARED, longest=100, memory=4_096 * 16, seed=params["seed"])
    instance = Instance(made.memory, made.prompt, made.output, prefix=made.prefix_rows(), prefix_chunk=made.prefix_chunk)
    assert made.client is not None
    values: dict[str, Any] = {name: _formed(instance, made.client, scheduler) for name, scheduler in FORMERS.items()}
    return values | {"same": _same(params)}


def _formed(instance: Instance, group: Any, scheduler: str) -> dict[str, float]:
    from opt.plugins import vllm
    from opt.plugins.vllm.drive import build, run

    settings = {"cost": COST, "locality": LOCALITY, "chunk": CHUNK}
    how: dict[str, Any] = {"blocks": instance.memory // 16, "seats": SEATS, "budget": 8_192}
    steps = run(build(getattr(vllm, scheduler) if scheduler else None, **how, settings=settings), instance)
    begun: dict[int, int] = {}
    ended: dict[int, int] = {}
    for number, step in enumerate(steps):
        for i in step.tokens:
            begun.setdefault(i, number)
        ended |= dict.fromkeys(step.finished, number + 1)
    return {
        "steps": len(steps),
        "groups_a_step": fmean(len({group[i] for i in step.tokens}) for step in steps),
        "batch": fmean(len(step.tokens) for step in steps),
        "computed": sum(sum(step.tokens.values()) for step in steps),
        "cached": sum(sum(step.cached.values()) for step in steps),
        "preemptions": sum(len(step.preempted) for step in steps),
        "mean_end": fmean(ended.values()),
        "longest_wait": max(begun.values()),
        "served": len(ended),
    }


def _same(params: Params) -> list[dict[str, Any]]:
    """Compare formers in vLLM and in our engine on random requests with common prefixes."""
    from opt.plugins.vllm.oracle import draw, formed

    found: list[dict[str, Any]] = []
    fixed = {"policy": "fcfs", "max_chunk": 0, "whole_prompt": True, "watermark": 0.0, "prefix_cache": True}
    seed = 10_000 * params["groups"] + 100 * params["seed"]
    while len(found) < CONFIGS * len(FORMERS.keys() - {"vLLM fcfs"}):
        seed += 1
        drawn, settings = draw(seed, **fixed)
        if drawn.prefix_ids is None:
            continue
        instance = Instance(drawn.memory, drawn.prompt, drawn.output, prefix=drawn.prefix_rows(), prefix_chunk=drawn.prefix_chunk)
        own = {"cost": COST, "locality": LOCALITY, "chunk": settings["block_size"], "patience_s": 30.0}
        for former in ("analytic", "bandit", "seeded"):
            comparison = formed(instance, settings, former, own)
            figures = {"steps": comparison.steps, "preemptions": comparison.preemptions, "at": comparison.at}
            found.append({"former": former, "documented": comparison.known, **figures})
    return found


def _groups_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (groups,), mine in grouped(records, "groups").items():
        for name in FORMERS:
            runs = [record["values"][name] for record in mine]
            rows.append([groups, name, *(median(run[key] for run in runs) for key in runs[0])])
    columns = ["groups", "scheduler", "steps", "groups in a step", "batch", "computed tokens", "cached tokens", "preemptions"]
    columns += ["mean end, step", "longest wait, steps", "served"]
    title = f"vLLM's scheduler, {GROUPED} requests in groups that share {SHARED:,} tokens; medians over {len(mine)} seeds"
    return [Table(title, columns, rows), _same_table(records)]


def _same_table(records: list[Record]) -> Table:
    found = [run for record in records for run in record["values"]["same"]]
    rows = []
    for former in ("analytic", "bandit", "seeded"):
        for preempting in (False, True):
            mine = [run for run in found if run["former"] == former and (run["preemptions"] > 0) == preempting]
            equal, known = sum(run["at"] is None for run in mine), sum(run["documented"] for run in mine)
            steps = sum(run["steps"] if run["at"] is None else run["at"] for run in mine)
            kind = "with preemptions" if preempting else "without"
            rows.append([former, kind, len(mine), equal, known, sum(run["steps"] for run in mine), steps])
    columns = ["former", "runs", "number", "equal in all steps", "known kind", "steps", "steps before the first difference"]
    return Table("batch formers inside vLLM and in our engine, step by step", columns, rows)


def _deadline_tasks(seeds: int) -> list[Params]:
    return [{"part": "deadline", "scheduler": name, "seed": seed} for name in BUDGETS for seed in range(seeds)]


BUDGETS: dict[str, tuple[str, dict[str, Any]]] = {
    "DeadlineBudget, gaps": ("DeadlineBudget", {"bank": False}),
    "DeadlineBudget, slack banked": ("DeadlineBudget", {}),
    "SmallestVolumeDeadline, slack banked": ("SmallestVolumeDeadline", {}),
}


def _chats(seed: int, n: int = CHATS, rate: float = RATE) -> Instance:
    """Return chats, and long prompts with short answers, a third of all; half have the tight target."""
    rng = np.random.default_rng(seed)
    long = rng.random(n) < 1 / 3
    prompt = np.where(long, rng.integers(400, 900, n), rng.integers(8, 60, n))
    output = np.where(long, rng.integers(4, 20, n), rng.integers(30, 90, n))
    return Instance(
        400 * 32, prompt, output, arrival_s=np.cumsum(rng.exponential(1 / rate, n)), tpot_s=rng.choice(TARGETS, n), name="chats"
    )


def _deadline(params: Params) -> dict[str, Any]:
    """Fit a log, then serve the same chats under vLLM's own scheduler and under one of ours."""
    from opt.plugins.small import TINY, backlog
    from opt.plugins.vllm.serve import serve

    how: dict[str, Any] = {"shape": TINY | EIGHT_LAYERS, "processor": True}
    serve(backlog(8, 24, 32), None, **how)  # the first start is slow
    seen = [serve(instance, None, **how) for instance in (backlog(40, 24, 32, 100), _chats(1000 + params["seed"], 30, 100.0))]
    instance = _chats(params["seed"])
    with tempfile.TemporaryDirectory() as folder:
        log, cost = Path(folder) / "log.jsonl", Path(folder) / "cpu.json"
        rows = [row for run in seen for row in run.iterations]
        write_small_log(rows, log, "vLLM")
        # In a process of its own, as a user would: vLLM does not start in one that has loaded numba.
        command = [sys.executable, "-m", "opt.cli", "fit", str(log), "--form", "linear", "-o", str(cost)]
        subprocess.run(command, check=True, capture_output=True)
        stock = serve(instance, None, **how)
        scheduler, settings = BUDGETS[params["scheduler"]]
        ours = serve(instance, f"opt.plugins.vllm.{scheduler}", settings={"cost": str(cost), **settings}, **how)
    both = {"vLLM fcfs": _kept(instance, stock), "ours": _kept(instance, ours)}
    return both | {"same_tokens": stock.tokens == ours.tokens and len(ours.tokens) == instance.n}


def _kept(instance: Instance, run: Any) -> dict[str, float]:
    """Return how targets were kept: by every gap, by a request's mean gap, by all gaps of a request."""
    assert instance.tpot_s is not None
    gaps = {i: np.diff(times) for i, times in run.token_s.items() if len(times) > 1}
    target = {i: float(instance.tpot_s[i]) for i in gaps}
    first = [times[0] for times in run.token_s.values()]
    return {
        "gaps_kept": float(np.concatenate([found <= target[i] for i, found in gaps.items()]).mean()),
        "all_gaps_kept": fmean(bool((found <= target[i]).all()) for i, found in gaps.items()),
        "mean_gap_kept": fmean(bool(found.mean() <= target[i]) for i, found in gaps.items()),
        "gap_p99_s": float(np.quantile(np.concatenate(list(gaps.values())), 0.99)),
        "ttft_mean_s": fmean(first),
        "ttft_p95_s": float(np.quantile(first, 0.95)),
        "latency_s": fmean(run.latency_s.values()),
        "iterations": len(run.iterations),
    }


def _deadline_tables(records: list[Record]) -> list[Table]:
    rows = []
    for (name,), mine in grouped(records, "scheduler").items():
        for who, shown in (("vLLM fcfs", "vLLM fcfs, same runs"), ("ours", name)):
            runs = [record["values"][who] for record in mine]
            same = f"{sum(record['values']['same_tokens'] for record in mine)}/{len(mine)}"
            rows.append([shown, *(median(run[key] for run in runs) for key in runs[0]), same])
    columns = ["scheduler", "gaps kept", "requests with all kept", "with mean gap kept", "P99 gap s", "mean TTFT s", "P95 TTFT s"]
    columns += ["mean latency s", "iterations", "same tokens"]
    low, high = TARGETS
    title = f"vLLM on eight layers, {CHATS} requests at {RATE:g} a second, targets of {low:g} and {high:g} s; processor seconds"
    return [Table(title, columns, rows)]


PARTS = {
    "groups": Part(_groups_tasks, _groups, _groups_tables),
    "deadline": Part(_deadline_tasks, _deadline, _deadline_tables),
}
