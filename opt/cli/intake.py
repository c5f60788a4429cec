"""Verbs that bring instances in: generate, import, mix, predict, describe."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, load_instance, number, out_option, parameters, read_file, verb

if TYPE_CHECKING:
    from opt.core.instance import Instance

__all__ = ["describe", "generate", "import_trace", "mix_files", "predict"]

MEMORY = click.option("--memory", type=click.IntRange(1), metavar="M", help="KV budget in tokens.")
OVERSIZED = click.option(
    "--oversized", type=click.Choice(["error", "drop"]), default="error", show_default=True, help="A request that cannot fit."
)
BACKLOG = click.option("--backlog", is_flag=True, help="Drop arrivals: everything is there at round 0.")


def _deliver(console: Console, instance: Instance, out: str | None) -> None:
    """Write an instance to its file (and say what it is), or to stdout."""
    from opt.core.files import digest, write

    write(instance, "-" if out is None else out)
    if out in (None, "-"):
        return
    dropped = instance.origin.get("oversized_dropped", {}).get("count", 0)
    bad = instance.origin.get("bad_rows", {}).get("count", 0)
    if console.as_json:
        facts = {"path": out, "name": instance.name, "n": instance.n, "memory": instance.memory, "sha256": digest(instance)}
        console.document({**facts, "oversized_dropped": dropped, "bad_rows": bad})
    losses = [f"{dropped} oversized requests dropped"] * (dropped > 0) + [f"{bad} bad rows skipped"] * (bad > 0)
    console.note("; ".join([f"{out}: {instance.n:,} requests, memory {instance.memory:,}", *losses]))


@click.command()
@click.argument("family")
@click.option("--n", type=click.IntRange(0), help="Number of requests; the family's own by default.")
@MEMORY
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same bytes.")
@out_option("the instance")
@verb
def generate(console: Console, family: str, n: int | None, memory: int | None, seed: int, out: str | None) -> None:
    """Make an instance of a FAMILY.

    `kvopt list families` shows them.

    \b
    kvopt generate mixture --n 1000 --seed 7 -o mixture.json
    kvopt generate fcfs-trap --memory 64 | kvopt compare - --solvers fcfs,svf
    """
    import difflib

    from instances import FAMILIES
    from instances import generate as make

    if family not in FAMILIES:
        close = difflib.get_close_matches(family, FAMILIES, 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise click.UsageError(f"family {family!r} is not known{hint} (`kvopt list families` shows all)")
    _deliver(console, make(family, n=n, memory=memory, seed=seed), out)


@click.command("import")
@click.argument("trace")
@click.option("--format", "form", required=True, help="The trace's format (see `kvopt list readers`).")
@click.option("--memory", type=click.IntRange(1), required=True, metavar="M", help="KV budget in tokens.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="Keep the first N requests in time order.")
@click.option(
    "--rate-scale", default="1", show_default=True, callback=number, metavar="X", help="Replay at X times the request rate."
)
@click.option(
    "--on-bad-row", type=click.Choice(["error", "skip"]), default="error", show_default=True, help="A row that is wrong."
)
@OVERSIZED
@BACKLOG
@click.option("--name", help="The instance's name; the file's by default.")
@click.option("--option", "options", multiple=True, callback=parameters, metavar="NAME=VALUE", help="An option of the format.")
@out_option("the instance")
@verb
def import_trace(console: Console, trace: str, form: str, out: str | None, options: dict[str, Any], **settings: Any) -> None:
    """Turn a TRACE into an instance.

    TRACE is a file, packed or not, or - for stdin. Arrivals become seconds from the first request, without loss; the
    shift is kept in the instance's origin. Bad rows and oversized requests are errors unless you say otherwise, and
    then they are counted.

    \b
    kvopt import AzureLLMInferenceTrace_conv.csv.gz --format azure --memory 60000 -o conv.json.gz
    kvopt import trace.csv --format vidur --memory 16492 --backlog -o arxiv.json
    """
    from opt.core.traces import READERS, read_trace

    if form not in READERS:
        raise click.UsageError(f"format {form!r} is not known; known: {', '.join(READERS)}")
    try:
        instance = read_trace(trace, form, **settings, **options)
    except TypeError as error:
        raise click.UsageError(f"--option: {error}") from None
    _deliver(console, instance, out)


@click.command("mix")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--share", required=True, metavar="A,B,..", help="One weight for each file.")
@click.option("--n", type=click.IntRange(0), required=True, help="Number of requests to draw.")
@MEMORY
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same bytes.")
@OVERSIZED
@BACKLOG
@out_option("the instance")
@verb
def mix_files(console: Console, files: tuple[str, ...], share: str, out: str | None, **settings: Any) -> None:
    """Draw requests from several instances in given shares.

    \b
    kvopt mix arxiv.json chat.json --share 1,1 --n 1000 --memory 16492 -o mixture.json
    """
    from instances.mixing import mix

    parts = [load_instance(file) for file in files]
    instance = mix(parts, share.split(","), **settings)
    dropped = instance.origin.get("dropped_fields")
    if dropped:
        console.note(f"warning: {', '.join(dropped)} could not be kept: the instances do not all have it in the same form")
    _deliver(console, instance, out)


@click.command()
@click.argument("file")
@click.option("--kind", required=True, help="exact, noisy, interval, quantile or none.")
@click.option(
    "--error", default="0.5", show_default=True, callback=number, metavar="E", help="How wrong noisy and interval may be, 0 to 1."
)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same bytes.")
@out_option("the instance")
@verb
def predict(console: Console, file: str, kind: str, error: str, seed: int, out: str | None) -> None:
    """Attach predictions of the outputs to the instance in FILE.

    What a predictor of that KIND would have said: the output itself, a number up to E times the output off, an interval
    around it, the quarter of all outputs it falls into, or nothing. Predictions the file has are replaced.

    \b
    kvopt predict @demo --kind noisy --error 0.5 --seed 1 -o noisy.json
    """
    from instances.predicting import PREDICTORS
    from instances.predicting import predict as attach

    if kind not in PREDICTORS:
        raise click.UsageError(f"--kind {kind!r} is not known; known: {', '.join(PREDICTORS)}")
    _deliver(console, attach(load_instance(file), kind, error=error, seed=seed), out)


@click.command()
@click.argument("file")
@verb
def describe(console: Console, file: str) -> None:
    """Show what an instance looks like.

    Sizes, arrivals, load, ties, oversized requests (left out, and listed), prefix sharing, provenance.
    """
    from opt.core.describe import describe as facts_of

    facts = facts_of(read_file(file, oversized="drop"))
    if console.as_json:
        console.document(facts)
        return
    console.facts({key: facts[key] for key in ("name", "n", "memory")})
    sizes = {key: facts[key] for key in ("prompt", "output", "peak") if facts[key]}
    if sizes:
        columns = list(next(iter(sizes.values())))
        console.table(["tokens", *columns], [[key, *row.values()] for key, row in sizes.items()])
    for key in ("arrivals", "load", "ties", "sharing"):
        if facts[key]:
            console.facts({f"{key}: {name}": cell for name, cell in facts[key].items() if not isinstance(cell, dict)})
    console.facts({"oversized": _oversized(facts["oversized"]), "optional fields": ", ".join(facts["fields"]) or "none"})
    origin = {
        f"origin: {key}": cell if isinstance(cell, str | int) else json.dumps(cell) for key, cell in facts["origin"].items()
    }
    console.facts(origin or {"origin": "not recorded"})


def _oversized(report: dict[str, Any]) -> str:
    ids = report["first_ids"]
    return f"{report['count']:,}" + (f" (left out above): {', '.join(map(str, ids))}" if ids else "")
