"""The verb that measures: bench."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, verb

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bench"]


@click.command()
@click.argument("suite")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Repetitions.")
@click.option("--jobs", type=click.IntRange(1), default=1, show_default=True, help="Processes at a time; 1 for honest timings.")
@click.option("--resume", metavar="FILE", help="JSON lines: skip tasks that FILE holds, append the others.")
@click.option(
    "--library", metavar="DIR", help="For `library`: the folder to build, certify and improve; else nothing is written."
)
@click.option("--full", is_flag=True, help="For `search`: every part at full size, about an hour.")
@verb
def bench(console: Console, suite: str, seeds: int, jobs: int, resume: str | None, library: str | None, full: bool) -> int:
    """Run a benchmark SUITE.

    A table on stdout (with --json all records), a line of JSON for each task in the file of --resume, progress on stderr.
    `kvopt list suites` shows the suites.

    \b
    kvopt bench scale --seeds 1 --resume scale.jsonl
    """
    from opt.bench import SUITES, run_suite

    if suite not in SUITES:
        raise click.UsageError(f"suite {suite!r} is not known; known: {', '.join(SUITES)}")
    if library is not None and suite != "library":
        raise click.UsageError("--library belongs to `kvopt bench library`")
    if full and suite != "search":
        raise click.UsageError("--full belongs to `kvopt bench search`")
    path = None if resume is None else Path(resume)
    options: dict[str, Any] = {} if library is None else {"library": library}
    options |= {"full": True} if full else {}
    outcome = run_suite(SUITES[suite], seeds=seeds, jobs=jobs, path=path, progress=_progress(console), **options)
    if console.as_json:
        console.document({"suite": suite, "records": outcome.records, "failed": outcome.failed})
    else:
        for table in SUITES[suite].tables(outcome.records):
            console.table(table.columns, table.rows, table.title)
    if outcome.failed:
        Console.say_error(f"{outcome.failed} tasks failed; their errors are in the file of --resume")
    if outcome.interrupted:
        kept = f"; --resume {resume} goes on from here" if resume else ""
        Console.say_error(f"interrupted; {len(outcome.records)} tasks are done{kept}")
        return 130
    return 1 if outcome.failed else 0


def _progress(console: Console) -> Callable[[int, int, str], None] | None:
    if console.quiet:
        return None
    begun = time.monotonic()

    def report(done: int, total: int, what: str) -> None:
        click.echo(f"[{done}/{total}, {time.monotonic() - begun:.0f} s] {what}", err=True)

    return report
