"""Policies that do not know the future, at 0.7, 1.0 and 1.3 of capacity, against a bound for those that do.

Slices of the Azure 2023 traces (conversation, code), or of the bundled families of the same names where the variable
`KVOPT_DATA` names no folder that has them. Load is request rate x mean volume x round length / memory: the round length is
set so that the slice has it. Each policy runs with exact predictions and with outputs predicted up to 50 % wrong.

Rivals are at their best: every order head of line, skipping (`-skip`), with one place kept (`-easy`) and with 64 (`-pack`,
serial earliest fit over who is there); smallest volume first in a window and at a pace. With noise every policy raises
outgrown predictions by a quarter, which helped all of them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from opt.bench.runner import Params, Record, Suite, Table, grouped

if TYPE_CHECKING:
    from opt.core.instance import Instance

__all__ = ["ONLINE"]

LOADS = ("0.7", "1.0", "1.3")
MEMORY = 60_000
SIZE = 2000  # requests in a slice
FILES = {"conversation": "AzureLLMInferenceTrace_conv.csv.gz", "code": "AzureLLMInferenceTrace_code.csv.gz"}
ERRORS = {"exact": "0", "noisy 50 %": "1/2"}
POLICIES = (
    *("fcfs", "fcfs-skip", "fcfs-pack", "sof", "sof-skip", "sof-pack", "total-size", "total-size-pack", "svf"),
    *("svf-skip", "svf-easy", "svf-pack", "svf-window", "svf-paced", "horizon"),
)
SIMPLE = tuple(name for name in POLICIES if name != "horizon")


def _tasks(seeds: int) -> list[Params]:
    return [
        {"trace": trace, "load": load, "slice": part, "slices": seeds, "source": _source(trace)}
        for trace in FILES
        for load in LOADS
        for part in range(seeds)
    ]


def _source(trace: str) -> str:
    return "bundled family" if _file(trace) is None else "Azure 2023"


def _file(trace: str) -> Path | None:
    """Return the trace's file in the folder of public data, or None."""
    folder = os.environ.get("KVOPT_DATA")
    path = Path(folder) / "azure" / FILES[trace] if folder else None
    return path if path is not None and path.exists() else None


def _measure(params: Params) -> dict[str, Any]:
    from instances.predicting import predict
    from opt.sim.rounds import Caution, clairvoyant_bound, run_rounds

    instance = _at_load(_slice(params), params["load"])
    bound = clairvoyant_bound(instance)
    values: dict[str, Any] = {"n": instance.n, "bound": float(bound.value / instance.n), "method": bound.method}
    for label, error in ERRORS.items():
        seen = predict(instance, "exact" if error == "0" else "noisy", error=error, seed=params["slice"])
        for policy in POLICIES:
            outcome = run_rounds(seen, policy, caution=Caution(growth=25))
            values[f"{policy}, {label}"] = outcome.summary()
    return values


def _slice(params: Params) -> Instance:
    """Return the requests of a slice, arrivals in seconds from its first; the slices are spread over the trace."""
    from instances import generate
    from opt.core.traces import read_trace

    path = _file(params["trace"])
    if path is None:
        return generate(params["trace"], n=SIZE, memory=MEMORY, seed=params["slice"])
    whole = read_trace(str(path), "azure", memory=MEMORY)
    begin = (whole.n - SIZE) * params["slice"] // max(1, params["slices"] - 1)
    part = whole.take(np.arange(begin, begin + SIZE))
    assert part.arrival_s is not None
    return part.replace(arrival_s=part.arrival_s - part.arrival_s.min())


def _at_load(instance: Instance, load: str) -> Instance:
    """Return the instance with arrivals in rounds of the length at which it brings this load."""
    assert instance.arrival_s is not None
    seconds = float(instance.arrival_s.max())
    round_s = float(load) * instance.memory * seconds / float(instance.volume.sum())
    return instance.in_rounds(f"{round_s:.9f}")


def _tables(records: list[Record]) -> list[Table]:
    return [
        table
        for (trace, source), group in grouped(records, "trace", "source").items()
        for table in (*(_latencies(trace, source, label, group) for label in ERRORS), _losses(trace, source, group))
    ]


def _latencies(trace: str, source: str, label: str, records: list[Record]) -> Table:
    """Mean latency over the slices, and how the horizon stands to the best order in each cell."""
    rows: list[list[Any]] = []
    cells = {load: [record["values"] for record in group] for (load,), group in grouped(records, "load").items()}
    for policy in POLICIES:
        row: list[Any] = [policy]
        for values in cells.values():
            row += [_mean(values, policy, label), sum(v[f"{policy}, {label}"]["evictions"] for v in values)]
        rows.append(row)
    best = {load: min((_mean(values, p, label), p) for p in SIMPLE) for load, values in cells.items()}
    bounds = {load: sum(v["bound"] for v in values) / len(values) for load, values in cells.items()}
    rows.append(["clairvoyant bound", *(cell for load in cells for cell in (bounds[load], None))])
    rows.append(["best order", *(cell for load in cells for cell in (best[load][1], None))])
    gains = {load: 1 - _mean(values, "horizon", label) / best[load][0] for load, values in cells.items()}
    rows.append(["horizon below the best order", *(cell for load in cells for cell in (gains[load], None))])
    columns = ["policy", *(name for load in cells for name in (f"load {load}", "evictions"))]
    slices = len(next(iter(cells.values())))
    title = f"{source} {trace}, {slices} slices of {SIZE:,}, memory {MEMORY:,}, {label}: mean latency in rounds"
    return Table(title, columns, rows)


def _mean(values: list[Mapping[str, Any]], policy: str, label: str) -> float:
    found: float = sum(v[f"{policy}, {label}"]["mean_latency"] for v in values) / len(values)
    return found


def _losses(trace: str, source: str, records: list[Record]) -> Table:
    """What wrong predictions cost each policy: latency above its own with exact ones, and tokens computed twice."""
    exact, noisy = ERRORS
    cells = {load: [record["values"] for record in group] for (load,), group in grouped(records, "load").items()}
    rows = []
    for policy in POLICIES:
        row: list[Any] = [policy]
        for values in cells.values():
            share = sum(v[f"{policy}, {noisy}"]["recomputed_tokens"] for v in values) / (len(values) * SIZE)
            row += [_mean(values, policy, noisy) / _mean(values, policy, exact) - 1, share]
        rows.append(row)
    columns = ["policy", *(name for load in cells for name in (f"load {load}", "recomputed tokens a request"))]
    return Table(f"{source} {trace}: loss by predictions up to 50 % wrong", columns, rows)


ONLINE = Suite(
    "online", "policies without foresight at 0.7, 1.0, 1.3 of capacity, against a clairvoyant bound", _tasks, _measure, _tables
)
