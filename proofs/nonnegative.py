"""Proofs that an expression is nowhere negative on a domain, in exact arithmetic.

A domain is a list of ranges (symbol, low, high), `high` None for none; a bound may use the symbols before it, so
triangles such as 0 <= a <= b are domains too. The methods, each sound:

* Each symbol is replaced by a function of a non-negative one: `low + t`, or `(low + high t)/(1 + t)`. If numerator and
  denominator then have coefficients >= 0 only, the quotient is >= 0 in the interior, and where it is continuous on the
  whole domain. Where that fails the domain is cut in two, a bounded number of times.
* Factors of even multiplicity are left out beforehand.
* In one symbol the sign of a rational function is decided: by Sturm's theorem, through the factors of odd multiplicity.
* Otherwise sympy is asked for the sign of each part.
* In one symbol a smooth function (logarithms, roots) is >= 0 if it starts >= 0 and rises, or falls towards a limit >= 0;
  the derivative's sign is decided by the same methods.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, TypeAlias

import sympy as sp

__all__ = ["Range", "counterexample", "is_nonnegative"]

Range: TypeAlias = tuple[Any, Any, Any]  # symbol, low, high or None

CUTS = 400  # cells a domain may be cut into
RISES = 4  # derivatives taken before giving up


def is_nonnegative(expression: Any, ranges: Sequence[Range]) -> str | None:
    """Return how `expression >= 0` was proved on the whole domain, or None where it was not.

    Args:
        expression: a sympy expression in the symbols of `ranges` and no others.
        ranges: (symbol, low, high or None) each; a bound may use the symbols before it.

    Raises:
        ValueError: the expression has a symbol without a range, or floating-point numbers.
        ArithmeticError: it is negative somewhere inside the domain.
    """
    expression = _sound(expression, ranges)
    if not expression.free_symbols:
        return "a number" if _sign(expression) >= 0 else None
    if _rational(expression, [r[0] for r in ranges]):
        expression = _without_squares(expression, [r[0] for r in ranges])
        return _by_coefficients(expression, list(ranges)) or _by_sturm(expression, list(ranges))
    return _by_signs(expression, ranges) or _by_derivatives(expression, list(ranges), RISES)


def counterexample(expression: Any, ranges: Sequence[Range], *, strict: bool = False) -> dict[Any, Any] | None:
    """Return a point of the domain where the expression is negative (or zero, if strict), among some hundred tried."""
    expression = _sound(expression, ranges)
    for fractions in _grid(len(ranges)):
        point = _place(ranges, fractions)
        value = expression.subs(point)
        if value.is_finite and (_sign(value) < 0 or (strict and _sign(value) == 0)):
            return point
    return None


def _sound(expression: Any, ranges: Sequence[Range]) -> Any:
    """Return the expression for sympy, or refuse one with floats or with symbols nobody has bounded."""
    expression = sp.sympify(expression)
    if expression.has(sp.Float):
        raise ValueError(f"{expression} has floating-point numbers; state it with exact ones")
    free = expression.free_symbols - {r[0] for r in ranges}
    if free:
        raise ValueError(f"no range is given for {', '.join(sorted(map(str, free)))}")
    return expression


def _grid(symbols: int) -> list[tuple[Any, ...]]:
    """Return positions in [0, 1] along each range, the ends included; fewer along each when there are many symbols."""
    marks = {1: 97, 2: 17, 3: 7}.get(symbols, 4)
    return list(product([sp.Rational(k, marks - 1) for k in range(marks)], repeat=symbols))


def _place(ranges: Sequence[Range], fractions: Sequence[Any]) -> dict[Any, Any]:
    """Return the point at these positions; a range without end is stretched from its low to about a thousand above."""
    point: dict[Any, Any] = {}
    for (symbol, low, high), at in zip(ranges, fractions, strict=True):
        start = sp.sympify(low).subs(point)
        if high is None:
            point[symbol] = start + 1000 * at**3
        else:
            point[symbol] = start + (sp.sympify(high).subs(point) - start) * at
    return point


def _sign(value: Any) -> int:
    """Return the sign of a number, exactly where it is rational and by safe digits otherwise."""
    value = sp.sympify(value)
    if value.is_Rational:
        return int(bool(value > 0)) - int(bool(value < 0))
    digits = sp.N(value, 40)  # evalf works with as many digits as it takes to be sure of 40
    if digits.is_comparable and abs(digits) > sp.Float("1e-30"):
        return 1 if digits > 0 else -1
    if value.equals(0):
        return 0
    return 1 if value.is_positive else -1


def _rational(expression: Any, symbols: Sequence[Any]) -> bool:
    return bool(expression.is_rational_function(*symbols))


def _without_squares(expression: Any, symbols: Sequence[Any]) -> Any:
    """Return a polynomial with the sign of the expression wherever that is not 0: factors of odd multiplicity alone."""
    numerator, denominator = sp.fraction(sp.cancel(sp.together(expression)))
    whole = sp.Poly(numerator * denominator, *symbols)
    if not all(c.is_Rational for c in whole.coeffs()):
        return expression
    leading, factors = whole.factor_list()
    return sp.Mul(leading, *(factor.as_expr() for factor, multiplicity in factors if multiplicity % 2))


def _positive_form(expression: Any, ranges: Sequence[Range]) -> bool:
    """Whether the expression has coefficients >= 0 only once each symbol is a function of a non-negative one."""
    symbols = []
    for symbol, low, high in reversed(ranges):
        t = sp.Dummy(f"t_{symbol}", nonnegative=True)
        symbols.append(t)
        expression = expression.subs(symbol, low + t if high is None else (low + high * t) / (1 + t))
    numerator, denominator = sp.fraction(sp.cancel(sp.together(expression)))
    above, below = ({_sign(c) for c in sp.Poly(part, *symbols).coeffs()} - {0} for part in (numerator, denominator))
    return len(below) == 1 and above <= below


def _by_coefficients(expression: Any, ranges: list[Range]) -> str | None:
    cells, done = [(ranges, 0)], 0
    while cells:
        cell, depth = cells.pop()
        if _positive_form(expression, cell):
            done += 1
            continue
        _refute_inside(expression, cell)
        if done + len(cells) >= CUTS or depth >= 8 * len(ranges):
            return None
        cells += [(half, depth + 1) for half in _halves(cell, depth)]
    return "coefficients >= 0" + (f" in each of {done} cells" if done > 1 else "")


def _refute_inside(expression: Any, cell: Sequence[Range]) -> None:
    point = _place(cell, [sp.Rational(1, 2)] * len(cell))
    value = expression.subs(point)
    if value.is_finite and _sign(value) < 0:
        raise ArithmeticError(f"negative at {', '.join(f'{symbol} = {at}' for symbol, at in point.items())}")


def _halves(cell: Sequence[Range], depth: int) -> list[list[Range]]:
    """Cut one range in two, each symbol in turn; an endless one at twice the distance every time."""
    at = depth % len(cell)
    symbol, low, high = cell[at]
    middle = low + 2 ** (depth // len(cell)) if high is None else (low + high) / sp.Integer(2)
    return [[*cell[:at], part, *cell[at + 1 :]] for part in ((symbol, low, middle), (symbol, middle, high))]


def _by_sturm(expression: Any, ranges: list[Range]) -> str | None:
    """Decide the sign of a rational function of one symbol with rational coefficients, on a range with rational ends."""
    if len(ranges) != 1:
        return None
    symbol, low, high = ranges[0]
    low, high = sp.sympify(low), None if high is None else sp.sympify(high)
    numerator, denominator = sp.fraction(sp.cancel(sp.together(expression)))
    whole = sp.Poly(numerator * denominator, symbol)  # the sign of the quotient is that of the product
    if not all(c.is_Rational for c in whole.coeffs()) or not low.is_Rational or not (high is None or high.is_Rational):
        return None
    for factor, multiplicity in whole.factor_list()[1]:
        inside = factor.count_roots(low, high) - (factor.eval(low) == 0) - (high is not None and factor.eval(high) == 0)
        if multiplicity % 2 and inside:
            raise ArithmeticError(f"it changes sign at a root of {factor.as_expr()} inside the domain")
    end = low + 1 if high is None else high
    probes = (low + (end - low) * sp.Rational(k, 997) for k in range(1, 997))
    value = next(v for v in map(whole.eval, probes) if v != 0)
    if value < 0:
        raise ArithmeticError("it is negative on the whole domain")
    return "Sturm: no change of sign"


def _by_signs(expression: Any, ranges: Sequence[Range]) -> str | None:
    """Ask sympy for the sign of each part, with every symbol at or above its low."""
    for symbol, low, _ in reversed(ranges):
        expression = expression.subs(symbol, low + sp.Dummy(f"t_{symbol}", nonnegative=True))
    return "signs of the parts" if sp.factor_terms(expression).is_nonnegative else None


def _continuous(expression: Any, symbol: Any, low: Any, high: Any) -> bool:
    """Whether nothing that is divided by, rooted or in a logarithm vanishes inside the range, or is negative in the last two."""
    for part in sp.preorder_traversal(expression):
        if isinstance(part, sp.log):
            base, whole = part.args[0], False
        elif part.is_Pow and not (part.exp.is_Integer and part.exp > 0):
            base, whole = part.base, bool(part.exp.is_Integer)
        elif part.is_Add or part.is_Mul or part.is_Pow or part.is_Symbol or part.is_number:
            continue
        else:
            return False
        if symbol in base.free_symbols and not _keeps_sign(base, symbol, low, high, positive=not whole):
            return False
    return True


def _keeps_sign(base: Any, symbol: Any, low: Any, high: Any, *, positive: bool) -> bool:
    """Whether a rational function with rational coefficients has no zero and no pole inside a range with rational ends."""
    low, high = sp.sympify(low), None if high is None else sp.sympify(high)
    if not _rational(base, [symbol]) or not low.is_Rational or not (high is None or high.is_Rational):
        return False
    whole = sp.Poly(sp.Mul(*sp.fraction(sp.cancel(sp.together(base)))), symbol)
    if not all(c.is_Rational for c in whole.coeffs()):
        return False
    ends = (whole.eval(low) == 0) + (high is not None and whole.eval(high) == 0)
    middle = low + 1 if high is None else (low + high) / 2
    return whole.count_roots(low, high) == ends and (not positive or bool(whole.eval(middle) > 0))


def _by_derivatives(expression: Any, ranges: list[Range], rises: int) -> str | None:
    if len(ranges) != 1 or rises == 0:
        return None
    symbol, low, high = ranges[0]
    if not _continuous(expression, symbol, low, high):
        return None  # a pole would let a rising function start again from below
    slope = sp.simplify(sp.diff(expression, symbol))
    if _sign(sp.limit(expression, symbol, low, "+")) >= 0 and _somehow(slope, ranges, rises - 1):
        return "starts >= 0 and rises"
    end = sp.limit(expression, symbol, sp.oo) if high is None else sp.limit(expression, symbol, high, "-")
    if (end == sp.oo or _sign(end) >= 0) and _somehow(-slope, ranges, rises - 1):
        return "falls towards a limit >= 0"
    return None


def _somehow(expression: Any, ranges: list[Range], rises: int) -> str | None:
    """As `is_nonnegative`, for a derivative: where that is negative, another way may still be open."""
    if not expression.free_symbols:
        return "a number" if _sign(expression) >= 0 else None
    if _rational(expression, [ranges[0][0]]):
        try:
            return _by_coefficients(expression, ranges) or _by_sturm(expression, ranges)
        except ArithmeticError:
            return None
    return _by_signs(expression, ranges) or _by_derivatives(expression, ranges, rises)
