"""Workloads: the same bytes everywhere, the percentiles of the traces, and requests that do not depend on n."""

import doctest
import hashlib
import json
import math
from itertools import pairwise

import numpy as np
import pytest

import instances
from instances import FAMILIES, GENERATOR, generate
from instances.sampling import (
    Percentiles,
    correlated_ranks,
    exponential,
    mixed,
    pick,
    ranks,
    scaled,
    stretched,
    uniform,
    words,
)
from instances.workloads import (
    ARXIV_OUTPUT,
    ARXIV_PROMPT,
    BOOK_OUTPUT,
    BOOK_PROMPT,
    CHAT_OUTPUT,
    CHAT_PROMPT,
    CODE_OUTPUT,
    CODE_PROMPT,
    CONTEXT,
    CONV_OUTPUT,
    CONV_PROMPT,
    REASONING_OUTPUT,
    REASONING_PROMPT,
    WORKLOADS,
)
from opt.core.errors import InstanceError

MANY = 20_000
NAMES = sorted(WORKLOADS)

DIGESTS = {
    "agent": "a4e9abd71ebd2b39",
    "chat": "1018b1ba623c89fe",
    "code": "357b99848cdef5e6",
    "conversation": "f00aa45367722ffe",
    "mixture": "045c19227508e1e2",
    "reasoning": "16b9e897fce60231",
    "small": "f977246b92f66b90",
    "small-short": "0bd23aa9efe6ab0f",
    "summarization": "262e125fc0ad5e04",
    "tenants": "6cba3fea38fd0bae",
    "translation": "344a9fec26a04ca2",
}
WORDS = [503923658620307080, 4266324232204553256]


def digest(instance):
    """A hash of the memory and every column of an instance, the same on any platform."""
    state = hashlib.sha256()
    for key, cell in sorted(instance.columns().items()):
        if key in ("name", "origin", "ids"):
            continue
        parts = cell if key == "prefix" else [cell]
        for part in parts:
            array = part if isinstance(part, np.ndarray) else np.frombuffer(json.dumps(part).encode(), np.uint8)
            state.update(key.encode() + array.astype(array.dtype.newbyteorder("<")).tobytes())
    return state.hexdigest()[:16]


@pytest.mark.parametrize("name", NAMES)
def test_the_bytes_of_a_seed_never_change(name):
    """A change here breaks every instance file that names its recipe: raise GENERATOR, or undo it."""
    assert digest(generate(name, n=1000, seed=2024)) == DIGESTS[name]


def test_the_words_behind_every_draw_never_change():
    """PCG64 seeded by SeedSequence(7, spawn_key=(crc32("a/b"),)), as numpy documents them."""
    assert words(7, "a/b", 2).tolist() == WORDS


@pytest.mark.parametrize("name", NAMES)
def test_the_first_requests_do_not_depend_on_n(name):
    memory = generate(name, n=1).memory
    long = generate(name, n=3000, memory=memory, seed=5)
    for n in (0, 1, 700):
        assert digest(generate(name, n=n, memory=memory, seed=5)) == digest(long.take(np.arange(n)))


@pytest.mark.parametrize("name", NAMES)
def test_an_origin_is_all_it_takes(name):
    made = generate(name, n=50, seed=3)
    origin = json.loads(json.dumps(made.origin))
    assert origin["generator"] == GENERATOR
    again = generate(origin["recipe"], n=origin["n"], memory=origin["memory"], seed=origin["seed"])
    assert digest(again) == digest(made)
    assert again.origin == made.origin


@pytest.mark.parametrize("name", NAMES)
def test_seeds_differ(name):
    assert digest(generate(name, n=50, seed=0)) != digest(generate(name, n=50, seed=1))


@pytest.mark.parametrize("name", NAMES)
def test_every_request_fits_the_least_memory(name):
    """`Instance` refuses a request above the memory, so that it is built is the test."""
    family = WORKLOADS[name]
    assert generate(name, n=MANY, memory=family.least).memory == family.least


LENGTHS = {
    "chat": (CHAT_PROMPT, CHAT_OUTPUT),
    "code": (CODE_PROMPT, CODE_OUTPUT),
    "conversation": (CONV_PROMPT, CONV_OUTPUT),
    "translation": (BOOK_PROMPT, BOOK_OUTPUT),
    "reasoning": (REASONING_PROMPT, REASONING_OUTPUT),
    "summarization": (ARXIV_PROMPT, ARXIV_OUTPUT),
}


