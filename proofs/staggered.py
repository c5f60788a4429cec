"""Pipelines of identical requests within 2, of identical prompts within 7 times the optimum. Exposition: staggered.md."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from math import ceil

import numpy as np
import sympy as sp

from opt.core.instance import Instance
from opt.solvers.bounds import mean_busy_time, trivial
from opt.solvers.staggered import IDENTICAL_FACTOR, PROMPT_FACTOR, least_gap, pipeline_peak, pipelines
from proofs.claim import Claim, Reference, Step
from proofs.mean_busy_time import outputs, prompts, tail, whole
from proofs.small import draw, latency, optimum
from proofs.steps import argued, exhaustive, identity, inequality, tested

__all__ = ["identical_prompts", "identical_requests"]

s, o, g, M, r, n, N = sp.symbols("s o g M r n N", positive=True)
A, total, OPT = sp.symbols("A O OPT", nonnegative=True)

Shape = tuple[int, int, int]  # prompt, output, memory


def shapes(most: int) -> Iterator[Shape]:
    """Yield every (prompt, output, memory) that fits with memory up to `most`."""
    yield from ((p, out, m) for m in range(1, most + 1) for out in range(1, m + 1) for p in range(m - out + 1))


def held(gap: Fraction, prompt: int, output: int) -> int:
    """Return U(gap) by its definition."""
    offsets = (int(k * gap) for k in range(ceil(output / gap) + 1))
    return sum(prompt + output - offset for offset in offsets if offset < output)


def gaps(output: int, most: int) -> Iterator[Fraction]:
    """Yield every gap a/b up to the output with b <= most: all the breakpoints there are, and points between."""
    yield from {Fraction(a, b) for b in range(1, most + 1) for a in range(1, output * b + 1)}


def _never_more(shape: Shape) -> bool:
    """Starts floor(k g) hold at most U(g), and reach it."""
    prompt, output, _ = shape
    for gap in gaps(output, 5):
        starts = [int(k * gap) for k in range(3 * ceil(output / gap) + 2)]
        most = max(sum(prompt + t - x for x in starts if x < t <= x + output) for t in range(1, starts[-1] + output + 1))
        if not most == held(gap, prompt, output) == pipeline_peak(prompt, output, gap):
            return False
    return True


def _least(shape: Shape) -> bool:
    """The gap fits, no smaller breakpoint does, and v/M <= g <= min(2v/M, v/(M - p))."""
    prompt, output, memory = shape
    gap, volume, peak = least_gap(*shape), prompt * output + output * (output + 1) // 2, prompt + output
    fits = held(gap, prompt, output) <= memory
    smaller = any(held(h, prompt, output) <= memory for h in gaps(output, 2 * memory) if h < gap) if memory <= 6 else False
    room = peak == memory or gap <= Fraction(volume, memory - peak)
    return fits and not smaller and Fraction(volume, memory) <= gap <= Fraction(2 * volume, memory) and room


def _twice_the_volume(shape: tuple[int, int]) -> bool:
    prompt, output = shape
    volume = prompt * output + output * (output + 1) // 2
    found = [gap * held(gap, prompt, output) for gap in gaps(output, 7) if gap < output]
    return all(value < 2 * volume for value in found)


def _alike(arrivals: int) -> Iterator[tuple[Instance, Fraction, int, list[int]]]:
    """Yield identical requests with gap and optimum, all shapes of memory up to 6."""
    raw = np.random.PCG64(arrivals)
    for prompt, output, memory in shapes(6):
        number = 2 + int(raw.random_raw()) % 4
        arrival = sorted(int(a) % (arrivals + 1) for a in raw.random_raw(number)) if arrivals else None
        instance = Instance(memory, [prompt] * number, [output] * number, arrival=arrival)
        yield instance, least_gap(prompt, output, memory), *optimum(instance)


def _no_earlier(case: tuple[Instance, Fraction, int, list[int]]) -> bool:
    """In the optimal schedule the k-th start is at least a_j + (k - j + 1) g - o for every j <= k."""
    instance, gap, _, start = case
    arrival, output = sorted(instance.arrival.tolist()), int(instance.output[0])
    return all(x >= arrival[j] + (k - j + 1) * gap - output for k, x in enumerate(sorted(start)) for j in range(k + 1))


def _at_most(case: tuple[Instance, Fraction, int, list[int]]) -> bool:
    instance, gap, best, _ = case
    return latency(instance, pipelines(instance).tolist()) <= best + instance.n * (int(instance.output[0]) - gap)


def identical_requests(factor: int = IDENTICAL_FACTOR) -> Claim:
    """Return the claim on identical requests; another `factor` is for tests that plant a mistake."""
    lost = sp.Symbol("lost", nonnegative=True)
    return Claim(
        "staggered",
        f"TEL(pipeline) <= OPT + n (o - g) < {factor} OPT, g the least gap that identical requests can keep up",
        ("identical requests (prompt, output)", "any arrivals, in whole rounds"),
        (
            Reference("staggered starts for identical prompts: Feng, Yang, Zhang, arXiv 2601.22996", "published"),
            Reference("exact pipelines, the least gap, and this bound", "new"),
        ),
        (
            *_pipeline(),
            argued(
                "in every schedule the k-th start is at least a_j + (k - j + 1) g - o, a_j the j-th arrival, j <= k",
                lambda: (case for arrivals in (0, 9) for case in _alike(arrivals)),
                _no_earlier,
                domain="all shapes of memory up to 6, two to five requests, with and without arrivals, optimal starts",
                because="for h < g, U(h) > M: whoever starts at x_i, if all d with d h < o follow by x_i + d h, then when i "
                "completes U(h) is held. So some x_(i+d) > x_i + d h, d <= ceil(o/h) - 1. Hop from j until the next d might pass "
                "k: at an index above k + 1 - o/h, and x_k >= x_j + (k + 1 - o/h - j) h; x_j >= a_j; let h rise to g",
            ),
            argued(
                "the pipeline starts its k-th by the largest a_j + (k - j) g: later than any schedule by at most o - g",
                lambda: (case for arrivals in (0, 9) for case in _alike(arrivals)),
                _at_most,
                domain="the same cases: TEL(pipeline) <= OPT + n (o - g)",
                because="a start is its arrival or floor(d g) after the last arrival that was waited for",
            ),
            inequality(
                f"n (o - g) < n o <= OPT, so OPT + n (o - g) < {factor} OPT",
                factor * (n * o + lost),
                (n * o + lost) + n * (o - g),
                [(n, 1, None), (o, 1, None), (g, 0, o), (lost, 0, None)],
                because="lost is OPT - n o",
            ),
        ),
    )


def _pipeline() -> tuple[Step, ...]:
    j = sp.Symbol("j", positive=True)
    return (
        argued(
            "U(g) = sum of s + o - floor(d g) over d with floor(d g) < o is the most that starts floor(k g) ever hold",
            lambda: shapes(8),
            _never_more,
            domain="all shapes of memory up to 8, gaps a/b with b <= 5",
            because="memory peaks at completions; when k completes, whoever started d places after the first that still runs "
            "started at least floor(d g) rounds after it, so holds at most s + o - floor(d g)",
        ),
        identity("s + o - floor(x) integrates to v over [0, o)", sp.summation(s + o - j, (j, 0, o - 1)), whole),
        identity(
            "g U(g) <= g p + v, all terms but the first being below the integral: at g = v/(M - p) U is at most M",
            (s + o) + whole / (whole / (M - s - o)),
            M,
        ),
        *_below_twice(),
        exhaustive(
            "`least_gap` is the least gap with U <= M, and v/M <= g <= min(2 v/M, v/(M - p))",
            lambda: shapes(10),
            _least,
            domain="all shapes of memory up to 10; smaller gaps tried for memory up to 6",
            because="U falls in steps and is continuous from the right, so there is a least one",
        ),
    )


def _below_twice() -> tuple[Step, ...]:
    """g U(g) < 2 v for g < o. N = ceil(o/g) terms; floor(d g) >= d g - 1 for d >= 1; L = N g in [o, o + g)."""
    L = sp.Symbol("L", positive=True)
    most = L * (s + o + 1) - g - L * (L - g) / 2
    top = (o + 1 + g / 2) ** 2 / 2 - g
    return (
        identity(
            "N terms, N >= 2: g U(g) <= L (s + o + 1) - g - L (L - g)/2",
            g * (N * (s + o) + (N - 1) - g * N * (N - 1) / 2),
            most.subs(L, N * g),
        ),
        inequality(
            "the part with s is at most 2 s o, as L < o + g <= 2 o", 2 * s * o, L * s, [(s, 0, None), (o, 1, None), (L, o, 2 * o)]
        ),
        inequality(
            "the rest is at most (o + 1 + g/2)^2/2 - g whatever L", top, most.subs(s, 0), [(o, 1, None), (g, 0, o), (L, o, o + g)]
        ),
        inequality("N >= 3 means g <= o/2; for o >= 2 that is at most o^2 + o", o**2 + o, top, [(o, 2, None), (g, 0, o / 2)]),
        inequality(
            "o = 1: L <= 1 + g and the rest grows in L, so it is at most its value there, below 2",
            2,
            most.subs(s, 0).subs(o, 1),
            [(g, 0, 1), (L, 1, 1 + g)],
        ),
        inequality(
            "N = 2: U = 2 (s + o) - floor(g); with m = floor(g) <= o - 1 and g < m + 1, (m + 1)(2 s + 2 o - m) <= 2 v",
            2 * whole,
            (M + 1) * (2 * s + 2 * o - M),
            [prompts, outputs, (M, 0, o - 1)],
            because="M stands for m here",
        ),
        tested(
            "g U(g) < 2 v for every g < o",
            lambda: ((p, out) for out in range(1, 12) for p in range(5)),
            _twice_the_volume,
            domain="prompts below 5, outputs below 12, gaps a/b with b <= 7",
        ),
    )


def _same_prompt() -> Iterator[Instance]:
    for instance in draw(150, seed=15, requests=(2, 40), memory=(2, 60)):
        prompt = int(instance.prompt.min())
        yield Instance(instance.memory, [prompt] * instance.n, np.minimum(instance.output, instance.memory - prompt))


def identical_prompts(factor: int = PROMPT_FACTOR) -> Claim:
    """Return the claim on identical prompts; another `factor` is for tests that plant a mistake."""
    ratio = sp.Rational(3, 2)
    return Claim(
        "staggered-prompts",
        f"TEL(pipelines by class) <= {factor} OPT for identical prompts, classes of outputs within 3/2",
        ("offline: all requests are there at round 0", "identical prompts, any outputs"),
        (
            Reference(
                "geometric batching within 10.67, 6.75 with large memory: Feng, Yang, Zhang, arXiv 2601.22996", "published"
            ),
            Reference("classes as exact pipelines, against mean busy times", "new"),
        ),
        (
            *_below_twice(),
            inequality(
                "the largest of a class has at most r^2 times the volume of any member: r o s + r o (r o + 1)/2 <= r^2 v",
                r**2 * whole,
                r * o * s + r * o * (r * o + 1) / 2,
                [prompts, outputs, (r, 1, None)],
                because="the gap is at most 2/M times the largest volume, so at most 2 r^2/M times that of any member",
            ),
            identity(
                "last outputs of the classes before: below o (1 + 1/r + 1/r^2 + ..) = o r/(r - 1), which is 3 o",
                sp.summation(ratio ** (-sp.Symbol("k", integer=True)), (sp.Symbol("k", integer=True), 0, sp.oo)),
                ratio / (ratio - 1),
                because="the largest of a class is below the least of the next, and these grow by more than r",
            ),
            identity(
                "so TEL <= 2 r^2 A + (r/(r - 1) + 1) O = 9/2 A + 4 O",
                2 * ratio**2 * A + (ratio / (ratio - 1) + 1) * total,
                sp.Rational(9, 2) * A + 4 * total,
            ),
            inequality("d >= o/3, so OPT >= A + O/3", tail, o / 3, [prompts, outputs]),
            inequality(
                f"with OPT >= A + O/3 and OPT >= O: 9/2 A + 4 O = 9/2 (A + O/3) + 5/2 O <= {factor} OPT",
                factor * OPT,
                sp.Rational(9, 2) * (A + total / 3) + sp.Rational(5, 2) * total,
                [(OPT, 0, None), (total, 0, OPT), (A, 0, OPT - total / 3)],
            ),
            tested(
                f"pipelines stay within {factor} times the proved bound; classes go by Smith's rule, the best order of blocks",
                _same_prompt,
                lambda instance: (
                    latency(instance, pipelines(instance).tolist())
                    <= factor * max(mean_busy_time(instance).value, trivial(instance).value)
                ),
                domain="150 random instances of identical prompts",
            ),
        ),
    )
