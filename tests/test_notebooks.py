"""Notebooks are stored without output, run from top to bottom, and their pictures can be drawn."""

from __future__ import annotations

import ast
import json
from io import BytesIO
from pathlib import Path

import pytest
from matplotlib.figure import Figure

import opt
from instances import generate

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
NO_PICTURES = ["hash_only_trace"]


def run(source, name, names):
    """Run a cell as plain Python, and return the value that a notebook would show below it."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    exec(compile(ast.Module(body, []), name, "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), name, "eval"), names)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys):
    """Each code cell runs as plain Python, in an empty folder, with and without the public data."""
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    shown = [run("".join(cell["source"]), path.name, names) for cell in cells if cell["cell_type"] == "code"]
    pictures = [value for value in shown if isinstance(value, Figure)]
    for picture in pictures:
        picture.savefig(BytesIO(), format="png", dpi=40)  # a fault in a picture shows when it is drawn
    assert pictures or path.stem in NO_PICTURES


def test_the_hash_only_trace_needs_no_public_data(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("KVOPT_DATA", raising=False)
    test_a_notebook_runs(FOLDER / "hash_only_trace.ipynb", tmp_path, monkeypatch, capsys)
    assert "saved on average" in capsys.readouterr().out


def test_a_picture_shows_itself_below_its_cell():
    picture = opt.plot.schedule(opt.solve(generate("four"), "svf", bound="trivial").schedule)
    data, size = picture._repr_png_()
    assert data.startswith(b"\x89PNG")
    assert size == {"width": 768, "height": 512}  # 9.6 by 6.4 inches at 80 to the inch
