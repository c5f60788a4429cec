"""What is handed on: the wheel and the source archive hold all of kvopt and nothing else, and work away from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

ROOT = Path(__file__).parents[1]
PACKAGES = ("opt", "instances", "proofs")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return Path(next(WheelBuilder(str(ROOT)).build(directory=str(tmp_path_factory.mktemp("wheel")), versions=["standard"])))


def _files(*folders):
    """The files of these folders, but for what Python leaves behind."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*") if path.is_file())
    return {path.relative_to(ROOT).as_posix() for path in found if "__pycache__" not in path.parts and path.suffix != ".pyc"}


def test_the_wheel_holds_the_packages_and_what_describes_them(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    described = {name for name in names if ".dist-info/" in name}
    assert names - described == _files(*PACKAGES)
    assert {Path(name).name for name in described} == {"METADATA", "RECORD", "WHEEL", "LICENSE", "entry_points.txt"}
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_the_source_archive_holds_what_builds_tests_and_explains_it(tmp_path):
    path = Path(next(SdistBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])))
    with tarfile.open(path) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    written = {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "Makefile", "pyproject.toml", ".gitignore", "PKG-INFO"}
    assert names - written == {
        name for name in _files(*PACKAGES, "notebooks", "pictures", "tests") if ".ipynb_checkpoints" not in name
    }
    assert written <= names


AWAY = """
import json, sys
from instances import library
from opt.core.cost import COSTS, cost_model
from opt.core.files import verify
import opt, instances, proofs
for name in library.names():
    assert library.path(name).exists() and library.plan_path(name).exists(), name
models = [cost_model(name).name for name in COSTS]
result = verify(library.plan_path("tiny-four"))
places = [next(iter(module.__path__)) for module in (opt, instances, proofs)]
print(json.dumps({"places": places, "models": len(models), "status": result.status}))
"""


def test_a_wheel_unpacked_elsewhere_needs_nothing_of_the_checkout(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    zipfile.ZipFile(wheel).extractall(site)
    empty.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    run = subprocess.run([sys.executable, "-c", AWAY], cwd=empty, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["places"] == [str(site / package) for package in PACKAGES]
    assert found["models"] > 10
    assert found["status"] == "optimal"
    assert list(empty.iterdir()) == []
