"""How each preset is made: from which public tables, or from which published coefficients.

`python -m opt.fit.recipes FOLDER` makes them all again from the tables under `KVOPT_DATA` and writes them to FOLDER.
Where a rate depends on the device, matrix products and attention are of the device itself; norms, rotary, activation and
residual (under 5 % of an iteration) are Vidur's for the same device, H100's for an H200.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from opt.core.capacity import GPUS, MODELS, capacity
from opt.core.cost.files import write_cost
from opt.core.cost.model import CostModel
from opt.core.errors import InstanceError
from opt.fit.models import Setting, fit_tables, setting
from opt.fit.operators import Dense
from opt.fit.tables import Table, read_table

__all__ = ["PUBLISHED", "RECIPES", "Recipe", "data_folder", "make"]

VARIABLE = "KVOPT_DATA"
VLLM, SGLANG = "vllm-0.14.0", "sglang-0.5.10"
A100_CHUNKS = "vidur/profiling/a100/attention_64q8kv_tp2_e2d00e9a.csv.gz"


@dataclass(frozen=True)
class Recipe:
    """The tables of a preset.

    Args:
        gpu, model, tp: the machine.
        files: paths under the folder of public data.
        engine: whose kernels were measured.
        dense: as in `fit_tables`.
    """

    gpu: str
    model: str
    tp: int
    files: Sequence[str]
    engine: str
    dense: Dense = "auto"

    def tables(self, folder: Path) -> list[Table]:
        """Return the tables, read from the folder of public data."""
        return [read_table(folder / file) for file in self.files]

    def setting(self, folder: Path) -> Setting:
        """Return the measured parts."""
        return setting(self.tables(folder), model=self.model, gpu=self.gpu, tp=self.tp, dense=self.dense)


def _aic(card: str, decode: str = VLLM, products: str = SGLANG) -> list[str]:
    """Return aiconfigurator's tables of a card; all measured the same cuBLAS products, SGLang's at more sizes."""
    parts = ((VLLM, "context_attention"), (decode, "generation_attention"), (products, "gemm"), (VLLM, "allreduce"))
    return [f"aiconfigurator/{card}_sxm/{engine}_{part}.csv.gz" for engine, part in parts]


def _mlp(folder: str) -> str:
    return f"vidur/profiling/{folder}/mlp.csv.gz"


def _joint(card: str) -> list[str]:
    parts = ("attention", "dense", "per_sequence")
    return [f"llmservingsim/{card}_Llama-3.1-8B_bf16_tp1_{part}.csv.gz" for part in parts]


MIXED = "vLLM 0.14 attention (aiconfigurator), Vidur 2024 dense layers"
AIC = "vLLM 0.14 attention, cuBLAS products (aiconfigurator)"
H100_SMALL, H100_LARGE = _mlp("h100/Llama-2-7b-hf"), _mlp("h100/Llama-2-70b-hf")
A100_LARGE = _mlp("a100/Llama-2-70b-hf")

RECIPES: dict[str, Recipe] = {
    "a100-llama-2-7b": Recipe("A100-80", "Llama-2-7b", 1, [_mlp("a100/Llama-2-7b-hf"), *_aic("a100")], MIXED),
    "a100-llama-3-8b": Recipe("A100-80", "Llama-3-8B", 1, [_mlp("a100/Meta-Llama-3-8B"), *_aic("a100")], MIXED),
    "a100-llama-3-70b-tp4": Recipe("A100-80", "Llama-3-70B", 4, [_mlp("a100/Meta-Llama-3-70B"), *_aic("a100")], MIXED),
    "a100-codellama-34b-tp2": Recipe(
        *("A100-80", "CodeLlama-34b", 2),
        [_mlp("a100/CodeLlama-34b-Instruct-hf"), A100_CHUNKS, *_aic("a100")],
        "FlashAttention 2 in chunks with context, dense layers (Vidur 2024)",
    ),
    "a100-qwen3-32b-tp2": Recipe("A100-80", "Qwen3-32B", 2, [A100_LARGE, *_aic("a100")], AIC, "products"),
    "h100-llama-2-7b": Recipe(
        *("H100-80", "Llama-2-7b", 1), [H100_SMALL, *_aic("h100", SGLANG)], MIXED.replace("attention", "and SGLang attention", 1)
    ),
    "h100-llama-3-8b": Recipe("H100-80", "Llama-3-8B", 1, [H100_SMALL, *_aic("h100")], AIC, "products"),
    "h100-llama-2-70b-tp4": Recipe("H100-80", "Llama-2-70b", 4, [H100_LARGE, *_aic("h100")], MIXED),
    "h100-llama-3-70b-tp4": Recipe("H100-80", "Llama-3-70B", 4, [H100_LARGE, *_aic("h100")], AIC, "products"),
    "h100-qwen3-32b-tp2": Recipe("H100-80", "Qwen3-32B", 2, [H100_LARGE, *_aic("h100")], AIC, "products"),
    "h200-llama-3-8b": Recipe("H200-141", "Llama-3-8B", 1, [H100_SMALL, *_aic("h200")], AIC, "products"),
    "h200-llama-3-70b-tp4": Recipe("H200-141", "Llama-3-70B", 4, [H100_LARGE, *_aic("h200")], AIC, "products"),
    "h200-qwen3-32b": Recipe("H200-141", "Qwen3-32B", 1, [H100_LARGE, *_aic("h200")], AIC, "products"),
    "rtx-4090-llama-3.1-8b": Recipe("RTX-4090", "Llama-3.1-8B", 1, _joint("RTX4090"), "vLLM 0.19, layers in eager mode"),
    "rtx-pro-6000-llama-3.1-8b": Recipe(
        *("RTX-PRO-6000", "Llama-3.1-8B", 1), _joint("RTXPRO6000"), "vLLM 0.19, layers in eager mode"
    ),
}

LICENCES: dict[str, str] = {
    "vidur": "microsoft/vidur, MIT",
    "aiconfigurator": "ai-dynamo/aiconfigurator, Apache-2.0",
    "llmservingsim": "casys-kaist/LLMServingSim, MIT",
}


def data_folder() -> Path:
    """Return the folder of public data.

    Raises:
        InstanceError: the environment variable that names it is not set, or names no folder.
    """
    folder = os.environ.get(VARIABLE)
    if not folder or not Path(folder).is_dir():
        raise InstanceError(f"the public tables are needed: set {VARIABLE} to the folder that holds them")
    return Path(folder)


def make(name: str, folder: Path) -> CostModel:
    """Return a preset, fitted again from the tables or set down from its publication."""
    if name in PUBLISHED:
        return PUBLISHED[name]
    recipe = RECIPES[name]
    used = sorted({LICENCES[file.split("/")[0]] for file in recipe.files})
    joint = "mixed batches measured as such" if name.startswith("rtx-") else "mixed batches taken as the sum of their parts"
    origin = {"source": "; ".join(used), "method": f"sums of measured kernel times, {joint}; no host time or launch gaps"}
    tables = recipe.tables(folder)
    fit = partial(fit_tables, tables, "piecewise", model=recipe.model, gpu=recipe.gpu, tp=recipe.tp, dense=recipe.dense)
    return fit(name=name, engine=recipe.engine, origin=origin)


# Coefficients that others published, in milliseconds as they stand there.

MS = 1e-3


def _published(
    name: str,
    terms: Mapping[str, float],
    machine: Mapping[str, object],
    source: str,
    *,
    memory: int | None = None,
    knee: float = 0.0,
) -> CostModel:
    seconds = {term: float(f"{value * MS:.10g}") for term, value in terms.items()}
    return CostModel(name, "linear", seconds, memory=memory, machine=machine, origin={"source": source}, decode_knee=knee)


def _per_square(square: float, token: float) -> dict[str, float]:
    """Return the terms of `token * L + square * L^2`: L tokens have L(L+1)/2 pairs."""
    return {"per_pair": 2 * square, "per_prefill_token": token - square}


DISTSERVE = (
    "DistServe (arXiv 2401.09670), simdistserve's profile of its own engine; phases measured apart, so a mixed batch is our "
    "reading: the base of the prefill counts once, and the decode adds what its own exceeds it by"
)
CLOSED_LOOP = "linear fit to closed-loop averages of public serving runs in FP8; no per-iteration data behind it"

PUBLISHED: dict[str, CostModel] = {
    model.name: model
    for model in (
        _published(
            "distserve-opt-13b-a100",
            # Above 95 decodes the source switches to 7.166 + 0.15831 B; the two lines cross at 106.6.
            {"base": 16.457, "decode_base": 3.478, "per_decode": 0.03851, "per_decode_above": 0.1198, "per_kv_token": 6.269e-4}
            | _per_square(6.475e-6, 0.09265),
            {"gpu": "A100-80", "model": "OPT-13B", "tp": 1, "dtype": "fp16", "engine": "DistServe 2024"},
            DISTSERVE,
            memory=capacity(MODELS["OPT-13B"], GPUS["A100-80"]).tokens,
            knee=106.6,
        ),
        _published(
            "distserve-opt-66b-tp4-a100",
            {"base": 26.765, "decode_base": 3.995, "per_decode": 0.06328, "per_kv_token": 4.520e-4}
            | _per_square(7.561e-6, 0.13759),
            {"gpu": "A100-80", "model": "OPT-66B", "tp": 4, "dtype": "fp16", "engine": "DistServe 2024"},
            DISTSERVE,
            memory=capacity(MODELS["OPT-66B"], GPUS["A100-80"], tp=4).tokens,
        ),
        _published(
            "sloweave-synthetic",
            {"base": 0.35, "decode_base": 0.90, "per_decode": 0.055, "prefill_base": 0.40, "per_prefill_token": 0.006},
            {"gpu": "A100-80", "model": "Llama-3-8B", "tp": 1, "engine": "simulator"},
            "SLOWeave (arXiv 2609.07883), the synthetic step of its simulator; machine: that of its experiments",
        ),
        _published(
            "h100-llama-3.1-8b-fp8",
            {"base": 4.39, "prefill_base": 3.51, "per_decode": 0.0074, "per_kv_token": 2.85e-5} | _per_square(4.25e-7, 0.0114),
            {"gpu": "H100-80", "model": "Llama-3.1-8B", "tp": 1, "dtype": "fp8", "kv_dtype": "bf16"},
            CLOSED_LOOP,
            memory=capacity(MODELS["Llama-3.1-8B"], GPUS["H100-80"], dtype="fp8").tokens,
        ),
        _published(
            "h100-llama-3.3-70b-fp8-tp2",
            {"base": 16.6, "decode_base": 1.6, "per_decode": 0.0160, "per_kv_token": 6.48e-5} | _per_square(1.28e-6, 0.0666),
            {"gpu": "H100-80", "model": "Llama-3.3-70B", "tp": 2, "dtype": "fp8", "kv_dtype": "bf16"},
            CLOSED_LOOP,
            memory=capacity(MODELS["Llama-3.3-70B"], GPUS["H100-80"], tp=2, dtype="fp8").tokens,
        ),
    )
}


def main(folder: str) -> None:
    """Write every preset to a folder."""
    for name in (*RECIPES, *PUBLISHED):
        write_cost(make(name, data_folder()), Path(folder) / f"{name}.json")


if __name__ == "__main__":
    main(sys.argv[1])
