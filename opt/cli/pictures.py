"""Verbs that show: plot a plan, list the visible dictionaries."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import click

from opt.cli.console import Console, picture, verb

__all__ = ["list_names", "plot_plan"]


@click.command("plot")
@click.argument("plan")
@click.option("-o", "--output", "out", required=True, metavar="FILE", callback=picture, help="The picture: .png, .svg or .pdf.")
@verb
def plot_plan(console: Console, plan: str, out: str) -> None:
    """Draw the schedule of a PLAN.

    Requests over rounds, and below them the memory they hold under the budget.
    """
    from opt import plot
    from opt.core.files import verify

    result = verify(plan)
    assert result.schedule is not None
    plot.save(plot.schedule(result.schedule), out)
    console.note(f"{out}: {result.schedule.instance.n:,} requests, total latency {result.total_latency:,}")
    if console.as_json:
        console.document({"path": out, "total_latency": result.total_latency})


def _first_line(thing: object) -> str:
    return (thing.__doc__ or "").strip().splitlines()[0]


def _solvers() -> dict[str, str]:
    from opt.solvers.registry import SOLVERS, summary

    return {name: summary(name) for name in SOLVERS}


def _bounds() -> dict[str, str]:
    from opt.solvers.bounds import BOUNDS

    return {name: _first_line(bound) for name, bound in BOUNDS.items()}


def _families() -> dict[str, str]:
    from instances import FAMILIES

    return {name: family.description for name, family in FAMILIES.items()}


def _readers() -> dict[str, str]:
    from opt.core.traces import READERS

    return {name: _first_line(reader) + _reader_options(reader) for name, reader in READERS.items()}


def _reader_options(reader: Callable[..., object]) -> str:
    """Return the names that `kvopt import --option NAME=VALUE` takes for a format."""
    names = list(inspect.signature(reader).parameters)[2:]  # after the file and the sieve
    return f" Options: {', '.join(names)}." if names else ""


def _policies() -> dict[str, str]:
    from opt.sim.policies import POLICIES

    return {name: kind.summary for name, kind in POLICIES.items()}


def _routers() -> dict[str, str]:
    from opt.serve.cluster import ROUTERS

    return {name: kind.summary for name, kind in ROUTERS.items()}


def _suites() -> dict[str, str]:
    from opt.bench import SUITES

    return {name: suite.description for name, suite in SUITES.items()}


def _instances() -> dict[str, str]:
    from instances import library

    return {f"@{name}": repr(library.load(name)) for name in library.names()}


def _claims() -> dict[str, str]:
    from proofs import CLAIMS

    return {name: entry.title for name, entry in CLAIMS.items()}


def _models() -> dict[str, str]:
    from opt.core.capacity import MODELS

    return {name: f"{model.parameters / 1e9:.1f} billion parameters, {model.kv_summary}" for name, model in MODELS.items()}


def _gpus() -> dict[str, str]:
    from opt.core.capacity import GPUS

    return {name: f"{gpu.memory / 2**30:.2f} GiB: {gpu.note}" for name, gpu in GPUS.items()}


def _costs() -> dict[str, str]:
    from opt.core.cost.registry import COSTS, summary

    return {name: summary(name) for name in COSTS}


KINDS: dict[str, Callable[[], dict[str, str]]] = {
    "solvers": _solvers,
    "bounds": _bounds,
    "policies": _policies,
    "routers": _routers,
    "families": _families,
    "readers": _readers,
    "instances": _instances,
    "suites": _suites,
    "claims": _claims,
    "models": _models,
    "gpus": _gpus,
    "costs": _costs,
}


@click.command("list")
@click.argument("kind", required=False, type=click.Choice(list(KINDS)))
@verb
def list_names(console: Console, kind: str | None) -> None:
    """Show the names that other verbs take."""
    found = {name: KINDS[name]() for name in ([kind] if kind else KINDS)}
    if console.as_json:
        console.document(found)
        return
    for name, entries in found.items():
        console.table([name, ""], list(entries.items()))
