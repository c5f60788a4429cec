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
    spread = max(1.0, outputs[min(len(outputs) - 1, int(len(outputs) * seats / (seats + 1.0)))])
    spent = spread * output * _block_step(c, engine, seats / spread, shared, own, length)
    if turn > seats:
        spent += (turn - seats) * output / seats * _block_step(c, engine, seats, shared, own, length)
    return float(spent / turn)


@compiled
def _mixed(
    c: FloatArray, engine: FloatArray, crowd: float, output: float, most: float, shared: float, own: float, length: float
) -> float:
    """Return what each member of a full batch costs that is made of blocks of `most`."""
    unit = engine[UNIT]
    private = length - shared * unit + output
    full = max(most, min(min(engine[SEATS], crowd), engine[MEMORY] / (private + shared * unit / most)))
    blocks = full / most
    distinct = blocks * (shared + most * (own - shared))
    common = (shared if most > 1.0 else own) if blocks == 1.0 else 0.0
    return float(decode_step(c, engine, full, full * length, full * own, distinct, common) / full * output)


@compiled
def _joining(
    c: FloatArray,
    engine: FloatArray,
    now: tuple[float, float, float, float, float],
    step: float,
    joining: float,
    room: float,
    most: float,
    shared: float,
    held: float,
    own: float,
    length: float,
    common: float,
) -> float:
    """Return what each of a block adds to a step of the running batch, or each of those who fill it if that is less.

    `joining` of the block will be in the batch, `most` of each block like it, and `room` are free in all.
    """
    size, kv, units, different, _ = now
    first = max(1.0, min(joining, engine[SEATS] - size))  # who joins at once; the others follow as seats become free
    room = max(first, room)
    blocks = max(1.0, room / most)
    distinct = different + blocks * shared - held + room * (own - shared)
    filled = decode_step(c, engine, size + room, kv + room * length, units + room * own, distinct, common)
    size, kv, units, different = size + first, kv + first * length, units + first * own, different + first * (own - shared)
    within = decode_step(c, engine, size, kv, units, different, common)
    joined = decode_step(c, engine, size, kv, units, different + shared - held, common)
    each = (within - step) / first + (joined - within) / joining  # a new prefix is read for all who follow, too
    return float(min(each, (filled - step) / room))


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

    The turn is how many will be served together later. The arguments after `outputs` are those of `Scene` and `Block`, in
    their order.
    """
    prefix = shared * engine[UNIT]
    private = length - prefix + output
    size, kv, units, different, together = now
    step = decode_step(c, engine, size, kv, units, different, together) if size > 0.0 else 0.0
    turn = count + rate * left * step * part / crowd
    most = max(1.0, min(min(turn, engine[SEATS]), (engine[MEMORY] - prefix) // private))
    joining = min(count, most)
    mixed = _mixed(c, engine, crowd, output, most, shared, own, length)
    alone = _alone(c, engine, outputs, output, joining, count, shared, own, length)
    later = _alone(c, engine, outputs, output, most, turn, shared, own, length) if turn > count else alone
    if size == 0.0:
        return alone, alone, min(later, mixed), turn
    free = engine[MEMORY] - kv + (units - different) * engine[UNIT]
    room = min(min(engine[SEATS], crowd) - size, free // (private + prefix / most))
    each = _joining(c, engine, now, step, joining, room, most, shared, held, own, length, common)
    left = min(left, output)
    begun, rest = left * each, 1.0 - left / output
    fellows = max(1.0, min(min(part, engine[SEATS]), (engine[MEMORY] - prefix) // private))
    apart = _alone(c, engine, outputs, output, fellows, part, shared, own, length)  # with those of the block who run
    return begun + rest * min(alone, mixed), begun + rest * apart, min(later, mixed), turn


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
