"""Prefix-homogeneous batches in vLLM: the formers of `opt.serve.feather` decide who is admitted, and when to stop.

Decodes that share a prefix may read its keys and values once, where a kernel knows the prefix or a cache holds it; then a
batch of one group is faster than a larger mixed one. The formers weigh this with a cost model, so the settings `cost` and
`locality` (the price of a repeated read) are needed. The groups are found by the Chunked Hash Tree over vLLM's own block
hashes, so prefix caching must be on, as it is by default. See `opt.plugins.vllm.mirror` and `.formation`.

What formers compute with is compiled, and loaded when the scheduler starts, not when this module is imported.
"""

from __future__ import annotations

from typing import Any, ClassVar

from opt.core.cost import cost_model
from opt.plugins.vllm.queue import ChosenQueue
from opt.plugins.vllm.scheduler import Ordered

__all__ = ["FeatherAnalytic", "FeatherBandit", "FeatherSeeded", "Grouped"]


class Grouped(Ordered):
    """The common part; subclasses name the former.

    Raises:
        ValueError: a setting is missing or unknown, or prefix caching is off.
    """

    former: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.locality = self._locality()
        self.queue = self.waiting = ChosenQueue(self.key)
        from opt.plugins.vllm.formation import Formation

        self.formation = Formation(self, self.former)

    def _locality(self) -> float:
        """Return the price of a repeated read, with all that formers need there."""
        cost = cost_model(self.required_cost())
        if not self.cache_config.enable_prefix_caching:
            raise ValueError(
                "kvopt: groups are found by the hashes of vLLM's prefix cache: start without --no-enable-prefix-caching"
            )
        given = self.settings.locality
        if given is None and cost.locality == 1:
            raise ValueError(
                "kvopt: a former needs the setting locality, the price of a repeated read of a shared token: near 0 with a "
                "kernel that knows the prefix (with vLLM's cascade attention shared_reads = all, too), 1 where homogeneous "
                "batches gain nothing"
            )
        return cost.locality if given is None else given

    def admissible(self) -> int:
        """Let the former choose, put the chosen first, and return how many there are."""
        moved, self.queue.moved = self.queue.moved, []
        free, budget = self.room()
        chosen = self.formation.choose(moved, budget if free > 0 else 0)
        self.queue.choose(chosen)
        return len(chosen)


class FeatherAnalytic(Grouped):
    """Groups weighed by the cost model: what serving them now costs, against serving them later."""

    former = "analytic"


class FeatherBandit(Grouped):
    """Feather's bandit: add or stop, learned from cold."""

    former = "bandit"


class FeatherSeeded(Grouped):
    """The bandit where the analytic former is not sure."""

    former = "seeded"
