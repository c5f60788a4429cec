"""Compiled arithmetic of the analytic former: decode steps of batches given by sizes, and the two costs of a block."""

from __future__ import annotations

from opt.core.columns import ABSENT, FloatArray, IntArray
from opt.core.cost.formula import iteration_seconds
from opt.core.cost.layout import LOCALITY
from opt.core.jit import compiled
from opt.sim.sharing import cheap_reads

__all__ = ["EVERY", "HOST", "HOST_EACH", "L2", "MEMORY", "SEATS", "UNIT", "block_costs", "decode_step", "standing"]

# Where each number of an engine lies: tokens of a unit, whether all must share, tokens the L2 holds, host seconds, seats, KV.
UNIT, EVERY, L2, HOST, HOST_EACH, SEATS, MEMORY = range(7)


@compiled
def decode_step(c: FloatArray, engine: FloatArray, size: float, kv: float, units: float, distinct: float, common: float) -> float:
    """Return the seconds of a step in which a batch decodes, host time included."""
    unit = engine[UNIT]
    again = (units - distinct) * unit
    repeated = 0.0
    if again > 0.0 and c[LOCALITY] < 1.0:
        repeated = cheap_reads(engine[EVERY] > 0.0, engine[L2], float(int(size)), kv, again, common * unit)
    return float(iteration_seconds(c, 0.0, 0.0, 0.0, 0.0, size, kv, repeated) + engine[HOST] + engine[HOST_EACH] * size)


@compiled
def _block_step(c: FloatArray, engine: FloatArray, count: float, shared: float, own: float, length: float) -> float:
    """Return the seconds of a step of so many requests of a block."""
    common = shared if count > 1.0 else own
    return decode_step(c, engine, count, count * length, count * own, shared + count * (own - shared), common)


@compiled
def _alone(
    c: FloatArray,
    engine: FloatArray,
    outputs: FloatArray,
    output: float,
    seats: float,
    turn: float,
    shared: float,
    own: float,
    length: float,
) -> float:
    """Return what each of `turn` requests of a block costs, `seats` at a time, and then a batch that runs empty.

    While it does, the seats of those who were shorter than the longest stay empty. `outputs` are sorted lengths over their mean.
    """
    spread = 1.0
    if len(outputs) > 0:
        spread = max(1.0, outputs[min(len(outputs) - 1, int(len(outputs) * seats / (seats + 1.0)))])
    spent = spread * output * _block_step(c, engine, seats / spread, shared, own, length)
    if turn > seats:
        spent += (turn - seats) * output / seats * _block_step(c, engine, seats, shared, own, length)
    return spent / turn


@compiled
def _filled(
    c: FloatArray,
    engine: FloatArray,
    now: tuple[float, float, float, float, float],
    count: float,
    most: float,
    shared: float,
    held: float,
    own: float,
    length: float,
    common: float,
) -> float:
    """Return the seconds of a step of the running batch with `count` more, in blocks of `most` like the candidate's."""
    size, kv, units, different, _ = now
    blocks = max(1.0, count / most)
    different += blocks * shared - held + count * (own - shared)
    return decode_step(c, engine, size + count, kv + count * length, units + count * own, different, common)


@compiled
def block_costs(
    c: FloatArray,
    engine: FloatArray,
    outputs: FloatArray,
    now: tuple[float, float, float, float, float],
    crowd: float,
    rate: float,
    output: float,
    left: float,
    count: float,
    shared: float,
    held: float,
    own: float,
    length: float,
    common: float,
    part: float,
) -> tuple[float, float, float, float]:
    """Return what serving a block now, now while others are held back, and later costs each of its requests, and its turn.

    The turn is how many will be served together later.

    The arguments after `outputs` are those of `Scene` and `Block`, in their order.
    """
    prefix = shared * engine[UNIT]
    private = length - prefix + output
    size, kv, units, different, together = now
    step = decode_step(c, engine, size, kv, units, different, together) if size > 0.0 else 0.0
    turn = count + rate * left * step * part / crowd
    most = max(1.0, min(min(turn, engine[SEATS]), (engine[MEMORY] - prefix) // private))
    full = max(most, min(min(engine[SEATS], crowd), engine[MEMORY] / (private + prefix / most)))
    groups = full / most
    distinct = groups * (shared + most * (own - shared))
    same = (shared if most > 1.0 else own) if groups == 1.0 else 0.0
    mixed = decode_step(c, engine, full, full * length, full * own, distinct, same) / full * output
    joining = min(count, most)
    alone = _alone(c, engine, outputs, output, joining, count, shared, own, length)
    later = _alone(c, engine, outputs, output, most, turn, shared, own, length) if turn > count else alone
    if size == 0.0:
        return alone, alone, min(later, mixed), turn
    left = min(left, output)
    first = max(1.0, min(joining, engine[SEATS] - size))  # who joins at once; the others follow as seats become free
    used = kv - (units - different) * engine[UNIT]
    room = min(min(engine[SEATS], crowd) - size, (engine[MEMORY] - used) // (private + prefix / most))
    filled = _filled(c, engine, now, max(first, room), most, shared, held, own, length, common)
    size, kv, units, different = size + first, kv + first * length, units + first * own, different + first * (own - shared)
    within = decode_step(c, engine, size, kv, units, different, common)
    joined = decode_step(c, engine, size, kv, units, different + shared - held, common)
    each = (within - step) / first + (joined - within) / joining  # a new prefix is read for all who follow, too
    each = min(each, (filled - step) / max(first, room))
    begun, rest = left * each, 1.0 - left / output
    return begun + rest * min(alone, mixed), begun + rest * alone, min(later, mixed), turn


@compiled
def standing(
    members: IntArray, prompt: IntArray, expected: IntArray, produced: IntArray, mean: float, share: float
) -> tuple[int, float]:
    """Return the tokens of all members, and the steps until they have made what is expected of them, at least one.

    That is `share` of what is announced, and `mean` where nothing is.
    """
    tokens, most = 0, 1.0
    for i in members:
        tokens += prompt[i] + produced[i]
        whole = mean if expected[i] == ABSENT else expected[i] * share
        most = max(most, whole - produced[i])
    return tokens, most
