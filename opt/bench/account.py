"""Part of the suite `search`: where the gap between plan and bound comes from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from opt.bench.runner import Params, Record, Table, grouped
from opt.bench.searching import INSTANCES, PROOF_S, SMALL_S, warm

if TYPE_CHECKING:
    from opt.core.columns import IntArray
    from opt.core.instance import Instance

__all__ = ["account", "account_tables", "account_tasks", "idle_loss", "shrunken"]

TOGETHER = (2, 3, 4, 5, 6)
ACCOUNT_N, SHRINK = 12, 100


def account_tasks(seeds: int, full: bool = False) -> list[Params]:
    """Return a few shrunken mixtures for each number of requests that fit together, and the deep backlogs."""
    few = [{"part": "account", "together": k, "seed": seed} for k in TOGETHER for seed in range(4 * seeds if full else 2)]
    return [*few, *({"part": "account", "instance": name} for name in INSTANCES[full])]


def account(params: Params) -> dict[str, Any]:
    """On a shrunken mixture: bound, optimum and plan. On a deep backlog, whose optimum nobody knows: where the plan loses."""
    from instances import library
    from opt.solvers.door import lower_bound, solve

    if "instance" in params:
        instance = library.load(params["instance"])
        warm()
        result = solve(instance, "search", bound="mean-busy-time", time_limit=20)
        assert result.schedule is not None
        assert result.bound is not None
        lost = idle_loss(instance, result.schedule.start)
        gap = result.schedule.total_latency - float(result.bound.value)
        return {"total_latency": result.total_latency, "gap": gap, "idle": lost}
    instance = shrunken(params["together"], params["seed"])
    plan, proof = solve(instance, "search", bound=None, time_limit=SMALL_S), solve(instance, "exact", time_limit=PROOF_S)
    bounds = {name: lower_bound(instance, name).ceil for name in ("mean-busy-time", "prices")}
    optimum = proof.total_latency if proof.status == "optimal" else None
    return {"plan": plan.total_latency, "optimum": optimum, "bounds": bounds}


def shrunken(together: int, seed: int) -> Instance:
    """Return requests of the mixture a hundred times smaller, under a memory that holds so many of them on average."""
    from instances import generate
    from opt.core.instance import Instance

    whole = generate("mixture", n=ACCOUNT_N, memory=16_492, seed=seed)
    prompt, output = whole.prompt // SHRINK, whole.output // SHRINK + 1
    volume = prompt * output + output * (output + 1) // 2
    memory = max(int(together * volume.sum() / output.sum()), int((prompt + output).max()))
    return Instance(memory, prompt, output)


def idle_loss(instance: Instance, start: IntArray) -> float:
    """Return how much total latency idle memory costs: idle share times what is unfinished then, summed over rounds.

    A request counts as unfinished by the share of its volume still to come. The mean-busy-time bound assumes that memory
    is full until the end, so the gap to it is this loss plus that of serving in another order than by volume.
    """
    import numpy as np

    rounds = int((start + instance.output).max()) + 1
    used, served = np.zeros(rounds), np.zeros(rounds)
    for s, o, x, v in zip(instance.prompt, instance.output, start, instance.volume, strict=True):
        held = s + np.arange(1.0, o + 1)
        used[x + 1 : x + o + 1] += held
        served[x + 1 : x + o + 1] += held / v
    unfinished = instance.n - np.cumsum(served) + served / 2  # in the middle of the round
    return float(((1 - used / instance.memory) * unfinished)[1:].sum())


def account_tables(records: list[Record]) -> list[Table]:
    """Return how much of the gap is bound and how much is plan, and what the plan of a deep backlog loses where."""
    few = [record for record in records if "together" in record["params"]]
    deep = [record for record in records if "instance" in record["params"]]
    columns = [
        "fit together",
        "instances",
        "optimum proved",
        "plan above optimum, %",
        "optimum above prices, %",
        "above mean-busy-time, %",
    ]
    rows = []
    for (together,), group in grouped(few, "together").items():
        known = [record["values"] for record in group if record["values"]["optimum"] is not None]
        parts = [[100 * (v["plan"] / v["optimum"] - 1) for v in known]]
        parts += [[100 * (1 - v["bounds"][name] / v["optimum"]) for v in known] for name in ("prices", "mean-busy-time")]
        rows.append([together, len(group), len(known), *(sum(part) / len(part) if part else None for part in parts)])
    title = f"of the gap, how much is bound: {ACCOUNT_N} requests of the mixture, {SHRINK} times smaller (means)"
    names = ["instance", "total latency", "% above mean-busy-time", "of that idle memory, %", "order, %"]
    lines = []
    for record in deep:
        values = record["values"]
        idle = 100 * values["idle"] / values["gap"]
        share = 100 * values["gap"] / values["total_latency"]
        lines.append([record["params"]["instance"], values["total_latency"], share, idle, 100 - idle])
    return [Table(title, columns, rows), Table("what the plan of 20 s of search loses", names, lines)]
