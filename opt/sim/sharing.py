"""Which repeated reads of shared keys and values are cheap: the count that a cost model prices by its locality.

When decodes share a prefix, a kernel that knows it, or an L2 cache that still holds it, serves all reads beyond the
first at a lower price (`CostModel.locality`). Which of them count depends on the machine, so an engine says it:

* `shared_reads = "each"`: every prefix counts for those who share it, as with kernels that walk the tree of prefixes,
  or a cache large enough.
* `shared_reads = "all"`: only the prefix common to all decodes of the step counts, and only if it has 256 tokens and they
  are 8 or more. That is vLLM's rule for its cascade kernel (prompt chunks in the step are not looked at here).
* `cache_tokens`: the KV tokens, of one layer, that the L2 cache holds. If a step reads more distinct ones than that, a
  repeat finds its line with probability cache / distinct, as under random replacement. None sets no limit.

>>> from opt.sim.config import EngineConfig
>>> repeated_kv(EngineConfig(), decodes=10, kv=3000, again=1800, common=0)
1800.0
>>> repeated_kv(EngineConfig(shared_reads="all"), decodes=10, kv=3000, again=1800, common=256)
2304.0
>>> repeated_kv(EngineConfig(cache_tokens=600), decodes=10, kv=3000, again=1800, common=0)
900.0
"""

from __future__ import annotations

import math

from opt.core.jit import compiled
from opt.sim.config import EngineConfig

__all__ = ["ALL_LEAST_DECODES", "ALL_LEAST_TOKENS", "cheap_reads", "repeated_kv"]

ALL_LEAST_TOKENS, ALL_LEAST_DECODES = 256, 8


def repeated_kv(config: EngineConfig, *, decodes: int, kv: float, again: float, common: float) -> float:
    """Return the KV tokens of a step whose reads cost `locality` of the full price.

    Args:
        config: the engine, with `shared_reads` and `cache_tokens`.
        decodes: how many there are.
        kv: tokens read in all.
        again: those of them that an earlier decode of the step reads too.
        common: length of the prefix common to all decodes.
    """
    cache = math.inf if config.cache_tokens is None else float(config.cache_tokens)
    return float(cheap_reads(config.shared_reads == "all", cache, float(decodes), float(kv), float(again), float(common)))


@compiled
def cheap_reads(every: bool, cache: float, decodes: float, kv: float, again: float, common: float) -> float:
    """Return the same from plain numbers; `every` is the rule "all", `cache` infinite where there is no limit."""
    cheap = again
    if every:
        cheap = (decodes - 1.0) * common if common >= ALL_LEAST_TOKENS and decodes >= ALL_LEAST_DECODES else 0.0
    distinct = kv - again
    return cheap if distinct <= cache else cheap * cache / distinct