@pytest.mark.parametrize("name", sorted(LENGTHS))
@pytest.mark.parametrize("side", ["prompt", "output"])
def test_the_lengths_have_the_percentiles_of_the_trace(name, side):
    """At each level the share of draws up to the table's value is that level: within 1.5 % of all draws.

    Prompts of documents are redrawn when the output leaves no room, which takes some 3 % from the longest.
    """
    table = LENGTHS[name][side == "output"]
    drawn = getattr(generate(name, n=MANY, seed=1), side)
    slack = 0.045 if (name, side) == ("summarization", "prompt") else 0.015
    for level, value in zip(table.levels, table.values, strict=True):
        share = np.mean(drawn < value), np.mean(drawn <= value)
        assert share[0] - slack <= level / 10_000 <= share[1] + slack, (level, value)
    assert drawn.min() >= table.values[0]
    assert drawn.max() <= table.greatest


MEANS = {  # name: mean prompt, its coefficient of variation, mean output, its coefficient, as measured (design of the tables)
    "chat": (62, 1.92, 162, 0.90),
    "summarization": (2588, 0.37, 291, 1.82),
    "code": (2048, 0.96, 28, 2.15),
    "conversation": (1155, 0.96, 211, 0.77),
    "translation": (1067, 0.25, 1613, 0.23),
    "reasoning": (1377, None, 1502, None),
    "agent": (8596, None, 182, None),
}


@pytest.mark.parametrize("name", sorted(MEANS))
def test_the_means_are_roughly_as_measured(name):
    instance = generate(name, n=MANY, seed=1)
    for drawn, mean, spread in zip((instance.prompt, instance.output), MEANS[name][::2], MEANS[name][1::2], strict=True):
        assert drawn.mean() == pytest.approx(mean, rel=0.13)
        assert spread is None or drawn.std() / drawn.mean() == pytest.approx(spread, rel=0.15)


def gaps(instance):
    return np.diff(instance.arrival_s)


def variation(values):
    return float(values.std() / values.mean())


@pytest.mark.parametrize(("name", "mean", "spread", "slack"), [("code", 0.39, 13.15, 0.2), ("conversation", 0.181, 1.09, 0.05)])
def test_the_gaps_are_as_bursty_as_measured(name, mean, spread, slack):
    """Azure 2023: 2.57 and 5.53 requests in a second."""
    found = gaps(generate(name, n=MANY, seed=1))
    assert found.mean() == pytest.approx(mean, rel=0.15)
    assert variation(found) == pytest.approx(spread, rel=slack)


def test_arrivals_start_at_0_and_never_go_back():
    for name in ("code", "conversation", "tenants", "agent"):
        instance = generate(name, n=2000, seed=4)
        assert instance.arrival_s[0] == 0
        assert (gaps(instance) >= 0).all()
        assert (np.rint(instance.arrival_s * 1e6) / 1e6 == instance.arrival_s).all()  # whole microseconds


def test_a_document_leaves_room_for_its_summary():
    instance = generate("summarization", n=MANY)
    assert instance.peak.max() <= 4096
    assert np.corrcoef(np.log(instance.prompt), np.log(instance.output))[0, 1] < -0.2  # measured: -0.49


def test_a_translation_follows_its_page():
    instance = generate("translation", n=MANY)
    assert np.corrcoef(np.log(instance.prompt), np.log(instance.output))[0, 1] == pytest.approx(0.86, abs=0.02)


def test_half_of_the_mixture_are_documents():
    """A chat's prompt is above 1037 tokens never, a document's is below that in 8 % of cases."""
    instance = generate("mixture", n=MANY)
    assert np.mean(instance.prompt > 1037) == pytest.approx(0.46, abs=0.02)
    assert generate("mixture").memory == 16_492


def test_small_instances_are_uniform():
    memories = [generate("small", n=1, seed=seed).memory for seed in range(400)]
    assert set(memories) == set(range(30, 51))
    instance = generate("small", n=MANY, memory=30)
    assert set(instance.prompt.tolist()) == {1, 2, 3, 4, 5}
    for s in range(1, 6):
        counts = np.bincount(instance.output[instance.prompt == s])[1:]
        assert len(counts) == 30 - s
        assert counts.min() > 0.6 * counts.mean()
    assert generate("small-short", n=MANY, memory=43).output.max() == 10
    assert generate("small-short", n=MANY, memory=6).output.max() == 1


