"""Logs of whole iterations: what `kvopt measure` writes and what anyone may write by hand.

CSV (plain or gzip) with a header, or JSON lines; a row is one iteration. Columns are the fields of `opt.core.cost.Load`
and `seconds`:

    seconds            wall time of the iteration (required)
    prefill_tokens     prompt tokens computed, over all chunks (0 where left out, as are all that follow)
    prefill_pairs      sum over chunks of c*x + c*(c+1)/2 for a chunk of c tokens after x cached ones; it may be left out
                       where an iteration has at most one chunk
    prefill_sequences  chunks (1 where there are prefill tokens)
    prefill_context    sum over chunks of x
    decodes            requests that make one token each without a chunk
    kv_tokens          tokens of KV cache the decodes read, each one's own new token included
    repeated_kv        how many of them another decode of the batch has read already (a prefix of p tokens that g share:
                       (g-1)*p)

JSON lines may begin with one object {"format": "kvopt-iterations/1", "machine": {...}, "origin": {...}}, kept in the model.
A mixed batch in a log was measured as such, so its extra cost is fitted where the rows allow.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from opt.core.columns import FloatArray
from opt.core.cost.load import Load
from opt.core.errors import InstanceError
from opt.core.source import Source, TraceSource, open_source
from opt.core.strict_json import write_bytes
from opt.fit.iterations import Iterations
from opt.fit.tables import parse_numbers

__all__ = ["LOG_FORMAT", "Log", "is_log", "read_log", "write_log"]

LOG_FORMAT = "kvopt-iterations/1"
COLUMNS = (*Load._fields, "seconds")


@dataclass(frozen=True)
class Log:
    """Measured iterations, and what is known about the machine and the way they were measured."""

    iterations: Iterations
    machine: Mapping[str, Any] = field(default_factory=dict)
    origin: Mapping[str, Any] = field(default_factory=dict)


def is_log(source: TraceSource) -> bool:
    """Return whether a file is an iteration log rather than a table of operators, by its first line."""
    first = open_source(source).text.lstrip().partition("\n")[0]
    return first.startswith("{") or "seconds" in [cell.strip() for cell in first.split(",")]


def read_log(source: TraceSource) -> Log:
    """Return an iteration log.

    Raises:
        InstanceError: a column is unknown or missing, a cell is no number at least 0, or a row contradicts itself.
    """
    file = open_source(source)
    if file.text.lstrip().startswith("{"):
        head, cells, first_line = _json_lines(file)
    else:
        head, cells, first_line = {}, _csv(file), 2
    if "seconds" not in cells or not cells["seconds"]:
        raise InstanceError(f"{file.place}: no iterations: a log has the column `seconds` and a row for each iteration")
    numbers = {name: parse_numbers(file.place, name, texts, first_line) for name, texts in cells.items()}
    return Log(_iterations(file.place, numbers, first_line), head.get("machine", {}), head.get("origin", {}))


def _csv(file: Source) -> dict[str, list[str]]:
    rows = list(csv.reader(io.StringIO(file.text)))
    header = [cell.strip() for cell in rows[0]] if rows else []
    _check_names(f"{file.place}:1", header)
    for line, row in enumerate(rows[1:], 2):
        if len(row) != len(header):
            raise InstanceError(f"{file.place}:{line}: {len(row)} cells where the header has {len(header)}")
    return {name: [row[at] for row in rows[1:]] for at, name in enumerate(header)}


def _check_names(place: str, names: Sequence[str]) -> None:
    for name in names:
        if name not in COLUMNS:
            raise InstanceError(f"{place}: column {name!r} is not known; known: {', '.join(COLUMNS)}")
    if len(set(names)) < len(names):
        raise InstanceError(f"{place}: a column stands twice")


def _json_lines(file: Source) -> tuple[dict[str, Any], dict[str, list[str]], int]:
    """Return the head, the cells by column as text, and the line of the first row; blank lines are no rows."""
    lines = [(number, line) for number, line in enumerate(file.text.splitlines(), 1) if line.strip()]
    values = [_object(f"{file.place}:{number}", line) for number, line in lines]
    head: dict[str, Any] = {}
    if "format" in values[0]:
        head = values.pop(0)
        if head["format"] != LOG_FORMAT:
            raise InstanceError(f"{file.place}: format {head['format']!r}: must be {LOG_FORMAT!r}")
    names = list(dict.fromkeys(name for value in values for name in value))
    _check_names(file.place, names)
    cells = {name: [_cell(value.get(name)) for value in values] for name in names}
    return head, cells, lines[0][0] + bool(head)


def _object(place: str, line: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise InstanceError(f"{place}: not JSON ({error.msg})") from None
    if not isinstance(value, dict):
        raise InstanceError(f"{place}: each line is one JSON object")
    return value


def _cell(value: object) -> str:
    return "" if value is None else repr(value) if isinstance(value, float) else str(value)


def _iterations(place: str, numbers: Mapping[str, FloatArray], first_line: int) -> Iterations:
    count = len(numbers["seconds"])
    columns = {name: np.nan_to_num(numbers.get(name, np.zeros(count))) for name in Load._fields}
    tokens, context = columns["prefill_tokens"], columns["prefill_context"]
    one = np.minimum(tokens, 1.0)
    columns["prefill_sequences"] = _filled(numbers, "prefill_sequences", one)
    columns["prefill_pairs"] = _filled(numbers, "prefill_pairs", tokens * context + tokens * (tokens + 1) / 2)
    wrong = {
        "seconds must be above 0": ~(numbers["seconds"] > 0),
        "an iteration without tokens": tokens + columns["decodes"] <= 0,
        "several chunks need prefill_pairs": (columns["prefill_sequences"] > 1) & _absent(numbers, "prefill_pairs"),
        "repeated_kv exceeds kv_tokens": columns["repeated_kv"] > columns["kv_tokens"],
    }
    for what, rows in wrong.items():
        if rows.any():
            raise InstanceError(f"{place}:{first_line + int(np.argmax(rows))}: {what}")
    return Iterations(np.column_stack(list(columns.values())), numbers["seconds"])


def _absent(numbers: Mapping[str, FloatArray], name: str) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.isnan(numbers.get(name, np.full(len(numbers["seconds"]), np.nan)))


def _filled(numbers: Mapping[str, FloatArray], name: str, otherwise: FloatArray) -> FloatArray:
    absent = _absent(numbers, name)
    return np.where(absent, otherwise, numbers[name]) if name in numbers else otherwise


def write_log(
    rows: Iterable[tuple[Load, float]], path: str | Path, *, machine: Mapping[str, Any], origin: Mapping[str, Any]
) -> None:
    """Write iterations and their seconds as JSON lines, with a head that says where they come from."""
    lines = [json.dumps({"format": LOG_FORMAT, "machine": dict(machine), "origin": dict(origin)}, allow_nan=False)]
    for load, seconds in rows:
        cells = {name: value for name, value in load._asdict().items() if value}
        lines.append(json.dumps({**cells, "seconds": seconds}, allow_nan=False))
    write_bytes(("\n".join(lines) + "\n").encode(), path)
