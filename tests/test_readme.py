"""What the READMEs say can be done: their Python runs, and their commands and files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from opt.cli import cli
from opt.solvers.registry import SOLVERS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "instances/README.md", "proofs/README.md")]


def blocks(page, language):
    """The contents of the fenced blocks in this language ("" for none)."""
    fenced = page.read_text().split("```")[1::2]
    return [rest for first, _, rest in (block.partition("\n") for block in fenced) if first == language]


@pytest.mark.parametrize("code", blocks(PAGES[0], "python"))
def test_its_python_runs(code, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(SOLVERS, "least-area", SOLVERS["svf"])  # what it registers is gone again afterwards
    exec(compile(code.replace("time_limit=10,", "time_limit=1,"), "README.md", "exec"), {})
    said = capsys.readouterr().out
    for promised in re.findall(r"# (24 24 certificate|\[[\d ]+\])", code):
        assert promised in said


COMMANDS = [
    pytest.param(line, id=line[:40])
    for page in PAGES
    for block in blocks(page, "")
    for line in block.splitlines()
    if line.startswith("kvopt ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_its_commands_have_these_verbs_and_options(line):
    command, *_comment = re.split(r"\s{3,}", line)
    _kvopt, *words = shlex.split(command)
    verb = cli.commands[words[0]]
    known = {name for parameter in verb.params for name in parameter.opts}
    assert {word for word in words[1:] if word.startswith("-") and word != "-"} <= known


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_its_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []
