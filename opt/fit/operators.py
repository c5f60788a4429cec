"""From tables of single operators to the parts of an iteration: the dense layers, the logits, and attention.

An iteration takes the sum of its kernels: layers x (projections, feed-forward, norms, rotary, activation, residual,
all-reduces, attention) + logits. Host time, sampling beyond the logits and launch gaps are not in it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray
from opt.core.cost.shapes import Shape
from opt.core.errors import InstanceError
from opt.fit.tables import Table

__all__ = ["Curve", "Dense", "Operators", "Points", "operators_of"]

Dense: TypeAlias = Literal["auto", "vidur", "products"]

MS, US = 1e-3, 1e-6


@dataclass(frozen=True)
class Curve:
    """Seconds measured at rising sizes, linear in between."""

    sizes: FloatArray
    seconds: FloatArray

    def at(self, sizes: npt.ArrayLike) -> FloatArray:
        """Return the seconds at `sizes`; below the first and above the last they stay (callers keep within)."""
        return np.interp(np.asarray(sizes, np.float64), self.sizes, self.seconds)

    def __add__(self, other: Curve) -> Curve:
        within = other.sizes[(other.sizes >= self.sizes[0]) & (other.sizes <= min(self.sizes[-1], other.sizes[-1]))]
        sizes = self.sizes[self.sizes <= other.sizes[-1]]
        both = np.union1d(sizes, within)
        return Curve(both, self.at(both) + other.at(both))

    def scaled(self, factor: float) -> Curve:
        """Return the curve with all seconds times `factor`."""
        return Curve(self.sizes, self.seconds * factor)

    def thinned(self, keep: npt.NDArray[np.bool_]) -> Curve:
        """Return the curve without the points that `keep` does not mark; its two ends always stay."""
        kept = keep.copy()
        kept[[0, -1]] = True
        return Curve(self.sizes[kept], self.seconds[kept])


@dataclass(frozen=True)
class Points:
    """Measured attention: `rows` (m, 7), a column for each field of `Load`, and the seconds (m,) of all layers."""

    rows: FloatArray
    seconds: FloatArray

    @classmethod
    def of(cls, seconds: FloatArray, **columns: FloatArray | int) -> Points:
        """Return points from the columns of `Load` that are not 0."""
        from opt.core.cost.load import Load

        rows = np.zeros((len(seconds), len(Load._fields)))
        for name, column in columns.items():
            rows[:, Load._fields.index(name)] = column
        return cls(rows, seconds)

    def __add__(self, other: Points) -> Points:
        return Points(np.concatenate([self.rows, other.rows]), np.concatenate([self.seconds, other.seconds]))

    def __getitem__(self, which: npt.NDArray[np.int64]) -> Points:
        return Points(self.rows[which], self.seconds[which])


@dataclass(frozen=True)
class Operators:
    """The measured parts of an iteration of one model on one machine.

    Args:
        dense: seconds of all layers without attention, by tokens in the batch; all-reduces included.
        logits: seconds of the output embedding (and sampler, where measured), by sequences.
        attention: measured attention of all layers.
        joint: whether prefill chunks and decodes were measured in one kernel call. Otherwise a mixed batch is the sum.
    """

    dense: Curve
    logits: Curve
    attention: Points
    joint: bool

    def thinned(self, seed: int) -> Operators:
        """Return the operators with a random half of the dense points withheld."""
        keep = np.random.default_rng(seed).permutation(len(self.dense.sizes)) < len(self.dense.sizes) // 2
        return dataclasses.replace(self, dense=self.dense.thinned(keep))


def operators_of(tables: Sequence[Table], shape: Shape, tp: int, *, dense: Dense = "auto") -> Operators:
    """Return the operators that the tables hold for a model on `tp` GPUs.

    Args:
        tables: of one machine; the first table of a kind counts.
        shape: the model.
        tp: GPUs of the tensor-parallel group.
        dense: where the matrix products of the layers come from: `vidur`, `products` (aiconfigurator), or `auto`, Vidur's
            where they were measured for the same sizes. Norms, rotary, activation and residual are always Vidur's.

    Raises:
        InstanceError: a part is in no table, or no row of a table fits the model; the message says which.
    """
    joint = [table for table in tables if table.kind == "joint-attention"]
    if joint:
        return Operators(_joint_dense(tables, shape), _joint_logits(tables), _joint_attention(joint, shape), joint=True)
    layers = _dense(tables, shape, tp, dense)
    if tp > 1:
        layers = layers + _all_reduce(tables, shape, tp).scaled(2 * shape.layers)
    return Operators(layers, _logits(tables, shape, tp), _attention(tables, shape, tp), joint=False)


def _of_kind(tables: Sequence[Table], *kinds: str) -> Table | None:
    return next((table for kind in kinds for table in tables if table.kind == kind), None)


def _need(tables: Sequence[Table], what: str, *kinds: str) -> Table:
    found = _of_kind(tables, *kinds)
    if found is None:
        raise InstanceError(f"no table for {what}: give a file of kind {' or '.join(kinds)} (see `kvopt fit --help`)")
    return found


def _medians(keys: Sequence[FloatArray], seconds: FloatArray) -> tuple[list[FloatArray], FloatArray]:
    """Return the distinct rows of `keys`, in order, and the median of the seconds of each; empty cells are left out."""
    there = ~np.isnan(seconds)
    distinct, which = np.unique(np.column_stack(keys)[there], axis=0, return_inverse=True)
    taken, which = seconds[there], which.ravel()
    medians = np.array([np.median(taken[which == k]) for k in range(len(distinct))])
    return list(distinct.T), medians


def _curve(sizes: FloatArray, seconds: FloatArray) -> Curve:
    (sizes,), seconds = _medians([sizes], seconds)
    return Curve(sizes, seconds)


# The dense layers.

MATRICES = ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")


def _dense(tables: Sequence[Table], shape: Shape, tp: int, wanted: Dense) -> Curve:
    """Return Vidur's layer where it was measured for the model, else matrix products with Vidur's other operators."""
    mlp = _need(tables, "the dense layers", "vidur-mlp")
    mlp = mlp.where(mlp.numbers["num_tensor_parallel_workers"] == tp)
    if not len(mlp):
        raise InstanceError(f"{mlp.place}: no rows for tp = {tp}")
    measured = [float(mlp.numbers[name][0]) for name in ("n_embd", "n_expanded_embd", "n_head", "n_kv_head")]
    same = measured == [shape.hidden, shape.ffn, shape.heads, shape.kv_heads]
    if wanted == "vidur" and not same:
        raise InstanceError(f"{mlp.place}: measured for other sizes {measured}; give matrix products (dense = products)")
    vidur = wanted == "vidur" or (wanted == "auto" and same)
    products = None if vidur else _need(tables, "matrix products of these sizes", "aic-gemm")
    layer = _elementwise(mlp, shape, measured)
    if products is None:
        for name in MATRICES:
            layer = layer + _vidur(mlp, name)
    else:
        for n, k in shape.projections(tp):
            layer = layer + _product(products, n, k)
    return layer.scaled(shape.layers)


def _vidur(mlp: Table, name: str) -> Curve:
    return _curve(mlp.numbers["num_tokens"], mlp.numbers[f"time_stats.{name}.median"] * MS)


def _elementwise(mlp: Table, shape: Shape, measured: Sequence[float]) -> Curve:
    """Return norms, rotary, activation and residual: n tokens of another width cost as n x width ratio of this one."""
    hidden, ffn, heads, kv_heads = measured
    wide = shape.hidden / hidden
    widths = {"input_layernorm": wide, "post_attention_layernorm": wide, "add": wide}
    widths |= {"mlp_act": shape.ffn / ffn, "attn_rope": (shape.heads + shape.kv_heads) / (heads + kv_heads)}
    sizes = _vidur(mlp, "add").sizes
    sizes = np.concatenate([sizes, sizes[-1] * np.array([1.5, 2.0, 4.0, 8.0])])
    total = np.zeros(len(sizes))
    for name, width in widths.items():
        curve = _vidur(mlp, name)
        scaled = sizes * width
        beyond = np.maximum(scaled / curve.sizes[-1], 1)  # proportional past the end of the table
        total += curve.at(scaled) * beyond
    return Curve(sizes, total)


def _product(table: Table, n: float, k: float) -> Curve:
    """Return the seconds of (m, k) x (k, n) by m, linear in n and k between the shapes measured."""
    numbers = table.numbers
    total: Curve | None = None
    for n_at, n_share in _around(np.unique(numbers["n"]), n):
        for k_at, k_share in _around(np.unique(numbers["k"]), k):
            rows = (numbers["n"] == n_at) & (numbers["k"] == k_at)
            if not rows.any():
                raise InstanceError(f"{table.place}: no product with n = {n_at:g}, k = {k_at:g}, needed for ({n:g}, {k:g})")
            part = _curve(numbers["m"][rows], numbers["latency_ms"][rows] * MS).scaled(n_share * k_share)
            total = part if total is None else total + part
    assert total is not None
    return total


def _around(grid: FloatArray, value: float) -> list[tuple[float, float]]:
    """Return the one or two grid values that `value` is a weighted mean of, with their weights; may lie outside."""
    if value in grid:
        return [(value, 1.0)]
    at = int(np.clip(np.searchsorted(grid, value), 1, len(grid) - 1))
    share = (value - grid[at - 1]) / (grid[at] - grid[at - 1])
    return [(float(grid[at - 1]), 1 - share), (float(grid[at]), share)]


def _all_reduce(tables: Sequence[Table], shape: Shape, tp: int) -> Curve:
    """Return one all-reduce of a layer's output in 16 bits, by tokens; graph-captured times where the table has both."""
    table = _need(tables, f"all-reduces at tp = {tp}", "aic-allreduce")
    rows = table.where((table.numbers["num_gpus"] == tp) & np.char.endswith(table.texts["backend"], "graph"))
    if not len(rows):
        raise InstanceError(f"{table.place}: no all-reduce among {tp} GPUs")
    return _curve(rows.numbers["message_size"] / (2 * shape.hidden), rows.numbers["latency_ms"] * MS)


