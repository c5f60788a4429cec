"""The compiled loops that fill the tables of `ramps`, layer by layer of the counter; see there for what they mean."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.jit import compiled
from opt.solvers.exact.items import INF, Items

__all__ = ["fill_pairs", "fill_triples", "rank"]

Int32 = npt.NDArray[np.int32]


@compiled
def _fill_singles(items: Items, p32: Int32, r: int, scale: int, one: Int32, pair: Int32) -> None:
    """Fill layer r of "nothing" and of single items, from `one[A, k]`: layer r - 1 with A and a fresh k."""
    n, N = len(items.prompt), pair.shape[1] - 1
    rows, off = items.rows, items.off
    if r == 0:
        pair[0, N, N] = 0
    else:
        best = np.int32(INF)
        for k in range(n):
            best = min(best, np.int32(one[N, k] - p32[k]))
        pair[r, N, N] = best
    for i in range(n):
        for left in range(1, rows[i] + 1):
            A = off[i] + left - 1
            best = np.int32(0)
            if r > 0:
                older = A - 1 if left > 1 else N
                best = np.int32(r * scale + pair[r, older, N])
                alone = pair[r - 1, A, N]
                for k in range(n):
                    best = min(best, np.int32(max(one[A, k], alone) - p32[k]))
            pair[r, A, N] = best
            pair[r, N, A] = best


@compiled
def _newcomers(items: Items, r: int, pair: Int32, one: Int32) -> None:
    """Set `one[A, k]` to layer r of A and a fresh k, for every k that can still start."""
    N = pair.shape[1] - 1
    for k in range(len(items.prompt)):
        if items.rows[k] < items.output[k]:
            continue
        fresh = items.off[k] + items.output[k] - 1
        one[N, k] = pair[r, N, fresh]
        for A in range(N):
            one[A, k] = INF if items.own[A] == k else pair[r, A, fresh]


@compiled
def fill_pairs(items: Items, price: IntArray, top: int, scale: int, pair: Int32) -> None:
    """Fill `pair` for counters 0 .. `top`."""
    M, s, o, rows, off = items.memory, items.prompt, items.output, items.rows, items.off
    n, N = len(s), pair.shape[1] - 1
    o32, s32, p32 = o.astype(np.int32), s.astype(np.int32), price.astype(np.int32)
    one = np.full((N + 1, n), INF, np.int32)
    for r in range(top + 1):
        _fill_singles(items, p32, r, scale, one, pair)
        for i in range(n):
            for j in range(i):
                for ra in range(1, rows[i] + 1):
                    A = off[i] + ra - 1
                    A2 = A - 1 if ra > 1 else N
                    for rb in range(1, rows[j] + 1):
                        B = off[j] + rb - 1
                        m = min(ra, rb)
                        room = M - (s[i] + o[i] - ra + s[j] + o[j] - rb)
                        best = np.int32(INF)
                        if 2 * m <= room:
                            best = np.int32(0)
                            if r > 0:
                                B2 = B - 1 if rb > 1 else N
                                best = np.int32(r * scale + pair[r, A2, B2])
                                rest = pair[r - 1, A, B]
                                fa, fb = one[A], one[B]
                                m32, room32 = np.int32(m), np.int32(room)
                                for k in range(n):
                                    v = np.int32(max(max(fa[k], fb[k]), rest) - p32[k])
                                    if s32[k] + 3 * min(o32[k], m32) > room32:
                                        v = np.int32(INF)
                                    best = min(best, v)
                        pair[r, A, B] = best
                        pair[r, B, A] = best
        _newcomers(items, r, pair, one)


@compiled
def rank(A: int, B: int, C: int) -> int:
    """Return the place of three distinct items among all triples."""
    if A < B:
        A, B = B, A
    if B < C:
        B, C = C, B
        if A < B:
            A, B = B, A
    return A * (A - 1) * (A - 2) // 6 + B * (B - 1) // 2 + C


@compiled
def fill_triples(items: Items, price: IntArray, top: int, scale: int, pair: Int32, triple: Int32) -> None:
    """Fill `pair` and `triple` for counters 0 .. `top`."""
    M, s, o, rows, off, own = items.memory, items.prompt, items.output, items.rows, items.off, items.own
    n, N = len(s), pair.shape[1] - 1
    o32, s32, p32 = o.astype(np.int32), s.astype(np.int32), price.astype(np.int32)
    one = np.full((N + 1, n), INF, np.int32)
    two = np.full((N * (N - 1) // 2, n), INF, np.int32)  # layer r - 1 of (A > B, fresh k)
    for r in range(top + 1):
        _fill_singles(items, p32, r, scale, one, pair)
        triple[r, :] = INF
        for i in range(n):
            for j in range(i):
                for ra in range(1, rows[i] + 1):
                    A = off[i] + ra - 1
                    A2 = A - 1 if ra > 1 else N
                    for rb in range(1, rows[j] + 1):
                        B = off[j] + rb - 1
                        best = np.int32(INF)
                        if s[i] + o[i] - ra + s[j] + o[j] - rb + 2 * min(ra, rb) <= M:
                            best = np.int32(0)
                            if r > 0:
                                B2 = B - 1 if rb > 1 else N
                                best = np.int32(r * scale + pair[r, A2, B2])
                                f = two[A * (A - 1) // 2 + B]
                                rest = pair[r - 1, A, B]
                                for k in range(n):
                                    best = min(best, np.int32(max(f[k], rest) - p32[k]))
                        pair[r, A, B] = best
                        pair[r, B, A] = best
        for i in range(n):
            for j in range(i):
                for ra in range(1, rows[i] + 1):
                    A = off[i] + ra - 1
                    A2 = A - 1 if ra > 1 else N
                    for rb in range(1, rows[j] + 1):
                        B = off[j] + rb - 1
                        if pair[r, A, B] >= INF:
                            continue
                        B2 = B - 1 if rb > 1 else N
                        base = A * (A - 1) * (A - 2) // 6 + B * (B - 1) // 2
                        older = A2 * (A2 - 1) * (A2 - 2) // 6 + B2 * (B2 - 1) // 2
                        f1 = two[A * (A - 1) // 2 + B]
                        held = s[i] + o[i] - ra + s[j] + o[j] - rb
                        mab = min(ra, rb)
                        for h in range(j):
                            room_h = M - held - s[h] - o[h]
                            for rc in range(1, rows[h] + 1):
                                C = off[h] + rc - 1
                                m = min(mab, rc)
                                room = room_h + rc
                                if 3 * m > room or pair[r, A, C] >= INF or pair[r, B, C] >= INF:
                                    continue
                                if r == 0:
                                    triple[0, base + C] = 0
                                    continue
                                if m > 1:
                                    best = np.int32(r * scale + triple[r, older + C - 1])
                                else:
                                    C2 = C - 1 if rc > 1 else N
                                    X, Y = A2, B2
                                    if A2 == N:
                                        X, Y = B2, C2
                                    elif B2 == N:
                                        X, Y = A2, C2
                                    best = np.int32(r * scale + pair[r, X, Y])
                                rest = triple[r - 1, base + C]
                                f2 = two[A * (A - 1) // 2 + C]
                                f3 = two[B * (B - 1) // 2 + C]
                                m32, room32 = np.int32(m), np.int32(room)
                                for k in range(n):
                                    v = np.int32(max(max(f1[k], f2[k]), max(f3[k], rest)) - p32[k])
                                    if s32[k] + 4 * min(o32[k], m32) > room32:
                                        v = np.int32(INF)
                                    best = min(best, v)
                                triple[r, base + C] = best
        if r == top:
            break
        _newcomers(items, r, pair, one)
        for A in range(N):
            i = own[A]
            for B in range(off[i]):
                j = own[B]
                row = two[A * (A - 1) // 2 + B]
                for k in range(n):
                    if rows[k] < o[k] or k in (i, j) or pair[r, A, B] >= INF:
                        row[k] = INF
                    else:
                        row[k] = triple[r, rank(A, B, off[k] + o[k] - 1)]
