"""The round clock: policies that know only what has arrived and what was predicted, in the model of rounds.

A request produces one token a round. A policy sees a `View` (prompts, arrivals, predictions, caps) that has no outputs,
and of that only requests that have arrived. Outputs end requests, and nothing else (`opt.solvers.online`). Where outputs run
longer than predicted, the memory may overflow: then requests are evicted, and either start anew or come back with what they
had as part of their prompt. Every stretch of activity is certified like a schedule, and what was computed twice is counted.

With exact predictions `fcfs`, `sof`, `svf` and the other orders, head of line and `-skip`, are the packers of the same name.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np

from opt.core.certify import check_schedule
from opt.core.columns import IntArray, frozen
from opt.core.errors import CertificateError
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Bound, Schedule

__all__ = ["ROUND_POLICIES", "Caution", "RoundPolicy", "Rounds", "View", "clairvoyant_bound", "run_rounds", "view_of"]


@dataclass(frozen=True)
class View:
    """What may be known of requests before they have run: everything but their outputs; (n,) each.

    `predicted`, `low` and `high` are -1 where nothing is predicted; `most` is the longest possible output, by the memory and
    the client's cap.
    """

    memory: int
    prompt: IntArray
    arrival: IntArray
    predicted: IntArray
    low: IntArray
    high: IntArray
    most: IntArray


def view_of(instance: Instance) -> View:
    """Return what a policy may know of an instance."""
    none = np.full(instance.n, -1, np.int64)
    point, low, high = (
        none if column is None else column for column in (instance.predicted, instance.predicted_low, instance.predicted_high)
    )
    most = instance.memory - instance.prompt
    if instance.max_output is not None:
        most = np.where(instance.max_output >= 0, np.minimum(most, instance.max_output), most)
    return View(instance.memory, instance.prompt, instance.arrival, point, low, high, most)


@dataclass(frozen=True)
class RoundPolicy:
    """Who starts when, in terms of `opt.solvers.online`.

    Args:
        key: an order of `opt.solvers.orders.KEYS`, on estimates.
        reach: how far past blocked requests the policy looks, in typical outputs; 0 is head of line, -1 everybody.
        depth: places kept for blocked requests at their earliest fit.
        pace: sixteenths of the pace of `staggered`; 0 for none.
        window: requests that the receding horizon plans at once; 0 for none, and then the next two say nothing.
        length: requests it lets come in its simulations, made up from the past.
        moves: changes its search tries on a plan.
    """

    key: str = "svf"
    reach: int = 0
    depth: int = 0
    pace: int = 0
    window: int = 0
    length: int = 0
    moves: int = 0


TRUSTS = ("point", "low", "high", "cap")
VICTIMS = ("last", "least-done", "least-estimate")


@dataclass(frozen=True)
class Caution:
    """What a policy makes of predictions, and what it does when they are wrong.

    Args:
        trust: the prediction it plans with: "point", "low" (and raises it when exceeded: A_min of Chen, Ye, Zhou, arXiv
            2508.14544), "high" (A_max there), or "cap" (the longest possible). What is missing is replaced: a point by the
            high end, a high end by the cap, a low end by 1.
        margin: percent added to it.
        growth: percent by which a prediction is raised when a request outgrows it; 0: by one token.
        victim: who is evicted when memory would overflow: "last" (to start), "least-done", "least-estimate".
        restart: evicted requests lose what they have produced; else it becomes part of their prompt.
    """

    trust: Literal["point", "low", "high", "cap"] = "point"
    margin: int = 0
    growth: int = 0
    victim: Literal["last", "least-done", "least-estimate"] = "last"
    restart: bool = False

    def __post_init__(self) -> None:
        for name, value, known in (("trust", self.trust, TRUSTS), ("victim", self.victim, VICTIMS)):
            if value not in known:
                raise ValueError(f"{name} = {value!r}: must be one of {', '.join(known)}")
        for name, percent in (("margin", self.margin), ("growth", self.growth)):
            if type(percent) is not int or not 0 <= percent <= 1000:
                raise ValueError(f"{name} = {percent!r}: must be an integer from 0 to 1000 (percent)")


EVERYBODY, DEPTH, WINDOW, LENGTH = -1, 64, 64, 128
_ORDERS = ("fcfs", "sof", "lof", "total-size", "svf", "best-fit", "random")

ROUND_POLICIES: dict[str, RoundPolicy] = {
    **{name: RoundPolicy(name) for name in _ORDERS},
    **{f"{name}-skip": RoundPolicy(name, reach=EVERYBODY) for name in _ORDERS},
    **{f"{name}-easy": RoundPolicy(name, reach=EVERYBODY, depth=1) for name in _ORDERS},
    **{f"{name}-pack": RoundPolicy(name, reach=EVERYBODY, depth=DEPTH) for name in _ORDERS},
    "svf-window": RoundPolicy("svf", reach=1),
    "svf-paced": RoundPolicy("svf", pace=16),
    "svf-fast": RoundPolicy("svf", pace=13),
    "horizon": RoundPolicy("svf", window=WINDOW, length=LENGTH),
}


@dataclass(frozen=True, eq=False)
class Rounds:
    """What happened: certified activity, and its figures.

    Args:
        instance: the requests, with their true outputs.
        policy: its name.
        activity: (k, 4) rows in order of their ends: request, round after which it began, tokens held then, rounds run.
        finish: (n,) completion rounds.
        caution: how predictions were used.
    """

    instance: Instance
    policy: str
    activity: IntArray
    finish: IntArray
    caution: Caution = field(default_factory=Caution)

    @cached_property
    def total_latency(self) -> int:
        """The sum of `finish - arrival`."""
        return exact_sum(self.finish - self.instance.arrival)

    @property
    def mean_latency(self) -> float | None:
        """Rounds per request; None without requests."""
        return self.total_latency / self.instance.n if self.instance.n else None

    @property
    def evictions(self) -> int:
        """Stretches of activity that ended before the request did."""
        return len(self.activity) - self.instance.n

    @cached_property
    def recomputed_tokens(self) -> int:
        """Tokens whose cache was thrown away: prompt and output of every evicted request, all to be computed again."""
        request, begun, held, ran = self.activity.T
        evicted = begun + ran < self.finish[request]
        return exact_sum((held + ran)[evicted])

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, where nobody was evicted; else None."""
        if self.evictions:
            return None
        start = np.empty(self.instance.n, np.int64)
        start[self.activity[:, 0]] = self.activity[:, 1]
        return check_schedule(self.instance, start)

    def summary(self) -> dict[str, Any]:
        """Return the figures by name (JSON values)."""
        return {
            "policy": self.policy,
            "total_latency": self.total_latency,
            "mean_latency": self.mean_latency,
            "max_latency": int((self.finish - self.instance.arrival).max(initial=0)),
            "evictions": self.evictions,
            "recomputed_tokens": self.recomputed_tokens,
        }


