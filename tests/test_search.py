"""Local search and the portfolio: never worse than the start, repeatable, exact where one can look everywhere."""

import csv
import itertools

import numpy as np
import pytest
from exhaustive import feasible, four, latency, optimum, random_instance, tiny
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import generate, library
from opt.bench.account import idle_loss
from opt.cli import run
from opt.core.certify import check_schedule
from opt.core.clock import now
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers import portfolio as portfolio_module
from opt.solvers.door import solve
from opt.solvers.ledger import new_profile
from opt.solvers.portfolio import incumbent, portfolio
from opt.solvers.registry import SOLVERS
from opt.solvers.search import driver
from opt.solvers.search.anneal import anneal
from opt.solvers.search.block import Block, Profile, block_profile, least_delay, overlay
from opt.solvers.search.moves import new_room
from opt.solvers.search.plan import new_plan, requests_of
from opt.solvers.search.windows import windowed
from opt.solvers.staggered import staggered


def some():
    """Offline and with arrivals, dense and sparse, with and without ties."""
    rng = np.random.default_rng(5)
    yield random_instance(rng, 40, 50)
    yield random_instance(rng, 60, 30, outputs=3)
    yield random_instance(rng, 50, 30, arrivals=60)
    yield random_instance(rng, 30, 30, arrivals=5000, outputs=5)
    yield generate("mixture", n=80, memory=9000)


def known(name):
    """The total latency of a library instance whose optimum is known."""
    with (library.folder() / "best.csv").open(newline="") as file:
        row = next(row for row in csv.DictReader(file) if row["instance"] == name)
    assert row["status"] == "optimal"
    return int(row["total_latency"])


def annealed(instance, start, moves, heat, seed=1, slice_of=1):
    """Yield the plan after every few moves at a constant heat, with the totals it claims."""
    requests, plan, room, best = requests_of(instance), new_plan(requests_of(instance), start), new_room(instance.n), start.copy()
    totals, heats = np.full(2, start.sum()), np.array([heat, heat])
    random = np.array([seed], np.uint64)
    for done in range(0, moves, slice_of):
        span = np.array([done, done + slice_of, moves])
        anneal(plan, best, requests, instance.memory, random, room, totals, heats, span, 8, instance.offline)
        yield plan, totals, best


def test_every_move_keeps_the_plan_feasible_sorted_and_its_total_right():
    """Hot, so that thousands of moves are accepted, each on top of all before; none of them may ever be wrong."""
    for instance in some():
        start, changes = staggered(instance).start, 0
        output, before = instance.output, start
        for plan, totals, best in annealed(instance, start, 1500, heat=3.0 * instance.n):
            changes += not np.array_equal(before, plan.start)
            before = plan.start.copy()
            check_schedule(instance, plan.start)
            assert (totals[0], totals[1]) == (plan.start.sum(), best.sum())
            assert (np.diff(plan.start[plan.order]) >= 0).all()
            assert (plan.place[plan.order] == np.arange(instance.n)).all()
            assert (np.diff((plan.start + output)[plan.by_finish]) >= 0).all()
            waits = (plan.start - instance.arrival)[plan.order]
            assert instance.offline or (plan.slack == np.minimum.accumulate(waits[::-1])[::-1]).all()
        assert changes > 200
        check_schedule(instance, best)


def test_slicing_changes_nothing():
    for instance in some():
        start = staggered(instance).start
        *_, (whole, _, best) = annealed(instance, start, 1200, heat=0.5 * instance.n, slice_of=1200)
        *_, (sliced, _, other) = annealed(instance, start, 1200, heat=0.5 * instance.n, slice_of=8)
        assert whole.start.tolist() == sliced.start.tolist() != start.tolist()
        assert best.tolist() == other.tolist()


