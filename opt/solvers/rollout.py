"""The receding horizon: simulate what each rule would do from here on, and do now what the best one would.

A rollout policy (Bertsekas, Tsitsiklis, Wu 1997). Candidates are rules on smallest volume first: head of line, skipping,
with places kept, in a window, at a pace. The policy looks at the next `window` waiting requests beside those that run.

With arrivals it decides at every event, in four steps, each of which may settle it:

1. Nobody fits: nobody starts.
2. All rules would start the same requests now: they start.
3. The rules are simulated until everybody has been served, in several scenarios, the same for all. Who comes next is not
   known, and as if nobody else came, large requests would start too soon. So a scenario lets `length` requests come as some
   did in the past, in a mirror: the last gap between arrivals first, in the first scenario from now on backwards, in the
   others from somewhere in the recent past. Rules cannot see a request before it comes. A rule far behind the usual one
   takes no part in later scenarios.
4. The usual rule, the best one on average, is followed unless another waits less by more than two standard errors of the
   difference over the scenarios: what is noise in a few of them should not lead away.

On a backlog, where nobody else comes (`length` 0), the rule that waits least makes a plan, `moves` changes improve it, and it
is followed until half of it has started or there is news (an eviction, an output that is not what was predicted).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, earliest
from opt.solvers.windows import drawn, improved, next_word, packed, ranked, simulated

__all__ = ["plan_window"]

CANDIDATES = 8
DEEP = 64  # places kept by the rule that stands for serial earliest fit
USUAL = 3  # that rule
SCENARIOS = 8
RECENT = 1024  # requests back, at most, from which a scenario starts
BEHIND = 0.03  # of the waits of the usual rule: one that loses more after two scenarios or later is out
ERRORS = 2.0  # standard errors of the difference by which a rule must be better than the usual one


class _Past(NamedTuple):
    """Who has come: prompts, first estimates of outputs, arrivals (n,), the order of arrivals, and how many of it have come."""

    prompt: IntArray
    output: IntArray
    arrival: IntArray
    by_arrival: IntArray
    arrived: int


class _Room(NamedTuple):
    """What the rules are simulated in: memory, what runs (`opt.solvers.windows`) and its points, a typical output, and cells."""

    memory: int
    base: IntArray
    used: int
    typical: int
    work: IntArray
    second: IntArray


@compiled
def _rule(candidate: int, width: int, memory: int) -> tuple[int, int, int]:
    """Return a candidate's reach (in token-rounds), depth and sixteenths of the pace."""
    if candidate < 4:
        return (np.int64(0), FAR, FAR, FAR)[candidate], (0, 0, 1, DEEP)[candidate], 0
    if candidate < 6:
        return (candidate - 3) * width * memory, 0, 0
    return 0, 0, (16, 13)[candidate - 6]


