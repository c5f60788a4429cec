"""The families on which standard policies fail, with their formulas; see `proofs.unbounded` for what is checked."""

from __future__ import annotations

import sympy as sp

from opt.solvers.orders import KEYS
from proofs.claim import OFFLINE, STRICT, TIES, Claim
from proofs.steps import identity, inequality, limit
from proofs.unbounded import Phase, Trap, c, claim_of, half, r, upto
from proofs.volume_traps import ONE_BIT, SKIP_AHEAD, SVF, SVF_NO_TIES, SVF_SMALL

__all__ = ["TRAPS", "claim"]

ANY_RULE = "head of line, skipping or serial earliest fit alike"


FCFS = Trap(
    name="fcfs-unbounded",
    title="first come, first served behind three large requests",
    family="fcfs-trap",
    policies=("fcfs",),
    memory=4 * r,
    count=4 * r + 3,
    slow=(4 * r) ** 2 + sp.Rational(11, 2) * 4 * r + 13,
    fast=sp.Rational(9, 2) * 4 * r + 6,
    schedule=lambda r, c: (Phase(1, 1, 2 * r, 1), Phase(2 * r, 2 * r, 1, 2 * r)),
    why_slow="no two large ones overlap, so the M small ones wait for the third, at round M; beside its k-th round there is room "
    "for (M/2 - k)/2 of them, rounded down, and the fifth round takes the last six where M >= 36",
    why_fast="two tokens each, so M/2 small ones a round; then the large ones one after another",
    constant=sp.Rational(2, 9),
    exponent=sp.Integer(1),
    sizes=tuple((k, 1) for k in (*range(9, 30), 100, 1000)),
    growth=tuple((2**k, 1) for k in range(6, 13)),
    witness=(16, 1),
    small=(),
    copies=False,
    hypotheses=(OFFLINE, STRICT),
)

FCFS_STRONG = Trap(
    name="head-of-line-unbounded",
    title="whoever lets long requests go first",
    family="fcfs-trap-strong",
    policies=("fcfs", "lof", "best-fit"),
    memory=r,
    count=c * (r + 1),
    slow=r * upto(c) + c * r * ((c - 1) * r + 1),
    fast=r * upto(c) + c * c + r * upto(c),
    schedule=lambda r, c: (Phase(0, 1, r, 1), Phase(0, r, 1, r)),
    why_slow="each long one fills the memory in its last round, so they run one after another, and no short one starts "
    "before the last long one does, at round (k - 1)M",
    why_fast="M short ones a round for k rounds, then the long ones",
    constant=sp.Integer(1),
    exponent=sp.Integer(1),
    sizes=tuple((m, k) for m in (2, 3, 8, 20, 64, 200) for k in (1, 2, 5, 9)),
    growth=tuple((2**k, 20) for k in range(4, 10)),
    witness=(32, 8),
    small=((3, 2), (4, 2)),
    exact=False,
    hypotheses=(OFFLINE, STRICT),
)

SEALED = Trap(
    name="head-of-line-linear",
    title="whoever lets long requests go first, in closed form",
    family="fcfs-trap-sealed",
    policies=("fcfs", "lof", "best-fit"),
    memory=r,
    count=c * (r + 2),
    slow=r * upto(c) + (c * c * r + upto(c)) + r * (c * c * (r + 1) + upto(c)),
    fast=r * upto(c) + (c * c + upto(c)) + (2 * c * c + r * upto(c)),
    schedule=lambda r, c: (Phase(0, 1, r, 1), Phase(r - 1, 1, 1, 1), Phase(0, r, 1, r)),
    why_slow="k long ones take M rounds each, then k seals fill the memory for one each, and only then go M short ones a round",
    why_fast="M short ones a round, then the seals, then the long ones",
    constant=sp.Integer(1),
    exponent=sp.Integer(1),
    sizes=tuple((m, k) for m in (2, 3, 8, 20, 64, 200) for k in (1, 2, 5, 9)),
    growth=tuple((2**k, 20) for k in range(5, 11)),
    witness=(32, 8),
    small=((3, 1), (4, 1), (2, 2)),
    hypotheses=(OFFLINE, STRICT),
)

