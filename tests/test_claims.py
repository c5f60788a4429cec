"""The judge of proofs: what is true passes for the right reason, what is false fails with a counter-example."""

import json
import subprocess
import sys

import pytest
import sympy as sp

import proofs
from opt.cli import run
from proofs import CLAIMS, Entry
from proofs.claim import Claim, prove
from proofs.nonnegative import is_nonnegative
from proofs.steps import argued, exhaustive, growth, identity, inequality, limit, numeric
from proofs.steps import tested as cross_checked  # pytest takes every name that begins with test for a test

x, y, n = sp.symbols("x y n", positive=True)
half = sp.Rational(1, 2)


def claim(*steps):
    return Claim("a claim", "something holds", (), (), steps)


def finding(step):
    return prove(claim(step)).findings[0]


@pytest.mark.parametrize(
    "step",
    [
        identity("the sum of the first n", sp.summation(x, (x, 1, n)), n * (n + 1) / 2),
        identity("a square", (x + y) ** 2, x**2 + 2 * x * y + y**2),
        inequality("means", x**2 + y**2, 2 * x * y, [(x, 0, None), (y, 0, None)]),
        inequality("a triangle", y, x, [(x, 0, None), (y, x, None)]),
        inequality("a triangle from above", y * x, x**2, [(y, 0, 5), (x, 0, y)]),
        inequality("touching from inside", x**2 - x + 1, sp.Rational(3, 4), [(x, 0, None)]),
        inequality("only on an interval", x * (1 - x), 0, [(x, 0, 1)]),
        inequality("in cells", (x - y) ** 2 + sp.Rational(1, 10), 0, [(x, 0, 2), (y, 0, 2)]),
        inequality("a root left outside", x**3, 2, [(x, sp.Rational(13, 10), None)]),
        inequality("a quotient", x / (1 + x), half, [(x, 1, None)]),
        inequality("with a margin", x + 1, x, [(x, 0, None)], strict=True),
        inequality("the logarithm from above", x - 1, sp.log(x), [(x, 1, None)]),
        inequality("the logarithm from below", sp.log(x), 1 - 1 / x, [(x, sp.Rational(1, 100), 1)]),
        inequality("the harmonic step", sp.log(1 + 1 / x), 1 / (1 + x), [(x, 1, None)]),
        inequality("a root", 1 + x / 2, sp.sqrt(1 + x), [(x, 0, None)]),
        limit("a half", (x**2 + 1) / (2 * x**2), x, half),
        limit("no end", x**2 / (x + 1), x, sp.oo),
        growth("two thirds of the root", (2 * x + 5) / (3 * sp.sqrt(x)), x, sp.Rational(2, 3), half),
    ],
    ids=lambda step: step.says,
)
def test_true_steps_are_proved(step):
    found = finding(step)
    assert (found.holds, found.kind) == (True, "symbolic"), found.shows


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        (identity("off by one", sp.summation(x, (x, 1, n)), n * (n - 1) / 2), "they differ by n"),
        (inequality("means, flipped", 2 * x * y, x**2 + y**2, [(x, 0, None), (y, 0, None)]), "they differ by -"),
        (inequality("the logarithm, flipped", sp.log(x), x - 1, [(x, 1, None)]), "at x = "),
        (inequality("not on the whole interval", x * (1 - x), 0, [(x, 0, 2)]), "at x = "),
        (inequality("equal where strictness is meant", x, 0, [(x, 0, None)], strict=True), "differ by 0"),
        (inequality("a pole hides the fall", sp.log(1 + x), 1 / (x - 1), [(x, 0, None)]), "at x = "),
        (limit("another limit", (x**2 + 1) / (2 * x**2), x, sp.Integer(1)), "tends to 1/2 as x tends to oo, not to 1"),
        (growth("another exponent", 2 * x, x, sp.Integer(2), half), "not to 2"),
        (exhaustive("all below 5", lambda: range(7), lambda k: k < 5, domain="0 .. 6"), "fails for 5"),
        (argued("a law that explains itself", lambda: [1], lambda k: f"{k} is odd", domain="1", because="words"), "1 is odd"),
        (cross_checked("no case", list, lambda k: True, domain="nothing"), "no case was tried"),
        (numeric("an error in a case", lambda: [0], lambda k: 1 / k > 0, domain="0"), "division by zero"),
        (inequality("a symbol without a range", x, y, [(x, 0, None)]), "no range is given for y"),
        (inequality("a float", x + 0.5, x, [(x, 0, None)]), "exact ones"),
    ],
    ids=lambda value: getattr(value, "says", None),
)
def test_false_steps_fail_and_say_where(step, shown):
    report = prove(claim(step))
    assert report.outcome == "refuted"
    assert shown in report.findings[0].shows
    assert report.summary.startswith("step 1 fails: ")


