"""The layers of the search: partial schedules as columns, and the loop that makes their children.

Layer q holds partial schedules of q requests, started in order of (start, index); a child starts one more request at
or after the last start. Time is relative, see `ramps`: a state is its set, the running requests with their rounds to
go, and the waiting so far. Four things cut a layer down, and each is argued here to keep an optimum:

* **Bound** (`ramps`): waiting so far + prices of the unstarted + W of the running ones must stay below the incumbent.
* **Dominance**. State e dominates state c of the same set if e, after waiting w >= 0 more rounds, has paid no more than
  c and holds no more in any later round (and for w = 0 its last start has no larger index, so that every order c may
  still use is open to e). Whatever completes c then completes e, no dearer.
* **Shifts**. In an optimum no set of requests can start one round earlier together, all else fixed: the result would
  be feasible and cheaper. Two kinds of sets are watched. (1) A single request j with x_j >= 1: it must be blocked by
  round x_j itself (held + s_j + 1 > M) or by a full round strictly between its start and its last round. (2) All
  requests from the k-th start on, after a hold: some round t must have (held in t by the earlier ones) + (held in
  t + 1 by the later ones) > M. A request not blocked when it starts may be blocked by what starts later, so the state
  carries the debt and dies when nothing can pay it any more.
* **Equal requests** start in the order of their indices.

Why together they are exact: let the incumbent be improvable. By induction every layer keeps a state that is the
beginning of an optimal schedule (read in order of start, index; equal requests relabelled). Bound and shifts only
remove states none of whose completions is optimal. If dominance removes such a beginning, the dominating state with
the same completion is an optimal schedule too, and its beginning is on this layer; dominance is transitive and a state
is removed only by one that was there, so a last one stays.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.exact.items import Items
from opt.solvers.exact.ramps import bound_of

__all__ = ["Children", "Market", "States", "expand", "first_layer", "no_children"]

Int16 = npt.NDArray[np.int16]
Int32 = npt.NDArray[np.int32]

UNKNOWN = 1 << 60
HOLD = np.int64(1) << np.int64(62)  # marks a state that owes the reason of a hold
MIX = np.int64(0x1E3779B97F4A7C15)


class States(NamedTuple):
    """One layer, a row for each state.

    `started`: its set, a bit for each request. `paid`: the waiting so far. `now`: the round of the last start. `running`,
    `size`: the items that run, the newest last. `last`: the request started last. `bound`: scaled, see `ramps`.
    `held`: tokens held in round `now` by the others. `debtor`: a request that must still be blocked, or -1. `hold`: the
    requests before an unexplained hold, marked with `HOLD`, or 0.
    """

    started: IntArray
    paid: IntArray
    now: IntArray
    running: Int16
    size: Int16
    last: Int16
    bound: IntArray
    held: IntArray
    debtor: Int16
    hold: IntArray

    def take(self, index: IntArray) -> States:
        """Return the states `index` alone."""
        return States._make(column[index] for column in self)


class Children(NamedTuple):
    """Room for the next layer, and what only its making needs.

    `profile`: tokens held in the rounds after the last start. `end`: how many of those rounds hold anything. `parent`: row
    in the layer before; `waited`: rounds since its last start. `alive`: not dominated. `following`: next of the same set;
    `head` and `key`: an open hash table from sets to the first of each (-1: free, -2: all removed).
    """

    states: States
    profile: Int16
    end: Int16
    parent: Int32
    waited: Int32
    alive: npt.NDArray[np.bool_]
    following: Int32
    head: Int32
    key: IntArray


class Market(NamedTuple):
    """One layer of a filled table with its prices; `local` translates global items to the table's (-1: unknown to it).

    `level` is how many running requests the table knows at a time, 0 for no table at all.
    """

    level: int
    price: IntArray
    pair: Int32
    triple: Int32
    local: Int32


def first_layer(n: int) -> States:
    """Return the layer of the empty schedule."""
    zero, nobody = np.zeros(1, np.int64), np.full(1, -1, np.int16)
    floor = np.full(1, -UNKNOWN, np.int64)
    return States(zero, zero, zero, np.zeros((1, n), np.int16), np.zeros(1, np.int16), nobody, floor, zero, nobody, zero)


def no_children(capacity: int, n: int, horizon: int) -> Children:
    """Return room for `capacity` children."""
    states = States(
        started=np.zeros(capacity, np.int64),
        paid=np.zeros(capacity, np.int64),
        now=np.zeros(capacity, np.int64),
        running=np.zeros((capacity, n), np.int16),
        size=np.zeros(capacity, np.int16),
        last=np.zeros(capacity, np.int16),
        bound=np.zeros(capacity, np.int64),
        held=np.zeros(capacity, np.int64),
        debtor=np.zeros(capacity, np.int16),
        hold=np.zeros(capacity, np.int64),
    )
    slots = 1 << (2 * capacity - 1).bit_length()
    return Children(
        states=states,
        profile=np.zeros((capacity, horizon), np.int16),
        end=np.zeros(capacity, np.int16),
        parent=np.zeros(capacity, np.int32),
        waited=np.zeros(capacity, np.int32),
        alive=np.zeros(capacity, np.bool_),
        following=np.zeros(capacity, np.int32),
        head=np.zeros(slots, np.int32),
        key=np.zeros(slots, np.int64),
    )


@compiled
def _covers(lower: Int16, wait: int, upper: Int16, horizon: int) -> bool:
    """Return whether `lower`, `wait` rounds on, holds no more than `upper` in every round."""
    for t in range(horizon - wait):  # noqa: SIM110 - compiled
        if lower[t + wait] > upper[t]:
            return False
    return True


@compiled
def _hold_solved(items: Items, mask: int, held: IntArray, held_now: int, running: IntArray, size: int) -> bool:
    """Return whether the later requests cannot all move one round earlier beside the earlier ones (`mask`).

    `held` (from the new start on) includes everybody. The round of the start itself is judged generously: `held_now`
    counts all that is held there, so a debt may live too long but never dies too early.
    """
    M, s, o, own, left = items.memory, items.prompt, items.output, items.own, items.left
    later = held[1]
    for x in range(size):
        i = own[running[x]]
        if (mask >> i) & 1:
            later -= s[i] + o[i] - left[running[x]] + 1
    if held_now + later > M:
        return True
    for x in range(size):
        if not (mask >> own[running[x]]) & 1:
            continue
        t = left[running[x]]
        both = held[t + 1]
        for y in range(size):
            i, a = own[running[y]], left[running[y]]
            if (mask >> i) & 1:
                if a >= t:
                    both += s[i] + o[i] - a + t
                if a >= t + 1:
                    both -= s[i] + o[i] - a + t + 1
        if both > M:
            return True
    return False


@compiled
def _held(items: Items, running: Int16, count: int, held: IntArray) -> int:
    """Write the tokens held in the rounds 1, 2, .. from now into `held`; return the last round that holds any."""
    over = np.int64(0)
    held[:] = 0
    for x in range(count):
        a = running[x]
        i = items.own[a]
        over = max(over, items.left[a])
        for t in range(1, items.left[a] + 1):
            held[t] += items.prompt[i] + items.output[i] - items.left[a] + t
    return over


@compiled
def _fits(items: Items, held: IntArray, running: Int16, count: int, k: int, wait: int) -> bool:
    """Return whether k fits `wait` rounds from now: only the completion rounds within its run need a look."""
    prompt, output = items.prompt[k], items.output[k]
    if held[wait + output] + prompt + output > items.memory:
        return False
    for x in range(count):
        a = items.left[running[x]]
        if wait < a <= wait + output and held[a] + prompt + a - wait > items.memory:
            return False
    return True


@compiled
def _value(market: Market, base: int, running: IntArray, size: int, local: IntArray, limit: int) -> int:
    """Return the bound of a state on one market, `base` being what is paid with the prices still to be earned."""
    count = 0
    for x in range(size):
        a = market.local[running[x]]
        if a >= 0:
            local[count] = a
            count += 1
    return base + bound_of(market.level, market.pair, market.triple, local, count, limit - base)


@compiled
def _dominated(children: Children, group: int, k: int, cost: int, far: int, held: Int16, rate: int) -> tuple[bool, int, int]:
    """Compare a newcomer with the states of the same set, and remove those that it dominates.

    Returns whether it is dominated itself, its place in the hash table, and how many it was compared with.
    """
    head, key, following, states = children.head, children.key, children.following, children.states
    slots, horizon = len(head) - 1, len(held)
    slot = ((group * MIX) >> 20) & slots
    while head[slot] != -1 and key[slot] != group:
        slot = (slot + 1) & slots
    before, e, seen = np.int64(-1), np.int64(head[slot]), 0
    while e >= 0:
        seen += 1
        after = np.int64(following[e])
        gap = cost - states.paid[e]
        if gap >= 0:
            wait = max(np.int64(0), children.end[e] - far)
            while wait <= horizon and wait * rate <= gap:
                if (wait > 0 or states.last[e] <= k) and _covers(children.profile[e], wait, held, horizon):
                    return True, slot, seen
                wait += 1
        if gap <= 0:
            wait = max(np.int64(0), far - children.end[e])
            beaten = False
            while wait <= horizon and wait * rate <= -gap:
                if (wait > 0 or k <= states.last[e]) and _covers(held, wait, children.profile[e], horizon):
                    beaten = True
                    break
                wait += 1
            if beaten:
                children.alive[e] = False
                if before == -1:
                    head[slot] = after if after >= 0 else -2
                else:
                    following[before] = after
                e = after
                continue
        before, e = e, after
    return False, slot, seen


@compiled
def expand(
    items: Items,
    same: IntArray,
    parents: States,
    first: int,
    stop: int,
    r: int,
    limit: int,
    scale: int,
    market: Market,
    second: Market,
    children: Children,
    count: int,
) -> tuple[int, int, int]:
    """Add the children of parents `first` .. `stop - 1`, each with `r` unstarted requests, to `count` children.

    Args:
        same: (n,) the equal request before each, or -1.
        limit: the largest scaled bound that can still improve the incumbent.
        market, second: tables of layer r - 1; the second may be none.

    Returns the number of children (-1 on overflow), how many states were tried, and how many comparisons they took.
    """
    M, s, o, off, own, left = items.memory, items.prompt, items.output, items.off, items.own, items.left
    born = children.states
    n, H, capacity = len(s), children.profile.shape[1], len(born.started)
    P = np.zeros(2 * H + 3, np.int64)
    Q = np.zeros(2 * H + 3, np.int64)
    Q16 = np.zeros(H, np.int16)
    now = np.empty(n + 1, np.int64)
    local = np.empty(n + 1, np.int64)
    tried, compared, left_over = 0, 0, r - 1
    for p in range(first, stop):
        running, m = parents.running[p], parents.size[p]
        over = _held(items, running, m, P)
        P[0] = parents.held[p]
        owes, mask = np.int64(parents.debtor[p]), parents.hold[p]
        owes_left, mask_left = np.int64(0), np.int64(0)
        for x in range(m):
            a = running[x]
            if own[a] == owes:
                owes_left = left[a]
            if mask != 0 and (mask >> own[a]) & 1:
                mask_left = max(mask_left, left[a])
        longest = over
        if owes >= 0:
            longest = min(longest, owes_left - 2)
        if mask != 0:
            longest = min(longest, mask_left)
        rest, rest2 = np.int64(0), np.int64(0)
        for i in range(n):
            if not (parents.started[p] >> i) & 1:
                rest += market.price[i]
                rest2 += second.price[i]
        for k in range(n):
            if (parents.started[p] >> k) & 1 or (same[k] >= 0 and not (parents.started[p] >> same[k]) & 1):
                continue
            group = parents.started[p] | (np.int64(1) << k)
            for w in range(longest + 1):
                if (w == 0 and k < parents.last[p]) or not _fits(items, P, running, m, k, w):
                    continue
                size, far = np.int64(0), o[k]
                for x in range(m):
                    a = running[x]
                    if left[a] > w:
                        now[size] = a - w
                        far = max(far, left[a] - w)
                        size += 1
                now[size] = off[k] + o[k] - 1
                size += 1
                cost = parents.paid[p] + r * w
                value = max(parents.bound[p], _value(market, cost * scale + rest - market.price[k], now, size, local, limit))
                if value <= limit and second.level > 0:
                    value = max(value, _value(second, cost * scale + rest2 - second.price[k], now, size, local, limit))
                if value > limit:
                    continue
                for t in range(1, H + 2):
                    Q[t] = P[w + t] if w + t <= over else 0
                for t in range(1, o[k] + 1):
                    Q[t] += s[k] + t
                # Shifts: what blocks k, and who still owes a reason.
                blocked = parents.now[p] + w == 0 or P[w] + s[k] + 1 > M
                owing = owes
                for x in range(size):
                    t = left[now[x]]
                    if Q[t] == M:
                        if t < o[k]:
                            blocked = True
                        if owes >= 0 and t < owes_left - w:
                            owing = np.int64(-1)
                hold = np.int64(0)
                if mask != 0 and not _hold_solved(items, mask, Q, P[w], now, size):
                    hold = mask
                if not blocked:
                    if owing < 0:
                        owing = np.int64(k)
                    if w > 0 and hold == 0:
                        hold = HOLD
                        for x in range(size - 1):
                            hold |= np.int64(1) << own[now[x]]
                if left_over == 0 and (owing >= 0 or hold != 0):
                    continue
                tried += 1
                for t in range(H):
                    Q16[t] = Q[t + 1]
                dominated, slot, seen = _dominated(children, group, k, cost, far, Q16, left_over)
                compared += seen
                if dominated:
                    continue
                if count >= capacity:
                    return -1, tried, compared
                j = count
                count += 1
                born.started[j], born.paid[j], born.now[j], born.size[j] = group, cost, parents.now[p] + w, size
                born.last[j], born.bound[j], born.held[j], born.debtor[j], born.hold[j] = k, value, P[w], owing, hold
                for x in range(size):
                    born.running[j, x] = now[x]
                children.parent[j], children.waited[j], children.alive[j], children.end[j] = p, w, True, far
                children.profile[j, :] = Q16
                children.following[j] = children.head[slot] if children.head[slot] >= 0 else -1
                children.head[slot] = j
                children.key[slot] = group
    return count, tried, compared
