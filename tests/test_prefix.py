"""The Chunked Hash Tree against a model that compares prompts, and what it shares with the radix baseline."""

from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

import opt.serve.prefix.tree as tree_module
from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.serve.prefix.hashing import chunk_hashes
from opt.serve.prefix.radix import RadixTree, longest_match_first
from opt.serve.prefix.tree import SLACK, ChunkedHashTree
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine
from opt.sim.policies import POLICIES
from opt.sim.workload import workload


def common_length(a, b):
    """The length of the longest common prefix, one by one."""
    length = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        length += 1
    return length


class Naive:
    """Prompts in two dictionaries; every answer by comparing prompts."""

    def __init__(self):
        self.waiting, self.active = {}, {}

    def missing(self, i):
        mine = self.waiting[i]
        return len(mine) - max((common_length(mine, other) for other in self.active.values()), default=0)

    def select(self):
        return min(((self.missing(i), i) for i in self.waiting), default=None)

    def common(self, extra=()):
        prompts = [*self.active.values(), *extra]
        return min((common_length(prompts[0], other) for other in prompts), default=0) if prompts else 0

    def working_set(self):
        return {tuple(prompt[: k + 1]) for prompt in self.active.values() for k in range(len(prompt))}

    def prefixes(self):
        return self.working_set() | {tuple(p[: k + 1]) for p in self.waiting.values() for k in range(len(p))}

    def heaviest(self):
        starts = {tuple(prompt[:k]) for prompt in self.waiting.values() for k in range(1, len(prompt) + 1)}
        weights = ((sum(tuple(p[: len(s)]) == s for p in self.waiting.values()) - 1) * len(s) for s in starts)
        return max(weights, default=0)


prompts = st.lists(st.integers(0, 2), max_size=6)  # letters; names of chunks as they are


class TreeAgainstNaive(RuleBasedStateMachine):
    """Random inserts, activations, completions, evictions and withdrawals; T1 and T3 of the tree."""

    @initialize(slack=st.sampled_from([0, SLACK]))
    def begin(self, slack):
        tree_module.SLACK = slack  # with 0 the heaps are rebuilt all the time
        self.tree, self.naive, self.next = ChunkedHashTree(), Naive(), 0

    def teardown(self):
        tree_module.SLACK = SLACK

    @rule(prompt=prompts, again=st.booleans())
    def insert(self, prompt, again):
        free = [i for i in range(self.next) if i not in self.tree]
        i = free[0] if again and free else self.next
        self.next += i == self.next
        self.tree.insert(i, prompt)
        self.naive.waiting[i] = prompt

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data(), selected=st.booleans())
    def activate(self, data, selected):
        i = self.tree.select()[0] if selected else data.draw(st.sampled_from(sorted(self.naive.waiting)))
        self.tree.activate(i)
        self.naive.active[i] = self.naive.waiting.pop(i)

    @precondition(lambda self: self.naive.active)
    @rule(data=st.data(), evicted=st.booleans())
    def leave(self, data, evicted):
        i = data.draw(st.sampled_from(sorted(self.naive.active)))
        prompt = self.naive.active.pop(i)
        if evicted:
            self.tree.wait(i)
            self.naive.waiting[i] = prompt
        else:
            self.tree.finish(i)

    @precondition(lambda self: self.naive.waiting)
    @rule(data=st.data())
    def remove(self, data):
        i = data.draw(st.sampled_from(sorted(self.naive.waiting)))
        del self.naive.waiting[i]
        self.tree.remove(i)

    @invariant()
    def same_selection(self):
        found = self.tree.select()
        assert (None if found is None else found[::-1]) == self.naive.select()

    @invariant()
    def same_counts(self):
        tree, naive = self.tree, self.naive
        assert tree.common == naive.common()
        assert tree.distinct_chunks == len(naive.working_set())
        assert tree.total_chunks == sum(map(len, naive.active.values()))
        assert tree.nodes == len(naive.prefixes())
        deepest = tree.deepest()
        pairs = [common_length(a, b) for a in naive.waiting.values() for b in naive.active.values()]
        assert (0 if deepest is None else deepest.depth) == max(pairs, default=0)
        heaviest = tree.heaviest()
        assert (0 if heaviest is None else (heaviest.waiting - 1) * heaviest.depth) == naive.heaviest()

    @invariant()
    def same_of_each(self):
        tree, naive = self.tree, self.naive
        for i, mine in naive.waiting.items():
            assert tree.missing(i) == naive.missing(i)
            assert tree.common_with(i) == naive.common([mine])
            for depth in range(len(mine) + 1):
                others = [other for j, other in naive.waiting.items() if j != i and common_length(mine, other) >= depth]
                assert tree.sharers(i, depth) == len(others)

    @invariant()
    def same_below(self):
        mine = sorted((len(prompt), i) for i, prompt in self.naive.waiting.items())
        assert list(self.tree.below(self.tree.root)) == [i for _, i in mine]

    @invariant()
    def nothing_left_over(self):
        if not self.naive.waiting and not self.naive.active:
            assert not self.tree.root.children


