"""Notebooks are stored without output and run from top to bottom."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path, monkeypatch, capsys):
    """Each code cell runs as plain Python, in an empty folder, with and without the public data."""
    cells = json.loads(path.read_text())["cells"]
    assert all(not cell.get("outputs") and cell.get("execution_count") is None for cell in cells)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), path.name, "exec"), names)


def test_the_hash_only_trace_needs_no_public_data(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("KVOPT_DATA", raising=False)
    test_a_notebook_runs(FOLDER / "hash_only_trace.ipynb", tmp_path, monkeypatch, capsys)
    assert "saved on average" in capsys.readouterr().out
