"""The verb that moves time: simulate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, named, number, parameters, read_file, verb

if TYPE_CHECKING:
    from opt.core.files import Plan
    from opt.core.instance import Instance
    from opt.sim.timeline import Timeline

__all__ = ["simulate"]

CURVES = ("ttft_s", "tpot_s", "itl_s", "e2e_s", "wait_s")


@click.command()
@click.argument("file")
@click.option("--policy", callback=named("POLICIES"), metavar="NAME", help="By default vllm-fcfs; replay for a plan.")
@click.option("--cost", metavar="NAME", help="A cost model or a cost file; by default `unit`, one second a step.")
@click.option("--engine", metavar="FILE", help="Settings (kvopt-engine/1) in place of the policy's own.")
@click.option("--pools", metavar="FILE", help="A cluster (kvopt-pools/1) in place of one engine; its nodes have their costs.")
@click.option("--router", callback=named("ROUTERS"), metavar="NAME", help="Where prompts go in a cluster; by default `rolling`.")
@click.option("--locality", type=click.FloatRange(0, 1), metavar="X", help="Price of a repeated read of a shared KV token.")
@click.option(
    "--param", "params", multiple=True, callback=parameters, metavar="NAME=VALUE", help="A parameter of the policy, or router."
)
@click.option(
    "--lengths",
    type=click.Choice(["auto", "output", "predicted", "none"]),
    default="auto",
    show_default=True,
    help="What policies know of outputs: predictions where there are any, else the truth; or one of these.",
)
@click.option("--round-s", metavar="S", callback=number, help="Seconds in a round, for arrivals in rounds.")
@click.option("--until", type=click.FloatRange(0, min_open=True), metavar="S", help="Stop after S seconds.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True, help="Same seed, same timeline.")
@click.option("--perfetto", metavar="FILE", help="Write a Chrome trace for ui.perfetto.dev (.gz packs it).")
@click.option("--requests", metavar="FILE", help="Write one row for each request: .csv, or JSON lines.")
@verb
def simulate(console: Console, file: str, perfetto: str | None, requests: str | None, **options: Any) -> int:
    """Serve FILE step by step and measure.

    FILE is an instance, or a plan, which is replayed. TPOT is (last token - first token) / (output - 1); ITL is every gap
    between two tokens of a request; SLO attainment is the share of submitted requests that met all their targets.

    \b
    kvopt simulate chat.json --policy vllm-fcfs --cost h100-llama-3-8b
    kvopt simulate plan.json --perfetto plan.trace.json.gz
    kvopt simulate chat.json --pools pools.json --router kairos
    """
    pools, router = options.pop("pools"), options.pop("router")
    if router is not None and pools is None:
        raise click.UsageError("--router sends requests through a cluster: give its file, --pools FILE")
    thing = _load(file)
    timeline = _run(thing, **options) if pools is None else _run_pools(thing, pools, router or "rolling", **options)
    if perfetto is not None:
        from opt.sim.export import write_perfetto

        write_perfetto(timeline, perfetto)
    if requests is not None:
        from opt.sim.export import write_requests

        write_requests(timeline, requests)
    if "-" not in (perfetto, requests):
        _report(console, timeline)
    return 0


def _load(file: str) -> Instance | Plan:
    if file.startswith("@"):
        return read_file(file)
    from opt.core.files import read

    return read(file)


def _run(
    thing: Instance | Plan,
    *,
    policy: str | None,
    cost: str | None,
    engine: str | None,
    locality: float | None,
    params: dict[str, Any],
    lengths: Any,
    round_s: str | None,
    until: float | None,
    seed: int,
) -> Timeline:
    from opt.core.cost import cost_model
    from opt.core.exact import rational
    from opt.sim import config, door

    settings = None if engine is None else config.read_engine(engine)
    name = cost or (settings.cost if settings is not None else None) or "unit"
    model = cost_model(name) if locality is None else cost_model(name).with_locality(locality)
    return door.simulate(
        thing,
        policy,
        model,
        engine=settings,
        seed=seed,
        lengths=lengths,
        until_s=until,
        round_s=None if round_s is None else float(rational("--round-s", round_s)),
        **params,
    )


def _run_pools(thing: Instance | Plan, pools: str, router: str, **options: Any) -> Timeline:
    """Run a cluster, whose file says what its nodes are: options of a single engine are refused."""
    from opt.core.exact import rational
    from opt.core.files import Plan
    from opt.serve.cluster import read_pools, simulate_pools

    for name in ("policy", "cost", "engine", "locality", "until"):
        if options[name] is not None:
            raise click.UsageError(f"--{name} does not go with --pools: its file says what every node is, and all is served")
    round_s = options["round_s"]
    return simulate_pools(
        thing.instance if isinstance(thing, Plan) else thing,
        read_pools(pools),
        router,
        seed=options["seed"],
        lengths=options["lengths"],
        round_s=None if round_s is None else float(rational("--round-s", round_s)),
        **options["params"],
    )


def _report(console: Console, timeline: Timeline) -> None:
    """Print the contract's keys as JSON, or the same figures as tables."""
    found = timeline.metrics
    head = {"name": timeline.instance.name, "memory": timeline.instance.memory, "n": timeline.instance.n}
    for note in timeline.notes:
        console.note(f"warning: {note}")
    if found["saturated"]:
        console.note("warning: saturated: the queue grows while requests arrive, so latencies depend on the trace's length")
    if console.as_json:
        what = "router" if "parts" in found else "policy"
        made = {what: timeline.policy, "params": dict(timeline.params), "cost": timeline.cost, "seed": timeline.seed}
        console.document({"instance": head, **made, **found, "notes": list(timeline.notes)})
        return
    facts = {
        "instance": f"{head['name'] or '(unnamed)'}: {head['n']:,} requests",
        "router" if "parts" in found else "policy": timeline.policy,
        "cost": timeline.cost,
    }
    console.facts(facts | {name: cell for name, cell in found.items() if not isinstance(cell, dict)})
    columns = ["mean", "p50", "p95", "p99", "max"]
    curves = {**{name: found[name] for name in CURVES}, **found.get("parts", {})}
    console.table(["seconds", *columns], [[name.replace("_", " "), *cell.values()] for name, cell in curves.items()])
