"""Mixtures: the shares asked for, nobody twice while there are others, the same bytes for a seed."""

from collections import Counter

import pytest
from test_instance import full, same

from instances.mixing import mix
from opt.core.errors import InstanceError
from opt.core.instance import Instance


def part(mark, n, **cells):
    """Requests whose output tells the part and whose prompt tells the request."""
    return Instance(**{"memory": 1000, "prompt": list(range(n)), "output": [mark] * n, "name": f"p{mark}", **cells})


def drawn(instance):
    return list(zip(instance.output.tolist(), instance.prompt.tolist(), strict=True))


@pytest.mark.parametrize(
    ("shares", "n", "counts"),
    [
        ([1, 1], 10, [5, 5]),
        (["0.8", "0.2"], 10, [8, 2]),
        ([1, 2], 10, [3, 7]),  # 3.33 and 6.67: the larger remainder takes the tenth
        ([1, 1], 5, [3, 2]),  # equal remainders: the first part
        (["1/3", "2/3"], 9, [3, 6]),
        ([0, 1], 7, [0, 7]),
        ([0.1, 0.2, 0.7], 10, [1, 2, 7]),  # 0.1 means one tenth, as printed
        ([1, 1], 0, [0, 0]),
    ],
)
def test_counts_follow_the_shares(shares, n, counts):
    parts = [part(mark, 40) for mark in range(1, len(shares) + 1)]
    mixed = mix(parts, shares, n)
    marks = Counter(mixed.output.tolist())
    assert [marks[mark] for mark in range(1, len(shares) + 1)] == counts
    assert [entry["count"] for entry in mixed.origin["parts"]] == counts
    assert mixed.n == n


def test_nobody_is_drawn_twice_while_there_are_others():
    mixed = mix([part(1, 30), part(2, 30)], [2, 1], 45)
    assert set(Counter(drawn(mixed)).values()) == {1}
    assert [entry["repeated"] for entry in mixed.origin["parts"]] == [False, False]


def test_a_small_part_repeats_evenly_and_says_so():
    """16 draws from 3 requests: five times each, and one of them a sixth time."""
    mixed = mix([part(1, 3), part(2, 30)], [1, 1], 32)
    assert sorted(count for (mark, _), count in Counter(drawn(mixed)).items() if mark == 1) == [5, 5, 6]
    assert [entry["repeated"] for entry in mixed.origin["parts"]] == [True, False]


def test_a_part_with_ids_may_repeat_too():
    """Ids are not kept, so they cannot clash."""
    mixed = mix([part(1, 2, ids=["a", "b"]), part(2, 9, ids=list(range(9)))], [1, 1], 8)
    assert sorted(Counter(drawn(mixed)).values()) == [1, 1, 1, 1, 2, 2]
    assert list(mixed.ids) == list(range(8))


def test_the_seed_decides():
    parts = [part(1, 50), part(2, 50)]
    assert same(mix(parts, [1, 1], 40, seed=3), mix(parts, [1, 1], 40, seed=3))
    assert drawn(mix(parts, [1, 1], 40, seed=3)) != drawn(mix(parts, [1, 1], 40, seed=4))
    marks = mix(parts, [1, 1], 40).output.tolist()
    assert marks not in ([1] * 20 + [2] * 20, [1, 2] * 20, sorted(marks, reverse=True))


def test_origin_and_name():
    mixed = mix([part(1, 5, origin={"source": "x"}), part(2, 5, name="")], ["0.5", 0.5], 4, seed=9)
    assert mixed.name == "p1+unnamed"
    assert (mixed.origin["recipe"], mixed.origin["seed"]) == ("mix", 9)
    assert mixed.origin["parts"][0] == {"name": "p1", "count": 2, "repeated": False, "origin": {"source": "x"}}


