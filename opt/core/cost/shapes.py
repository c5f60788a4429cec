"""Sizes of dense transformer layers, from public config.json files: which rows of an operator table are a model's."""

from __future__ import annotations

from dataclasses import dataclass

from opt.core.capacity import named
from opt.core.errors import InstanceError

__all__ = ["SHAPES", "Shape", "shape_of"]


@dataclass(frozen=True)
class Shape:
    """The matrices of a model.

    Args:
        hidden, ffn: width of a layer and of its feed-forward part.
        heads, kv_heads, head_dim: query heads, key-value heads and their dimension.
        layers: how many.
        vocab: tokens of the vocabulary.
        tied: whether input and output embeddings are one matrix.
        gated: whether the feed-forward part has a gate beside its up projection.
    """

    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    layers: int
    vocab: int
    head_dim: int = 128
    tied: bool = False
    gated: bool = True

    @property
    def layer_parameters(self) -> int:
        """The parameters of all layers' matrices: what a token is multiplied with, output embedding left out."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return self.layers * (attention + (3 if self.gated else 2) * self.hidden * self.ffn)

    def projections(self, tp: int) -> list[tuple[int, int]]:
        """The (n, k) of the matrix products of one layer on one of `tp` GPUs: QKV, output, gate and up, down."""
        heads, kv_heads = self.heads // tp, max(self.kv_heads // tp, 1)
        qkv = (heads + 2 * kv_heads) * self.head_dim
        inner = self.ffn // tp
        up = (2 if self.gated else 1) * inner
        return [(qkv, self.hidden), (self.hidden, heads * self.head_dim), (up, self.hidden), (self.hidden, inner)]


SHAPES: dict[str, Shape] = {
    "Llama-2-7b": Shape(4096, 11008, 32, 32, 32, 32000),
    "Llama-2-13b": Shape(5120, 13824, 40, 40, 40, 32000),
    "Llama-2-70b": Shape(8192, 28672, 64, 8, 80, 32000),
    "Llama-3-8B": Shape(4096, 14336, 32, 8, 32, 128256),
    "Llama-3-70B": Shape(8192, 28672, 64, 8, 80, 128256),
    "CodeLlama-34b": Shape(8192, 22016, 64, 8, 48, 32000),
    "Mistral-7B": Shape(4096, 14336, 32, 8, 32, 32000),
    "Qwen2.5-14B": Shape(5120, 13824, 40, 8, 48, 152064),
    "Qwen2.5-32B": Shape(5120, 27648, 40, 8, 64, 152064),
    "Qwen2.5-72B": Shape(8192, 29568, 64, 8, 80, 152064),
    "Qwen3-8B": Shape(4096, 12288, 32, 8, 36, 151936),
    "Qwen3-14B": Shape(5120, 17408, 40, 8, 40, 151936),
    "Qwen3-32B": Shape(5120, 25600, 64, 8, 64, 151936),
    "OPT-13B": Shape(5120, 20480, 40, 40, 40, 50272, tied=True, gated=False),
    "OPT-66B": Shape(9216, 36864, 72, 72, 64, 50272, tied=True, gated=False),
}
SAME = {"Llama-3.1-8B": "Llama-3-8B", "Llama-3.1-70B": "Llama-3-70B", "Llama-3.3-70B": "Llama-3-70B"}


def shape_of(model: str, tp: int = 1) -> Shape:
    """Return the sizes of a model by its name, and check that `tp` GPUs divide it.

    Raises:
        InstanceError: not known, or `tp` does not divide heads and feed-forward width.
    """
    name = named({**SHAPES, **SAME}, model)
    if name is None:
        raise InstanceError(f"model {model!r}: its layer sizes are not known here; known: {', '.join([*SHAPES, *SAME])}")
    shape = SHAPES[SAME.get(name, name)]
    if tp < 1 or shape.heads % tp or shape.ffn % tp or (shape.kv_heads % tp and tp % shape.kv_heads):
        raise InstanceError(f"tp = {tp}: must divide the {shape.heads} heads and the feed-forward width {shape.ffn} of {name}")
    return shape
