"""Whole memory ramps: the certificate's recursion, and that damage to it is seen."""

from __future__ import annotations

import dataclasses
from fractions import Fraction
from functools import lru_cache
from itertools import combinations

import numpy as np
import pytest
from exhaustive import optimum

from instances import generate
from opt.core.certify import check_bound
from opt.core.errors import CertificateError
from opt.core.instance import Instance
from opt.core.ramps import ramp_value
from opt.solvers.bounds import best_bound, mean_busy_time
from opt.solvers.door import solve
from opt.solvers.ramps import ramps


def by_definition(memory, prompt, output, price, scale):
    """V_n(nothing), by the recursion of the module's docstring, a running request being (index, rounds to go)."""

    def fits(group):
        return all(sum(prompt[i] + output[i] - left + t for i, left in group if left >= t) <= memory for _, t in group)

    @lru_cache(None)
    def value(r, kept):
        if not r:
            return 0
        older = tuple((i, left - 1) for i, left in kept if left > 1)
        best = r * scale + value(r, older) if kept else 10**15
        for k in range(len(prompt)):
            group = tuple(sorted((*kept, (k, output[k]))))
            if all(i != k for i, _ in kept) and fits(group):
                best = min(best, max(value(r - 1, pair) for pair in combinations(group, min(2, len(group)))) - price[k])
        return best

    return value(len(prompt), ())


def test_the_check_is_the_recursion():
    rng = np.random.default_rng(0)
    for _ in range(60):
        n, memory = int(rng.integers(1, 5)), int(rng.integers(4, 13))
        prompt = np.minimum(rng.integers(0, 4, n), memory - 1).tolist()
        output = [int(rng.integers(1, memory - s + 1)) for s in prompt]
        price = rng.integers(-300, 2000, n).tolist()
        want = Fraction(by_definition(memory, prompt, output, price, 64) + sum(price), 64) + sum(output)
        assert ramp_value(Instance(memory, prompt, output), {"price": price, "scale": 64}) == want


def test_any_prices_bound_the_optimum_from_below():
    rng = np.random.default_rng(1)
    for seed in range(25):
        instance = generate("small", n=4, memory=14, seed=seed)
        best = optimum(instance)[0]
        wild = ramp_value(instance, {"price": rng.integers(-500, 3000, 4).tolist(), "scale": 100})
        assert wild <= best
        assert ramps(instance).value <= best


def test_the_four_requests_are_proved_by_certificate():
    """24 needs a request held back; no order finds it, and the bound of whole ramps meets it exactly."""
    result = solve(generate("four"), "exact", time_limit=20)
    assert (result.total_latency, result.status, result.proof, result.bound.method) == (24, "optimal", "certificate", "ramps")
    assert result.schedule.start.tolist() == [5, 1, 1, 0]


@pytest.mark.parametrize("n", [8, 12])
def test_ramps_lift_the_bound_where_few_fit_together(n):
    instance = generate("small", n=n, seed=1)
    bound = best_bound(instance)
    assert bound.method == "ramps"
    assert bound.value > mean_busy_time(instance).value * Fraction(11, 10)


@pytest.mark.parametrize(
    "kind", ["one price", "rounding up", "float", "length", "scale", "missing", "arrivals", "shared", "memory"]
)
def test_damaged_certificates_are_refused(kind):
    instance = generate("small", n=6, memory=30, seed=2)
    bound = ramps(instance)
    check_bound(instance, bound)
    price = list(bound.certificate["price"])
    changes = {
        "one price": {"price": [price[0] - 10**6, *price[1:]]},
        "float": {"price": [0.5, *price[1:]]},
        "length": {"price": price[1:]},
        "scale": {"scale": 0},
        "missing": {"price": None},
    }.get(kind, {})
    broken = dataclasses.replace(bound, certificate={**bound.certificate, **changes})
    if kind == "rounding up":
        broken = dataclasses.replace(bound, value=bound.value + Fraction(1, 10**9))
    elif kind == "shared":
        broken = dataclasses.replace(bound, kv="shared")
    elif kind == "arrivals":
        instance = instance.replace(arrival=[0, 0, 0, 0, 0, 1])
    elif kind == "memory":
        instance = instance.replace(memory=60)
    with pytest.raises(CertificateError):
        check_bound(instance, broken)
