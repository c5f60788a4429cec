"""Guided by prices: alpha points follow the definition, plans are feasible, and exchanges never harm."""

import numpy as np
import pytest
from exhaustive import feasible

from instances import generate
from opt.core.certify import check_schedule
from opt.core.instance import Instance
from opt.solvers.guided import SPREAD, alpha_points, guided


def costs(instance, i, ends, level, starts):
    """What each start costs, from the definition: completion and rent, round by round."""
    price = np.concatenate([np.repeat(level, np.diff(ends, prepend=0)), np.zeros(10_000)])  # price[t - 1] is that of round t
    s, o = int(instance.prompt[i]), int(instance.output[i])
    return np.array([x + o + sum(price[x + k - 1] * (s + k) for k in range(1, o + 1)) for x in starts])


def test_alpha_points_are_quantiles_of_the_soft_minimum():
    instance = Instance(40, [3, 0, 12], [4, 9, 2], arrival=[0, 2, 5])
    ends, level = np.arange(1, 13), np.linspace(0.6, 0.05, 12)
    levels = (0.1, 0.5, 0.9)
    points, means = alpha_points(instance, ends, level, levels)
    grid = np.unique(np.concatenate([[0], ends]))
    for i in range(3):
        starts = np.maximum(grid, instance.arrival[i])
        found = costs(instance, i, ends, level, starts)
        weight = np.exp(-(found - found.min()) / (SPREAD * ends.mean()))
        share = np.cumsum(weight) / weight.sum()
        assert [starts[np.argmax(share >= alpha - 1e-12)] for alpha in levels] == points[i].tolist()
        assert means[i] == pytest.approx((weight * starts).sum() / weight.sum())
        assert (points[i] >= instance.arrival[i]).all()


def test_plans_are_feasible_with_and_without_arrivals():
    rng = np.random.default_rng(3)
    for seed in range(3):
        prompt = rng.integers(0, 10, 12)
        arrival = rng.integers(0, 20, 12) if seed else None
        instance = Instance(25, prompt, rng.integers(1, 26 - prompt), arrival=arrival)
        assert feasible(instance, guided(instance, draws=2, swaps=20).start.tolist())


def test_exchanges_never_harm_and_the_seed_decides():
    instance = generate("mixture", n=120, seed=6)
    plain = check_schedule(instance, guided(instance, draws=3, swaps=0).start).total_latency
    runs = [guided(instance, draws=3, swaps=150, seed=5) for _ in range(2)]
    assert runs[0].start.tolist() == runs[1].start.tolist()
    assert check_schedule(instance, runs[0].start).total_latency <= plain
    svf = check_schedule(instance, guided(instance, draws=0, swaps=0).start).total_latency
    assert plain <= svf


def test_edges():
    assert guided(Instance(5, [], [])).start.tolist() == []
    assert guided(Instance(5, [1], [4])).start.tolist() == [0]
    assert guided(generate("mixture", n=50, seed=1), time_limit=1e-6).stop_reason == "time_limit"
    for wrong in ({"draws": -1}, {"swaps": 1.5}):
        with pytest.raises(ValueError, match="at least 0"):
            guided(Instance(5, [1], [1]), **wrong)
