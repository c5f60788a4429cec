"""Annealing over plans in compiled slices: a clock or Ctrl-C can come between them, and the slicing changes nothing."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from opt.core.columns import FloatArray, IntArray
from opt.core.jit import compiled
from opt.solvers.search.moves import Room, draw, propose
from opt.solvers.search.plan import Plan, Requests, first_after, resort

__all__ = ["anneal"]


@compiled
def _apply(plan: Plan, requests: Requests, room: Room, size: int, first: int, delay: int, offline: bool) -> None:
    """Carry out the move in `room`: the block from place `first` on moves by `delay`, the members to their new starts."""
    start, order, output = plan.start, plan.order, requests.output
    n = len(order)
    place, far = first, first
    soonest, latest = np.int64(1) << np.int64(62), np.int64(0)
    for k in range(size):
        i = room.members[k]
        place, far = min(place, plan.place[i]), max(far, plan.place[i])
        soonest, latest = min(soonest, start[i] + output[i]), max(latest, start[i] + output[i])
    if delay != 0:
        soonest, latest = min(soonest, start[order[first]]), max(latest, room.until[0])
    finish, far_finish = first_after(plan, output, soonest - 1), first_after(plan, output, latest)
    if delay != 0:
        for k in range(first, n):
            start[order[k]] += delay
    for k in range(size):
        start[room.members[k]] = room.begin[k]
    resort(plan, requests, place, far, finish, far_finish, offline)


@compiled
def anneal(
    plan: Plan,
    best: IntArray,
    requests: Requests,
    memory: int,
    random: npt.NDArray[np.uint64],
    room: Room,
    totals: IntArray,
    heats: FloatArray,
    span: IntArray,
    width: int,
    offline: bool,
) -> None:
    """Anneal: moves span[0] .. span[1] - 1 of a phase of span[2], cooling from heats[0] to heats[1] over the phase.

    A move that adds c to the total start is accepted with probability exp(-c/heat). `totals` holds the total start of the
    plan and of `best`, which takes over the plan when that is better and about to get worse; at the end the plan may be
    the better of the two.
    """
    fall = math.log(heats[1] / heats[0])
    for done in range(span[0], span[1]):
        heat = heats[0] * math.exp(fall * (done / span[2]))
        chance = ((draw(random) >> np.uint64(11)) + np.uint64(1)) * 2.0**-53
        limit = -heat * math.log(chance)  # drawn first, so that hopeless moves are given up early
        change, size, first, delay = propose(plan, requests, memory, random, width, room, limit, offline)
        accepted = change <= limit
        if change == 0:
            accepted = delay != 0
            for k in range(size):
                accepted |= room.begin[k] != plan.start[room.members[k]]
        if accepted:
            if change > 0 and totals[0] < totals[1]:  # about to leave the best plan so far
                totals[1] = totals[0]
                best[:] = plan.start
            _apply(plan, requests, room, size, first, delay, offline)
            totals[0] += change
        for k in range(size):
            room.out[room.members[k]] = False
