"""Pictures: the memory curve is exact, files repeat byte for byte, and nothing global is left behind."""

import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from instances import generate
from opt import plot
from opt.core.certify import check_schedule, memory_at_completions
from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.core.model import Schedule

ROOMY = 2**30  # any starts are feasible


def four():
    return check_schedule(generate("four"), np.array([5, 1, 1, 0]))


def at_round(curve, t):
    """The curve's value as round t is reached from the left."""
    rounds, tokens = curve
    end = int(np.searchsorted(rounds, t, side="left")) | 1  # pieces are pairs of corners; the odd one ends a piece
    a, b, u, v = (int(x) for x in (rounds[end - 1], rounds[end], tokens[end - 1], tokens[end]))
    assert a < t <= b
    assert (v - u) * (t - a) % (b - a) == 0
    return u + (v - u) * (t - a) // (b - a)


def held(schedule, t):
    """Tokens held in round t, by the definition."""
    instance, total, seen = schedule.instance, 0, set()
    for i, x in enumerate(schedule.start.tolist()):
        if not x < t <= x + instance.output[i]:
            continue
        total += t - x
        if schedule.kv == "separate":
            total += int(instance.prompt[i])
            continue
        low, high = instance.prefix_offsets[i : i + 2].tolist()
        for level, chunk in enumerate(instance.prefix_ids[low:high].tolist()):
            if chunk not in seen:
                total += min(instance.prefix_chunk, int(instance.prompt[i]) - level * instance.prefix_chunk)
            seen.add(chunk)
    return total


requests = st.lists(st.tuples(st.integers(0, 9), st.integers(1, 8), st.integers(0, 12)), min_size=1, max_size=8)


@settings(deadline=None)
@given(requests)
def test_the_curve_is_the_definition_round_by_round(rows):
    prompt, output, start = (np.array(column) for column in zip(*rows, strict=True))
    schedule = Schedule(Instance(ROOMY, prompt, output), start)
    curve = plot.memory_curve(schedule)
    assert curve[0][0] == 0
    assert curve[0][-1] == schedule.makespan
    assert [at_round(curve, t) for t in range(1, schedule.makespan + 1)] == [
        held(schedule, t) for t in range(1, schedule.makespan + 1)
    ]


