"""What a theorem is here: a statement with its hypotheses and sources, and steps that run.

A step is believed for one of five reasons, its *kind*:

* `symbolic`: sympy has shown an identity or a limit, or `proofs.nonnegative` an inequality, for all values in question;
* `exhaustive`: every case of a finite domain was tried, and the step speaks of no other;
* `argued`: a proof in words, which `kvopt prove NAME` prints, and which was tried on the stated cases;
* `tested`: a cross-check of what other steps prove, on finitely many cases; it can refute and proves nothing;
* `numeric`: finitely many cases stand in for a proof that is missing.

A claim is `refuted` when a step fails, `numeric only` when none does and some step is numeric, else `established`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["OFFLINE", "STRICT", "TIES", "Claim", "Finding", "Kind", "Outcome", "Reference", "Report", "Step", "prove"]

Kind: TypeAlias = Literal["symbolic", "exhaustive", "argued", "tested", "numeric"]
Outcome: TypeAlias = Literal["established", "numeric only", "refuted"]

OFFLINE = "offline: all requests are there at round 0"
STRICT = "strict head of line with the exact look-ahead check"
TIES = "ties are broken by arrival, that is, by the adversary"

PROVING: tuple[Kind, ...] = ("symbolic", "exhaustive", "argued")


@dataclass(frozen=True)
class Reference:
    """Where a claim or its proof comes from; `standing` says whether it has been published or is new here."""

    text: str
    standing: Literal["published", "new"]


@dataclass(frozen=True)
class Finding:
    """What running a step gave.

    Args:
        holds: whether the step stands.
        kind: why it is believed; for a step that fails, how it was looked at.
        shows: one line: what was established, over which domain, or the counter-example.
        cases: how many cases were tried, 0 for a purely symbolic step.
    """

    holds: bool
    kind: Kind
    shows: str
    cases: int = 0


@dataclass(frozen=True)
class Step:
    """One line of a proof: what it says, why (where words are needed), and the check that runs."""

    says: str
    check: Callable[[], Finding]
    because: str = ""


@dataclass(frozen=True)
class Claim:
    """A theorem.

    Args:
        name: its key in `CLAIMS`.
        statement: what holds.
        hypotheses: under which conditions, one each; nothing else is assumed beyond the model in `opt.core.model`.
        references: sources, each said to be published or new.
        steps: the proof, in order.
    """

    name: str
    statement: str
    hypotheses: tuple[str, ...]
    references: tuple[Reference, ...]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Report:
    """What a run established: a finding for each step of the claim, in order."""

    claim: Claim
    findings: tuple[Finding, ...]
    seconds: float

    @property
    def outcome(self) -> Outcome:
        """`refuted`, `numeric only` or `established`; a claim that nothing proves is numeric only."""
        if not all(finding.holds for finding in self.findings):
            return "refuted"
        kinds = {finding.kind for finding in self.findings}
        return "numeric only" if "numeric" in kinds or not kinds & set(PROVING) else "established"

    @property
    def summary(self) -> str:
        """How many steps of each kind, and the first that failed."""
        failed = next((k for k, finding in enumerate(self.findings, 1) if not finding.holds), None)
        if failed is not None:
            return f"step {failed} fails: {self.findings[failed - 1].shows}"
        counts = Counter(finding.kind for finding in self.findings)
        return ", ".join(f"{count} {kind}" for kind, count in counts.items())


def prove(claim: Claim) -> Report:
    """Run every step of a claim; a step whose check raises ValueError or ArithmeticError fails with that message."""
    begun = time.perf_counter()
    findings = tuple(_run(step) for step in claim.steps)
    return Report(claim, findings, time.perf_counter() - begun)


def _run(step: Step) -> Finding:
    try:
        return step.check()
    except (ValueError, ArithmeticError) as error:
        return Finding(False, "tested", f"the check stopped: {error}")
