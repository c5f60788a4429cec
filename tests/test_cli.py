"""The command line: one JSON document, documented exit codes, one clear line for bad input."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from opt.cli import run
from opt.cli.console import parameters
from opt.cli.tables import print_table

FOUR = {
    "format": "kvopt-instance/1",
    "name": "four",
    "memory": 17,
    "columns": {"prompt": [9, 2, 6, 2], "output": [5, 5, 4, 3]},
}


@pytest.fixture
def four(tmp_path: Path) -> str:
    path = tmp_path / "four.json"
    path.write_text(json.dumps(FOUR))
    return str(path)


def document(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> dict:
    assert run([*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out, parse_constant=pytest.fail)


def refused(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 3) -> str:
    """Return the one line on stderr of a command that must fail with `code` and print nothing else."""
    assert run(list(arguments)) == code
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    if code != 2:
        assert printed.err.count("\n") == 1
    return printed.err


def test_solve_reports_the_contract(capsys, four):
    value = document(capsys, "solve", four, "--solver", "svf-pack")
    assert value["instance"] == {"name": "four", "memory": 17, "n": 4}
    assert (value["total_latency"], value["lower_bound"], value["verified"]) == (25, 24, True)
    assert value["gap"] == pytest.approx((25 - 24) / 25)
    assert value["ratio"] == pytest.approx(25 / 24)
    keys = {"solver", "status", "proof", "stop_reason", "mean_latency", "lower_bound_exact", "bound_method", "makespan"}
    assert keys | {"seconds", "seed", "kv"} <= value.keys()


def test_a_plan_verifies_and_a_damaged_one_does_not(capsys, four, tmp_path):
    plan = tmp_path / "plan.json"
    document(capsys, "solve", four, "--solver", "svf", "-o", str(plan))
    assert document(capsys, "verify", str(plan))["total_latency"] == 25
    value = json.loads(plan.read_text())
    assert value["instance_ref"]["path"] == "four.json"
    value["start"] = [0, 0, 0, 0]
    plan.write_text(json.dumps(value))
    assert document(capsys, "verify", str(plan), code=1)["verified"] is False
    assert "over the memory of 17" in refused(capsys, "verify", str(plan), code=1)


def test_a_plan_notices_that_its_instance_changed(capsys, four, tmp_path):
    plan = tmp_path / "plan.json"
    document(capsys, "solve", four, "--solver", "svf", "-o", str(plan))
    Path(four).write_text(json.dumps({**FOUR, "memory": 18}))
    assert "another version" in refused(capsys, "verify", str(plan), code=1)


def test_generate_is_reproducible_and_packs(capsys, tmp_path):
    paths = [tmp_path / "a.json", tmp_path / "b.json.gz"]
    for path in paths:
        document(capsys, "generate", "small", "--n", "60", "--seed", "3", "-o", str(path))
    assert gzip.decompress(paths[1].read_bytes()) == paths[0].read_bytes()
    assert document(capsys, "generate", "small", "--n", "5")["format"] == "kvopt-instance/1"


def test_pipes(capsys, monkeypatch):
    assert run(["generate", "four"]) == 0
    text = capsys.readouterr().out
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert document(capsys, "bound", "-", "--bound", "trivial")["lower_bound"] == 17


def test_compare_ranks_and_exports(capsys, four, tmp_path):
    rows = document(capsys, "compare", four, "--solvers", "fcfs,svf,sof")["rows"]
    assert [row["solver"] for row in rows] == ["svf", "sof", "fcfs"]
    assert all(row["verified"] for row in rows)
    assert run(["compare", four, "--csv", "--plot", str(tmp_path / "ratios.png")]) == 0
    assert capsys.readouterr().out.startswith("instance,n,memory,solver")
    assert (tmp_path / "ratios.png").stat().st_size > 1000


def test_a_blocked_head_blocks_until_skipping_is_allowed(capsys, tmp_path):
    """P02: A(80,10), B(80,10), C(5,5) under 100 tokens. Head of line 10 + 20 + 25 = 55; C passing B 10 + 20 + 5 = 35."""
    path = tmp_path / "p02.json"
    path.write_text(json.dumps({**FOUR, "memory": 100, "columns": {"prompt": [80, 80, 5], "output": [10, 10, 5]}}))
    rows = {row["solver"]: row for row in document(capsys, "compare", str(path), "--solvers", "fcfs,fcfs-skip")["rows"]}
    assert rows["fcfs"]["total_latency"] == 45
    assert rows["fcfs-skip"]["total_latency"] == 35
    assert rows["fcfs"]["ratio"] > rows["fcfs-skip"]["ratio"] >= 1


def test_ageing_keeps_the_long_request_from_starving(capsys, tmp_path):
    """P09: one (50,50) and a stream of (2,2): shortest first makes it wait for the stream's end, ageing does not."""
    path = tmp_path / "p09.json"
    arrivals = [1, *range(40)]  # in every round from 1 on, two short ones hold 30 tokens and more each
    columns = {"prompt": [50, *[30] * 40], "output": [50, *[2] * 40], "arrival": arrivals}
    path.write_text(json.dumps({**FOUR, "memory": 100, "columns": columns}))
    starts = {}
    for ageing in (0, 10):
        plan = tmp_path / f"plan{ageing}.json"
        value = document(capsys, "solve", str(path), "--solver", "sof", "--param", f"ageing={ageing}", "-o", str(plan))
        starts[ageing] = json.loads(plan.read_text())["start"][0]
        assert value["max_wait"] >= value["wait"]["p99"] >= value["wait"]["p50"] >= 0
        assert 0 < value["jain_slowdown"] <= 1
    assert starts[10] < 12  # key 50 + 10 against 2 + 10 * arrival: only arrivals before round 6 go first
    assert starts[0] >= 40  # the stream's last request arrives in round 39


