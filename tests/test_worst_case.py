"""The hunt for bad instances: its optimum is the optimum, what it finds is certified, and no claimed factor breaks on it."""

import math

import numpy as np
import pytest
from exhaustive import optimum as slow_optimum
from exhaustive import random_instance, tiny

from instances import FAMILIES, generate, library
from instances.champions import CHAMPIONS, WORST
from opt.bench.ratios import PROVEN, RATIOS, hunted, proven
from opt.core.errors import CertificateError
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.bounds import best_bound
from opt.solvers.door import solve
from opt.solvers.registry import SOLVERS
from proofs import CLAIMS
from proofs.worst_case import Champion, check, hunt_groups, hunt_small, latency, optimum

QUICK = [name for name in hunted() if name != "random"]
every_champion = pytest.mark.parametrize("name", sorted(CHAMPIONS))


def test_the_compiled_search_finds_the_optimum():
    rng = np.random.default_rng(8)
    for instance, best in tiny():
        if instance.offline:
            assert optimum(instance) == best
    for k in range(60):
        instance = random_instance(rng, 2 + k % 4, int(rng.integers(2, 12)), outputs=(None, 4)[k % 2])
        assert optimum(instance) == slow_optimum(instance)[0]
    assert optimum(Instance(6, [2, 2, 2], [3, 3, 3])) == 3 + 6 + 9  # equal requests of peak 5, one at a time
    with pytest.raises(ValueError, match="all there at round 0"):
        optimum(Instance(6, [2], [3], arrival=[1]))


@pytest.mark.parametrize(("solver", "least"), [("fcfs", 2), ("svf-skip", 1.5), ("svf-pack", 1.2), ("sorted-rate", 1.1)])
def test_a_hunt_finds_what_is_there_and_repeats(solver, least):
    first, second = (hunt_small(solver, seed=3, tries=400) for _ in range(2))
    assert first.ratio == second.ratio > least
    assert first.instance.prompt.tolist() == second.instance.prompt.tolist()
    assert (first.slow, first.fast) == (solve(first.instance, solver).total_latency, slow_optimum(first.instance)[0])


def test_a_hunt_at_larger_size_holds_against_the_best_schedule_known():
    found = hunt_groups("fcfs", seed=1, tries=120)
    assert found.ratio > 2
    assert found.fast >= best_bound(found.instance).value
    assert not found.exact
    assert found.instance.n > 6


def test_a_claim_that_breaks_is_reported(monkeypatch):
    instance = Instance(10, [9, 0], [1, 1])
    monkeypatch.setitem(SOLVERS, "boaster", lambda instance, **_: Proposal(np.array([9, 0]), stats={"factor": 3}))
    with pytest.raises(ArithmeticError, match="boaster claims a factor of 3 and takes 11 against 3"):
        check(Champion("boaster", instance, 11, 3, exact=True))
    with pytest.raises(ArithmeticError, match="is above a total latency of 1"):
        check(Champion("fcfs", instance, 3, 1, exact=False))
    monkeypatch.setitem(SOLVERS, "liar", lambda instance, **_: Proposal(np.array([0, 0])))
    with pytest.raises(CertificateError, match="over the memory"):
        check(Champion("liar", instance, 2, 2, exact=True))


def test_the_champions_are_in_the_library_with_their_optimum():
    for name in CHAMPIONS:
        assert library.MANIFEST[name].family == name
        assert FAMILIES[name] is CHAMPIONS[name]
        assert library.load(name).n <= 10


@every_champion
def test_a_champion_is_as_bad_as_recorded(name):
    record, instance = WORST[name.removeprefix("worst-")], generate(name)
    solver = name.removeprefix("worst-")
    assert optimum(instance) == record.optimum
    if solver in SOLVERS:  # a solver may get better: then its champion only shows less
        assert record.optimum <= latency(instance, solver) <= record.total_latency


@pytest.mark.parametrize("solver", QUICK)
def test_no_factor_breaks_on_a_champion(solver):
    for name, record in WORST.items():
        result = solve(generate(f"worst-{name}"), solver)
        assert result.total_latency >= record.optimum
        assert result.total_latency <= (result.stats.get("factor") or math.inf) * result.bound.value


OFFLINE = [name for name in library.names() if library.load(name).offline and library.load(name).n <= 1000]


@pytest.mark.parametrize("name", [name for name in OFFLINE if name not in CHAMPIONS])
@pytest.mark.parametrize("solver", ["sorted-f", "sorted-f-serial", "sorted-rate", "phases", "staggered"])
def test_no_factor_breaks_on_the_library(solver, name):
    result = solve(library.load(name), solver, bound="mean-busy-time")
    factor = result.stats.get("factor")
    assert factor is not None or solver in ("sorted-f", "sorted-f-serial", "staggered")
    assert factor is None or result.total_latency <= factor * result.bound.value


def test_every_proved_bound_names_a_claim():
    for _, claim in PROVEN.values():
        assert claim in CLAIMS
    assert proven("svf-skip") == "2M(1 + sqrt(1 + ln M)) (never-idle)"
    assert proven("sof") == "21 sqrt(M) + 9 (sof-root)"
    assert proven("sorted-rate") == "-"


def test_the_suite_hunts_every_policy_and_prints_a_row_each():
    tasks = RATIOS.tasks(2)
    assert {task["solver"] for task in tasks} == set(hunted())
    assert len(tasks) == 5 * len(hunted())
    values = {"ratio": 1.5, "of_bound": 2.0, "n": 3, "memory": 9, "name": "four", "factor": 16}
    records = [{"params": task, "values": {**values, "ratio": 1 + task["seed"]}} for task in tasks[:5]]
    (table,) = RATIOS.tables(records)
    assert table.rows == [[tasks[0]["solver"], 16, proven(tasks[0]["solver"]), 2, 3, 9, 2, 2.0, 3, 9, 1, 2.0, "four"]]
    assert len(table.columns) == len(table.rows[0])


def test_a_family_task_measures_every_trap():
    values = RATIOS.measure({"solver": "best-fit", "mode": "families", "seed": 0})
    assert values["ratio"] > 10
    assert values["name"].startswith("fcfs-trap")
    assert values["of_bound"] >= values["ratio"]
