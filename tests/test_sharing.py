"""The offline problem with common prefixes stored once: a bound that holds, and a list scheduler that uses it."""

from __future__ import annotations

from fractions import Fraction
from itertools import product

import networkx as nx
import numpy as np
import pytest
from exhaustive import latency, usage
from hypothesis import given, settings
from hypothesis import strategies as st

import opt
from instances import generate
from opt.core.certify import _fair_prompts, certify, check_bound
from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.plot.sharing import sharing
from opt.plot.style import save
from opt.serve.prefix.forest import sharing_forest
from opt.serve.prefix.offline import pack_shared
from opt.solvers.bounds import fair_prompts, mean_busy_time, shared_mean_busy_time


@st.composite
def families(draw, most=4, longest=3):
    """Prompts over two letters in chunks of 2, so that prefixes coincide often."""
    count = draw(st.integers(1, most))
    prompts = [draw(st.lists(st.integers(0, 1), max_size=6)) for _ in range(count)]
    rows = [[int("1" + "".join(map(str, p[: k + 2])), 2) for k in range(0, len(p), 2)] for p in prompts]
    output = draw(st.lists(st.integers(1, longest), min_size=count, max_size=count))
    arrival = draw(st.lists(st.integers(0, 2), min_size=count, max_size=count)) if draw(st.booleans()) else None
    least = max(len(p) + o for p, o in zip(prompts, output, strict=True))
    memory = least + draw(st.integers(0, 6))
    return Instance(memory, list(map(len, prompts)), output, arrival=arrival, prefix=rows, prefix_chunk=2)


def best_shared(instance):
    """The optimum by trying every start up to one after another."""
    last = int(instance.arrival.max(initial=0) + instance.output.sum())
    ranges = [range(int(a), last + 1) for a in instance.arrival]
    feasible = (start for start in product(*ranges) if max(usage(instance, list(start), "shared"), default=0) <= instance.memory)
    return min(latency(instance, list(start)) for start in feasible)


@given(families(most=3, longest=2))
@settings(max_examples=25, deadline=None)
def test_the_shared_bound_never_exceeds_the_optimum(instance):
    assert shared_mean_busy_time(instance).value <= best_shared(instance)


@given(families(most=9, longest=30))
@settings(max_examples=80, deadline=None)
def test_the_certifier_derives_the_same_bound_on_its_own(instance):
    """Two programs, one rounding to 2**-20 tokens and one exact: prompts within a token, the claim never above the proof."""
    bound = shared_mean_busy_time(instance)
    check_bound(instance, bound, kv="shared")
    check_bound(instance, bound, kv="separate")
    assert bound.value <= mean_busy_time(instance).value
    exact, ours = np.array(_fair_prompts(instance)), fair_prompts(instance)
    assert ((exact - 1 <= ours) & (ours <= exact)).all()


def test_a_share_by_hand():
    """Two chunks of 4 shared by three of 8 + 1 tokens, M = 14: private tokens 1 + 1 beside a chunk of 4: five would fit,
    so m = 3. A prompt counts 1 + 8/3 = 3.67, rounded down to 3; volumes are (3 + 1) + (3 + 2) = 9.

    Mean busy times (4.5 + 13.5 + 22.5)/14; each tail is 2 - (4 * 1/2 + 5 * 3/2)/9 = 17/18.
    """
    instance = Instance(14, [9, 9, 9], [2, 2, 2], prefix=[[1, 2, 10 + i] for i in range(3)], prefix_chunk=4)
    assert fair_prompts(instance).tolist() == _fair_prompts(instance) == [3, 3, 3]
    exact = Fraction(81, 28) + 3 * Fraction(17, 18)
    assert 0 <= exact - shared_mean_busy_time(instance).value < Fraction(1, 2**30)
    assert opt.lower_bound(instance, kv="shared").value == 6  # here the outputs alone say more


def test_best_with_sharing_is_the_shared_bound_on_a_backlog():
    rows = [[i // 40, 1000 + i] for i in range(200)]
    instance = Instance(400, [40] * 200, [10] * 200, prefix=rows, prefix_chunk=32)
    bound = opt.lower_bound(instance, kv="shared")
    assert (bound.method, bound.kv) == ("shared-mean-busy-time", "shared")
    assert bound.value > 2 * opt.lower_bound(instance, "trivial").value
    with pytest.raises(ValueError, match="proved for separate KV caches"):
        opt.lower_bound(instance, "mean-busy-time", kv="shared")


@given(families(most=8, longest=3))
@settings(max_examples=60, deadline=None)
def test_the_forest_holds_every_chunk_once(instance):
    """Stored tokens are those of distinct chunks, a leaf's path has the tokens of its prompt, holders are neighbours."""
    forest = sharing_forest(instance)
    assert not len(forest) or nx.is_forest(forest.to_undirected())
    rows = instance.prefix_rows()
    distinct = {name: min(2, int(instance.prompt[i]) - 2 * k) for i, row in enumerate(rows) for k, name in enumerate(row)}
    assert forest.graph["stored"] == sum(distinct.values())
    assert forest.graph["tokens"] == instance.prompt.sum()
    for node, data in forest.nodes(data=True):
        holders = [rows[i] for i in forest.graph["order"][data["first"] : data["last"]]]
        depth = -(-data["end"] // 2)
        assert len({tuple(row[:depth]) for row in holders}) == 1
        assert sum(row[:depth] == holders[0][:depth] for row in rows) == data["requests"]
        for parent in forest.predecessors(node):
            assert forest.nodes[parent]["end"] == data["begin"]


def test_the_forest_is_drawn(tmp_path):
    instance = generate("agent", n=60)
    figure = sharing(instance)
    save(figure, tmp_path / "forest.png")
    assert len(figure.axes[0].collections[0].get_paths()) == sharing_forest(instance).number_of_nodes()
    with pytest.raises(InstanceError, match="has no prefix hashes"):
        sharing(Instance(10, [1], [1]))


@given(families(most=6, longest=6), st.integers(0, 99))
@settings(max_examples=60, deadline=None)
def test_packing_with_sharing_is_earliest_fit(instance, seed):
    """Certified with sharing, and no request could start a round earlier beside those placed before it."""
    order = np.random.default_rng(seed).permutation(instance.n)
    start = pack_shared(instance, order).start
    certify(instance, pack_shared(instance, order), solver="pack", bound=shared_mean_busy_time(instance))
    for k, i in enumerate(order.tolist()):
        before = instance.take(order[: k + 1])
        for earlier in range(int(instance.arrival[i]), int(start[i])):
            assert max(usage(before, [*start[order[:k]].tolist(), earlier], "shared")) > instance.memory
