"""How bad a policy can be: families with closed forms for the policy and for a better schedule.

A `Trap` gives, for a family of `instances.families`, the total latency of the policy and of an explicit better schedule
as formulas in a size r, which fixes the memory, and a number c of copies. `claim_of` turns it into a claim: the formulas
against the real packer and the certifier, their quotient's limit (many copies first, then large memory), its growth
measured, one instance of at most 10,000 requests with a ratio above 5, and small instances against the true optimum.
The optimum is at most the better schedule, so every ratio is a lower bound on the policy's worst case.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import sympy as sp

from instances import generate
from opt.core.certify import check_schedule
from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.solvers.door import solve
from opt.solvers.registry import SOLVERS
from proofs.claim import Claim, Finding, Reference, Step
from proofs.steps import argued, limit, tested

__all__ = ["Phase", "Trap", "c", "claim_of", "half", "latency_of", "r", "timetable", "upto"]

r, c = sp.symbols("r c", positive=True, integer=True)
half = sp.Rational(1, 2)

Size: TypeAlias = tuple[int, int]  # r and c

MANY = 10_000  # requests, at most, in an instance that shows a ratio above ENOUGH
ENOUGH = 5


class Phase(NamedTuple):
    """A stretch of a timetable: all requests of one shape, `batch` at a time, a batch every `period` rounds."""

    prompt: int | None  # None: any
    output: int
    batch: int
    period: int
    offsets: tuple[int, ...] = (0,)  # of the members of a batch from its start, cyclically


@dataclass(frozen=True)
class Trap:
    """A family on which policies do badly, with formulas in `r` (size) and `c` (copies).

    Args:
        name: the claim's name.
        title: what grows without bound.
        family: its name in `FAMILIES`.
        policies: names in `SOLVERS` that all take `slow`.
        memory: the budget as a formula in r.
        count: the number of requests.
        slow: total latency of the policies, exact; a lower bound on it where `exact` is False.
        fast: total latency of the better schedule.
        schedule: the better schedule's phases for given r and c, one after another.
        why_slow, why_fast: the arguments behind the two formulas.
        constant, exponent: the quotient grows like constant * memory**exponent.
        sizes: the (r, c) at which both formulas are compared with real schedules.
        growth: the (r, c) from which the exponent is measured.
        witness: an (r, c) with a ratio above 5, None for a policy that this family does not ruin.
        small: (r, c) small enough to search for the optimum.
        hypotheses: what the family needs beyond the model, such as ties.
        copies: the limit is taken as c tends to infinity, then r; False where c is 1 throughout.
        quotient: steps on the quotient's growth where it is no power of the memory; then `at_least` states the bound.
    """

    name: str
    title: str
    family: str
    policies: tuple[str, ...]
    memory: Any
    count: Any
    slow: Any
    fast: Any
    schedule: Callable[[int, int], Sequence[Phase]]
    why_slow: str
    why_fast: str
    constant: Any
    exponent: Any
    sizes: tuple[Size, ...]
    growth: tuple[Size, ...]
    witness: Size | None
    small: tuple[Size, ...]
    hypotheses: tuple[str, ...] = field(default=("offline: all requests are there at round 0",))
    copies: bool = True
    exact: bool = True
    quotient: tuple[Step, ...] = ()
    at_least: str = ""


def upto(n: Any) -> Any:
    """Return 1 + 2 + .. + n."""
    return n * (n + 1) / 2


def claim_of(trap: Trap) -> Claim:
    """Return the claim that the trap's policies can take about `constant * memory**exponent` times too long."""
    bound = trap.at_least or str(trap.constant * sp.Symbol("M") ** trap.exponent).replace("**", "^")
    return Claim(
        trap.name,
        f"{trap.title}: {', '.join(trap.policies)} can take at least about {bound} times the optimum",
        trap.hypotheses,
        (Reference("families and closed forms of this project", "new"),),
        (*_formulas(trap), *(trap.quotient or _quotient(trap)), *_shown(trap)),
    )


def instance_of(trap: Trap, size: Size) -> Instance:
    """Return the family's instance of a size."""
    return generate(trap.family, n=_at(trap.count, size), memory=_at(trap.memory, size))


def latency_of(instance: Instance, policy: str) -> int:
    """Return the certified total latency of a policy, straight from its packer."""
    start = SOLVERS[policy](instance, seed=0, time_limit=None).start
    assert start is not None, f"{policy} gives up only where it has a time limit"
    return check_schedule(instance, start).total_latency


def timetable(instance: Instance, phases: Sequence[Phase]) -> IntArray:
    """Return the starts of phases one after another, each once the last request of the one before has ended.

    Raises:
        ValueError: the phases leave out a request.
    """
    start = np.full(instance.n, -1, np.int64)
    now = 0
    for phase in phases:
        same = True if phase.prompt is None else instance.prompt == phase.prompt
        mine = np.flatnonzero(same & (instance.output == phase.output))
        if len(mine):
            rank = np.arange(len(mine))
            offset = np.resize(phase.offsets, phase.batch)[rank % phase.batch]
            start[mine] = now + rank // phase.batch * phase.period + offset
            now = int(start[mine].max()) + phase.output
    if (start < 0).any():
        raise ValueError(f"request {int(np.argmin(start))} is in no phase")
    return start