@compiled
def _by_volume(s: IntArray, o: IntArray) -> IntArray:
    """Return the requests by volume."""
    return ranked(s * o + o * (o + 1) // 2)


@compiled
def _typical(s: IntArray, o: IntArray) -> int:
    """Return the mean output, weighted by volume, rounded up."""
    weighted = weight = 1.0
    for i in range(len(s)):
        volume = np.float64(s[i]) * o[i] + 0.5 * o[i] * o[i]
        weighted += volume * o[i]
        weight += volume
    return np.int64(weighted / weight) + 1


@compiled
def _room(memory: int, base: IntArray, s: IntArray, o: IntArray, most: int) -> _Room:
    """Return the room for up to `most` requests, of which (s, o) are there."""
    used, size = base.shape[1], base.shape[1] + 4 * most + 8
    return _Room(memory, base, used, _typical(s, o), np.empty((4, size), np.int64), np.empty((4, size), np.int64))


@compiled
def _followed(
    candidate: int, order: IntArray, release: IntArray, s: IntArray, o: IntArray, room: _Room, start: IntArray, last: int
) -> int:
    """Simulate a candidate until everybody has started, or up to round `last`; return the sum of waits."""
    reach, depth, pace = _rule(candidate, room.typical, room.memory)
    return simulated(
        order, release, s, o, room.memory, reach, depth, pace, room.base, room.used, room.work, room.second, start, last
    )


@compiled
def _made_up(t: int, m: int, back: int, s: IntArray, o: IntArray, release: IntArray, past: _Past) -> None:
    """Let requests of the past come again in a mirror, in the places after the first m.

    With `back` 0 whoever came just before the newest comes first, as long from now as that is ago; else the mirror stands at
    the arrival of the request `back` places earlier. Before the first request, the newest has come once more (a typical gap
    before it), and so on.
    """
    newest = past.arrived - 1
    latest = past.arrival[past.by_arrival[newest]]
    place, comes = newest - back, (t + t - latest if back == 0 else t)
    gap = (latest - past.arrival[past.by_arrival[0]]) // max(1, newest)
    for k in range(m, len(s)):
        if place > 0:
            comes += past.arrival[past.by_arrival[place]] - past.arrival[past.by_arrival[place - 1]]
            place -= 1
        else:
            comes += gap
            place = newest
        i = past.by_arrival[place]
        s[k], o[k], release[k] = past.prompt[i], past.output[i], comes


@compiled
def _earliest_starts(t: int, s: IntArray, o: IntArray, room: _Room, start: IntArray) -> int:
    """Put into `start` when each of (s, o) alone could start from t on; return the least."""
    times, usage, count, after, least = room.base[0], room.base[1], room.base[2], room.base[3], FAR
    for i in range(len(s)):
        start[i] = earliest(times, usage, count, after, after[0], t, s[i], o[i], room.memory, FAR)
        least = min(least, start[i])
    return least


@compiled
def _alike(t: int, s: IntArray, o: IntArray, room: _Room) -> IntArray:
    """Return for each candidate the first one that would start the same requests at t."""
    m = len(s)
    start, alike = np.full((CANDIDATES, m), FAR), np.arange(CANDIDATES)
    order, now = _by_volume(s, o), np.full(m, t)
    for candidate in range(CANDIDATES):
        _followed(candidate, order, now, s, o, room, start[candidate], t)
        for other in range(candidate):
            if np.array_equal(start[candidate] == t, start[other] == t):
                alike[candidate] = alike[other]
                break
    return alike


@compiled
def _lead(waits: IntArray, candidate: int, scenarios: int) -> tuple[float, float]:
    """Return by how much a candidate waits less than the usual rule, on average over the scenarios, and its standard error."""
    mean, spread = 0.0, 0.0
    for k in range(scenarios):
        mean += np.float64(waits[USUAL, k] - waits[candidate, k]) / scenarios
    for k in range(scenarios):
        spread += (np.float64(waits[USUAL, k] - waits[candidate, k]) - mean) ** 2
    return mean, np.sqrt(spread / max(1, scenarios - 1) / scenarios)


@compiled
def _drop(waits: IntArray, scenarios: int, alike: IntArray, alive: npt.NDArray[np.bool_]) -> bool:
    """Drop candidates that are far behind; return whether one is left that chooses otherwise than the usual rule."""
    usual, open_still = 0.0, False
    for k in range(scenarios):
        usual += np.float64(waits[USUAL, k]) / scenarios
    for candidate in range(CANDIDATES):
        if alive[candidate] and candidate != USUAL:
            alive[candidate] = _lead(waits, candidate, scenarios)[0] >= -BEHIND * usual
            open_still = open_still or (alive[candidate] and alike[candidate] != alike[USUAL])
    return open_still


@compiled
def _best(
    t: int, m: int, s: IntArray, o: IntArray, release: IntArray, room: _Room, past: _Past, alike: IntArray, state: np.uint64
) -> tuple[np.uint64, int]:
    """Return the random state and the candidate to follow, by scenarios beside the first m requests."""
    waits, alive = np.zeros((CANDIDATES, SCENARIOS), np.int64), np.ones(CANDIDATES, np.bool_)
    start, scenarios = np.empty(len(s), np.int64), np.int64(0)
    for scenario in range(SCENARIOS):
        back = np.int64(0)
        if scenario > 0:
            state = next_word(state)
            back = drawn(state, min(RECENT, past.arrived))
        _made_up(t, m, back, s, o, release, past)
        order = _by_volume(s, o)
        for candidate in range(CANDIDATES):
            if alive[candidate]:
                waits[candidate, scenario] = _followed(candidate, order, release, s, o, room, start, FAR)
        scenarios += 1
        if scenarios >= 2 and not _drop(waits, scenarios, alike, alive):
            break
    best, best_lead = USUAL, 0.0
    for candidate in range(CANDIDATES):
        if alive[candidate] and candidate != USUAL:
            lead, error = _lead(waits, candidate, scenarios)
            if lead - ERRORS * error > best_lead:
                best, best_lead = candidate, lead - ERRORS * error
    return state, best


@compiled
def _decided(
    t: int,
    s: IntArray,
    o: IntArray,
    length: int,
    memory: int,
    past: _Past,
    state: np.uint64,
    base: IntArray,
    start: IntArray,
) -> np.uint64:
    """Put into `start` when (s, o) would start by the rule to follow now; return the random state."""
    m = len(s)
    room = _room(memory, base, s, o, m + length)
    if _earliest_starts(t, s, o, room, start) > t:
        return state
    alike, best = _alike(t, s, o, room), USUAL
    if alike.max() > 0:
        prompt, output, release = np.empty(m + length, np.int64), np.empty(m + length, np.int64), np.full(m + length, t)
        prompt[:m], output[:m] = s, o
        state, best = _best(t, m, prompt, output, release, room, past, alike, state)
    _followed(best, _by_volume(s, o), np.full(m, t), s, o, room, start, FAR)
    return state


@compiled
def _planned(
    t: int, s: IntArray, o: IntArray, memory: int, moves: int, state: np.uint64, base: IntArray, start: IntArray
) -> np.uint64:
    """Plan (s, o) as if nobody else came, by the rule that waits least, improved; put the starts into `start`."""
    m, order, now = len(s), _by_volume(s, o), np.full(len(s), t)
    room = _room(memory, base, s, o, m)
    work, used, least, trial = room.work, room.used, FAR, np.empty(m, np.int64)
    for candidate in range(CANDIDATES):
        waits = _followed(candidate, order, now, s, o, room, trial, FAR)
        if waits < least:
            least, start[:] = waits, trial
    if moves == 0 or m < 2:
        return state
    # Packed in order of start and nobody before its start, a feasible plan comes out as it is. Packed from now on it often
    # comes out better.
    order, held = ranked(start), start.copy()
    value = packed(order, held, s, o, memory, base, used, work, start, FAR)
    if packed(order, now, s, o, memory, base, used, work, trial, FAR) <= value:
        held, start[:] = now, trial
        value = packed(order, held, s, o, memory, base, used, work, start, FAR)
    return improved(order, held, s, o, memory, base, used, work, start, value, moves, state)


@compiled
def plan_window(
    t: int,
    queue: IntArray,
    waiting: int,
    held: IntArray,
    got: IntArray,
    estimate: IntArray,
    first: IntArray,
    prompt: IntArray,
    arrival: IntArray,
    by_arrival: IntArray,
    arrived: int,
    memory: int,
    window: int,
    length: int,
    moves: int,
    state: np.uint64,
    news: bool,
    planned: IntArray,
    base: IntArray,
    chosen: IntArray,
) -> tuple[np.uint64, int, int]:
    """Put into `chosen` who starts at t; return the random state, how many start, and when somebody else may.

    Args:
        t: the round.
        queue, waiting: who waits, by key, and how many of them.
        held, got, estimate: (n,) tokens that a request holds when it starts, output that it has, estimate of its whole output.
        first, prompt, arrival, by_arrival, arrived: who has come (see `_Past`).
        memory: tokens.
        window, length, moves: see the module.
        state: of the random numbers.
        news: whether plans may have become wrong.
        planned: (n,) starts planned on a backlog, -1 for none; brought up to date.
        base: what runs, a profile from t on.
        chosen: takes the indices.
    """
    m, still, late = min(waiting, window), np.int64(0), news  # without news, whoever is planned is among the first m
    for place in range(m):
        if planned[queue[place]] >= 0:
            still += 1
            late = late or planned[queue[place]] < t
    if length > 0 or late or 2 * still < m:
        s, o, start = np.empty(m, np.int64), np.empty(m, np.int64), np.empty(m, np.int64)
        for place in range(m):
            i = queue[place]
            s[place], o[place] = held[i], estimate[i] - got[i]
        if length > 0:
            past = _Past(prompt, first, arrival, by_arrival, arrived)
            state = _decided(t, s, o, length, memory, past, state, base, start)
        else:
            state = _planned(t, s, o, memory, moves, state, base, start)
        for place in range(waiting):
            planned[queue[place]] = start[place] if place < m else -1
    starting, wake = np.int64(0), FAR
    for place in range(m):
        i = queue[place]
        if planned[i] == t:
            chosen[starting] = i
            starting += 1
        elif planned[i] > t:
            wake = min(wake, planned[i])
    return state, starting, (t + 1 if wake == FAR else wake)
