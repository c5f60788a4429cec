"""Whole trajectories, relaxed multiplicity: the bound that keeps every request's memory ramp in one piece.

A schedule is read from left to right with a counter `r` of requests not started yet: every round costs `r` (that is
what the unstarted requests wait), so the total latency is `sum(output)` plus the cost of all rounds, and absolute time
drops out. The relaxation forgets *which* requests have started (each may start any number of times, `n` starts in all)
and remembers of the running ones only two or three; memory is checked exactly among those and the newcomer. What
forgetting the names costs is repaired by prices: starting `i` earns `price[i]`, and every price is paid once.

    V_r(A) = min( r + V_r(A one round older),   min over k not in A that fits with A of  W_{r-1}(A + k) - price[k] )
    W_r(B) = max over the pairs (triples) A in B of V_r(A),   V_0 = 0

`V_n(nothing) + sum(price) + sum(output)` is a lower bound for any prices, and for a partial schedule with the set U of
unstarted requests and the running ones B,

    (waiting so far) + sum(price[U]) + W_|U|(B) + sum(output)

bounds every completion. Proof. By induction on (r, age): let a feasible completion of the real situation be given with
r starts to come and running set B. Its next event is a round passing, which costs r and ages everything, or a start k.
k is not running and fits with all of B, so with every A in B; the completion goes on from B + k. Hence the cost minus
the prices earned is at least the right-hand side of V_r(A) for every A in B, because W is a maximum of lower bounds
(running requests left out of A only tighten memory). Each unstarted request starts once, so the prices earned are
sum(price[U]). Everything is an integer (prices in 1/scale rounds), so rounding is no concern.

Good prices come from subgradient ascent: raise the price of what the relaxed plan never starts, lower it for what it
starts twice. On requests of which two to four run together the bound is 0-8 % below the optimum where the time-indexed
linear program is 14-30 % below.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.exact.fills import fill_pairs, fill_triples, rank
from opt.solvers.exact.items import INF, NEVER, Items

__all__ = ["Tables", "bound_of", "fill", "state_value", "table_bytes", "visits"]

Int32 = npt.NDArray[np.int32]


class Tables(NamedTuple):
    """`pair[r, A, B]` (N: nothing) and, at level 3, `triple[r, rank(A > B > C)]`; both int32, see the module."""

    level: int
    pair: Int32
    triple: Int32


def table_bytes(items: int, requests: int, level: int) -> int:
    """Return the bytes of tables for `items` items and counters 0 .. `requests`, with what filling them takes."""
    pairs = 4 * (requests + 1) * (items + 1) ** 2 + 2 * requests * items * items
    return pairs if level == 2 else pairs + 4 * (requests + 1) * (items * (items - 1) * (items - 2) // 6)


def fill(tables: Tables, items: Items, price: IntArray, counter: int, scale: int) -> None:
    """Compute `tables` for counters 0 .. `counter` under `price` (1/scale rounds; `NEVER` where no start is allowed)."""
    if tables.level == 2:
        fill_pairs(items, price, counter, scale, tables.pair)
    else:
        fill_triples(items, price, counter, scale, tables.pair, tables.triple)


@compiled
def bound_of(level: int, pair: Int32, triple: Int32, running: IntArray, count: int, enough: int) -> int:
    """Return W of the first `count` items of `running` in one layer of the tables (stops early above `enough`)."""
    N = pair.shape[0] - 1
    if count == 0:
        return np.int64(pair[N, N])
    if count == 1:
        return np.int64(pair[running[0], N])
    best = np.int64(-INF)
    if count == 2 or level == 2:
        for x in range(count):
            for y in range(x):
                best = max(best, np.int64(pair[running[x], running[y]]))
                if best > enough:
                    return best
        return best
    for x in range(count - 1, -1, -1):  # the newcomer stands last and matters most
        for y in range(x):
            for z in range(y):
                best = max(best, np.int64(triple[rank(running[x], running[y], running[z])]))
                if best > enough:
                    return best
    return best


@compiled
def state_value(level: int, pair: Int32, triple: Int32, running: IntArray, count: int, kept: IntArray) -> int:
    """As `bound_of`, and leave the maximising items in `kept` (3,), padded with N."""
    N = pair.shape[0] - 1
    kept[:] = N
    if count == 0:
        return int(pair[N, N])
    if count == 1:
        kept[0] = running[0]
        return int(pair[running[0], N])
    best = -2 * INF
    for x in range(count):
        for y in range(x):
            if count == 2 or level == 2:
                v = pair[running[x], running[y]]
                if v > best:
                    best = v
                    kept[0], kept[1] = running[x], running[y]
            else:
                for z in range(y):
                    v = triple[rank(running[x], running[y], running[z])]
                    if v > best:
                        best = v
                        kept[0], kept[1], kept[2] = running[x], running[y], running[z]
    return best


@compiled
def visits(
    items: Items, level: int, price: IntArray, scale: int, pair: Int32, triple: Int32, r: int, kept: IntArray, count: IntArray
) -> None:
    """Add to `count` (n,) how often the relaxed plan from layer r and the items `kept` starts each request."""
    M, s, o, rows, off, own, left = items
    n, N = len(s), pair.shape[1] - 1
    now = np.empty(4, np.int64)
    new = np.empty(3, np.int64)
    choice = np.empty(3, np.int64)
    while r > 0:
        size = 0
        for x in range(3):
            if kept[x] != N:
                now[size] = kept[x]
                size += 1
        best, start = 2 * INF, -1
        choice[:] = N
        if size > 0:
            aged = 0
            for x in range(size):
                if left[now[x]] > 1:
                    new[aged] = now[x] - 1
                    aged += 1
            if aged == 3:
                best = r * scale + triple[r, rank(new[0], new[1], new[2])]
            else:
                best = r * scale + pair[r, new[0] if aged > 0 else N, new[1] if aged > 1 else N]
            for x in range(aged):
                choice[x] = new[x]
        for k in range(n):
            if rows[k] < o[k] or price[k] <= NEVER:
                continue
            fits, m, held = True, o[k], s[k]
            for x in range(size):
                i = own[now[x]]
                if i == k:
                    fits = False
                m = min(m, left[now[x]])
                held += s[i] + o[i] - left[now[x]]
            if not fits or held + (size + 1) * m > M:
                continue
            for x in range(size):  # all smaller groups: pairs, and triples through the tables
                i, a = own[now[x]], left[now[x]]
                if s[i] + o[i] - a + s[k] + 2 * min(a, o[k]) > M:
                    fits = False
            if not fits:
                continue
            now[size] = off[k] + o[k] - 1
            v = state_value(level, pair[r - 1], triple[r - 1], now, size + 1, new)
            if level == 3 and size == 3:
                for x in range(3):
                    for y in range(x):
                        if triple[r - 1, rank(now[x], now[y], now[3])] >= INF:
                            fits = False
            if v >= INF or not fits:
                continue
            v -= price[k]
            if v < best:
                best, start = v, k
                choice[:] = new
        if start >= 0:
            count[start] += 1
            r -= 1
        kept[:] = choice
