"""One suite for every entry of SOLVERS and one for every entry of BOUNDS: a new entry is judged by adding its line."""

import functools
import inspect
import os
import subprocess
import sys

import numpy as np
import pytest
from exhaustive import feasible, four, latency, optimum, random_instance, tiny

import opt
from instances import FAMILIES, generate
from opt.core.certify import check_bound, check_schedule
from opt.core.errors import CertificateError, InstanceError
from opt.core.fairness import fairness
from opt.core.instance import Instance
from opt.solvers import ramps
from opt.solvers.bounds import BOUNDS
from opt.solvers.door import lower_bound, solve
from opt.solvers.portfolio import MEMBERS
from opt.solvers.registry import SOLVERS, summary

every_solver = pytest.mark.parametrize("name", sorted(SOLVERS))
every_bound = pytest.mark.parametrize("name", sorted(BOUNDS))


EFFORT = {"search": {"work": 2000}, "portfolio": {"work": 2000}}  # they search as long as they may

PATIENT = {"dp", "milp", "cpsat", "exact"}  # they run until they have a proof, and repeat themselves only then


def middling(name=""):
    """Some dozens of requests (seven for exact solvers): any sizes, many ties, arrivals, long quiet spells."""
    rng = np.random.default_rng(11)
    if name in PATIENT:
        yield random_instance(rng, 7, 20)
        yield random_instance(rng, 7, 6, outputs=2)
        yield random_instance(rng, 7, 15, arrivals=20)
        yield random_instance(rng, 7, 15, arrivals=5000, outputs=5)
        yield Instance(10, [3] * 6, [4] * 6, arrival=[0, 5] * 3)
        return
    yield random_instance(rng, 60, 50)
    yield random_instance(rng, 60, 6, outputs=2)
    yield random_instance(rng, 50, 30, arrivals=60)
    yield random_instance(rng, 30, 30, arrivals=5000, outputs=5)
    yield Instance(10, [3] * 40, [4] * 40, arrival=[0, 5] * 20)


@every_solver
def test_answers_are_feasible_and_never_better_than_the_optimum(name):
    for instance, best in tiny():
        result = solve(instance, name, **EFFORT.get(name, {}))
        start = result.schedule.start.tolist()
        assert feasible(instance, start)
        assert result.total_latency == latency(instance, start) >= best >= result.bound.value
        assert result.status != "optimal" or result.total_latency == best
        assert result.total_latency <= (result.stats.get("factor") or np.inf) * best


@every_solver
def test_larger_instances_and_the_ratio_that_is_claimed(name):
    """The guarantee speaks of the optimum; here it holds even against the proved bound."""
    for instance in middling(name):
        result = solve(instance, name, **EFFORT.get(name, {}))
        assert feasible(instance, result.schedule.start.tolist())
        factor = result.stats.get("factor")
        assert factor is None or result.total_latency <= factor * result.bound.value


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("name", ["portfolio", "sorted-f-serial", "sorted-rate"])
def test_claimed_ratios_on_the_families(name, family):
    recipe = FAMILIES[family]
    instance = generate(family) if recipe.unit or recipe.count else generate(family, n=60)
    instance = instance.in_rounds("0.1")
    result = solve(instance, name, **EFFORT.get(name, {}))
    factor = result.stats.get("factor")
    assert factor is not None or not instance.offline or result.stats["batches"] == "fast"
    assert factor is None or result.total_latency <= factor * result.bound.value


@every_solver
def test_same_seed_same_starts(name):
    for instance in middling(name):
        first, second = (solve(instance, name, seed=5, **EFFORT.get(name, {})) for _ in range(2))
        assert first.schedule.start.tolist() == second.schedule.start.tolist()
        assert first.stats == second.stats


@every_solver
def test_nobody_and_one(name):
    assert solve(Instance(5, [], []), name).status == "optimal"
    assert solve(Instance(5, [], [], arrival=[]), name).total_latency == 0
    alone = solve(Instance(5, [2], [3], arrival=[7]), name)
    assert (alone.schedule.start.tolist(), alone.total_latency, alone.status) == ([7], 3, "optimal")


