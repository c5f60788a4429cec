"""Verbs that give certified answers: solve, bound, verify, compare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, known_cost, load_instance, named, names_of, out_option, parameters, round_option, verb
from opt.cli.console import picture as picture_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from opt.core.instance import Instance
    from opt.core.model import Bound, Result

__all__ = ["bound", "compare_files", "solve", "verify"]

SEED = click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same answer.")
KV = click.option(
    "--kv",
    type=click.Choice(["separate", "shared"]),
    default="separate",
    show_default=True,
    help="Whether a common prefix counts for everyone or once.",
)
LIMIT = click.option(
    "--time-limit", type=click.FloatRange(0, min_open=True), default=10.0, show_default=True, metavar="S", help="Seconds."
)
COST = click.option(
    "--cost", metavar="NAME", callback=known_cost, help="Seconds too, by a cost model: a name from `kvopt list costs`, or a file."
)
BOUND = click.option("--bound", "bound_name", default="best", show_default=True, callback=named("BOUNDS"), help="Lower bound.")


@click.command()
@click.argument("file")
@click.option("--solver", default="portfolio", show_default=True, callback=named("SOLVERS"), help="See `kvopt list solvers`.")
@click.option("--param", "params", multiple=True, callback=parameters, metavar="NAME=VALUE", help="A parameter of the solver.")
@BOUND
@LIMIT
@SEED
@KV
@COST
@round_option
@out_option("the plan")
@click.option("--plot", "picture", metavar="PNG", callback=picture_name, help="Draw the schedule (.png, .svg or .pdf).")
@verb
def solve(
    console: Console,
    file: str,
    solver: str,
    params: dict[str, Any],
    bound_name: str,
    time_limit: float,
    seed: int,
    kv: Any,
    cost: str | None,
    round_s: str | None,
    out: str | None,
    picture: str | None,
) -> int:
    """Solve an instance FILE, with a proved gap.

    The answer is a schedule, a lower bound on every schedule, and the gap between them, all certified.

    \b
    kvopt solve @demo
    kvopt solve trace.json --round-s 0.05 --solver sof --param ageing=3 -o plan.json --plot plan.png
    """
    from opt.core.files import write
    from opt.solvers.door import check_params
    from opt.solvers.door import solve as run

    try:
        check_params(solver, params)
    except ValueError as error:
        raise click.UsageError(f"--param: {error}") from None
    instance = load_instance(file, round_s=round_s)
    told = _progress(console)
    result = run(instance, solver, bound=bound_name, time_limit=time_limit, seed=seed, kv=kv, on_progress=told, **params)
    console.end_progress()
    if out is not None and result.schedule is not None:
        referable = file != "-" and not file.startswith("@") and round_s is None
        write(result, out, instance_path=file if referable else None)
    if picture is not None and result.schedule is not None:
        from opt import plot

        plot.save(plot.schedule(result.schedule), picture)
    if out != "-":
        _report(console, instance, result, cost=cost)
    if result.schedule is None:
        return 4
    return 130 if result.stop_reason == "interrupted" else 0


def _progress(console: Console) -> Callable[[int | None, int | None], None] | None:
    """Return a callback that shows incumbent, bound and gap as they come, on a terminal."""
    show = console.progress()
    if show is None:
        return None

    def report(incumbent: int | None, bound: int | None) -> None:
        gap = f", gap {1 - bound / incumbent:.2%}" if incumbent and bound is not None else ""
        show(f"incumbent {incumbent or '-'}, bound {bound if bound is not None else '-'}{gap}")

    return report


def _report(console: Console, instance: Instance, result: Result, unknown: tuple[str, ...] = (), cost: str | None = None) -> None:
    """Print a result: the contract's keys as JSON, the same figures in words otherwise; a plan file leaves some unknown."""
    from opt.comparison import on_the_clock
    from opt.core.fairness import fairness

    value = _solution(instance, result)
    if result.schedule is not None:
        value |= fairness(result.schedule)
    clocked = {} if cost is None else on_the_clock(result, cost)
    value |= {**clocked, **dict.fromkeys(unknown)}
    if console.as_json:
        console.document({**value, "stats": dict(result.stats)})
        return
    shown = ("solver", "status", "proof", "stop_reason", "total_latency", "mean_latency", "lower_bound", "bound_method")
    more = ("gap", "ratio", "makespan", "max_wait", "jain_slowdown", "verified", "seconds")
    facts = {key: value[key] for key in (*shown, *more, *clocked) if key not in unknown}
    head = value["instance"]
    winner = f" ({result.stats['winner']})" if "winner" in result.stats else ""
    facts["solver"] = f"{result.solver}{winner}"
    console.facts({"instance": f"{head['name'] or '(unnamed)'}: {head['n']:,} requests, memory {head['memory']:,}", **facts})
    if result.stats.get("factor"):
        console.facts({"guarantee": f"total latency <= {result.stats['factor']} * optimum, proved for this solver"})


