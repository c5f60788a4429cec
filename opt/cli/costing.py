"""The verbs about seconds: fit a cost model, measure iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, verb

if TYPE_CHECKING:
    from opt.core.cost import CostModel

__all__ = ["fit", "measure"]

FORM = click.Choice(["linear", "max", "p-norm", "piecewise"])
GRID = click.Choice(["full", "quick", "tiny"])
WHOLE = click.IntRange(1)


@click.command()
@click.argument("files", nargs=-1, metavar="LOG...")
@click.option("--form", type=FORM, default="piecewise", show_default=True, help="How time bends with the tokens in a batch.")
@click.option("--model", metavar="M", help="For operator tables: whose layers; a name from `kvopt list models`.")
@click.option("--gpu", metavar="G", help="For operator tables: a name from `kvopt list gpus`.")
@click.option("--tp", type=WHOLE, default=1, show_default=True, help="GPUs of a tensor-parallel group.")
@click.option(
    "--dense",
    type=click.Choice(["auto", "vidur", "products"]),
    default="auto",
    show_default=True,
    help="Matrix products: Vidur's layers, aiconfigurator's products, or whichever fits.",
)
@click.option("--preset", metavar="NAME", help="Make a preset again, from the tables under KVOPT_DATA; no LOG then.")
@click.option("--name", metavar="NAME", help="The model's name; else that of the output file.")
@click.option("-o", "--output", "out", metavar="COST", help="Write the cost model to COST (- is stdout).")
@verb
def fit(
    console: Console,
    files: tuple[str, ...],
    form: Any,
    model: str | None,
    gpu: str | None,
    tp: int,
    dense: Any,
    preset: str | None,
    name: str | None,
    out: str | None,
) -> None:
    """Fit a cost model: the seconds of an iteration as a function of its load.

    LOG files are iteration logs (CSV or JSON lines with the column `seconds`, as `kvopt measure` writes them), or public
    tables of single operators, recognised by their columns: Vidur (mlp, attention), aiconfigurator (gemm, context_attention,
    generation_attention, allreduce), LLMServingSim (attention, dense, per_sequence). Errors are held out. A fit that asks
    more of the chip than it has is refused.

    Columns of a log, a row for each iteration: seconds, prefill_tokens, prefill_pairs (sum over chunks of c*x + c*(c+1)/2 for
    c tokens after x cached ones), prefill_sequences, prefill_context (sum of x), decodes, kv_tokens (read by the decodes, the
    new ones included), repeated_kv (those of them read before in the batch). All but seconds may be left out.

    \b
    kvopt fit iterations.csv -o mine.json
    kvopt fit mlp.csv.gz context_attention.csv.gz generation_attention.csv.gz gemm.csv.gz \\
        --model Llama-3-8B --gpu H100 --form piecewise -o h100.json
    """
    from pathlib import Path

    name = name or (Path(out).name.removesuffix(".gz").removesuffix(".json") if out and out != "-" else None)
    if preset is not None:
        fitted = _preset(preset, files)
    elif not files:
        raise click.UsageError("give LOG files, or --preset NAME")
    else:
        fitted = _fitted(files, form, name or "fit", {"model": model, "gpu": gpu, "tp": tp, "dense": dense})
    _write(console, fitted, out)


def _preset(name: str, files: tuple[str, ...]) -> CostModel:
    from opt.fit.recipes import PUBLISHED, RECIPES, data_folder, make

    if files:
        raise click.UsageError("--preset takes its own tables; give no LOG")
    if name not in {**RECIPES, **PUBLISHED}:
        raise click.UsageError(f"--preset {name!r} is not known; known: {', '.join([*RECIPES, *PUBLISHED])}")
    return make(name, data_folder())


def _fitted(files: tuple[str, ...], form: Any, name: str, where: dict[str, Any]) -> CostModel:
    from opt.fit import fit_log, fit_tables, read_table
    from opt.fit.log import is_log, read_log

    logs = [file for file in files if is_log(file)]
    if len(logs) == len(files):
        given = {key: value for key, value in where.items() if key in ("model", "gpu") and value}
        return fit_log([read_log(file) for file in files], form, name=name, machine=given)
    if logs:
        raise click.UsageError(f"{logs[0]} is an iteration log and the others are operator tables; fit one or the other")
    if not where["model"] or not where["gpu"]:
        raise click.UsageError("operator tables need --model and --gpu, which say whose layers to add up")
    return fit_tables([read_table(file) for file in files], form, name=name, **where)


def _write(console: Console, fitted: CostModel, out: str | None) -> None:
    from opt.core.cost import write_cost
    from opt.core.cost.plausible import checks

    if out is not None:
        write_cost(fitted, out)
    if out == "-":
        return
    held_out = fitted.error.get("held_out")
    if console.as_json:
        figures = [{"what": check.what, "implied": check.implied, "peak": check.peak} for check in checks(fitted)]
        facts = {"terms_s": dict(fitted.terms), "knots": [list(knot) for knot in fitted.knots], "locality": fitted.locality}
        console.document(
            {"name": fitted.name, "form": fitted.form, **facts, "held_out": held_out, "memory": fitted.memory, "checks": figures}
        )
        return
    console.facts({"name": fitted.name, "form": fitted.form, **_errors(held_out), "KV capacity": fitted.memory})
    console.facts({check.what: str(check).partition(": ")[2] for check in checks(fitted)} or {"chip": "not known: not checked"})
    if out is None:
        console.note("nothing was written; -o COST keeps it")


def _errors(held_out: dict[str, Any] | None) -> dict[str, str]:
    if held_out is None:
        return {"held-out error": "too few iterations to withhold half"}
    found = {"held-out error": f"median {held_out['median']:.1%}, P95 {held_out['p95']:.1%}"}
    for kind in ("decode", "prefill", "mixed"):
        if kind in held_out:
            found[f"  {kind}"] = f"median {held_out[kind]['median']:.1%}, P95 {held_out[kind]['p95']:.1%}"
    return found


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), required=True, help="Where to run.")
@click.option("--model", default="Llama-3-8B", show_default=True, metavar="M", help="A model's sizes, or `tiny`.")
@click.option("--layers", type=WHOLE, metavar="L", help="Fewer layers than the model has, where it does not fit.")
@click.option(
    "--grid", type=click.Choice(["full", "quick", "tiny"]), default="full", show_default=True, help="How much to measure."
)
@click.option("--repeat", type=WHOLE, default=5, show_default=True, help="Runs of each iteration; the median counts.")
@click.option("--budget-s", type=click.FloatRange(0, min_open=True), metavar="S", help="Stop measuring after S seconds.")
@click.option("--eager", is_flag=True, help="On CUDA: launch kernels one by one, as engines without captured graphs do.")
@click.option(
    "--prefix-kernel",
    type=click.Choice(["plain", "once"]),
    default="plain",
    show_default=True,
    help="Shared KV: ordinary attention on one copy, or one read for all sharers.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Order of the grid, weights.")
@click.option("-o", "--output", "out", metavar="LOG", required=True, help="Write the iterations to LOG (JSON lines).")
@click.option("--form", type=FORM, default="piecewise", show_default=True, help="Form of the fit.")
@click.option("--cost", metavar="COST", help="Fit a cost model too, and write it to COST.")
@verb
def measure(console: Console, out: str, form: Any, cost: str | None, **options: Any) -> int:
    """Measure whole iterations of a transformer with random weights.

    Prefill chunks with cached context, decode batches by context length, mixed batches, and decodes whose KV cache is
    shared by groups of requests against separate copies. Needs torch: `pip install 'kvopt[gpu]'`.

    \b
    kvopt measure --device cuda --model Llama-3-8B -o log.jsonl --cost mine.json
    kvopt measure --device cpu --model tiny --grid tiny -o log.jsonl
    """
    from pathlib import Path

    from opt.fit import fit_log
    from opt.fit.log import read_log, write_log
    from opt.measure import measure as run

    found = run(progress=console.progress(), **options)
    console.end_progress()
    write_log(found.rows, out, machine=found.machine, origin=found.origin)
    if found.left_out:
        console.note(f"{found.left_out} iterations of the grid were left out: {found.why}")
    if cost is not None:
        fitted = fit_log([read_log(out)], form, name=Path(cost).name.removesuffix(".json"), memory=found.memory)
        _write(console, fitted, cost)
    elif console.as_json:
        console.document({"log": out, "iterations": len(found.rows), "left_out": found.left_out, "machine": dict(found.machine)})
    else:
        console.facts({"log": out, "iterations": len(found.rows), "left out": found.left_out})
    return 130 if found.interrupted else 0
