"""Suites on a dask scheduler with workers in processes of their own: nothing lost, nothing twice, whoever dies."""

from __future__ import annotations

import importlib.util
import json
import signal
import subprocess
import sys
import time

import pytest

from opt.bench import cluster
from opt.bench.cluster import ClusterError
from opt.bench.runner import repeatable, run_suite
from opt.bench.scale import SCALE
from opt.cli import run

pytestmark = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="dask.distributed is not installed")


class Farm:
    """A scheduler and its workers, each a process of its own as `dask scheduler` and `dask worker` start them."""

    def __init__(self, folder):
        self.file, self.log = folder / "scheduler.json", (folder / "log.txt").open("wb")
        self.scheduler = self.start("scheduler", "--port", "0", "--no-dashboard")
        self.workers = []
        deadline = time.monotonic() + 60
        while not self.file.exists() or not self.file.read_text().endswith("}"):
            assert self.scheduler.poll() is None, (folder / "log.txt").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        self.address = json.loads(self.file.read_text())["address"]

    def start(self, *arguments):
        command = [sys.executable, "-m", "dask", *arguments, "--scheduler-file", str(self.file), "--host", "127.0.0.1"]
        return subprocess.Popen(command, stdout=self.log, stderr=self.log)

    def add_worker(self):
        self.workers.append(self.start("worker", "--no-nanny", "--nthreads", "1", "--no-dashboard", "--death-timeout", "60"))

    def stop(self):
        for process in (*self.workers, self.scheduler):
            process.kill()
            process.wait()
        self.log.close()


@pytest.fixture
def farm(tmp_path):
    started = Farm(tmp_path)
    yield started
    started.stop()


@pytest.fixture
def five_tasks(monkeypatch):
    monkeypatch.setattr("opt.bench.scale.SIZES", (50, 60, 70, 80, 90))
    monkeypatch.setattr("opt.bench.scale.SOLVERS", ("svf",))
    monkeypatch.setattr("opt.bench.scale.MEMORIES", (16_492,))


def test_a_killed_worker_loses_nothing_and_doubles_nothing(farm, five_tasks, tmp_path):
    """Both workers are busy when the first result comes: one of them is killed, and another one joins."""
    farm.add_worker()
    farm.add_worker()
    path, seen = tmp_path / "scale.jsonl", []

    def progress(done, total, what):
        if not seen:
            farm.workers[0].send_signal(signal.SIGKILL)
            farm.add_worker()
        seen.append((done, total, what))

    outcome = run_suite(SCALE, seeds=1, cluster=farm.address, path=path, progress=progress)
    assert (len(outcome.records), outcome.errors, outcome.interrupted) == (5, [], False)
    assert [done for done, _, _ in seen] == [1, 2, 3, 4, 5]
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len({line["key"] for line in lines}) == len(lines) == 5
    here = [{"values": SCALE.measure(record["params"])} for record in outcome.records]
    assert [repeatable(SCALE, record)["values"] for record in outcome.records] == [
        repeatable(SCALE, record)["values"] for record in here
    ]
    assert run_suite(SCALE, seeds=1, cluster="tcp://127.0.0.1:1", path=path).errors == []  # nothing is left to ask for


def test_a_cluster_that_cannot_work_says_so(farm, five_tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(cluster, "WORKERS_S", 1.0)
    monkeypatch.setattr(cluster, "CONNECT_S", 2.0)
    with pytest.raises(ClusterError, match="no worker for 1 seconds"):
        run_suite(SCALE, seeds=1, cluster=farm.address)
    assert run(["bench", "scale", "--cluster", "tcp://127.0.0.1:1"]) == 3
    assert run(["bench", "scale", "--cluster", farm.address, "--jobs", "2"]) == 2


def test_an_interrupt_and_a_dead_scheduler_keep_what_is_done(farm, five_tasks, tmp_path):
    farm.add_worker()
    path = tmp_path / "scale.jsonl"

    def leave(*_):
        raise KeyboardInterrupt

    outcome = run_suite(SCALE, seeds=1, cluster=farm.address, path=path, progress=leave)
    assert (len(outcome.records), outcome.interrupted) == (1, True)
    with pytest.raises(ClusterError, match="the scheduler has gone"):
        run_suite(SCALE, seeds=1, cluster=farm.address, path=path, progress=lambda *_: farm.scheduler.kill())
    keys = [json.loads(line)["key"] for line in path.read_text().splitlines()]
    assert 2 <= len(keys) == len(set(keys)) < 5
