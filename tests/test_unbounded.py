"""Policies that can be arbitrarily bad: every family's claim is established, and any mistake in one is noticed."""

import dataclasses

import numpy as np
import pytest
import sympy as sp
from exhaustive import RULES, feasible, latency, optimum

from opt.core.errors import CertificateError
from opt.solvers.orders import KEYS, order_of
from proofs import CLAIMS, unbounded
from proofs.claim import prove
from proofs.traps import TRAPS
from proofs.unbounded import Phase, better_latency, c, claim_of, instance_of, latency_of, measured, r, timetable

every_trap = pytest.mark.parametrize("name", sorted(TRAPS))
SOUND = TRAPS["svf-unbounded"]


@every_trap
def test_the_claim_is_established(name):
    report = prove(claim_of(TRAPS[name]))
    assert report.outcome == "established", report.summary


@every_trap
def test_the_second_reading_of_the_model_agrees(name):
    """Small members of the family under the slow, independent list scheduler of the tests."""
    trap = TRAPS[name]
    for size in (size for size in trap.sizes if trap.count.subs({r: size[0], c: size[1]}) <= 30):
        instance = instance_of(trap, size)
        start = timetable(instance, trap.schedule(*size)).tolist()
        assert feasible(instance, start)
        assert latency(instance, start) == better_latency(trap, size) == trap.fast.subs({r: size[0], c: size[1]})
        for policy in (policy for policy in trap.policies if policy == "mc-sf" or policy.partition("-")[0] in KEYS):
            order, _, rule = policy.rpartition("-") if policy.endswith(("-skip", "-pack")) else (policy, "", "strict")
            order = {"mc-sf": "sof"}.get(order, order)
            found = latency(instance, RULES[rule](instance, order_of(instance, order).tolist()))
            assert found == latency_of(instance, policy)


@pytest.mark.parametrize(
    "name",
    ["random-unbounded", "random-unbounded-any-rule", "svf-unbounded-distinct", "never-idle", "sof-root", "total-size-root"],
)
def test_claims_with_bounds_in_place_of_formulas_are_established(name):
    report = prove(CLAIMS[name].load())
    assert report.outcome == "established", report.summary


def test_every_order_has_a_trap():
    """All but smallest volume with packing, for which no family grows, and random, whose claims are in expectation."""
    caught = {policy for trap in TRAPS.values() if trap.witness is not None for policy in trap.policies}
    named = ("fcfs", "sof", "lof", "total-size", "svf", "best-fit", "random")
    rules = {f"{order}{rule}" for order in named for rule in ("", "-skip", "-pack")}
    assert rules - caught == {
        "svf-pack",
        "random",
        "random-skip",
        "random-pack",
    }


@pytest.mark.parametrize("size", [(2, 2), (3, 2), (4, 2), (2, 3)])
def test_the_true_optimum_of_small_traps(size):
    """Smallest volume first against exhaustive search: the ratio to the optimum is at least that to the better schedule."""
    instance = instance_of(SOUND, size)
    best, _ = optimum(instance)
    assert best <= better_latency(SOUND, size)
    assert latency_of(instance, "svf") / best >= measured(SOUND, size)


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        ({"slow": SOUND.slow + 1}, "the packer takes"),
        ({"slow": SOUND.slow - c}, "the packer takes"),
        ({"slow": SOUND.slow + 1, "exact": False}, "the packer takes"),
        ({"fast": SOUND.fast - 1}, "the schedule takes"),
        ({"fast": 2 * c * c + c * (r + 1)}, "the schedule takes"),
        ({"constant": sp.Rational(7, 10)}, "tends to"),
        ({"exponent": sp.Rational(5, 9)}, "tends to"),
        ({"memory": r * (r + 3) / 2}, "svf-trap-strong"),
        ({"count": 2 * c + 1}, "svf-trap-strong"),
        ({"policies": ("svf-skip",)}, "the packer takes"),
        ({"policies": ("sof",)}, "the packer takes"),
        ({"family": "svf-trap"}, "svf-trap with a memory of"),
        ({"schedule": lambda size, copies: (Phase(None, 1, 1, 1), Phase(1, size, 2, 1))}, "over the memory"),
        ({"schedule": lambda size, copies: (Phase(1, size, 1, 1),)}, "is in no phase"),
        ({"witness": (4, 3)}, "ratio 1."),
        ({"witness": (20, 5001)}, "10,002 requests"),
    ],
)
def test_a_planted_mistake_is_refuted(change, shown):
    report = prove(claim_of(dataclasses.replace(SOUND, **change)))
    assert report.outcome == "refuted"
    assert shown in report.summary


def test_an_exponent_that_only_the_measurement_refutes():
    """Quotient steps handed in replace the limits, so the measured slope alone has to notice."""
    wrong = dataclasses.replace(SOUND, exponent=sp.Rational(2, 3), quotient=TRAPS["fcfs-superlinear"].quotient)
    report = prove(claim_of(wrong))
    assert report.outcome == "refuted"
    assert "the slope is 0.50" in report.summary


@pytest.mark.parametrize("damage", ["memory", "prompt", "output", "order"])
def test_an_instance_off_by_one_is_refuted(damage, monkeypatch):
    def damaged(*arguments, **named):
        instance = sound(*arguments, **named)
        if damage == "memory":
            return instance.replace(memory=instance.memory + 1)
        if damage == "order":
            return instance.replace(prompt=instance.prompt[::-1], output=instance.output[::-1])
        column = np.array(getattr(instance, damage))
        column[0] += 1
        return instance.replace(**{damage: column})

    sound = unbounded.generate
    monkeypatch.setattr(unbounded, "generate", damaged)
    for name in ("svf-unbounded", "head-of-line-linear", "total-size-unbounded"):
        if (name, damage) != ("total-size-unbounded", "order"):  # it has no ties, so the order of arrival means nothing
            assert prove(claim_of(TRAPS[name])).outcome == "refuted", name


def test_a_timetable_runs_phases_one_after_another():
    """(0, 1) two a round: 0 0 1; then (3, 2), one every three rounds from round 2: 2 and 5; offsets move the second of two."""
    instance = instance_of(SOUND, (2, 1)).replace(memory=9, prompt=[3, 0, 0, 3, 0], output=[2, 1, 1, 2, 1], ids=None)
    assert timetable(instance, [Phase(0, 1, 2, 1), Phase(3, 2, 1, 3)]).tolist() == [2, 0, 0, 5, 1]
    assert timetable(instance, [Phase(None, 1, 3, 1), Phase(3, 2, 2, 9, (0, 4))]).tolist() == [1, 0, 0, 5, 0]
    with pytest.raises(ValueError, match="request 0 is in no phase"):
        timetable(instance, [Phase(0, 1, 2, 1)])


def test_a_better_schedule_that_does_not_fit_is_no_schedule():
    wrong = dataclasses.replace(SOUND, schedule=lambda size, copies: (Phase(None, 1, 2, 1), Phase(1, size, 1, 1)))
    with pytest.raises(CertificateError, match="over the memory"):
        better_latency(wrong, (4, 3))
