"""Public tables of measured GPU times, recognised by their columns; plain or gzip CSV.

    vidur-mlp        Vidur (MIT): the dense operators of one layer, by tokens and tensor-parallel degree; ms
    vidur-attention  Vidur: attention of one layer, prefill chunks with cached context and decode batches; ms
    aic-gemm         aiconfigurator (Apache-2.0): matrix products (m, k) x (k, n); ms
    aic-prefill      aiconfigurator: attention of one layer, batches of equal prompts; ms
    aic-decode       aiconfigurator: attention of one layer, batches of equal contexts (step + 1 tokens); ms
    aic-allreduce    aiconfigurator: all-reduces by bytes; ms
    joint-attention  LLMServingSim (MIT): attention of one layer, a prefill chunk and decodes in one kernel call; us
    joint-dense      LLMServingSim: other operators of one layer, by tokens; us
    joint-sequence   LLMServingSim: logits and sampler, by sequences; us

`SIGNS` lists the columns of each. Iteration logs, written by `kvopt measure` or by hand, are in `opt.fit.log`.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray
from opt.core.errors import InstanceError
from opt.core.source import Source, TraceSource, open_source

__all__ = ["Table", "parse_numbers", "read_table"]

Texts = npt.NDArray[np.str_]

# The columns by which a kind is known, which are those that are read. aic-attention is prefill or decode by its steps.
SIGNS: dict[str, tuple[str, ...]] = {
    "vidur-mlp": (
        *("n_head", "n_kv_head", "n_embd", "n_expanded_embd", "num_tokens", "num_tensor_parallel_workers"),
        *(f"time_stats.{name}.median" for name in ("attn_pre_proj", "attn_post_proj", "mlp_up_proj", "mlp_down_proj")),
        *(f"time_stats.{name}.median" for name in ("input_layernorm", "post_attention_layernorm")),
        *(f"time_stats.{name}.median" for name in ("attn_rope", "mlp_act", "add")),
    ),
    "vidur-attention": (
        *("n_q_head", "n_kv_head", "num_tensor_parallel_workers", "batch_size", "prefill_chunk_size", "kv_cache_size"),
        *("is_prefill", "time_stats.attn_prefill.median", "time_stats.attn_decode.median"),
    ),
    "aic-gemm": ("m", "n", "k", "latency_ms"),
    "aic-attention": ("batch_size", "isl", "num_heads", "num_key_value_heads", "step", "latency_ms"),
    "aic-allreduce": ("num_gpus", "message_size", "latency_ms", "backend"),
    "joint-attention": ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode", "time_us"),
    "joint-dense": ("layer", "tokens", "time_us"),
    "joint-sequence": ("layer", "sequences", "time_us"),
}
TEXT = {"backend", "layer", "is_prefill"}


@dataclass(frozen=True)
class Table:
    """Columns of equal length, what kind of table they are, and the file they came from.

    Args:
        kind: one of those in this module's list.
        numbers: (rows,) floats by column; cells without a value are NaN.
        texts: (rows,) strings by column.
        place: the path as it was given.
        sha256: of the unpacked bytes.
    """

    kind: str
    numbers: Mapping[str, FloatArray]
    texts: Mapping[str, Texts]
    place: str
    sha256: str

    def where(self, keep: npt.NDArray[np.bool_]) -> Table:
        """Return the rows that `keep` marks."""
        numbers = {name: column[keep] for name, column in self.numbers.items()}
        return Table(self.kind, numbers, {name: column[keep] for name, column in self.texts.items()}, self.place, self.sha256)

    def __len__(self) -> int:
        return len(next(iter(self.numbers.values()), ()))


def read_table(source: TraceSource) -> Table:
    """Return an operator table.

    Raises:
        InstanceError: the columns are those of no known kind, or a cell is no number; the message names file and line.
    """
    file = open_source(source)
    rows = list(csv.reader(io.StringIO(file.text)))
    header = rows[0] if rows else []
    kind = next((kind for kind, signs in SIGNS.items() if set(signs) <= set(header)), None)
    if kind is None:
        shown = ", ".join(header[:8]) + (", ..." if len(header) > 8 else "")
        raise InstanceError(
            f"{file.place}: no known table of measured times has the columns {shown}; known kinds: {', '.join(SIGNS)}"
        )
    numbers, texts = _columns(file, header, rows[1:], SIGNS[kind])
    if kind == "aic-attention":
        kind = "aic-decode" if numbers["step"].max(initial=0) > 0 else "aic-prefill"
    return Table(kind, numbers, texts, file.place, file.sha256)


def _columns(
    file: Source, header: Sequence[str], rows: Sequence[Sequence[str]], wanted: Sequence[str]
) -> tuple[dict[str, FloatArray], dict[str, Texts]]:
    for line, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise InstanceError(f"{file.place}:{line}: {len(row)} cells where the header has {len(header)}")
    numbers, texts = {}, {}
    for name in wanted:
        cells = [row[header.index(name)] for row in rows]
        if name in TEXT:
            texts[name] = np.array(cells, dtype=np.str_)
        else:
            numbers[name] = parse_numbers(file.place, name, cells)
    return numbers, texts


def parse_numbers(place: str, name: str, cells: Sequence[str], first_line: int = 2) -> FloatArray:
    """Return cells as floats, NaN for empty ones; a negative number or anything else is refused with its line."""
    try:
        found = np.array([cell or "nan" for cell in cells], np.float64)
    except ValueError:
        found = np.array([_or_infinite(cell) for cell in cells])
    bad = np.flatnonzero(np.isinf(found) | (found < 0))
    if bad.size:
        at = int(bad[0])
        raise InstanceError(f"{place}:{first_line + at}: {name} = {cells[at]!r}: must be a finite number, at least 0")
    return found


def _or_infinite(cell: str) -> float:
    """Return a float, or infinity as the mark of a cell that is none."""
    try:
        return float(cell or "nan")
    except ValueError:
        return float("inf")
