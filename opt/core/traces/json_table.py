"""JSON records read strictly: 64-bit integers exact, other numbers as written, a key at most once, NaN refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeAlias

from opt.core.columns import Label
from opt.core.source import Source
from opt.core.traces.clock import moment
from opt.core.traces.table import BadRow, Request, Sieve, shown, whole

__all__ = [
    "Fields",
    "Json",
    "Number",
    "Record",
    "decode",
    "fields",
    "get",
    "json_records",
    "read_count",
    "read_label",
    "read_moment",
]

Json: TypeAlias = Any
Record: TypeAlias = Json
Fields: TypeAlias = dict[str, Json]

MAX_LABEL_CHARACTERS = 1000


class Number(str):
    """A JSON number that is no integer, as it is written: a float would lose digits of an epoch time."""

    __slots__ = ()

    def __repr__(self) -> str:
        """The literal itself, so that a message shows NaN and not 'NaN'."""
        return str(self)


class _Twice(dict[str, Json]):
    """An object in which one key stands twice; it is refused where it is used, so that the file can be read on."""


def _object(pairs: list[tuple[str, Json]]) -> Fields:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Twice(found, twice=_repeated(pairs))


def _repeated(pairs: Sequence[tuple[str, Json]]) -> str:
    names = [name for name, _ in pairs]
    return next(name for name in names if names.count(name) > 1)


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=Number, parse_constant=Number)


def decode(text: str) -> Json:
    """Return the JSON value of a line.

    Raises:
        BadRow: it is no JSON.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
        raise BadRow(f"unreadable JSON ({reason})") from None


def fields(value: Json, name: str = "") -> Fields:
    """Return a value that must be an object (the one at `name`, or the row itself).

    Raises:
        BadRow: it is something else, or a key stands twice in it.
    """
    if type(value) is dict:
        return value
    place = f"{name}: " if name else ""
    if isinstance(value, _Twice):
        raise BadRow(f"{place}the key {shown(value['twice'])} stands twice in one object")
    raise BadRow(f"{place}{shown(value)} must be a JSON object")


def json_records(
    source: Source, sieve: Sieve, parse: Callable[[Fields], Sequence[Request]], seen: set[str]
) -> tuple[Iterator[tuple[int, Record]], Callable[[Record], Sequence[Request]]]:
    """Return the (line, record) pairs of a JSONL file or of one JSON array, and `parse` fitted to them.

    Args:
        source: the file.
        sieve: is told of an array that breaks off.
        parse: turns an object into requests.
        seen: gathers the keys of all objects.
    """

    def request(value: Json) -> Sequence[Request]:
        row = fields(value)
        seen.update(row)
        return parse(row)

    start = len(source.text) - len(source.text.lstrip())
    if source.text.startswith("[", start):
        return _items(source.text, start, sieve), request
    # Only "\n" ends a line: splitlines() would also cut at the line separators that a JSON string may hold.
    lines = ((line, text) for line, text in enumerate(source.text.split("\n"), 1) if text.strip())
    return lines, lambda text: request(decode(text))


def _items(text: str, start: int, sieve: Sieve) -> Iterator[tuple[int, Json]]:
    """Yield the items of the array that begins at `start`; what is no array fails the file, as nothing after it can be found."""
    line, last = 1, 0
    at = _past_blank(text, start + 1)
    closed = text.startswith("]", at)
    while not closed:
        line, last = line + text.count("\n", last, at), at
        try:
            value, at = _DECODER.raw_decode(text, at)
        except (ValueError, RecursionError) as error:
            sieve.fail(getattr(error, "lineno", line), f"unreadable JSON array ({getattr(error, 'msg', error)})")
        yield line, value
        at = _past_blank(text, at)
        closed = text.startswith("]", at)
        if not closed and not text.startswith(",", at):
            sieve.fail(text.count("\n", 0, at) + 1, "the JSON array breaks off; a comma or a closing bracket is missing")
        if not closed:
            at = _past_blank(text, at + 1)
    rest = _past_blank(text, at + 1)
    if rest < len(text):
        sieve.fail(text.count("\n", 0, rest) + 1, "there is more after the end of the JSON array")


def _past_blank(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def get(row: Fields, name: str) -> Json:
    """Return a field of a row.

    Raises:
        BadRow: the row has no such field.
    """
    try:
        return row[name]
    except KeyError:
        raise BadRow(f"{name} is missing") from None


def read_count(row: Fields, name: str, low: int = 1) -> int:
    """Return a field that counts tokens (or the like): an integer from `low` to 2**31 - 1.

    Raises:
        BadRow: it is missing or something else.
    """
    value = get(row, name)
    if type(value) is not int:
        raise BadRow(f"{name} = {shown(value)}: must be an integer >= {low}")
    return whole(name, value, value, low)


def read_moment(row: Fields, name: str, decimals: int = 0) -> tuple[int, int]:
    """Return a time field as (ticks, decimals), exact; its unit is 10**-decimals seconds.

    Raises:
        BadRow: it is missing, no number, NaN or infinite, or negative.
    """
    value = get(row, name)
    if type(value) is int and 0 <= value < 2**64:
        return value, decimals
    if type(value) not in (int, Number):
        raise BadRow(f"{name} = {shown(value)}: must be a time, a number >= 0")
    return moment(name, Number(value), decimals)


def read_label(row: Fields, name: str) -> Label:
    """Return a field that names something: a string or an integer.

    Raises:
        BadRow: it is missing, empty or something else.
    """
    value = get(row, name)
    if type(value) is int or (type(value) is str and 0 < len(value) <= MAX_LABEL_CHARACTERS):
        return value
    raise BadRow(f"{name} = {shown(value)}: must be a string (not empty) or an integer")
