"""A tree of start windows, with prices at its nodes: a proof that no schedule is better than a given value.

Suppose a schedule had a total latency of at most `value - 1`. Waiting sums to at most W = value - 1 - (sum of outputs), so
every request starts within W rounds of its arrival. Any prices (see `opt.core.priced`) narrow that further: with m_i the
least bracket of request i over the starts still open to it, and L = (sum of m_i) - M * (sum of prices) - (sum of arrivals)
the bound they prove there, a start whose bracket exceeds m_i by more than `value - 1 - L` cannot be in that schedule. Where
some request has no start left, there is no such schedule. A node of the tree applies prices, or splits: request i starts
at round x or before, or after it; both halves have to be closed. All of it is integer arithmetic.

The certificate lists the nodes in preorder: a list of integers is prices for rounds 1, 2, ..., and `{"split": [i, x]}` opens
two subtrees, the earlier starts first. A subtree ends as soon as a request has no start left.
"""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.errors import CertificateError
from opt.core.exact import exact_sum
from opt.core.instance import Instance

__all__ = ["MAX_CELLS", "MAX_WORK", "Brackets", "Open", "halved", "tree_value"]

MAX_CELLS = 5 * 10**6  # (request, start) pairs of a tree
MAX_WORK = 3 * 10**9  # cells looked at in a check: about half a minute

Open = npt.NDArray[np.bool_]  # (n, W + 1): which waits are still open to each request


class Brackets:
    """Every request with every wait of `0 .. waits`, ready to be priced.

    Args:
        instance: the requests, with arrivals in rounds.
        waits: the longest wait looked at.
    """

    def __init__(self, instance: Instance, waits: int) -> None:
        self.memory = instance.memory
        self.begin: IntArray = instance.arrival[:, None] + np.arange(waits + 1)
        self.end: IntArray = self.begin + instance.output[:, None]
        self.latency: IntArray = self.end - instance.arrival[:, None]
        self.weight: IntArray = instance.prompt[:, None] - self.begin
        self.rounds = int(self.end.max(initial=0))

    def priced(self, price: IntArray, scale: int, open_: Open) -> tuple[IntArray, int]:
        """Return how far each bracket (n, W + 1) lies above the least open one, and the bound; both times `scale`.

        Raises:
            CertificateError: numbers so large that 64 bits could not hold them.
        """
        whole = np.zeros(self.rounds + 1, np.int64)
        used = min(len(price), self.rounds)
        whole[1 : used + 1] = price[:used]
        most = self.memory * sum(whole.tolist()) + scale * (self.rounds + 1)
        if most * len(self.begin) >= 2**62 or most * self.rounds >= 2**62:
            raise CertificateError("prices and scale are too large for an exact check in 64 bits; use a smaller scale")
        total, moment = np.cumsum(whole), np.cumsum(whole * np.arange(self.rounds + 1))
        bracket = scale * self.latency + moment[self.end] - moment[self.begin]
        bracket += self.weight * (total[self.end] - total[self.begin])
        least = np.where(open_, bracket, 2**62).min(axis=1)
        return bracket - least[:, None], int(least.sum()) - self.memory * int(total[-1])

    def narrowed(self, price: IntArray, scale: int, open_: Open, value: int) -> tuple[Open, int]:
        """Return which open starts a schedule of total latency below `value` may have, and the bound times `scale`."""
        above, bound = self.priced(price, scale, open_)
        return open_ & (above <= scale * (value - 1) - bound), bound


def tree_value(instance: Instance, certificate: Mapping[str, Any]) -> Fraction:
    """Return what a certificate of kind "tree" proves: its `value`, if every leaf of its `nodes` closes.

    Raises:
        CertificateError: malformed, too large to check, or a leaf stays open.
    """
    value, scale, nodes = certificate.get("value"), certificate.get("scale"), certificate.get("nodes")
    if type(value) is not int or type(scale) is not int or not 1 <= scale < 2**40 or not isinstance(nodes, list):
        raise CertificateError("a tree certificate has an integer value, a scale from 1 to 2**40 and a list of nodes")
    waits = value - 1 - exact_sum(instance.output)
    if waits < 0:
        return Fraction(value)
    cells = instance.n * (waits + 1)
    if cells > MAX_CELLS or cells * len(nodes) > MAX_WORK:
        raise CertificateError(f"a tree of {len(nodes):,} nodes over {cells:,} starts is too large to check")
    _check_closed(instance, Brackets(instance, waits), value, scale, nodes)
    return Fraction(value)


def _check_closed(instance: Instance, brackets: Brackets, value: int, scale: int, nodes: list[Any]) -> None:
    """Raise unless the nodes close every window."""
    pending: list[Open] = [np.ones(brackets.begin.shape, np.bool_)]
    for at, node in enumerate(nodes):
        if not pending:
            raise CertificateError(f"nodes[{at}] comes after the last leaf of the tree")
        here = pending.pop()
        if isinstance(node, dict):
            early, late = halved(brackets, here, *_split(node, at, instance.n))
            pending += [part for part in (late, early) if part.any(axis=1).all()]
            continue
        here, _bound = brackets.narrowed(_price(node, at), scale, here, value)
        if here.any(axis=1).all():
            pending.append(here)
    if pending:
        raise CertificateError(f"the tree leaves {len(pending)} of its leaves open; it does not prove {value}")


def halved(brackets: Brackets, here: Open, i: int, x: int) -> tuple[Open, Open]:
    """Return the open starts when request i starts at round x or before, and when it starts after."""
    early, late = here.copy(), here.copy()
    early[i] &= brackets.begin[i] <= x
    late[i] &= brackets.begin[i] > x
    return early, late


def _split(node: dict[str, Any], at: int, n: int) -> tuple[int, int]:
    cut = node.get("split")
    if not isinstance(cut, list) or len(cut) != 2 or any(type(number) is not int for number in cut) or not 0 <= cut[0] < n:
        raise CertificateError(f"nodes[{at}] must be a list of prices or {{'split': [request index, round]}}")
    return cut[0], cut[1]


def _price(node: Any, at: int) -> IntArray:
    if not isinstance(node, list) or any(type(price) is not int or not 0 <= price < 2**53 for price in node):
        raise CertificateError(f"nodes[{at}]: prices are integers from 0 to 2**53; a negative price proves nothing")
    return np.array(node, np.int64)
