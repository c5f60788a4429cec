"""Imports point down only, and the package opens light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import instances
import opt

OPT, INSTANCES = Path(opt.__file__).parent, Path(instances.__file__).parent

ALLOWED = {  # which of our packages each floor may import
    OPT / "core": ("opt.core",),
    OPT / "solvers": ("opt.core", "opt.solvers"),
    INSTANCES: ("opt.core", "instances"),
    OPT / "comparison.py": ("opt.core", "opt.solvers"),
}
HEAVY = ("numba", "ortools", "highspy", "sympy", "networkx", "scipy", "matplotlib", "rich")
FILES = [(file, floor) for floor in ALLOWED for file in ([floor] if floor.suffix else sorted(floor.rglob("*.py")))]


def imports(file):
    """Absolute names of all modules a file imports, inside functions too."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize(("file", "floor"), FILES, ids=[str(file.relative_to(OPT.parent)) for file, _ in FILES])
def test_imports_point_down(file, floor):
    ours = {name for name in imports(file) if name.split(".")[0] in ("opt", "instances", "proofs")}
    assert {name for name in ours if not f"{name}.".startswith(tuple(f"{root}." for root in ALLOWED[floor]))} == set()


def test_only_one_module_loads_numba():
    owners = [file.name for file in OPT.rglob("*.py") if any(name.split(".")[0] == "numba" for name in imports(file))]
    assert owners == ["jit.py"]


def loaded_by(code):
    probe = f"{code}\nimport sys; print(*sorted({{name.split('.')[0] for name in sys.modules}}))"
    return set(subprocess.run([sys.executable, "-c", probe], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    "code",
    [
        "import opt; dir(opt)",
        "import opt; opt.Instance(9, [1], [2]); opt.read; opt.write; opt.verify; opt.certify",
        "import opt.core.describe, opt.core.fairness, opt.core.traces, instances, instances.mixing, instances.library",
    ],
)
def test_the_core_loads_nothing_heavy(code):
    assert loaded_by(code) & set(HEAVY) == set()


def test_every_public_name_is_there_and_no_other():
    for name in opt.__all__:
        assert getattr(opt, name) is not None, name
        assert name in dir(opt)
    with pytest.raises(AttributeError, match="no attribute 'slove'"):
        _ = opt.slove
