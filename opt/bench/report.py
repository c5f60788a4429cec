"""What a suite found as a file to hand on: Markdown, or one HTML page that needs nothing else.

The page has its pictures within it (SVG, as data), no script, and nothing to load from anywhere.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from opt.bench.runner import Picture, Record, Section, Suite, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["as_html", "as_markdown", "write_report"]

Shown: TypeAlias = Callable[[object], str]

CSS = """
:root { color-scheme: light dark; --ink: #222; --soft: #5f5f5f; --line: #e3e3e3; --strong: #999; }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --soft: #a5a5a5; --line: #3a3a3a; --strong: #777; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); margin: 2rem auto; max-width: 76rem; padding: 0 1rem; }
h1 { font-size: 1.7rem; }
h2 { font-size: 1.3rem; margin-top: 2.5rem; border-top: 1px solid var(--line); padding-top: 1rem; }
p { max-width: 48rem; } footer { color: var(--soft); font-size: 0.85rem; margin-top: 3rem; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; margin: 1rem 0; }
caption { text-align: left; font-weight: 600; padding: 0.3rem 0; }
caption span { position: sticky; left: 0; display: inline-block; max-width: calc(min(100vw, 76rem) - 2rem); }
th, td { padding: 0.25rem 0.7rem; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
thead th { border-bottom: 2px solid var(--strong); } .number { text-align: right; }
figure { margin: 1.5rem 0; } figcaption { color: var(--soft); font-size: 0.9rem; }
img { max-width: 100%; min-width: 36rem; height: auto; background: #fff; }
"""


def write_report(suite: Suite, records: Sequence[Record], path: Path, *, shown: Shown) -> None:
    """Write a report on the records of a suite.

    Args:
        suite: what was run.
        records: what it gave.
        path: the file; `.html` gives a page, anything else Markdown.
        shown: how a cell of a table reads.

    Markdown has no pictures; they are in the page.
    """
    sections = sections_of(suite, list(records))
    make = as_html if path.suffix.lower() == ".html" else as_markdown
    path.write_text(make(f"kvopt bench {suite.name}", sections, _provenance(records), shown=shown), encoding="utf-8")


def sections_of(suite: Suite, records: list[Record]) -> list[Section]:
    """Return the suite's own sections, or one that holds its tables."""
    if suite.sections is not None:
        return suite.sections(records)
    return [Section(suite.description, (), suite.tables(records) if records else ())]


def _provenance(records: Sequence[Record]) -> list[str]:
    """Say on what machines and versions the records were measured."""
    found = dict.fromkeys(_sentence(record) for record in records if "machine" in record and "versions" in record)
    return [f"{len(records)} tasks.", *found]


def _sentence(record: Record) -> str:
    machine, versions = record["machine"], record["versions"]
    software = ", ".join(f"{name} {version}" for name, version in versions.items())
    return f"Measured on {machine['system']}, {machine['processor']}, {machine['cores']} cores, with {software}."


def as_markdown(title: str, sections: Sequence[Section], notes: Sequence[str], *, shown: Shown) -> str:
    """Return the sections as Markdown, with tables as GitHub reads them."""
    parts = [f"# {title}"]
    for section in sections:
        parts += [f"## {section.title}", *section.text]
        for table in section.tables:
            parts += [f"**{table.title}**", _markdown_table(table, shown)]
    return "\n\n".join([*parts, *notes]) + "\n"


def _markdown_table(table: Table, shown: Shown) -> str:
    right = _numeric(table)
    lines = [list(table.columns), ["---:" if number else "---" for number in right]]
    lines += [[shown(cell) for cell in row] for row in table.rows]
    return "\n".join(f"| {' | '.join(_in_a_line(cell) for cell in line)} |" for line in lines)


def _in_a_line(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _numeric(table: Table) -> list[bool]:
    """Tell which columns hold nothing but numbers."""
    cells = zip(*table.rows, strict=True) if table.rows else ((None,) for _ in table.columns)
    return [all(cell is None or isinstance(cell, int | float) for cell in column) for column in cells]


def as_html(title: str, sections: Sequence[Section], notes: Sequence[str], *, shown: Shown) -> str:
    """Return the sections as one HTML page that holds all it shows."""
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en">',
            '<head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>{escape(title)}</title>",
            f"<style>{CSS}</style></head>",
            f"<body><h1>{escape(title)}</h1>",
            *(line for section in sections for line in _html_section(section, shown)),
            "<footer>",
            *(f"<p>{escape(note)}</p>" for note in notes),
            "</footer></body></html>\n",
        ]
    )


def _html_section(section: Section, shown: Shown) -> Iterator[str]:
    yield f"<section><h2>{escape(section.title)}</h2>"
    yield from (f"<p>{escape(text)}</p>" for text in section.text)
    yield from (_html_picture(picture) for picture in section.pictures)
    yield from (_html_table(table, shown) for table in section.tables)
    yield "</section>"


def _html_table(table: Table, shown: Shown) -> str:
    classes = [' class="number"' if number else "" for number in _numeric(table)]
    head = _html_row("th", classes, table.columns)
    body = "\n".join(_html_row("td", classes, [shown(cell) for cell in row]) for row in table.rows)
    caption = f"<caption><span>{escape(table.title)}</span></caption>"
    return f'<div class="wide"><table>{caption}<thead>{head}</thead>\n<tbody>{body}</tbody></table></div>'


def _html_row(tag: str, classes: Sequence[str], cells: Sequence[Any]) -> str:
    return f"<tr>{''.join(f'<{tag}{kind}>{escape(cell)}</{tag}>' for kind, cell in zip(classes, cells, strict=True))}</tr>"


def _html_picture(picture: Picture) -> str:
    """Return a figure as an image of its own: names within one picture cannot meet those of another."""
    data, caption = base64.b64encode(_svg(picture.figure)).decode(), escape(picture.caption)
    image = f'<img alt="{caption}" src="data:image/svg+xml;base64,{data}">'
    return f'<figure><div class="wide">{image}</div><figcaption>{caption}</figcaption></figure>'


def _svg(figure: Figure) -> bytes:
    """Return the bytes of a figure, the same whenever it is drawn."""
    import matplotlib

    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "kvopt"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    return buffer.getvalue()
