"""Solvers propose, `certify` decides: memory, objective and bounds re-derived in exact arithmetic.

Nothing here is shared with the solvers. Memory grows while a request runs and is released only at completions, so it
suffices to look at completion rounds; a property test compares this with the plain round-by-round definition.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, Literal, get_args

import numpy as np

from opt.core.columns import IntArray, frozen
from opt.core.errors import CertificateError
from opt.core.instance import MAX_ARRIVAL, Instance
from opt.core.model import Bound, KvMode, Proposal, Result, Schedule
from opt.core.priced import priced_value, prices_of
from opt.core.ramps import ramp_value
from opt.core.tree import tree_value

__all__ = ["certify", "check_bound", "check_mode", "check_schedule", "memory_at_completions"]

MAX_START = MAX_ARRIVAL + 2**61


def certify(
    instance: Instance,
    proposal: Proposal,
    *,
    solver: str,
    bound: Bound | None = None,
    seconds: float = 0.0,
    seed: int = 0,
    params: Mapping[str, Any] | None = None,
) -> Result:
    """Return the `Result` that a proposal deserves, or refuse it.

    Args:
        instance: the requests.
        proposal: starts, and possibly a bound and a claim of exhaustion.
        solver: the name under which the answer is reported.
        bound: a further lower bound; the better of it and the proposal's own is kept.
        seconds, seed, params: recorded as they are.

    Raises:
        CertificateError: a start precedes its arrival, memory is exceeded, a certificate does not prove its value, or
            a bound exceeds the total latency of a valid schedule.
    """
    best = max((b for b in (proposal.bound, bound) if b is not None), key=lambda b: b.value, default=None)
    for claim in (proposal.bound, bound):
        if claim is not None:
            check_bound(instance, claim, kv=proposal.kv)
    schedule = None if proposal.start is None else check_schedule(instance, proposal.start, kv=proposal.kv)
    status, proof = _verdict(schedule, best, exhausted=proposal.exhausted)
    return Result(
        schedule=schedule,
        bound=best,
        solver=solver,
        status=status,
        proof=proof,
        stop_reason="proved" if status == "optimal" else proposal.stop_reason,
        seconds=seconds,
        seed=seed,
        params=dict(params or {}),
        stats=dict(proposal.stats),
    )


def _verdict(
    schedule: Schedule | None, bound: Bound | None, *, exhausted: bool
) -> tuple[Literal["optimal", "feasible", "infeasible", "unknown"], Literal["certificate", "search", "none"]]:
    if schedule is None:
        return ("infeasible", "search") if exhausted else ("unknown", "none")
    if bound is not None and bound.ceil > schedule.total_latency:
        raise CertificateError(
            f"the {bound.method} bound {bound.value} exceeds the total latency {schedule.total_latency} of a valid schedule"
        )
    if schedule.total_latency == 0 or (bound is not None and bound.ceil == schedule.total_latency):
        return "optimal", "certificate"
    return ("optimal", "search") if exhausted else ("feasible", "none")


def check_schedule(instance: Instance, start: IntArray, *, kv: KvMode = "separate") -> Schedule:
    """Return the schedule, or raise `CertificateError` naming the request or the round that breaks it."""
    check_mode(kv)
    starts = np.asarray(start)
    if starts.shape != (instance.n,) or (starts.size and starts.dtype.kind not in "iu"):
        raise CertificateError(f"start must hold {instance.n} integers, got shape {starts.shape} of {starts.dtype}")
    wrong = np.flatnonzero((starts < instance.arrival) | (starts > MAX_START))
    if wrong.size:
        at = int(wrong[0])
        rule = (
            f"before its arrival at round {instance.arrival[at]}" if starts[at] < instance.arrival[at] else f"after {MAX_START}"
        )
        raise CertificateError(f"request {instance.ids[at]!r} (index {at}) starts at round {starts[at]}, {rule}")
    schedule = Schedule(instance, frozen(starts.astype(np.int64)), kv)
    rounds, usage = memory_at_completions(schedule)
    over = np.flatnonzero(usage > instance.memory)
    if over.size:
        at = int(over[0])
        raise CertificateError(f"round {rounds[at]} holds {usage[at]} tokens, over the memory of {instance.memory}")
    return schedule


def check_mode(kv: str) -> None:
    """Raise `CertificateError` unless `kv` names a memory mode; a typo must not pass for the weaker claim."""
    if kv not in get_args(KvMode):
        raise CertificateError(f"kv = {kv!r}: must be {' or '.join(get_args(KvMode))}")


def memory_at_completions(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """Return the distinct completion rounds and the tokens held in each.

    A request active in round t holds `s - x + t`. The sums run modulo 2**64; every true value is below 2**62, so the
    differences come out exact.
    """
    instance, start, finish = schedule.instance, schedule.start, schedule.finish
    rounds = np.unique(finish)
    begun, done = np.argsort(start, kind="stable"), np.argsort(finish, kind="stable")
    offset = instance.prompt - start
    opened = np.searchsorted(start[begun], rounds, side="left")  # x < t
    closed = np.searchsorted(finish[done], rounds, side="left")  # c < t
    usage = _prefix_sums(offset[begun])[opened] - _prefix_sums(offset[done])[closed] + (opened - closed) * rounds
    if schedule.kv == "shared":
        usage = usage - _repeated_tokens(schedule, rounds)
    return rounds, usage


def _prefix_sums(values: IntArray) -> IntArray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(values, dtype=np.int64)])


def _repeated_tokens(schedule: Schedule, rounds: IntArray) -> IntArray:
    """Return, for each round, the tokens of prefix chunks beyond the first copy of each.

    A chunk held by k active requests is stored once; the copies beyond the first save its size, `prefix_chunk` tokens
    (fewer for the last, partial chunk of a prompt). An instance has no hash twice in one request.
    """
    instance = schedule.instance
    if instance.prefix_ids is None or instance.prefix_offsets is None or instance.prefix_chunk is None:
        return np.zeros(len(rounds), np.int64)
    owner = np.repeat(np.arange(instance.n), np.diff(instance.prefix_offsets))
    level = np.arange(len(owner)) - instance.prefix_offsets[owner]
    tokens = np.minimum(instance.prefix_chunk, instance.prompt[owner] - level * instance.prefix_chunk)
    values, which = np.unique(instance.prefix_ids, return_inverse=True)
    least = np.full(len(values), instance.prefix_chunk, np.int64)
    np.minimum.at(least, which, tokens)  # equal hashes of unequal size: count on the smallest only
    size = least[which]
    order = np.lexsort((schedule.start[owner], instance.prefix_ids))
    saved = np.zeros(len(rounds) + 1, np.int64)
    previous: np.uint64 | None = None
    covered = 0  # the last round in which somebody so far holds the chunk
    for at in order.tolist():
        who, chunk = int(owner[at]), instance.prefix_ids[at]
        first, last = int(schedule.start[who]) + 1, int(schedule.finish[who])
        if chunk != previous:
            previous, covered = chunk, 0
        if first <= covered:
            lo, hi = np.searchsorted(rounds, [first, min(covered, last) + 1])
            saved[lo] += size[at]
            saved[hi] -= size[at]
        covered = max(covered, last)
    return np.cumsum(saved)[:-1]


def check_bound(instance: Instance, bound: Bound, *, kv: KvMode = "separate") -> None:
    """Raise `CertificateError` unless the certificate proves `bound.value` for schedules of memory mode `kv`.

    A bound valid when prefixes are shared is valid when they are not: sharing only adds schedules.
    """
    check_mode(kv)
    check_mode(bound.kv)
    if not isinstance(bound.value, Fraction | int):
        raise CertificateError(f"the {bound.method} bound is {bound.value!r}: a bound is a fraction, never a float")
    if kv == "shared" and bound.kv != "shared":
        raise CertificateError(f"the {bound.method} bound is proved for separate KV caches; it says nothing with shared prefixes")
    proved_kv, proved = _proved(instance, bound)
    if bound.kv == "shared" and proved_kv != "shared":
        raise CertificateError(f"the certificate of the {bound.method} bound does not hold with shared prefixes")
    if bound.value > proved:
        raise CertificateError(f"the {bound.method} bound claims {bound.value}, its certificate proves {proved}")


def _proved(instance: Instance, bound: Bound) -> tuple[KvMode, Fraction]:
    """Return what the bound's certificate proves, and for which memory mode."""
    kind = bound.certificate.get("kind")
    if kind == "prices":
        return "separate", priced_value(instance, prices_of(bound.certificate))
    if kind == "ramps":
        return "separate", ramp_value(instance, bound.certificate)
    if kind == "tree":
        return "separate", tree_value(instance, bound.certificate)
    if kind != "closed-form":
        raise CertificateError(f"the {bound.method} bound carries no certificate that can be checked (kind {kind!r})")
    formula = CLOSED_FORMS.get(str(bound.certificate.get("formula")))
    if formula is None:
        raise CertificateError(f"unknown closed form {bound.certificate.get('formula')!r}; known: {sorted(CLOSED_FORMS)}")
    return formula(instance)


