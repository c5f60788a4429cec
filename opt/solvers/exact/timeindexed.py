"""The time-indexed model: one Boolean per request and start round, one memory row per round.

How far rounds must reach. In an optimum every round between the last arrival and the end is busy (an idle one could be
cut out), so nothing finishes after `max(arrival) + sum(output)`. Hence a quiet spell longer than the outputs before it can
be shortened to their sum: whoever came before it is done by then in some optimum, and the two sides do not touch.
With a schedule of total finish U at hand, a strictly better one has `c_i <= U - 1 - sum over j != i of (a_j + o_j)`.
Prices say more: for any `price >= 0` per round

    U - 1 >= sum of all c >= (cost of i at x) + sum over j != i of (the least cost of j) - memory * sum(price),
    cost of i at x = x + o_i + sum over k of price[x + k] * (s_i + k),

so every start x that breaks this can be left out. The prices come from the linear relaxation and are rounded down to
integers over 2**20, which keeps them valid; the test is integer arithmetic.

What it gives: the relaxation is 14-30 % below the optimum when two to four requests run together, so the plain model stops
at 10 to 12 requests a minute long, with HiGHS and with CP-SAT. Cutting windows against a good incumbent helps most where
many run together and the relaxation is tight.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray
from opt.core.instance import Instance

__all__ = ["SHIFT", "Model", "build", "compact", "entries", "first_windows", "model_refusal", "priced_windows", "starts_of"]

SHIFT = 20
MAX_REQUESTS = 2000


@dataclass(frozen=True)
class Model:
    """Columns (request, start) grouped by request and the memory matrix by columns (CSC without the choice rows).

    `owner`, `at`: (columns,) request and start; `cost`: finish; `first`: (columns + 1,) offsets into `row` (round,
    counted from 0 for the first used round) and `held` (tokens). `rounds`: number of memory rows.
    """

    owner: IntArray
    at: IntArray
    cost: IntArray
    first: IntArray
    row: IntArray
    held: IntArray
    rounds: int


def compact(instance: Instance) -> tuple[Instance, IntArray]:
    """Return the instance with long quiet spells shortened, and how many rounds each arrival moved.

    An optimum of either becomes one of the other by adding or subtracting the moves (module docstring).
    """
    order = np.argsort(instance.arrival, kind="stable")
    output = instance.output.tolist()
    moved = np.zeros(instance.n, np.int64)
    last = cut = int(instance.arrival[order[0]]) if instance.n else 0
    since = 0  # outputs since the last quiet spell
    for i in order.tolist():
        arrival = int(instance.arrival[i])
        if arrival - last > since:
            cut += arrival - last - since
            since = 0
        moved[i] = cut
        last = arrival
        since += output[i]
    return instance.replace(arrival=instance.arrival - moved, arrival_s=None), moved


def model_refusal(instance: Instance, start: IntArray | None, *, plain: bool, most: int) -> str | None:
    """Return why the model is too large, if it has more than `most` coefficients (estimated before it is built)."""
    if instance.n > MAX_REQUESTS:
        return f"{instance.n:,} requests; the time-indexed model takes up to {MAX_REQUESTS:,}"
    if start is None:
        return None
    smaller, moved = compact(instance)
    need = entries(smaller, None if plain else start - moved)
    if need <= most:
        return None
    return f"the model would have {need:,} coefficients, more than the {most:,} that memory_mb allows"


def _ends(instance: Instance, start: IntArray | None) -> IntArray:
    """Return the last start each request may need (n,)."""
    arrival, output = instance.arrival, instance.output
    end = int(arrival.max(initial=0)) + int(output.sum())
    latest = np.full(instance.n, end, np.int64) - output
    if start is not None:
        total, floor = int((start + output).sum()), arrival + output
        latest = np.minimum(latest, total - 1 - (int(floor.sum()) - floor) - output)
    return latest


def entries(instance: Instance, start: IntArray | None) -> int:
    """Return how many memory coefficients the model needs to beat the schedule `start`, or to hold everything."""
    columns = np.maximum(_ends(instance, start) - instance.arrival + 1, 0)
    return sum(c * o for c, o in zip(columns.tolist(), instance.output.tolist(), strict=True))


def first_windows(instance: Instance, start: IntArray | None) -> list[IntArray]:
    """Return the starts each request may need: everything, or what can still beat the schedule `start`."""
    latest = _ends(instance, start).tolist()
    return [np.arange(a, x + 1, dtype=np.int64) for a, x in zip(instance.arrival.tolist(), latest, strict=True)]


def build(instance: Instance, windows: list[IntArray]) -> Model:
    """Return the model with a column for each start in `windows`."""
    owner = np.repeat(np.arange(instance.n), [len(w) for w in windows])
    at = np.concatenate(windows) if windows else np.zeros(0, np.int64)
    length = instance.output[owner]
    first = np.concatenate([[0], np.cumsum(length)]).astype(np.int64)
    step = np.arange(first[-1]) - np.repeat(first[:-1], length)
    row = np.repeat(at, length) + step
    held = np.repeat(instance.prompt[owner], length) + step + 1
    return Model(owner, at, at + length, first, row, held, int(row.max(initial=-1)) + 1)


def priced_windows(
    instance: Instance, windows: list[IntArray], price: npt.NDArray[np.float64], start: IntArray
) -> tuple[list[IntArray], int]:
    """Drop the starts that `price` (rounds 1.. at index 0..) excludes from a schedule better than `start`.

    Returns the windows and the bound on the total finish, in 1/2**20 rounds, that the prices prove (valid for schedules
    within `windows`). Sums stay in 64 bits: prices are cut so that price * memory * output stays below 2**60.
    """
    latest = max((int(w[-1]) + int(o) for w, o in zip(windows, instance.output, strict=True) if len(w)), default=0)
    whole = np.zeros(latest + 1, np.int64)
    used = min(latest, len(price))
    top = 2**60 / instance.memory / (latest + 1) / (1 << SHIFT)
    whole[1 : used + 1] = np.floor(np.clip(price[:used], 0, top) * (1 << SHIFT)).astype(np.int64)
    plain = np.concatenate([[0], np.cumsum(whole)])
    moment = np.concatenate([[0], np.cumsum(whole * np.arange(len(whole)))])
    costs = []
    for i, w in enumerate(windows):
        s, o = int(instance.prompt[i]), int(instance.output[i])
        inside = plain[w + o + 1] - plain[w + 1]
        costs.append(((w + o) << SHIFT) + (moment[w + o + 1] - moment[w + 1]) + (s - w) * inside)
    least = [int(c.min()) if len(c) else 0 for c in costs]
    bound = sum(least) - instance.memory * int(whole.sum())
    room = ((int((start + instance.output).sum()) - 1) << SHIFT) - bound
    return [w[c - m <= room] for w, c, m in zip(windows, costs, least, strict=True)], bound


def starts_of(model: Model, value: npt.NDArray[np.float64], n: int) -> IntArray:
    """Return the start of each request in a solution vector (the column nearest to one)."""
    start = np.zeros(n, np.int64)
    best = np.full(n, -1.0)
    for column in np.flatnonzero(value > 0.4):
        i = model.owner[column]
        if value[column] > best[i]:
            best[i], start[i] = value[column], model.at[column]
    return start
