"""Theorems as objects that run: `kvopt prove` proves them all, `kvopt prove NAME` shows every step.

A new claim is a function that returns a `Claim`, and a line in `CLAIMS`.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from proofs.claim import Claim

__all__ = ["CLAIMS", "Entry"]


@dataclass(frozen=True)
class Entry:
    """A claim by its place: `title` is one line, `home` the module and function that build it from `arguments`.

    Listing the claims loads neither sympy nor a solver; `load` does.
    """

    title: str
    home: str
    arguments: tuple[str, ...] = ()

    def load(self) -> Claim:
        """Return the claim."""
        module, function = self.home.split(":")
        claim: Claim = getattr(importlib.import_module(module), function)(*self.arguments)
        return claim


def _trap(name: str, title: str) -> dict[str, Entry]:
    return {name: Entry(title, "proofs.traps:claim", (name,))}


CLAIMS: dict[str, Entry] = {
    "hardness": Entry("least total latency is strongly NP-hard, even with one output token each", "proofs.hardness:hardness"),
    **_trap("fcfs-unbounded", "first come, first served: 2M/9 times the optimum behind three large requests"),
    **_trap("head-of-line-unbounded", "fcfs, lof, best-fit: M times the optimum, by a lower bound"),
    **_trap("head-of-line-linear", "fcfs, lof, best-fit: M times the optimum, in closed form"),
    **_trap("fcfs-superlinear", "first come, first served: M sqrt(log2(M)/6) times the optimum"),
    **_trap("skipping-unbounded", "fcfs, lof, best-fit and sof with ties: sqrt(M) times the optimum under every rule"),
    **_trap("lof-unbounded", "longest output first without ties: sqrt(M) times the optimum under every rule"),
    **_trap("sof-unbounded", "shortest output first (MC-SF): (15/26) sqrt(M) times the optimum under every rule"),
    **_trap("sof-unbounded-once", "shortest output first (MC-SF): (2/9) sqrt(M) times the optimum with M small requests"),
    **_trap("total-size-unbounded", "smallest prompt + output first: sqrt(M) times the optimum under every rule"),
    **_trap(
        "total-size-unbounded-small-peaks", "smallest prompt + output first, peaks up to M/4: 0.16 sqrt(M) times the optimum"
    ),
    **_trap("svf-unbounded", "smallest volume first, ties against it, peaks up to M: sqrt(M/2) times the optimum"),
    **_trap("svf-unbounded-once", "smallest volume first, ties against it, L pairs: (sqrt(2)/3) sqrt(M) times the optimum"),
    **_trap("svf-unbounded-no-ties", "smallest volume first without ties: 0.4 M^(1/3) times the optimum"),
    **_trap("orders-at-least-two", "every order under every rule: 2 - 1/k times the optimum on equal requests"),
}
