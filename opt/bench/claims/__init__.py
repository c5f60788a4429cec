"""Published claims, each with what it is held against; a new one is a module with a `Claim` and a line in `CLAIMS`."""

from __future__ import annotations

from opt.bench.claims.backlog import SORTED_F
from opt.bench.claims.chunks import SLOWEAVE
from opt.bench.claims.claim import Claim
from opt.bench.claims.deflection import KAIROS
from opt.bench.claims.groups import FEATHER

__all__ = ["CLAIMS", "Claim"]

CLAIMS: dict[str, Claim] = {claim.name: claim for claim in (SORTED_F, FEATHER, KAIROS, SLOWEAVE)}
