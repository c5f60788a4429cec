"""The table of solvers: every row certified, all against one bound, best first."""

import csv
import io

import pytest
from exhaustive import four

from opt.comparison import LEFT_OUT, Comparison, compare
from opt.core.instance import Instance
from opt.solvers.door import solve
from opt.solvers.registry import SOLVERS


def two():
    return [four().replace(name="four"), Instance(9, [3, 1, 2], [2, 5, 3], arrival=[0, 4, 1], name="late")]


def test_a_row_says_what_solve_says():
    for row in compare(two(), solvers=["svf", "fcfs-skip"]):
        instance = next(x for x in two() if x.name == row["instance"])
        result = solve(instance, row["solver"])
        assert (row["n"], row["memory"], row["verified"]) == (instance.n, instance.memory, True)
        assert (row["total_latency"], row["mean_latency"]) == (result.total_latency, result.mean_latency)
        assert (row["lower_bound"], row["bound_method"]) == (result.bound.ceil, result.bound.method)
        assert (row["ratio"], row["gap"], row["status"]) == (result.ratio, result.gap, result.status)
        assert (row["makespan"], row["max_wait"]) == (result.schedule.makespan, int(result.schedule.wait.max()))


def test_every_solver_by_default_and_best_first():
    table = compare(two())
    assert {row["solver"] for row in table} == SOLVERS.keys() - set(LEFT_OUT)
    assert [row["instance"] for row in table] == ["four"] * (len(table) // 2) + ["late"] * (len(table) // 2)
    for name in ("four", "late"):
        rows = [row for row in table if row["instance"] == name]
        assert [row["total_latency"] for row in rows] == sorted(row["total_latency"] for row in rows)
        assert len({row["lower_bound"] for row in rows}) == 1


def test_it_is_a_sequence_that_prints_and_exports():
    table = compare([four()], solvers=["sof", "svf", "sorted-rate"])
    assert isinstance(table, Comparison)
    assert len(table) == 3
    assert next(iter(table)) == table[0]
    assert table[-2:] == tuple(table)[1:]
    header, *lines = str(table).splitlines()
    assert header.split() == list(table[0])
    assert len(lines) == 3
    assert len({len(line) for line in (header, *lines)}) == 1
    read = list(csv.DictReader(io.StringIO(table.to_csv())))
    assert [row["solver"] for row in read] == [row["solver"] for row in table]
    assert [int(row["total_latency"]) for row in read] == [row["total_latency"] for row in table]
    assert [row["factor"] for row in read if row["solver"] == "sorted-rate"] == ["16"]


def test_nothing_to_compare():
    assert (str(compare([])), compare([]).to_csv(), len(compare(two(), solvers=[]))) == ("(no rows)", "", 0)
    (row,) = compare([Instance(3, [], [])], solvers=["fcfs"])
    assert (row["total_latency"], row["ratio"], row["mean_latency"], row["max_wait"]) == (0, None, None, None)
    assert "-" in str(compare([Instance(3, [], [])], solvers=["fcfs"])).split()


def test_bound_seed_and_mode_are_passed_on():
    (row,) = compare([four()], solvers=["svf"], bound="volume")
    assert (row["bound_method"], row["lower_bound"]) == ("volume", 15)
    (row,) = compare([four()], solvers=["svf"], kv="shared")
    assert row["bound_method"] == "shared-mean-busy-time"
    many = Instance(20, [k % 7 for k in range(40)], [1 + k % 9 for k in range(40)])
    for seed in (1, 2):
        (row,) = compare([many], solvers=["random"], seed=seed)
        assert row["total_latency"] == solve(many, "random", seed=seed).total_latency


def test_progress_is_told():
    told = []
    compare([four().replace(name="four"), four()], solvers=["svf"], progress=told.append)
    assert told == ["four: svf", "instance: svf"]


def test_unknown_names():
    with pytest.raises(ValueError, match="unknown solver 'svff'"):
        compare([four()], solvers=["svff"])
    with pytest.raises(ValueError, match="unknown bound 'lpp'"):
        compare([four()], bound="lpp")