@pytest.mark.parametrize("seed", range(6))
def test_a_block_follows_as_early_as_it_fits_and_no_earlier(seed):
    """Against memory counted round by round: the least delay at which both fit, and their sum at that delay."""
    rng = np.random.default_rng(seed)
    before, behind = random_instance(rng, 5, 25), random_instance(rng, 8, 25)
    first, later = staggered(before).start, staggered(behind).start + 60
    room = new_room(5)
    plan = new_plan(requests_of(before), first)
    empty = np.zeros(5, np.bool_)
    whole = Block(*(np.zeros(40, np.int64) for _ in range(3)))
    size, _ = block_profile(plan, requests_of(before), empty, 0, 10**6, 40, whole)
    profile = Profile(*(np.concatenate([part, np.zeros(60, np.int64)]) for part in new_profile(20)))
    profile.times[0] = -1
    used = overlay(profile, 1, whole, size, 0)
    block = Block(*(np.zeros(40, np.int64) for _ in range(3)))
    requests = requests_of(behind)
    size, complete = block_profile(new_plan(requests, later), requests, np.zeros(8, np.bool_), 0, 10**6, 40, block)
    assert complete
    both = Instance(25, np.concatenate([before.prompt, behind.prompt]), np.concatenate([before.output, behind.output]))

    def together(delay):
        return feasible(both, [*first.tolist(), *(later + delay).tolist()])

    earliest = -int(later.min())
    expected = next(delay for delay in itertools.count(earliest) if together(delay))
    assert least_delay(profile, block, size, earliest, 25) == expected
    overlay(profile, used, block, size, expected)
    _times, usage, _count, after = profile
    k, most = after[0], 0
    while k >= 0:
        most, k = max(most, usage[k]), after[k]
    assert 0 < most <= 25
    assert room.out.sum() == 0


def test_tiny_optima_are_found():
    """All start rounds were tried: 24 for the four requests, where every order gets 25, and 49 others."""
    found = [solve(instance, "search", work=4000).total_latency for instance, _ in tiny()]
    assert found == [best for _, best in tiny()]


def test_six_and_seven_requests_are_solved_too():
    rng = np.random.default_rng(3)
    for _ in range(6):
        instance = random_instance(rng, 6, 16)
        assert solve(instance, "search", work=10_000).total_latency == optimum(instance)[0]


def test_a_request_is_held_back_where_that_is_the_only_way():
    result = solve(four(), "search", work=2000, bound=None)
    assert (result.total_latency, result.schedule.start.tolist()) == (24, [5, 1, 1, 0])


@pytest.mark.parametrize("name", ["tiny-8-1", "tiny-8-4", "small-12-2", "short-12-0", "short-12-2", "svf-trap"])
def test_known_optima_of_the_library_are_found(name):
    result = solve(library.load(name), "search", work=200_000, time_limit=60, bound=None)
    assert result.total_latency == known(name)


def test_never_worse_than_any_start_and_improvements_are_told_in_order():
    for instance in some():
        told = []
        start = SOLVERS["fcfs"](instance).start
        result = solve(instance, "search", work=500, on_progress=lambda best, bound, told=told: told.append((best, bound)))
        assert (
            result.total_latency <= result.stats.get("first", result.total_latency) <= solve(instance, "staggered").total_latency
        )
        assert [best for best, _ in told] == sorted({best for best, _ in told}, reverse=True)
        assert told[-1] == (result.total_latency, None)
        given = SOLVERS["search"](instance, work=500, start=start)
        assert given.start.sum() <= start.sum()


def test_more_work_is_never_worse_and_stops_where_it_says():
    instance = next(some())
    results = [solve(instance, "search", work=work) for work in (0, 100, 3000, 20_000)]
    assert [result.stats["moves"] for result in results] == [0, 100, 3000, 20_000]
    latencies = [result.total_latency for result in results]
    assert latencies == sorted(latencies, reverse=True)
    assert latencies[-1] < latencies[0]
    assert results[1].stop_reason == "work_limit"


def test_seeds_differ_and_repeat():
    instance = next(some())
    starts = [solve(instance, "search", work=3000, seed=seed).schedule.start.tolist() for seed in (1, 1, 2)]
    assert starts[0] == starts[1] != starts[2]


def test_rows_may_come_in_any_order():
    """The same requests shuffled get the same starts; of equal requests the first listed starts first."""
    for instance in some():
        shuffled = np.random.default_rng(8).permutation(instance.n)
        plain = solve(instance, "search", work=1500, bound=None).schedule
        other = solve(instance.take(shuffled), "search", work=1500, bound=None).schedule
        rows = list(zip(instance.prompt.tolist(), instance.output.tolist(), plain.start.tolist(), strict=True))
        taken = zip(other.instance.prompt.tolist(), other.instance.output.tolist(), other.start.tolist(), strict=True)
        assert sorted(rows) == sorted(taken)


@settings(max_examples=25)
@given(st.data())
def test_any_windows_give_a_feasible_plan(data):
    seed, *point = (data.draw(st.integers(0, 50)), *(data.draw(st.floats(-2, 5)) for _ in range(4)))
    rng = np.random.default_rng(seed)
    instance = random_instance(rng, 15, 20, arrivals=seed)
    assert feasible(instance, windowed(instance, *point).tolist())


