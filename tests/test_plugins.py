"""Plug-ins for the engines. What needs vLLM itself is in `test_plugins_vllm.py`, which `make test-engines` runs."""

import importlib.metadata
import re
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opt.core.instance import Instance
from opt.plugins import keys, lengths, lookahead, settings, versions
from opt.plugins.keys import key_of
from opt.plugins.lengths import Lengths, as_length
from opt.plugins.lookahead import Profile
from opt.plugins.settings import Settings, settings_from
from opt.plugins.sglang import Reorder, register
from opt.plugins.versions import require
from opt.solvers.orders import KEYS, order_of


def test_the_examples_run():
    import doctest

    for module in (keys, lengths, lookahead, settings, versions):
        assert doctest.testmod(module).failed == 0


# --- versions ------------------------------------------------------------------------------------------------------


def test_a_missing_engine_and_an_untested_version_are_one_clear_line(monkeypatch):
    with pytest.raises(ImportError, match=r"nothing is not installed; kvopt's plug-in works with nothing 1.0 up to 2 \(pip\)"):
        require("nothing", ("surely-no-such-distribution",), "1.0", "2", "pip")
    for version, good in {"0.31.9": False, "0.32.0": True, "0.32.4+cpu": True, "0.33.0rc1": False, "0.33": False}.items():
        monkeypatch.setattr(importlib.metadata, "version", lambda _, version=version: version)
        if good:
            assert require("vLLM", ("vllm",), "0.32.0", "0.33", "pip") == version
        else:
            with pytest.raises(
                ImportError, match=f"vLLM {re.escape(version)} is installed; .* 0.32.0 up to but not including 0.33"
            ):
                require("vLLM", ("vllm",), "0.32.0", "0.33", "pip")


# --- expected outputs ----------------------------------------------------------------------------------------------


@given(
    st.one_of(st.none(), st.integers(1, 500)),
    st.integers(1, 400),
    st.integers(0, 399),
    st.lists(st.integers(1, 300), max_size=60),
)
def test_expected_outputs_are_ahead_of_what_is_made_and_within_the_limit(hint, limit, made, seen):
    made = min(made, limit - 1)
    predictor = Lengths()
    for output in seen:
        predictor.saw(output)
    total = predictor.total(hint, limit, made)
    assert made < total <= max(limit, made + 1)
    if hint is not None and made < hint <= limit:
        assert total == hint


def test_without_a_hint_the_limit_and_later_a_quantile_of_what_was_seen():
    predictor = Lengths(quantile=0.5)
    for output in range(1, 16):
        predictor.saw(output)
    assert predictor.total(None, 1000) == 1000
    predictor.saw(16)  # the outputs 1 .. 16: 9 is the ninth of them
    assert predictor.total(None, 1000) == 9
    assert predictor.total(None, 1000, made=20) == 36  # 9, 18, 36
    assert Lengths(quantile=None).total(None, 1000) == 1000
    assert [as_length(hint) for hint in (-1, "x", None, [3], float("inf"), 7)] == [None, None, None, None, None, 7]


# --- settings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"patience": 3}, "kvopt: unknown setting 'patience'; did you mean patience_s?"),
        ({"zzz": 3}, "kvopt: unknown setting 'zzz'; known: predictor, quantile"),
        ({"quantile": 0}, "kvopt: quantile = 0: must be above 0 and at most 1"),
        ({"patience_s": float("nan")}, "kvopt: patience_s = nan: must be a number of seconds above 0"),
        ({"look_ahead": 1}, "kvopt: look_ahead = 1: must be true or false"),
        ({"seed": -1}, "kvopt: seed = -1: must be an integer from 0"),
        ({"predictor": "oracle"}, "kvopt: predictor = 'oracle': must be quantile or limit"),
        ({"locality": 1.5}, "kvopt: locality = 1.5: must be from 0 to 1"),
        ({"shared_reads": "some"}, "kvopt: shared_reads = 'some': must be each or all"),
        ({"chunk": 0}, "kvopt: chunk = 0: must be an integer from 1"),
        ({"cache_tokens": 0}, "kvopt: cache_tokens = 0: must be an integer from 1"),
        ({"tpot_s": 0}, "kvopt: tpot_s = 0: must be a number of seconds above 0"),
        ([1], r"kvopt: settings = \[1\]: must be a mapping"),
    ],
)
def test_wrong_settings_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        settings_from(given)


def test_no_settings_are_the_defaults():
    assert settings_from(None) == settings_from({}) == Settings()


# --- orders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(set(KEYS) - {"random"}))
def test_keys_of_single_requests_give_the_offline_order(name):
    rng = np.random.default_rng(3)
    instance = Instance(1000, rng.integers(0, 300, 50), rng.integers(1, 300, 50))
    one_by_one = [key_of(name, s, o) for s, o in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True)]
    assert np.argsort(one_by_one, kind="stable").tolist() == order_of(instance, name).tolist()


