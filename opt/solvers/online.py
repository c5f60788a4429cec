"""Admission in rounds when the future is not known: one compiled loop for requests that arrive and outputs that surprise.

Between rounds t and t + 1 the loop lets finished requests go, queues who has arrived, makes room where the next round
would overflow, and asks the admission rule who starts. Then it jumps to the next round in which any of this can happen.

The rules differ in two numbers and a pace. They walk the queue in order of a key, and start whoever fits beside the
running requests for its whole (estimated) life:

* `reach`: the walk stops once the requests that were passed over weigh more than the memory holds in this many typical
  outputs (the mean estimate, weighted by volume, of all that have arrived). 0 is strict head of line, -1 lets everybody
  try (skipping), 1 or 2 is the window of `staggered`, made from what is known alone.
* `depth`: the first so many that do not fit keep a place at their earliest fit, which nobody behind them may delay:
  0 for skipping, 1 is EASY backfilling (Lifka 1995), and with a place for everybody it is serial earliest fit over the
  requests that are there, made anew at every event.
* `ticks`: a pace as in `opt.solvers.staggered`.

With `window > 0` a receding horizon (`opt.solvers.rollout`) decides instead.

The rules see prompts, estimates of outputs, arrivals that have come, and when requests began. True outputs are an argument
of the outer loop alone: it uses them to find out who has just finished, and nothing else.

An estimate that a request outgrows is raised to its next token, or by a share. When the next round would overflow, victims
are evicted until it does not: the one that started last, the one with least done, or the one with the least estimate (the
order of A_min, Chen, Ye, Zhou, arXiv 2508.14544, in our reading). A victim joins the queue again. Either its tokens are
lost and generated again (`restart`), or they are kept as text and it comes back with a longer prompt (recompute). Some
request is never chosen (the first to start; the one with most done; the largest estimate, which only grows), runs to its
end, and so the loop ends.
"""

from __future__ import annotations

import numpy as np

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.ledger import FAR, advance, earliest
from opt.solvers.rollout import plan_window
from opt.solvers.staggered import TICKS
from opt.solvers.windows import put

__all__ = ["KINDS", "VICTIMS", "online_rounds"]

KINDS = {"fcfs": 0, "sof": 1, "lof": 2, "total-size": 3, "svf": 4, "best-fit": 5, "random": 6}  # how an evicted request is ranked
VICTIMS = {"last": 0, "least-done": 1, "least-estimate": 2}


@compiled
def _before(key: IntArray, arrival: IntArray, i: int, j: int) -> bool:
    """Return whether i comes before j: by key, then arrival, then index."""
    if key[i] != key[j]:
        return bool(key[i] < key[j])
    if arrival[i] != arrival[j]:
        return bool(arrival[i] < arrival[j])
    return i < j


@compiled
def _enqueue(queue: IntArray, size: int, key: IntArray, arrival: IntArray, i: int) -> None:
    """Insert i into the sorted queue of `size` requests."""
    low, high = np.int64(0), np.int64(size)
    while low < high:
        middle = (low + high) // 2
        if _before(key, arrival, queue[middle], i):
            low = middle + 1
        else:
            high = middle
    for place in range(size, low, -1):
        queue[place] = queue[place - 1]
    queue[low] = i


@compiled
def _key(kind: int, before: int, s: int, o: int, aged: int) -> int:
    """Return the key of an evicted request of s tokens and o estimated ones to come; `before` is its old one."""
    if kind == 1:
        return o + aged
    if kind == 2:
        return aged - o
    if kind == 3:
        return s + o + aged
    if kind == 4:
        return s * o + o * (o + 1) // 2 + aged
    if kind == 5:
        return aged - s - o
    return before


