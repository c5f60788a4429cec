"""Predicted seconds of a decode step, from sizes alone: what formers weigh candidates with.

A batch is described by five numbers, so that a candidate group can be added without listing anybody:
requests, KV tokens read, prompt units in all, distinct units, and units common to everybody.
"""

from __future__ import annotations

from typing import NamedTuple

from opt.core.cost import Load
from opt.core.cost.formula import iteration_seconds
from opt.core.cost.layout import LOCALITY
from opt.serve.feather.tracker import Tracker
from opt.sim.batch import View
from opt.sim.sharing import repeated_kv

__all__ = ["Shape", "decode_seconds", "prefill_seconds", "shape_of"]


class Shape(NamedTuple):
    """A batch of decodes.

    Args:
        size: requests.
        kv: KV tokens that a step reads, shared ones for everyone who reads them.
        units: prompt units over all requests.
        distinct: different ones among them.
        common: units of the prefix common to all.
    """

    size: float = 0
    kv: float = 0
    units: float = 0
    distinct: float = 0
    common: float = 0

    def plus(self, other: Shape, common: float) -> Shape:
        """Return both together; `other.distinct` are units that are not here yet."""
        return Shape(self.size + other.size, self.kv + other.kv, self.units + other.units, self.distinct + other.distinct, common)

    def scaled(self, share: float) -> Shape:
        """Return what is left when a share of the requests stays; prefixes are taken to stay."""
        private = self.distinct - self.common
        return Shape(
            self.size * share,
            self.kv * share,
            self.units * share,
            max(self.common, self.distinct - (1 - share) * private),
            self.common,
        )


def shape_of(view: View, tracker: Tracker) -> Shape:
    """Return all active requests as a batch, prompts taken as computed."""
    tree = tracker.tree
    size = len(tree.active)
    kv = tracker.tokens_of(view) if size else 0
    return Shape(size, kv, tree.total_chunks, tree.distinct_chunks, tree.common)


def decode_seconds(view: View, shape: Shape) -> float:
    """Return the seconds of a step in which all of a batch decode, host time included."""
    config, coefficients = view.config, view.cost.coefficients
    size, kv, units, distinct, common = shape
    repeated = 0.0
    if units > distinct and coefficients[LOCALITY] < 1:
        unit = view.unit
        repeated = repeated_kv(config, decodes=int(size), kv=kv, again=(units - distinct) * unit, common=common * unit)
    seconds = iteration_seconds(coefficients, 0.0, 0.0, 0.0, 0.0, float(size), float(kv), repeated)
    return seconds + config.host_s + config.host_per_request_s * size


def prefill_seconds(view: View, tokens: float, context: float = 0) -> float:
    """Return what computing a prompt of so many tokens after `context` cached ones adds to a step."""
    if tokens <= 0:
        return 0.0
    pairs = tokens * context + tokens * (tokens + 1) / 2
    whole = Load(prefill_tokens=tokens, prefill_pairs=pairs, prefill_sequences=1, prefill_context=context)
    return view.cost.seconds(whole) - view.cost.seconds(Load())
