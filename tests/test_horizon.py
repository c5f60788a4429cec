"""The receding horizon: feasible, repeatable, never behind `staggered` on a backlog, and close to the optimum on small ones."""

import numpy as np
import pytest
from exhaustive import feasible, optimum

from instances import generate
from opt.core.certify import check_schedule
from opt.core.instance import Instance
from opt.sim.rounds import run_rounds
from opt.solvers.horizon import horizon
from opt.solvers.staggered import staggered


def test_the_four_requests_that_no_order_solves():
    four = Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
    assert horizon(four).start.tolist() == [5, 1, 1, 0]  # one is held back on purpose


def test_small_backlogs_come_close_to_the_optimum():
    rng = np.random.default_rng(5)
    behind = 0
    for _ in range(25):
        prompt = rng.integers(0, 6, 5)
        instance = Instance(16, prompt, rng.integers(1, 17 - prompt))
        best, _ = optimum(instance)
        start = horizon(instance).start
        assert feasible(instance, start.tolist())
        total = check_schedule(instance, start).total_latency
        assert best <= total
        behind += total > best
    assert behind <= 2


def test_a_backlog_is_never_behind_staggered():
    for family in ("mixture", "reasoning", "chat"):
        instance = generate(family, n=120, seed=4)
        ours = check_schedule(instance, horizon(instance, window=32, moves=100).start).total_latency
        assert ours <= check_schedule(instance, staggered(instance).start).total_latency


def test_with_arrivals_it_is_the_policy():
    instance = generate("conversation", n=150, memory=16_492, seed=3).in_rounds("0.02")
    assert horizon(instance).start.tolist() == run_rounds(instance, "horizon").schedule.start.tolist()


def test_the_seed_decides():
    instance = generate("mixture", n=80, seed=2)
    one, two = (horizon(instance, seed=7, window=40, moves=300).start.tolist() for _ in range(2))
    assert one == two


@pytest.mark.parametrize("wrong", [{"window": 0}, {"moves": -1}, {"window": True}])
def test_settings_out_of_range_are_refused(wrong):
    with pytest.raises(ValueError, match="must be an integer from"):
        horizon(Instance(5, [1], [1]), **wrong)


def test_nothing_to_do_and_no_time():
    assert horizon(Instance(5, [], [])).start.tolist() == []
    hurried = horizon(generate("mixture", n=100, seed=2), time_limit=1e-6)
    assert hurried.stop_reason == "time_limit"


def _streams(count):
    """Yield small instances with arrivals that keep a queue waiting."""
    rng = np.random.default_rng(11)
    for _ in range(count):
        prompt = rng.integers(0, 12, 60)
        yield Instance(30, prompt, rng.integers(1, 31 - prompt), arrival=np.sort(rng.integers(0, 300, 60)))


def test_it_does_not_look_at_who_comes_later():
    for instance in _streams(4):
        start = horizon(instance).start
        for cut in (10, 25, 40):
            early = horizon(instance.take(np.arange(cut))).start
            seen = start[:cut] < instance.arrival[cut]
            assert (early[seen] == start[:cut][seen]).all()


def test_on_average_streams_wait_less_than_under_the_rule_it_usually_follows():
    ours = usual = 0
    for instance in _streams(30):
        ours += check_schedule(instance, horizon(instance).start).total_latency
        usual += run_rounds(instance, "svf-pack").total_latency
    assert ours < usual