def _logits(tables: Sequence[Table], shape: Shape, tp: int) -> Curve:
    """Return the output embedding, from matrix products; nothing where no table has them."""
    table = _of_kind(tables, "aic-gemm")
    if table is None:
        return Curve(np.array([1.0]), np.array([0.0]))
    return _product(table, shape.vocab / tp, shape.hidden)


# Attention.


def _attention(tables: Sequence[Table], shape: Shape, tp: int) -> Points:
    vidur = _of_kind(tables, "vidur-attention")
    if vidur is not None:
        return _vidur_attention(vidur, shape, tp)
    prefill = _need(tables, "prefill attention", "aic-prefill", "vidur-attention")
    decode = _need(tables, "decode attention", "aic-decode", "vidur-attention")
    return _aic_prefill(prefill, shape, tp) + _aic_decode(decode, shape, tp)


def _heads(shape: Shape, tp: int) -> tuple[int, int]:
    return shape.heads // tp, max(shape.kv_heads // tp, 1)


def _rows_for(table: Table, heads: int, kv_heads: int) -> Table:
    numbers = table.numbers
    return table.where((numbers["num_heads"] == heads) & (numbers["num_key_value_heads"] == kv_heads))


def _aic_prefill(table: Table, shape: Shape, tp: int) -> Points:
    heads, kv_heads = _heads(shape, tp)
    rows = _rows_for(table, heads, kv_heads)
    if not len(rows):
        raise InstanceError(f"{table.place}: no prefill attention with {heads} query and {kv_heads} KV heads")
    (batch, tokens), seconds = _medians([rows.numbers["batch_size"], rows.numbers["isl"]], rows.numbers["latency_ms"] * MS)
    return _prefill(batch, tokens, np.zeros(len(batch)), seconds * shape.layers)