@every_solver
def test_whatever_fits_starts_at_once(name):
    """Peaks that sum to the memory never collide. Only serial batches wait for each other, or who cannot see an output."""
    instance = Instance(24, [1, 2, 3], [5, 6, 7])
    assert solve(instance, name).schedule.start.tolist() == [0, 0, 0] or name in ("sorted-f-serial", "one-bit")


@every_solver
def test_inputs_are_left_alone(name):
    instance = random_instance(np.random.default_rng(1), 7 if name in PATIENT else 20, 20, arrivals=9)
    before = {key: np.array(cell).tobytes() for key, cell in instance.columns().items()}
    solve(instance, name, **EFFORT.get(name, {}))
    assert before == {key: np.array(cell).tobytes() for key, cell in instance.columns().items()}


@every_solver
def test_unknown_parameters_are_refused(name):
    with pytest.raises(ValueError, match=f"solver {name} has no parameter agening"):
        solve(four(), name, agening=1)
    for own in ("instance", "name", "rule"):
        with pytest.raises((ValueError, TypeError)):
            solve(four(), name, **{own: 1})


@every_solver
def test_shared_prefixes_free_memory_and_void_the_other_proofs(name):
    """Two prompts of 4 tokens, the first 2 in common: 8 tokens apart, 6 when shared."""
    instance = Instance(10, [4, 4], [1, 1], prefix=[[1, 2], [1, 3]], prefix_chunk=2)
    result = solve(instance, name, kv="shared")
    assert result.schedule.kv == "shared"
    assert result.bound.method == "trivial"
    assert result.stats.get("factor") is None
    assert check_schedule(instance.replace(memory=8), np.array([0, 0]), kv="shared").total_latency == 2


@every_solver
def test_arrivals_in_seconds_need_a_round(name):
    seconds = Instance(9, [1, 1], [2, 2], arrival_s=[0.0, 0.35])
    with pytest.raises(InstanceError, match="say how long a round is"):
        solve(seconds, name)
    assert solve(seconds.in_rounds("0.1"), name).schedule.start.tolist()[1] >= 4


@every_solver
def test_every_solver_is_described_and_takes_what_all_take(name):
    assert summary(name)
    assert {"seed", "time_limit"} <= inspect.signature(SOLVERS[name]).parameters.keys()


def applicable(name, instance):
    """Two bounds refuse arrivals, and three large instances (programs and trees take long before they are refused)."""
    limits = {"volume": instance.offline, "ramps": ramps.applies(instance), "tree": instance.n <= 8, "lp": instance.n <= 8}
    return limits.get(name, True)


@every_bound
def test_bounds_are_certified_and_below_the_optimum(name):
    for instance, best in tiny():
        if not applicable(name, instance):
            continue
        bound = lower_bound(instance, name)
        check_bound(instance, bound)
        assert 0 <= bound.value <= best
        assert bound.ceil - 1 < bound.value <= bound.ceil


@every_bound
def test_bounds_hold_against_every_solver(name):
    for instance in middling():
        if not applicable(name, instance):
            continue
        best = min(solve(instance, solver, bound=None).total_latency for solver in ("staggered", "sorted-f", "svf-pack"))
        assert lower_bound(instance, name).value <= best


@every_bound
def test_bounds_repeat_and_take_nobody_and_one(name):
    for instance in middling():
        if applicable(name, instance):
            assert BOUNDS[name](instance) == BOUNDS[name](instance)
    assert lower_bound(Instance(5, [], []), name).value == 0
    assert 0 < lower_bound(Instance(5, [2], [3]), name).value <= 3