def _trivial(instance: Instance) -> tuple[KvMode, Fraction]:
    return "shared", Fraction(sum(instance.output.tolist()))


def _volume(instance: Instance) -> tuple[KvMode, Fraction]:
    """Kong, Qi, Ye, Zhou (arXiv 2606.22327): sum over k of the k smallest volumes, over the memory."""
    if not instance.offline:
        raise CertificateError("the volume bound is proved only when every request arrives at round 0")
    n, total = instance.n, 0
    for rank, volume in enumerate(sorted(instance.volume.tolist())):
        total += (n - rank) * volume
    return "separate", Fraction(total, instance.memory)


SCALE = 40  # quotients are rounded down to multiples of 2**-40, finer than the solver's, so an honest bound passes


def _mean_busy_time(instance: Instance) -> tuple[KvMode, Fraction]:
    """Smallest-volume-first mean busy times plus the tails, in whole numbers."""
    means = _offline_means(instance) if instance.offline else _preemptive_means(instance)
    tails = 0
    for prompt, output in zip(instance.prompt.tolist(), instance.output.tolist(), strict=True):
        # 4 * sum over k of (k - 1/2)(s + k) = 2 s o^2 + o (o + 1)(4 o - 1)/3, and 4 v = 4 s o + 2 o (o + 1)
        moment = 2 * prompt * output * output + output * (output + 1) * (4 * output - 1) // 3
        tails += (-moment << SCALE) // (4 * prompt * output + 2 * output * (output + 1))
    latency = sum(instance.output.tolist()) - sum(instance.arrival.tolist())
    return "separate", means + latency + Fraction(tails, 1 << SCALE)


