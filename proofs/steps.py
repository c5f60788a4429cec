"""The ways to check a step: identity, inequality, limit, and cases tried one by one.

Each function returns a `Step` for a `Claim`; nothing is computed before the claim is run. Formulas are sympy
expressions with exact numbers. Cases come from a function, so that a claim costs nothing until it is proved; a law
takes a case and returns whether it holds (True), or a sentence on what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import sympy as sp

from proofs.claim import Finding, Kind, Step
from proofs.nonnegative import Range, counterexample, is_nonnegative

__all__ = ["argued", "exhaustive", "growth", "identity", "inequality", "limit", "numeric", "tested"]

Case = TypeVar("Case")
Cases = Callable[[], Iterable[Case]]
Law = Callable[[Case], "bool | str"]


def identity(says: str, left: Any, right: Any, *, because: str = "") -> Step:
    """Return a step that holds if `left` and `right` are the same function of their symbols."""

    def check() -> Finding:
        difference = sp.sympify(left) - sp.sympify(right)
        if _vanishes(difference):
            return Finding(True, "symbolic", f"{_show(left)} = {_show(right)}")
        return Finding(False, "symbolic", f"{_show(left)} is not {_show(right)}; they differ by {_show(sp.factor(difference))}")

    return Step(says, check, because)


def inequality(says: str, large: Any, small: Any, where: Sequence[Range], *, strict: bool = False, because: str = "") -> Step:
    """Return a step that holds if `large >= small` on a domain.

    Args:
        says: the step in words.
        large, small: expressions in the symbols of `where`.
        where: (symbol, low, high or None) each; a bound may use the symbols before it. Every value in between counts,
            not only integers.
        strict: `large > small` is meant, and shown with a margin: a small number over a product of 1 + symbol**2.
        because: words, where the domain needs some.

    A finding is symbolic if a proof was found. If none was, and no counter-example either, it is only numeric.
    """

    def check() -> Finding:
        difference = sp.sympify(large) - sp.sympify(small)
        relation = f"{_show(large)} {'>' if strict else '>='} {_show(small)} for {_domain(where)}"
        point = counterexample(difference, where, strict=strict)
        if point is not None:
            value = difference.subs(point)
            return Finding(False, "symbolic", f"not {relation}: at {_point(point)} they differ by {_show(value)}")
        how = is_nonnegative(difference, where)
        if how and strict:
            how = _nowhere_zero(difference, where)
        if how:
            return Finding(True, "symbolic", f"{relation} ({how})")
        return Finding(True, "numeric", f"{relation}: no proof found, and no counter-example")

    return Step(says, check, because)


def limit(says: str, expression: Any, symbol: Any, value: Any, *, at: Any = sp.oo, because: str = "") -> Step:
    """Return a step that holds if the expression tends to `value` as the symbol tends to `at`."""

    def check() -> Finding:
        found = sp.limit(sp.sympify(expression), symbol, at)
        holds = found == value or (found.is_finite is not False and _vanishes(found - value))
        shows = f"{_show(expression)} tends to {_show(found)} as {symbol} tends to {at}"
        return Finding(bool(holds), "symbolic", shows if holds else f"{shows}, not to {_show(value)}")

    return Step(says, check, because)


def growth(says: str, expression: Any, symbol: Any, constant: Any, exponent: Any, *, because: str = "") -> Step:
    """Return a step that holds if the expression grows like `constant * symbol**exponent`."""
    return limit(says, sp.sympify(expression) / symbol**exponent, symbol, constant, because=because)


def exhaustive(says: str, cases: Cases[Case], law: Law[Case], *, domain: str, because: str = "") -> Step:
    """Return a step about finitely many cases, all of which are tried; `domain` says which they are."""
    return _tried(says, cases, law, "exhaustive", domain, because)


def argued(says: str, cases: Cases[Case], law: Law[Case], *, domain: str, because: str) -> Step:
    """Return a step whose proof is the words `because`; the cases only try it."""
    if not because:
        raise ValueError(f"{says}: an argued step needs its argument")
    return _tried(says, cases, law, "argued", domain, because)


def tested(says: str, cases: Cases[Case], law: Law[Case], *, domain: str, because: str = "") -> Step:
    """Return a cross-check of what other steps prove; it can refute the claim and proves nothing by itself."""
    return _tried(says, cases, law, "tested", domain, because)


def numeric(says: str, cases: Cases[Case], law: Law[Case], *, domain: str, because: str = "") -> Step:
    """Return a step that is believed only because of the cases tried: it makes the whole claim numeric only."""
    return _tried(says, cases, law, "numeric", domain, because)


def _tried(says: str, cases: Cases[Case], law: Law[Case], kind: Kind, domain: str, because: str) -> Step:
    def check() -> Finding:
        count = 0
        for count, case in enumerate(cases(), 1):
            verdict = law(case)
            if isinstance(verdict, str) or not verdict:
                reason = f": {verdict}" if isinstance(verdict, str) else ""
                return Finding(False, kind, f"fails for {case}{reason}", count)
        if not count:
            return Finding(False, kind, f"no case was tried of {domain}")
        return Finding(True, kind, f"{domain}: {count:,} cases", count)

    return Step(says, check, because)


def _vanishes(difference: Any) -> bool:
    return bool(sp.simplify(difference) == 0 or sp.expand(sp.together(difference)) == 0)


def _nowhere_zero(difference: Any, where: Sequence[Range]) -> str | None:
    """Return how `difference > 0` is known: it stays above something positive."""
    for share in (sp.Rational(1, 10**k) for k in (0, 1, 2, 4, 8)):
        scale = sp.Integer(1)
        for symbol, _, high in where:
            scale = scale * (1 + symbol**2) if high is None else scale
        how = is_nonnegative(difference - share / scale, where)
        if how:
            return how
    return None


def _show(expression: Any) -> str:
    return str(sp.sympify(expression)).replace("**", "^")


def _domain(where: Sequence[Range]) -> str:
    return ", ".join(f"{symbol} in [{_show(low)}, {'oo)' if high is None else _show(high) + ']'}" for symbol, low, high in where)


def _point(point: Mapping[Any, Any]) -> str:
    return ", ".join(f"{symbol} = {_show(value)}" for symbol, value in point.items())