def test_arrivals_come_in_time_order_with_their_requests():
    for key, step in (("arrival", 3), ("arrival_s", 0.5)):
        mixed = mix(
            [part(1, 9, **{key: [k * step for k in range(9)]}), part(2, 9, **{key: [5 + k for k in range(9)]})], [1, 1], 12
        )
        times = getattr(mixed, key).tolist()
        assert times == sorted(times)
        for (mark, k), time in zip(drawn(mixed), times, strict=True):
            assert time == (k * step if mark == 1 else 5 + k)


def test_backlog_drops_arrivals():
    mixed = mix([part(1, 4, arrival=[0, 1, 2, 3]), part(2, 4, arrival_s=[0.0, 1, 2, 3])], [1, 1], 6, backlog=True)
    assert (mixed.arrival_unit, mixed.offline) == ("none", True)


def test_every_field_goes_with_its_request():
    """All three requests of the part, in some order, equal those of the part; a part without a field leaves it open."""
    whole = mix([full(session=[1, None, 5])], [1], 3, seed=2)
    order = [full().output.tolist().index(o) for o in whole.output.tolist()]
    by_time = full(session=[1, None, 5]).take(order).replace(ids=None, name="full", origin=whole.origin)
    assert whole.arrival.tolist() == [0, 1, 2]
    assert same(whole, by_time)
    half = mix([part(1, 3, predicted=[4, 5, 6], client=["c"] * 3, ttft_s=[1.0] * 3), part(2, 3)], [1, 1], 6)
    for mark, predicted, client, ttft in zip(half.output, half.predicted, half.client, half.ttft_s, strict=True):
        assert (predicted > 0, client, ttft == 1.0) == ((True, "0/c", True) if mark == 1 else (False, None, False))


def test_prefixes_are_kept_or_their_loss_is_told():
    with_ = {"prefix": [[], [7], [8]], "prefix_chunk": 4}
    kept = mix([part(1, 3, **with_), part(2, 3, **with_)], [1, 1], 6)
    rows = {0: [], 1: [7], 2: [8]}
    assert kept.prefix_rows() == [rows[k] for _, k in drawn(kept)]
    assert kept.prefix_chunk == 4
    for other in ({}, {**with_, "prefix_chunk": 2}):
        lost = mix([part(1, 3, **with_), part(2, 3, **other)], [1, 1], 6)
        assert lost.prefix_ids is None
        assert lost.origin["dropped_fields"] == ["prefix"]


def test_memory():
    small = part(2, 3, memory=50)
    with pytest.raises(InstanceError, match=r"different memories \[50, 1000\]"):
        mix([part(1, 3), small], [1, 1], 4)
    assert mix([part(1, 3), small], [1, 1], 4, memory=80).memory == 80
    with pytest.raises(InstanceError, match="exceeds the memory of 2 tokens"):
        mix([part(1, 3), small], [1, 1], 6, memory=2)
    assert mix([part(1, 3), small], [1, 1], 6, memory=2, oversized="drop").origin["oversized_dropped"]["count"] == 3


@pytest.mark.parametrize(
    ("parts", "shares", "n", "message"),
    [
        ([part(1, 3)], [1, 1], 2, "1 instances and 2 shares"),
        ([], [], 2, "0 instances and 0 shares"),
        ([part(1, 3)], ["much"], 2, "must be a number such as"),
        ([part(1, 3)], ["1/0"], 2, "must be a number such as"),
        ([part(1, 3)], [float("nan")], 2, "must be a number such as"),
        ([part(1, 3), part(2, 3)], [2, -1], 2, "must not be negative"),
        ([part(1, 3)], [0], 2, "not all zero"),
        ([part(1, 3)], [1], -1, "n = -1"),
        ([part(1, 3), part(2, 0)], [1, 1], 4, "instance p2 has no requests to draw from"),
        ([part(1, 1, arrival=[0]), part(2, 1)], [1, 1], 2, "count arrivals in none and rounds; drop arrivals with --backlog"),
        ([part(1, 1, arrival=[0]), part(2, 1, arrival_s=[0])], [1, 1], 2, "rounds and seconds"),
    ],
)
def test_refusals(parts, shares, n, message):
    with pytest.raises(InstanceError, match=message):
        mix(parts, shares, n)
