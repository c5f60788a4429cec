"""Public and private request traces as instances: read strictly, shifted exactly, every loss counted.

`read_trace` is the one door; `READERS` lists the formats. A reader turns the bytes of a file into rows, and what all
formats have in common (bad rows, clocks, order, limits, provenance) is done here once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, TypeAlias, get_args

from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.core.source import Source, TraceSource, open_source
from opt.core.traces.clock import Clock, exact_rate
from opt.core.traces.csv_formats import apex, azure, burstgpt, splitwise, vidur
from opt.core.traces.fields import suggestion
from opt.core.traces.json_formats import llmservingsim, mooncake, sharegpt, vllm_bench
from opt.core.traces.servegen import servegen
from opt.core.traces.table import OnBadRow, Rows, Sieve

__all__ = ["READERS", "Reader", "read_trace"]

Reader: TypeAlias = Callable[..., Rows]

READERS: Mapping[str, Reader] = {
    "azure": azure,
    "mooncake": mooncake,
    "burstgpt": burstgpt,
    "sharegpt": sharegpt,
    "vidur": vidur,
    "splitwise": splitwise,
    "vllm-bench": vllm_bench,
    "apex": apex,
    "llmservingsim": llmservingsim,
    "servegen": servegen,
}


def read_trace(
    source: TraceSource,
    format: str,
    *,
    memory: int,
    limit: int | None = None,
    rate_scale: str | float = 1,
    on_bad_row: OnBadRow = "error",
    oversized: Literal["error", "drop"] = "error",
    backlog: bool = False,
    name: str | None = None,
    **options: Any,
) -> Instance:
    """Return the requests of a trace as an instance, in time order, with arrivals in seconds from the first one.

    Args:
        source: a path, "-" for standard input, or a binary stream; gzip is recognised by its first bytes.
        format: a key of `READERS`.
        memory: the KV budget in tokens.
        limit: keep the first `limit` requests in time order (the whole file is read and checked all the same).
        rate_scale: replay at so many times the request rate: arrivals are divided by its exact decimal value.
        on_bad_row: "error" raises at the first bad row; "skip" leaves bad rows out and counts them in
            `origin["bad_rows"]`. A fault of the file as a whole (its header, its encoding) is always an error.
        oversized: "error" refuses a request whose prompt + output exceeds `memory`; "drop" leaves it out and counts it in
            `origin["oversized_dropped"]`. No length is ever clipped.
        backlog: drop the arrivals, so that every request is there at the beginning.
        name: the instance's name; the file's stem when absent.
        options: what the format's reader takes beyond the file (see its docstring).

    Returns:
        The instance. Equal times keep the order of the file. Times are read without loss and shifted exactly by the
        earliest one, which `origin["shift"]` keeps: adding a constant to all times of a file changes nothing else.

    Raises:
        InstanceError: a row or the file is not what the format promises; the message names file, line, field, value and
            limit.
        TypeError: the reader has no such option.

    >>> import io
    >>> rows = "arrival_ns,prompt_tokens,output_tokens" + chr(10) + "500,9,5" + chr(10) + "250,2,5"
    >>> found = read_trace(io.BytesIO(rows.encode()), "apex", memory=17)
    >>> found.prompt.tolist(), found.arrival_s.tolist()
    ([2, 9], [0.0, 2.5e-07])
    """
    reader = _reader(format, options)
    rate = exact_rate(rate_scale)
    _check_choices(limit, on_bad_row, oversized)
    trace = open_source(source)
    rows, clock, origin = _read(trace, format, reader, on_bad_row, options)
    order = clock.order()[:limit]
    timed = rows.time_field is not None and not backlog
    if rate != 1 and not timed:
        reason = "backlog = True drops them" if backlog else "the trace has none"
        raise InstanceError(f"rate_scale = {rate_scale}: there are no arrival times to scale ({reason})")
    origin |= _shift(rows, clock, order) if timed else {}
    origin |= {"rate_scale": str(rate_scale)} if rate != 1 else {}
    origin |= {"limit": limit} if limit is not None else {}
    origin |= {"backlog": True} if backlog else {}
    return Instance(
        memory,
        **_columns([rows.requests[at] for at in order], rows.prefix_chunk),
        arrival_s=clock.arrivals(order, rate) if timed else None,
        name=trace.stem if name is None else name,
        origin=origin,
        oversized=oversized,
    )


def _read(
    trace: Source, format: str, reader: Reader, on_bad_row: OnBadRow, options: Mapping[str, Any]
) -> tuple[Rows, Clock, dict[str, Any]]:
    """Return the good rows of a file, their clock and what the origin says of them."""
    if not trace.text.strip():
        raise InstanceError(f"{trace.place}: the file is empty")
    sieve = Sieve(trace.place, on_bad_row, hint=lambda: suggestion(trace.text, format))
    rows = reader(trace, sieve, **options)
    sieve.check()
    rows, clock = _one_clock(rows, Clock.of(rows.requests), sieve)
    return rows, clock, _origin(trace, format, rows, sieve)


def _reader(format: str, options: Mapping[str, Any]) -> Reader:
    if format not in READERS:
        raise InstanceError(f"format {format!r}: unknown; known are {', '.join(READERS)}")
    known = list(inspect.signature(READERS[format]).parameters)[2:]
    unknown = sorted(set(options) - set(known))
    if unknown:
        have = f"its options are {', '.join(known)}" if known else "it has none"
        raise TypeError(f"format {format} has no option {', '.join(unknown)}; {have}")
    return READERS[format]


def _check_choices(limit: int | None, on_bad_row: str, oversized: str) -> None:
    if limit is not None and (type(limit) is not int or limit < 1):
        raise InstanceError(f"limit = {limit!r}: must be an integer >= 1")
    for name, value, choices in (("on_bad_row", on_bad_row, get_args(OnBadRow)), ("oversized", oversized, ("error", "drop"))):
        if value not in choices:
            raise InstanceError(f"{name} = {value!r}: must be {' or '.join(choices)}")


def _one_clock(rows: Rows, clock: Clock, sieve: Sieve) -> tuple[Rows, Clock]:
    """Refuse the rows whose times keep another clock than most: a Unix epoch among relative times, or the reverse."""
    strangers = clock.strangers()
    if not strangers:
        return rows, clock
    unit = "" if rows.calendar else " s"
    middle = clock.text(clock.median, rows.calendar)
    refused: set[int] = set()
    for at in strangers:
        if rows.lines[at] in refused:
            continue
        refused.add(rows.lines[at])
        time = clock.text(clock.ticks[at], rows.calendar)
        verdict = f"{rows.time_field}: {time}{unit} is more than ten years from the median {middle}{unit}"
        sieve.refuse(rows.lines[at], f"{verdict}; a file must keep one clock, not mix epoch and relative times")
    keep = [at for at in range(len(rows.requests)) if rows.lines[at] not in refused]
    requests, lines = [rows.requests[at] for at in keep], [rows.lines[at] for at in keep]
    return replace(rows, requests=requests, lines=lines), Clock([clock.ticks[at] for at in keep], clock.decimals)


def _origin(trace: Source, format: str, rows: Rows, sieve: Sieve) -> dict[str, Any]:
    """Return where the instance comes from: the file's name only, so that it is the same on every machine."""
    origin: dict[str, Any] = {"source": trace.name, "format": format, "sha256": trace.sha256, "rows": sieve.rows}
    if sieve.policy == "skip":
        origin["bad_rows"] = sieve.report()
    if rows.ignored:
        origin["ignored_fields"] = list(rows.ignored)
    return origin | rows.origin


def _shift(rows: Rows, clock: Clock, order: Sequence[int]) -> dict[str, str]:
    if not order:
        return {}
    unit = "date and time, UTC" if rows.calendar else "s"
    return {"shift": clock.text(clock.ticks[order[0]], rows.calendar), "shift_unit": unit}


def _columns(requests: Sequence[Any], prefix_chunk: int | None) -> dict[str, Any]:
    """Return the arguments of an instance; a column in which no request has a value is left out."""
    prompt, output, _, _, ids, prefix, session, client, priority = zip(*requests, strict=True) if requests else [()] * 9
    columns: dict[str, Any] = {"prompt": prompt, "output": output}
    optional = {"ids": ids, "prefix": prefix, "session": session, "client": client, "priority": priority}
    columns |= {key: cells for key, cells in optional.items() if any(cell is not None for cell in cells)}
    if "prefix" in columns:
        columns |= {"prefix_chunk": prefix_chunk}
    return columns
