"""How bad an order can be at most: M sqrt(log M) for any that never idles, sqrt(M) for two of them.

Notation: v volumes, p peaks, o outputs, O their sum, S the sum over k of the k least volumes, and I the sum of
min(v_i, v_j) over all ordered pairs. The volume bound says S <= M OPT, and I = 2 S - (sum of v). With N(x) the number
of volumes above x, I is the integral of N(x)**2 and the sum of the volumes up to t at most that of N(x) over 0 .. t:
Cauchy and Schwarz give sqrt(t I), whatever the volumes.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import log, sqrt

import numpy as np
import sympy as sp

from instances import generate
from opt.core.columns import IntArray
from opt.core.exact import exact_dot, exact_sum
from opt.core.instance import Instance
from opt.solvers.bounds import trivial, volume
from opt.solvers.orders import KEYS, Rule, order_of, run_order
from proofs.claim import OFFLINE, STRICT, Claim, Reference, Step
from proofs.small import draw
from proofs.steps import argued, identity, inequality, tested
from proofs.unbounded import latency_of

__all__ = ["never_idle", "shortest_output_first", "smallest_peak_first"]

s, o, M, X, H, w, y = sp.symbols("s o M X H w y", positive=True)
optimum, half = sp.Symbol("OPT", positive=True), sp.Rational(1, 2)
v = s * o + o * (o + 1) / 2
REQUEST = [(s, 0, None), (o, 1, None)]
OURS = Reference("the layer-cake argument and the constants", "new")
VOLUME = Reference("the volume bound: Kong, Qi, Ye, Zhou, arXiv 2606.22327", "published")


@cache
def _some() -> tuple[Instance, ...]:
    """Small and middling instances, and the families on which orders do badly."""
    traps = ("fcfs-trap", "fcfs-trap-log", "sof-trap-strong", "total-size-trap", "total-size-trap-strong", "svf-trap-distinct")
    return (
        *draw(60, seed=21, requests=(1, 12), memory=(2, 30)),
        *draw(8, seed=22, requests=(60, 100), memory=(20, 200)),
        *(generate(family) for family in traps),
    )


def _start(instance: Instance, name: str, rule: Rule = "strict") -> IntArray:
    start = run_order(name, rule, instance).start
    assert start is not None
    return start


def _sum_of_least(instance: Instance) -> int:
    """Return S."""
    return exact_dot(np.sort(instance.volume), np.arange(instance.n, 0, -1, dtype=np.int64))


def _pairs(instance: Instance) -> int:
    """Return I."""
    return 2 * _sum_of_least(instance) - exact_sum(instance.volume)


def _ratio_within(instance: Instance, policy: str, factor: float) -> bool | str:
    """Whether a policy stays within the factor of the best closed-form bound, which is at most the optimum."""
    found, bound = latency_of(instance, policy), max(volume(instance).value, trivial(instance).value)
    return found <= factor * bound or f"{policy} takes {found}, more than {factor:.2f} times {float(bound):.1f}"


def _within_a_root() -> tuple[Step, ...]:
    """The sum over inverted pairs, that is, of larger volumes put before smaller ones, needs these two."""
    x = sp.Symbol("x", positive=True)

    def totals(instance: Instance) -> Iterator[tuple[int, int, int]]:
        volumes = np.sort(instance.volume)
        for t in {1, *volumes.tolist(), 2 * instance.memory}:
            yield t, exact_sum(volumes[volumes <= t]), _pairs(instance)

    return (
        argued(
            "the volumes up to t add up to at most sqrt(t I)",
            lambda: (case for instance in _some() for case in totals(instance)),
            lambda case: case[1] ** 2 <= case[0] * case[2],
            domain="random instances and traps, every volume as t, in integers",
            because="the sum is at most the integral of N over 0 .. t; Cauchy-Schwarz; I is the integral of N^2",
        ),
        identity("the integral of x^(-3/2) from 1 on is 2", sp.integrate(x ** sp.Rational(-3, 2), (x, 1, sp.oo)), 2),
    )


def never_idle() -> Claim:
    """Return the claim that no order under any rule is worse than M sqrt(log M), up to a constant."""
    return Claim(
        "never-idle",
        "Whoever keeps some request running while any waits takes at most 2M(1 + sqrt(1 + ln M)) times the optimum",
        (
            OFFLINE,
            "in every round before the last end some request runs: so under every order, head of line, skipping or packing",
        ),
        (VOLUME, Reference("the bound; first come, first served reaches M sqrt(log2(M)/6), see fcfs-superlinear", "new")),
        (
            argued(
                "total latency is at most n O",
                lambda: ((instance, name, rule) for instance in _some() for name in KEYS for rule in ("strict", "skip", "pack")),
                lambda case: int((_start(*case) + case[0].output).max(initial=0)) <= exact_sum(case[0].output),
                domain="random instances and traps, every order and rule: the last end is at most O",
                because="in every round somebody runs, so all is over after O rounds",
            ),
            *_weighted_outputs(),
            argued(
                "O <= sqrt(X) (1 + sqrt(1 + ln M)), where X = 2M OPT",
                _some,
                lambda instance: exact_sum(instance.output) <= _share(instance) * sqrt(2 * _sum_of_least(instance)) * (1 + 1e-12),
                domain="random instances and traps, with 2S, which is at most X",
                because="the a = floor(sqrt(X)/M) largest outputs are at most M each. For the others take y = sqrt(H/X) with H "
                "the sum "
                "of 1/w over a < w <= n, and n <= sqrt(X). If a >= 1 then H <= ln(n/a) <= ln((a + 1)M/a); if a = 0 then n < M "
                "and "
                "H <= 1 + ln(n)",
            ),
            identity(
                "n <= sqrt(X), so n O <= X (1 + sqrt(1 + ln M)), and X = 2M OPT",
                (sp.sqrt(X) * sp.sqrt(X) * (1 + sp.sqrt(1 + sp.log(M)))).subs(X, 2 * M * optimum),
                2 * M * (1 + sp.sqrt(1 + sp.log(M))) * optimum,
            ),
            tested(
                "the ratio is within it",
                lambda: ((instance, name) for instance in _some() for name in ("fcfs", "lof", "best-fit-skip", "random-pack")),
                lambda case: _ratio_within(*case, 2 * case[0].memory * _share(case[0])),
                domain="random instances and traps, against proved bounds",
            ),
        ),
    )


def _share(instance: Instance) -> float:
    return 1 + sqrt(1 + log(instance.memory))


def _weighted_outputs() -> tuple[Step, ...]:
    """The w-th largest output o_w: X bounds both the sum of w o_w^2 and n^2, and through them O."""

    def ranked(instance: Instance) -> int:
        largest = np.sort(instance.output)[::-1].astype(object)
        return int((largest**2 * np.arange(1, instance.n + 1)).sum())

    return (
        inequality("a volume is at least o^2/2", v, o**2 / 2, REQUEST),
        argued(
            "X = 2M OPT is at least the sum over w of w o_w^2, and at least n^2",
            _some,
            lambda instance: 2 * _sum_of_least(instance) >= max(ranked(instance), instance.n**2),
            domain="random instances and traps, with 2S, which is at most X",
            because="S is the sum of w times the w-th largest volume, and that is at least o_w^2/2, and at least 1",
        ),
        inequality(
            "for any y > 0, o_w is at most y w o_w^2/2 + 1/(2 y w)",
            y * w * o**2 / 2 + 1 / (2 * y * w),
            o,
            [(o, 0, None), (w, 1, None), (y, 0, None)],
        ),
        identity(
            "whose sum, y X/2 + H/(2y), is sqrt(X H) at y = sqrt(H/X)",
            (y * X / 2 + H / (2 * y)).subs(y, sp.sqrt(H / X)),
            sp.sqrt(X * H),
        ),
        inequality(
            "1/(w + 1) <= ln(1 + 1/w), so 1/w over a < w <= n adds up to at most ln(n/a)",
            sp.log(1 + 1 / w),
            1 / (w + 1),
            [(w, 1, None)],
        ),
        inequality("ln((a + 1)/a) <= 1 for a >= 1", 1, sp.log(1 + 1 / w), [(w, 1, None)]),
    )


def shortest_output_first() -> Claim:
    """Return the claim that strict SOF (MC-SF) is within 21 sqrt(M) + 9 of the optimum."""
    root, inverted = sp.Symbol("R", positive=True), 2 * 2 ** sp.Rational(1, 4) * 3 / (2 * sp.sqrt(2))
    return Claim(
        "sof-root",
        "Shortest output first (MC-SF) takes at most 21 sqrt(M) + 9 times the optimum, so its worst case is Theta(sqrt(M))",
        (OFFLINE, STRICT),
        (VOLUME, OURS, Reference("MC-SF: Jaillet et al., arXiv 2502.07115", "published")),
        (
            inequality("p o <= 2 v", 2 * v, (s + o) * o, REQUEST),
            argued(
                "a start is at most 8/M times the volumes up to and with its own",
                lambda: ((instance, *case) for instance in _some() for case in _prefixes(instance, "sof")),
                lambda case: case[1] * case[0].memory <= 8 * (case[2] + case[3]),
                domain="random instances and traps",
                because="rounds whose active peaks exceed M/2 number at most 2/M times the sum of p o before. In any other "
                "round the "
                "refused head h has p_h > M/2, and all that runs started before h became the head and has an output of at most "
                "o_h: "
                "h waits o_h such rounds at most, and o_h <= (2/M) p_h o_h. Then p o <= 2 v twice",
            ),
            inequality("v <= M o, since p <= M", M * o, v, [(s, 0, None), (o, 1, None), (M, s + o, None)]),
            inequality("o^2 <= 2 v, so an inverted pair, o_i <= o_j, has v_i <= M sqrt(2 v_j)", 2 * v, o**2, REQUEST),
            *_within_a_root(),
            identity(
                "n + (sqrt(2)/4) sqrt(I - n^2) is at most sqrt(1 + 1/8) sqrt(I)", sp.sqrt(1 + half**3), 3 / (2 * sp.sqrt(2))
            ),
            argued(
                "the fourth roots of all volumes add up to at most 3/(2 sqrt(2)) sqrt(I)",
                _some,
                lambda instance: (
                    float((instance.volume.astype(float) ** 0.25).sum()) <= 3 / sqrt(8) * sqrt(_pairs(instance)) * (1 + 1e-9)
                ),
                domain="random instances and traps",
                because="volumes are at least 1: the sum is n plus the integral of N(x) x^(-3/4)/4 from 1 on, at most "
                "sqrt(2)/4 times the "
                "root of the integral of N^2 there, which is I - n^2",
            ),
            argued(
                "inverted pairs add up to at most 2^(1/4) 3/(2 sqrt(2)) sqrt(M) I, and I <= 2S",
                _some,
                lambda instance: _inverted(instance, "sof") <= 2**0.25 * 3 / sqrt(8) * sqrt(instance.memory) * _pairs(instance),
                domain="random instances and traps",
                because="for each j the volumes up to M sqrt(2 v_j) add up to at most the root of M sqrt(2 v_j) I; then fourth "
                "roots",
            ),
            inequality(
                "pairs in order add up to at most S, so TEL <= (8/M)(S + inverted) + O <= (21 sqrt(M) + 9) OPT",
                21 * root + 9,
                8 * (1 + inverted * root) + 1,
                [(root, 1, None)],
            ),
            tested(
                "the ratio is within it",
                _some,
                lambda instance: _ratio_within(instance, "sof", 21 * sqrt(instance.memory) + 9),
                domain="random instances and traps, against proved bounds",
            ),
        ),
    )


def _prefixes(instance: Instance, name: str) -> Iterator[tuple[int, int, int]]:
    """Yield each request's start, the sum of the volumes before it in the order, and its own volume."""
    start, before = _start(instance, name), 0
    for i in order_of(instance, name).tolist():
        yield int(start[i]), before, int(instance.volume[i])
        before += int(instance.volume[i])