def test_work_must_be_a_number_of_moves():
    for work in (-1, 1.5, True, "many"):
        with pytest.raises(ValueError, match="work = "):
            solve(four(), "search", work=work)


def test_a_start_must_be_a_plan():
    with pytest.raises(ValueError, match="over the memory of 17"):
        SOLVERS["search"](four(), start=np.zeros(4, np.int64))


def test_the_gap_is_idle_memory_and_order_and_nothing_else():
    """Stretched over busy rounds only, the mean busy times are those of a full memory, so both parts are at least 0.

    Served alone in volume order, as 30 x (0, 1) three a round, there is neither.
    """
    for instance in some():
        for name in ("svf", "lof-skip", "search"):
            result = solve(instance, name, bound="mean-busy-time", **({"work": 500} if name == "search" else {}))
            gap = result.total_latency - float(result.bound.value)
            assert not instance.offline or 0 <= idle_loss(instance, result.schedule.start) <= gap + 1e-6
    unit = Instance(3, [0] * 30, [1] * 30)
    assert idle_loss(unit, solve(unit, "fcfs").schedule.start) == pytest.approx(0)


def test_every_part_of_the_suite_has_tasks_of_both_sizes():
    from opt.bench.search import PARTS

    for name, part in PARTS.items():
        few, many = part.tasks(1, False), part.tasks(1, True)
        assert all(task["part"] == name for task in (*few, *many))
        assert len({str(task) for task in many}) == len(many) >= len(few) > 0
    assert run(["bench", "scale", "--full"]) == 2


def test_an_interrupt_in_the_midst_keeps_the_best(monkeypatch):
    instance, calls = next(some()), []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return anneal(*arguments)

    monkeypatch.setattr(driver, "anneal", interrupted)
    result = solve(instance, "search")
    assert (result.stop_reason, result.status) == ("interrupted", "feasible")
    assert result.total_latency <= result.stats["first"]


def test_an_interrupt_before_the_first_plan_is_passed_on(monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(driver, "staggered", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(four(), "search")


def test_time_only_stops(monkeypatch):
    """With the clock already past the limit there is still a plan, and the same one as the first of an endless run."""
    instance = next(some())
    result = solve(instance, "search", time_limit=1e-9)
    assert (result.stop_reason, result.stats["moves"]) == ("time_limit", 0)
    assert result.total_latency == solve(instance, "staggered").total_latency


def test_the_portfolio_proves_small_optima():
    for name in ("tiny-8-0", "small-12-0", "short-12-0"):
        instance, told = library.load(name), []
        result = solve(instance, time_limit=60, on_progress=lambda best, bound, told=told: told.append((best, bound)))
        assert (result.status, result.total_latency) == ("optimal", known(name))
        assert [best for best, _ in told] == sorted((best for best, _ in told), reverse=True)


def test_the_portfolio_goes_on_to_search_and_takes_the_sharper_bound(monkeypatch):
    monkeypatch.setattr(portfolio_module, "PRICES_FROM_S", 4.0)
    instance = generate("mixture", n=60, memory=9000)
    begun = now()
    result = solve(instance, time_limit=8.0, work=2000)
    assert now() - begun < 60
    assert result.stats["winner"] == "search"
    assert result.stats["moves"] == 2000
    assert result.bound.method == "prices"
    assert result.total_latency < min(result.stats["members"].values())


def test_what_starts_at_once_is_not_searched():
    result = portfolio(Instance(100, [1] * 30, [3] * 30, arrival=range(30)))
    assert result.start.tolist() == list(range(30))
    assert "moves" not in result.stats


def test_ageing_is_left_to_the_orders():
    instance = random_instance(np.random.default_rng(5), 40, 30, arrivals=60)
    result = solve(instance, ageing=3)
    assert result.stats["winner"] in result.stats["members"]
    assert "moves" not in result.stats


def test_the_incumbent_of_exact_solvers_is_certified_and_repeats():
    for instance in some():
        first, second = incumbent(instance), incumbent(instance)
        assert first.start.tolist() == second.start.tolist()
        assert isinstance(first, Proposal)
        assert latency(instance, first.start.tolist()) <= min(first.stats["members"].values())
        assert feasible(instance, first.start.tolist())
