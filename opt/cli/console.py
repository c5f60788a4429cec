"""What all verbs share: common options, one JSON document or a table on stdout, the rest on stderr."""

from __future__ import annotations

import contextlib
import functools
import math
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

if TYPE_CHECKING:
    from opt.core.instance import Instance

__all__ = [
    "Console",
    "known_cost",
    "load_instance",
    "named",
    "names_of",
    "number",
    "out_option",
    "parameters",
    "picture",
    "read_file",
    "round_option",
    "verb",
]

Command = Callable[..., Any]


@dataclass(frozen=True)
class Console:
    """How a verb speaks: `as_json` puts exactly one JSON document on stdout, `quiet` keeps stderr for errors."""

    as_json: bool
    quiet: bool

    def document(self, value: Mapping[str, Any]) -> None:
        """Print one JSON document; a NaN is a fault of ours and raises."""
        from opt.core.strict_json import as_json

        click.echo(as_json(value).decode(), nl=False)

    def facts(self, value: Mapping[str, Any]) -> None:
        """Print names and values in two columns."""
        width = max(len(key) for key in value)
        for key, cell in value.items():
            click.echo(f"{key.replace('_', ' ').ljust(width)}  {shown(cell)}")

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]], title: str = "") -> None:
        """Print a table; on a terminal within its width, elsewhere as wide as it needs to be."""
        from opt.cli.tables import print_table

        right = [
            bool(rows) and all(isinstance(row[k], int | float) or row[k] is None for row in rows) for k in range(len(columns))
        ]
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        cells = [[shown(cell) for cell in row] for row in rows]
        print_table(columns, cells, right, title=title, file=sys.stdout, width=width)

    def note(self, text: str) -> None:
        """Say something on stderr, unless quiet."""
        if not self.quiet:
            click.echo(text, err=True)

    @staticmethod
    def say_error(text: str) -> None:
        """Print one line about what is wrong on stderr."""
        click.echo(f"kvopt: {' '.join(text.split())}", err=True)

    def progress(self) -> Callable[[str], None] | None:
        """Return a callback that shows what is going on: one moving line on a terminal, nothing elsewhere."""
        if self.quiet or not sys.stderr.isatty():
            return None
        return lambda text: click.echo(f"\r\x1b[K{text}", err=True, nl=False)

    def end_progress(self) -> None:
        """Clear the moving line."""
        if not self.quiet and sys.stderr.isatty():
            click.echo("\r\x1b[K", err=True, nl=False)


def shown(cell: object) -> str:
    """Return a value as a table shows it: thousands apart, four decimals, a dash for nothing."""
    if cell is None:
        return "-"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return f"{cell:,.4f}" if math.isfinite(cell) and abs(cell) < 1000 else f"{cell:,.1f}"
    return str(cell)


def verb(function: Command) -> Command:
    """Give a verb the options every verb has, and a `console` that obeys them."""

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON document on stdout and nothing else.")
    @click.option("--quiet", is_flag=True, help="No progress, notes or warnings on stderr.")
    @click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error.")
    @functools.wraps(function)
    def wrapped(*arguments: Any, as_json: bool, quiet: bool, **options: Any) -> Any:
        return function(*arguments, console=Console(as_json, quiet), **options)

    return wrapped


def out_option(what: str) -> Callable[[Command], Command]:
    """Return the `-o` option."""
    return click.option("-o", "--output", "out", metavar="FILE", help=f"Write {what} to FILE (.gz packs it, - is stdout).")


def load_instance(file: str, *, round_s: str | None = None) -> Instance:
    """Return the instance of a FILE argument: a path, `-`, or @NAME; with arrivals in rounds if `round_s` says how."""
    instance = read_file(file)
    if round_s is None:
        return instance
    if instance.arrival_unit != "seconds":
        raise click.UsageError(f"--round-s: {file} has no arrivals in seconds, so there is nothing to convert")
    return instance.in_rounds(round_s)


def read_file(file: str, *, oversized: Literal["error", "drop"] = "error") -> Instance:
    """Return the instance in a file, on standard input (`-`) or bundled (@NAME), as it is."""
    if file.startswith("@"):
        from instances import library

        return library.load(file[1:])
    from opt.core.files import read_instance

    return read_instance(file, oversized=oversized)


def names_of(value: str | None) -> list[str]:
    """Return the names in a list such as "fcfs, svf"."""
    return [] if value is None else [name.strip() for name in value.split(",") if name.strip()]


def named(kind: str) -> Callable[[click.Context, click.Parameter, str | None], str | None]:
    """Return a check of an option against a visible dictionary; a typo is a usage error with the closest names."""

    def check(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
        import difflib

        import opt

        for name in names_of(value):
            table = getattr(opt, kind)
            if name not in table:
                close = difflib.get_close_matches(name, list(table), 3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise click.BadParameter(f"{name!r} is not known{hint} (`kvopt list {kind.lower()}` shows all)")
        return value

    return check


def known_cost(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return an option that must name a cost model or a cost file, once it has been read."""
    if value is not None:
        from opt.core.cost import cost_model
        from opt.core.errors import InstanceError

        try:
            cost_model(value)
        except InstanceError as error:
            raise click.BadParameter(str(error)) from None
    return value


def number(_context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    """Return an option that must be a number such as 0.05 or 1/3, as it was written."""
    from opt.core.errors import InstanceError
    from opt.core.exact import rational

    if value is not None:
        try:
            rational(str(parameter.opts[0]), value)
        except InstanceError as error:
            raise click.BadParameter(str(error)) from None
    return value


round_option = click.option(
    "--round-s", metavar="S", callback=number, help="Seconds in a round; arrivals in seconds are rounded up to rounds."
)


def picture(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    """Return the name of a picture to write, if it ends like one."""
    if value is not None and not value.lower().endswith((".png", ".svg", ".pdf")):
        raise click.BadParameter(f"{value!r} must end in .png, .svg or .pdf")
    return value


def parameters(_context: click.Context, _parameter: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return NAME=VALUE pairs as a dictionary; whole numbers become integers, others floats, and all else stays text."""
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{pair!r} must be NAME=VALUE, such as ageing=5")
        found[name.replace("-", "_")] = _value(value)
    return found


def _value(text: str) -> int | float | str:
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text
