"""The runner of benchmarks: every task once, nothing lost, nothing twice."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from instances import library
from opt.bench import SUITES
from opt.bench.runner import repeatable, run_suite
from opt.bench.scale import SCALE
from opt.cli import run
from opt.core.errors import InstanceError
from opt.core.files import write


@pytest.fixture
def small_scale(monkeypatch):
    """The scale suite on sizes that take no time; workers see the same keys because measuring needs params alone."""
    monkeypatch.setattr("opt.bench.scale.SIZES", (50, 100))
    monkeypatch.setattr("opt.bench.scale.SOLVERS", ("svf",))
    monkeypatch.setattr("opt.bench.scale.MEMORIES", (16_492,))


def test_a_suite_gives_a_line_for_each_task_and_resumes(small_scale, tmp_path):
    path = tmp_path / "scale.jsonl"
    first = run_suite(SCALE, seeds=1, path=path)
    assert [record["params"]["n"] for record in first.records] == [50, 100]
    assert all(record["values"]["ratio"] >= 1 and record["peak_mb"] > 10 for record in first.records)
    assert {"kvopt", "numpy", "python"} <= first.records[0]["versions"].keys()
    text = path.read_text()
    path.write_text(text + '{"suite": "scale", "key"')  # a line cut short by a kill
    second = run_suite(SCALE, seeds=2, path=path)
    assert [record["values"] for record in second.records[::2]] == [record["values"] for record in first.records]
    whole = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({record["key"] for record in whole}) == len(whole) == 4


HALF = """
import sys
from pathlib import Path
from opt.bench import scale
from opt.bench.runner import repeatable, run_suite
scale.SIZES, scale.SOLVERS, scale.MEMORIES = (50, 60, 70), ("svf",), (16_492,)
run_suite(scale.SCALE, seeds=1, path=Path(sys.argv[1]))
"""


def test_a_sweep_killed_half_way_and_resumed_gives_the_same_bytes(small_scale, monkeypatch, tmp_path):
    """But for what a clock measured, and the memory; the file as well as the records, in the order of the tasks."""
    monkeypatch.setattr("opt.bench.scale.SIZES", (50, 60, 70))
    whole, halves = tmp_path / "whole.jsonl", tmp_path / "halves.jsonl"
    process = subprocess.Popen([sys.executable, "-c", HALF, str(halves)], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while (not halves.exists() or halves.read_bytes().count(b"\n") < 1) and time.monotonic() < deadline:
        time.sleep(0.02)
    process.kill()
    process.communicate()
    assert 1 <= halves.read_bytes().count(b"\n") < 3
    halves.write_bytes(halves.read_bytes() + b'{"suite": "scale", "key": "sca')  # what a kill in the middle of a line leaves
    resumed, uninterrupted = (run_suite(SCALE, seeds=1, path=path) for path in (halves, whole))
    assert _bytes(resumed.records) == _bytes(uninterrupted.records)
    lines = [[json.loads(line) for line in path.read_text().splitlines()] for path in (halves, whole)]
    assert _bytes(lines[0]) == _bytes(lines[1]) == _bytes(resumed.records)


def _bytes(records):
    return json.dumps([repeatable(SCALE, record) for record in records]).encode()


def test_what_is_repeatable_has_no_clock_in_it_at_any_depth():
    record = {"key": "a", "task_seconds": 1.0, "peak_mb": 2.0, "values": {"ratio": 1.5, "runs": [{"solve_s": 3.0, "n": 4}]}}
    assert repeatable(SCALE, record) == {"key": "a", "values": {"ratio": 1.5, "runs": [{"n": 4}]}}


@pytest.mark.parametrize(
    ("suite", "task", "left"),
    [
        ("exact", {"family": "small", "n": 8, "seed": 0, "method": "exact"}, set()),
        ("bounds", {"n": 1000, "memory": 16_492, "method": "mean-busy-time", "seed": 0}, set()),
        ("ratios", {"solver": "svf", "mode": "small", "seed": 0}, {"ratio", "total_latency", "requests"}),
        ("search", {"part": "rivals", "instance": "tiny-8-0", "solver": "constructed", "seed": 0}, {"plans"}),
        ("deflect", {"part": "cost", "router": "kairos", "queued": 10, "seed": 0}, {"decisions", "held"}),
    ],
)
def test_what_a_suite_calls_repeatable_is_the_same_in_every_run(suite, task, left):
    runs = [repeatable(SUITES[suite], {"values": SUITES[suite].measure(task)})["values"] for _ in range(2)]
    assert runs[0] == runs[1]
    assert left <= runs[0].keys()
    assert left or not runs[0]


def test_a_process_ends_with_the_one_that_started_it():
    """A task of minutes whose parent is killed: its process is gone a moment later."""
    task = {"part": "curve", "n": 100_000, "solver": "search", "seconds": 90, "seed": 0}
    code = f"from opt.bench.apart import start; p = start('search', {task}); print(p.pid, flush=True); p.wait()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    child = int(parent.stdout.readline())
    os.kill(child, 0)
    time.sleep(1)
    parent.kill()
    parent.communicate()
    deadline = time.monotonic() + 30
    while _lives(child) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not _lives(child)


def test_two_runs_do_not_share_a_file(small_scale, tmp_path):
    path = tmp_path / "scale.jsonl"

    def again(*_):
        with pytest.raises(InstanceError, match="another run is writing"):
            run_suite(SCALE, seeds=1, path=path)
        raise KeyboardInterrupt

    assert run_suite(SCALE, seeds=1, path=path, progress=again).interrupted
    assert len(path.read_text().splitlines()) == 1


def _lives(process):
    try:
        return " Z " not in Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_failed_task_is_reported_and_does_not_stop_the_others(tmp_path):
    """The library suite on a folder whose second instance was changed by hand."""
    (tmp_path / "plans").mkdir()
    for name, memory in (("tiny-5-0", 31), ("tiny-5-1", 35)):
        write(library.load(name).replace(memory=memory), library.path(name, tmp_path))
    tasks = [{"instance": name, "library": str(tmp_path), "seed": 0} for name in ("tiny-5-0", "tiny-5-1")]
    suite = dataclasses.replace(SUITES["library"], tasks=lambda seeds: tasks, finish=None)
    outcome = run_suite(suite, seeds=1, path=tmp_path / "log.jsonl")
    assert len(outcome.records) == len(outcome.errors) == 1
    assert "differs from what its recipe makes" in outcome.errors[0]
    assert outcome.errors[0] in (tmp_path / "log.jsonl").read_text()


def test_without_the_public_data_the_clock_says_so_at_once(monkeypatch, capsys):
    monkeypatch.delenv("KVOPT_DATA", raising=False)
    assert run(["bench", "clock"]) == 3
    assert "set KVOPT_DATA to the folder" in capsys.readouterr().err


def test_a_foreign_file_is_not_resumed(tmp_path):
    path = tmp_path / "other.jsonl"
    for text in ('{"a": 1}\n', '{"a": 1}', "notes", "# notes\n\ntext"):
        path.write_text(text)
        with pytest.raises(InstanceError, match="not a record of kvopt bench"):
            run_suite(SCALE, seeds=1, path=path)
        assert path.read_text() == text
    assert run(["bench", "scale", "--resume", str(path)]) == 3
    assert run(["bench", "nothing"]) == 2
    assert run(["bench", "scale", "--library", str(tmp_path)]) == 2
    assert run(["bench", "scale", "--quick"]) == 2
    assert run(["bench", "scale", "--report", "scale.pdf"]) == 2


def test_an_interrupt_keeps_what_is_done(tmp_path):
    path = tmp_path / "scale.jsonl"
    command = [sys.executable, "-m", "opt.cli", "bench", "scale", "--seeds", "1", "--resume", str(path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    deadline = time.monotonic() + 60
    while (not path.exists() or not path.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert all(json.loads(line)["values"] for line in path.read_text().splitlines())


def test_a_part_runs_alone_and_an_unknown_one_is_refused_by_name(capsys):
    assert run(["bench", "search", "--part", "speeed", "--seeds", "1"]) == 2
    assert "no part 'speeed'; it has speed, rivals, small" in capsys.readouterr().err
    assert run(["bench", "scale", "--part", "speed"]) == 2
    assert "it has no parts" in capsys.readouterr().err
    suite = dataclasses.replace(
        SCALE, tasks=lambda seeds: [{"part": name, "seed": seed} for name in "ab" for seed in range(seeds)]
    )
    outcome = run_suite(suite, seeds=2, part="b")
    assert len(outcome.errors) == 2  # the tasks of b, which the measure of the scale suite does not know
