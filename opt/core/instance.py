"""The requests that share one memory budget: the first noun, immutable and valid from birth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from opt.core.columns import ABSENT, FloatArray, IntArray, Label, floats, frozen, integers, labels, unique_ids
from opt.core.errors import InstanceError
from opt.core.exact import rational
from opt.core.prefixes import HashArray, prefix_cells, taken

__all__ = ["Instance"]

MAX_MEMORY = 2**31 - 1
TICKS_PER_S = 10**6
MIN_ROUND_S, MAX_ROUND_S = Fraction(1, 10**9), Fraction(10**6)
MAX_ARRIVAL = 2**53  # so starts, finishes and their sums over 2**31 rounds of output stay below 2**62

SECONDS = ("ttft_s", "tpot_s", "itl_s")
TOKENS = ("max_output", "predicted", "predicted_low", "predicted_high")
LABELS = ("session", "client")


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Instance:
    """Requests that share one KV-cache budget; immutable, and valid from birth.

    Args:
        memory: budget in tokens, 1 .. 2**31 - 1.
        prompt: (n,) prompt tokens, each at least 0.
        output: (n,) output tokens, each at least 1; `prompt + output` (the peak) may not exceed `memory`.
        arrival: (n,) arrival rounds, integers >= 0. Absent means that everything is there at round 0.
        arrival_s: (n,) arrivals in seconds from the start of the trace, instead of `arrival`.
        ids: (n,) unique strings or integers; the indices when absent.
        prefix: per request the cumulative hashes (unsigned 64 bits) of its prompt's chunks, `ceil(prompt /
            prefix_chunk)` of them: equal j-th hashes mean equal first j chunks.
        prefix_chunk: tokens in a chunk.
        ttft_s, tpot_s, itl_s: latency targets in seconds: first token, mean gap, every gap. NaN or None: no target.
        priority: (n,) integers, lower is served first.
        max_output: the client's cap on the output; predicted, predicted_low, predicted_high: what a predictor says of
            it. All in tokens; -1 or None where a request has none.
        session, client: labels; None where a request has none.
        name: a short name for tables.
        origin: how this data came to be (recipe and seed, or source, licence and hash), JSON values only.
        oversized: "error" refuses a request whose peak exceeds `memory`; "drop" leaves it out and records the count
            and the first ids in `origin["oversized_dropped"]`.

    Raises:
        InstanceError: a value is out of range; the message names the request, the field, the value and the limit.

    >>> Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
    Instance(n=4, memory=17)
    """

    memory: int
    prompt: IntArray
    output: IntArray
    arrival_rounds: IntArray | None
    arrival_s: FloatArray | None
    ids: Sequence[Label]
    prefix_ids: HashArray | None
    prefix_offsets: IntArray | None
    prefix_chunk: int | None
    ttft_s: FloatArray | None
    tpot_s: FloatArray | None
    itl_s: FloatArray | None
    priority: IntArray | None
    max_output: IntArray | None
    predicted: IntArray | None
    predicted_low: IntArray | None
    predicted_high: IntArray | None
    session: tuple[Label | None, ...] | None
    client: tuple[Label | None, ...] | None
    name: str
    origin: dict[str, Any]

    def __init__(
        self,
        memory: int,
        prompt: npt.ArrayLike,
        output: npt.ArrayLike,
        *,
        arrival: npt.ArrayLike | None = None,
        arrival_s: npt.ArrayLike | None = None,
        ids: Sequence[Label] | None = None,
        prefix: Sequence[Sequence[int]] | tuple[HashArray, IntArray] | None = None,
        prefix_chunk: int | None = None,
        name: str = "",
        origin: Mapping[str, Any] | None = None,
        oversized: Literal["error", "drop"] = "error",
        **optional: Any,
    ) -> None:
        if oversized not in ("error", "drop"):
            raise InstanceError(f"oversized = {oversized!r}: must be error or drop")
        unknown = set(optional) - {*SECONDS, *TOKENS, *LABELS, "priority"}
        if unknown:
            raise TypeError(f"Instance() got unknown fields {sorted(unknown)}")
        if arrival is not None and arrival_s is not None:
            raise InstanceError("give arrival (rounds) or arrival_s (seconds), not both")
        budget = _memory(memory)
        prompts = integers("prompt", prompt, None, 0, MAX_MEMORY)
        n = len(prompts)
        prefix_ids, offsets = prefix_cells(prefix, n)
        cells: dict[str, Any] = {
            "memory": budget,
            "prompt": prompts,
            "output": integers("output", output, n, 1, MAX_MEMORY),
            "arrival_rounds": None if arrival is None else integers("arrival", arrival, n, 0, MAX_ARRIVAL),
            "arrival_s": None if arrival_s is None else floats("arrival_s", arrival_s, n, minimum=0, optional=False),
            "ids": unique_ids(ids, n),
            "prefix_ids": prefix_ids,
            "prefix_offsets": offsets,
            "prefix_chunk": prefix_chunk,
            "name": name,
            "origin": dict(origin or {}),
        }
        cells |= {key: _optional(key, optional.get(key), n) for key in (*SECONDS, "priority", *TOKENS, *LABELS)}
        if oversized == "drop":
            cells = _without_oversized(cells)
        self.__dict__.update(_without_empty(cells))
        _check_peaks(self)
        _check_prefix(self)
        _check_outputs(self)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (self.columns(),)

    def __repr__(self) -> str:
        name = f"{self.name!r}, " if self.name else ""
        return f"Instance({name}n={self.n}, memory={self.memory})"

    @property
    def n(self) -> int:
        """The number of requests."""
        return len(self.prompt)

    @cached_property
    def arrival(self) -> IntArray:
        """Arrival rounds (n,), zeros when the instance has none.

        Raises:
            InstanceError: arrivals are in seconds; only `in_rounds` can turn them into rounds.
        """
        if self.arrival_s is not None:
            raise InstanceError(
                f"instance {self.name or '(unnamed)'} has arrivals in seconds; "
                "say how long a round is (--round-s, or Instance.in_rounds) to use them here"
            )
        return self.arrival_rounds if self.arrival_rounds is not None else frozen(np.zeros(self.n, np.int64))

    @cached_property
    def peak(self) -> IntArray:
        """Tokens held in the last active round: `prompt + output` (n,)."""
        return frozen(self.prompt + self.output)

    @cached_property
    def volume(self) -> IntArray:
        """Memory-rounds each request consumes whenever it runs: `s*o + o*(o+1)/2` (n,)."""
        return frozen(self.prompt * self.output + self.output * (self.output + 1) // 2)

    @property
    def arrival_unit(self) -> Literal["none", "rounds", "seconds"]:
        """What arrivals count in; "none" when the instance has no arrivals at all."""
        if self.arrival_s is not None:
            return "seconds"
        return "none" if self.arrival_rounds is None else "rounds"

    @property
    def offline(self) -> bool:
        """True when every request is there at round 0."""
        return not self.arrival.any()

    def prefix_rows(self) -> list[list[int]] | None:
        """The prefix hashes of each request as a list of lists, or None without any."""
        if self.prefix_ids is None or self.prefix_offsets is None:
            return None
        hashes = self.prefix_ids.tolist()
        return [hashes[a:b] for a, b in pairwise(self.prefix_offsets.tolist())]

    def columns(self) -> dict[str, Any]:
        """The constructor's arguments that are set, so `Instance(**instance.columns())` is the same instance."""
        cells: dict[str, Any] = {"memory": self.memory, "name": self.name, "origin": self.origin}
        cells |= {"prompt": self.prompt, "output": self.output, "arrival": self.arrival_rounds, "arrival_s": self.arrival_s}
        cells |= {key: getattr(self, key) for key in (*SECONDS, "priority", *TOKENS, *LABELS)}
        if self.prefix_ids is not None:
            cells |= {"prefix": (self.prefix_ids, self.prefix_offsets), "prefix_chunk": self.prefix_chunk}
        cells["ids"] = None if isinstance(self.ids, range) else self.ids
        return {key: cell for key, cell in cells.items() if cell is not None}

    def take(self, index: npt.ArrayLike, **changes: Any) -> Instance:
        """Return the requests `index` (positions or a mask), in that order; `changes` replace constructor arguments."""
        chosen = np.asarray(index)
        at = np.arange(self.n)[chosen if chosen.size else chosen.astype(np.int64)]
        cells = self.columns()
        for key in ("prompt", "output", "arrival", "arrival_s", *SECONDS, "priority", *TOKENS):
            if key in cells:
                cells[key] = cells[key][at]
        for key in ("ids", *LABELS):
            if key in cells:
                cells[key] = tuple(cells[key][k] for k in at.tolist())
        if self.prefix_ids is not None and self.prefix_offsets is not None:
            cells["prefix"] = taken(self.prefix_ids, self.prefix_offsets, at)
        return Instance(**{**cells, **changes})

    def replace(self, **changes: Any) -> Instance:
        """Return this instance with other constructor arguments; None removes an optional one."""
        return Instance(**{**self.columns(), **changes})

    def in_rounds(self, round_s: str | float) -> Instance:
        """Return the instance with arrivals in rounds of `round_s` seconds, rounded up so nobody starts before arriving.

        The division is exact on the decimal values: 1.1 s is round 11 of 0.1 s rounds, not 12. `origin["round_s"]`
        records the length. An instance without `arrival_s` is returned as it is.
        """
        if self.arrival_s is None:
            return self
        length = rational("round_s", round_s)
        if not MIN_ROUND_S <= length <= MAX_ROUND_S:
            raise InstanceError(
                f"round_s = {round_s}: a round must last from {float(MIN_ROUND_S)} to {float(MAX_ROUND_S)} seconds"
            )
        rounds = _ceil_divide(self.arrival_s, length)
        if rounds.max(initial=0) > MAX_ARRIVAL:
            raise InstanceError(f"round_s = {round_s}: arrivals would exceed {MAX_ARRIVAL} rounds; use longer rounds")
        origin = {**self.origin, "round_s": str(round_s)}
        return self.replace(arrival_s=None, arrival=rounds, origin=origin)


def _memory(memory: int) -> int:
    if isinstance(memory, bool) or not isinstance(memory, int | np.integer):
        raise InstanceError(f"memory = {memory!r}: must be an integer number of tokens")
    if not 1 <= memory <= MAX_MEMORY:
        hint = "no request can run in it" if memory < 1 else "give the budget in tokens, not bytes"
        raise InstanceError(f"memory = {memory}: must be from 1 to {MAX_MEMORY} tokens ({hint})")
    return int(memory)


def _optional(key: str, values: Any, n: int) -> Any:
    """Return the optional column `key`, or None where no request has a value."""
    if values is None:
        return None
    if key in SECONDS:
        return floats(key, values, n, minimum=0, optional=True)
    if key in LABELS:
        return labels(key, values, n)
    if key == "priority":
        filled = [0 if cell is None else cell for cell in values] if isinstance(values, Sequence) else values
        return integers(key, filled, n, -(2**31), 2**31)
    return integers(key, values, n, 1, MAX_MEMORY, optional=True)


def _without_empty(cells: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's cells, None for every optional column in which no request has a value."""
    none_left = dict.fromkeys((*SECONDS, *TOKENS, *LABELS))
    kept = {key: cell for key, cell in cells.items() if key not in none_left or not _is_empty(cell)}
    if len(cells["prompt"]):
        return {**none_left, **kept}
    nothing = ("arrival_rounds", "arrival_s", "priority", "prefix_ids", "prefix_offsets", "prefix_chunk")
    return {**none_left, **kept, **dict.fromkeys(nothing)}


def _is_empty(cell: Any) -> bool:
    if isinstance(cell, np.ndarray):
        return bool((np.isnan(cell) if cell.dtype.kind == "f" else cell == ABSENT).all())
    return cell is None or all(label is None for label in cell)


def _rebuilt(columns: dict[str, Any]) -> Instance:
    """Return a pickled instance; the constructor makes its arrays read-only again."""
    return Instance(**columns)


def _without_oversized(cells: dict[str, Any]) -> dict[str, Any]:
    """Return the constructor's cells without the requests that cannot fit, counted in the origin."""
    too_big = cells["prompt"] + cells["output"] > cells["memory"]
    if not too_big.any():
        return cells
    keep = np.flatnonzero(~too_big)
    kept = dict(cells)
    for key, cell in cells.items():
        if isinstance(cell, np.ndarray) and key not in ("prefix_ids", "prefix_offsets"):
            kept[key] = frozen(cell[keep])
        elif key in ("ids", *LABELS) and cell is not None:
            kept[key] = tuple(cell[k] for k in keep.tolist())
    if cells["prefix_ids"] is not None:
        kept["prefix_ids"], kept["prefix_offsets"] = taken(cells["prefix_ids"], cells["prefix_offsets"], keep)
    dropped = np.flatnonzero(too_big).tolist()
    report = {"count": len(dropped), "first_ids": [cells["ids"][k] for k in dropped[:20]]}
    return {**kept, "origin": {**cells["origin"], "oversized_dropped": report}}


def _named(instance: Instance, at: int) -> str:
    return f"request {instance.ids[at]!r} (index {at})"


def _check_peaks(instance: Instance) -> None:
    too_big = np.flatnonzero(instance.peak > instance.memory)
    if too_big.size:
        at = int(too_big[0])
        raise InstanceError(
            f"{_named(instance, at)}: peak {instance.peak[at]} (prompt {instance.prompt[at]} + output "
            f"{instance.output[at]}) exceeds the memory of {instance.memory} tokens (so do {too_big.size - 1} others); "
            "raise the memory, or leave such requests out (--oversized drop of import and mix, oversized='drop' in Python)"
        )


def _check_prefix(instance: Instance) -> None:
    chunk = instance.prefix_chunk
    if instance.prefix_offsets is None:
        if chunk is not None:
            raise InstanceError("prefix_chunk is given without prefix")
        return
    if not isinstance(chunk, int) or not 1 <= chunk <= MAX_MEMORY:
        raise InstanceError(f"prefix_chunk = {chunk!r}: prefix needs the number of tokens in a chunk, at least 1")
    wrong = np.flatnonzero(np.diff(instance.prefix_offsets) != -(-instance.prompt // chunk))
    if wrong.size:
        at = int(wrong[0])
        count = int(np.diff(instance.prefix_offsets)[at])
        raise InstanceError(
            f"{_named(instance, at)}: {count} prefix hashes for a prompt of {instance.prompt[at]} tokens in chunks of "
            f"{chunk}; it must have {-(-int(instance.prompt[at]) // chunk)}"
        )
    _check_distinct_hashes(instance, np.repeat(np.arange(instance.n), np.diff(instance.prefix_offsets)))


def _check_distinct_hashes(instance: Instance, owner: IntArray) -> None:
    """Hashes are cumulative, so no request can have one twice."""
    assert instance.prefix_ids is not None
    order = np.lexsort((instance.prefix_ids, owner))
    hashes, who = instance.prefix_ids[order], owner[order]
    twice = np.flatnonzero((hashes[1:] == hashes[:-1]) & (who[1:] == who[:-1]))
    if twice.size:
        at = int(who[twice[0]])
        raise InstanceError(
            f"{_named(instance, at)}: prefix hash {hashes[twice[0]]} stands twice; hashes are cumulative, so each is new"
        )


def _check_outputs(instance: Instance) -> None:
    """The client's cap is kept by the engine, and a prediction interval has its ends in order."""
    cap = instance.max_output
    low, high = instance.predicted_low, instance.predicted_high
    if cap is not None and (over := np.flatnonzero((cap >= 0) & (instance.output > cap))).size:
        at = int(over[0])
        raise InstanceError(f"{_named(instance, at)}: output {instance.output[at]} exceeds its max_output {cap[at]}")
    if low is not None and high is not None and (crossed := np.flatnonzero((low >= 0) & (high >= 0) & (low > high))).size:
        at = int(crossed[0])
        raise InstanceError(f"{_named(instance, at)}: predicted_low {low[at]} exceeds predicted_high {high[at]}")


def _ceil_divide(seconds: FloatArray, length: Fraction) -> IntArray:
    """Return the ceiling of `seconds / length`, exact on the decimal values the floats print as."""
    quotient = np.minimum(seconds / float(length), 2.0**62)
    rounds = np.ceil(quotient).astype(np.int64)
    near = np.flatnonzero(np.abs(quotient - np.rint(quotient)) < 1e-9 * (1 + quotient))
    exact, ticks = _whole_ticks(seconds[near])
    divisor = length * TICKS_PER_S
    if divisor.numerator < 2**20 and divisor.denominator < 2**10:  # ticks are below 2**53, so this stays in 64 bits
        rounds[near[exact]] = -(-(ticks[exact] * divisor.denominator) // divisor.numerator)
        near = near[~exact]
    for at in near.tolist():
        rounds[at] = min(-(-Fraction(repr(float(seconds[at]))) // length), 2**62)
    return rounds


def _whole_ticks(seconds: FloatArray) -> tuple[npt.NDArray[np.bool_], IntArray]:
    """Return which values are whole microseconds, and how many: fifteen digits name a float uniquely."""
    ticks = np.rint(np.minimum(seconds, 1e9) * TICKS_PER_S).astype(np.int64)
    return (ticks / TICKS_PER_S == seconds) & (ticks < 10**15), ticks