def run_rounds(
    instance: Instance, policy: str | RoundPolicy = "svf", *, caution: Caution | None = None, ageing: int = 0, seed: int = 0
) -> Rounds:
    """Run a policy on an instance and return what happened, certified.

    Args:
        instance: the requests, arrivals in rounds.
        policy: a name in `ROUND_POLICIES`, or one of your own.
        caution: how predictions are used; by default they are trusted, and believed to be exact where there are none at all.
        ageing: key units that a waiting request gains in every round, as in `opt.solvers.orders`.
        seed: of the order `random` and of a search.

    Raises:
        ValueError: the policy is not known, or `ageing` is out of range.
        InstanceError: arrivals are in seconds.

    >>> four = Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
    >>> run_rounds(four, "svf").total_latency
    25
    """
    name, rule = (policy, _known(policy)) if isinstance(policy, str) else ("custom", policy)
    careful = caution or Caution()
    blind = caution is None and instance.predicted is None and instance.predicted_low is None and instance.predicted_high is None
    view = view_of(instance)
    first = instance.output if blind else estimates(view, careful)
    activity = _run(instance, view, first, rule, careful, ageing, seed)
    return _certified(instance, name, activity, careful)


def _known(name: str) -> RoundPolicy:
    if name in ROUND_POLICIES:
        return ROUND_POLICIES[name]
    close = difflib.get_close_matches(name, ROUND_POLICIES, 3)
    hint = f"; did you mean {' or '.join(close)}?" if close else ""
    raise ValueError(f"unknown round policy {name!r}{hint}; known: {', '.join(ROUND_POLICIES)}")


