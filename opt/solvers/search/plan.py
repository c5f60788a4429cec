"""A plan that local search can change: starts, with the requests kept sorted by start and by finish."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from opt.core.columns import IntArray
from opt.core.instance import Instance
from opt.core.jit import compiled

__all__ = ["Plan", "Requests", "first_after", "new_plan", "requests_of", "resort"]


class Requests(NamedTuple):
    """What the compiled loops need of an instance, (n,) each."""

    prompt: IntArray
    output: IntArray
    arrival: IntArray


class Plan(NamedTuple):
    """A feasible plan, (n,) each.

    `order` lists the requests by start and `by_finish` by finish (ties as they come), `place` is the inverse of
    `order`, and `slack[k]` is how far all requests from place k on could start earlier before one of them would start
    before its arrival.
    """

    start: IntArray
    order: IntArray
    place: IntArray
    by_finish: IntArray
    slack: IntArray


def requests_of(instance: Instance) -> Requests:
    """Return the requests' columns for the compiled loops."""
    return Requests(*(np.ascontiguousarray(c) for c in (instance.prompt, instance.output, instance.arrival)))


def new_plan(requests: Requests, start: IntArray) -> Plan:
    """Return a plan with these starts."""
    n = len(start)
    order = np.argsort(start, kind="stable")
    place = np.empty(n, np.int64)
    place[order] = np.arange(n)
    by_finish = np.argsort(start + requests.output, kind="stable")
    slack = np.minimum.accumulate((start - requests.arrival)[order][::-1])[::-1].copy()
    return Plan(start.copy(), order, place, by_finish, slack)


@compiled
def first_after(plan: Plan, output: IntArray, t: int) -> int:
    """Return the first position in `by_finish` whose request finishes after round t."""
    low, high = np.int64(0), np.int64(len(plan.by_finish))
    while low < high:
        middle = (low + high) // 2
        i = plan.by_finish[middle]
        if plan.start[i] + output[i] > t:
            high = middle
        else:
            low = middle + 1
    return low


@compiled
def resort(plan: Plan, requests: Requests, place: int, far: int, finish: int, far_finish: int, offline: bool) -> None:
    """Bring `order`, `place`, `by_finish` and `slack` up to date with `start` after a move.

    Nothing before `place` in `order` and `finish` in `by_finish` has moved, except that others may come between;
    and what lies behind `far` and `far_finish` is in order among itself.
    """
    start, order, by_finish, output = plan.start, plan.order, plan.by_finish, requests.output
    n = len(order)
    least, k = place, max(place, 1)
    while k < n:
        i, at = order[k], k
        key = start[i]
        while at > 0 and start[order[at - 1]] > key:
            order[at] = order[at - 1]
            at -= 1
        order[at] = i
        least = min(least, at)
        k += 1
        if k > far + 1 and at == k - 1:
            break
    for q in range(least, k):
        plan.place[order[q]] = q
    k = max(finish, 1)
    while k < n:
        i, at = by_finish[k], k
        key = start[i] + output[i]
        while at > 0 and start[by_finish[at - 1]] + output[by_finish[at - 1]] > key:
            by_finish[at] = by_finish[at - 1]
            at -= 1
        by_finish[at] = i
        k += 1
        if k > far_finish + 1 and at == k - 1:
            break
    if not offline:
        room = np.int64(1) << np.int64(62)
        for k in range(n - 1, -1, -1):
            room = min(room, start[order[k]] - requests.arrival[order[k]])
            plan.slack[k] = room
