"""One kind of picture for all claims: a line for each cell, a dot for each rival, and a mark where they are equal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from opt.bench.runner import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["dots"]

# Okabe and Ito's colours, safe for colour-blind eyes, and shapes that tell them apart without any.
LOOKS = (
    ("#0072b2", "o"),
    ("#d55e00", "s"),
    ("#009e73", "D"),
    ("#cc79a7", "^"),
    ("#e69f00", "v"),
    ("#56b4e9", "P"),
    ("#222222", "X"),
)


def dots(cells: Sequence[tuple[str, Mapping[str, float]]], *, axis: str, title: str, caption: str, one: str) -> Picture:
    """Draw ratios on a logarithmic scale.

    Args:
        cells: a label for each line, and the ratio of every rival there.
        axis: what the ratios are.
        title: what is to be seen.
        caption: the same in a sentence, for those who cannot.
        one: what a ratio of 1 means.
    """
    from opt.plot.style import INK, new_figure, style
    from opt.plot.style import title as entitle

    figure = new_figure(9.5, 1.9 + 0.34 * len(cells))
    ax = figure.subplots()
    style(ax)
    ax.set_xscale("log")
    ax.axvline(1, color=INK, linewidth=1.2, zorder=1)
    ax.hlines(range(len(cells)), *_span(cells), color="#ececec", linewidth=1, zorder=0)
    for name, (colour, shape) in zip(_names(cells), LOOKS, strict=False):
        points = [(ratios[name], at) for at, (_, ratios) in enumerate(cells) if name in ratios]
        ax.plot(*zip(*points, strict=True), shape, color=colour, markersize=7, alpha=0.85, label=name, linestyle="none")
    ax.set_yticks(range(len(cells)), [label for label, _ in cells])
    ax.set_ylim(len(cells) - 0.4, -0.6)
    ax.set_xlabel(f"{axis}; 1 is {one}", color=INK)
    _ticks(ax, max(_span(cells)[1]) / min(_span(cells)[0]))
    entitle(ax, title)
    figure.legend(loc="outside lower center", ncols=min(len(_names(cells)), 6), frameon=False, fontsize=9.5)
    return Picture(caption, figure)


def _names(cells: Sequence[tuple[str, Mapping[str, float]]]) -> list[str]:
    names = list(dict.fromkeys(name for _, ratios in cells for name in ratios))
    assert len(names) <= len(LOOKS), "more rivals than there are looks for them"
    return names


def _span(cells: Sequence[tuple[str, Mapping[str, float]]]) -> tuple[list[float], list[float]]:
    return [min(ratios.values()) for _, ratios in cells], [max(ratios.values()) for _, ratios in cells]


def _ticks(ax: Axes, reach: float) -> None:
    """Set as many ticks as there is room for: fewer to a decade where the picture reaches over several."""
    from matplotlib.ticker import LogLocator, NullFormatter

    ax.xaxis.set_major_locator(LogLocator(10, subs=(1, 1.5, 2, 3, 5, 7) if reach < 20 else (1, 3) if reach < 1000 else (1,)))
    ax.xaxis.set_major_formatter("{x:g}")
    ax.xaxis.set_minor_formatter(NullFormatter())