SKIP = Trap(
    name="skipping-unbounded",
    title="skipping a blocked head does not help",
    family="skip-trap",
    policies=(
        "fcfs-skip",
        "fcfs",
        "fcfs-pack",
        "best-fit",
        "best-fit-skip",
        "best-fit-pack",
        "lof",
        "lof-skip",
        "lof-pack",
        "sof",
    ),
    memory=r**2,
    count=c * r * (r + 1),
    slow=upto(c * r) + c * r**2 * c * r + r**2 * upto(c),
    fast=r**2 * upto(c) + c * c * r + upto(c * r),
    schedule=lambda r, c: (Phase(0, 1, r * r, 1), Phase(r * r - 1, 1, 1, 1)),
    why_slow="each of k = c sqrt(M) large ones fills the memory for its one round: nothing slips past; then M small ones a round",
    why_fast="M small ones a round for c rounds, then the large ones",
    constant=sp.Integer(1),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 3, 5, 8, 12) for copies in (1, 2, 4)),
    growth=tuple((k, 12) for k in (4, 6, 8, 12, 16, 24, 32)),
    witness=(12, 4),
    small=((2, 1),),
    hypotheses=(OFFLINE, ANY_RULE, f"for lof and sof: {TIES}"),
)

LOF = Trap(
    name="lof-unbounded",
    title="longest output first, without ties between kinds, skipping or not",
    family="lof-trap",
    policies=("lof", "lof-skip", "lof-pack", "fcfs", "fcfs-skip", "fcfs-pack", "best-fit", "best-fit-skip", "best-fit-pack"),
    memory=r**2,
    count=c * (r + r**2),
    slow=2 * upto(c * r) + 2 * c * r * c * r**2 + r**2 / 2 * upto(2 * c),
    fast=r**2 / 2 * upto(2 * c) + 2 * c * c * r + 2 * upto(c * r),
    schedule=lambda r, c: (Phase(1, 1, r * r // 2, 1), Phase(r * r - 2, 2, 1, 2)),
    why_slow="a large one leaves one token free in its first round and none in its second; a small one needs two",
    why_fast="M/2 small ones a round for 2c rounds, then the large ones",
    constant=sp.Integer(1),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 4, 6, 10, 16) for copies in (1, 2, 4)),
    growth=tuple((k, 12) for k in (4, 6, 8, 12, 16, 24, 32)),
    witness=(14, 6),
    small=((2, 1), (2, 2)),
    hypotheses=(OFFLINE, ANY_RULE),
)