@settings(deadline=None)
@given(requests, st.lists(st.integers(0, 2), min_size=24, max_size=24))
def test_a_shared_prefix_counts_once_in_the_curve(rows, letters):
    """Prompts are cut in chunks of 4; a chunk's hash is all the letters up to it and, for a last partial one, its size."""
    prompt, output, start = (np.array(column) for column in zip(*rows, strict=True))
    prefix = []
    for i, s in enumerate(prompt.tolist()):
        said = letters[3 * i : 3 * i + 3]
        prefix.append([hash((*said[: k + 1], min(4, s - 4 * k))) % 2**64 for k in range(-(-s // 4))])
    schedule = Schedule(Instance(ROOMY, prompt, output, prefix=prefix, prefix_chunk=4), start, "shared")
    curve = plot.memory_curve(schedule)
    rounds = range(1, schedule.makespan + 1)
    assert [at_round(curve, t) for t in rounds] == [held(schedule, t) for t in rounds]
    ends, usage = memory_at_completions(schedule)
    assert [at_round(curve, t) for t in ends.tolist()] == usage.tolist()


def test_sharing_without_prefixes_is_no_sharing():
    instance = Instance(ROOMY, [3, 4], [2, 2])
    start = np.array([0, 1])
    apart, shared = (plot.memory_curve(Schedule(instance, start, kv)) for kv in ("separate", "shared"))
    assert np.array_equal(apart[1], shared[1])


def test_the_corners_of_the_four_requests():
    """Starts 5, 1, 1, 0 of (9, 5), (2, 5), (6, 4), (2, 3): 2 tokens just after 0, 3 in round 1, 2 + 1 + 2 + 6 just after ..."""
    rounds, tokens = plot.memory_curve(four())
    assert rounds.tolist() == [0, 1, 1, 3, 3, 5, 5, 6, 6, 10]
    assert tokens.tolist() == [2, 3, 11, 17, 12, 16, 15, 17, 10, 14]


def test_the_titles_tell_the_numbers():
    """Volumes 60 + 25 + 34 + 12 = 131 of 17 * 10 token-rounds: 77.1 %."""
    rows, memory = plot.schedule(four()).axes
    assert "total latency 24, makespan 10" in rows.get_title(loc="left")
    assert memory.get_title(loc="left") == "memory of 17 tokens: 77.1% used on average, peak 17"


@pytest.mark.parametrize("n", [0, 1, 12, 24, 100, 300, 2500])
def test_any_number_of_requests_can_be_drawn(n, tmp_path):
    instance = generate("small", n=n, memory=40)
    schedule = Schedule(instance, np.cumsum(instance.output) - instance.output)
    plot.save(plot.schedule(schedule), tmp_path / "plan.png", dpi=50)
    assert (tmp_path / "plan.png").stat().st_size > 1000


@pytest.mark.parametrize("n", [1, 100, 300, 2500])
def test_waits_are_drawn_from_the_arrival(n, tmp_path):
    instance = generate("small", n=n, memory=40).replace(arrival=np.arange(n) + 1)
    schedule = Schedule(instance, np.cumsum(instance.output) + 1)
    plot.save(plot.schedule(schedule), tmp_path / "plan.svg", dpi=50)


@pytest.mark.parametrize("kv", ["separate", "shared"])
def test_equal_outputs_and_shared_prefixes_are_said(kv):
    instance = Instance(100, [8, 8], [5, 5], prefix=[[1], [1]], prefix_chunk=8)
    figure = plot.schedule(Schedule(instance, np.array([0, 0]), kv))
    said = figure.axes[1].get_title(loc="left")
    assert ("shared prefixes counted once" in said) == (kv == "shared")
    assert f"peak {26 if kv == 'separate' else 18}" in said  # 8 + 5 each, or 8 + 5 + 5


def test_a_hundred_thousand_requests_are_quick(tmp_path):
    instance = generate("chat", n=100_000)
    schedule = Schedule(instance, np.cumsum(instance.output) - instance.output)
    begun = time.perf_counter()
    plot.save(plot.schedule(schedule), tmp_path / "plan.svg", dpi=60)
    assert time.perf_counter() - begun < 40  # about 3 s on an idle core
    assert (tmp_path / "plan.svg").stat().st_size < 2_000_000  # the bars are pixels, not 100,000 paths


ROWS = [
    {"solver": "fcfs", "ratio": 1.5, "total_latency": 150},
    {"solver": "svf-pack", "ratio": 1.02, "total_latency": 102},
    {"solver": "exact", "ratio": 1.0, "total_latency": 100},
    {"solver": "svf", "ratio": 1.1, "total_latency": 110},
    {"solver": "random", "ratio": None, "total_latency": 170},
    {"solver": "svf-skip", "ratio": 1.05, "total_latency": 105},
    {"solver": "fcfs-pack", "ratio": 1.3, "total_latency": 130},
]


def labels(figure):
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_ratios_are_sorted_with_variants_together():
    figure = plot.ratios(ROWS)
    assert labels(figure) == ["exact", "svf-pack", "svf-skip", "svf", "fcfs-pack", "fcfs", "random"]
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert "1.020   102" in texts
    assert "no bound; total latency 170" in texts
    assert figure.axes[0].get_title(loc="left") == "7 solvers: exact is best, at 1.000 times the bound"
    assert figure.legends[0].get_texts()[0].get_text() == "strict order"


def test_variants_have_colours_of_their_own():
    bars = plot.ratios(ROWS).axes[0].patches
    colours = {
        name: bar.get_facecolor() for name, bar in zip(["exact", "pack", "skip", "svf", "pack2", "fcfs"], bars, strict=True)
    }
    assert len(set(colours.values())) == 4
    assert colours["pack"] == colours["pack2"]
    assert colours["svf"] == colours["fcfs"]


def test_several_instances_are_averaged():
    rows = [{"solver": "svf", "ratio": ratio, "total_latency": 1} for ratio in (1.0, 1.2, 1.4)]
    figure = plot.ratios(rows)
    assert "1.200" in [text.get_text() for text in figure.axes[0].texts]
    assert "mean of 3 instances" in figure.axes[0].get_title(loc="left")


def test_large_ratios_turn_the_scale_logarithmic():
    assert plot.ratios([{"solver": "fcfs", "ratio": 40.0, "total_latency": 1}]).axes[0].get_xscale() == "log"
    assert plot.ratios(ROWS).axes[0].get_xscale() == "linear"


@pytest.mark.parametrize("rows", [[], [{"solver": "svf", "ratio": None, "total_latency": None}]])
def test_nothing_known_can_be_drawn(rows, tmp_path):
    plot.save(plot.ratios(rows), tmp_path / "ratios.png")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"ratio": 1.0}, "comparison row 0: `solver` must be a name, got None"),
        ({"solver": "svf", "ratio": float("nan")}, r"comparison row 0 \(svf\): ratio = nan must be a positive number"),
        ({"solver": "svf", "ratio": -1}, "ratio = -1 must be a positive number"),
    ],
)
def test_rows_that_make_no_sense_are_refused(row, message):
    with pytest.raises(InstanceError, match=message):
        plot.ratios([row])


def test_pictures_fit_into_axes_given(tmp_path):
    figure = Figure(figsize=(8, 3))
    left, right = figure.subplots(1, 2)
    assert plot.schedule(four(), ax=left) is figure
    assert plot.ratios(ROWS, ax=right) is figure
    assert len(left.child_axes) == 2
    plot.save(figure, tmp_path / "both.pdf")


def test_axes_may_belong_to_a_subfigure():
    figure = Figure()
    assert plot.schedule(four(), ax=figure.subfigures(1, 2)[1].subplots()) is figure


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf", "PNG"])
def test_files_repeat_byte_for_byte(suffix, tmp_path):
    for name in ("a", "b"):
        plot.save(plot.schedule(four()), tmp_path / f"{name}.{suffix}")
    first, second = ((tmp_path / f"{name}.{suffix}").read_bytes() for name in ("a", "b"))
    assert first == second
    assert len(first) > 1000
    assert b"CreationDate" not in first
    assert b"dc:date" not in first


@pytest.mark.parametrize(("name", "what"), [("plan.gif", ".gif"), ("plan", "a file without suffix")])
def test_an_unknown_suffix_is_refused(name, what, tmp_path):
    with pytest.raises(InstanceError, match=f"{name}: cannot draw {what}; use png, svg, pdf"):
        plot.save(plot.schedule(four()), tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_nothing_is_loaded_early_and_nothing_global_is_left(tmp_path):
    code = """
import sys
import opt.plot
assert not any(name.startswith("matplotlib") for name in sys.modules), "importing opt.plot loads matplotlib"
import numpy as np
from opt.core.instance import Instance
from opt.core.model import Schedule
import matplotlib
before = matplotlib.rcParams["svg.hashsalt"]
opt.plot.save(opt.plot.schedule(Schedule(Instance(9, [1], [2]), np.array([0]))), sys.argv[1])
assert "matplotlib.pyplot" not in sys.modules
assert matplotlib.rcParams["svg.hashsalt"] == before
"""
    file = str(tmp_path / "plan.svg")
    done = subprocess.run([sys.executable, "-W", "error", "-c", code, file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