@every_bound
def test_bounds_want_rounds_and_say_what_they_hold_for(name):
    with pytest.raises(InstanceError, match="say how long a round is"):
        solve(Instance(9, [1], [2], arrival_s=[1.0]), "fcfs", bound=name)
    if BOUNDS[name](four()).kv == "separate" and name != "best":
        with pytest.raises(CertificateError, match="proved for separate KV caches"):
            lower_bound(four(), name, kv="shared")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"solver": "svf-pak"}, r"unknown solver 'svf-pak'; did you mean .*svf-pack"),
        ({"solver": "zzz"}, r"unknown solver 'zzz'; `kvopt list solvers`"),
        ({"bound": "besst"}, r"unknown bound 'besst'; did you mean best\?"),
        ({"time_limit": 0}, "time_limit = 0"),
        ({"time_limit": float("nan")}, "time_limit = nan"),
        ({"time_limit": float("inf")}, "time_limit = inf"),
        ({"time_limit": "10"}, "time_limit = '10'"),
        ({"seed": -1}, "seed = -1"),
        ({"seed": 2**63}, "seed = "),
        ({"seed": 1.0}, "seed = 1.0"),
        ({"kv": "both"}, "both"),
        ({"solver": "sof", "ageing": -1}, "ageing = -1"),
        ({"solver": "sof", "ageing": 0.5}, "ageing = 0.5"),
        ({"solver": "sorted-f", "former": "best"}, "former = 'best'"),
    ],
)
def test_the_door_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        solve(four(), **arguments)


def test_one_call_from_the_top():
    result = opt.solve(opt.Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3]), bound="volume", seed=3, ageing=2)
    assert (result.total_latency, result.bound.method, result.bound.ceil) == (25, "volume", 15)
    assert (result.solver, result.seed, result.params, result.status) == ("portfolio", 3, {"ageing": 2}, "feasible")
    assert opt.solve(four(), "svf", bound=opt.lower_bound(four(), "trivial")).bound.value == 17
    assert opt.solve(four(), "svf", bound=None).bound is None


def test_unit_requests_under_three_tokens_are_solved_to_the_optimum():
    """30 x (0, 1), three a round: 3 * (1 + .. + 10) = 165, and the bound (1 + 3 + .. + 59)/6 + 15 meets it."""
    result = solve(Instance(3, [0] * 30, [1] * 30), "fcfs")
    assert (result.total_latency, result.bound.value, result.status, result.proof) == (165, 165, "optimal", "certificate")


def test_a_blocked_head_and_who_slips_past():
    """M = 100: A (80, 10), B (80, 10), C (5, 5). A and B never overlap, so 10 + 20 + 5 = 35 is the least.

    First come, first served keeps C behind B until round 10, 45 in all; with skipping C starts at once.
    """
    instance = Instance(100, [80, 80, 5], [10, 10, 5], ids=["A", "B", "C"])
    best, _ = optimum(instance)
    strict, skip = solve(instance, "fcfs"), solve(instance, "fcfs-skip")
    assert strict.schedule.start.tolist() == [0, 10, 10]
    assert skip.schedule.start.tolist() == [0, 10, 0]
    assert (strict.total_latency / best, skip.total_latency / best) == (45 / 35, 1)
    shares = fairness(strict.schedule)
    assert shares["max_wait"] == 10
    assert shares["jain_slowdown"] == pytest.approx((1 + 2 + 3) ** 2 / (3 * (1 + 4 + 9)))  # slowdowns 1, 20/10 and 15/5


def test_ageing_ends_starvation():
    """(50, 50) arrives at round 1 amid a stream of eight (2, 2) a round, under 100 tokens.

    At round x + 1 last round's eight hold 32, this round's 24 and the long one would hold 51: 107, so while shorter
    ones go first it waits for round 30, when the stream has ended. With 4 units of ageing a round its key 50 + 4 ranks
    before 2 + 4a from a = 13 on (a tie at 13, and it came earlier), so it starts at 13 beside 32 tokens.
    """
    stream = np.repeat(np.arange(30), 8)
    instance = Instance(100, [50] + [2] * 240, [50] + [2] * 240, arrival=np.concatenate([[1], stream]))
    plain, aged = solve(instance, "sof"), solve(instance, "sof", ageing=4)
    assert (plain.schedule.start[0], aged.schedule.start[0]) == (30, 13)
    assert fairness(plain.schedule)["max_wait"] == 29
    for result in (plain, aged):  # conservation: everybody runs to the end
        assert result.schedule.finish.tolist() == (result.schedule.start + instance.output).tolist()
        assert feasible(instance, result.schedule.start.tolist())
        assert 1 / 241 <= fairness(result.schedule)["jain_slowdown"] <= 1
    assert solve(instance, "fcfs").schedule.start[0] == 1


def test_large_ageing_is_first_come_first_served():
    for instance in middling():
        if not instance.offline and len(set(instance.arrival.tolist())) == instance.n:
            assert solve(instance, "svf", ageing=10**6).schedule.start.tolist() == solve(instance, "fcfs").schedule.start.tolist()