SOF = Trap(
    name="sof-unbounded",
    title="shortest output first (MC-SF), without ties",
    family="sof-trap-strong",
    policies=("sof", "mc-sf", "sof-skip", "sof-pack"),
    memory=r**2,
    count=c * (5 * r + 3 * r**2),
    slow=upto(5 * c * r) + 3 * c * r**2 * 5 * c * r + r**2 / 2 * 2 * upto(6 * c),
    fast=r**2 / 3 * (upto(9 * c) + 9 * c) + 5 * c * r * (9 * c + 1) + upto(5 * c * r),
    schedule=lambda r, c: (Phase(0, 2, r * r // 3, 1), Phase(r * r - 1, 1, 1, 1)),
    why_slow="5c sqrt(M) large ones fill the memory for a round each; the 3cM small ones follow, M/2 at a time for two rounds",
    why_fast="M/3 small ones start in every round: those of age 1 and 2 hold M/3 + 2M/3; then the large ones",
    constant=sp.Rational(15, 26),
    exponent=half,
    sizes=tuple((k, copies) for k in (6, 12, 18) for copies in (1, 2, 3)),
    growth=tuple((k, 6) for k in (24, 36, 48, 60, 72, 96)),
    witness=(18, 6),
    small=(),
    hypotheses=(OFFLINE, ANY_RULE),
)

SOF_SMALL = Trap(
    name="sof-unbounded-once",
    title="shortest output first (MC-SF), each small request once",
    family="sof-trap",
    policies=("sof", "mc-sf", "sof-skip", "sof-pack"),
    memory=r**2,
    count=r**2 + r,
    slow=upto(r) + r**3 + 4 * r**2,
    fast=4 * r**2 + 6 * r + upto(r),
    schedule=lambda r, c: (Phase(1, 2, r * r // 3, 2), Phase(r * r - 1, 1, 1, 1)),
    why_slow="sqrt(M) large ones fill the memory for a round each; M small ones follow, M/3 at a time for two rounds",
    why_fast="the small ones first, M/3 at a time, then the large ones",
    constant=sp.Rational(2, 9),
    exponent=half,
    sizes=tuple((3 * k, 1) for k in range(1, 12)),
    growth=tuple((k, 1) for k in (150, 210, 300, 420, 600)),
    witness=(48, 1),
    small=((3, 1),),
    copies=False,
    hypotheses=(OFFLINE, STRICT),
)

TOTAL_SIZE = Trap(
    name="total-size-unbounded",
    title="smallest prompt + output first, without ties, skipping or not",
    family="total-size-trap-strong",
    policies=("total-size", "total-size-skip", "total-size-pack"),
    memory=r**2,
    count=c * (r + 1),
    slow=(r**2 - 2) * upto(c - 1) + c * (r**2 - 1) + c * r * (c * (r**2 - 2) + 1) + upto(c * r),
    fast=upto(c * r) + c * r * c + (r**2 - 2) * upto(c - 1) + c * (r**2 - 1),
    schedule=lambda r, c: (Phase(r * r - 1, 1, 1, 1), Phase(0, r * r - 1, 1, r * r - 2)),
    why_slow="thin ones of M - 1 rounds overlap in one round only, then c sqrt(M) fat ones fill the memory for a round each",
    why_fast="the fat ones first, then the thin ones as before",
    constant=sp.Integer(1),
    exponent=half,
    sizes=tuple((k, copies) for k in (2, 3, 5, 8, 12) for copies in (1, 2, 4, 7)),
    growth=tuple((k, 40) for k in (6, 8, 12, 16, 24, 32)),
    witness=(10, 20),
    small=((2, 2), (2, 3), (3, 1)),
    hypotheses=(OFFLINE, ANY_RULE),
)

TOTAL_SIZE_SMALL = Trap(
    name="total-size-unbounded-small-peaks",
    title="smallest prompt + output first, though no request needs more than a quarter of the memory and two tokens",
    family="total-size-trap",
    policies=("total-size",),
    memory=72 * r**2,
    count=8 + 24 * r,
    slow=24 * r * (18 * r**2 + 5) + 12 * 18 * r**2 + 8,
    fast=3 * upto(8 * r) + 8 * 8 * r + 12 * 18 * r**2 + 8,
    schedule=lambda r, c: (Phase(18 * r * r + 1, 1, 3, 1), Phase(1, 18 * r * r, 4, 18 * r * r, (0, 0, 0, 4))),
    why_slow="of 8 thin ones of L = M/4 rounds, three start at 0, one at 4, three at L, one at L + 4; no fat one starts sooner",
    why_fast="three fat ones a round, then the thin ones as before",
    constant=sp.Rational(36, 13) / (2 * sp.sqrt(72)),
    exponent=half,
    sizes=tuple((k, 1) for k in range(1, 12)),
    growth=tuple((k, 1) for k in (60, 90, 120, 180, 240, 400)),
    witness=(6, 1),
    small=(),
    copies=False,
    exact=False,
    hypotheses=(OFFLINE, STRICT),
)

EQUAL = Trap(
    name="orders-at-least-two",
    title="equal requests, where nobody is held back",
    family="equal-trap",
    policies=(
        *(f"{name}{rule}" for name in KEYS for rule in ("", "-skip", "-pack")),
        *("sorted-f", "sorted-f-serial", "sorted-rate", "phases", "one-bit"),
    ),
    memory=r * (2 * r - 1),
    count=c * r,
    slow=r * (2 * r - 1) * upto(c),
    fast=upto(c * r - 1) + c * r * (2 * r - 1),
    schedule=lambda r, c: (Phase(0, 2 * r - 1, 1, 1),),
    why_slow="k start together, fill the memory in their last round, and nobody else fits before: batches of L = 2k - 1 rounds",
    why_fast="one starts every round: ages 1 .. L hold L(L + 1)/2 = M together",
    constant=sp.Integer(2),
    exponent=sp.Integer(0),
    sizes=tuple((k, copies) for k in (2, 3, 6) for copies in (1, 2, 5, 20)),
    growth=(),
    witness=None,
    small=((2, 3), (2, 4), (3, 3)),
    hypotheses=(OFFLINE, ANY_RULE, "no hypothesis on peaks: M may be any multiple of the peak here"),
)


def _superlinear() -> Trap:
    """Thin requests of M/2, M/4, .. sqrt(M) rounds; r = log4 M classes, c 2**i thin ones in class i, each with its seal."""
    root, h = 2**r, sp.floor(sp.sqrt(3 * r))
    memory, seals, q = root**2, c * (2 * root - 2), c * h
    ends = c * r * memory + seals  # when the last seal ends under FCFS
    powers, squares, ranked = 2 * root - 2, 4 * (root**2 - 1) / 3, 2 * ((r - 2) * root + 2)  # sums of 2^i, 4^i, (i - 1) 2^i
    pairs = 2 * c**2 * memory * ranked + 3 * c**2 * squares - 4 * c**2 * powers + c * memory * r + c**2 * memory * powers
    thin = seals * (q + seals) + c**2 * memory * r - c**2 * root * powers + r * memory * upto(c)
    m, roots, classes, lengths = sp.symbols("m Q K h", positive=True)
    slow, fast = memory * (q * ends + upto(q)) + pairs, memory * upto(q) + seals * q + upto(seals) + thin
    plain = (slow / fast).subs(h, lengths).subs(root, roots).subs(r, classes)
    many = sp.limit(sp.together(plain), c, sp.oo)
    scaled = sp.simplify(many.subs({classes: 3 * m**2, lengths: 3 * m}) / (roots**2 * m))
    return Trap(
        name="fcfs-superlinear",
        title="first come, first served among requests of all lengths is worse than linear in the memory",
        family="fcfs-trap-log",
        policies=("fcfs",),
        memory=memory,
        count=2 * seals + memory * q,
        slow=slow,
        fast=fast,
        schedule=_superlinear_schedule,
        why_slow="a thin one of M/2^i rounds and its seal never overlap; each of the K classes takes kM rounds for its thin "
        "ones, so M short ones a round start at kKM + k(2^(K+1) - 2)",
        why_fast="M short ones a round, then the seals, then thin ones from short to long: 2^i of length M/2^i fill the memory",
        constant=sp.Integer(1),
        exponent=sp.Integer(1),
        sizes=(*((k, copies) for k in (2, 3, 4) for copies in (1, 2, 5)), (5, 3)),
        growth=(),
        witness=(3, 8),
        small=(),
        hypotheses=(OFFLINE, STRICT),
        at_least="M sqrt(log2(M)/6)",
        quotient=(
            limit("with ever more copies the quotient tends to a function of Q = sqrt(M), K and h", plain, c, many),
            inequality(
                "for K = 3m^2, h = 3m, Q = 8^(m^2) >= m the quotient is at least M m times this",
                scaled,
                9 * m**2 / (9 * m**2 + 16),
                [(m, 1, None), (roots, m, None)],
            ),
            limit("which tends to 1: the quotient grows like M m = M sqrt(K/3)", 9 * m**2 / (9 * m**2 + 16), m, sp.Integer(1)),
            identity("and K/3 is log2(M)/6", sp.log(roots**2, 2) / 6, sp.log(roots, 2) / 3),
        ),
    )


def _superlinear_schedule(r: int, c: int) -> list[Phase]:
    memory = 4**r
    thin = [Phase(0, memory >> i, 1 << i, memory >> i) for i in range(r, 0, -1)]
    return [Phase(0, 1, memory, 1), Phase(memory - 1, 1, 1, 1), *thin]


_ALL = (
    *(FCFS, FCFS_STRONG, SEALED, SKIP, LOF, SOF, SOF_SMALL, TOTAL_SIZE, TOTAL_SIZE_SMALL),
    *(ONE_BIT, SKIP_AHEAD, SVF, SVF_SMALL, SVF_NO_TIES, EQUAL, _superlinear()),
)

TRAPS: dict[str, Trap] = {trap.name: trap for trap in _ALL}


def claim(name: str) -> Claim:
    """Return the claim about a trap."""
    return claim_of(TRAPS[name])
