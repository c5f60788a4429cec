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
    """A claim by its place: `title` is one line, `home` the module and function that build it.

    Listing the claims loads neither sympy nor a solver; `load` does.
    """

    title: str
    home: str

    def load(self) -> Claim:
        """Return the claim."""
        module, function = self.home.split(":")
        claim: Claim = getattr(importlib.import_module(module), function)()
        return claim


CLAIMS: dict[str, Entry] = {
    "hardness": Entry("least total latency is strongly NP-hard, even with one output token each", "proofs.hardness:hardness"),
}
