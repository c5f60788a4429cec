"""The verb that measures: bench."""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, shown, verb

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from opt.bench.runner import Outcome, Suite

__all__ = ["bench"]

BELONGS = {"library": ("library",), "full": ("search",), "quick": ("headline",)}  # options that some suites have


def _reports(_context: click.Context, _parameter: click.Parameter, names: tuple[str, ...]) -> list[Path]:
    """Return the reports to write, once their names say what they are."""
    for name in names:
        if not name.lower().endswith((".html", ".md")):
            raise click.BadParameter(f"{name!r} must end in .html or .md")
    return [Path(name) for name in names]


@click.command()
@click.argument("suite")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions.")
@click.option("--jobs", type=click.IntRange(1), help="Processes at a time; 1, the default, for honest timings.")
@click.option("--cluster", metavar="ADDRESS", help="Run the tasks on this dask scheduler (extra `cluster`).")
@click.option("--resume", metavar="FILE", help="JSON lines: skip tasks that FILE holds, append the others.")
@click.option("--part", metavar="NAME", help="Only this part of a suite that has parts.")
@click.option("--report", "reports", metavar="FILE", multiple=True, callback=_reports, help="Write FILE, .html or .md, as well.")
@click.option(
    "--library", metavar="DIR", help="For `library`: the folder to build, certify and improve; else nothing is written."
)
@click.option("--full", is_flag=True, help="For `search`: every part at full size, about an hour.")
@click.option("--quick", is_flag=True, help="For `headline`: fewer cells, within five minutes.")
@verb
def bench(
    console: Console,
    suite: str,
    seeds: int,
    jobs: int | None,
    cluster: str | None,
    resume: str | None,
    part: str | None,
    reports: list[Path],
    **options: Any,
) -> int:
    """Run a benchmark SUITE.

    A table on stdout (with --json all records), a line of JSON for each task in the file of --resume, progress on stderr.
    `kvopt list suites` shows the suites.

    \b
    kvopt bench scale --seeds 1 --resume scale.jsonl
    kvopt bench headline --quick --report headline.html
    kvopt bench search --part small --seeds 1
    kvopt bench ratios --cluster tcp://10.0.0.1:8786 --resume ratios.jsonl
    """
    from opt.bench import SUITES, run_suite
    from opt.bench.runner import UnknownPartError

    if suite not in SUITES:
        raise click.UsageError(f"suite {suite!r} is not known; known: {', '.join(SUITES)}")
    if cluster is not None and jobs is not None:
        raise click.UsageError("--jobs is for this machine; with --cluster the workers say how many")
    chosen = _chosen(suite, options)
    path = None if resume is None else Path(resume)
    with _progress(console) as progress:
        try:
            outcome = run_suite(
                SUITES[suite], seeds=seeds, jobs=jobs or 1, cluster=cluster, path=path, part=part, progress=progress, **chosen
            )
        except UnknownPartError as error:
            raise click.UsageError(str(error)) from None
    _show(console, SUITES[suite], outcome, reports)
    return _ended(outcome, resume)


def _chosen(suite: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that were given, all of which must belong to the suite."""
    chosen = {name: value for name, value in options.items() if value}
    for name in chosen:
        if suite not in BELONGS[name]:
            raise click.UsageError(f"--{name} belongs to `kvopt bench {BELONGS[name][0]}`")
    return chosen


def _show(console: Console, suite: Suite, outcome: Outcome, reports: list[Path]) -> None:
    from opt.bench.report import write_report

    if console.as_json:
        console.document({"suite": suite.name, "records": outcome.records, "failed": len(outcome.errors)})
    else:
        for table in suite.tables(outcome.records):
            console.table(table.columns, table.rows, table.title)
    for path in reports:
        write_report(suite, outcome.records, path, shown=shown)
        console.note(f"report in {path}")


def _ended(outcome: Outcome, resume: str | None) -> int:
    """Say what went wrong, if anything did, and return the exit code."""
    if outcome.errors:
        where = f"{resume} has them all" if resume else "--resume FILE would keep them all"
        Console.say_error(f"{len(outcome.errors)} tasks failed, the first with {outcome.errors[0]}; {where}")
    if outcome.interrupted:
        kept = f"; --resume {resume} goes on from here" if resume else ""
        Console.say_error(f"interrupted; {len(outcome.records)} tasks are done{kept}")
        return 130
    return 1 if outcome.errors else 0


@contextlib.contextmanager
def _progress(console: Console) -> Iterator[Callable[[int, int, str], None] | None]:
    """Give what reports progress: a bar on a terminal, a line for each task in a log, nothing if quiet."""
    if console.quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        begun = time.monotonic()
        yield lambda done, total, what: click.echo(f"[{done}/{total}, {time.monotonic() - begun:.0f} s] {what}", err=True)


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    from rich.console import Console as Terminal
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with Progress(*columns, console=Terminal(stderr=True), transient=True) as bars:
        bar = bars.add_task("starting", total=None)

        def report(done: int, total: int, what: str) -> None:
            bars.update(bar, completed=done, total=total, description=what if len(what) <= 60 else f"{what[:59]}…")

        yield report