def _offline_means(instance: Instance) -> Fraction:
    """Everything at round 0: a volume v served after a volume of `before` has its mean at (before + v/2)/M."""
    doubled = before = 0
    for volume in sorted(instance.volume.tolist()):
        doubled += 2 * before + volume
        before += volume
    return Fraction(doubled, 2 * instance.memory)


def _preemptive_means(instance: Instance) -> Fraction:
    """Serve the smallest volume present, preemptively.

    Time is counted in units of 1/M round, so that a volume of v takes v units; a piece of a job from b to e contributes
    (e - b)(e + b) / (2 v M) rounds to its mean.
    """
    memory = instance.memory
    jobs = list(zip(instance.arrival.tolist(), instance.volume.tolist(), strict=True))
    jobs.sort(key=lambda job: job[0])  # stable: ties by index, as everywhere
    total = index = now = 0
    waiting: list[tuple[int, int, int, int]] = []  # (volume, index in jobs, units left, sum over pieces)
    while index < len(jobs) or waiting:
        if not waiting:
            now = max(now, jobs[index][0] * memory)
        while index < len(jobs) and jobs[index][0] * memory <= now:
            heapq.heappush(waiting, (jobs[index][1], index, jobs[index][1], 0))
            index += 1
        volume, job, left, pieces = heapq.heappop(waiting)
        end = now + left if index == len(jobs) else min(now + left, jobs[index][0] * memory)
        pieces += (end - now) * (end + now)
        left -= end - now
        now = end
        if left:
            heapq.heappush(waiting, (volume, job, left, pieces))
        else:
            total += (pieces << SCALE) // (2 * volume * memory)
    return Fraction(total, 1 << SCALE)


def _shared_mean_busy_time(instance: Instance) -> tuple[KvMode, Fraction]:
    """The mean busy time bound where each request keeps its private tokens and a fair share of every common chunk.

    A chunk of z tokens in memory, held by a of the active requests, 1 <= a <= m, takes z >= a z / m. So in every round the
    tokens held are at least the sum, over active requests, of what remains of the prompt when each chunk counts z / m: a
    schedule that is feasible with sharing is feasible without it for those smaller prompts, starts and latencies the same.
    """
    smaller = Instance(instance.memory, _fair_prompts(instance), instance.output, arrival=instance.arrival)
    return "shared", _mean_busy_time(smaller)[1]


def _fair_prompts(instance: Instance) -> list[int]:
    """Return every prompt with the saving on its chunks, z (1 - 1/m) each, taken off and rounded down."""
    rows, chunk = instance.prefix_rows() or [], instance.prefix_chunk or 1
    prompts = instance.prompt.tolist()
    holders: dict[int, list[int]] = {}
    size: dict[int, int] = {}
    for i, row in enumerate(rows):
        for level, name in enumerate(row):
            holders.setdefault(name, []).append(i)
            size[name] = min(size.get(name, chunk), prompts[i] - level * chunk)
    private = [prompts[i] - sum(size[name] for name in row if len(holders[name]) > 1) for i, row in enumerate(rows)]
    saved = [Fraction(0)] * len(prompts)
    for name, who in holders.items():
        if len(who) > 1:
            most = _at_once(sorted(private[i] + 1 for i in who), instance.memory - size[name])
            for i in who:
                saved[i] += size[name] - Fraction(size[name], most)
    return [max(0, prompt - math.ceil(saving)) for prompt, saving in zip(prompts, saved, strict=True)]


def _at_once(least: list[int], room: int) -> int:
    """Return how many holders of a chunk can be active in one round: their private tokens, ascending, have to fit."""
    count = used = 0
    while count < len(least) and used + least[count] <= room:
        used += least[count]
        count += 1
    return max(count, 1)


CLOSED_FORMS: dict[str, Callable[[Instance], tuple[KvMode, Fraction]]] = {
    "trivial": _trivial,
    "volume": _volume,
    "mean-busy-time": _mean_busy_time,
    "shared-mean-busy-time": _shared_mean_busy_time,
}
