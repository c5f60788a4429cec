"""The verb that says how many tokens of KV cache a GPU has room for: capacity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from opt.cli.console import Console, verb

if TYPE_CHECKING:
    from opt.core.capacity import Gpu, Model

__all__ = ["capacity"]

DTYPE = click.Choice(["bf16", "fp16", "fp8"], case_sensitive=False)
WHOLE = click.IntRange(1)


@click.command()
@click.option("--model", metavar="M", help="A name from `kvopt list models`; case does not matter.")
@click.option("--gpu", metavar="G", help="A name from `kvopt list gpus`; case does not matter.")
@click.option("--tp", type=WHOLE, default=1, show_default=True, help="GPUs of a tensor-parallel group.")
@click.option("--dtype", type=DTYPE, default="bf16", show_default=True, help="Of the weights.")
@click.option("--kv-dtype", type=DTYPE, help="Of the cache; 16 bits by default, beside fp8 weights too.")
@click.option("--utilization", default="0.9", show_default=True, metavar="X", help="Share of the GPU's memory to use.")
@click.option("--reserve-gib", default="1.25", show_default=True, metavar="X", help="Kept for activations and graphs, a GPU.")
@click.option("--block", type=WHOLE, default=16, show_default=True, help="Tokens of a block; 1 does not round.")
@click.option("--params-b", metavar="X", help="Your own model: parameters in billions,")
@click.option("--layers", type=WHOLE, help="attention layers,")
@click.option("--kv-heads", type=WHOLE, help="KV heads of a layer,")
@click.option("--head-dim", type=WHOLE, help="and the dimension of a head.")
@click.option("--gpu-gib", metavar="X", help="Your own GPU: memory in GiB, as its driver reports it.")
@verb
def capacity(console: Console, model: str | None, gpu: str | None, gpu_gib: str | None, **options: Any) -> None:
    """Show the KV budget of a model on its GPUs, with the arithmetic.

    Use it as the memory of an instance. A budget of 0 or less is an error.

    \b
    kvopt capacity --model Llama-3.1-8B --gpu H100-80
    kvopt capacity --model Llama-2-70b --gpu A100-80 --tp 4 --kv-dtype fp8
    kvopt capacity --params-b 8.03 --layers 32 --kv-heads 8 --head-dim 128 --gpu-gib 79.1
    """
    from opt.core import capacity as core

    own = {key: options.pop(key) for key in ("params_b", "layers", "kv_heads", "head_dim")}
    model_name, chosen_model = _model(model, own)
    gpu_name, chosen_gpu = _gpu(gpu, gpu_gib)
    found = core.capacity(chosen_model, chosen_gpu, **options)
    if not console.as_json:
        console.facts({"model": model_name, "GPU": f"{options['tp']} x {gpu_name}", **found.lines, "KV budget": found.tokens})
        return
    console.document(
        {
            "model": model_name,
            "gpu": gpu_name,
            "tp": found.tp,
            "dtype": options["dtype"],
            "kv_dtype": options["kv_dtype"] or ("bf16" if options["dtype"] == "fp8" else options["dtype"]),
            "utilization": float(found.utilization),
            "memory_bytes": found.memory,
            "usable_bytes": found.usable,
            "weight_bytes": found.weights,
            "reserve_bytes": found.reserve,
            "kv_cache_bytes": found.cache,
            "kv_bytes_per_token": found.per_token,
            "block": found.block,
            "tokens": found.tokens,
            "arithmetic": found.lines,
        }
    )


def _model(name: str | None, own: dict[str, Any]) -> tuple[str, Model]:
    """Return the model asked for: a name from the table, or all four numbers of one's own."""
    from opt.core.capacity import MODELS, Model, parameters_of

    missing = [f"--{key.replace('_', '-')}" for key, value in own.items() if value is None]
    if (name is None) == (len(missing) == len(own)):
        raise click.UsageError("give --model, or --params-b, --layers, --kv-heads and --head-dim of your own")
    if name is not None:
        return _known("model", name, MODELS)
    if missing:
        raise click.UsageError(f"a model of your own needs {', '.join(missing)} too")
    return "own", Model(parameters_of(own["params_b"]), own["layers"], own["kv_heads"], own["head_dim"])


def _gpu(name: str | None, gib: str | None) -> tuple[str, Gpu]:
    from opt.core.capacity import GPUS, Gpu, gibibytes

    if (name is None) == (gib is None):
        raise click.UsageError("give --gpu, or --gpu-gib of your own")
    return _known("gpu", name, GPUS) if name is not None else ("own", Gpu(gibibytes(gib or "0")))


def _known(kind: str, name: str, table: dict[str, Any]) -> tuple[str, Any]:
    """Return the entry a name stands for; a typo is a usage error with the closest names."""
    import difflib

    from opt.core.capacity import named

    key = named(table, name)
    if key is not None:
        return key, table[key]
    plain = {known.lower(): known for known in table}
    close = [plain[match] for match in difflib.get_close_matches(name.lower(), plain, 3, cutoff=0.5)]
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise click.UsageError(f"--{kind}: {name!r} is not known{hint} (`kvopt list {kind}s` shows all)")
