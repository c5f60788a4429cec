"""A decoder-only transformer with random weights, and one iteration of it over a KV cache that is already there.

Only time matters: weights and cache hold small random numbers, contexts of one kind lie one after another in a pool, and
nothing is sampled. All matrix products, norms, rotary embeddings and attention of an iteration are done as an engine does
them, chunk and decodes together in every layer but apart in attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn.attention.bias import causal_lower_right
from torch.nn.functional import linear, rms_norm, scaled_dot_product_attention, silu

from opt.core.cost.shapes import Shape
from opt.measure.grid import Step

__all__ = ["Transformer"]

Layer = dict[str, torch.Tensor]


class Transformer:
    """Random weights of a `Shape` with `layers` layers, and a pool of `kv_tokens` tokens of KV cache for each.

    Args:
        shape: widths and heads.
        layers: how many.
        kv_tokens: tokens of the pool.
        device, dtype: where and in which precision.
        seed: of the weights.
    """

    def __init__(self, shape: Shape, *, layers: int, kv_tokens: int, device: torch.device, dtype: torch.dtype, seed: int) -> None:
        torch.manual_seed(seed)
        self.shape, self.width = shape, (shape.hidden,)
        self.options: dict[str, Any] = {"device": device, "dtype": dtype}
        self.layers = [self._layer() for _ in range(layers)]
        self.embedding = self._weight(shape.vocab, shape.hidden)
        self.logits = self.embedding if shape.tied else self._weight(shape.vocab, shape.hidden)
        pool = (layers, 2, kv_tokens, shape.kv_heads, shape.head_dim)
        self.pool = torch.empty(pool, **self.options).normal_(std=0.1)

    def _weight(self, *size: int) -> torch.Tensor:
        return torch.empty(size, **self.options).normal_(std=0.02)

    def _layer(self) -> Layer:
        shape = self.shape
        (qkv, _), (_, heads), (up, _), (_, inner) = shape.projections(1)
        return {
            "qkv": self._weight(qkv, shape.hidden),
            "out": self._weight(shape.hidden, heads),
            "up": self._weight(up, shape.hidden),
            "down": self._weight(shape.hidden, inner),
            "norms": torch.ones(2, shape.hidden, **self.options),
        }

    def run(self, step: Step, tokens: torch.Tensor, angles: torch.Tensor, *, once: bool) -> torch.Tensor:
        """Return the logits of an iteration: those of the chunk's last token and of all decodes.

        Args:
            step: what to do.
            tokens: (chunk + decodes,) token ids, the chunk first.
            angles: (chunk + decodes, 2, head_dim / 2) cosines and sines of their positions.
            once: whether decodes that share a context read it in one go, as a prefix-aware kernel does.
        """
        with torch.no_grad():
            hidden = self.embedding[tokens]
            for layer, pool in zip(self.layers, self.pool, strict=True):
                hidden = self._through(step, hidden, layer, angles, pool, once=once)
            last = hidden[step.chunk - 1 :] if step.chunk else hidden
            return linear(rms_norm(last, self.width), self.logits)

    def _through(
        self, step: Step, hidden: torch.Tensor, layer: Layer, angles: torch.Tensor, pool: torch.Tensor, *, once: bool
    ) -> torch.Tensor:
        """Return the hidden states (chunk + decodes, hidden) after a layer."""
        qkv = linear(rms_norm(hidden, self.width, layer["norms"][0]), layer["qkv"])
        hidden = hidden + linear(self._attention(step, qkv, angles, pool, once=once), layer["out"])
        raised = linear(rms_norm(hidden, self.width, layer["norms"][1]), layer["up"])
        return hidden + linear(self._activated(raised), layer["down"])

    def _activated(self, raised: torch.Tensor) -> torch.Tensor:
        if not self.shape.gated:
            return torch.relu(raised)
        gate, up = raised.chunk(2, dim=-1)
        return silu(gate) * up

    def _attention(self, step: Step, qkv: torch.Tensor, angles: torch.Tensor, pool: torch.Tensor, *, once: bool) -> torch.Tensor:
        shape = self.shape
        split = qkv.view(len(qkv), shape.heads + 2 * shape.kv_heads, shape.head_dim)
        query, key, value = split.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        query, key = _rotated(query, angles), _rotated(key, angles)
        parts = []
        if step.chunk:
            parts.append(self._chunk(step, query[: step.chunk], key[: step.chunk], value[: step.chunk], pool))
        if step.decodes:
            rest = slice(step.chunk, None)
            parts.append(self._decodes(step, query[rest], key[rest], value[rest], pool, once=once))
        return torch.cat(parts) if len(parts) > 1 else parts[0]

    def _chunk(self, step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pool: torch.Tensor) -> torch.Tensor:
        """Write the chunk's keys and values behind its context, and attend to both."""
        total = step.context + step.chunk
        pool[0, step.context : total], pool[1, step.context : total] = key, value
        keys, values = (part[:total].transpose(0, 1).unsqueeze(0) for part in pool)
        mask = causal_lower_right(step.chunk, total)
        found = scaled_dot_product_attention(query.transpose(0, 1).unsqueeze(0), keys, values, attn_mask=mask, enable_gqa=True)
        return found[0].transpose(0, 1).reshape(step.chunk, -1)

    def _decodes(
        self, step: Step, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, pool: torch.Tensor, *, once: bool
    ) -> torch.Tensor:
        """Write every context's newest key and value, and attend; a group's context lies in the pool once."""
        shape, groups, first = self.shape, step.decodes // step.group, step.context + step.chunk
        size = (2, groups, step.length, shape.kv_heads, shape.head_dim)
        cache = pool[:, first : first + groups * step.length].view(size)
        cache[0, :, -1], cache[1, :, -1] = key[:: step.group], value[:: step.group]
        keys, values = (part.transpose(1, 2) for part in cache)  # (groups, kv_heads, length, head_dim)
        rows = query.view(groups, step.group, shape.heads, shape.head_dim)
        if once:  # the sharers are the rows of one query
            found = scaled_dot_product_attention(rows.transpose(1, 2), keys, values, enable_gqa=True).transpose(1, 2)
        elif step.group == 1:
            found = scaled_dot_product_attention(rows.transpose(1, 2), keys, values, enable_gqa=True)
        else:  # an ordinary batch for each group, all of whose contexts are the same memory
            ones = rows.unsqueeze(3)
            copies = ((part.expand(step.group, *part.shape) for part in pair) for pair in zip(keys, values, strict=True))
            parts = [
                scaled_dot_product_attention(one, key, value, enable_gqa=True)
                for one, (key, value) in zip(ones, copies, strict=True)
            ]
            found = torch.stack(parts)
        return found.reshape(step.decodes, -1)


def _rotated(heads: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Return heads (n, heads, head_dim) turned by the angles of their positions."""
    left, right = heads.chunk(2, dim=-1)
    cosine, sine = angles[:, 0].unsqueeze(1), angles[:, 1].unsqueeze(1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)
