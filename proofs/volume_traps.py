"""The families on which smallest volume first fails: ties, or volumes that alternate in shape, or a head that is skipped."""

from __future__ import annotations

import sympy as sp

from proofs.claim import OFFLINE, STRICT, TIES
from proofs.unbounded import Phase, Trap, c, half, r, upto

__all__ = ["ONE_BIT", "SKIP_AHEAD", "SVF", "SVF_NO_TIES", "SVF_SMALL"]


SKIP_AHEAD = Trap(
    name="skipping-ahead-unbounded",
    title="who skips a blocked head lets long requests slip in before short ones",
    family="skip-ahead-trap",
    policies=("svf-skip", "sof-skip", "total-size-skip"),
    memory=r**2,
    count=c * (r + 1),
    slow=r**2 * upto(c - 1) + c + r**2 * upto(c) + (c * r - c) * c * r**2 + upto(c * r - c),
    fast=upto(c * r) + c * r * c + r**2 * upto(c),
    schedule=lambda r, c: (Phase(r * r - 2, 1, 1, 1), Phase(0, r * r, 1, r * r)),
    why_slow="a fat one starts and leaves one token, so a thin one slips in and keeps all fat ones out for M rounds; and so on "
    "until there is no thin one left",
    why_fast="the fat ones first, then the thin ones",
    constant=sp.Integer(1),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 3, 5, 8, 12) for copies in (1, 2, 4, 7)),
    growth=tuple((k, 40) for k in (6, 8, 12, 16, 24, 32)),
    witness=(10, 20),
    small=((2, 2), (2, 3), (3, 1)),
    hypotheses=(OFFLINE, "in every round whoever fits starts, in order"),
)

ONE_BIT = Trap(
    name="one-bit-unbounded",
    title="smallest volume first with one bit known of each output",
    family="one-bit-trap",
    policies=("one-bit",),
    memory=r * (r + 1),
    count=c * (2 * r + 1),
    slow=(r + 1) * upto(c) - c + c * r * (c - 1) + (r + 1) * upto(c * r) + (c - 1) + c * r * (r + 1) + r * (r + 1),
    fast=(r + 1) * upto(c) - c + r * (c * c + (r + 1) * upto(c)) + c + c * (r + 1) + r * (r + 1),
    schedule=lambda r, c: (Phase(0, 1, r + 1, 1), Phase(0, r + 1, r, r + 1), Phase(0, r * (r + 1), 1, 1)),
    why_slow="the median output is 1 and the cap M, so outputs above q = isqrt(M) are long: each of q + 1 reserves M and none "
    "run together; the short ones, which go first, reserve q each, q + 1 a round, and one long one starts beside the last q",
    why_fast="the long ones q at a time, which fill the memory in their last round",
    constant=sp.Integer(1),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 3, 5, 8, 12) for copies in (2, 3, 7)),
    growth=tuple((k, 20) for k in (40, 50, 60, 80, 100)),
    witness=(10, 20),
    small=((2, 2),),
    hypotheses=(OFFLINE, "the threshold is the default, the geometric mean of the median output and the cap"),
)

SVF = Trap(
    name="svf-unbounded",
    title="smallest volume first, ties against it, when peaks reach the memory",
    family="svf-trap-strong",
    policies=("svf",),
    memory=upto(r) + r + 1,
    count=2 * c,
    slow=c * c * (r + 1) + c * r,
    fast=2 * c * c + c * r,
    schedule=lambda r, c: (Phase(r * (r + 3) // 2 - 1, 1, 1, 1), Phase(1, r, 1, 1)),
    why_slow="fat and thin ones of one volume alternate, and neither fits beside the other: a pair takes L + 1 rounds",
    why_fast="the fat ones first; then a thin one starts every round: ages 1 .. L hold 2 + 3 + .. + (L + 1) = M - 1 together",
    constant=1 / sp.sqrt(2),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 3, 4, 7, 10, 20) for copies in (1, 3, 10, 40)),
    growth=tuple((k, 4000) for k in (20, 30, 45, 60, 90)),
    witness=(20, 200),
    small=((2, 3), (3, 3), (4, 3), (4, 4)),
    hypotheses=(OFFLINE, STRICT, TIES, "some peak reaches the memory but one token"),
)

SVF_SMALL = Trap(
    name="svf-unbounded-once",
    title="smallest volume first, ties against it, L pairs",
    family="svf-trap",
    policies=("svf",),
    memory=upto(2 * r) + 2 * r + 1,
    count=4 * r,
    slow=(2 * r) ** 2 * (2 * r + 2),
    fast=upto(2 * r) + (2 * r) ** 2 + 3 * r * 2 * r,
    schedule=lambda r, c: (Phase(r * (2 * r + 3) - 1, 1, 1, 1), Phase(1, 2 * r, r, 2 * r)),
    why_slow="with L = 2r: fat and thin ones of one volume alternate, and a pair takes L + 1 rounds",
    why_fast="the fat ones first, then the thin ones in two batches of L/2",
    constant=sp.sqrt(2) / 3,
    exponent=half,
    sizes=tuple((k, 1) for k in (*range(1, 12), 30)),
    growth=tuple((k, 1) for k in (20, 30, 45, 60, 90)),
    witness=(12, 1),
    small=((1, 1), (2, 1)),
    copies=False,
    hypotheses=(OFFLINE, STRICT, TIES, "some peak reaches the memory but one token"),
)

SVF_NO_TIES = Trap(
    name="svf-unbounded-no-ties",
    title="smallest volume first, all volumes distinct, when peaks reach the memory",
    family="svf-trap-no-ties",
    policies=("svf",),
    memory=r**3 + r**2 + upto(r) + 2,
    count=2 * r,
    slow=r**2 * (r + 2),
    fast=upto(r) + 2 * r * r,
    schedule=lambda r, c: (Phase(None, 1, 1, 1), Phase(None, r, r, 1)),
    why_slow="volumes rise thin, fat, thin, fat, by 1 and L - 1 in turn; none fit together: pairs of L + 1 rounds",
    why_fast="the fat ones first, then all thin ones together",
    constant=sp.Rational(2, 5),
    exponent=sp.Rational(1, 3),
    sizes=tuple((k, 1) for k in (2, 3, 5, 8, 13, 20)),
    growth=tuple((k, 1) for k in (40, 60, 90, 120)),
    witness=(16, 1),
    small=((2, 1), (3, 1)),
    copies=False,
    hypotheses=(OFFLINE, STRICT, "some peak reaches the memory but L^2 tokens, L^3 about M"),
)