def _solution(instance: Instance, result: Result) -> dict[str, Any]:
    schedule, bound = result.schedule, result.bound
    return {
        "instance": _head(instance),
        "solver": result.solver,
        "status": result.status,
        "proof": result.proof,
        "stop_reason": result.stop_reason,
        "total_latency": result.total_latency,
        "mean_latency": result.mean_latency,
        "lower_bound": None if bound is None else bound.ceil,
        "lower_bound_exact": None if bound is None else _fraction(bound),
        "bound_method": None if bound is None else bound.method,
        "gap": result.gap,
        "ratio": result.ratio,
        "makespan": None if schedule is None else schedule.makespan,
        "seconds": result.seconds,
        "seed": result.seed,
        "kv": None if schedule is None else schedule.kv,
        "verified": schedule is not None,
    }


def _head(instance: Instance) -> dict[str, Any]:
    return {"name": instance.name, "memory": instance.memory, "n": instance.n}


def _fraction(bound: Bound) -> str:
    return f"{bound.value.numerator}/{bound.value.denominator}"


@click.command()
@click.argument("file")
@BOUND
@KV
@round_option
@verb
def bound(console: Console, file: str, bound_name: str, kv: Any, round_s: str | None) -> None:
    """Prove a lower bound on the total latency.

    No schedule of FILE has a smaller one.
    """
    from opt.solvers.door import lower_bound

    instance = load_instance(file, round_s=round_s)
    found = lower_bound(instance, bound_name, kv=kv)
    value = {
        "instance": _head(instance),
        "lower_bound": found.ceil,
        "lower_bound_exact": _fraction(found),
        "bound_method": found.method,
        "kv": found.kv,
        "certificate": found.certificate["kind"],
    }
    if console.as_json:
        console.document(value)
    else:
        console.facts({key: cell for key, cell in value.items() if key != "instance"})


@click.command()
@click.argument("plan")
@COST
@verb
def verify(console: Console, plan: str, cost: str | None) -> int:
    """Check a PLAN from its file alone.

    Memory in every round, the objective and the bound's certificate are derived again; exit code 1 and the reason when
    one does not hold.
    """
    from opt.core.errors import CertificateError
    from opt.core.files import verify as check

    try:
        result = check(plan)
    except CertificateError as error:
        if console.as_json:
            console.document({"verified": False, "reason": str(error)})
        Console.say_error(f"{plan}: not valid: {error}")
        return 1
    assert result.schedule is not None
    _report(console, result.schedule.instance, result, unknown=("seed", "seconds", "stop_reason"), cost=cost)
    return 0


@click.command("compare")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("--solvers", callback=named("SOLVERS"), metavar="A,B,..", help="All orders, Sorted-F and Sorted-rate by default.")
@BOUND
@LIMIT
@SEED
@KV
@COST
@round_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV instead of a table.")
@click.option("--plot", "picture", metavar="PNG", callback=picture_name, help="Draw the ratios (.png, .svg or .pdf).")
@verb
def compare_files(
    console: Console,
    files: tuple[str, ...],
    solvers: str | None,
    bound_name: str,
    time_limit: float,
    seed: int,
    kv: Any,
    cost: str | None,
    round_s: str | None,
    as_csv: bool,
    picture: str | None,
) -> int:
    """Set solvers side by side against a bound.

    Every row is certified.

    \b
    kvopt compare @demo
    kvopt compare a.json b.json --solvers fcfs,svf,sorted-f --plot ratios.png
    """
    from opt.comparison import compare

    loaded = [load_instance(file, round_s=round_s) for file in files]
    if as_csv and console.as_json:
        raise click.UsageError("give --csv or --json, not both")
    names = None if solvers is None else names_of(solvers)
    settings: dict[str, Any] = {"bound": bound_name, "time_limit": time_limit, "seed": seed, "kv": kv, "cost": cost}
    table = compare(loaded, solvers=names, progress=console.progress(), **settings)
    console.end_progress()
    if picture is not None:
        from opt import plot

        plot.save(plot.ratios(table), picture)
    if console.as_json:
        console.document({"rows": list(table), "interrupted": table.interrupted})
    elif as_csv:
        click.echo(table.to_csv(), nl=False)
    else:
        _print_comparison(console, list(table))
    if table.interrupted:
        Console.say_error(f"interrupted; the {len(table)} rows that were done are above")
    return 130 if table.interrupted else 0


def _print_comparison(console: Console, rows: list[dict[str, Any]]) -> None:
    shown = ("solver", "total_latency", "mean_latency", "ratio", "gap", "makespan", "max_wait", "factor", "seconds")
    shown = (*shown, *(("total_latency_s", "mean_ttft_s", "makespan_s") if rows and "cost" in rows[0] else ()))
    for name in dict.fromkeys((row["instance"], row["n"], row["memory"]) for row in rows):
        mine = [row for row in rows if (row["instance"], row["n"], row["memory"]) == name]
        bound = f"{mine[0]['lower_bound']:,} ({mine[0]['bound_method']})"
        title = f"{name[0] or '(unnamed)'}: {name[1]:,} requests, memory {name[2]:,}; lower bound {bound}; all rows certified"
        console.table([key.replace("_", " ") for key in shown], [[row[key] for key in shown] for row in mine], title)
