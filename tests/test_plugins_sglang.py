"""Our hooks in SGLang's registry, SGLang served for real, and our prefix trees beside SGLang's."""

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from opt.plugins.sglang import Reorder, register
from opt.plugins.sglang.record import Recorder, load_of

needs_sglang = pytest.mark.skipif(importlib.util.find_spec("sglang") is None, reason="SGLang is not installed: make test-engines")


@pytest.mark.parametrize(
    ("settings", "version", "said"),
    [
        ({"ORDER": "shortest"}, "0.5.23", "kvopt: KVOPT_SGLANG_ORDER = 'shortest': must be one of fcfs, sof"),
        (
            {"ORDER": "svf", "PATIENCE_S": "soon"},
            "0.5.23",
            "kvopt: KVOPT_SGLANG_PATIENCE_S = 'soon': must be a number of seconds",
        ),
        ({"ORDER": "svf"}, "0.5.24", "kvopt: SGLang 0.5.24 is installed; kvopt's plug-in works with SGLang 0.5.23"),
        ({"LOG": "log.jsonl"}, "0.4.9", "kvopt: SGLang 0.4.9 is installed"),
    ],
)
def test_what_cannot_be_done_ends_sglang_with_one_line(settings, version, said, monkeypatch):
    """SGLang logs other exceptions of a plug-in and goes on, which would be its own order under our name."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _: version)
    for name, value in settings.items():
        monkeypatch.setenv(f"KVOPT_SGLANG_{name}", value)
    with pytest.raises(SystemExit, match=said):
        register()


def work(mode, *, extend=(), prefix=(), lengths=(), decoding=(), launched=0.0, idle=False):
    tokens = SimpleNamespace(tolist=lambda: list(lengths))
    return SimpleNamespace(
        forward_mode=SimpleNamespace(name=mode),
        spec_algorithm=None,
        extend_lens=list(extend),
        prefix_lens=list(prefix),
        seq_lens_cpu=tokens,
        decoding_reqs=list(decoding),
        launch_ts=launched,
        after_idle_gap=idle,
        reqs=[],
    )


def test_the_load_of_each_kind_of_batch():
    """A chunk of 4 after 10 has 4*10 + 4*5/2 = 50 pairs; a decode that stands behind it in a mixed batch reads 1 + 7 tokens."""
    load = load_of(work("MIXED", extend=[4, 1], prefix=[10, 7], decoding=["b"]))
    assert (load.prefill_tokens, load.prefill_pairs, load.prefill_context, load.decodes, load.kv_tokens) == (4, 50, 10, 1, 8)
    load = load_of(work("DECODE", lengths=[5, 9]))
    assert (load.prefill_tokens, load.decodes, load.kv_tokens) == (0, 2, 14)
    assert load_of(work("TARGET_VERIFY")) is None


def test_an_iteration_lasts_since_the_one_before_or_since_its_launch():
    rows, clock = [], iter([3.0, 5.5, 9.0])
    recorder = Recorder(lambda _load, seconds, _requests: rows.append(seconds), lambda: next(clock))
    for launched, idle in [(1.0, True), (2.0, False), (8.0, True)]:
        recorder(lambda *_: None, None, work("DECODE", lengths=[1], launched=launched, idle=idle), None)
    assert rows == [2.0, 2.5, 1.0]


def test_a_random_order_is_random_and_stays():
    queue = [
        SimpleNamespace(
            rid=f"r{i}",
            origin_input_ids=[0],
            output_ids=[],
            sampling_params=SimpleNamespace(max_new_tokens=5, custom_params=None),
        )
        for i in range(50)
    ]
    come, hook = list(queue), Reorder("random")
    hook(lambda *_: None, None, queue)
    first = list(queue)
    hook(lambda *_: None, None, queue)
    assert first == queue != come


# --- with SGLang ---------------------------------------------------------------------------------------------------


@needs_sglang
@pytest.mark.timeout(900)
def test_sglang_serves_a_backlog_in_our_order(tmp_path):
    """40 requests of mixed lengths: the same tokens, earlier on the mean, and later where hints are upside down.

    The log can be read. What SGLang does by itself our engine does too, iteration by iteration.
    """
    from opt.fit.log import read_log
    from opt.plugins.sglang.replay import replay
    from opt.plugins.sglang.serve import serve
    from opt.plugins.small import backlog

    load = backlog(40, 24, 32)
    (stock,) = serve([load], overlap=False)
    told = load.output.tolist()
    wrong = [1 if output >= 60 else output for output in told]  # the long ones first
    first, again, misled = serve([load] * 3, "svf", hints=[told, told, wrong], log=str(tmp_path / "log.jsonl"))
    assert [len(tokens) for tokens in stock.tokens] == load.output.tolist()
    assert stock.tokens == first.tokens == again.tokens == misled.tokens
    assert first.finished_at == again.finished_at
    assert sum(first.finished_at) < 0.7 * sum(stock.finished_at) < sum(misled.finished_at)
    assert sum(row.prefill_tokens for row, _ in first.iterations) == load.prompt.sum()
    log = read_log(tmp_path / "log.jsonl")
    assert len(log.iterations.seconds) >= 2 * len(first.iterations)
    assert json.loads((tmp_path / "log.jsonl").read_text().splitlines()[0])["origin"] == {"source": "SGLang"}
    found = replay(stock, load, "fcfs")
    assert found.iterations == found.equal > 300, found
    assert found.timeline.e2e_s.tolist() == stock.finished_at


HOOK = """
from importlib.metadata import entry_points
assert any(point.value == "opt.plugins.sglang:register" for point in entry_points(group="sglang.srt.plugins"))
print("found")
"""

ORDERS = """
from opt.plugins.sglang.oracle import compare, draw
for order, tree in [("lpm", "radix"), ("dfs-weight", "radix"), ("dfs-weight", "rust")]:
    runs = [compare(*draw(seed, roomy=True if tree == "rust" else None), order, tree) for seed in range(8)]
    assert not any(run.there for run in runs), runs
    orders, equal = (sum(getattr(run, name) for run in runs) for name in ("orders", "equal"))
    assert orders > 500 and equal > 0.97 * orders, (orders, equal)
    assert sum(run.sorted for run in runs) > 50 and max(run.longest for run in runs) > 128
    assert tree == "rust" or any(run.lost for run in runs)
print("agreed")
"""

TREES = """
from opt.plugins.sglang.trees import race
for page, window in [(1, None), (1, 40), (16, None), (16, 40)]:
    found = race(seed=1, page=page, n=200, window=window)
    assert len(found) >= 4 and all(row["equal_hits"] for row in found.values()), found
print("equal")
"""


@needs_sglang
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("program", "said"), [(HOOK, "found"), (ORDERS, "agreed"), (TREES, "equal")], ids=["hook", "orders", "trees"]
)
def test_inside_sglang(program, said):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=280, check=False)
    assert said in done.stdout, done.stderr[-2000:]
