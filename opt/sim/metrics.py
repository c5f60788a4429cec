"""What a simulation comes to: latencies, throughput, targets met, fairness, saturation; every name carries its unit.

* `ttft_s` arrival to first token; `e2e_s` arrival to last token; `tpot_s` (last - first token) / (output - 1), of the
  completed requests with two tokens or more; `itl_s` every gap between two tokens of a request, one value a gap.
* `slo_attainment` is (completed requests that met every target they have) / submitted: a rejected or unfinished request
  has missed, a target that does not apply (none given; TPOT of a single token) is met. `goodput_req_s` is their number a
  second. A target counts as met up to a nanosecond, which is rounding.
* `saturated`: the number of requests that have arrived and have no token yet grows, over the second half of the arrivals,
  by at least a tenth of those who arrive then; `queue_growth_req_s` is the slope. None where arrivals span no time.
* Where nothing was completed the figures are None, never NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray, IntArray
from opt.sim.timeline import Timeline

__all__ = ["metrics", "slo_met"]

QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
ROUNDING_S = 1e-9
GROWTH = 0.1  # share of the arrivals of the second half that makes a growing queue a saturated engine
CLASSES = ("small", "medium", "large")


def metrics(timeline: Timeline) -> dict[str, Any]:
    """Return all figures of a simulation, as JSON values.

    Raises:
        AssertionError: a time is negative or the requests do not add up; it would be a fault of the engine.
    """
    counts = _counts(timeline)
    done = timeline.completed
    duration = _duration(timeline)
    met = int(slo_met(timeline).sum())
    ttft = timeline.ttft_s[timeline.workload.progress.produced > 0]
    e2e, tpot = timeline.e2e_s[done], timeline.tpot_s[done]
    for times in (ttft, e2e, tpot[~np.isnan(tpot)]):
        assert not len(times) or times.min() >= 0, f"a negative latency: {times.min()}"
    return {
        **counts,
        "total_latency_s": float(e2e.sum()),
        "duration_s": duration,
        "throughput_tok_s": _rate(int(timeline.workload.progress.produced.sum()), duration),
        "throughput_req_s": _rate(len(done), duration),
        "ttft_s": _summary(ttft),
        "tpot_s": _summary(tpot[~np.isnan(tpot)]),
        "itl_s": _gap_summary(*timeline.gaps_s),
        "e2e_s": _summary(e2e),
        "goodput_req_s": _rate(met, duration),
        "slo_attainment": met / counts["submitted"] if counts["submitted"] else None,
        **_waits(timeline),
        **_saturation(timeline),
        **_work(timeline),
    }


def slo_met(timeline: Timeline) -> npt.NDArray[np.bool_]:
    """Return (n,) whether each request is completed and met every target it has."""
    requests, progress = timeline.workload.requests, timeline.workload.progress
    met = np.zeros(requests.n, bool)
    met[timeline.completed] = True
    pairs = ((timeline.ttft_s, requests.ttft_s), (timeline.tpot_s, requests.tpot_s), (progress.max_gap_s, requests.itl_s))
    for value, target in pairs:
        met &= ~(value > target + ROUNDING_S)  # a comparison with NaN is false: no target, or nothing to hold against it
    return met


def _counts(timeline: Timeline) -> dict[str, int]:
    engines = timeline.engines
    counts = {
        "submitted": len(timeline.submitted),
        "completed": len(timeline.completed),
        "rejected": sum(engine.rejected for engine in engines),
        "queued": sum(engine.queued for engine in engines),
        "running": sum(engine.count for engine in engines),
    }
    assert counts["submitted"] == sum(counts.values()) - counts["submitted"], f"requests do not add up: {counts}"
    return counts


def _duration(timeline: Timeline) -> float | None:
    """Return the seconds from the first arrival to the end, None without any."""
    submitted = timeline.submitted
    if not len(submitted):
        return None
    seconds = timeline.end_s - float(timeline.workload.requests.arrival_s[submitted].min())
    return seconds if seconds > 0 else None


def _rate(count: int, seconds: float | None) -> float | None:
    return None if seconds is None else count / seconds


def _summary(values: FloatArray) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", *QUANTILES, "max"))
    quantiles = np.quantile(values, list(QUANTILES.values())).tolist()
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, quantiles, strict=True)), "max": float(values.max())}


def _gap_summary(values: FloatArray, counts: IntArray) -> dict[str, float | None]:
    """Return the same of sorted values that each stand for many; a quantile is the least value that reaches it."""
    if not len(values):
        return _summary(values)
    upto = np.cumsum(counts)
    places = [int(np.searchsorted(upto, share * upto[-1])) for share in QUANTILES.values()]
    quantiles = {name: float(values[at]) for name, at in zip(QUANTILES, places, strict=True)}
    return {"mean": float((values * counts).sum() / upto[-1]), **quantiles, "max": float(values[-1])}


def _waits(timeline: Timeline) -> dict[str, Any]:
    """Return how long requests waited to be scheduled, also by size, and Jain's index of the seconds per output token."""
    requests, progress = timeline.workload.requests, timeline.workload.progress
    here = timeline.submitted[progress.state[timeline.submitted] != 4]
    wait = np.where(np.isnan(progress.start_s), timeline.end_s, progress.start_s) - requests.arrival_s
    size = (requests.prompt + timeline.workload.output)[here]
    thirds = dict(zip(CLASSES, np.array_split(here[np.argsort(size, kind="stable")], len(CLASSES)), strict=True))
    slowdown = (timeline.e2e_s / timeline.workload.output)[timeline.completed]
    square = float((slowdown**2).sum())
    return {
        "max_wait_s": float(wait[here].max()) if len(here) else None,
        "wait_s": _summary(wait[here]),
        "wait_by_size_s": {name: _summary(wait[who]) for name, who in thirds.items()},
        "jain_slowdown": float(slowdown.sum() ** 2 / (len(slowdown) * square)) if square else None,
    }


