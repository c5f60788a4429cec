"""A model small enough to serve on a CPU, with random weights, and requests for it: to try the real engines without a GPU."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from opt.core.instance import Instance

__all__ = ["TINY", "VOCABULARY", "backlog", "prompt_tokens", "write_model"]

VOCABULARY = 1000
TINY: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "torch_dtype": "float32",
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def write_model(folder: Path, shape: Mapping[str, Any] = TINY) -> str:
    """Write the configuration of a small Llama, which is all that dummy weights need, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(shape)))
    return str(folder)


def backlog(n: int, blocks: int, block_size: int, seed: int = 0) -> Instance:
    """Return a backlog of mixed lengths: a third long outputs, the rest short, prompts of 8 to 160 tokens."""
    rng = np.random.default_rng(seed)
    output = np.where(rng.random(n) < 1 / 3, rng.integers(60, 140, n), rng.integers(4, 30, n))
    return Instance(blocks * block_size, rng.integers(8, 160, n), output, name="backlog")


def prompt_tokens(instance: Instance, i: int) -> list[int]:
    """Return the tokens of a prompt: those of a chunk follow from its hash."""
    size = int(instance.prompt[i])
    if instance.prefix_ids is None or instance.prefix_offsets is None or instance.prefix_chunk is None:
        alone: list[int] = np.random.default_rng([1, i]).integers(3, VOCABULARY, size).tolist()
        return alone
    chunk = instance.prefix_chunk
    found: list[int] = []
    for name in instance.prefix_ids[instance.prefix_offsets[i] : instance.prefix_offsets[i + 1]].tolist():
        found += np.random.default_rng([2, name]).integers(3, VOCABULARY, chunk).tolist()
    return found[:size]
