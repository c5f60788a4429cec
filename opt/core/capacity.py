"""The KV budget in tokens of a model on its GPUs, with the arithmetic: where an instance's `memory` comes from.

A GPU holds its share of the weights, a reserve (activations, captured graphs, communication buffers) and the KV cache.
Per token and GPU the cache takes `2 * layers * kv_heads * head_dim * bytes`, the KV heads divided among the GPUs of a
tensor-parallel group, one copy each where there are more GPUs than heads. Every GPU of a group holds its part of the
same tokens, so the budget of one is the budget of all. Everything is exact in bytes; only the reserve is a guess.

What an engine itself reports, against this module's default reserve of 1.25 GiB:

* vLLM 0.19, Llama-3.1-8B in bf16 on one RTX 4090 (25,250,627,584 bytes as CUDA reports them, utilisation 0.9, 2,048
  batched tokens): 2,588 blocks of 16 = 41,408 tokens. Here: 40,608. The engine kept 1,237,612,953 bytes (1.15 GiB).
* vLLM pull request 10511, Llama-3-8B on one 79.22 GiB GPU: 14.96 GiB of weights (here too), 1.79 GiB outside torch and
  1.26 GiB of activations, 53.29 GiB for the cache; with tp 2: 7.48 GiB of weights, as here, but 3.58 + 1.26 GiB.
* vLLM issue 10517, Llama-3.1-8B on one RTX 3090 with 20,000 batched tokens: 2.07 + 0.35 GiB, 1,952 blocks.

So the reserve grows with the batched tokens, the vocabulary, and what else sits on the GPU: pass the engine's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeAlias, TypeVar

__all__ = ["BYTES", "GPUS", "MODELS", "Capacity", "Gpu", "Model", "capacity", "gibibytes", "named", "parameters_of"]

GIB = 2**30
BYTES = {"bf16": 2, "fp16": 2, "fp8": 1}
RESERVE_GIB = "1.25"
BLOCK = 16

Amount: TypeAlias = int | float | str | Fraction
Entry = TypeVar("Entry")


@dataclass(frozen=True)
class Model:
    """What the KV cache and the weights depend on.

    Args:
        parameters: of the whole model; for mixtures of experts all experts, since all are loaded.
        layers: attention layers.
        kv_heads, head_dim: key-value heads of a layer and the dimension of each. With multi-head latent attention one
            vector of `head_dim` (latent and rotary parts together) stands for keys and values of all heads.
        latent: whether that is so. Such a cache is not divided among GPUs: each holds a copy.
    """

    parameters: int
    layers: int
    kv_heads: int
    head_dim: int
    latent: bool = False

    @property
    def kv_summary(self) -> str:
        """The cache of a token in words, undivided and in 16 bits."""
        heads = "latent attention" if self.latent else f"{self.kv_heads} KV heads of {self.head_dim}"
        return f"{self.layers} layers, {heads}: {_per_token(self, 1, 2):,} bytes a token"


@dataclass(frozen=True)
class Gpu:
    """A GPU: `memory` in bytes as its driver reports it to a program, which is less than on the box."""

    memory: int
    note: str = ""


def gibibytes(amount: Amount) -> int:
    """Return an amount in GiB as bytes, rounded down. Decimal text is taken exactly.

    >>> gibibytes("1.25")
    1342177280
    """
    return int(_exact("GiB", amount) * GIB)


def _exact(name: str, amount: Amount) -> Fraction:
    try:
        value = Fraction(str(amount))
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name} = {amount!r}: must be a number") from None
    if value < 0:
        raise ValueError(f"{name} = {amount}: must not be negative")
    return value


def parameters_of(billions: Amount) -> int:
    """Return a number of parameters given in billions.

    >>> parameters_of("8.03")
    8030000000
    """
    return int(_exact("params_b", billions) * 10**9)


# Public model cards and config.json files. `parameters` counts every tensor of the checkpoint (tied ones once); the
# tests count them again from hidden size, layers, heads and vocabulary.
MODELS: dict[str, Model] = {
    "Llama-2-7b": Model(6_738_415_616, 32, 32, 128),
    "Llama-2-13b": Model(13_015_864_320, 40, 40, 128),
    "Llama-2-70b": Model(68_976_648_192, 80, 8, 128),
    "Llama-3-8B": Model(8_030_261_248, 32, 8, 128),
    "Llama-3-70B": Model(70_553_706_496, 80, 8, 128),
    "Llama-3.1-8B": Model(8_030_261_248, 32, 8, 128),
    "Llama-3.1-70B": Model(70_553_706_496, 80, 8, 128),
    "Llama-3.1-405B": Model(405_853_388_800, 126, 8, 128),
    "Llama-3.2-1B": Model(1_235_814_400, 16, 8, 64),
    "Llama-3.2-3B": Model(3_212_749_824, 28, 8, 128),
    "Llama-3.3-70B": Model(70_553_706_496, 80, 8, 128),
    "CodeLlama-34b": Model(33_743_970_304, 48, 8, 128),
    "Mistral-7B": Model(7_241_732_096, 32, 8, 128),
    "Mixtral-8x7B": Model(46_702_792_704, 32, 8, 128),
    "Qwen2.5-7B": Model(7_615_616_512, 28, 4, 128),
    "Qwen2.5-14B": Model(14_770_033_664, 48, 8, 128),
    "Qwen2.5-32B": Model(32_763_876_352, 64, 8, 128),
    "Qwen2.5-72B": Model(72_706_203_648, 80, 8, 128),
    "Qwen3-8B": Model(8_190_735_360, 36, 8, 128),
    "Qwen3-14B": Model(14_768_307_200, 40, 8, 128),
    "Qwen3-32B": Model(32_762_123_264, 64, 8, 128),
    "Qwen3-30B-A3B": Model(30_532_122_624, 48, 4, 128),
    "DeepSeek-V2-Lite": Model(15_706_484_224, 27, 1, 576, latent=True),
    "OPT-6.7B": Model(6_658_473_984, 32, 32, 128),
    "OPT-13B": Model(12_853_473_280, 40, 40, 128),
    "OPT-66B": Model(65_719_701_504, 64, 72, 128),
}

# Total memory as CUDA or HIP reports it, from out-of-memory and profiling messages in public issues and logs; the note
# gives the range seen (it varies a little with board, error correction and driver).
GPUS: dict[str, Gpu] = {
    "A100-40": Gpu(gibibytes("39.50"), "A100 40 GB; 39.39 to 39.59 GiB"),
    "A100-80": Gpu(gibibytes("79.22"), "A100 80 GB; 79.14 to 79.25 GiB"),
    "H100-80": Gpu(gibibytes("79.11"), "H100 80 GB; 79.10 to 79.19 GiB"),
    "H200-141": Gpu(gibibytes("139.80"), "H200 141 GB; 139.72 to 139.81 GiB"),
    "B200": Gpu(gibibytes("178.35"), "B200 180 GB; pytorch/ao pull request 4002"),
    "L4": Gpu(gibibytes("22.03"), "L4 24 GB; about 22.0 GiB"),
    "L40S": Gpu(gibibytes("44.40"), "L40S 48 GB; 44.34 to 44.42 GiB"),
    "A10": Gpu(gibibytes("22.06"), "A10, A10G 24 GB; about 22.1 GiB"),
    "RTX-3090": Gpu(gibibytes("23.58"), "GeForce RTX 3090 24 GB; 23.56 to 23.58 GiB"),
    "RTX-4090": Gpu(25_250_627_584, "GeForce RTX 4090 24 GB; 23.52 to 23.68 GiB"),
    "RTX-PRO-6000": Gpu(gibibytes("94.97"), "RTX PRO 6000 Blackwell 96 GB; antirez/ds4 issue 431"),
    "MI300X": Gpu(gibibytes("191.98"), "Instinct MI300X 192 GB; 191.69 to 191.98 GiB"),
}

SUFFIXES = re.compile(r"(-hf|-chat|-instruct|-base|-it|-v0\.\d|gb)+$")


def named(table: Mapping[str, Entry], name: str) -> str | None:
    """Return the key of `table` that `name` stands for, or None.

    Case, punctuation, an owner in front (`meta-llama/`) and endings such as `-Instruct`, `-hf` or `GB` do not matter, and
    a beginning is enough for a GPU when nothing else begins so (`h100`, not `a100`).
    """
    keys = {_plain(key): key for key in table}
    wanted = _plain(name)
    if wanted in keys:
        return keys[wanted]
    longer = [key for plain, key in keys.items() if wanted and plain.startswith(wanted) and isinstance(table[key], Gpu)]
    return longer[0] if len(longer) == 1 else None


def _plain(name: str) -> str:
    tail = SUFFIXES.sub("", name.rsplit("/", 1)[-1].strip().lower())
    return re.sub(r"[^a-z0-9.]", "", re.sub(r"^(meta|nvidia|geforce|amd|instinct)[- ]", "", tail))


@dataclass(frozen=True)
class Capacity:
    """A KV budget and where it comes from; all amounts in bytes for one GPU of the tensor-parallel group.

    `tokens` is the budget: `unrounded` (what `cache` bytes hold) down to whole blocks. Use it as an instance's `memory`.
    """

    model: Model
    tp: int
    weight_bytes: int
    kv_bytes: int
    memory: int
    utilization: Fraction
    usable: int
    weights: int
    reserve: int
    cache: int
    per_token: int
    unrounded: int
    block: int
    tokens: int

    @property
    def lines(self) -> dict[str, str]:
        """The arithmetic, one step a line."""
        model, share = self.model, f" / {self.tp} GPUs" if self.tp > 1 else ""
        if model.latent:
            heads = f"{model.head_dim} latent and rotary"
        else:
            mine = max(model.kv_heads // self.tp, 1)
            heads = f"2 x {mine}{f' of {model.kv_heads}' if mine < model.kv_heads else ''} KV heads x {model.head_dim}"
        return {
            "GPU memory": f"{_shown(self.memory)} a GPU ({self.memory:,} bytes)",
            "usable": f"{_shown(self.memory)} x {float(self.utilization):g} = {_shown(self.usable)}",
            "weights": f"{model.parameters:,} parameters x {self.weight_bytes} bytes{share} = {_shown(self.weights)}",
            "reserve": f"{_shown(self.reserve)} for activations, captured graphs and communication",
            "KV cache": f"{_shown(self.usable)} - {_shown(self.weights)} - {_shown(self.reserve)} = {_shown(self.cache)}",
            "bytes per token": f"{model.layers} layers x {heads} x {self.kv_bytes} bytes = {self.per_token:,}",
            "tokens": f"{self.cache:,} / {self.per_token:,} = {self.unrounded:,}, in blocks of {self.block}: {self.tokens:,}",
        }


def capacity(
    model: Model,
    gpu: Gpu,
    *,
    tp: int = 1,
    dtype: str = "bf16",
    kv_dtype: str | None = None,
    utilization: Amount = "0.9",
    reserve_gib: Amount = RESERVE_GIB,
    block: int = BLOCK,
) -> Capacity:
    """Return the KV budget of a model on one GPU, or on each of `tp` GPUs that hold it together.

    Args:
        model, gpu: entries of `MODELS` and `GPUS`, or your own.
        tp: GPUs of the tensor-parallel group; it divides the KV heads or is a multiple of them.
        dtype: of the weights, a name in `BYTES`. fp8 counts every parameter as one byte.
        kv_dtype: of the cache; two bytes unless "fp8" is asked for (engines keep 16 bits beside fp8 weights).
        utilization: share of the GPU's memory that the engine may use, above 0 and up to 1.
        reserve_gib: what the engine keeps on each GPU besides weights and cache, in GiB.
        block: tokens of a cache block; the budget is rounded down to whole blocks.

    Raises:
        ValueError: a value is out of range, or nothing is left for the cache: then the message has the arithmetic.

    >>> capacity(MODELS["Llama-3.1-8B"], GPUS["RTX-4090"]).tokens
    40608
    """
    kv_dtype = kv_dtype or ("bf16" if dtype == "fp8" else dtype)
    _check(model, tp, dtype, kv_dtype, block)
    share = _exact("utilization", utilization)
    if not 0 < share <= 1:
        raise ValueError(f"utilization = {utilization}: must be above 0 and at most 1")
    measure = partial(_measure, model, gpu, BYTES[dtype], BYTES[kv_dtype], share, gibibytes(reserve_gib), block)
    found = measure(tp)
    if found.tokens <= 0:
        enough = (more for more in (2, 4, 8, 16, 32, 64) if more > tp and _divides(model, more) and measure(more).tokens)
        raise ValueError(_no_room(found, next(enough, None)))
    return found


def _measure(
    model: Model, gpu: Gpu, weight_bytes: int, kv_bytes: int, share: Fraction, reserve: int, block: int, tp: int
) -> Capacity:
    """Do the arithmetic, whether or not anything is left."""
    usable = int(gpu.memory * share)
    weights = -(-model.parameters * weight_bytes // tp)
    cache = usable - weights - reserve
    per_token = _per_token(model, tp, kv_bytes)
    unrounded = max(cache, 0) // per_token
    return Capacity(
        model=model,
        tp=tp,
        weight_bytes=weight_bytes,
        kv_bytes=kv_bytes,
        memory=gpu.memory,
        utilization=share,
        usable=usable,
        weights=weights,
        reserve=reserve,
        cache=cache,
        per_token=per_token,
        unrounded=unrounded,
        block=block,
        tokens=unrounded // block * block,
    )


def _no_room(found: Capacity, enough: int | None) -> str:
    """Return the arithmetic of a budget that is not there, in one line, with the least group of GPUs that would do."""
    steps = found.lines
    hint = f"tp {enough} leaves room" if enough else "take smaller weights, a larger GPU or more of it"
    return (
        f"no room for a KV cache: usable {steps['usable']}; weights {steps['weights']}; left {steps['KV cache']}, "
        f"less than a block of {found.block} tokens ({found.block * found.per_token:,} bytes); {hint}"
    )


def _per_token(model: Model, tp: int, size: int) -> int:
    """Return the bytes a token takes on each GPU."""
    if model.latent:
        return model.layers * model.head_dim * size
    return 2 * model.layers * max(model.kv_heads // tp, 1) * model.head_dim * size


def _check(model: Model, tp: int, dtype: str, kv_dtype: str, block: int) -> None:
    for name, value in (("dtype", dtype), ("kv_dtype", kv_dtype)):
        if value not in BYTES:
            raise ValueError(f"{name} = {value!r}: must be one of {', '.join(BYTES)}")
    sizes = {"layers": model.layers, "kv_heads": model.kv_heads, "head_dim": model.head_dim, "parameters": model.parameters}
    for name, size in {**sizes, "tp": tp, "block": block}.items():
        if size < 1:
            raise ValueError(f"{name} = {size}: must be at least 1")
    if not _divides(model, tp):
        raise ValueError(f"tp = {tp}: must divide the {model.kv_heads} KV heads, or be a multiple of them")


def _divides(model: Model, tp: int) -> bool:
    return model.latent or model.kv_heads % tp == 0 or tp % model.kv_heads == 0


def _shown(size: int) -> str:
    return f"{size / GIB:,.2f} GiB"
