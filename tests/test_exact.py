"""The exact solvers: right on all small instances, honest when cut off, and never at a loss for an answer."""

import json
import os
import signal
import subprocess
import sys
import time
from fractions import Fraction

import numpy as np
import pytest
from exhaustive import feasible, four, optimum, random_instance, tiny

import opt
from instances import generate
from opt.core.clock import now
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.door import solve
from opt.solvers.exact import apart, timeindexed
from opt.solvers.exact.apart import solve_apart
from opt.solvers.exact.items import items_of
from opt.solvers.exact.ramps import Tables, fill
from opt.solvers.exact.structure import layered, together
from opt.solvers.registry import SOLVERS

EXACT = ("dp", "milp", "cpsat", "exact")
MODELS = ("milp", "cpsat")
every_exact = pytest.mark.parametrize("name", EXACT)
every_model = pytest.mark.parametrize("name", MODELS)


def crowds():
    """Five to eight requests: few that run together, many, equal ones, no prompts, late ones."""
    rng = np.random.default_rng(3)
    for k in range(12):
        memory = int(rng.integers(8, 26))
        instance = random_instance(rng, 5 + k % 4, memory, outputs=(memory, memory // 2, memory // 4, 3)[k % 4])
        if k % 3 == 0:
            twins = np.minimum(np.arange(instance.n), instance.n - 3)
            instance = instance.replace(prompt=instance.prompt[twins], output=instance.output[twins])
        yield instance.replace(arrival=rng.integers(0, 12, instance.n)) if k % 5 == 4 else instance


def far_apart(gap):
    return Instance(9, [2, 5, 1, 3, 6, 4], [4, 3, 6, 5, 3, 2], arrival=[0, 0, 2, gap, gap, gap + 1])


@every_exact
def test_tiny_instances_are_solved_to_the_optimum(name):
    for instance, best in tiny():
        result = solve(instance, name)
        late = name == "dp" and not instance.offline
        assert result.status == "optimal" or late
        assert result.total_latency == best or late
        assert "failed" not in result.stats


def test_the_four_that_no_order_solves():
    """M = 17: the only optimum 24 holds (9, 5) back until round 5; every order gives at least 25."""
    for name in EXACT:
        result = solve(four(), name, bound="trivial")
        assert (result.total_latency, result.status, result.proof, result.stop_reason) == (24, "optimal", "search", "proved")
        assert result.schedule.start.tolist() == [5, 1, 1, 0]
        assert result.gap == 0


def test_all_methods_agree_on_larger_ones():
    """Four searches that share nothing but the heuristics: equal optima where they are proved."""
    proved = 0
    for instance in crowds():
        results = [solve(instance, name) for name in EXACT]
        optima = {result.total_latency for result in results if result.status == "optimal"}
        assert len(optima) == 1
        assert all(result.total_latency >= min(optima) >= result.bound.value for result in results)
        assert all(result.stats.get("root_bound", 0) <= min(optima) for result in results)
        assert all(result.stats.get("search_bound", 0) <= min(optima) for result in results)
        proved += sum(result.status == "optimal" for result in results)
    assert proved >= 12 * 4 - 2  # dp leaves the late ones to the others


@every_model
def test_the_plain_rivals_find_the_same(name):
    for instance, best in tiny()[::3]:
        assert solve(instance, name, plain=True).total_latency == best
    instance = next(crowds())
    plain, full = solve(instance, name, plain=True), solve(instance, name)
    assert plain.total_latency == full.total_latency
    assert plain.stats["columns"] > full.stats.get("columns", 0)


def test_equal_requests_are_told_apart_by_nothing():
    for instance in (Instance(12, [1] * 5, [4] * 5), Instance(9, [0, 0, 0, 2, 2], [4, 4, 4, 1, 1])):
        best, _ = optimum(instance)
        for name in EXACT:
            result = solve(instance, name)
            assert (result.total_latency, result.status) == (best, "optimal")


def test_late_requests_and_quiet_spells():
    """A spell of a million rounds costs nothing, and shortening it changes nothing but the starts after it."""
    near, far = far_apart(30), far_apart(10**6)
    best, _ = optimum(near)
    for name in ("milp", "cpsat", "exact"):
        results = [solve(instance, name) for instance in (near, far)]
        assert [(r.total_latency, r.status) for r in results] == [(best, "optimal")] * 2
    smaller, moved = timeindexed.compact(far)
    assert smaller.arrival.tolist() == [0, 0, 2, 15, 15, 16]  # 2 + the outputs 4 + 3 + 6
    assert (smaller.arrival + moved).tolist() == far.arrival.tolist()
    assert moved.tolist() == [0, 0, 0, 10**6 - 15, 10**6 - 15, 10**6 - 15]
    again, none = timeindexed.compact(smaller)
    assert (again.arrival.tolist(), none.tolist()) == (smaller.arrival.tolist(), [0] * 6)


def test_the_layered_search_leaves_arrivals_to_others():
    late = far_apart(30)
    result = solve(late, "dp")
    assert (result.status, result.stop_reason) == ("feasible", "done")
    assert "arrive after round 0" in result.stats["refused"]
    assert result.total_latency == solve(late).total_latency


@every_exact
def test_same_seed_same_answer_whatever_the_limit(name):
    """As long as the limit is not reached: all work is counted, none timed."""
    for instance in list(crowds())[:4]:
        runs = [SOLVERS[name](instance, seed=4, time_limit=limit) for limit in (30, 50, None)]
        assert len({tuple(run.start.tolist()) for run in runs}) == 1
        assert len({json.dumps(run.stats, sort_keys=True) for run in runs}) == 1
        assert all(run.stop_reason == runs[0].stop_reason for run in runs)


@pytest.mark.parametrize("seed", range(3))
def test_the_seed_does_not_move_the_optimum(seed):
    instance = generate("small", n=10, seed=1)
    assert solve(instance, "dp", seed=seed).total_latency == solve(instance, "exact").total_latency


@every_exact
def test_a_short_limit_holds_and_leaves_a_plan(name):
    instance = generate("small", n=25, seed=0)
    begun = now()
    result = solve(instance, name, time_limit=1, bound="trivial")
    assert now() - begun < 10
    assert result.status in ("feasible", "optimal")
    assert feasible(instance, result.schedule.start.tolist())
    assert result.total_latency <= solve(instance, "svf-pack", bound="trivial").total_latency


@every_exact
@pytest.mark.parametrize("limit", [1e-9, 0.05])
def test_a_limit_too_short_for_anything_still_gives_a_plan(name, limit):
    result = solve(generate("small", n=15, seed=2), name, time_limit=limit)
    assert (result.status, result.stop_reason) == ("feasible", "time_limit")


@every_exact
def test_too_many_requests_get_a_heuristic_plan_and_the_reason(name):
    instance = generate("mixture", n=2500, memory=16_492, seed=1)
    result = solve(instance, name, time_limit=30)
    assert result.status == "feasible"
    assert "2,500 requests" in result.stats["refused"]
    assert result.stats["start_latency"] == result.total_latency


def test_more_than_62_requests_go_to_the_models():
    instance = Instance(6, [1] * 70, [2] * 70)
    assert "up to 62" in solve(instance, "dp").stats["refused"]
    assert not layered(instance, None, 2000)
    assert solve(instance, "exact", time_limit=2).status in ("feasible", "optimal")


@every_exact
def test_models_beyond_the_memory_are_refused_before_they_are_built(name):
    instance = generate("small", n=20, seed=0)
    result = solve(instance, name, memory_mb=1)
    assert result.status == "feasible"
    assert "memory_mb allows" in result.stats["refused"]


@every_exact
def test_huge_numbers_are_refused_before_anything_is_built(name):
    """Two that exclude each other for 2**29 rounds each, and a short one beside them: 2**29 + 2 * 2**29 + 3."""
    result = solve(Instance(2**31 - 1, [2**30, 2**30, 5], [2**29, 2**29, 3]), name)
    assert result.total_latency == 3 * 2**29 + 3
    assert result.stats["refused"]


def test_a_large_memory_is_no_obstacle_to_the_models():
    """Three prompts fit with one token to spare, but grow by three: two at a time, as a rounded row might not see."""
    third = (2**31 - 1) // 3
    instance = Instance(2**31 - 1, [third] * 4, [1] * 4)
    for name in ("milp", "cpsat", "exact"):
        result = solve(instance, name)
        assert (result.total_latency, result.status) == (1 + 1 + 2 + 2, "optimal")


@every_exact
@pytest.mark.parametrize(
    ("params", "message"),
    [({"memory_mb": 0}, "memory_mb = 0: must be an integer, at least 1"), ({"memory_mb": "x"}, "memory_mb = 'x'")],
)
def test_parameters_out_of_range_are_refused(name, params, message):
    with pytest.raises(ValueError, match=message):
        solve(four(), name, **params)


def test_progress_is_told_as_it_comes():
    seen = []
    SOLVERS["dp"](four(), on_progress=lambda incumbent, bound: seen.append((incumbent, bound)))
    assert seen[0] == (24, None)
    assert seen[-1] == (24, 24)
    assert all(bound is None or bound <= 24 <= incumbent for incumbent, bound in seen)


def test_a_beam_claims_nothing_it_has_not_proved():
    result = solve(generate("small", n=20, seed=0), "dp", max_width=1, time_limit=60)
    assert result.status == "feasible"
    assert result.stop_reason == "done"
    assert result.stats["root_bound"] <= result.total_latency


def test_which_method_suits():
    assert together(four()) == Fraction(17 * 17, 60 + 25 + 34 + 12)
    assert layered(four(), None, 2000)
    assert not layered(Instance(100, [1] * 9, [2] * 9), None, 2000)


# ------------------------------------------------------------------------------------ what goes wrong in the worker


def noisy(tell, instance, start, deadline, seed, settings):
    """Finds the optimum of `four`, then does what `settings` say."""
    os.write(1, b"banner of a foreign solver\n")
    sys.stdout.write("and more\n")
    tell(("start", np.array([5, 1, 1, 0])))
    tell(("bound", 23))
    if settings["then"] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if settings["then"] == "exhaust memory":
        raise MemoryError
    if settings["then"] == "sleep":
        time.sleep(60)
    if settings["then"] == "lie":
        return Proposal(np.zeros(4, np.int64), exhausted=True, stop_reason="proved")
    return Proposal(np.array([5, 1, 1, 0]), exhausted=True, stop_reason="proved")


def provoked(then, **options):
    arguments = {"seed": 0, "time_limit": 20, "on_progress": None, "settings": {"then": then}, **options}
    return solve_apart(noisy, four(), lambda _instance, _start: None, **arguments)


@pytest.mark.parametrize(("then", "failure"), [("die", "ended by SIGKILL"), ("exhaust memory", "MemoryError")])
def test_a_worker_that_dies_leaves_its_best(then, failure):
    proposal = provoked(then)
    assert (proposal.start.tolist(), proposal.exhausted, proposal.stop_reason) == ([5, 1, 1, 0], False, "work_limit")
    assert failure in proposal.stats["failed"]
    assert proposal.stats["search_bound"] == 23


def test_a_worker_that_overruns_is_cut_off_with_its_best():
    begun = now()
    proposal = provoked("sleep", time_limit=2)
    assert now() - begun < 15
    assert (proposal.start.tolist(), proposal.stop_reason) == ([5, 1, 1, 0], "time_limit")


def test_a_worker_that_lies_is_not_believed():
    """A schedule over the memory counts for nothing, and the claim made with it is void."""
    proposal = provoked("lie")
    assert (proposal.start.tolist(), proposal.exhausted) == ([5, 1, 1, 0], False)


def test_stray_output_stays_off_stdout(capfd):
    assert provoked("end").exhausted
    assert solve(four(), "milp").status == solve(four(), "cpsat").status == "optimal"
    assert capfd.readouterr() == ("", "")


def test_an_interrupt_in_the_portfolio_is_kept_too(monkeypatch):
    stopped = Proposal(np.array([0, 5, 10, 14]), stop_reason="interrupted")
    monkeypatch.setattr(apart, "incumbent", lambda *_, **__: stopped)
    assert solve(four(), "exact").stop_reason == "interrupted"


def test_ctrl_c_saves_the_best_found(tmp_path):
    """To the whole group, as a terminal sends it: exit code 130, a plan that verifies, one JSON document."""
    solve(generate("small", n=12, seed=0), "exact")  # so that compiled loops are on disk
    problem, plan = tmp_path / "hard.json", tmp_path / "plan.json"
    opt.write(generate("small", n=40, seed=0), problem)
    command = [sys.executable, "-m", "opt.cli", "solve", str(problem), "--solver", "exact", "--time-limit", "60", "--json"]
    process = subprocess.Popen(
        [*command, "-o", str(plan)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    time.sleep(5)
    os.killpg(process.pid, signal.SIGINT)
    said, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    document = json.loads(said)
    assert (document["stop_reason"], document["status"], document["verified"]) == ("interrupted", "feasible", True)
    assert opt.verify(plan).total_latency == document["total_latency"]


# ------------------------------------------------------------------------------------------------------- the bound


def reference(memory, requests, price, scale):
    """The recursion of `ramps` with pairs, word for word, by memoised recursion over sets of (request, rounds to go)."""
    from functools import cache

    infinite = 10**12
    n = len(requests)

    def fits(state):
        """Whether the running requests and nobody else stay within the memory until the first of them ends."""
        first = min(left for _, left in state)
        return sum(requests[i][0] + requests[i][1] - left + first for i, left in state) <= memory

    def older(state):
        return tuple((i, left - 1) for i, left in state if left > 1)

    @cache
    def single(r, state):
        if state and not fits(state):
            return infinite
        if r == 0:
            return 0
        options = [r * scale + single(r, older(state))] if state else []
        for k in range(n):
            if any(i == k for i, _ in state):
                continue
            joined = (*state, (k, requests[k][1]))
            if fits(joined) and all(fits(pair) for pair in pairs(joined)):
                options.append(group(r - 1, joined) - price[k])
        return min(options, default=infinite)

    def pairs(state):
        return [(a, b) for x, a in enumerate(state) for b in state[:x]]

    def group(r, state):
        if len(state) < 2:
            return single(r, state)
        return max(single(r, tuple(sorted(pair))) for pair in pairs(state))

    return group(n, ())


def test_the_tables_are_the_recursion():
    rng = np.random.default_rng(8)
    for _ in range(12):
        n, memory = int(rng.integers(2, 5)), int(rng.integers(4, 12))
        instance = random_instance(rng, n, memory, outputs=4)
        price = rng.integers(0, 40, n)
        items = items_of(memory, instance.prompt, instance.output, instance.output)
        count = len(items.own)
        tables = Tables(2, np.zeros((n + 1, count + 1, count + 1), np.int32), np.zeros((n + 1, 1), np.int32))
        fill(tables, items, price, n, 8)
        requests = list(zip(instance.prompt.tolist(), instance.output.tolist(), strict=True))
        assert int(tables.pair[n, -1, -1]) == reference(memory, requests, price.tolist(), 8)


def test_any_prices_bound_the_optimum():
    """At both levels, and more is never less: what keeps three requests is at least what keeps two."""
    rng = np.random.default_rng(9)
    for instance, best in tiny():
        n = instance.n
        if not instance.offline:
            continue
        items = items_of(instance.memory, instance.prompt, instance.output, instance.output)
        count = len(items.own)
        price = rng.integers(-20, 60, n)
        values = []
        for level in (2, 3):
            triples = count * (count - 1) * (count - 2) // 6 if level == 3 else 1
            tables = Tables(level, np.zeros((n + 1, count + 1, count + 1), np.int32), np.zeros((n + 1, triples), np.int32))
            fill(tables, items, price, n, 8)
            values.append(int(tables.pair[n, -1, -1]) + int(price.sum()))
        assert values[0] <= values[1] <= 8 * (best - int(instance.output.sum()))