# --- look-ahead in blocks ------------------------------------------------------------------------------------------


def fits(block, capacity, running, tokens, left):
    """By the definition: in every step until the request ends, all blocks together are within the capacity."""
    return all(
        sum(max(-(-(n + t - 1) // block), held) for n, end, held in running if end >= t) + -(-(tokens + t - 1) // block)
        <= capacity
        for t in range(1, left + 1)
    )


@st.composite
def scenes(draw):
    block = draw(st.sampled_from([1, 3, 16]))
    sizes = draw(st.lists(st.tuples(st.integers(1, 60), st.integers(1, 40)), max_size=7))
    running = [(n, left, -(-n // block)) for n, left in sizes]
    return block, draw(st.integers(1, 300)) // block + 5, running, draw(st.integers(1, 60)), draw(st.integers(1, 40))


def profile_of(block, capacity, running):
    return (
        Profile(block, capacity, *(list(column) for column in zip(*running, strict=True)))
        if running
        else Profile(block, capacity, [], [], [])
    )


@given(scenes())
def test_the_look_ahead_is_the_definition(scene):
    block, capacity, running, tokens, left = scene
    assert profile_of(block, capacity, running).fits(tokens, left) == fits(block, capacity, running, tokens, left)


@given(scenes())
def test_nobody_could_have_started_sooner_than_the_wait_says(scene):
    block, capacity, running, tokens, left = scene
    for d in range(profile_of(block, capacity, running).wait(tokens, left)):
        later = [(n + d, end - d, max(held, -(-(n + d - 1) // block))) for n, end, held in running if end > d]
        assert not fits(block, capacity, later, tokens, left)


@given(scenes(), st.tuples(st.integers(1, 60), st.integers(1, 40)))
def test_who_was_added_counts(scene, other):
    block, capacity, running, tokens, left = scene
    profile = profile_of(block, capacity, running)
    profile.add(*other)
    assert profile.fits(tokens, left) == fits(block, capacity, [*running, (*other, 0)], tokens, left)


def test_many_different_ends_are_rounded_to_the_safe_side():
    rng = np.random.default_rng(1)
    refused = 0
    for _ in range(20):
        n, left = rng.integers(1, 60, 200), rng.permutation(np.arange(1, 401))[:200]
        running = [(int(a), int(b), -(-int(a) // 16)) for a, b in zip(n, left, strict=True)]
        capacity = int(rng.integers(500, 2500))
        profile = profile_of(16, capacity, running)
        exact = fits(16, capacity, running, 30, 100)
        assert exact or not profile.fits(30, 100)
        refused += exact and not profile.fits(30, 100)
    assert refused <= 2


def test_shared_blocks_are_counted_once():
    """Two requests of 64 tokens share three of their four blocks of 16, five steps to go, eight blocks in all.

    With the last token each has 68 tokens, five blocks: 3 + 2 + 2 = 7 in the fifth step, and one is left.
    """
    profile = Profile(16, 8, [64, 64], [5, 5], [4, 4], shared=[3, 3], common=3)
    assert profile.fits(10, 5)  # 14 tokens in the fifth step: one block
    assert not profile.fits(17, 5)  # 21 tokens in the fifth step: two blocks
    assert profile.fits(17, 5, shared=1)
    assert profile.fits(10, 50)  # 59 tokens at the end: four blocks of five, the others are gone


# --- SGLang's queue, without SGLang --------------------------------------------------------------------------------


def waiting(rid, prompt, limit, hint=None, made=0):
    params = SimpleNamespace(max_new_tokens=limit, custom_params=None if hint is None else {"kvopt_output": hint})
    return SimpleNamespace(rid=rid, origin_input_ids=[0] * prompt, output_ids=[0] * made, sampling_params=params)


def test_sglangs_queue_is_sorted_after_sglang_has_looked_at_it():
    now = [0.0]
    hook = Reorder("svf", patience_s=10, now=lambda: now[0])
    seen = []

    def original(policy, queue):
        seen.append([request.rid for request in queue])

    queue = [waiting("long", 10, 100), waiting("hinted", 10, 100, hint=5), waiting("short", 10, 20), waiting("twin", 10, 20)]
    hook(original, None, queue)
    assert seen == [["long", "hinted", "short", "twin"]]
    assert [request.rid for request in queue] == ["hinted", "short", "twin", "long"]
    now[0] = 11.0
    queue.append(waiting("new", 1, 1))
    hook(original, None, queue)
    assert [request.rid for request in queue] == ["hinted", "short", "twin", "long", "new"]


def test_sglang_without_an_order_is_left_alone_and_a_wrong_one_is_refused(monkeypatch):
    monkeypatch.delenv("KVOPT_SGLANG_ORDER", raising=False)
    register()
    with pytest.raises(ValueError, match="KVOPT_SGLANG_ORDER = 'shortest': must be one of fcfs, sof"):
        Reorder("shortest")
