"""The visible dictionary of solvers. A new one is a function and a line here."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from opt.core.model import Proposal
from opt.solvers.exact.cpsat import cpsat
from opt.solvers.exact.dp import dp
from opt.solvers.exact.milp import milp
from opt.solvers.exact.structure import exact
from opt.solvers.guided import guided
from opt.solvers.horizon import horizon
from opt.solvers.measured import MEASURED, run_measured
from opt.solvers.one_bit import one_bit
from opt.solvers.orders import KEYS, run_order
from opt.solvers.phases import phases
from opt.solvers.portfolio import portfolio
from opt.solvers.search import search
from opt.solvers.sorted_f import sorted_f, sorted_f_serial, sorted_rate
from opt.solvers.staggered import staggered

__all__ = ["SOLVERS", "Solver", "summary"]


Solver: TypeAlias = Callable[..., Proposal]  # (instance, *, seed, time_limit, **params); `certify` decides what it is worth

SOLVERS: dict[str, Solver] = {
    "portfolio": portfolio,
    "search": search,
    "sorted-f": sorted_f,
    "sorted-f-serial": sorted_f_serial,
    "sorted-rate": sorted_rate,
    "phases": phases,
    "staggered": staggered,
    "guided": guided,
    "horizon": horizon,
    "one-bit": one_bit,
    "dp": dp,
    "milp": milp,
    "cpsat": cpsat,
    "exact": exact,
    **{name: partial(run_order, name, "strict") for name in KEYS},
    **{f"{name}-skip": partial(run_order, name, "skip") for name in KEYS},
    **{f"{name}-pack": partial(run_order, name, "pack") for name in KEYS},
    "mc-sf": partial(run_order, "sof", "strict"),
    **{name: partial(run_measured, name, "strict") for name in MEASURED},
    **{f"{name}-skip": partial(run_measured, name, "skip") for name in MEASURED},
    **{f"{name}-pack": partial(run_measured, name, "pack") for name in MEASURED},
}

RULES = {
    "strict": "head of line, exact look-ahead check",
    "skip": "in every round, whoever fits starts",
    "pack": "serial earliest fit",
}


DESCRIPTIONS = {
    "fcfs": "first come, first served",
    "sof": "shortest output first",
    "lof": "longest output first",
    "total-size": "smallest peak (prompt + output) first",
    "svf": "smallest volume first",
    "best-fit": "largest peak first",
    "random": "a random order by seed",
    "svf-seconds": "smallest share of the machine's seconds first, by --param cost=NAME",
}


def summary(name: str) -> str:
    """Return one line that says what a solver does."""
    solver = SOLVERS[name]
    if isinstance(solver, partial):
        order, rule = solver.args
        published = "the published name of sof: " if name == "mc-sf" else ""
        return f"{published}{DESCRIPTIONS[order]}; {RULES[rule]}"
    return (solver.__doc__ or "").strip().splitlines()[0]
