"""An instance is valid from birth, never changes, and says what was wrong with its cells."""

import pickle
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opt.core.errors import InstanceError
from opt.core.instance import MAX_ARRIVAL, MAX_MEMORY, Instance

FULL = {
    "ids": ["a", "b", 3],
    "prompt": [4, 0, 5],
    "output": [2, 3, 1],
    "arrival": [0, 2, 1],
    "prefix": [[7], [], [7, 2**64 - 1]],
    "prefix_chunk": 4,
    "ttft_s": [0.5, None, 1.25],
    "tpot_s": [None, 0.1, None],
    "itl_s": [0.3, 0.3, 0.3],
    "priority": [1, -2, 0],
    "max_output": [2, None, 9],
    "predicted": [None, 3, 2],
    "predicted_low": [1, 1, None],
    "predicted_high": [1, 7, 4],
    "session": ["s", None, 5],
    "client": [None, "c", "c"],
    "name": "full",
    "origin": {"source": "made"},
}


def full(**changes):
    return Instance(10, **{**FULL, **changes})


def same(a, b):
    """Every constructor argument of two instances agrees, value for value."""
    ours, theirs = a.columns(), b.columns()
    return ours.keys() == theirs.keys() and all(
        all(np.array_equal(p, q) for p, q in zip(ours[key], theirs[key], strict=True))
        if key == "prefix"
        else np.array_equal(ours[key], theirs[key], equal_nan=key.endswith("_s"))
        if isinstance(ours[key], np.ndarray)
        else ours[key] == theirs[key]
        for key in ours
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"memory": 0}, r"memory = 0: must be from 1 .*no request can run"),
        ({"memory": -3}, "memory = -3"),
        ({"memory": 10**14}, r"memory = 100000000000000: .*in tokens, not bytes"),
        ({"memory": 2.5}, "memory = 2.5: must be an integer"),
        ({"memory": True}, "memory = True: must be an integer"),
        ({"prompt": [1, -1, 0]}, r"prompt\[1\] = -1: must be an integer from 0"),
        ({"prompt": [1, 2.5, 0]}, r"prompt\[1\] = 2.5: must be an integer"),
        ({"prompt": [1, float("nan"), 0]}, r"prompt\[1\] = nan: must be an integer"),
        ({"prompt": [1, None, 0]}, r"prompt\[1\] = None: must be an integer"),
        ({"prompt": ["1", "2", "3"]}, r"prompt\[0\] = '1': must be an integer"),
        ({"prompt": [1, 2**63, 0]}, rf"prompt\[1\] = {2**63}: must be an integer"),
        ({"prompt": [1, 2**64, 0]}, rf"prompt\[1\] = {2**64}: must be an integer"),
        ({"prompt": [True, False, True]}, r"prompt\[0\] = True: must be an integer"),
        ({"prompt": [[1, 2, 3]]}, "prompt: must be one list"),
        ({"prompt": [[1], [2, 3], [4]]}, "prompt: "),
        ({"output": [0, 1, 1]}, r"output\[0\] = 0: must be an integer from 1"),
        ({"output": [1, 1]}, "output has 2 values for 3 requests"),
        ({"output": [1, 1, 10]}, r"request 2 \(index 2\): peak 11 \(prompt 1 \+ output 10\) exceeds the memory of 10"),
        ({"arrival": [0, 0, -1]}, r"arrival\[2\] = -1"),
        ({"arrival": [0, 0, MAX_ARRIVAL + 1]}, r"arrival\[2\]"),
        ({"arrival": [0, 0, 0], "arrival_s": [0, 0, 0]}, r"arrival \(rounds\) or arrival_s \(seconds\), not both"),
        ({"arrival_s": [0, float("inf"), 1]}, r"arrival_s\[1\] = inf"),
        ({"arrival_s": [0, float("nan"), 1]}, r"arrival_s\[1\] = nan"),
        ({"arrival_s": [0, -0.5, 1]}, r"arrival_s\[1\] = -0.5"),
        ({"arrival_s": ["0", "1", "2"]}, "arrival_s: every value must be a number of seconds"),
        ({"ids": ["a", "b", "a"]}, r"ids\[2\] = 'a': already the id of request 0"),
        ({"ids": ["7", 7, "b"]}, r"ids\[1\] = '7': already the id of request 0"),
        ({"ids": ["a", None, "b"]}, r"ids\[1\] is missing"),
        ({"ids": ["a", True, "b"]}, r"ids\[1\] = True: must be a string or an integer"),
        ({"ttft_s": [0.0, 1, 1]}, r"ttft_s\[0\] = 0.0: must be a finite number > 0"),
        ({"priority": [0, 2**40, 0]}, r"priority\[1\]"),
        ({"max_output": [1, 1, 0]}, r"max_output\[2\] = 0"),
        ({"output": [1, 4, 1], "max_output": [1, 3, 1]}, r"index 1\): output 4 exceeds its max_output 3"),
        ({"predicted_low": [3, 3, 3], "predicted_high": [3, 2, 3]}, "predicted_low 3 exceeds predicted_high 2"),
        ({"prefix_chunk": 4}, "prefix_chunk is given without prefix"),
        ({"prefix": [[1], [1], [1]]}, "prefix_chunk = None: prefix needs"),
        ({"prefix": [[1], [1, 2], [1]], "prefix_chunk": 4}, r"index 1\): 2 prefix hashes .* it must have 1"),
        ({"prefix": [[1], [1]], "prefix_chunk": 4}, "prefix has 2 lists for 3 requests"),
        ({"prefix": [[1], [-1], [1]], "prefix_chunk": 4}, r"prefix\[1\]: hash -1"),
        ({"prefix": [[1], [2**64], [1]], "prefix_chunk": 4}, r"prefix\[1\]: hash"),
        ({"client": ["a", 1.5, "b"]}, r"client\[1\] = 1.5"),
        ({"session": ["a"]}, "session has 1 values for 3 requests"),
    ],
)
def test_a_wrong_cell_is_named(changes, message):
    cells = {"memory": 10, "prompt": [1, 1, 1], "output": [1, 1, 1], **changes}
    with pytest.raises(InstanceError, match=message):
        Instance(**cells)


