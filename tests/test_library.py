"""The bundled library regenerates from its recipes, and its best known values hold."""

from __future__ import annotations

import csv
import json

import pytest

from instances import library
from opt.bench.library import COLUMNS, LIBRARY
from opt.cli import run
from opt.core.files import digest, read_instance, to_json, verify

NAMES = library.names()
BEST = {row["instance"]: row for row in csv.DictReader((library.folder() / "best.csv").read_text().splitlines())}


def test_manifest_files_plans_and_table_name_the_same_instances():
    assert list(library.MANIFEST) == NAMES
    assert set(BEST) == set(NAMES)
    assert all(library.plan_path(name).exists() for name in NAMES)
    assert tuple(next(iter(BEST.values()))) == COLUMNS


@pytest.mark.parametrize("name", NAMES)
def test_an_instance_is_what_its_recipe_makes(name):
    instance = library.load(name)
    assert json.dumps(to_json(library.regenerate(instance))) == json.dumps(to_json(instance))
    assert digest(library.make(name)) == digest(instance) == BEST[name]["sha256"]


@pytest.mark.parametrize("name", NAMES)
def test_a_best_known_value_is_certified(name):
    result = verify(library.plan_path(name))
    row = BEST[name]
    assert (result.total_latency, result.bound.ceil) == (int(row["total_latency"]), int(row["lower_bound"]))
    if row["proof"] == "search":  # a plan file holds no search; the bench runs it again
        assert row["known_by"].startswith("exact") or row["status"] == "optimal"
    else:
        assert (result.status, result.proof) == (row["status"], row["proof"])


def test_bench_builds_and_certifies_a_library_elsewhere(tmp_path, capsys, monkeypatch):
    """A folder is filled from the recipes, solved, written, and the second run improves nothing."""
    few = {name: library.MANIFEST[name] for name in ("tiny-four", "tiny-5-0")}
    monkeypatch.setattr(library, "MANIFEST", few)
    for improved in (True, False):
        assert run(["bench", "library", "--seeds", "1", "--library", str(tmp_path), "--json", "--quiet"]) == 0
        records = json.loads(capsys.readouterr().out)["records"]
        assert [record["values"]["instance"] for record in records] == list(few)
        assert {record["values"]["improved"] for record in records} == {improved}
    table = (tmp_path / "best.csv").read_text()
    assert table.splitlines()[0] == ",".join(COLUMNS)
    assert read_instance(library.path("tiny-four", tmp_path)).n == 4


def test_what_a_search_has_proved_stays_proved_until_a_better_plan_comes(tmp_path):
    row = BEST["short-20-0"]
    assert (row["status"], row["proof"]) == ("optimal", "search")
    (tmp_path / "best.csv").write_text((library.folder() / "best.csv").read_text())
    values = {**row, "status": "feasible", "proof": "none"}
    for total, status in ((int(row["total_latency"]), "optimal"), (int(row["total_latency"]) - 1, "feasible")):
        LIBRARY.finish([{"params": {"library": str(tmp_path)}, "values": {**values, "total_latency": total}}])
        rows = csv.DictReader((tmp_path / "best.csv").read_text().splitlines())
        assert next(row["status"] for row in rows if row["instance"] == "short-20-0") == status