TestTree = TreeAgainstNaive.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_heaps_stay_as_small_as_what_waits():
    """T2: a request that is activated and evicted a thousand times leaves no thousand entries."""
    tree = ChunkedHashTree()
    for i in range(4):
        tree.insert(i, "abc"[: i % 3 + 1])
    for _ in range(1000):
        i, _ = tree.select()
        tree.activate(i)
        tree.wait(i)
    assert max(len(node.least) for node in [tree.root, *tree.root.children.values()]) <= 2 * 4 + SLACK + 1
    assert len(tree._nearest) <= SLACK + 4 * 8 + 8
    assert len(tree._heaviest) <= SLACK + 4 * 8 + 8


def test_no_limit_on_levels():
    """Three hundred chunks; hashes packed with an 8-bit level would take the 257th for the first."""
    long = list(range(300))
    tree = ChunkedHashTree()
    tree.insert(0, long)
    tree.insert(1, [*long[:299], -1])
    tree.insert(2, long[:1])
    tree.activate(0)
    assert (tree.missing(1), tree.missing(2), tree.select()) == (1, 0, (2, 0))
    assert (tree.common_with(1), tree.common_with(2)) == (299, 1)


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20), st.integers(1, 7))
@settings(deadline=None)
def test_hashes_agree_exactly_as_long_as_the_tokens_do(a, b, chunk):
    ours, theirs = chunk_hashes(a, chunk), chunk_hashes(np.array(b), chunk)
    assert (len(ours), len(theirs)) == (-(-len(a) // chunk), -(-len(b) // chunk))
    for k, (x, y) in enumerate(zip(ours, theirs, strict=False)):
        assert (x == y) == (a[: (k + 1) * chunk] == b[: (k + 1) * chunk])


def test_bad_calls_are_refused():
    tree = ChunkedHashTree()
    tree.insert(0, "ab")
    with pytest.raises(ValueError, match="request 0 is already in the tree"):
        tree.insert(0, "ab")
    with pytest.raises(ValueError, match="chunk = 0: must be at least 1 token"):
        chunk_hashes([1], 0)


@given(
    rows=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=5), min_size=1, max_size=12),
    cache=st.none() | st.integers(1, 6000),
    everybody=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_cheap_reads_of_a_step_are_those_of_a_plain_count(rows, cache, everybody):
    """Units of 64 tokens; each prompt has a private token at the end, so that all its units may be found."""
    names = {prefix: k for k, prefix in enumerate({tuple(row[:k]) for row in rows for k in range(1, len(row) + 1)})}
    prefix = [[*(names[tuple(row[:k])] for k in range(1, len(row) + 1)), 1000 + i] for i, row in enumerate(rows)]
    prompt = [64 * len(row) + 1 for row in rows]
    instance = Instance(10**6, prompt, [3] * len(rows), arrival_s=np.zeros(len(rows)), prefix=prefix, prefix_chunk=64)
    config = EngineConfig(shared_reads="all" if everybody else "each", cache_tokens=cache)
    model = CostModel("test", "linear", {"base": 1.0, "per_kv_token": 1.0}, locality=0.0)
    load = workload(instance)
    engine = Engine(load, POLICIES["vllm-fcfs"].make(load.requests, config), config, model, kv_tokens=10**6)
    engine.submit(range(instance.n))
    engine.step()
    engine.step()
    kv = sum(tokens + 1 for tokens in prompt)
    distinct = kv - 64 * (sum(map(len, rows)) - len(names))
    common = 64 * min(common_length(row, rows[0]) for row in rows)
    cheap = (common * (len(rows) - 1) if len(rows) >= 8 and common >= 256 else 0) if everybody else kv - distinct
    if cache is not None and distinct > cache:
        cheap *= cache / distinct
    assert engine.log.durations.values[1] == pytest.approx(1 + kv - cheap)


@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=12), st.lists(st.integers(0, 2), max_size=8))
@settings(deadline=None)
def test_the_radix_baseline_finds_the_longest_common_prefix(cached, prompt):
    tree = RadixTree()
    for k, tokens in enumerate(cached):
        assert tree.insert(tokens) == max((common_length(tokens, other) for other in cached[:k]), default=0)
    assert tree.match(prompt) == max((common_length(prompt, other) for other in cached), default=0)
    order = longest_match_first(tree, enumerate(np.array(p, np.int64) for p in [prompt, [0], [9], [0]]))
    assert order == sorted(range(4), key=lambda i: -tree.match([prompt, [0], [9], [0]][i]))


@pytest.mark.parametrize(
    "name",
    ["prefix.hashing", "prefix.tree", "prefix.radix", "prefix.groups", "prefix.offline", "prefix.forest", "feather.bandit"],
)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"opt.serve.{name}")).failed == 0
