"""What an instance looks like and who waits, against numbers worked by hand."""

import json

import numpy as np
import pytest
from exhaustive import four
from test_instance import full

from opt.core.describe import describe
from opt.core.fairness import fairness
from opt.core.instance import Instance
from opt.core.model import Schedule


def test_sizes_and_load():
    """Volumes 60, 25, 34 and 12 make 131 token-rounds; peaks 14, 7, 10 and 5 make 36."""
    told = describe(four())
    assert (told["n"], told["memory"], told["name"]) == (4, 17, "")
    assert told["load"] == {"volume": 131, "rounds": 131 / 17, "peak_demand": 36 / 17, "fit_together": 4 * 17 / 36}
    assert told["prompt"] == {
        "min": 2,
        "p1": 2.0,
        "p10": 2.0,
        "p50": 4.0,
        "p90": pytest.approx(8.1),
        "p99": pytest.approx(8.91),
    } | {
        "max": 9,
        "mean": 4.75,
    }
    assert told["ties"] == {"distinct_sizes": 4, "largest_tie": 1}
    assert told["arrivals"] == {"unit": "none", "span": 0, "rate": None, "gap_cv": None}
    assert told["sharing"] is None
    assert told["oversized"] == {"count": 0, "first_ids": []}


def test_ties():
    assert describe(Instance(9, [1, 1, 2, 1], [3, 3, 3, 2]))["ties"] == {"distinct_sizes": 3, "largest_tie": 2}


def test_arrivals():
    """Rounds 0, 1, 4: gaps 1 and 3, mean 2, deviation 1."""
    instance = Instance(9, [1] * 3, [1] * 3, arrival=[4, 0, 1])
    assert describe(instance)["arrivals"] == {"unit": "rounds", "span": 4, "rate": 3 / 4, "gap_cv": 0.5}
    seconds = Instance(9, [1] * 3, [1] * 3, arrival_s=[2.0, 0.0, 0.5])
    assert describe(seconds)["arrivals"] == {"unit": "seconds", "span": 2.0, "rate": 1.5, "gap_cv": 0.5}
    assert describe(instance.replace(arrival=[7, 7, 7]))["arrivals"]["rate"] is None


def test_sharing():
    """Chunks of 4: prompts of 4 + 4 + 1, 4 + 4 and 3 tokens. The first two share one chunk, the third none."""
    instance = Instance(30, [9, 8, 3, 0], [1] * 4, prefix=[[1, 2, 3], [1, 4], [5], []], prefix_chunk=4)
    sharing = describe(instance)["sharing"]
    assert (sharing["chunk"], sharing["chunks"], sharing["distinct_chunks"], sharing["sharing_requests"]) == (4, 6, 5, 2)
    assert sharing["shared_prompt_share"] == 8 / 20
    twins = describe(Instance(30, [9, 9], [1, 1], prefix=[[1, 2, 3]] * 2, prefix_chunk=4))["sharing"]
    assert (twins["shared_prompt_share"], twins["depth_chunks"]["min"]) == (1.0, 3)


def test_dropped_requests_and_fields():
    told = describe(full(oversized="drop").replace(memory=5, oversized="drop"))
    assert told["oversized"] == {"count": 2, "first_ids": ["a", 3]}
    assert describe(full())["fields"] == [
        *("ttft_s", "tpot_s", "itl_s", "priority", "max_output", "predicted", "predicted_low", "predicted_high"),
        *("session", "client"),
    ]


@pytest.mark.parametrize("instance", [four(), full(), Instance(3, [], []), Instance(3, [], [], prefix=[], prefix_chunk=2)])
def test_all_of_it_is_json(instance):
    assert json.loads(json.dumps(describe(instance), allow_nan=False)) == describe(instance)
    assert describe(Instance(3, [], []))["prompt"] is None


def test_waits_and_slowdowns():
    """Starts 5, 1, 1, 0 with outputs 5, 5, 4, 3: slowdowns 10/5, 6/5, 5/4 and 3/3.

    By volume 12, 25, 34, 60 the thirds are {3, 1}, {2}, {0}. Jain: 5.45^2 / (4 * (4 + 1.44 + 1.5625 + 1)).
    """
    told = fairness(Schedule(four(), np.array([5, 1, 1, 0])))
    assert told["max_wait"] == 5
    assert told["wait"] == {"mean": 1.75, "p50": 1.0, "p95": pytest.approx(4.4), "p99": pytest.approx(4.88), "max": 5}
    assert {name: third["mean"] for name, third in told["by_volume"].items()} == {"small": 0.5, "medium": 1.0, "large": 5.0}
    assert told["jain_slowdown"] == pytest.approx(5.45**2 / (4 * 8.0025))


def test_fairness_counts_from_the_arrival():
    told = fairness(Schedule(Instance(9, [1, 1], [2, 2], arrival=[3, 8]), np.array([3, 8])))
    assert (told["max_wait"], told["jain_slowdown"]) == (0, 1.0)
    assert told["by_volume"].keys() == {"small", "medium"}


def test_nobody_waits():
    told = fairness(Schedule(Instance(3, [], []), np.zeros(0, np.int64)))
    assert told == {"max_wait": None, "wait": None, "by_volume": None, "jain_slowdown": None}