def test_arrivals_in_seconds_need_a_round_length(capsys, tmp_path):
    path = tmp_path / "timed.json"
    path.write_text(json.dumps({**FOUR, "columns": {**FOUR["columns"], "arrival_s": [0.0, 0.11, 0.2, 1.1]}}))
    assert "--round-s" in refused(capsys, "solve", str(path))
    assert "--round-s" in refused(capsys, "bound", str(path))
    plan = tmp_path / "plan.json"
    assert document(capsys, "solve", str(path), "--round-s", "0.1", "-o", str(plan))["verified"]
    embedded = json.loads(plan.read_text())["instance"]
    assert [request["arrival"] for request in embedded["requests"]] == [0, 2, 2, 11]
    assert run(["verify", str(plan), "--quiet"]) == 0


BAD_FILES = {
    "not JSON": ("{", "not JSON"),
    "another file": ("[]", "not a kvopt file"),
    "empty": ("", "empty"),
    "huge memory": (json.dumps({**FOUR, "memory": 10**14}), "memory = 100000000000000"),
    "no memory": (json.dumps({**FOUR, "memory": 0}), "no request can run"),
    "zero output": (json.dumps({**FOUR, "columns": {"prompt": [1], "output": [0]}}), "output[0] = 0"),
    "oversized": (json.dumps({**FOUR, "columns": {"prompt": [10], "output": [5000]}}), "peak 5010"),
    "negative": (json.dumps({**FOUR, "columns": {"prompt": [-1], "output": [1]}}), "prompt[0] = -1"),
    "fraction": (json.dumps({**FOUR, "columns": {"prompt": [1.5], "output": [1]}}), "$.columns.prompt"),
    "NaN": ('{"format": "kvopt-instance/1", "memory": 9, "columns": {"prompt": [1], "output": [NaN]}}', "output[0]: NaN"),
    "twice": ('{"format": "kvopt-instance/1", "memory": 9, "memory": 8, "requests": []}', "'memory' stands twice"),
    "typo": (json.dumps({**FOUR, "total_kv_block": 50}), "total_kv_block"),
    "two ids": (json.dumps({**FOUR, "columns": {"id": ["a", "a"], "prompt": [1, 1], "output": [1, 1]}}), "already the id"),
    "lengths": (json.dumps({**FOUR, "columns": {"prompt": [1, 1], "output": [1]}}), "output has 1 values for 2"),
}