def test_what_happens_between_the_points_tried_is_seen():
    """No multiple of 1/96 in the stretched grid is near 12.345: signs change at a pole or dip between the points."""
    pole = sp.Rational(12345, 1000)
    for expression in (1 / (x - pole), (x - pole) ** 2 - sp.Rational(1, 10**12), -((x - pole) ** 2)):
        with pytest.raises(ArithmeticError, match=r"changes sign at a root|negative"):
            is_nonnegative(expression, [(x, 0, None)])
    assert prove(claim(inequality("a dip", (x - pole) ** 2, sp.Rational(1, 10**12), [(x, 0, None)]))).outcome == "refuted"
    # This rises on both sides of the pole, and falls below 0 just beyond it.
    assert is_nonnegative(sp.log(1 + x) - sp.Rational(1, 10**9) / (x - pole), [(x, 0, None)]) is None


def test_what_is_neither_proved_nor_refuted_is_numeric_only():
    step = inequality("true, out of reach", (x - y) ** 2 + 1, 0, [(x, 0, None), (y, 0, None)])
    assert prove(claim(step)).outcome == "numeric only"


def test_outcomes():
    true = identity("1 = 1", 1, 1)
    checked, guessed = (kind("k", lambda: range(3), lambda k: k < 3, domain="0 .. 2") for kind in (cross_checked, numeric))
    assert prove(claim(true, checked)).outcome == "established"
    assert prove(claim(true, guessed)).outcome == "numeric only"
    assert prove(claim(checked)).outcome == "numeric only"
    assert prove(claim()).outcome == "numeric only"
    assert prove(claim(true, checked, checked)).summary == "1 symbolic, 2 tested"
    with pytest.raises(ValueError, match="needs its argument"):
        argued("no words", lambda: [1], lambda k: True, domain="1", because="")


def test_the_verb_prints_a_line_each_and_every_step_of_one(capsys):
    assert run(["prove", "hardness"]) == 0
    said = capsys.readouterr().out
    assert "strongly NP-complete" in said
    assert "192 cases" in said
    assert said.strip().splitlines()[-1].startswith("established (4 symbolic, ")
    assert run(["prove", "nothing"]) == 2
    assert "known: hardness" in capsys.readouterr().err


def test_a_refuted_claim_is_exit_code_1(monkeypatch, capsys):
    monkeypatch.setattr(proofs, "CLAIMS", {"planted": Entry("one is two", "test_claims:planted")})
    assert run(["prove"]) == 1
    assert capsys.readouterr().out.startswith("refuted       a claim: one is two (step 1 fails: 1 is not 2; they differ by -1; ")
    assert run(["prove", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["claims"][0]["outcome"] == "refuted"
    assert document["claims"][0]["steps"][0]["holds"] is False


def planted():
    return claim(identity("one is two", 1, 2))


def test_listing_claims_loads_no_sympy():
    code = "import sys; from opt.cli import run; run(['list', 'claims', '--json']); assert 'sympy' not in sys.modules"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert json.loads(said)["claims"] == {name: entry.title for name, entry in CLAIMS.items()}


@pytest.mark.parametrize("name", sorted(CLAIMS))
def test_every_claim_says_what_it_needs(name):
    made = CLAIMS[name].load()
    assert made.name == name
    assert made.statement
    assert made.hypotheses
    assert made.references
    assert {reference.standing for reference in made.references} <= {"published", "new"}
    assert len(made.steps) >= 3
