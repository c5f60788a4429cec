"""Predicted seconds of a decode step, from sizes alone: what formers weigh candidates with.

A batch is described by five numbers, so that a candidate group can be added without listing anybody:
requests, KV tokens read, prompt units in all, distinct units, and units common to everybody.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from opt.core.columns import FloatArray
from opt.core.cost import Load
from opt.serve.feather.kernels import decode_step
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import View

__all__ = ["Shape", "decode_seconds", "engine_numbers", "prefill_seconds", "shape_and_left", "shape_of"]


class Shape(NamedTuple):
    """A batch of decodes.

    Args:
        size: requests.
        kv: KV tokens that a step reads, shared ones for everyone who reads them.
        units: prompt units over all requests.
        distinct: different ones among them.
        common: units of the prefix common to all.
    """

    size: float = 0.0
    kv: float = 0.0
    units: float = 0.0
    distinct: float = 0.0
    common: float = 0.0


def shape_of(view: View, tracker: Tracker) -> Shape:
    """Return all active requests as a batch, prompts taken as computed."""
    return shape_and_left(view, tracker)[0]


def shape_and_left(view: View, tracker: Tracker) -> tuple[Shape, float]:
    """Return all active requests as a batch, and the steps until they have finished."""
    tree = tracker.tree
    kv, left = tracker.standing(view)
    size, common = float(len(tree.active)), float(tree.common)
    return Shape(size, kv, float(tree.total_chunks), float(tree.distinct_chunks), common), left


def engine_numbers(view: View, tracker: Tracker) -> FloatArray:
    """Return what the compiled formulas take of an engine, see `opt.serve.feather.kernels`; worked out once."""
    if tracker.engine is None:
        tracker.engine = _numbers(view)
    return tracker.engine


def _numbers(view: View) -> FloatArray:
    config = view.config
    cache = math.inf if config.cache_tokens is None else config.cache_tokens
    every = config.shared_reads == "all"
    numbers = (view.unit, every, cache, config.host_s, config.host_per_request_s, config.max_running, view.memory[1])
    return np.array(numbers, np.float64)


def decode_seconds(view: View, tracker: Tracker, shape: Shape) -> float:
    """Return the seconds of a step in which all of a batch decode, host time included."""
    return float(decode_step(view.cost.coefficients, engine_numbers(view, tracker), *shape))


def prefill_seconds(view: View, tokens: float, context: float = 0) -> float:
    """Return what computing a prompt of so many tokens after `context` cached ones adds to a step."""
    if tokens <= 0:
        return 0.0
    pairs = tokens * context + tokens * (tokens + 1) / 2
    whole = Load(prefill_tokens=tokens, prefill_pairs=pairs, prefill_sequences=1, prefill_context=context)
    return view.cost.seconds(whole) - view.cost.seconds(Load())