def test_tenants_have_zipf_rates_and_bursts():
    instance = generate("tenants", n=MANY, seed=2)
    clients = np.array(instance.client)
    counts = np.array([np.sum(clients == f"client-{who:02d}") for who in range(16)])
    assert counts[0] / counts[:4].sum() == pytest.approx(12 / 25, rel=0.1)  # 1 of 1 + 1/2 + 1/3 + 1/4
    assert counts[:5].sum() / MANY == pytest.approx(0.675, rel=0.05)  # H(5) / H(16)
    found = [variation(np.diff(instance.arrival_s[clients == f"client-{who:02d}"])) for who in range(16)]
    assert {min((1, 2.24, 4.36), key=lambda law: abs(math.log(law / value))) for value in found} == {1, 2.24, 4.36}


def test_agents_share_their_system_prompt_and_sessions_their_past():
    instance = generate("agent", n=4000, seed=1)
    hashes, offsets = instance.prefix_ids.tolist(), instance.prefix_offsets.tolist()
    rows = [tuple(hashes[a:b]) for a, b in pairwise(offsets)]
    past, openings, followed = {}, {}, 0
    for at, row in enumerate(rows):
        openings.setdefault(instance.client[at], set()).add(row[:2])  # system prompts hold 2 chunks at least
        earlier = past.get(instance.session[at])
        if earlier is not None:
            full = int(instance.prompt[earlier]) // 512
            assert row[:full] == rows[earlier][:full]
            assert instance.prompt[at] > instance.peak[earlier]
            followed += 1
        past[instance.session[at]] = at
    assert followed > 1000
    assert len(openings) == 32
    assert all(len(found) == 1 for found in openings.values())
    assert len(set.union(*openings.values())) == 32
    assert instance.peak.max() <= CONTEXT


def test_equal_hashes_mean_equal_prefixes():
    """Whoever has the j-th hash of another has all those before it too."""
    instance = generate("agent", n=4000, seed=1)
    before = {}
    for a, b in pairwise(instance.prefix_offsets.tolist()):
        row = instance.prefix_ids[a:b].tolist()
        for level, chunk in enumerate(row):
            parent = row[level - 1] if level else None
            assert before.setdefault(chunk, parent) == parent


def test_most_agent_blocks_were_seen_before():
    """Mooncake reports 59 % for its tool-agent trace, with an unlimited cache."""
    instance = generate("agent", n=MANY, seed=1)
    seen, hits = set(), 0
    for a, b in pairwise(instance.prefix_offsets.tolist()):
        row = instance.prefix_ids[a:b].tolist()
        hits += next((k for k, chunk in enumerate(row) if chunk not in seen), len(row))
        seen.update(row)
    assert hits / len(instance.prefix_ids) == pytest.approx(0.6, abs=0.05)