def _prefill(batch: FloatArray, tokens: FloatArray, context: FloatArray, seconds: FloatArray) -> Points:
    pairs = batch * (tokens * context + tokens * (tokens + 1) / 2)
    counts = {"prefill_tokens": batch * tokens, "prefill_pairs": pairs, "prefill_sequences": batch}
    return Points.of(seconds, **counts, prefill_context=batch * context)


def _aic_decode(table: Table, shape: Shape, tp: int) -> Points:
    """Return decode attention. Without rows for full multi-head attention, four KV heads of a quarter of the batch.

    `b` requests with `h` KV heads read the same bytes in the same pieces as `4 b` requests with `h / 4`.
    """
    heads, kv_heads = _heads(shape, tp)
    rows, times = _rows_for(table, heads, kv_heads), 1
    if not len(rows) and kv_heads % 4 == 0:
        rows, times = _rows_for(table, heads, kv_heads // 4), 4
        rows = rows.where(rows.numbers["batch_size"] % times == 0)
    if not len(rows):
        raise InstanceError(f"{table.place}: no decode attention with {heads} query and {kv_heads} KV heads")
    keys = [rows.numbers["batch_size"] / times, rows.numbers["step"] + 1]
    (batch, length), seconds = _medians(keys, rows.numbers["latency_ms"] * MS)
    return Points.of(seconds * shape.layers, decodes=batch, kv_tokens=batch * length)


def _vidur_attention(table: Table, shape: Shape, tp: int) -> Points:
    numbers = table.numbers
    fits = (numbers["n_q_head"] == shape.heads) & (numbers["n_kv_head"] == shape.kv_heads)
    table = table.where(fits & (numbers["num_tensor_parallel_workers"] == tp))
    if not len(table):
        raise InstanceError(f"{table.place}: no attention with {shape.heads} query and {shape.kv_heads} KV heads at tp = {tp}")
    numbers, chunked = table.numbers, table.texts["is_prefill"] == "True"
    size, chunk, cached = numbers["batch_size"], numbers["prefill_chunk_size"], numbers["kv_cache_size"]
    prefill, decode = (numbers[f"time_stats.attn_{what}.median"] * MS * shape.layers for what in ("prefill", "decode"))
    (many, tokens, context), first = _medians([size[chunked], chunk[chunked], cached[chunked]], prefill[chunked])
    (batch, length), second = _medians([size[~chunked], cached[~chunked]], decode[~chunked])
    return _prefill(many, tokens, context, first) + Points.of(second, decodes=batch, kv_tokens=batch * length)


# Tables in which prefill chunks and decodes were measured together.

JOINT_LAYER = ("qkv_proj", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")
JOINT_NORMS = 2  # a layer has two, and the table times one


def _joint_dense(tables: Sequence[Table], shape: Shape) -> Curve:
    table = _need(tables, "the dense layers", "joint-dense")

    def operator(name: str) -> Curve:
        rows = table.where(table.texts["layer"] == name)
        if not len(rows):
            raise InstanceError(f"{table.place}: no operator {name!r}")
        return _curve(rows.numbers["tokens"], rows.numbers["time_us"] * US)

    layer = operator("layernorm").scaled(JOINT_NORMS)
    for name in JOINT_LAYER:
        layer = layer + operator(name)
    return layer.scaled(shape.layers) + operator("embedding") + operator("final_layernorm")


def _joint_logits(tables: Sequence[Table]) -> Curve:
    table = _need(tables, "the logits", "joint-sequence")
    parts = [table.where(table.texts["layer"] == name) for name in np.unique(table.texts["layer"])]
    curves = [_curve(part.numbers["sequences"], part.numbers["time_us"] * US) for part in parts]
    total = curves[0]
    for curve in curves[1:]:
        total = total + curve
    return total


def _joint_attention(tables: Sequence[Table], shape: Shape) -> Points:
    points = None
    for table in tables:
        numbers = table.numbers
        chunk, context, decodes, length = (numbers[name] for name in ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode"))
        one = (chunk > 0).astype(np.float64)
        found = _prefill(one, chunk, context, numbers["time_us"] * US * shape.layers)
        with_decodes = Points.of(found.seconds, decodes=decodes, kv_tokens=decodes * length)
        both = Points(found.rows + with_decodes.rows, found.seconds)
        points = both if points is None else points + both
    assert points is not None
    return points
