"""The examples in docstrings run and say what they say."""

import doctest
import importlib
import pkgutil

import pytest

import instances
import opt
import opt.core
import opt.serve
import opt.sim
import opt.solvers

TREES = (opt.core, opt.solvers, opt.sim, opt.serve, instances)


def modules():
    inside = (name for tree in TREES for _, name, _ in pkgutil.walk_packages(tree.__path__, f"{tree.__name__}."))
    return ["opt", "opt.comparison", "instances", *inside]


@pytest.mark.parametrize("name", modules())
def test_examples(name):
    assert doctest.testmod(importlib.import_module(name)).failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    found = [test.name for name in modules() for test in finder.find(importlib.import_module(name)) if test.examples]
    assert {"opt", "opt.solvers.door.solve", "opt.core.instance.Instance"} <= set(found)
