"""What an instance looks like: sizes, arrivals, load, ties and sharing, as plain JSON values."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.exact import exact_sum
from opt.core.instance import LABELS, SECONDS, TOKENS, Instance

__all__ = ["describe"]

LEVELS = {"p1": 0.01, "p10": 0.1, "p50": 0.5, "p90": 0.9, "p99": 0.99}


def describe(instance: Instance) -> dict[str, Any]:
    """Return counts, quantiles, load, ties and prefix sharing of an instance.

    `load` gives the total volume in token-rounds, `rounds` = volume/memory (no schedule's makespan is shorter), `peak
    demand` = sum of peaks/memory (above 1: not everything fits at once) and `fit_together` = memory/mean peak.
    """
    return {
        "name": instance.name,
        "n": instance.n,
        "memory": instance.memory,
        "prompt": _quantiles(instance.prompt),
        "output": _quantiles(instance.output),
        "peak": _quantiles(instance.peak),
        "arrivals": _arrivals(instance),
        "load": _load(instance),
        "ties": _ties(instance),
        "oversized": instance.origin.get("oversized_dropped", {"count": 0, "first_ids": []}),
        "sharing": _sharing(instance),
        "fields": [key for key in (*SECONDS, "priority", *TOKENS, *LABELS) if getattr(instance, key) is not None],
        "origin": instance.origin,
    }


def _quantiles(values: npt.NDArray[Any]) -> dict[str, float | int] | None:
    if not len(values):
        return None
    levels = dict(zip(LEVELS, np.quantile(values, list(LEVELS.values())).tolist(), strict=True))
    return {"min": values.min().item(), **levels, "max": values.max().item(), "mean": float(values.mean())}


def _arrivals(instance: Instance) -> dict[str, Any]:
    times = instance.arrival_s if instance.arrival_s is not None else instance.arrival
    if not instance.n or not times.any():
        return {"unit": instance.arrival_unit, "span": 0, "rate": None, "gap_cv": None}
    gaps, span = np.diff(np.sort(times)), (times.max() - times.min()).item()
    spread = float(gaps.std() / gaps.mean()) if span else None
    return {"unit": instance.arrival_unit, "span": span, "rate": instance.n / span if span else None, "gap_cv": spread}


def _load(instance: Instance) -> dict[str, Any]:
    volume, peaks = exact_sum(instance.volume), exact_sum(instance.peak)
    return {
        "volume": volume,
        "rounds": volume / instance.memory,
        "peak_demand": peaks / instance.memory,
        "fit_together": instance.n * instance.memory / peaks if peaks else None,
    }


def _ties(instance: Instance) -> dict[str, int]:
    pairs = np.stack([instance.prompt, instance.output], axis=1)
    _, counts = np.unique(pairs, axis=0, return_counts=True) if instance.n else (None, np.zeros(0, np.int64))
    return {"distinct_sizes": len(counts), "largest_tie": int(counts.max(initial=0))}


def _sharing(instance: Instance) -> dict[str, Any] | None:
    """Return how deep prompts coincide: leading chunks that some other request has too."""
    if instance.prefix_ids is None or instance.prefix_offsets is None or instance.prefix_chunk is None:
        return None
    values, inverse, counts = np.unique(instance.prefix_ids, return_inverse=True, return_counts=True)
    owner = np.repeat(np.arange(instance.n), np.diff(instance.prefix_offsets))
    level = np.arange(len(owner)) - instance.prefix_offsets[owner]
    alone = counts[inverse] == 1
    depth = np.diff(instance.prefix_offsets)
    np.minimum.at(depth, owner[alone], level[alone])
    tokens = np.minimum(depth * instance.prefix_chunk, instance.prompt)
    total = exact_sum(instance.prompt)
    return {
        "chunk": instance.prefix_chunk,
        "chunks": len(owner),
        "distinct_chunks": len(values),
        "sharing_requests": int((depth > 0).sum()),
        "depth_chunks": _quantiles(depth),
        "shared_prompt_share": exact_sum(tokens) / total if total else 0.0,
    }
