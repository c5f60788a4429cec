"""Trees of start windows: what they prove, and that damage to the proof is seen; the linear program and its two sides."""

from __future__ import annotations

import copy
import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from exhaustive import four, optimum, random_instance

from instances import generate
from opt.core.certify import check_bound
from opt.core.errors import CertificateError
from opt.core.instance import Instance
from opt.core.tree import Brackets, tree_value
from opt.solvers.bounds import best_bound, mean_busy_time
from opt.solvers.door import lower_bound, solve
from opt.solvers.fractional import fractional_value
from opt.solvers.lp import lp
from opt.solvers.prices import price_bound
from opt.solvers.tree import SCALE, Tree, tree


def spread_out(instance):
    """One request after another: a poor schedule, so that the tree has work to do."""
    at, start = int(instance.arrival.max(initial=0)), []
    for output in instance.output.tolist():
        start.append(at)
        at += output
    return np.array(start, np.int64)


def proved(instance):
    search = Tree(instance, spread_out(instance))
    assert search.solve()
    return search


def test_a_closed_tree_proves_the_optimum():
    rng = np.random.default_rng(0)
    for trial in range(40):
        instance = random_instance(rng, int(rng.integers(1, 5)), int(rng.integers(4, 14)), arrivals=trial % 3)
        best, search = optimum(instance)[0], proved(instance)
        assert search.value == best == int((search.start + instance.output - instance.arrival).sum())
        bound = search.bound()
        assert bound.value == best
        check_bound(instance, bound)


def test_an_unfinished_tree_is_still_a_bound():
    for seed in range(6):
        instance = generate("small-short", n=9, seed=seed)
        best, last = solve(instance, "exact").total_latency, 0
        for nodes in (1, 3, 10, 1000):
            search = Tree(instance, spread_out(instance))
            search.solve(max_nodes=nodes)
            bound = search.bound()
            check_bound(instance, bound)
            assert last <= bound.value + 1 and mean_busy_time(instance).ceil - 1 <= bound.value <= best
            last = bound.value
        assert last == best


def test_the_four_requests():
    """Optimum 24; the linear program stops at 21.69, the tree does not."""
    assert tree(four()).value == 24
    assert 21.69 < float(lp(four()).value) < 21.70


def test_exact_proves_by_certificate_where_many_fit_together():
    result = solve(generate("small-short", n=10, seed=1), "exact", bound=None)
    assert (result.total_latency, result.proof, result.bound.method) == (104, "certificate", "tree")
    assert best_bound(generate("small-short", n=10, seed=1)).value == 104


def damaged(certificate):
    """Yield (what is wrong, a certificate, the message)."""
    nodes = certificate["nodes"]
    first = next(at for at, node in enumerate(nodes) if isinstance(node, dict))

    def changed(at, node):
        return {**certificate, "nodes": [*nodes[:at], node, *nodes[at + 1 :]]}

    yield "one more", {**certificate, "value": certificate["value"] + 1}, "open"
    yield "a leaf missing", {**certificate, "nodes": nodes[:-1]}, "leaves 1 of its leaves open"
    yield "a node too many", {**certificate, "nodes": [*nodes, nodes[0]]}, "after the last leaf"
    yield "no prices at the end", changed(len(nodes) - 1, []), "open"
    yield "a negative price", changed(0, [-1, *nodes[0][1:]]), "negative price proves nothing"
    yield "a price of a half", changed(0, [0.5, *nodes[0][1:]]), "prices are integers"
    yield "nobody split", changed(first, {"split": [99, 1]}), "request index"
    yield "half a split", changed(first, {"split": [0]}), "request index"
    yield "no scale", {**certificate, "scale": 0}, "scale from 1"
    yield "a fraction", {**certificate, "value": 24.0}, "integer value"
    yield "no list", {**certificate, "nodes": None}, "list of nodes"
    yield "too large", {**certificate, "value": 10**12}, "too large to check"
    yield "huge prices", changed(0, [2**52] * 20), "too large for an exact check"


def test_damaged_trees_are_refused():
    instance = generate("small-short", n=9, seed=1)
    good = proved(instance).bound()
    for what, certificate, message in damaged(copy.deepcopy(dict(good.certificate))):
        value = certificate["value"] if isinstance(certificate["value"], int) else good.value
        with pytest.raises(CertificateError, match=message):
            check_bound(instance, dataclasses.replace(good, value=Fraction(value), certificate=certificate))
            pytest.fail(what)
    with pytest.raises(CertificateError, match="claims"):
        check_bound(instance, dataclasses.replace(good, value=good.value + Fraction(1, 10**9)))
    with pytest.raises(CertificateError):
        check_bound(instance.replace(memory=2 * instance.memory), good)


def test_a_smaller_claim_needs_no_new_tree_only_the_leaves_it_still_opens():
    search = proved(four())
    assert tree_value(four(), {"value": 15, "scale": 1, "nodes": []}) == 15  # the sum of outputs is 17
    assert search.bound().value == 24


def test_brackets_are_the_definition():
    rng = np.random.default_rng(3)
    for _ in range(20):
        instance = random_instance(rng, 3, 12, arrivals=2)
        price = rng.integers(0, 500, int(rng.integers(0, 9)))
        open_ = np.ones((3, 6), bool)
        above, bound = Brackets(instance, 5).priced(price, SCALE, open_)
        at = lambda t: int(price[t - 1]) if t <= len(price) else 0  # noqa: B023, E731
        want = [
            [SCALE * (x + o - a) + sum(at(x + k) * (s + k) for k in range(1, o + 1)) for x in range(a, a + 6)]
            for s, o, a in zip(instance.prompt.tolist(), instance.output.tolist(), instance.arrival.tolist(), strict=True)
        ]
        assert (above == np.array(want) - np.min(want, axis=1)[:, None]).all()
        rounds = range(1, min(len(price), int((instance.arrival + instance.output).max()) + 5) + 1)
        assert bound == sum(map(min, want)) - instance.memory * sum(at(t) for t in rounds)


def test_both_sides_of_the_linear_program_meet():
    """Prices from below, pieces from above; the program itself between them."""
    instance = generate("small-short", n=12, memory=40, seed=2)
    below, value = lower_bound(instance, "prices").value, lp(instance).value
    above = fractional_value(instance, copies=200, stages=((100, 1e-2, 200), (100, 1e-3, 200)))
    assert below <= value + Fraction(1, 1000) and value <= above
    assert float(above / below) < 1.03
    assert value <= solve(instance, "exact").total_latency


def test_pieces_are_a_schedule_of_every_request():
    """One piece a request is a schedule; no fractional one falls below what any prices prove."""
    instance = generate("mixture", n=60, memory=16_492, seed=1)
    whole = fractional_value(instance, copies=1, stages=((200, 1e-3, 20),))
    ends = np.arange(50, 5000, 50)
    assert whole.denominator == 1
    assert price_bound(instance, ends, np.linspace(60 / 16_492, 0, len(ends))).value <= whole


def test_large_instances_are_sent_elsewhere():
    large = generate("mixture", n=200, memory=16_492, seed=1)
    with pytest.raises(ValueError, match="use lp or prices"):
        tree(large)
    with pytest.raises(ValueError, match="use prices"):
        lp(large)


def test_nobody():
    empty = Instance(5, [], [])
    assert lp(empty).value == tree(empty).value == 0