def estimates(view: View, caution: Caution) -> IntArray:
    """Return the first estimate (n,) of every output, from 1 to the longest possible."""
    high = np.where(view.high >= 0, view.high, view.most)
    said: Mapping[str, IntArray] = {
        "point": np.where(view.predicted >= 0, view.predicted, high),
        "low": np.where(view.low >= 0, view.low, 1),
        "high": high,
        "cap": view.most,
    }
    chosen = said[caution.trust]
    first: IntArray = np.clip(chosen + chosen * caution.margin // 100, 1, view.most)
    return first


def _run(
    instance: Instance, view: View, first: IntArray, rule: RoundPolicy, caution: Caution, ageing: int, seed: int
) -> IntArray:
    """Run the compiled loop; of the instance it takes the outputs, to end requests, and the policy never sees them."""
    from opt.solvers.online import online_rounds
    from opt.solvers.orders import KEYS, order_of
    from opt.solvers.staggered import pace_ticks

    believed = Instance(view.memory, view.prompt, first, arrival=view.arrival)
    order_of(believed, rule.key, seed=seed, ageing=ageing)  # refuses an ageing out of range
    keys: IntArray = KEYS[rule.key](believed, seed) + ageing * view.arrival
    activity: IntArray = online_rounds(
        instance.output,
        view.prompt,
        view.arrival,
        view.memory,
        first,
        view.most,
        keys,
        kind=rule.key,
        ageing=ageing,
        growth=caution.growth,
        restart=caution.restart,
        victim=caution.victim,
        reach=rule.reach,
        depth=rule.depth,
        ticks=pace_ticks(believed, rule.pace) if rule.pace else None,
        window=rule.window,
        length=rule.length,
        moves=rule.moves,
        seed=seed,
    )
    return activity


def _certified(instance: Instance, policy: str, activity: IntArray, caution: Caution) -> Rounds:
    """Check every stretch as if it were a request, then that the stretches of a request add up to it."""
    request, begun, held, ran = activity.T
    stretches = Instance(instance.memory, held, ran, arrival=instance.arrival[request])
    check_schedule(stretches, begun)
    order = np.lexsort((begun, request))
    who, start, tokens, rounds = activity[order].T
    finish = np.zeros(instance.n, np.int64)
    np.maximum.at(finish, who, start + rounds)
    same = who[1:] == who[:-1]
    later, before = np.flatnonzero(same) + 1, np.flatnonzero(same)
    first = np.ones(len(who), bool)
    first[later] = False
    produced = rounds.copy()
    if not caution.restart:
        produced = np.zeros(instance.n, np.int64)
        np.add.at(produced, who, rounds)
        wrong = np.flatnonzero(tokens[later] != tokens[before] + rounds[before])
    else:
        produced = rounds[np.flatnonzero(np.append(~same, True))]
        wrong = np.flatnonzero(tokens[later] != tokens[before])
    whole = first.sum() == instance.n and bool((tokens[first] == instance.prompt).all())
    apart = bool((start[later] >= start[before] + rounds[before]).all())
    if not whole or wrong.size or not apart or not np.array_equal(produced, instance.output):
        raise CertificateError("the stretches of activity do not add up to the requests")
    return Rounds(instance, policy, frozen(activity), frozen(finish), caution)


def clairvoyant_bound(instance: Instance) -> Bound:
    """Return a certified lower bound on the total latency of any policy, even one that knows the future.

    It also holds for policies that evict. One whose tokens are lost leaves, in its last stretch, a schedule without eviction.
    One that goes on later has used the same memory, token by token, only part of it earlier relative to its end, so its end
    is no less than its mean busy time plus the tail of `mean-busy-time`.
    """
    from opt.solvers.door import lower_bound

    return lower_bound(instance, "best")