@compiled
def _refresh(
    t: int, active: IntArray, running: int, got: IntArray, estimate: IntArray, begun: IntArray, most: IntArray, growth: int
) -> int:
    """Raise outgrown estimates and sort the active requests by estimated end, last first; return how many were raised."""
    raised = np.int64(0)
    for place in range(running):
        i = active[place]
        done = got[i] + t - begun[i]
        if estimate[i] <= done:
            raised += 1
            estimate[i] = max(done + 1, min(most[i], done + done * growth // 100))
    for place in range(1, running):
        i = active[place]
        end, k = begun[i] + estimate[i] - got[i], place
        while k > 0 and begun[active[k - 1]] + estimate[active[k - 1]] - got[active[k - 1]] < end:
            active[k] = active[k - 1]
            k -= 1
        active[k] = i
    return raised


@compiled
def _lay_out(
    t: int, active: IntArray, running: int, held: IntArray, got: IntArray, estimate: IntArray, begun: IntArray, profile: IntArray
) -> int:
    """Write what the active requests will hold after round t, if their estimates are right; return points used."""
    times, usage, count, after = profile[0], profile[1], profile[2], profile[3]
    times[0], usage[0], count[0], after[0] = t, 0, 0, -1
    used = np.int64(1)
    for place in range(running):
        i = active[place]
        life = begun[i] + estimate[i] - got[i] - t
        used = put(times, usage, count, after, np.int64(0), used, t, held[i] + t - begun[i], life)
    return used


@compiled
def _admit(
    t: int,
    queue: IntArray,
    waiting: int,
    held: IntArray,
    got: IntArray,
    estimate: IntArray,
    memory: int,
    reach: int,
    depth: int,
    ticks: IntArray,
    pace: IntArray,
    profile: IntArray,
    used: int,
    chosen: IntArray,
) -> tuple[int, int]:
    """Put into `chosen` who starts now; return how many, and the next round in which somebody may start."""
    times, usage, count, after = profile[0], profile[1], profile[2], profile[3]
    starting, places, passed, wake = np.int64(0), np.int64(0), np.int64(0), FAR
    for place in range(waiting):
        if passed > reach:
            break
        i = queue[place]
        s, o = held[i], estimate[i] - got[i]
        first = max(t, pace[0])
        point = advance(times, after, np.int64(0), first)
        cutoff = FAR if places < depth else wake
        begin = earliest(times, usage, count, after, after[point], first, s, o, memory, cutoff)
        if begin == t:
            chosen[starting] = i
            starting += 1
            _keep_pace(t, ticks[i], pace)
        else:
            wake = min(wake, begin)
            passed += s * o + o * (o + 1) // 2
        if begin == t or places < depth:
            places += begin > t
            point = advance(times, after, point, begin)
            used = put(times, usage, count, after, point, used, begin, s, o)
    return starting, wake


@compiled
def _keep_pace(t: int, ticks: int, pace: IntArray) -> None:
    """Move the round from which the pace allows the next start (`pace[0]`, with a rest of 2**-20 rounds in `pace[1]`)."""
    if t > pace[0]:
        pace[0], pace[1] = t, 0
    pace[1] += ticks
    pace[0] += pace[1] >> TICKS
    pace[1] &= (1 << TICKS) - 1


@compiled
def _dequeue(queue: IntArray, waiting: int, begun: IntArray, starting: int) -> int:
    """Drop from the queue the `starting` requests that have begun; return how many wait."""
    gone = 0
    for place in range(waiting):
        if gone < starting and begun[queue[place]] >= 0:
            gone += 1
        else:
            queue[place - gone] = queue[place]
    return waiting - gone


@compiled
def _victim(rule: int, t: int, active: IntArray, running: int, got: IntArray, estimate: IntArray, begun: IntArray) -> int:
    """Return the place in `active` of the request to evict; ties go against the larger index."""
    worst, best_score = np.int64(0), FAR
    for place in range(running):
        i = active[place]
        done = got[i] + t - begun[i]
        score = done
        if rule == 0:
            score = -begun[i]
        elif rule == 2:
            score = max(estimate[i], done + 1)
        if score < best_score or (score == best_score and i > active[worst]):
            worst, best_score = np.int64(place), score
    return worst


@compiled
def _noted(log: IntArray, rows: int, i: int, begun: int, held: int, ran: int) -> IntArray:
    """Return the log with one more row."""
    if rows == len(log):
        longer = np.empty((2 * len(log), 4), np.int64)
        longer[:rows] = log
        log = longer
    log[rows, 0], log[rows, 1], log[rows, 2], log[rows, 3] = i, begun, held, ran
    return log


@compiled
def _finish(
    t: int, active: IntArray, running: int, output: IntArray, got: IntArray, estimate: IntArray, begun: IntArray, ended: IntArray
) -> tuple[int, int, bool]:
    """Move who has produced its last token from `active` to `ended`; return how many run and ended, and any surprise."""
    kept, gone, surprise = np.int64(0), np.int64(0), False
    for place in range(running):
        i = active[place]
        if begun[i] + output[i] - got[i] > t:
            active[kept] = i
            kept += 1
        else:
            surprise = surprise or estimate[i] != output[i]
            ended[gone] = i
            gone += 1
    return kept, gone, surprise


@compiled
def _next_end(active: IntArray, running: int, output: IntArray, got: IntArray, begun: IntArray) -> int:
    """Return the round at whose end the next request will have finished."""
    end = FAR
    for place in range(running):
        i = active[place]
        end = min(end, begun[i] + output[i] - got[i])
    return end


@compiled
def _offset(active: IntArray, running: int, held: IntArray, begun: IntArray) -> int:
    """Return the tokens held in round r, less `running * r`."""
    offset = np.int64(0)
    for place in range(running):
        offset += held[active[place]] - begun[active[place]]
    return offset


def online_rounds(
    output: IntArray,
    prompt: IntArray,
    arrival: IntArray,
    memory: int,
    first: IntArray,
    most: IntArray,
    keys: IntArray,
    *,
    kind: str = "svf",
    ageing: int = 0,
    growth: int = 0,
    restart: bool = False,
    victim: str = "last",
    reach: int = -1,
    depth: int = 0,
    ticks: IntArray | None = None,
    window: int = 0,
    length: int = 0,
    moves: int = 0,
    seed: int = 0,
) -> IntArray:
    """Run the rounds and return a row (request, begin, tokens held at the beginning, rounds run) for each stretch of activity.

    Args:
        output: (n,) true outputs, which only end requests.
        prompt, arrival: (n,) what is known of a request once it has arrived.
        memory: tokens.
        first: (n,) first estimates of the outputs, 1 .. most.
        most: (n,) no output can be longer.
        keys: (n,) smaller goes first; `kind` (see `KINDS`) and `ageing` rank evicted requests anew.
        growth: percent by which an outgrown estimate is raised; 0: by one token.
        restart: evicted requests lose their tokens; else they come back with a prompt longer by them.
        victim: see `VICTIMS`.
        reach, depth, ticks: the admission rule, see above; without ticks there is no pace.
        window, length, moves, seed: of the receding horizon; `window` 0 for none.
    """
    by_arrival = np.argsort(arrival, kind="stable")
    paces = np.zeros(len(prompt), np.int64) if ticks is None else ticks
    return _rounds(
        output,
        prompt,
        arrival,
        by_arrival,
        np.int64(memory),
        first,
        most,
        keys,
        np.int64(KINDS[kind]),
        np.int64(ageing),
        np.int64(growth),
        restart,
        np.int64(VICTIMS[victim]),
        np.int64(reach),
        np.int64(depth),
        paces,
        np.int64(window),
        np.int64(length),
        np.int64(moves),
        np.int64(seed),
    )


@compiled
def _rounds(
    output: IntArray,
    prompt: IntArray,
    arrival: IntArray,
    by_arrival: IntArray,
    memory: int,
    first: IntArray,
    most: IntArray,
    keys: IntArray,
    kind: int,
    ageing: int,
    growth: int,
    restart: bool,
    victim: int,
    reach: int,
    depth: int,
    ticks: IntArray,
    window: int,
    length: int,
    moves: int,
    seed: int,
) -> IntArray:
    """See `online_rounds`."""
    n = len(prompt)
    held, got, estimate, key = prompt.copy(), np.zeros(n, np.int64), first.copy(), keys.copy()
    begun, planned = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
    queue, active, chosen = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    profile, pace = np.empty((4, 5 * n + 8), np.int64), np.zeros(2, np.int64)
    log, rows = np.empty((n + 1, 4), np.int64), np.int64(0)
    weight = np.ones(2)  # of all that has arrived: the sum of volume * estimate, and the sum of volumes
    waiting, running, arrived, t = np.int64(0), np.int64(0), np.int64(0), np.int64(0)
    wake, state = FAR, np.uint64(seed)
    while arrived < n or waiting + running > 0:
        running, gone, news = _finish(t, active, running, output, got, estimate, begun, chosen)
        for place in range(gone):
            i = chosen[place]
            log = _noted(log, rows, i, begun[i], held[i], t - begun[i])
            rows += 1
        while arrived < n and arrival[by_arrival[arrived]] <= t:
            i = by_arrival[arrived]
            _enqueue(queue, waiting, key, arrival, i)
            volume = np.float64(prompt[i]) * first[i] + 0.5 * first[i] * first[i]
            weight[0] += volume * first[i]
            weight[1] += volume
            waiting, arrived, news = waiting + 1, arrived + 1, True
        while _offset(active, running, held, begun) + running * (t + 1) > memory:
            place = _victim(victim, t, active, running, got, estimate, begun)
            i, running = active[place], running - 1
            active[place:running] = active[place + 1 : running + 1].copy()
            ran = t - begun[i]
            log = _noted(log, rows, i, begun[i], held[i], ran)
            estimate[i] = max(estimate[i], got[i] + ran + 1)
            if not restart:
                got[i] += ran
                held[i] += ran
            begun[i] = planned[i] = -1
            key[i] = _key(kind, key[i], held[i], estimate[i] - got[i], ageing * arrival[i])
            _enqueue(queue, waiting, key, arrival, i)
            waiting, rows, news = waiting + 1, rows + 1, True
        wake = FAR
        if waiting > 0:
            news = _refresh(t, active, running, got, estimate, begun, most, growth) > 0 or news
            used = _lay_out(t, active, running, held, got, estimate, begun, profile)
            if window > 0:
                state, starting, wake = plan_window(
                    t, queue, waiting, held, got, estimate, first, prompt, arrival, by_arrival, arrived, memory,
                    window, length, moves, state, news, planned, profile[:, :used], chosen,
                )  # fmt: skip
            else:
                limit = FAR if reach < 0 else reach * memory * (np.int64(weight[0] / weight[1]) + 1)
                starting, wake = _admit(
                    t, queue, waiting, held, got, estimate, memory, limit, depth, ticks, pace, profile, used, chosen
                )
            for place in range(starting):
                begun[chosen[place]] = t
                active[running + place] = chosen[place]
            running += starting
            if starting > 0:
                waiting = _dequeue(queue, waiting, begun, starting)
        following = min(_next_end(active, running, output, got, begun), wake if waiting > 0 else FAR)
        if arrived < n:
            following = min(following, arrival[by_arrival[arrived]])
        if running > 0:  # the round before which the memory would overflow
            following = min(following, (memory - _offset(active, running, held, begun)) // running)
        t = max(following, t + 1)
    return log[:rows]