def _inverted(instance: Instance, name: str) -> int:
    """Return the sum of v_i over pairs with i before j in the order and v_i > v_j."""
    volumes = instance.volume[order_of(instance, name)]
    return sum(int(volumes[:j][volumes[:j] > volumes[j]].sum()) for j in range(instance.n))


def smallest_peak_first() -> Claim:
    """Return the claim that strict total-size order is within 10 sqrt(M) + 5 of the optimum."""
    root = sp.Symbol("R", positive=True)
    return Claim(
        "total-size-root",
        "Smallest prompt + output first takes at most 10 sqrt(M) + 5 times the optimum, so its worst case is Theta(sqrt(M))",
        (OFFLINE, STRICT),
        (VOLUME, OURS),
        (
            inequality("p o <= 2 v", 2 * v, (s + o) * o, REQUEST),
            argued(
                "a start is at most 4/M times the volumes before, and for p > M/2 as many rounds more as the longest output "
                "with p <= M/2",
                lambda: ((instance, i, *case) for instance in _some() for i, case in _peak_order(instance)),
                lambda case: case[2] * case[0].memory <= 4 * case[3] + case[0].memory * _long_small(case[0], case[1]),
                domain="random instances and traps",
                because="in a round whose active peaks are at most M/2 the refused head has p > M/2, so whoever runs has p <= "
                "M/2, all of "
                "these have started, and they end within the longest of their outputs",
            ),
            inequality(
                "n_b requests with p > M/2 have S >= M n_b^2/4",
                M / 2 * w * (w + 1) / 2,
                M / 4 * w**2,
                [(M, 1, None), (w, 0, None)],
            ),
            identity(
                "their longest wait is at most M/2 and at most OPT, so together they wait sqrt(2M) OPT more at most",
                2 * sp.sqrt(X / M) * sp.sqrt(M / 2) * sp.sqrt(X / M),
                sp.sqrt(2 * M) * X / M,
                because="n_b <= 2 sqrt(S/M), S <= X = M OPT, and the wait is at most sqrt(M/2) sqrt(OPT)",
            ),
            inequality("p <= v", v, s + o, REQUEST),
            inequality("v <= p o <= p^2, so an inverted pair, p_i <= p_j, has v_i <= p_j^2", (s + o) ** 2, v, REQUEST),
            _within_a_root()[0],
            argued(
                "inverted pairs add up to at most sqrt(M) I, and I <= 2S",
                _some,
                lambda instance: _inverted(instance, "total-size") <= sqrt(instance.memory) * _pairs(instance),
                domain="random instances and traps",
                because="for each j the volumes up to p_j^2 add up to at most p_j sqrt(I), and p_j <= min(v_j, M), whose sum "
                "is the "
                "integral of N over 0 .. M, at most sqrt(M I)",
            ),
            inequality(
                "TEL <= (4/M)(S + inverted) + sqrt(2M) OPT + O <= (10 sqrt(M) + 5) OPT",
                10 * root + 5,
                4 * (1 + 2 * root) + sp.sqrt(2) * root + 1,
                [(root, 1, None)],
            ),
            tested(
                "the ratio is within it",
                _some,
                lambda instance: _ratio_within(instance, "total-size", 10 * sqrt(instance.memory) + 5),
                domain="random instances and traps, against proved bounds",
            ),
        ),
    )


def _peak_order(instance: Instance) -> Iterator[tuple[int, tuple[int, int, int]]]:
    return zip(order_of(instance, "total-size").tolist(), _prefixes(instance, "total-size"), strict=True)


def _long_small(instance: Instance, i: int) -> int:
    """Return the longest output with a peak of at most M/2, if request i has a larger one."""
    small = 2 * instance.peak <= instance.memory
    return 0 if small[i] else int(instance.output[small].max(initial=0))
