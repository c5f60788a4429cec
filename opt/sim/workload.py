"""What an engine works on: what a policy may know of the requests, what it may not, and how far each has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from opt.core.columns import ABSENT, FloatArray, IntArray, Label, frozen
from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["DONE", "FUTURE", "REJECTED", "RUNNING", "WAITING", "Lengths", "Progress", "Requests", "Workload", "workload"]

Lengths: TypeAlias = Literal["auto", "output", "predicted", "none"]

FUTURE, WAITING, RUNNING, DONE, REJECTED = range(5)  # values of `Progress.state`


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests as a policy sees them: everything but the true output.

    Args:
        prompt: (n,) tokens.
        arrival_s: (n,) seconds.
        expected: (n,) output tokens that the client or a predictor announces, `ABSENT` where nobody does.
        rank: (n,) priority, lower first; zeros where the instance has none.
        ttft_s, tpot_s, itl_s: (n,) targets in seconds, NaN where a request has none.
        ids: names for messages.
        prefix_ids, prefix_offsets, prefix_chunk: cumulative hashes of the prompts' chunks, or None.
        session, client: labels, or None.
    """

    prompt: IntArray
    arrival_s: FloatArray
    expected: IntArray
    rank: IntArray
    ttft_s: FloatArray
    tpot_s: FloatArray
    itl_s: FloatArray
    ids: Sequence[Label]
    prefix_ids: npt.NDArray[np.uint64] | None = None
    prefix_offsets: IntArray | None = None
    prefix_chunk: int | None = None
    session: tuple[Label | None, ...] | None = None
    client: tuple[Label | None, ...] | None = None

    @property
    def n(self) -> int:
        """The number of requests."""
        return len(self.prompt)


@dataclass(frozen=True, eq=False)
class Progress:
    """How far every request has come, one column each (n,); the engine writes it, policies read it.

    Args:
        state: `FUTURE`, `WAITING`, `RUNNING`, `DONE` or `REJECTED`.
        computed: tokens whose keys and values are in memory (of a waiting request: that will be brought along).
        produced: output tokens made.
        reached: the largest `computed` before a preemption, so that recomputed tokens can be counted.
        cached: prompt tokens that came out of the prefix cache at the first admission.
        preemptions: times it lost its memory.
        start_s, first_s, last_s, finish_s: seconds of the first scheduling, the first and the latest token, and the
            last one; NaN before.
        max_gap_s: the longest wait between two of its tokens.
    """

    state: npt.NDArray[np.int8]
    computed: IntArray
    produced: IntArray
    reached: IntArray
    cached: IntArray
    preemptions: IntArray
    start_s: FloatArray
    first_s: FloatArray
    last_s: FloatArray
    finish_s: FloatArray
    max_gap_s: FloatArray

    @classmethod
    def of(cls, n: int) -> Progress:
        """Return the progress of n requests that have not arrived."""
        return cls(
            state=np.zeros(n, np.int8),
            computed=np.zeros(n, np.int64),
            produced=np.zeros(n, np.int64),
            reached=np.zeros(n, np.int64),
            cached=np.zeros(n, np.int64),
            preemptions=np.zeros(n, np.int64),
            start_s=np.full(n, np.nan),
            first_s=np.full(n, np.nan),
            last_s=np.full(n, np.nan),
            finish_s=np.full(n, np.nan),
            max_gap_s=np.zeros(n),
        )


@dataclass(frozen=True, eq=False)
class Workload:
    """Requests, their true outputs, and their progress; the engines of a cluster share one."""

    requests: Requests
    output: IntArray = field(repr=False)
    progress: Progress

    @classmethod
    def of(cls, requests: Requests, output: IntArray) -> Workload:
        """Return a workload of which nothing has run."""
        return cls(requests, output, Progress.of(requests.n))


def workload(instance: Instance, *, lengths: Lengths = "auto", round_s: float | None = None) -> Workload:
    """Return an instance as a workload in seconds.

    Args:
        instance: the requests.
        lengths: what policies are told of the outputs: the true "output", the instance's "predicted" column, or
            "none"; "auto" tells the prediction where there is one, and the truth otherwise.
        round_s: how long a round of `arrival` is; needed where arrivals are in rounds.

    Raises:
        InstanceError: arrivals are in rounds and `round_s` is missing, or lengths = "predicted" without predictions.
    """
    n = instance.n
    nothing = frozen(np.full(n, np.nan))
    targets = {name: nothing if (cells := getattr(instance, name)) is None else cells for name in ("ttft_s", "tpot_s", "itl_s")}
    requests = Requests(
        prompt=instance.prompt,
        arrival_s=_arrivals(instance, round_s),
        expected=frozen(_expected(instance, lengths)),
        rank=frozen(np.zeros(n, np.int64)) if instance.priority is None else instance.priority,
        ids=instance.ids,
        prefix_ids=instance.prefix_ids,
        prefix_offsets=instance.prefix_offsets,
        prefix_chunk=instance.prefix_chunk,
        session=instance.session,
        client=instance.client,
        **targets,
    )
    return Workload.of(requests, instance.output)


def _arrivals(instance: Instance, round_s: float | None) -> FloatArray:
    if instance.arrival_unit == "seconds":
        assert instance.arrival_s is not None
        return instance.arrival_s
    if instance.arrival_unit == "rounds" and round_s is None and not instance.offline:
        raise InstanceError(
            f"instance {instance.name or '(unnamed)'} has arrivals in rounds; "
            "say how many seconds a round is (--round-s), or use the cost `unit`, in which a round is a second"
        )
    return frozen(instance.arrival.astype(np.float64) * (round_s or 0.0))


def _expected(instance: Instance, lengths: Lengths) -> IntArray:
    """Return announced output tokens; a client's cap stands in where nothing else is known."""
    if lengths not in get_args(Lengths):
        raise InstanceError(f"lengths = {lengths!r}: must be one of {', '.join(get_args(Lengths))}")
    if lengths == "predicted" and instance.predicted is None:
        raise InstanceError(f"instance {instance.name or '(unnamed)'} has no column `predicted` (--lengths predicted)")
    unknown = np.full(instance.n, ABSENT, np.int64)
    cap = unknown if instance.max_output is None else instance.max_output
    guess = unknown if instance.predicted is None or lengths in ("none", "output") else instance.predicted
    truth = instance.output if lengths == "output" or (lengths == "auto" and instance.predicted is None) else unknown
    return np.where(guess != ABSENT, guess, np.where(truth != ABSENT, truth, cap)).astype(np.int64)
