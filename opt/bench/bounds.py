"""How sharp the lower bounds are, and how fast: on the chat and summarization mixture, against each other and the program.

`fractional` is a feasible point of the time-indexed linear program (`opt.solvers.fractional`): no price bound can exceed it,
so (fractional - prices)/prices is a primal-dual gap, both sides exact.
"""

from __future__ import annotations

import time
from typing import Any

from opt.bench.runner import Params, Record, Suite, Table, grouped, median_of

__all__ = ["BOUNDS"]

MIXTURES = ((1_000, 16_492), (100_000, 131_072), (100_000, 400_000), (1_000_000, 400_000))  # requests, memory
PIECES = 2_000_000  # of the fractional schedule, at most
CLOSED_ONLY = 1_000_000  # requests from which only the closed forms are run
METHODS = ("volume", "mean-busy-time", "prices", "fractional")


def _tasks(seeds: int) -> list[Params]:
    return [
        {"n": n, "memory": memory, "method": method, "seed": seed}
        for n, memory in MIXTURES
        for method in METHODS
        for seed in range(seeds)
        if n < CLOSED_ONLY or method in ("volume", "mean-busy-time")
    ]


def _measure(params: Params) -> dict[str, Any]:
    """Compute one bound, warm, and check its certificate."""
    from instances import generate
    from opt.core.certify import check_bound
    from opt.solvers.bounds import BOUNDS as REGISTRY
    from opt.solvers.bounds import mean_busy_time

    warm = generate("mixture", n=50, memory=params["memory"], seed=1)
    instance = generate("mixture", n=params["n"], memory=params["memory"], seed=params["seed"])
    base = float(mean_busy_time(instance).value)
    if params["method"] == "fractional":
        begun = time.perf_counter()
        value = float(_fractional(instance))
        return {"ratio": value / base, "seconds": time.perf_counter() - begun, "check_s": None}
    compute = REGISTRY[params["method"]]
    compute(warm)
    clock = [time.perf_counter()]
    bound = compute(instance)
    clock.append(time.perf_counter())
    check_bound(instance, bound)
    clock.append(time.perf_counter())
    return {"ratio": float(bound.value) / base, "seconds": clock[1] - clock[0], "check_s": clock[2] - clock[1]}


def _fractional(instance: Any) -> Any:
    from opt.solvers.fractional import STAGES, fractional_value
    from opt.solvers.prices import COARSE_FROM, COARSE_STAGES

    stages = STAGES if instance.n < COARSE_FROM else COARSE_STAGES
    return fractional_value(instance, copies=PIECES // instance.n, stages=stages)


def _tables(records: list[Record]) -> list[Table]:
    rows, bracket = [], []
    for (n, memory), group in grouped(records, "n", "memory").items():
        ratio = {}
        for (method,), mine in grouped(group, "method").items():
            ratio[method] = median_of(mine, "ratio")
            figures = [median_of(mine, name) for name in ("seconds", "check_s")]
            rows.append([n, memory, method, ratio[method], *figures, len(mine)])
        lower, upper = max(ratio.get("prices") or 0.0, 1.0), ratio.get("fractional")
        if upper is not None:
            bracket.append([n, memory, lower, upper, upper / lower - 1])
    title = "value over the mean-busy-time bound; seconds warm, one core (medians over seeds)"
    columns = ["n", "memory", "bound", "ratio", "seconds", "check s", "seeds"]
    between = "where the time-indexed linear program lies, over mean-busy-time"
    brackets = [Table(between, ["n", "memory", "at least", "at most", "gap"], bracket)] if bracket else []
    return [Table(title, columns, rows), *brackets]


BOUNDS = Suite(
    "bounds",
    "lower bounds against each other and against the linear program",
    _tasks,
    _measure,
    _tables,
    clocked=frozenset({"seconds", "check_s", "ratio"}),  # `prices` climbs within a time limit
)
