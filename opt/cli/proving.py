"""The verb that runs theorems: prove."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, verb

if TYPE_CHECKING:
    from proofs.claim import Report

__all__ = ["prove"]


@click.command()
@click.argument("name", required=False)
@verb
def prove(console: Console, name: str | None) -> int:
    """Run the proof of a claim, or of all.

    One line for each claim: established (every step is proved), numeric only (finitely many cases stand in for some
    step) or refuted. With a NAME, its statement, hypotheses, sources, and what every step has established. Exit code 1
    if a claim is refuted. `kvopt list claims` shows the names.

    \b
    kvopt prove
    kvopt prove hardness
    """
    from proofs import CLAIMS
    from proofs.claim import prove as run

    if name is not None and name not in CLAIMS:
        raise click.UsageError(f"claim {name!r} is not known; known: {', '.join(CLAIMS)}")
    show, reports = console.progress(), []
    for each in CLAIMS if name is None else [name]:
        if show is not None:
            show(f"proving {each}")
        report = run(CLAIMS[each].load())
        reports.append(report)
        console.end_progress()
        if not console.as_json:
            _print_steps(report) if name else click.echo(_line(report, CLAIMS[each].title))
    if console.as_json:
        console.document({"claims": [_document(report) for report in reports]})
    return 1 if any(report.outcome == "refuted" for report in reports) else 0


def _line(report: Report, title: str) -> str:
    return f"{report.outcome:<12}  {report.claim.name}: {title} ({report.summary}; {report.seconds:.1f} s)"


def _print_steps(report: Report) -> None:
    claim = report.claim
    click.echo(f"{claim.name}: {claim.statement}")
    for hypothesis in claim.hypotheses:
        click.echo(f"  if    {hypothesis}")
    for reference in claim.references:
        click.echo(f"  from  {reference.text} ({reference.standing})")
    for number, (step, finding) in enumerate(zip(claim.steps, report.findings, strict=True), 1):
        click.echo(f"{number:>3}. {step.says}")
        if step.because:
            click.echo(f"     because: {step.because}")
        click.echo(f"     {finding.kind if finding.holds else 'FAILS'}: {finding.shows}")
    click.echo(f"{report.outcome} ({report.summary}; {report.seconds:.1f} s)")


def _document(report: Report) -> dict[str, Any]:
    claim = report.claim
    return {
        "name": claim.name,
        "statement": claim.statement,
        "hypotheses": list(claim.hypotheses),
        "references": [{"text": each.text, "standing": each.standing} for each in claim.references],
        "outcome": report.outcome,
        "summary": report.summary,
        "seconds": report.seconds,
        "steps": [
            {"says": step.says, "because": step.because, "holds": found.holds, "kind": found.kind, "shows": found.shows}
            for step, found in zip(claim.steps, report.findings, strict=True)
        ],
    }
