"""The CSV traces: one header, one request for each row."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from opt.core.source import Source
from opt.core.traces.clock import calendar_moment, moment
from opt.core.traces.fields import SIGNATURES, suggestion
from opt.core.traces.table import MAX_COUNT, BadRow, Request, Rows, Sieve, collect, shown, whole

__all__ = ["Table", "apex", "azure", "burstgpt", "open_table", "read_count", "splitwise", "vidur"]

Cells = list[str]

LLM_REQUEST = "2"  # splitwise-sim numbers its request types; 2 is inference, the only kind with prompt and output
NANOSECONDS = 9
MAX_PRIORITY = 2**31


@dataclass(frozen=True)
class Table:
    """A CSV file past its header.

    Args:
        columns: the header, in order.
        records: (line, cells) pairs; blank lines are left out.
    """

    columns: tuple[str, ...]
    records: Iterator[tuple[int, Cells]]

    def where(self, name: str) -> int:
        """Return the position of a column that the header has."""
        return self.columns.index(name)

    def find(self, name: str) -> int | None:
        """Return the position of an optional column."""
        return self.columns.index(name) if name in self.columns else None

    def checked(self, parse: Callable[[Cells], Request | None]) -> Callable[[Cells], Sequence[Request]]:
        """Return `parse` behind a check that a row has as many cells as the header; None is a row left out on purpose."""
        width = len(self.columns)

        def request(cells: Cells) -> Sequence[Request]:
            if len(cells) != width:
                raise BadRow(f"{len(cells)} columns where the header has {width}")
            found = parse(cells)
            return () if found is None else (found,)

        return request

    def ignored(self, *used: str) -> list[str]:
        """Return the columns that the reader has no use for."""
        return [name for name in self.columns if name not in used]


def open_table(source: Source, sieve: Sieve, wanted: str, needed: Collection[str] | None = None) -> Table:
    """Return the table of a CSV file whose header has what format `wanted` needs, or the columns `needed`.

    Raises:
        InstanceError: no header, a column missing or named twice (with the reader that fits, if one does).
    """
    # The empty newline keeps the file's own line ends, as the csv module asks for.
    reader = csv.reader(io.StringIO(source.text, newline=""), strict=True)
    records = _records(reader, sieve)
    line, header = next(records, (1, []))
    columns = tuple(cell.strip() for cell in header)
    if not columns:
        sieve.fail(1, "the file is empty; it must begin with a header line")
    twice = {name for name in columns if columns.count(name) > 1}
    if twice:
        sieve.fail(line, f"the header names {', '.join(sorted(twice))} twice")
    missing = [name for name in sorted(SIGNATURES[wanted][0] if needed is None else needed) if name not in columns]
    if missing:
        hint = suggestion(source.text, wanted) or f"; it has {shown(', '.join(columns))}"
        sieve.fail(line, f"the header lacks {', '.join(missing)}, which format {wanted} needs{hint}")
    return Table(columns, records)


def _records(reader: Iterator[Cells], sieve: Sieve) -> Iterator[tuple[int, Cells]]:
    line = 0
    while True:
        start = line + 1
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            # A stray quote may swallow any number of lines, so this is never only one bad row.
            sieve.fail(start, f"not CSV ({error})")
        line = reader.line_num  # type: ignore[attr-defined]
        if line > start:
            sieve.fail(start, f"a quoted cell runs on to line {line}; no trace format has cells of several lines")
        if cells:
            yield line, cells


def read_count(name: str, text: str, low: int = 1, high: int = MAX_COUNT) -> int:
    """Return a cell that counts tokens (or the like): digits only, from `low` to `high`, 2**31 - 1 as a rule.

    Raises:
        BadRow: it is something else.
    """
    digits = text.strip()
    # The length keeps int() away from cells of thousands of digits, which it refuses with a message of its own.
    if not (digits.isascii() and digits.removeprefix("-").isdigit() and len(digits) <= 20):
        raise BadRow(f"{name} = {shown(text)}: must be an integer >= {low}")
    return whole(name, int(digits), text, low, high)


def _read_label(name: str, text: str) -> str:
    label = text.strip()
    if not label:
        raise BadRow(f"{name} = {shown(text)}: must not be empty")
    return label


def azure(source: Source, sieve: Sieve) -> Rows:
    """TIMESTAMP (date and time, UTC or with offset), ContextTokens, GeneratedTokens (tokens).

    The Azure LLM inference traces of 2023 (steps of 100 ns) and 2024 (microseconds, with +00:00), read without loss.
    """
    table = open_table(source, sieve, "azure")
    at, prompt, output = map(table.where, ("TIMESTAMP", "ContextTokens", "GeneratedTokens"))

    def request(cells: Cells) -> Request:
        ticks, decimals = calendar_moment("TIMESTAMP", cells[at])
        return Request(read_count("ContextTokens", cells[prompt]), read_count("GeneratedTokens", cells[output]), ticks, decimals)

    requests, lines = collect(table.records, table.checked(request), sieve)
    ignored = table.ignored("TIMESTAMP", "ContextTokens", "GeneratedTokens")
    return Rows(requests, lines, "TIMESTAMP", calendar=True, ignored=ignored)


def vidur(source: Source, sieve: Sieve) -> Rows:
    """num_prefill_tokens, num_decode_tokens (tokens); optional num_total_tokens (their sum), arrived_at (s).

    Without `arrived_at` the instance has no arrivals.
    """
    table = open_table(source, sieve, "vidur")
    prompt, output = table.where("num_prefill_tokens"), table.where("num_decode_tokens")
    total, at = table.find("num_total_tokens"), table.find("arrived_at")

    def request(cells: Cells) -> Request:
        found = Request(read_count("num_prefill_tokens", cells[prompt]), read_count("num_decode_tokens", cells[output]))
        if total is not None:
            _check_total("num_total_tokens", cells[total], found)
        if at is None:
            return found
        ticks, decimals = moment("arrived_at", cells[at])
        return found._replace(ticks=ticks, decimals=decimals)

    requests, lines = collect(table.records, table.checked(request), sieve)
    ignored = table.ignored("num_prefill_tokens", "num_decode_tokens", "num_total_tokens", "arrived_at")
    return Rows(requests, lines, None if at is None else "arrived_at", ignored=ignored)


def _check_total(name: str, text: str, found: Request) -> None:
    total = read_count(name, text)
    if total != found.prompt + found.output:
        raise BadRow(f"{name} = {total}: must be {found.prompt} + {found.output} = {found.prompt + found.output}")


def apex(source: Source, sieve: Sieve, *, part: int | None = None) -> Rows:
    """arrival_ns (ns), prompt_tokens, output_tokens (tokens); optional part.

    Several data-parallel parts are merged by time; the option `part` keeps one of them.
    """
    table = open_table(source, sieve, "apex")
    at, prompt, output = map(table.where, ("arrival_ns", "prompt_tokens", "output_tokens"))
    which = table.find("part")
    if part is not None and which is None:
        sieve.fail(1, f"part = {part}: the header has no column part")

    def request(cells: Cells) -> Request | None:
        piece = None if which is None else read_count("part", cells[which], low=0)
        ticks, decimals = moment("arrival_ns", cells[at], NANOSECONDS)
        found = Request(read_count("prompt_tokens", cells[prompt]), read_count("output_tokens", cells[output]), ticks, decimals)
        return found if part is None or piece == part else None

    requests, lines = collect(table.records, table.checked(request), sieve)
    ignored = table.ignored("arrival_ns", "prompt_tokens", "output_tokens", "part")
    return Rows(requests, lines, "arrival_ns", ignored=ignored, origin={} if part is None else {"part": part})


def burstgpt(source: Source, sieve: Sieve) -> Rows:
    """Timestamp (s), Request tokens, Response tokens, Total tokens (tokens); optional Session ID, Elapsed time, Model.

    Both schemas of the releases. A failed request is logged with 0 tokens: that is a bad row, never a short answer.
    """
    table = open_table(source, sieve, "burstgpt")
    at, prompt, output = map(table.where, ("Timestamp", "Request tokens", "Response tokens"))
    total, session = table.find("Total tokens"), table.find("Session ID")

    def request(cells: Cells) -> Request:
        ticks, decimals = moment("Timestamp", cells[at])
        found = Request(
            read_count("Request tokens", cells[prompt]), read_count("Response tokens", cells[output]), ticks, decimals
        )
        if total is not None:
            _check_total("Total tokens", cells[total], found)
        # Only conversations have a session; the cell of an API call is empty.
        return found if session is None else found._replace(session=cells[session].strip() or None)

    requests, lines = collect(table.records, table.checked(request), sieve)
    ignored = table.ignored("Timestamp", "Request tokens", "Response tokens", "Total tokens", "Session ID")
    return Rows(requests, lines, "Timestamp", ignored=ignored)


def splitwise(source: Source, sieve: Sieve) -> Rows:
    """request_id, arrival_timestamp (s), prompt_size, token_size (tokens); optional application_id, application_priority.

    The trace schema of splitwise-sim. `application_id` becomes the client and `application_priority` the priority (lower
    is served first). A row of another `request_type` than 2 (inference) or of `batch_size` above 1 is a bad row.
    """
    table = open_table(source, sieve, "splitwise")
    name, at, prompt, output = map(table.where, ("request_id", "arrival_timestamp", "prompt_size", "token_size"))
    optional = ("request_type", "batch_size", "application_id", "application_priority")
    kind, batch, client, priority = map(table.find, optional)

    def request(cells: Cells) -> Request:
        if kind is not None and cells[kind].strip() != LLM_REQUEST:
            raise BadRow(f"request_type = {shown(cells[kind])}: must be {LLM_REQUEST}, an inference request")
        if batch is not None and read_count("batch_size", cells[batch]) != 1:
            raise BadRow(f"batch_size = {shown(cells[batch])}: must be 1, one request in a row")
        ticks, decimals = moment("arrival_timestamp", cells[at])
        return Request(
            read_count("prompt_size", cells[prompt]),
            read_count("token_size", cells[output]),
            ticks,
            decimals,
            id=_read_label("request_id", cells[name]),
            client=None if client is None else _read_label("application_id", cells[client]),
            priority=None if priority is None else read_count("application_priority", cells[priority], low=-MAX_PRIORITY),
        )

    requests, lines = collect(table.records, table.checked(request), sieve)
    ignored = table.ignored("request_id", "arrival_timestamp", "prompt_size", "token_size", *optional)
    return Rows(requests, lines, "arrival_timestamp", ignored=ignored)
