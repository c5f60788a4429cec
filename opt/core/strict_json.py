"""JSON in and out: read strictly, written the same everywhere.

Duplicate keys, NaN, infinities and numbers out of range are errors that name their place (`file: $.requests[3].prompt:
...`). The standard library's decoder is used because its hooks see duplicate keys, NaN and every digit of a 64-bit hash;
msgspec then checks the shape.
"""

from __future__ import annotations

import gzip
import json
import math
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec

from opt.core.errors import InstanceError
from opt.core.source import STDIN, TraceSource, open_source

__all__ = ["as_json", "compact", "load_as", "load_json", "pretty", "strictly", "write_bytes"]

Kind = TypeVar("Kind")


def load_json(source: TraceSource) -> tuple[str, Any]:
    """Return the name of a file and its JSON value; duplicate keys, NaN and infinities are refused with their place."""
    file = open_source(source)
    if not file.text.strip():
        raise InstanceError(f"{file.place}: the file is empty")
    return file.place, _decode(file.place, file.text)


def load_as(source: TraceSource, kind: type[Kind], format_: str, what: str) -> tuple[str, Kind]:
    """Return the name of a file and its content as `kind`, a strict structure with the key `format`.

    Raises:
        InstanceError: unreadable, not `what` (another format), an unknown key, or a value of a wrong type.
    """
    place, data = load_json(source)
    if not isinstance(data, dict) or data.get("format") != format_:
        raise InstanceError(f'{place}: not {what}: a JSON object with "format": "{format_}"')
    return place, strictly(place, data, kind)


def strictly(place: str, data: Any, kind: type[Kind]) -> Kind:
    """Return a JSON value as `kind`; the message of a refusal names the place."""
    try:
        return msgspec.convert(data, kind)
    except msgspec.ValidationError as error:
        raise InstanceError(f"{place}: {error}".replace(" - at `", ": at `")) from None


class _Fault(NamedTuple):
    verdict: str


def _decode(place: str, text: str) -> Any:
    """Return the JSON value of `text`, refusing duplicate keys and NaN with the path to them."""
    faults: list[_Fault] = []

    def blame(verdict: str) -> _Fault:
        faults.append(_Fault(verdict))
        return faults[-1]

    def pairs(items: list[tuple[str, Any]]) -> Any:
        table = dict(items)
        if len(table) == len(items):
            return table
        keys = [key for key, _ in items]
        return blame(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice")

    def constant(name: str) -> _Fault:
        return blame(f"{name} is not a number that JSON or kvopt allows; leave the field out where there is no value")

    def number(digits: str) -> float | _Fault:
        found = float(digits)
        return found if math.isfinite(found) else blame(f"{digits} is out of range")

    try:
        value = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except json.JSONDecodeError as error:
        raise InstanceError(f"{place}:{error.lineno}:{error.colno}: not JSON ({error.msg})") from None
    except RecursionError:
        raise InstanceError(f"{place}: nested too deeply to be a kvopt file") from None
    except ValueError:
        raise InstanceError(f"{place}: a number has thousands of digits; no field of kvopt does") from None
    if faults:
        path, fault = _find_fault(value, "$")
        raise InstanceError(f"{place}: {path}: {fault.verdict}")
    return value


def _find_fault(value: Any, path: str) -> tuple[str, _Fault]:
    """Return where the first fault stands; one is known to be there."""
    stack = [(path, value)]
    while stack:
        path, value = stack.pop()
        if isinstance(value, _Fault):
            return path, value
        if isinstance(value, dict):
            stack.extend((f"{path}.{key}", cell) for key, cell in reversed(value.items()))
        elif isinstance(value, list):
            stack.extend((f"{path}[{at}]", cell) for at, cell in reversed(list(enumerate(value))))
    raise AssertionError("a fault was recorded and is not in the value")


def compact(value: Any, *, sort: bool = False) -> bytes:
    """Return JSON without spaces, keys sorted if asked for; NaN and infinities are refused."""
    return json.dumps(value, sort_keys=sort, separators=(",", ":"), allow_nan=False).encode()


def pretty(value: dict[str, Any]) -> bytes:
    """Return JSON with one line for each top-level key, and one for each request of a list."""
    lines = []
    for key, cell in value.items():
        body = compact(cell).decode()
        if key == "requests" and cell:
            body = "[\n  " + ",\n  ".join(compact(row).decode() for row in cell) + "\n ]"
        lines.append(f" {compact(key).decode()}: {body}")
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def as_json(value: Mapping[str, Any]) -> bytes:
    """Return one JSON document with a final newline; NaN and infinities are refused."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, indent=2).encode() + b"\n"


def write_bytes(data: bytes, path: str | Path) -> None:
    """Write bytes to a path, packed when it ends in .gz (always the same bytes), or to standard output for `-`.

    A file is replaced only once the new one is complete. A link is followed, and a device or pipe is written to.
    """
    if str(path) == STDIN:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
        return
    path = Path(path)
    packed = gzip.compress(data, mtime=0) if path.suffix == ".gz" else data
    try:
        path = path.resolve()
        if path.exists() and not path.is_file():
            path.write_bytes(packed)
            return
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(packed)
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InstanceError(f"{path}: cannot be written ({error.strerror or error})") from None


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
