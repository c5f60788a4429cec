"""What prices prove, and that nothing else passes for it."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from instances import generate
from opt.core.certify import check_bound
from opt.core.errors import CertificateError
from opt.core.instance import Instance
from opt.core.model import Bound
from opt.core.priced import Prices, priced_value
from opt.solvers.bounds import mean_busy_time
from opt.solvers.door import lower_bound, solve
from opt.solvers.prices import price_bound, prices


def by_definition(instance, dense, scale, first=None, last=None):
    """The Lagrangian, round by round: `dense[t]` is the price of round t; no window means any start up to round 150."""
    total = -instance.memory * sum(dense)
    for i in range(instance.n):
        s, o, a = int(instance.prompt[i]), int(instance.output[i]), int(instance.arrival[i])
        starts = range(a if first is None else max(first[i], a), 150 if last is None else max(last[i], a) + 1)
        total += min(scale * (x + o - a) + sum(dense[x + k] * (s + k) for k in range(1, o + 1)) for x in starts)
    return Fraction(total, scale)


@st.composite
def priced(draw):
    memory = draw(st.integers(4, 30))
    prompt = draw(st.lists(st.integers(0, memory - 1), min_size=1, max_size=4))
    output = [draw(st.integers(1, memory - s)) for s in prompt]
    arrival = [draw(st.integers(0, 12)) for _ in prompt]
    ends = sorted(draw(st.sets(st.integers(1, 40), max_size=8)))
    price = [draw(st.integers(0, 30)) for _ in ends]
    return Instance(memory, prompt, output, arrival=arrival), ends, price, draw(st.integers(1, 40))


@settings(max_examples=200, deadline=None)
@given(priced(), st.data())
def test_the_value_is_the_lagrangian(case, data):
    """Any prices, rising or falling, with and without windows of starts."""
    instance, ends, price, scale = case
    dense = [0] * 400
    for begin, end, cost in zip([0, *ends], ends, price, strict=False):
        dense[begin + 1 : end + 1] = [cost] * (end - begin)
    found = Prices(np.array(ends, np.int64), np.array(price, np.int64), scale)
    assert priced_value(instance, found) == by_definition(instance, dense, scale)
    first = np.array([data.draw(st.integers(0, 40)) for _ in range(instance.n)])
    last = first + data.draw(st.integers(0, 30))
    assert priced_value(instance, found, first, last) == by_definition(instance, dense, scale, first.tolist(), last.tolist())


def test_without_prices_everybody_starts_on_arrival():
    instance = Instance(17, [9, 2, 6, 2], [5, 5, 4, 3], arrival=[0, 1, 2, 3])
    assert priced_value(instance, Prices(np.zeros(0, np.int64), np.zeros(0, np.int64), 1)) == 17


def test_prices_rise_above_the_closed_form_on_a_backlog():
    instance = generate("mixture", n=300, seed=1)
    bound = prices(instance, time_limit=20)
    check_bound(instance, bound)
    closed = mean_busy_time(instance)
    assert closed.value < bound.value <= solve(instance, "staggered", bound=None).total_latency
    assert lower_bound(instance, "best").value >= closed.value


def test_small_and_empty_instances():
    assert prices(Instance(5, [], [])).value == 0
    one = Instance(9, [3], [4])
    assert prices(one, time_limit=1).value <= 4
    timed = Instance(17, [9, 2, 6, 2], [5, 5, 4, 3], arrival=[0, 3, 3, 9])
    assert prices(timed, time_limit=1).value <= solve(timed, "svf-pack", bound=None).total_latency


@pytest.fixture(scope="module")
def proved():
    instance = generate("small", n=12, memory=40, seed=3)
    ends = np.arange(1, 60, dtype=np.int64)
    return instance, price_bound(instance, ends, np.linspace(12, 0, 59) / 40)


def damaged(bound: Bound, **changes: object) -> Bound:
    return dataclasses.replace(bound, certificate={**bound.certificate, **changes})


@pytest.mark.parametrize(
    "kind", ["one price", "rounding up", "negative", "float", "ends", "length", "scale", "shared", "instance"]
)
def test_damaged_certificates_are_refused(proved, kind):
    instance, bound = proved
    check_bound(instance, bound)
    price, ends = list(bound.certificate["price"]), list(bound.certificate["ends"])
    if kind == "one price":
        price[0] += 10**9
        broken = damaged(bound, price=price)
    elif kind == "rounding up":
        broken = dataclasses.replace(bound, value=bound.value + Fraction(1, 10**12))
    elif kind == "negative":
        broken = damaged(bound, price=[-1, *price[1:]])
    elif kind == "float":
        broken = damaged(bound, price=[0.5, *price[1:]])
    elif kind == "ends":
        broken = damaged(bound, ends=[5, *ends[1:]])
    elif kind == "length":
        broken = damaged(bound, price=price[1:])
    elif kind == "scale":
        broken = damaged(bound, scale=0)
    elif kind == "shared":
        broken = dataclasses.replace(bound, kv="shared")
    else:
        broken, instance = bound, instance.replace(memory=60)
    with pytest.raises(CertificateError):
        check_bound(instance, broken)