def test_agents_do_not_share_across_seeds():
    first, second = (set(generate("agent", n=200, seed=seed).prefix_ids.tolist()) for seed in (0, 1))
    assert not first & second


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"family": "chatt"}, "family 'chatt' is not known; known: chat, summarization"),
        ({"family": "chat", "n": -1}, "n = -1: must be an integer from 0 to 10000000"),
        ({"family": "chat", "n": 10**7 + 1}, "n = 10000001: must be"),
        ({"family": "chat", "n": 2.0}, r"n = 2\.0: must be"),
        ({"family": "chat", "n": True}, "n = True: must be"),
        ({"family": "chat", "memory": 1797}, "memory = 1797: chat needs at least 1798 tokens"),
        ({"family": "small", "memory": 5}, "memory = 5: small needs at least 6 tokens"),
        ({"family": "chat", "memory": 2**31}, "memory = 2147483648: must be"),
        ({"family": "chat", "seed": -1}, "seed = -1: must be an integer from 0"),
        ({"family": "chat", "seed": "0"}, "seed = '0': must be"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(arguments, message):
    with pytest.raises(InstanceError, match=message) as caught:
        generate(**arguments)
    assert "\n" not in str(caught.value)


def test_numpy_integers_are_integers():
    instance = generate("chat", n=np.int64(3), memory=np.int64(2000), seed=np.uint64(1))
    assert json.loads(json.dumps(instance.origin)) == instance.origin


# The draws themselves.


def test_exponential_is_minus_the_logarithm():
    word = words(0, "test", 100_000)
    exact = -np.log((word >> np.uint64(11)).astype(float) / 2**53)
    assert np.abs(exponential(word) / 2**32 - exact).max() < 3e-6
    edges = np.array([0, 1, 2**11, 2**63, 2**64 - 1], np.uint64)
    assert (exponential(edges) / 2**32).round(5).tolist() == [round(v * math.log(2), 5) for v in (53, 53, 53, 1, 0)]


@pytest.mark.parametrize(("shape", "spread"), [(1, 1.0), (2, math.sqrt(5)), (3, math.sqrt(19))])
def test_stretched_gaps_keep_the_mean(shape, spread):
    """E[X^2] of an exponential to the power k is (2k)! against k!^2: 2, 6, 20 in units of the squared mean."""
    drawn = stretched(exponential(words(1, "test", 400_000)), shape)
    assert drawn.mean() / 2**32 == pytest.approx(1, rel=0.03)
    assert variation(drawn) == pytest.approx(spread, rel=0.05)
    assert scaled(drawn, 2**24).mean() == pytest.approx(2**24, rel=0.03)
    assert scaled(stretched(exponential(np.zeros(1, np.uint64)), shape), 2**24)[0] > 0  # the largest gap does not overflow


def test_uniform_and_pick_cover_their_range_evenly():
    rank = ranks(0, "test", 60_000)
    assert np.bincount(uniform(rank, 3, 8)).tolist()[:3] == [0, 0, 0]
    assert np.bincount(uniform(rank, 3, 8))[3:].min() > 9_500
    assert np.bincount(pick(rank, [3, 0, 1])) / len(rank) == pytest.approx([0.75, 0, 0.25], abs=0.01)
    ends = np.array([0, 2**32 - 1])
    assert uniform(ends, 3, 8).tolist() == [3, 8]
    assert pick(ends, [3, 0, 1]).tolist() == [0, 2]


def test_percentiles_are_met_exactly_at_their_levels():
    table = Percentiles((1, 1, 10, 20), (0, 100, 5000, 10_000))
    at = [-(-level * 2**32 // 10_000) for level in (0, 100, 5000, 7500)] + [2**32 - 1]
    assert table.draw(np.array(at)).tolist() == [1, 1, 10, 15, 20]


def test_draws_at_most_a_limit_are_the_draws_below_it():
    """The law given that the value fits: as many of each value as among unlimited draws that fit."""
    table = Percentiles((1, 1, 10, 20), (0, 100, 5000, 10_000))
    rank = ranks(0, "test", 200_000)
    free = table.draw(rank)
    for limit in (1, 7, 19, 20, 99):
        below = free[free <= limit]
        drawn = table.draw_at_most(rank, np.full(len(rank), limit))
        assert drawn.max() == min(limit, 20)
        assert np.bincount(drawn) / len(drawn) == pytest.approx(np.bincount(below) / len(below), abs=0.01)


def test_correlated_ranks_stay_uniform():
    rank, noise = ranks(0, "a", 160_000), ranks(0, "b", 160_000)
    moved = correlated_ranks(rank, noise, (0, 2**29, 2**32), 20_000)
    assert np.bincount(moved >> 28).min() > 9_500
    assert np.bincount(moved >> 28).max() < 10_500
    assert ((moved < 2**29) == (rank < 2**29)).all()
    assert 0 <= moved.min() <= moved.max() < 2**32
    assert 0.7 < np.corrcoef(rank, moved)[0, 1] < 0.95


def test_mixed_is_splitmix64():
    """The first output of splitmix64 seeded with 0 is 0xe220a8397b1dcdaf in every published implementation."""
    assert mixed(np.zeros(1, np.uint64))[0] == 0xE220A8397B1DCDAF
    assert len(set(mixed(np.arange(1000, dtype=np.uint64), np.uint64(3)).tolist())) == 1000


def test_the_example_in_the_docstring_runs():
    assert doctest.testmod(instances) == (0, 1)


def test_families_describe_themselves():
    for name, family in FAMILIES.items():
        assert family.name == name
        assert 20 < len(family.description) < 110
        assert generate(name).n == family.n
        drawn = family.memory if isinstance(family.memory, range) else [family.memory]
        assert generate(name).memory in drawn
        assert min(drawn) >= family.least
