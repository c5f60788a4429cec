"""Mixtures: draw requests from several instances in given shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from opt.core.columns import IntArray
from opt.core.errors import InstanceError
from opt.core.exact import rational
from opt.core.instance import LABELS, SECONDS, TOKENS, Instance

__all__ = ["mix"]


def mix(
    parts: Sequence[Instance],
    shares: Sequence[str | float],
    n: int,
    *,
    memory: int | None = None,
    seed: int = 0,
    backlog: bool = False,
    oversized: Literal["error", "drop"] = "error",
) -> Instance:
    """Return `n` requests drawn from `parts` in proportion to `shares`, randomly interleaved.

    A part gives distinct requests while it has enough; beyond that its requests repeat, and the origin says so. Requests
    with arrivals are put in time order. Ids are not kept (two parts may use the same), session and client labels get the
    part's number in front; prefix hashes are kept where all
    parts have them in chunks of one size, and `origin["dropped_fields"]` tells when they are not.

    Args:
        parts: the instances.
        shares: one positive number for each part; they are normalised.
        n: how many requests to draw.
        memory: the budget; None takes the parts' own, which must then agree.
        seed: same seed, same bytes.
        backlog: drop arrivals, so that everything is there at round 0. Needed where some parts have arrivals and
            others have none, or one counts in seconds and another in rounds.
        oversized: as in `Instance`.

    Raises:
        InstanceError: shares and parts do not match, the parts disagree on memory or arrivals, or n is out of range.
    """
    counts = _counts(parts, shares, n)
    budget = _memory(parts, memory)
    sources = [_without_arrivals(part) for part in parts] if backlog else list(parts)
    _check_arrivals(sources)
    words = np.random.PCG64(seed)
    chosen = [_draw(words, part.n, count) for part, count in zip(sources, counts, strict=True)]
    order = np.argsort(words.random_raw(n), kind="stable")
    columns, dropped = _joined([part.replace(ids=None).take(at) for part, at in zip(sources, chosen, strict=True)], order)
    for key in ("arrival", "arrival_s"):
        if key in columns:
            by_time = np.argsort(np.array(columns[key]), kind="stable").tolist()
            columns = {name: [cells[at] for at in by_time] for name, cells in columns.items()}
    origin: dict[str, Any] = {
        "recipe": "mix",
        "seed": seed,
        "parts": [
            {"name": part.name, "count": count, "repeated": count > part.n, "origin": part.origin}
            for part, count in zip(parts, counts, strict=True)
        ],
    }
    if dropped:
        origin["dropped_fields"] = dropped
    name = "+".join(part.name or "unnamed" for part in parts)
    chunk = parts[0].prefix_chunk if "prefix" in columns else None
    return Instance(budget, **columns, prefix_chunk=chunk, name=name, origin=origin, oversized=oversized)


def _counts(parts: Sequence[Instance], shares: Sequence[str | float], n: int) -> list[int]:
    """Return how many requests each part gives: largest remainders, so that they sum to n."""
    if len(parts) != len(shares) or not parts:
        raise InstanceError(f"{len(parts)} instances and {len(shares)} shares: give one share for each instance")
    weights = [rational("share", share) for share in shares]
    if min(weights) < 0 or not sum(weights):
        raise InstanceError(f"shares {list(shares)}: must not be negative, and not all zero")
    if not 0 <= n <= 10**7:
        raise InstanceError(f"n = {n}: must be from 0 to {10**7}")
    exact = [weight * n / sum(weights) for weight in weights]
    counts = [int(quota) for quota in exact]
    by_remainder = sorted(range(len(parts)), key=lambda k: (counts[k] - exact[k], k))
    for k in by_remainder[: n - sum(counts)]:
        counts[k] += 1
    empty = [part.name or str(k) for k, (part, count) in enumerate(zip(parts, counts, strict=True)) if count and not part.n]
    if empty:
        raise InstanceError(f"instance {empty[0]} has no requests to draw from")
    return counts


def _memory(parts: Sequence[Instance], memory: int | None) -> int:
    if memory is not None:
        return memory
    budgets = sorted({part.memory for part in parts})
    if len(budgets) > 1:
        raise InstanceError(f"the instances have different memories {budgets}; say which to use (--memory)")
    return budgets[0]


def _without_arrivals(part: Instance) -> Instance:
    return part.replace(arrival=None, arrival_s=None)


def _check_arrivals(parts: Sequence[Instance]) -> None:
    units = sorted({part.arrival_unit for part in parts})
    if len(units) > 1:
        raise InstanceError(f"the instances count arrivals in {' and '.join(units)}; drop arrivals with --backlog")


def _draw(words: np.random.PCG64, size: int, count: int) -> IntArray:
    """Return `count` positions below `size`, distinct where possible."""
    whole, rest = divmod(count, size) if size else (0, 0)
    rounds = [np.argsort(words.random_raw(size), kind="stable") for _ in range(whole + (rest > 0))] if size else []
    return np.concatenate([np.zeros(0, np.int64), *rounds])[:count].astype(np.int64)


def _joined(parts: Sequence[Instance], order: IntArray) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of all parts one after another, permuted; a column some parts lack is None there."""
    at = order.tolist()
    columns: dict[str, Any] = {}
    for key in ("prompt", "output", "arrival", "arrival_s", *SECONDS, "priority", *TOKENS, *LABELS):
        found = [part.columns().get(key) for part in parts]
        if any(cells is not None for cells in found):
            tags = [f"{k}/" if key in LABELS and len(parts) > 1 else None for k in range(len(parts))]
            joined = [cell for part, cells, tag in zip(parts, found, tags, strict=True) for cell in _cells(cells, part.n, tag)]
            columns[key] = [joined[k] for k in at]
    chunks = {part.prefix_chunk for part in parts}
    if len(chunks) == 1 and None not in chunks:
        hashes = [row for part in parts for row in part.prefix_rows() or []]
        columns["prefix"] = [hashes[k] for k in at]
        return columns, []
    return columns, ["prefix"] if chunks != {None} else []


def _cells(cells: Any, n: int, tag: str | None) -> list[Any]:
    """Return the cells of one part; a tag keeps equal labels of two parts apart."""
    if cells is None:
        return [None] * n
    if tag is not None:
        return [None if cell is None else f"{tag}{cell}" for cell in cells]
    return cells.tolist() if isinstance(cells, np.ndarray) else list(cells)