def test_mc_sf_is_sof_and_random_is_seeded():
    instance = next(middling())
    assert solve(instance, "mc-sf").schedule.start.tolist() == solve(instance, "sof").schedule.start.tolist()
    latencies = {solve(instance, "random", seed=seed).total_latency for seed in range(5)}
    assert len(latencies) > 1


def test_the_same_bytes_in_every_process():
    """Neither the hash seed nor what ran before moves a start."""
    code = (
        "import opt, instances; i = instances.generate('mixture', n=80, memory=9000);"
        "some = {'portfolio': {'work': 500}, 'random-skip': {}, 'sorted-f': {}};"
        "print(*(opt.solve(i, name, seed=3, **more).schedule.start.tobytes().hex() for name, more in some.items()))"
    )
    run = functools.partial(subprocess.run, [sys.executable, "-c", code], check=True, capture_output=True)
    said = {run(env={**os.environ, "PYTHONHASHSEED": seed}).stdout for seed in ("1", "2")}
    assert len(said) == 1
    instance = generate("mixture", n=80, memory=9000)
    some = {"portfolio": {"work": 500}, "random-skip": {}, "sorted-f": {}}
    here = " ".join(solve(instance, name, seed=3, **more).schedule.start.tobytes().hex() for name, more in some.items())
    assert said == {here.encode() + b"\n"}


def test_the_portfolio_is_no_worse_than_its_best_member():
    for instance in middling():
        result = solve(instance, time_limit=29, work=500)
        members = {name: solve(instance, name) for name in MEMBERS}
        alone = {name: member.total_latency for name, member in members.items()}
        assert result.stats["members"] == alone
        winner = result.stats["winner"]
        assert result.total_latency == alone[winner] if winner in alone else result.total_latency < min(alone.values())
        assert result.stop_reason in ("work_limit", "proved")
        claimed = [member.stats["factor"] for member in members.values() if member.stats.get("factor")]
        assert result.stats["factor"] == min(claimed, default=None)


def test_the_portfolio_returns_under_any_limit():
    result = solve(four(), time_limit=1e-9)
    assert list(result.stats["members"]) == [MEMBERS[0]]
    assert (result.stop_reason, result.total_latency, result.stats["factor"]) == ("time_limit", 25, None)


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_best_so_far(monkeypatch):
    monkeypatch.setitem(SOLVERS, MEMBERS[3], interrupt)
    result = solve(four())
    assert list(result.stats["members"]) == list(MEMBERS[:3])
    assert (result.stop_reason, result.status) == ("interrupted", "feasible")
    assert result.total_latency == min(result.stats["members"].values())


def test_an_interrupt_before_anything_is_found_is_passed_on(monkeypatch):
    monkeypatch.setitem(SOLVERS, MEMBERS[0], interrupt)
    with pytest.raises(KeyboardInterrupt):
        solve(four())


def test_a_solver_that_lies_is_caught(monkeypatch):
    """Whatever a solver says, `solve` hands out nothing that the certifier has not seen."""
    lies = {
        "starts": (opt.Proposal(np.zeros(4, np.int64)), "over the memory of 17"),
        "bound": (opt.Proposal(np.array([5, 1, 1, 0]), bound=opt.Bound(BOUNDS["best"](four()).value, "mine")), "no certificate"),
        "count": (opt.Proposal(np.array([5, 1, 1])), "must hold 4 integers"),
    }
    for proposal, message in lies.values():
        monkeypatch.setitem(SOLVERS, "liar", lambda instance, *, seed, time_limit, said=proposal: said)
        with pytest.raises(CertificateError, match=message):
            solve(four(), "liar")


def test_a_bound_that_meets_the_plan_is_not_looked_for_again(monkeypatch):
    from opt.solvers import door

    def refused(instance):
        raise AssertionError("computed although nothing can be better")

    monkeypatch.setitem(door.BOUNDS, "best", refused)
    result = solve(four(), "portfolio")
    assert (result.total_latency, result.status, result.proof) == (24, "optimal", "certificate")
    with pytest.raises(AssertionError, match="although"):
        solve(four(), "svf")
