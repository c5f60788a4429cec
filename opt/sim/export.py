"""Files of a simulation: a Chrome trace for Perfetto, and one row for each request as JSON lines or CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from opt.core.strict_json import write_bytes
from opt.sim.timeline import Timeline

__all__ = ["perfetto", "write_perfetto", "write_requests"]

MICRO = 1e6


def perfetto(timeline: Timeline) -> dict[str, Any]:
    """Return the Chrome trace of a simulation, which ui.perfetto.dev opens: microseconds, never negative.

    A process for each engine has its steps (equal ones in a row are one slice) and counters for memory, running and
    waiting requests; one more has a track for each request: waiting, prefill, decode.
    """
    events = [event for pid in range(len(timeline.engines)) for event in _engine_events(timeline, pid)]
    return {"displayTimeUnit": "ms", "traceEvents": [*events, *_request_events(timeline, len(timeline.engines))]}


def _named(pid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": name}}


def _engine_events(timeline: Timeline, pid: int) -> Iterator[dict[str, Any]]:
    engine = timeline.engines[pid]
    yield _named(pid, engine.config.name)
    durations = engine.log.durations.values
    at = 0
    for run in engine.log.runs:
        spent = float(durations[at : at + run.steps].sum())
        at += run.steps
        kind = "mixed" if run.chunks and run.decodes else "prefill" if run.chunks else "decode"
        details = {"steps": run.steps, "prefill tokens": run.prefill_tokens, "decodes": run.decodes, "KV tokens": run.kv_tokens}
        start = run.start_s * MICRO
        yield {"ph": "X", "pid": pid, "tid": 0, "name": kind, "ts": start, "dur": spent * MICRO, "args": details}
        used = {"used": run.used_blocks * engine.memory.block}
        yield {"ph": "C", "pid": pid, "name": "KV tokens", "ts": start, "args": used}
        yield {"ph": "C", "pid": pid, "name": "requests", "ts": start, "args": {"running": run.running, "waiting": run.waiting}}


def _request_events(timeline: Timeline, pid: int) -> Iterator[dict[str, Any]]:
    yield _named(pid, "requests")
    phases = (
        ("waiting", "arrival_s", "start_s"),
        ("prefill", "start_s", "first_token_s"),
        ("decode", "first_token_s", "finish_s"),
    )
    for at, row in enumerate(timeline.rows()):
        for name, begin, end in phases:
            if row[begin] is None or (row[end] is None and begin == "arrival_s" and row["state"] != "waiting"):
                continue
            until = timeline.end_s if row[end] is None else row[end]
            common = {"cat": "request", "id": at, "pid": pid, "tid": 0, "name": name}
            details = {"request": row["id"], "prompt": row["prompt"], "output": row["output"], "preemptions": row["preemptions"]}
            yield {"ph": "b", "ts": row[begin] * MICRO, "args": details, **common}
            yield {"ph": "e", "ts": until * MICRO, **common}


def write_perfetto(timeline: Timeline, path: str | Path) -> None:
    """Write the Chrome trace, packed if the name ends in .gz; Perfetto opens both."""
    write_bytes(json.dumps(perfetto(timeline), separators=(",", ":"), allow_nan=False).encode(), path)


def write_requests(timeline: Timeline, path: str | Path) -> None:
    """Write one row for each request: CSV if the name ends in .csv or .csv.gz, JSON lines otherwise; `-` is stdout."""
    rows = timeline.rows()
    if str(path).removesuffix(".gz").endswith(".csv"):
        text = io.StringIO()
        names = list(rows[0]) if rows else ["id"]
        writer = csv.DictWriter(text, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        data = text.getvalue().encode()
    else:
        data = b"".join(json.dumps(row, allow_nan=False).encode() + b"\n" for row in rows)
    write_bytes(data, path)
