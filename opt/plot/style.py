"""What all pictures share: colours, figures, titles, files."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from opt.core.errors import InstanceError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

__all__ = ["INK", "PALE", "counted", "figure_of", "new_figure", "save", "style", "title", "whole_numbers"]

INK, PALE = "#222222", "#6b6b6b"
SUFFIXES = ("png", "svg", "pdf")


def save(figure: Figure, path: str | Path, dpi: int = 150) -> None:
    """Write a figure as png, svg or pdf; the same figure gives the same bytes (no dates, no random names).

    Args:
        figure: what `schedule` or `ratios` returned, or any matplotlib figure.
        path: the file; its suffix decides the format.
        dpi: pixels in an inch, for png and for the parts that svg and pdf hold as pixels.

    Raises:
        InstanceError: the suffix is none of png, svg, pdf.
    """
    import matplotlib

    target = Path(path)
    suffix = target.suffix.removeprefix(".").lower()
    if suffix not in SUFFIXES:
        raise InstanceError(f"{target.name}: cannot draw {target.suffix or 'a file without suffix'}; use {', '.join(SUFFIXES)}")
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
    with matplotlib.rc_context({"svg.hashsalt": "kvopt", "pdf.fonttype": 42}):
        figure.savefig(target, format=suffix, dpi=dpi, metadata=undated)


def new_figure(width: float, height: float) -> Figure:
    """Return an empty figure of `width` by `height` inches that leaves room for its labels and shows itself in a notebook."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    from opt.plot.picture import Picture

    return Picture(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.1, h_pad=0.1), facecolor="white")


def style(ax: Axes) -> None:
    """Take away the box, and set quiet axes."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#bdbdbd")
    ax.tick_params(which="both", colors=PALE, labelsize=9.5, length=3)
    ax.xaxis.label.set_fontsize(10.5)
    ax.yaxis.label.set_fontsize(10.5)


def title(ax: Axes, text: str, *, within: Axes | None = None) -> None:
    """Set a title at the left, where reading begins, on as many lines as the width of `within` (or the figure) asks."""
    inches = figure_of(ax).get_figwidth() if within is None else within.get_window_extent().width / figure_of(ax).dpi
    ax.set_title(fill(text, width=max(24, int(inches * 11.5))), loc="left", fontsize=11.5, color=INK, pad=8)


def whole_numbers(count: int = 8) -> MaxNLocator:
    """Return a locator of at most `count` ticks, at whole numbers only."""
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(count, integer=True)


def counted(count: int, noun: str) -> str:
    """Return "1 request", "2 requests"."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def figure_of(ax: Axes) -> Figure:
    """Return the figure that holds `ax`, above any subfigures."""
    from matplotlib.figure import Figure

    figure = ax.get_figure()
    while figure is not None and not isinstance(figure, Figure):
        figure = figure.figure
    if figure is None:
        raise InstanceError("the axes given belong to no figure")
    return figure