def _at(formula: Any, size: Size) -> int:
    value = sp.sympify(formula).subs({r: size[0], c: size[1]})
    if not value.is_Integer:
        raise ValueError(f"{formula} is {value}, no integer, at r = {size[0]}, c = {size[1]}")
    return int(value)


def _show(formula: Any) -> str:
    return str(sp.expand(formula)).replace("**", "^")


def _formulas(trap: Trap) -> tuple[Step, Step]:
    """Both closed forms, for every size tried, against schedules that the certifier has passed."""

    def slow(case: tuple[Size, str]) -> bool | str:
        size, policy = case
        found, formula = latency_of(instance_of(trap, size), policy), _at(trap.slow, size)
        holds = found == formula if trap.exact else found >= formula
        return holds or f"the packer takes {found}, the formula says {formula}"

    def fast(size: Size) -> bool | str:
        found, formula = better_latency(trap, size), _at(trap.fast, size)
        return found == formula or f"the schedule takes {found}, the formula says {formula}"

    def cases() -> Iterator[tuple[Size, str]]:
        return ((size, policy) for size in trap.sizes for policy in trap.policies)

    relation = "exactly" if trap.exact else "at least"
    return (
        argued(
            f"the policy's total latency is {relation} {_show(trap.slow)}",
            cases,
            slow,
            domain=f"{trap.family}, M from {_at(trap.memory, trap.sizes[0])} to {_at(trap.memory, trap.sizes[-1])}, real packer",
            because=trap.why_slow,
        ),
        argued(
            f"a better schedule has {_show(trap.fast)}",
            lambda: iter(trap.sizes),
            fast,
            domain="the same instances, schedules certified",
            because=trap.why_fast,
        ),
    )


def better_latency(trap: Trap, size: Size) -> int:
    """Return the certified total latency of the better schedule; CertificateError where it does not fit."""
    instance = instance_of(trap, size)
    return check_schedule(instance, timetable(instance, trap.schedule(*size))).total_latency


def _quotient(trap: Trap) -> tuple[Step, ...]:
    ratio = sp.together(trap.slow / trap.fast)
    scale = trap.memory**trap.exponent
    if not trap.copies:
        return (limit("their quotient grows as stated", ratio.subs(c, 1) / scale, r, trap.constant),)
    many = sp.limit(ratio, c, sp.oo)
    return (
        limit("with ever more copies their quotient tends to a function of the size", ratio, c, many),
        limit("which grows as stated", sp.simplify(many) / scale, r, trap.constant),
    )


def _shown(trap: Trap) -> tuple[Step, ...]:
    """What can be seen: the exponent, one large ratio, and how bad the policy is against the optimum itself."""
    steps = []
    if trap.growth:
        steps.append(
            tested(
                f"the measured exponent is within 10 % of {trap.exponent}",
                lambda: [[(math.log(_at(trap.memory, size)), math.log(measured(trap, size))) for size in trap.growth]],
                lambda points: _slope_is(trap.exponent, points),
                domain=f"slope of log ratio over log M, {len(trap.growth)} sizes, certified schedules, {trap.policies[0]}",
            )
        )
    if trap.witness is not None:
        steps.append(Step(f"with at most {MANY:,} requests the ratio passes {ENOUGH}", lambda: _witness(trap)))
    if trap.small:
        steps.append(Step("on small instances the optimum itself is known", lambda: _against_optimum(trap)))
    return tuple(steps)


def measured(trap: Trap, size: Size) -> float:
    """Return the certified ratio of the first policy to the better schedule."""
    return latency_of(instance_of(trap, size), trap.policies[0]) / better_latency(trap, size)


def _slope_is(exponent: Any, points: list[tuple[float, float]]) -> bool | str:
    slope = float(np.polyfit([x for x, _ in points], [y for _, y in points], 1)[0])
    return abs(slope - float(exponent)) <= 0.1 * float(exponent) or f"the slope is {slope:.3f}, not near {exponent}"


def _witness(trap: Trap) -> Finding:
    assert trap.witness is not None
    count, ratio = _at(trap.count, trap.witness), measured(trap, trap.witness)
    shows = f"{trap.family} with M = {_at(trap.memory, trap.witness):,}: {count:,} requests, ratio {ratio:.2f}, certified"
    return Finding(ratio > ENOUGH and count <= MANY, "exhaustive", shows, 1)


def _against_optimum(trap: Trap) -> Finding:
    """Solve the small instances exactly; the optimum may not be above the better schedule."""
    shown, holds = [], True
    for size in trap.small:
        instance = instance_of(trap, size)
        solved = solve(instance, "exact", time_limit=60, bound=None)
        best, slow = solved.total_latency, latency_of(instance, trap.policies[0])
        holds &= solved.status == "optimal" and best is not None and best <= better_latency(trap, size)
        shown.append(f"{slow}/{best} at M = {instance.memory}, n = {instance.n}")
    return Finding(holds, "tested", f"{trap.policies[0]} against the optimum: {'; '.join(shown)}", len(shown))