@pytest.mark.parametrize("prompt", [[True, 2], [2, False]])
def test_a_boolean_among_integers_is_no_number_of_tokens(prompt):
    with pytest.raises(InstanceError, match="must be an integer"):
        Instance(10, prompt, [1, 1])


def test_integers_count_whatever_holds_them():
    kinds = ([1, 2], (1, 2), np.array([1, 2], np.uint8), np.array([1, 2], object), [np.int64(1), 2])
    for prompt in kinds:
        assert Instance(np.int32(10), prompt, [1, 1], ids=["x", "y"]).prompt.tolist() == [1, 2]


def test_unknown_fields_are_errors():
    with pytest.raises(TypeError, match="tfft_s"):
        Instance(10, [1], [1], tfft_s=[1.0])


def test_peak_and_volume():
    """(9, 5) holds 10, 11, 12, 13, 14 tokens: 60 in all, 14 at its peak."""
    instance = Instance(17, [9, 0], [5, 17])
    assert instance.peak.tolist() == [14, 17]
    assert instance.volume.tolist() == [60, 17 * 18 // 2]


def test_the_largest_numbers_stay_exact():
    """s = o - 1 = 2^30 - 1 fills the largest memory: volume (2^30 - 1) 2^30 + 2^30 (2^30 + 1)/2 = 3 * 2^59 - 2^29."""
    instance = Instance(MAX_MEMORY, [2**30 - 1, 0], [2**30, MAX_MEMORY], arrival=[MAX_ARRIVAL, 0])
    assert instance.volume.tolist() == [3 * 2**59 - 2**29, MAX_MEMORY * (MAX_MEMORY + 1) // 2]


def test_no_requests():
    empty = Instance(1, [], [])
    assert (empty.n, empty.offline, empty.arrival_unit, list(empty.ids)) == (0, True, "none", [])


def test_arrival_units():
    rounds, seconds, none = (Instance(3, [0], [1], **cells) for cells in ({"arrival": [4]}, {"arrival_s": [0.5]}, {}))
    assert [x.arrival_unit for x in (rounds, seconds, none)] == ["rounds", "seconds", "none"]
    assert (rounds.offline, none.offline, none.arrival.tolist()) == (False, True, [0])
    assert Instance(3, [0], [1], arrival=[0]).offline
    with pytest.raises(InstanceError, match="arrivals in seconds; say how long a round is"):
        _ = seconds.arrival


def test_absent_values():
    instance = full()
    assert instance.max_output.tolist() == [2, -1, 9]
    assert np.isnan(instance.ttft_s[1])
    assert Instance(3, [0], [1], predicted=[None], ttft_s=[None], client=[None]).columns().keys() == {
        *("memory", "name", "origin", "prompt", "output")
    }


def test_nothing_can_be_changed():
    instance = full()
    for name, cell in vars(instance).items():
        if isinstance(cell, np.ndarray):
            assert not cell.flags.writeable, name
    for name in ("arrival", "peak", "volume"):
        assert not getattr(instance, name).flags.writeable, name
    with pytest.raises(AttributeError):
        instance.memory = 11


def test_a_copy_by_pickle_is_equal_and_as_immutable():
    copy = pickle.loads(pickle.dumps(full()))
    assert same(copy, full())
    for name, cell in vars(copy).items():
        if isinstance(cell, np.ndarray):
            assert not cell.flags.writeable, name


def test_inputs_are_neither_changed_nor_kept():
    prompt, hashes, offsets = np.array([1, 2]), np.array([5, 6], np.uint64), np.array([0, 1, 2])
    instance = Instance(9, prompt, [1, 1], prefix=(hashes, offsets), prefix_chunk=2)
    prompt[0], hashes[0] = 8, 9
    assert instance.prompt.tolist() == [1, 2]
    assert instance.prefix_rows() == [[5], [6]]


def test_hashes_in_arrays_are_checked_like_those_in_lists():
    for hashes in (np.array([-1, 2]), np.array([0.5, 2])):
        with pytest.raises(InstanceError, match="prefix"):
            Instance(9, [1, 1], [1, 1], prefix=(hashes, np.array([0, 1, 2])), prefix_chunk=2)
    with pytest.raises(InstanceError, match="offsets must rise"):
        Instance(9, [1, 1], [1, 1], prefix=(np.array([1, 2], np.uint64), np.array([0, 2, 1])), prefix_chunk=2)


def test_columns_make_the_same_instance():
    assert same(Instance(**full().columns()), full())


@given(st.lists(st.integers(0, 2), max_size=3, unique=True))
def test_take_keeps_every_field_of_those_taken(index):
    """Cell by cell against the arguments; a mask of the same requests gives them in their old order."""
    taken = full().take(index)
    expected = {key: [cell[k] for k in index] if isinstance(cell, list) else cell for key, cell in FULL.items()}
    assert same(taken, Instance(10, **expected))
    mask = np.isin(np.arange(3), index)
    assert same(full().take(mask), full().take(sorted(index)))


def test_take_may_repeat_requests_without_ids():
    doubled = Instance(9, [1, 2], [3, 4]).take([1, 1, 0])
    assert (doubled.prompt.tolist(), doubled.output.tolist(), list(doubled.ids)) == ([2, 2, 1], [4, 4, 3], [0, 1, 2])
    with pytest.raises(InstanceError, match="already the id"):
        full().take([0, 0])


def test_replace():
    changed = full().replace(memory=20, arrival=None, arrival_s=[0.0, 0.5, 0.25], client=None)
    assert (changed.memory, changed.arrival_unit, changed.client) == (20, "seconds", None)
    assert same(changed.replace(memory=10, arrival=FULL["arrival"], arrival_s=None, client=FULL["client"]), full())


def test_oversized_requests_are_dropped_and_counted():
    """Under 5 tokens (5, 1) with its hashes goes; (4, 2) too; the others keep every field."""
    small = full(oversized="drop").replace(memory=5, oversized="drop")
    assert same(small, full().take([1]).replace(memory=5, origin=small.origin))
    assert small.origin == {"source": "made", "oversized_dropped": {"count": 2, "first_ids": ["a", 3]}}
    assert Instance(5, [9, 1], [9, 1], oversized="drop").origin["oversized_dropped"]["first_ids"] == [0]
    assert Instance(5, [1], [1], oversized="drop").origin == {}


def test_in_rounds_divides_decimals_exactly():
    """1.1/0.1 is 11.000000000000002 in floating point, whose ceiling is 12; 1.1 s is the end of round 11."""
    instance = Instance(3, [0] * 4, [1] * 4, arrival_s=[0, 1.1, 1.10001, 0.3], origin={"source": "made"})
    rounds = instance.in_rounds("0.1")
    assert rounds.arrival.tolist() == [0, 11, 12, 3]
    assert rounds.arrival_s is None
    assert rounds.origin == {"source": "made", "round_s": "0.1"}
    assert rounds.in_rounds(5) is rounds


@given(st.lists(st.integers(0, 10**7), min_size=1, max_size=6), st.sampled_from(["0.1", "0.03", "1e-3", "7", "1/3", "0.0125"]))
def test_in_rounds_never_starts_anybody_early_nor_a_round_late(milliseconds, length):
    """The least integer a with a * length >= time, for the decimal number that the float prints as."""
    times = [k / 1000 for k in milliseconds]
    rounds = Instance(3, [0] * len(times), [1] * len(times), arrival_s=times).in_rounds(length).arrival.tolist()
    for a, time in zip(rounds, times, strict=True):
        assert (a - 1) * Fraction(length) < Fraction(repr(time)) <= a * Fraction(length)


@pytest.mark.parametrize("round_s", [0, -1, "abc", "1/0", float("nan"), float("inf"), "1e-400", "1e-300"])
def test_rounds_that_cannot_be(round_s):
    with pytest.raises(InstanceError, match="round_s"):
        Instance(3, [0], [1], arrival_s=[1.0]).in_rounds(round_s)


def test_repr_is_short():
    assert repr(Instance(17, [0], [1], name="x")) == "Instance('x', n=1, memory=17)"
