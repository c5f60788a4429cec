"""How far above the bound each solver ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from opt.core.errors import InstanceError
from opt.plot.style import INK, PALE, counted, figure_of, new_figure, style, title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ratios"]

VARIANTS = {"strict": "#0072b2", "skip": "#e69f00", "pack": "#009e73", "": "#7a7a7a"}  # Okabe and Ito: safe for colour-blind eyes
GROUP_GAP = 0.35


def ratios(comparison_rows: Iterable[Mapping[str, Any]], ax: Axes | None = None) -> Figure:
    """Draw how far above the bound each solver ends: a bar from 1.0 to its ratio.

    The variants of an order (strict, `-skip`, `-pack`) stand together in colours of their own. The best comes first,
    among groups and within them. A solver with several rows (instances) gets the mean of its ratios, and a dot for each.

    Args:
        comparison_rows: mappings with `solver`, `ratio` (total latency over the bound, or None) and `total_latency`.
        ax: where to draw; None makes a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        InstanceError: a row has no solver, or a ratio that is not a positive number.
    """
    bars = _in_groups(_bars_of(comparison_rows))
    places = _places(bars)
    figure, axes = _canvas(ax, places[-1] if places else 0.0)
    style(axes)
    _ratio_axis(axes, bars)
    for bar, place in zip(bars, places, strict=True):
        _draw_ratio(axes, bar, place, VARIANTS[_variant(bar, bars)])
    axes.set_ylim((places[-1] if places else 0) + 0.75, -0.75)
    axes.set_yticks(places, [bar.solver for bar in bars])
    axes.tick_params(axis="y", length=0, labelcolor=INK, labelsize=10.5)
    title(axes, _ratio_title(bars), within=ax)
    _legend(axes, {_variant(bar, bars) for bar in bars}, outside=ax is None)
    return figure


@dataclass(frozen=True)
class _Bar:
    """A solver's ratios over its rows, best known first in the picture."""

    solver: str
    ratios: tuple[float, ...]
    latency: int | None

    @property
    def mean(self) -> float | None:
        return sum(self.ratios) / len(self.ratios) if self.ratios else None

    @property
    def stem(self) -> str:
        return self.solver.removesuffix("-skip").removesuffix("-pack")

    @property
    def key(self) -> tuple[float, str]:
        return (self.mean if self.mean is not None else float("inf"), self.solver)


def _bars_of(rows: Iterable[Mapping[str, Any]]) -> list[_Bar]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for at, row in enumerate(rows):
        if not isinstance(row.get("solver"), str):
            raise InstanceError(f"comparison row {at}: `solver` must be a name, got {row.get('solver')!r}")
        ratio = row.get("ratio")
        if ratio is not None and not 0 < float(ratio) < float("inf"):
            raise InstanceError(f"comparison row {at} ({row['solver']}): ratio = {ratio!r} must be a positive number or None")
        found.setdefault(row["solver"], []).append(row)
    return [_bar(solver, own) for solver, own in found.items()]


def _bar(solver: str, rows: Sequence[Mapping[str, Any]]) -> _Bar:
    ratio = tuple(float(row["ratio"]) for row in rows if row.get("ratio") is not None)
    return _Bar(solver, ratio, rows[0].get("total_latency") if len(rows) == 1 else None)


def _in_groups(bars: Sequence[_Bar]) -> list[_Bar]:
    """Return the variants of each order together, best first among groups and within them."""
    groups: dict[str, list[_Bar]] = {}
    for bar in sorted(bars, key=lambda bar: bar.key):
        groups.setdefault(bar.stem, []).append(bar)
    return [bar for group in groups.values() for bar in group]


def _places(bars: Sequence[_Bar]) -> list[float]:
    """Return the height of each bar, with a gap where a new group begins."""
    places: list[float] = []
    for before, bar in zip([None, *bars], bars, strict=False):
        step = 0.0 if before is None else 1.0 if before.stem == bar.stem else 1.0 + GROUP_GAP
        places.append((places[-1] if places else 0.0) + step)
    return places


def _variant(bar: _Bar, bars: Sequence[_Bar]) -> str:
    """Return "strict", "skip" or "pack"; "" for a solver that comes in one form only."""
    if bar.solver != bar.stem:
        return bar.solver.rpartition("-")[2]
    return "strict" if any(other.stem == bar.stem and other is not bar for other in bars) else ""


def _canvas(ax: Axes | None, height: float) -> tuple[Figure, Axes]:
    if ax is not None:
        return figure_of(ax), ax
    figure = new_figure(8.4, 1.7 + 0.31 * (height + 1))
    return figure, figure.subplots()


def _ratio_axis(ax: Axes, bars: Sequence[_Bar]) -> None:
    """Start at 1, the bound; turn to a logarithmic scale where the worst is ten times the bound."""
    from matplotlib.ticker import LogLocator

    worst = max((ratio for bar in bars for ratio in bar.ratios), default=1.0)
    best = min((ratio for bar in bars for ratio in bar.ratios), default=1.0)
    low = min(1.0, best)
    ax.set_xlabel("total latency / lower bound", color=INK)
    ax.grid(axis="x", color="#ececec", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.axvline(1, color=INK, linewidth=1.2, zorder=3)
    if worst > 10:
        ax.set_xscale("log")
        ax.xaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5)))
        ax.xaxis.set_minor_formatter("")
        ax.set_xlim(low, worst**1.3)
    else:
        ax.set_xlim(low, 1 + 1.28 * max(worst - 1, 0.01))
    ax.xaxis.set_major_formatter("{x:g}")


def _draw_ratio(ax: Axes, bar: _Bar, place: float, colour: str) -> None:
    if bar.mean is None:
        _note(ax, 1.0, place, "no ratio" if bar.latency is None else f"no bound; total latency {bar.latency:,}", PALE)
        return
    ax.barh(place, bar.mean - 1, left=1, height=0.72, color=colour, zorder=2)
    if len(bar.ratios) > 1:
        ax.plot(bar.ratios, [place] * len(bar.ratios), "o", markersize=3, color=INK, markeredgewidth=0, alpha=0.7, zorder=4)
    latency = "" if bar.latency is None else f"   {bar.latency:,}"
    _note(ax, max(bar.ratios), place, f"{bar.mean:.3f}{latency}", INK)


def _note(ax: Axes, x: float, y: float, text: str, colour: str) -> None:
    ax.annotate(text, (x, y), (6, 0), textcoords="offset points", va="center", fontsize=9.5, color=colour)


def _ratio_title(bars: Sequence[_Bar]) -> str:
    known = [bar for bar in bars if bar.mean is not None]
    if not known:
        return f"{counted(len(bars), 'solver')}, no ratio known"
    best = min(known, key=lambda bar: bar.key)
    count = max(len(bar.ratios) for bar in known)
    means = f", mean of {count} instances" if count > 1 else ""
    return f"{counted(len(bars), 'solver')}: {best.solver} is best, at {best.mean:.3f} times the bound{means}"


def _legend(ax: Axes, variants: set[str], *, outside: bool) -> None:
    """Explain the colours, below a figure of our own, or where the short bars leave room in another's axes."""
    from matplotlib.patches import Patch

    labels = {"strict": "strict order", "skip": "-skip: may pass a blocked head", "pack": "-pack: earliest fit"}
    handles = [Patch(color=VARIANTS[variant], label=label) for variant, label in labels.items() if variant in variants]
    if handles and outside:
        figure_of(ax).legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9.5)
    elif handles:
        ax.legend(handles=handles, loc="upper right", frameon=False, fontsize=9)
