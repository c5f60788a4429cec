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
