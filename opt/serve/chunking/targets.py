"""When the next token of a decode is due: from the last token, or on an envelope that banks what was saved before.

A request with a target for every gap (`itl_s`) has its next token due so long after the last one. A target for the mean
gap (`tpot_s`) is met, whatever the output turns out to be, if token j comes by first token + j * tpot: time saved on
earlier tokens is banked, and a step may spend it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.sim.batch import View
from opt.sim.workload import Requests

__all__ = ["DUE", "Due", "Targets"]


@dataclass(frozen=True, eq=False)
class Targets:
    """The requests' targets, (n,) seconds each, infinity where there is none.

    Args:
        ttft_s: first token.
        mean_s: mean gap.
        gap_s: every gap.
        strict_s: the smaller of the two last, read as a limit for every gap.
        pace_s: the gap that an envelope grants a token: the mean target, or that for every gap where there is none.
    """

    ttft_s: FloatArray
    mean_s: FloatArray
    gap_s: FloatArray
    strict_s: FloatArray
    pace_s: FloatArray

    @classmethod
    def of(cls, requests: Requests) -> Targets:
        """Return the targets of some requests."""
        ttft, mean, gap = (
            np.where(np.isnan(cells), np.inf, cells) for cells in (requests.ttft_s, requests.tpot_s, requests.itl_s)
        )
        return cls(ttft, mean, gap, np.minimum(mean, gap), np.where(np.isinf(mean), gap, mean))


Due: TypeAlias = Callable[[Targets, View, IntArray], FloatArray]


def _by_gap(targets: Targets, view: View, decodes: IntArray) -> FloatArray:
    return view.progress.last_s[decodes] + targets.strict_s[decodes]


def _own(targets: Targets, view: View, decodes: IntArray) -> FloatArray:
    progress = view.progress
    envelope = progress.first_s[decodes] + progress.produced[decodes] * targets.mean_s[decodes]
    return np.minimum(envelope, progress.last_s[decodes] + targets.gap_s[decodes])


def _from_arrival(targets: Targets, view: View, decodes: IntArray) -> FloatArray:
    granted = view.requests.arrival_s[decodes] + targets.ttft_s[decodes]
    begin = np.where(np.isinf(granted), view.progress.first_s[decodes], granted)
    return begin + view.progress.produced[decodes] * targets.pace_s[decodes]


# When the next token is due, by name: a limit for every gap; each target as it is meant, on the envelope from the first
# token and from the last one; on the envelope from the moment at which the first token was due.
DUE: dict[str, Due] = {"gap": _by_gap, "own": _own, "arrival": _from_arrival}
