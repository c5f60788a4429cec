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
    **_trap("skipping-ahead-unbounded", "svf-skip, sof-skip, total-size-skip without ties: sqrt(M) times the optimum"),
    **_trap("one-bit-unbounded", "one-bit: sqrt(M) times the optimum"),
    **_trap("svf-unbounded", "smallest volume first, ties against it, peaks up to M: sqrt(M/2) times the optimum"),
    **_trap("svf-unbounded-once", "smallest volume first, ties against it, L pairs: (sqrt(2)/3) sqrt(M) times the optimum"),
    **_trap("svf-unbounded-no-ties", "smallest volume first without ties: 0.4 M^(1/3) times the optimum"),
    "svf-unbounded-distinct": Entry(
        "smallest volume first, all volumes distinct: sqrt(M)/log(M) times the optimum, up to a constant",
        "proofs.without_formula:all_volumes_distinct",
    ),
    "random-unbounded": Entry("a random order: M/2 times the optimum in expectation", "proofs.without_formula:random_order"),
    "random-unbounded-any-rule": Entry(
        "a random order under any rule: sqrt(M)/2 times the optimum in expectation",
        "proofs.without_formula:random_order_any_rule",
    ),
    **_trap("orders-at-least-two", "every order, Sorted-F, Sorted-rate, phases: 2 - 1/k times the optimum on equal requests"),
    "never-idle": Entry(
        "every order that never idles: at most 2M(1 + sqrt(1 + ln M)) times the optimum", "proofs.roots:never_idle"
    ),
    "sof-root": Entry(
        "shortest output first (MC-SF): at most 21 sqrt(M) + 9 times the optimum", "proofs.roots:shortest_output_first"
    ),
    "total-size-root": Entry("smallest peak first: at most 10 sqrt(M) + 5 times the optimum", "proofs.roots:smallest_peak_first"),
    "mean-busy-time": Entry("the mean-busy-time bound, with and without arrivals", "proofs.mean_busy_time:mean_busy_time"),
    "prices": Entry("prices per round prove a bound, also through dual-feasible functions", "proofs.mean_busy_time:price_bound"),
    "svf": Entry("smallest volume first: 7/3 for small peaks, 4 up to half the memory", "proofs.svf:smallest_volume_first"),
    "svf-sqrt": Entry("smallest volume first: 2 sqrt(M) + 5 whatever the peaks", "proofs.svf:smallest_volume_first_anyway"),
    "density": Entry("where many requests end early some batch is good: C = 4", "proofs.density:density"),
    "density-by-hand": Entry("the same with C = 9/2 and one set of weights", "proofs.density:density_by_hand"),
    "sorted-f": Entry("Sorted-F is within 32 times the optimum", "proofs.sorted_f:sorted_f"),
    "sorted-rate": Entry("Sorted-rate is within 16 times the optimum", "proofs.sorted_f:sorted_rate"),
    "phases": Entry("phases are within 7 times the optimum, in near-linear time", "proofs.phases:phases"),
    "phases-by-order": Entry(
        "phases by the best order of a relaxation: 5.51 times the optimum", "proofs.phases_by_order:phases_by_order"
    ),
    "staggered": Entry(
        "pipelines of identical requests: 2 times the optimum, any arrivals", "proofs.staggered:identical_requests"
    ),
    "staggered-prompts": Entry(
        "pipelines by class, identical prompts: 7 times the optimum", "proofs.staggered:identical_prompts"
    ),
}
