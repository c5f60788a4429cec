"""Rows and the sieve they pass: a row is read in full or refused by line, field, value, limit and way out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, TypeVar

from opt.core.columns import Label
from opt.core.errors import InstanceError

__all__ = ["MAX_COUNT", "BadRow", "OnBadRow", "Request", "Rows", "Sieve", "collect", "shown", "whole"]

OnBadRow: TypeAlias = Literal["error", "skip"]
Record = TypeVar("Record")

MAX_COUNT = 2**31 - 1
SHOWN_LINES = 20  # enough to find the fault in the file; the count tells the rest
SHOWN_CHARACTERS = 60


class BadRow(Exception):  # noqa: N818 - it is a verdict on the data, caught by the sieve, and never leaves this package
    """One row is not what its format promises; the text names the field, the value and the limit."""


class Request(NamedTuple):
    """One request as its row gives it.

    `ticks / 10**decimals` is the arrival in seconds, exact. The optional cells are None where the format has none.
    """

    prompt: int
    output: int
    ticks: int = 0
    decimals: int = 0
    id: Label | None = None
    prefix: Sequence[int] | None = None
    session: Label | None = None
    client: Label | None = None
    priority: int | None = None


@dataclass(frozen=True)
class Rows:
    """What a reader found in a file, in file order.

    Args:
        requests: the good requests.
        lines: for each request the line (or list position) of its row.
        time_field: the field its arrivals come from; None for a format without arrivals.
        calendar: the arrivals are dates, so the shift is shown as one.
        prefix_chunk: tokens in a hashed block, where the format has hashes.
        ignored: fields of the file that an instance has no place for.
        origin: further facts for the instance's origin (JSON values).
    """

    requests: list[Request]
    lines: list[int]
    time_field: str | None
    calendar: bool = False
    prefix_chunk: int | None = None
    ignored: Sequence[str] = ()
    origin: dict[str, Any] = field(default_factory=dict)


@dataclass
class Sieve:
    """Decides what happens to a bad row: "error" raises at the first, "skip" counts them.

    Args:
        place: the file's name for messages.
        policy: "error" or "skip".
        hint: returns what to say when no row at all was good (which format fits); asked only then.
        way_out: what a message advises.
        item: how rows are called that share a line (the lists of a result file); they are numbered from 1.
    """

    place: str
    policy: OnBadRow = "error"
    hint: Callable[[], str] = str
    way_out: str = "fix the row or skip bad rows (--on-bad-row skip)"
    item: str = ""
    rows: int = 0
    good: int = 0
    bad: list[int] = field(default_factory=list)
    first: str = ""

    def at(self, line: int) -> str:
        """Return how messages name a row."""
        return f"{self.place}: {self.item} {line}" if self.item else f"{self.place}:{line}"

    def refuse(self, line: int, verdict: str) -> None:
        """Count a bad row, or raise for it.

        Raises:
            InstanceError: the policy is "error".
        """
        message = f"{self.at(line)}: {verdict}"
        self.first = self.first or message
        if self.policy == "error":
            raise InstanceError(f"{message}; {self.way_out}{'' if self.good else self.hint()}")
        self.bad.append(line)

    def fail(self, line: int | None, verdict: str) -> NoReturn:
        """Raise for a fault of the file as a whole, whatever the policy.

        Raises:
            InstanceError: always.
        """
        raise InstanceError(f"{self.place if line is None else f'{self.place}:{line}'}: {verdict}")

    def check(self) -> None:
        """Refuse a file of which every row was skipped: that is a wrong format, not a few bad rows.

        Raises:
            InstanceError: there were rows and none was good.
        """
        if self.rows and not self.good:
            raise InstanceError(f"{self.place}: not one of its {self.rows} rows is good; the first: {self.first}{self.hint()}")

    def report(self) -> dict[str, Any]:
        """Return the count of bad rows and where the first ones stand."""
        key = f"first_{self.item}s" if self.item else "first_lines"
        return {"count": len(self.bad), key: sorted(self.bad)[:SHOWN_LINES]}


def collect(
    records: Iterable[tuple[int, Record]], parse: Callable[[Record], Sequence[Request]], sieve: Sieve
) -> tuple[list[Request], list[int]]:
    """Return the requests of the good records and their lines; bad records go to the sieve.

    Args:
        records: (line, record) pairs in file order.
        parse: turns a record into its requests, or raises `BadRow`.
        sieve: counts the rows, and holds the policy.

    Raises:
        InstanceError: a record is bad, or a request id stands twice, and the policy is "error".
    """
    requests: list[Request] = []
    lines: list[int] = []
    seen: dict[str, int] = {}
    for line, record in records:
        sieve.rows += 1
        try:
            found = parse(record)
            if found and found[0].id is not None:
                _claim_ids(found, seen, line)
        except BadRow as verdict:
            sieve.refuse(line, str(verdict))
            continue
        sieve.good += 1
        requests.extend(found)
        lines.extend([line] * len(found))
    return requests, lines


def _claim_ids(found: Sequence[Request], seen: dict[str, int], line: int) -> None:
    """Note the ids of a record; they are compared as text, as an instance does, so 7 and "7" clash."""
    for request in found:
        if (first := seen.get(str(request.id))) is not None:
            raise BadRow(f"id = {shown(request.id)}: already the id of line {first}; ids must be unique")
    seen.update((str(request.id), line) for request in found)


def whole(name: str, value: int, cell: object, low: int = 1, high: int = MAX_COUNT) -> int:
    """Return `value` if it lies within `low .. high`.

    Raises:
        BadRow: it does not.
    """
    if low <= value <= high:
        return value
    limit = f">= {low}" if value < low else f"<= {high}"
    raise BadRow(f"{name} = {shown(cell)}: must be an integer {limit}")


def shown(cell: object) -> str:
    """Return a cell as a message shows it, cut where it is long."""
    text = "null" if cell is None else repr(cell)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}..."