def test_parameters_are_integers_floats_or_text():
    pairs = ("ageing=5", "max-wait-s=2.5", "small=-1e-3", "victim=last", "label=a=b")
    found = parameters(None, None, pairs)
    assert found == {"ageing": 5, "max_wait_s": 2.5, "small": -0.001, "victim": "last", "label": "a=b"}
    assert isinstance(found["ageing"], int)


@pytest.mark.parametrize("kind", BAD_FILES)
def test_bad_files_end_in_one_clear_line(capsys, tmp_path, kind):
    text, message = BAD_FILES[kind]
    path = tmp_path / "bad.json"
    path.write_text(text)
    line = refused(capsys, "solve", str(path))
    assert message in line
    assert "bad.json" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["solve", "@demo", "--solver", "svff"], "did you mean"),
        (["solve", "@demo", "--bound", "magic"], "kvopt list bounds"),
        (["solve", "@demo", "--time-limit", "0"], "time-limit"),
        (["solve", "@demo", "--param", "ageing"], "NAME=VALUE"),
        (["solve", "@demo", "--param", "speed=5"], "no parameter"),
        (["solve", "@demo", "--round-s", "abc"], "such as 0.05"),
        (["compare", "@demo", "--plot", "a.xyz"], "must end in .png"),
        (["compare", "@demo", "--csv", "--json"], "not both"),
        (["generate", "small", "--n", "-5"], "n"),
        (["solve"], "FILE"),
        (["generate", "mixtur"], "mixture"),
        (["import", "t.csv", "--format", "azzure", "--memory", "5"], "known: azure"),
        (["solve", "@demo", "--round-s", "0.1"], "nothing to convert"),
        (["list", "things"], "solvers"),
        (["nonsense"], "nonsense"),
    ],
)
def test_wrong_usage_is_exit_2(capsys, arguments, message):
    assert message in refused(capsys, *arguments, code=2)


def test_what_is_not_there_is_exit_3(capsys, tmp_path):
    assert "cannot be read" in refused(capsys, "solve", str(tmp_path / "none.json"))
    assert "there is no bundled instance" in refused(capsys, "solve", "@none")


def test_describe_lists_what_does_not_fit(capsys, tmp_path):
    path = tmp_path / "big.json"
    path.write_text(json.dumps({**FOUR, "columns": {"id": ["a", "b"], "prompt": [1, 90], "output": [1, 1]}}))
    facts = document(capsys, "describe", str(path))
    assert facts["n"] == 1
    assert facts["oversized"] == {"count": 1, "first_ids": ["b"]}
    assert run(["describe", str(path)]) == 0


def test_empty_instances_are_optimal_at_zero(capsys, tmp_path):
    path = tmp_path / "empty.json"
    path.write_text(json.dumps({**FOUR, "columns": {"prompt": [], "output": []}}))
    value = document(capsys, "solve", str(path))
    assert (value["status"], value["total_latency"], value["gap"], value["mean_latency"]) == ("optimal", 0, 0.0, None)
    assert run(["describe", str(path)]) == 0
    assert run(["compare", str(path)]) == 0


def test_import_counts_what_it_leaves_out(capsys, tmp_path):
    trace = tmp_path / "t.csv"
    trace.write_text("num_prefill_tokens,num_decode_tokens\n9,5\n-1,5\n50,50\n2,3\n")
    line = refused(capsys, "import", str(trace), "--format", "vidur", "--memory", "17")
    assert "t.csv:3" in line
    assert "num_prefill_tokens" in line
    out = str(tmp_path / "i.json")
    settings = ["--format", "vidur", "--memory", "17", "--on-bad-row", "skip", "--oversized", "drop", "-o", out]
    facts = document(capsys, "import", str(trace), *settings)
    assert (facts["n"], facts["bad_rows"], facts["oversized_dropped"]) == (2, 1, 1)


