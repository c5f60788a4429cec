"""Tables on a terminal of any width: headings wrap, columns that find no room go below, and no number is ever cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import IO, TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["print_table"]

ENDLESS = 100_000  # columns, where nobody wraps lines
PROSE = 30  # characters beyond which the cells of a column may wrap
FOLDED = 10  # characters that prose has at the least, where it must break words
EDGE = 3  # characters of a column beside its cells


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], *, title: str, file: IO[str], width: int | None
) -> None:
    """Print a table to a file.

    Args:
        columns: headings.
        rows: cells, as they are to be read.
        right: of each column, whether it holds numbers.
        title: stands above; may be empty.
        file: where.
        width: characters of a line; None where lines may have any length. A table that is wider goes on below, with its
            first column again.

    Raises:
        BrokenPipeError: nobody reads on.
    """
    from rich.console import Console as Terminal
    from rich.text import Text

    class Pipe(Terminal):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich would exit with 1, which here means that a verification failed

    sizes = [_sizes(heading, [row[k] for row in rows], right[k]) for k, heading in enumerate(columns)]
    room = (width or ENDLESS) - 1
    if title:
        Pipe(file=file, width=width or ENDLESS).print(Text(title, style="bold"))
    for block in _blocks([size.least for size in sizes], room):
        widths = _widths([sizes[k] for k in block], room)
        described = [(columns[k], right[k], cells) for k, cells in zip(block, widths, strict=True)]
        table = _table(described, [[row[k] for k in block] for row in rows])
        Pipe(file=file, width=max(room, sum(widths) + EDGE * len(widths)) + 1).print(table)


class _Size(NamedTuple):
    """Characters of a column: what it would like, what it needs, and with what it can do where nothing else helps."""

    most: int
    least: int
    folded: int


def _sizes(heading: str, cells: Sequence[str], numbers: bool) -> _Size:
    """Numbers need their length; prose needs its longest word, and can be folded; a heading needs its longest word."""
    lines = list(chain.from_iterable(cell.split("\n") for cell in cells))
    longest = max(map(len, lines), default=1)
    word = max((len(word) for line in lines for word in line.split()), default=1)
    above = max(map(len, heading.split()), default=1)
    least = longest if numbers else min(longest, max(word, PROSE))
    return _Size(max(longest, len(heading)), max(least, above), max(least if numbers else FOLDED, above))


def _blocks(least: Sequence[int], room: int) -> Iterator[list[int]]:
    """Yield the columns that stand side by side: the first one and, in their order, as many others as there is room for."""
    block, used = [0], least[0] + EDGE
    for k in range(1, len(least)):
        if len(block) > 1 and used + least[k] + EDGE > room:
            yield block
            block, used = [0], least[0] + EDGE
        block.append(k)
        used += least[k] + EDGE
    yield block


def _widths(sizes: Sequence[_Size], room: int) -> list[int]:
    """Return a width for each column: what it needs, and in turn what it would like while there is room."""
    widths = [size.least for size in sizes]
    spare = room - sum(widths) - EDGE * len(widths)
    for k, size in enumerate(sizes):
        change = min(spare, size.most - widths[k]) if spare > 0 else max(spare, min(size.folded - widths[k], 0))
        widths[k] += change
        spare -= change
    return widths


def _table(columns: Sequence[tuple[str, bool, int]], rows: Sequence[Sequence[str]]) -> Table:
    """Return the table; what looks like markup in a cell is text."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD)
    for heading, numbers, width in columns:
        side: Literal["left", "right"] = "right" if numbers else "left"
        table.add_column(Text(heading), justify=side, width=width, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    return table
