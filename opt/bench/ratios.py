"""How bad is each solver? What is proved, and the worst that hunts, families and champions have shown.

`small` anneals over a handful of requests with their exact optimum, `groups` over groups of equal requests against the
best schedule known, `families` runs the traps of `proofs` at many sizes. Every ratio is certified and is a lower bound on
the solver's worst case; `of bound` holds the same total latency against a proved bound, so it is an upper bound on the
ratio of that one instance.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from opt.bench.runner import Params, Record, Suite, Table, grouped

if TYPE_CHECKING:
    from proofs.worst_case import Champion

__all__ = ["PROVEN", "RATIOS", "hunted"]

# Optimal on what is hunted here, or the best of the others, or improved for seconds; and an alias.
LEFT_OUT = ("dp", "milp", "cpsat", "exact", "portfolio", "search", "guided", "mc-sf")
MODES = ("small", "groups", "families")
MANY = 1200  # requests of a family's instance, at most
SLOW = {"horizon": 20}  # look at so many times fewer instances, and at smaller ones: a call takes tens of milliseconds
NEVER_IDLE = ("2M(1 + sqrt(1 + ln M))", "never-idle")

# What is proved of a solver beyond the factor it states itself: the upper bound and the claim's name.
PROVEN: dict[str, tuple[str, str]] = {
    "sof": ("21 sqrt(M) + 9", "sof-root"),
    "total-size": ("10 sqrt(M) + 5", "total-size-root"),
    "svf": ("2 sqrt(M) + 5", "svf-sqrt"),
}


def hunted() -> list[str]:
    """Return the solvers that the suite hunts: all but exact ones, aliases, and those that return the best of others."""
    from opt.solvers.registry import SOLVERS

    return [name for name in SOLVERS if name not in LEFT_OUT]


def proven(solver: str) -> str:
    """Return the upper bound proved for a solver, with the name of the claim; "-" where none is."""
    from opt.solvers.orders import KEYS

    order = solver.removesuffix("-skip").removesuffix("-pack")
    bound = PROVEN.get(solver, NEVER_IDLE if order in KEYS else None)
    return "-" if bound is None else f"{bound[0]} ({bound[1]})"


def _tasks(seeds: int) -> list[Params]:
    return [
        {"solver": solver, "mode": mode, "seed": seed}
        for solver in hunted()
        for mode in MODES
        for seed in range(1 if mode == "families" else seeds)
    ]


def _measure(params: Params) -> dict[str, Any]:
    from opt.solvers.bounds import best_bound
    from proofs.worst_case import hunt_groups, hunt_small

    if params["mode"] == "families":
        found = max(_family_champions(params["solver"]), key=lambda champion: champion.ratio)
    else:
        hunt, tries = (hunt_small, 5000) if params["mode"] == "small" else (hunt_groups, 600)
        found = hunt(params["solver"], seed=params["seed"], tries=tries // SLOW.get(params["solver"], 1))
    instance = found.instance
    small = instance.n <= 10
    return {
        "ratio": float(found.ratio),
        "of_bound": found.slow / best_bound(instance).ceil,
        "total_latency": found.slow,
        "best": found.fast,
        "exact": found.exact,
        "n": instance.n,
        "memory": instance.memory,
        "name": instance.name,
        "requests": [list(pair) for pair in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True)]
        if small
        else None,
        "factor": _factor(params["solver"], found),
    }


def _family_champions(solver: str) -> Iterator[Champion]:
    """Yield the solver on every trap at every size that is not too large, against the best schedule known."""
    from proofs.traps import TRAPS
    from proofs.unbounded import better_latency, instance_of
    from proofs.worst_case import Champion, check, fastest, latency

    for trap in TRAPS.values():
        for size in (*trap.sizes, *([trap.witness] if trap.witness else [])):
            instance = instance_of(trap, size)
            if instance.n <= MANY // SLOW.get(solver, 1):
                slow = latency(instance, solver)
                fast = min(slow, better_latency(trap, size), fastest(instance))
                yield check(Champion(solver, instance, slow, fast, exact=False))


def _factor(solver: str, champion: Champion) -> int | float | None:
    """Return the factor that the solver states for the champion, if any."""
    from opt.solvers.registry import SOLVERS

    factor: int | float | None = SOLVERS[solver](champion.instance, seed=0, time_limit=None).stats.get("factor")
    return factor


def _tables(records: list[Record]) -> list[Table]:
    columns = ["solver", "stated factor", "proved", "small: ratio", "n", "M", "groups: ratio", "of bound", "n", "M"]
    rows = [_row(solver, group) for (solver,), group in grouped(records, "solver").items()]
    title = "worst certified ratios found: small against the optimum, others against the best schedule known"
    return [Table(title, [*columns, "families: ratio", "of bound", "instance"], rows)]


def _row(solver: str, records: list[Record]) -> list[Any]:
    worst: dict[str, dict[str, Any]] = {}
    for mode in MODES:
        mine = [record["values"] for record in records if record["params"]["mode"] == mode]
        worst[mode] = max(mine, key=lambda values: float(values["ratio"]), default={})
    factors = [record["values"]["factor"] for record in records if record["values"]["factor"] is not None]
    small, groups, families = (worst[mode] for mode in MODES)
    return [
        solver,
        max(factors, default=None),
        proven(solver),
        *(small.get(key) for key in ("ratio", "n", "memory")),
        *(groups.get(key) for key in ("ratio", "of_bound", "n", "memory")),
        *(families.get(key) for key in ("ratio", "of_bound", "name")),
    ]


RATIOS = Suite("ratios", "worst ratios of every solver: hunted, on families, and what is proved", _tasks, _measure, _tables)