def test_mix_draws_in_shares(capsys, tmp_path):
    for seed, name in ((1, "a"), (2, "b")):
        document(capsys, "generate", "chat", "--n", "40", "--memory", "4096", "--seed", str(seed), "-o", str(tmp_path / name))
    out = str(tmp_path / "m.json")
    parts = [str(tmp_path / "a"), str(tmp_path / "b")]
    assert document(capsys, "mix", *parts, "--share", "3,1", "--n", "20", "-o", out)["n"] == 20
    origin = document(capsys, "describe", out)["origin"]
    assert [part["count"] for part in origin["parts"]] == [15, 5]
    assert "one share for each" in refused(capsys, "mix", *parts, "--share", "1", "--n", "20")


def test_help_needs_no_heavy_library():
    code = "import sys; import opt.cli; print(sorted({'numpy', 'numba', 'rich', 'matplotlib', 'ortools'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"


@pytest.mark.parametrize("verb", ["generate mixture --n 20000", "list"])
def test_a_closed_pipe_is_no_error(verb):
    reader = "import sys; sys.stdin.readline()"
    command = f'"{sys.executable}" -m opt.cli {verb} | "{sys.executable}" -c "{reader}"'
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupted_portfolio_saves_the_best_and_exits_130(capsys, four, tmp_path, monkeypatch):
    from opt.solvers import registry

    def interrupted(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(registry.SOLVERS, "sorted-f", interrupted)
    plan = tmp_path / "plan.json"
    value = document(capsys, "solve", four, "-o", str(plan), code=130)
    assert (value["stop_reason"], value["total_latency"]) == ("interrupted", 25)
    assert run(["verify", str(plan), "--quiet"]) == 0


def test_an_interrupted_comparison_keeps_its_rows(capsys, four, monkeypatch):
    from opt.solvers import registry

    def interrupted(*_arguments: object, **_settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(registry.SOLVERS, "sof", interrupted)
    value = document(capsys, "compare", four, "--solvers", "fcfs, svf, sof", code=130)
    assert value["interrupted"]
    assert [row["solver"] for row in value["rows"]] == ["svf", "fcfs"]


def test_output_goes_where_the_name_leads(capsys, tmp_path):
    """A link is followed and a pipe is written to; neither is replaced by a file."""
    target, link, pipe = tmp_path / "target.json", tmp_path / "link.json", tmp_path / "pipe"
    target.write_text("old")
    link.symlink_to(target)
    assert run(["generate", "four", "-o", str(link)]) == 0
    assert link.is_symlink()
    assert json.loads(target.read_text())["memory"] == 17
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE)
    assert run(["generate", "four", "-o", str(pipe)]) == 0
    assert json.loads(reader.communicate(timeout=20)[0])["memory"] == 17
    assert pipe.is_fifo()
    capsys.readouterr()


def test_verify_reports_only_what_a_plan_holds(capsys, four, tmp_path):
    plan = tmp_path / "plan.json"
    document(capsys, "solve", four, "--solver", "random", "--seed", "5", "-o", str(plan))
    value = document(capsys, "verify", str(plan))
    assert (value["seed"], value["seconds"], value["stop_reason"]) == (None, None, None)
    assert "kvopt-plan/1 file" in refused(capsys, "solve", str(plan))
    assert "kvopt-instance/1 file" in refused(capsys, "verify", four)


COLUMNS = ("solver", "total latency", "a heading of many words", "note")
ROWS = (("svf-pack", "3,630,888", "1.0805", "word " * 30), ("[bold]", "23,273,793", "-", "x" * 50))


@pytest.mark.parametrize("width", [None, 40, 80, 100])
def test_a_table_loses_nothing_on_a_terminal_of_any_width(width):
    file = io.StringIO()
    print_table(COLUMNS, ROWS, (False, True, True, False), title="a title of several words", file=file, width=width)
    said, lines = file.getvalue(), file.getvalue().splitlines()
    assert "…" not in said
    assert {"svf-pack", "3,630,888", "1.0805", "[bold]", "23,273,793", "latency", "heading"} <= set(said.split())
    assert said.count("word") == 30 + said.count("words")
    assert said.count("x") == 50
    if width:
        assert max(map(len, lines)) <= width
    if width is None:
        assert "a heading of many words" in said
