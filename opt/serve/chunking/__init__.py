"""Deadline-aware chunking of prompts: how many prompt tokens a step may take beside its decodes.

Policies for the engine of `opt.sim`: published ones (`rivals`) and our own (`banked`). Each is a function (requests,
config, *, seed, **params) -> Policy with an entry in `opt.sim.policies.POLICIES`.

Invariants (each has a test):
    C1. Under the policies in `SAFE`, in every step: whoever's next token the decodes alone would have brought by its due
        time has it by then, if the cost model is the engine's own. For due times "gap" and "own" that is: no step breaks a
        target for every gap that a feasible chunk, or none, would have kept.
    C2. Under those whose due times are "own": where decodes alone always keep their due times and nobody is preempted, every
        request meets its targets for the mean gap and for every gap, whatever its output turns out to be.
    C3. All decode in every step, and nobody idles beside work.
"""

from __future__ import annotations

from opt.serve.chunking.banked import banked_slack
from opt.serve.chunking.rivals import fair_batching, fixed_chunk, full_prefill, qoserve, sloweave, two_step

__all__ = ["SAFE", "banked_slack", "fair_batching", "fixed_chunk", "full_prefill", "qoserve", "sloweave", "two_step"]

# Names in `POLICIES`, and the due times in `targets.DUE` that each claims to keep.
SAFE: dict[str, str] = {
    "sloweave": "gap",
    "sloweave-shared": "gap",
    "fair-batching": "arrival",
    "fair-batching-own": "own",
    "qoserve": "arrival",
    "qoserve-own": "own",
    "two-step": "own",
    "banked-slack": "own",
}
