"""The one move behind all others: take a few requests out, put them back differently, and let the rest close up.

The requests that start after the window which is worked on form a rigid *block*. Members go back one by one, in some order,
at their earliest fit on what starts before; then the block follows at the earliest round at which all of it fits, so
a round gained in the window is gained by everybody behind it; then members that were sent behind the block fill its holes.
Swaps, insertions, block moves, exchanges with far requests, holding back and ruin-and-recreate differ only in who is
taken out, in which order they go back and from which round each may start.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, advance, earliest, occupy, split
from opt.solvers.search.block import Block, Profile, block_profile, least_delay, overlay
from opt.solvers.search.plan import Plan, Requests, first_after

__all__ = ["WIDEST", "Room", "below", "new_room", "propose"]

WIDEST = 64  # members of a move, at most
HELD = 64  # rounds before its present start from which a member that is held may start, at most
GLANCE = 32  # segments of the block looked at first: most moves fail there


class Room(NamedTuple):
    """What a move works in: its members, the round each may start from and does start at, and scratch profiles."""

    members: IntArray
    least: IntArray
    begin: IntArray
    out: npt.NDArray[np.bool_]
    until: IntArray
    profile: Profile
    block: Block


def new_room(n: int) -> Room:
    """Return room for the moves of n requests."""
    size = 4 * n + 4 * WIDEST
    profile = Profile(*(np.zeros(size, np.int64) for _ in range(4)))
    block = Block(*(np.zeros(2 * n + 2, np.int64) for _ in range(3)))
    members, least, begin, until = (np.zeros(size, np.int64) for size in (WIDEST, WIDEST, WIDEST, 1))
    return Room(members, least, begin, np.zeros(n, np.bool_), until, profile, block)


@compiled
def draw(random: npt.NDArray[np.uint64]) -> np.uint64:
    """Return the next 64 random bits (xorshift64*: Vigna, ACM Trans. Math. Softw. 42 (2016))."""
    x: np.uint64 = random[0]
    x ^= x >> np.uint64(12)
    x ^= x << np.uint64(25)
    x ^= x >> np.uint64(27)
    random[0] = x
    return x * np.uint64(2685821657736338717)


@compiled
def below(random: npt.NDArray[np.uint64], n: int) -> int:
    """Return a random integer in 0 .. n-1, for n < 2**31."""
    return np.int64(((draw(random) >> np.uint64(32)) * np.uint64(n)) >> np.uint64(32))


@compiled
def near(random: npt.NDArray[np.uint64], n: int) -> int:
    """Return a random integer in 0 .. n-1, each octave (1, 2-3, 4-7, ..) as likely as another."""
    bits = np.int64(0)
    while (np.int64(1) << bits) < n:
        bits += 1
    return below(random, min(n, np.int64(1) << below(random, bits + 1)))


@compiled
def _prefix_profile(plan: Plan, requests: Requests, out: npt.NDArray[np.bool_], first: int, t: int, profile: Profile) -> int:
    """Write the profile after round t of the requests before place `first` that are not `out`; return points used."""
    start, order, place, by_finish = plan.start, plan.order, plan.place, plan.by_finish
    prompt, output = requests.prompt, requests.output
    times, usage, count, after = profile
    at = first_after(plan, output, t)
    left = first - at  # whoever has finished by round t is before place `first`
    level, active = np.int64(0), np.int64(0)
    fresh = first
    while fresh > 0 and start[order[fresh - 1]] > t:
        fresh -= 1
    points = np.int64(0)  # members in order of finish, first; the segments overwrite them from the front
    while left > 0:
        i = by_finish[at]
        at += 1
        if place[i] < first:
            left -= 1
            if not out[i] and place[i] < fresh:
                points += 1
                usage[points] = prompt[i] - start[i]
                times[points] = start[i] + output[i]
                level += prompt[i] - start[i]
                active += 1
    times[0], usage[0], count[0] = t, np.int64(0), np.int64(0)
    used, k = np.int64(1), np.int64(1)
    while k <= points:
        end = times[k]
        held = level + active * end
        running = active
        while k <= points and times[k] == end:
            level -= usage[k]
            active -= 1
            k += 1
        times[used], usage[used], count[used] = end, held, running
        after[used - 1] = used
        used += 1
    after[used - 1] = -1
    for q in range(fresh, first):
        i = order[q]
        if not out[i]:
            used = _put(profile, used, start[i], prompt[i], output[i])
    return used


@compiled
def _put(profile: Profile, used: int, t: int, s: int, o: int) -> int:
    """Add a request started at t to the profile; return points used."""
    times, usage, count, after = profile
    for k in range(used, used + 2):  # the ledger takes a new profile to be empty beyond the points used
        usage[k], count[k] = 0, 0
    point = advance(times, after, np.int64(0), t)
    if times[point] < t:
        used = split(times, usage, count, after, point, used, t)
        point = after[point]
    return occupy(times, usage, count, after, point, used, t, s, o)


@compiled
def _fit(profile: Profile, t: int, s: int, o: int, memory: int) -> int:
    """Return the earliest start from t on."""
    times, usage, count, after = profile
    point = advance(times, after, np.int64(0), t)
    return earliest(times, usage, count, after, after[point], t, s, o, memory, FAR)


@compiled
def _choose(plan: Plan, random: npt.NDArray[np.uint64], width: int, room: Room) -> tuple[int, int, int]:
    """Take members out: a window in order of start, and often one or two from elsewhere.

    Return how many there are, and the first and last place (exclusive) of the window.
    """
    order, out, members = plan.order, room.out, room.members
    n = len(order)
    first = below(random, n)
    last = min(n, first + 1 + near(random, width))
    size = np.int64(0)
    for k in range(first, last):
        members[size] = order[k]
        out[order[k]] = True
        size += 1
    for _ in range(below(random, np.int64(3))):
        other = last + near(random, n - last) if below(random, np.int64(2)) == 0 and last < n else first - 1 - near(random, first)
        if other < 0 or other >= n or out[order[other]]:
            continue
        at = below(random, size + 1)
        for k in range(size, at, -1):
            members[k] = members[k - 1]
        members[at] = order[other]
        out[order[other]] = True
        size += 1
    return size, first, last


@compiled
def _mix(random: npt.NDArray[np.uint64], members: IntArray, size: int) -> None:
    """Change the order in which members go back: not at all, a move, a swap, or a shuffle."""
    kind = below(random, np.int64(8))
    if size < 2:
        return
    if kind < 5:
        a, b = below(random, size), below(random, size)
        moved = members[a]
        step = 1 if b > a else -1
        while a != b:
            members[a] = members[a + step]
            a += step
        members[b] = moved
    elif kind < 7:
        a, b = below(random, size), below(random, size)
        members[a], members[b] = members[b], members[a]
    else:
        for k in range(size - 1, 0, -1):
            j = below(random, k + 1)
            members[k], members[j] = members[j], members[k]


@compiled
def _set_least(plan: Plan, requests: Requests, random: npt.NDArray[np.uint64], room: Room, size: int, early: int) -> None:
    """Say from which round each member may start: from `early` on, or not much before it does now."""
    hold, slack = below(random, np.int64(4)), near(random, np.int64(HELD))
    for k in range(size):
        i = room.members[k]
        held = hold == 1 or (hold == 2 and below(random, np.int64(2)) == 0)
        room.least[k] = max(early, requests.arrival[i])
        if held:
            room.least[k] = max(room.least[k], plan.start[i] - slack)


@compiled
def _last_point(profile: Profile, k: int) -> int:
    """Return the round of the last break point, searching on from k."""
    while profile.after[k] >= 0:
        k = profile.after[k]
    last: int = profile.times[k]
    return last


@compiled
def _put_back(
    plan: Plan,
    requests: Requests,
    memory: int,
    random: npt.NDArray[np.uint64],
    room: Room,
    span: tuple[int, int],
    late: int,
    used: int,
    end: int,
) -> tuple[int, int]:
    """Put members span[0] .. span[1]-1 back, each at its earliest fit; the one called `late` a while after that.

    Return the change of their starts, FAR if one would run past `end`, and the points used.
    """
    prompt, output = requests.prompt, requests.output
    change = np.int64(0)
    for k in range(span[0], span[1]):
        i = room.members[k]
        t = _fit(room.profile, room.least[k], prompt[i], output[i], memory)
        if k == late:
            t = _fit(room.profile, t + 1 + near(random, output[i]), prompt[i], output[i], memory)
        if t + output[i] > end:
            return FAR, used
        used = _put(room.profile, used, t, prompt[i], output[i])
        room.begin[k] = t
        change += t - plan.start[i]
    return change, used


@compiled
def _follow(
    plan: Plan,
    requests: Requests,
    memory: int,
    room: Room,
    last: int,
    delay: int,
    until: int,
    limit: float,
    following: int,
) -> tuple[int, int, bool]:
    """Find the least delay of the block, from `delay` on; give up once `following` requests are over `limit` late in all.

    Return the delay, the segments of `room.block` and whether those are all. A part of the block already tells that a
    delay is too small, so the block is written in growing parts.
    """
    most = np.int64(GLANCE)
    while True:
        segments, whole = block_profile(plan, requests, room.out, last, until, most, room.block)
        delay = least_delay(room.profile, room.block, segments, delay, memory)
        if segments < most or delay * following > limit:
            return delay, segments, whole
        most *= 4


@compiled
def propose(
    plan: Plan,
    requests: Requests,
    memory: int,
    random: npt.NDArray[np.uint64],
    width: int,
    room: Room,
    limit: float,
    offline: bool,
) -> tuple[int, int, int, int]:
    """Try a random move; return its change of the total start, its members, the block's first place, and the block's delay.

    Members are `room.members` with their new starts in `room.begin`. They stay marked in `room.out`: the caller decides,
    then clears the marks. The change is FAR where it would surely be above `limit`.
    """
    start, order = plan.start, plan.order
    n = len(order)
    size, first, last = _choose(plan, random, width, room)
    while last < n and room.out[order[last]]:
        last += 1
    _mix(random, room.members, size)
    back = max(0, first - 1 - near(random, np.int64(4)))
    early = start[order[back]] if first > 0 else np.int64(0)
    _set_least(plan, requests, random, room, size, early)
    behind = np.int64(0)
    if last < n and below(random, np.int64(5)) < 2:
        behind = 1 + below(random, min(size, np.int64(2)))
    used = _prefix_profile(plan, requests, room.out, first, early, room.profile)
    room.until[0] = _last_point(room.profile, used - 1)
    late = below(random, size) if below(random, np.int64(6)) == 0 else np.int64(-1)
    ahead = size - behind
    change, used = _put_back(plan, requests, memory, random, room, (np.int64(0), ahead), late, used, FAR)
    if last == n:
        return change, size, last, np.int64(0)
    possible = start[order[last]] if offline else plan.slack[last]
    delay = -min(possible, start[order[last]] - early)
    until = _last_point(room.profile, np.int64(0)) - delay
    following, saved = n - last, np.int64(0)
    for k in range(size):
        i = room.members[k]
        following -= plan.place[i] > last
        if k >= ahead:
            until = max(until, start[i] + requests.output[i] + near(random, np.int64(8) * requests.output[i]))
            saved += min(0, room.least[k] - start[i])
    delay, segments, whole = _follow(plan, requests, memory, room, last, delay, until, limit - change - saved, following)
    change += delay * following
    if change + saved > limit:
        return FAR, size, last, delay
    if behind > 0:
        used = overlay(room.profile, used, room.block, segments, delay)
        end = FAR if whole else room.block.times[segments - 1] + delay
        more, used = _put_back(plan, requests, memory, random, room, (ahead, size), np.int64(-1), used, end)
        change = FAR if more == FAR else change + more
    return change, size, last, delay
