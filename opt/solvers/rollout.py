"""The receding horizon: simulate what each rule would do from here on, follow the best one, and look again soon.

A rollout policy (Bertsekas, Tsitsiklis, Wu 1997). At every piece of news (an arrival, an eviction, an output that is not
what was predicted), and when half of what was planned has started, each candidate rule (smallest volume first: head of line,
skipping, with places kept, in a window, at a pace) is simulated over the next `window` waiting requests beside those that
run. The best rule's starts are the plan until the next news.

Who has not arrived is not known, and a plan made as if nobody else came starts large requests too soon. So the simulation
also lets `length` requests come that the policy makes up from what it has seen: the past in a mirror, the last gap between
arrivals first. Rules cannot see them before they come. (Without them a backlog is planned better and a stream worse.)
One scenario is noisy, so a candidate's regret counts together with its decayed mean regret so far, and the rule that is best on
average is left only for one that is better by a margin.

With `moves > 0` the plan is then improved on the requests that are there; meant for backlogs, where nobody else comes.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR
from opt.solvers.windows import improved, packed, ranked, simulated

__all__ = ["CANDIDATES", "plan_window"]

CANDIDATES = 8
DECAY = 0.8  # of the mean regret, a plan
DEEP = 64  # places kept by the rule that stands for serial earliest fit
USUAL = 3  # that rule: the best one on average, from which a scenario's noise should not lead away
MARGIN = 0.01  # of the waits, by which another must be better


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
def _made_up(
    t: int,
    m: int,
    length: int,
    prompt: IntArray,
    first: IntArray,
    arrival: IntArray,
    by_arrival: IntArray,
    arrived: int,
    s: IntArray,
    o: IntArray,
    release: IntArray,
) -> int:
    """Let the requests before the newest come again, the last one first, as long from now as they are ago; return the total."""
    total = m
    for place in range(arrived - 2, max(arrived - 2 - length, -1), -1):
        i = by_arrival[place]
        s[total], o[total], release[total] = prompt[i], first[i], 2 * t - arrival[i]
        total += 1
    return total


@compiled
def _best_rule(
    s: IntArray,
    o: IntArray,
    release: IntArray,
    memory: int,
    width: int,
    base: IntArray,
    used: int,
    work: IntArray,
    second: IntArray,
    regret: FloatArray,
) -> int:
    """Return the candidate of least regret, here and in the past (`regret`, decayed means, brought up to date)."""
    waits, start, order = np.empty(CANDIDATES, np.int64), np.empty(len(s), np.int64), _by_volume(s, o)
    for candidate in range(CANDIDATES):
        reach, depth, pace = _rule(candidate, width, memory)
        waits[candidate] = simulated(order, release, s, o, memory, reach, depth, pace, base, used, work, second, start)
    least, best, best_score = waits.min(), 0, np.inf
    for candidate in range(CANDIDATES):
        fresh = np.float64(waits[candidate] - least)
        score = fresh + regret[candidate] + (0.0 if candidate == USUAL else MARGIN * least)
        regret[candidate] = DECAY * regret[candidate] + (1 - DECAY) * fresh
        if score < best_score:
            best, best_score = candidate, score
    return best


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
    regret: FloatArray,
    news: bool,
    planned: IntArray,
    profile: IntArray,
    used: int,
    chosen: IntArray,
) -> tuple[np.uint64, int, int]:
    """Put into `chosen` who starts at t; return the random state, how many start, and when somebody else will."""
    m, fresh, still = min(waiting, window), news, np.int64(0)  # without news, whoever is planned is among the first m
    for place in range(m):
        if planned[queue[place]] >= 0:
            still += 1
            fresh = fresh or planned[queue[place]] < t
    if fresh or 2 * still < m:
        s, o = np.empty(m + length, np.int64), np.empty(m + length, np.int64)
        release, start = np.full(m + length, t), np.empty(m, np.int64)
        for place in range(m):
            i = queue[place]
            s[place], o[place] = held[i], estimate[i] - got[i]
        total = _made_up(t, m, length, prompt, first, arrival, by_arrival, arrived, s, o, release)
        state = _planned(m, s[:total], o[:total], release[:total], memory, moves, state, regret, profile[:, :used], start)
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


@compiled
def _planned(
    m: int,
    s: IntArray,
    o: IntArray,
    release: IntArray,
    memory: int,
    moves: int,
    state: np.uint64,
    regret: FloatArray,
    base: IntArray,
    start: IntArray,
) -> np.uint64:
    """Plan the first m requests by the rule that is best for all of them; put their starts into `start`."""
    used, size = base.shape[1], base.shape[1] + 4 * len(s) + 8
    work, second = np.empty((4, size), np.int64), np.empty((4, size), np.int64)
    width = _typical(s[:m], o[:m])
    best = _best_rule(s, o, release, memory, width, base, used, work, second, regret)
    reach, depth, pace = _rule(best, width, memory)
    mine, yours = s[:m].copy(), o[:m].copy()
    now = release[:m].copy()
    order = _by_volume(mine, yours)
    simulated(order, now, mine, yours, memory, reach, depth, pace, base, used, work, second, start)
    if moves == 0 or m < 2:
        return state
    # Packed in order of start and nobody before its start, a feasible plan comes out as it is. Packed from now on it often
    # comes out better.
    order = ranked(start)
    held = start.copy()
    value = packed(order, held, mine, yours, memory, base, used, work, start, FAR)
    free = start.copy()
    if packed(order, now, mine, yours, memory, base, used, work, free, FAR) <= value:
        held, start[:] = now, free
        value = packed(order, held, mine, yours, memory, base, used, work, start, FAR)
    return improved(order, held, mine, yours, memory, base, used, work, start, value, moves, state)
