"""The `ramps` bound: whole memory ramps, one price a request, where only a few requests run together.

See `opt.core.ramps` for the relaxation and its proof, and `opt.solvers.exact` for the search that uses it. On instances
in which two to four requests fit together it closes most of the gap that the time-indexed linear program leaves (14 to
30 per cent there, 0 to 8 here).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from opt.core.instance import Instance
from opt.core.model import Bound
from opt.core.ramps import MAX_WORK, ramp_value
from opt.solvers.orders import run_order

__all__ = ["ramps"]

MEMORY_MB = 1000  # for tables; what the check in `opt.core.ramps` allows needs less


def ramps(instance: Instance) -> Bound:
    """Return the bound of a relaxation that keeps two running requests whole, with prices by subgradient ascent.

    Raises:
        ValueError: requests arrive after round 0, or there are so many tokens of output that a check would take minutes.
    """
    if not instance.offline:
        raise ValueError("the ramps bound needs every request at round 0; use mean-busy-time or prices with arrivals")
    if not applies(instance):
        raise ValueError(f"the ramps bound is for small instances; {instance.n} requests are too many here, use prices")
    scale, price = (1, []) if not instance.n else _train(instance)
    certificate = {"kind": "ramps", "scale": scale, "price": price}
    return Bound(Fraction(ramp_value(instance, certificate)), "ramps", "separate", certificate)


def applies(instance: Instance) -> bool:
    """Return whether the bound can be computed and checked: offline, and at most a minute of work."""
    return instance.offline and instance.n**2 * int(instance.output.sum()) ** 2 <= MAX_WORK and instance.n <= 62


def _train(instance: Instance) -> tuple[int, list[int]]:
    from opt.solvers.exact.search import ROOT_PAIRS, Search
    from opt.solvers.exact.training import smith_prices

    start = run_order("svf", "pack", instance).start
    assert start is not None
    search = Search(instance, start, lambda _message: None, math.inf, 0, MEMORY_MB)
    search.train_root(smith_prices(instance.memory, instance.volume[search.order], search.scale), ROOT_PAIRS)
    price = np.zeros(instance.n, np.int64)
    price[search.order] = search.root.price
    return search.scale, price.tolist()