def _saturation(timeline: Timeline) -> dict[str, Any]:
    requests, progress = timeline.workload.requests, timeline.workload.progress
    here = timeline.submitted
    arrival = np.sort(requests.arrival_s[here])
    if len(arrival) < 2 or arrival[-1] == arrival[0]:
        return {"saturated": None, "queue_growth_req_s": None}
    served = np.sort(progress.first_s[here][~np.isnan(progress.first_s[here])])
    late = arrival[arrival >= (arrival[0] + arrival[-1]) / 2]
    queue = np.searchsorted(arrival, late, "right") - np.searchsorted(served, late, "right")
    spread = late - late.mean()
    slope = float((spread * queue).sum() / (spread**2).sum()) if spread.any() else 0.0
    growth = slope * float(late[-1] - late[0])
    return {"saturated": bool(growth >= max(GROWTH * len(late), 1.0)), "queue_growth_req_s": slope}


def _work(timeline: Timeline) -> dict[str, Any]:
    """Return what the engines did: steps, preemptions, recomputed and cached tokens, the share of blocks at the peak."""
    engines = timeline.engines
    prefilled = sum(run.prefill_tokens for engine in engines for run in engine.log.runs)
    recomputed = sum(engine.recomputed for engine in engines)
    return {
        "preemptions": sum(engine.preemptions for engine in engines),
        "recomputed_tokens": recomputed,
        "recompute_share": recomputed / prefilled if prefilled else None,
        "prefill_tokens": prefilled,
        "cached_tokens": int(timeline.workload.progress.cached.sum()),
        "shareable_tokens": sum(engine.shareable for engine in engines),
        "iterations": sum(engine.steps for engine in engines),
        "busy_s": float(sum(engine.log.durations.values.sum() for engine in engines)),
        "kv_peak_share": max((engine.memory.peak / engine.memory.capacity for engine in engines), default=None),
    }
