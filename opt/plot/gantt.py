"""A schedule as a picture: its requests over the rounds, and the memory they hold."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from opt.core.columns import IntArray, Label
from opt.core.model import Schedule
from opt.plot.style import INK, counted, figure_of, new_figure, style, title, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Colormap, Normalize
    from matplotlib.figure import Figure

__all__ = ["memory_curve", "schedule"]

TOLD = 12  # up to here a bar tells its prompt + output
NAMED = 24  # up to here each row has its request's id
AIRY = 200  # up to here there is air between rows; beyond, a row is about a pixel
BARS = 2000  # beyond, svg and pdf files hold the bars as pixels: small files, and quick to show
WAIT, FILL, CURVE, BUDGET = "#e2e2e2", "#a9c1d9", "#3d6a94", "#b3432b"


def schedule(schedule: Schedule, ax: Axes | None = None) -> Figure:
    """Draw a schedule: every request from start to finish, above the memory they hold.

    Each row is a request, ordered by start and then finish; its colour tells its output length. A pale line leads from
    the arrival to the start where requests wait. The curve below is exact: it rises by one token a round for every
    active request, and falls when one completes.

    Args:
        schedule: what to draw.
        ax: where to draw: its place is divided between the two panels. None makes a figure of its own.

    Returns:
        The matplotlib figure: `save` it, or go on with its axes: `figure.axes[0]` holds the requests, `figure.axes[1]` the memory
        (of a given `ax`, they are `ax.child_axes`).
    """
    figure, rows, memory = _panels(ax)
    _draw_requests(rows, schedule)
    _draw_memory(memory, schedule)
    title(rows, _story(schedule), within=ax)
    title(memory, _memory_story(schedule), within=ax)
    end = max(schedule.makespan, 1)
    edge = 0.004 * end if schedule.instance.n > AIRY else 0.0  # so that the ends of thick lines show
    for panel in (rows, memory):
        panel.set_xlim(-edge, end + edge)
    return figure


def memory_curve(schedule: Schedule) -> tuple[IntArray, IntArray]:
    """Return the tokens held over time, exact, as the corners of a piecewise linear curve.

    Between two events (a start or a completion) at rounds a < b the requests that hold memory stay the same, and the
    curve runs straight from its value just after a to its value in round b. So every piece gives two corners, and in
    any round t the tokens held are the curve's value as t is reached from the left. With `kv` "shared", a prefix chunk
    counts once however many hold it.

    Returns:
        rounds, tokens: (2k,) int64 for k pieces, from round 0 to the makespan; both empty without requests.
    """
    start, finish = schedule.start, schedule.finish
    events = np.unique(np.concatenate([np.zeros(1, np.int64), start, finish]))
    if not len(start):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    begin, end = np.searchsorted(events, start), np.searchsorted(events, finish)
    active = _running(begin, end, np.ones_like(start), len(events))
    offset = _running(begin, end, schedule.instance.prompt - start, len(events))
    if schedule.kv == "shared":
        offset = offset - _repeats(schedule, begin, end, len(events))
    rounds = np.stack([events[:-1], events[1:]], axis=1)
    tokens = offset[:-1, None] + active[:-1, None] * rounds
    return rounds.ravel(), tokens.ravel()


def _running(begin: IntArray, end: IntArray, amount: IntArray, count: int) -> IntArray:
    """Return, for each of `count` events, the sum of the amounts that have begun by it and not ended."""
    change = np.zeros(count, np.int64)
    np.add.at(change, begin, amount)
    np.subtract.at(change, end, amount)
    return np.cumsum(change)


def _repeats(schedule: Schedule, begin: IntArray, end: IntArray, count: int) -> IntArray:
    """Return, for each event, the tokens in copies of prefix chunks beyond the first.

    Copies of a chunk are taken by start. While an earlier one is held, the next is a repeat: until it ends, or until
    the last of the earlier ones does.
    """
    instance = schedule.instance
    if instance.prefix_ids is None or instance.prefix_offsets is None or instance.prefix_chunk is None:
        return np.zeros(count, np.int64)
    owner = np.repeat(np.arange(instance.n), np.diff(instance.prefix_offsets))
    place = np.arange(len(owner)) - instance.prefix_offsets[owner]
    size = np.minimum(instance.prefix_chunk, instance.prompt[owner] - place * instance.prefix_chunk)
    order = np.lexsort((begin[owner], instance.prefix_ids))
    owner, size = owner[order], size[order]
    chunk = np.unique(instance.prefix_ids[order], return_inverse=True)[1]
    held = np.maximum.accumulate(end[owner] + chunk * count)  # shifted chunk by chunk: one never reaches into the next
    until = np.minimum(np.concatenate([[-1], held[:-1]]) - chunk * count, end[owner])
    repeated = until > begin[owner]
    return _running(begin[owner][repeated], until[repeated], size[repeated], count)


def _panels(ax: Axes | None) -> tuple[Figure, Axes, Axes]:
    if ax is not None:
        ax.set_axis_off()
        rows, memory = ax.inset_axes((0, 0.4, 0.9, 0.6)), ax.inset_axes((0, 0, 0.9, 0.26))
        rows.tick_params(labelbottom=False)
        return figure_of(ax), rows, memory
    figure = new_figure(9.6, 6.4)
    rows, memory = figure.subplots(2, 1, sharex=True, height_ratios=(2.4, 1))
    return figure, rows, memory


def _draw_requests(ax: Axes, schedule: Schedule) -> None:
    instance = schedule.instance
    order = np.lexsort((schedule.finish, schedule.start))
    begin, end = schedule.start[order], schedule.finish[order]
    style(ax)
    ax.set_ylim(max(instance.n, 1), 0)
    _name_rows(ax, [instance.ids[k] for k in order[:NAMED].tolist()], instance.n)
    if instance.n:
        _draw_waits(ax, instance.arrival[order], begin)
        _draw_bars(ax, begin, end, instance.output[order])
        if instance.n <= TOLD:
            _tell_sizes(ax, begin, end, instance.prompt[order])


def _name_rows(ax: Axes, ids: Sequence[Label], n: int) -> None:
    """Put each request's id beside its row, or just count the rows where they are many."""
    if n <= NAMED:
        ax.set_yticks(np.arange(n) + 0.5, [str(name) for name in ids])
        ax.tick_params(axis="y", length=0)
        ax.set_ylabel("request", color=INK)
        return
    ax.set_ylabel("requests, by start", color=INK)
    ax.yaxis.set_major_locator(whole_numbers())
    ax.yaxis.set_major_formatter("{x:,.0f}")


def _tell_sizes(ax: Axes, begin: IntArray, end: IntArray, prompt: IntArray) -> None:
    """Write prompt + output into each bar, or beside it where it is too short."""
    output = end - begin
    shade = _colours(output)[1]
    for row, (x, o, s) in enumerate(zip(begin.tolist(), output.tolist(), prompt.tolist(), strict=True)):
        inside = o > 0.11 * end.max()
        colour = "white" if inside and shade(o) > 0.4 else INK
        at = (x + o / 2, row + 0.5) if inside else (x + o, row + 0.5)
        offset, side = ((0, 0), "center") if inside else ((5, 0), "left")
        ax.annotate(f"{s} + {o}", at, offset, "data", "offset points", ha=side, va="center", fontsize=9.5, color=colour)


def _draw_waits(ax: Axes, arrival: IntArray, begin: IntArray) -> None:
    if arrival.any():
        middle = np.arange(len(begin)) + 0.5
        if len(begin) <= AIRY:
            ax.hlines(middle, arrival, begin, color=WAIT, linewidth=1)
        else:
            ax.fill_betweenx(middle, arrival, begin, color=WAIT, linewidth=0, rasterized=len(begin) > BARS)


def _draw_bars(ax: Axes, begin: IntArray, end: IntArray, output: IntArray) -> None:
    """Draw a rectangle a request, or lines of a visible width once rows are thinner than that."""
    from matplotlib.collections import LineCollection, PolyCollection

    colours, scale = _colours(output)
    n = len(begin)
    bars: LineCollection | PolyCollection
    if n <= AIRY:
        margin = 0.14 if n <= NAMED else 0.06
        top, bottom = np.arange(n) + margin, np.arange(n) + 1 - margin
        corners = np.stack([np.stack([x, y], 1) for x, y in ((begin, top), (end, top), (end, bottom), (begin, bottom))], 1)
        bars = PolyCollection(list(corners), cmap=colours, norm=scale, linewidths=0)
    else:
        middle = np.arange(n) + 0.5
        lines = np.stack([np.stack([begin, middle], 1), np.stack([end, middle], 1)], 1)
        bars = LineCollection(list(lines), cmap=colours, norm=scale, linewidths=1.2, capstyle="projecting", rasterized=n > BARS)
        bars.set_snap(False)  # else bars shorter than a pixel vanish
    bars.set_array(output)
    ax.add_collection(bars)
    _colour_bar(ax, bars, output)


def _colours(output: IntArray) -> tuple[Colormap, Normalize]:
    """Return viridis without its palest end, with a logarithmic scale where lengths differ by much."""
    import matplotlib
    from matplotlib.colors import ListedColormap, LogNorm, Normalize

    colours = ListedColormap(matplotlib.colormaps["viridis_r"](np.linspace(0.08, 1, 256)))
    low, high = int(output.min()), int(output.max())
    if high > 20 * low:
        return colours, LogNorm(low, high)
    return colours, Normalize(low - (low == high), high)


def _colour_bar(ax: Axes, bars: ScalarMappable, output: IntArray) -> None:
    """Add the scale of output lengths; where all are the same, one tick tells it."""
    from matplotlib.ticker import LogLocator

    low, high = int(output.min()), int(output.max())
    bar = figure_of(ax).colorbar(bars, cax=ax.inset_axes((1.015, 0, 0.016, 1)))
    bar.set_label("output (tokens)", color=INK, fontsize=10)
    bar.ax.tick_params(which="both", labelsize=9, colors=INK, length=2)
    bar.outline.set_visible(False)
    if high > 20 * low:
        bar.ax.yaxis.set_major_locator(LogLocator(10, subs=(1, 2, 5) if high < 500 * low else (1,)))
        bar.ax.yaxis.set_minor_formatter("")
    else:
        bar.ax.yaxis.set_major_locator(whole_numbers(6))
    if low == high:
        bar.set_ticks([high])
    bar.ax.yaxis.set_major_formatter("{x:,.0f}")


def _draw_memory(ax: Axes, schedule: Schedule) -> None:
    budget = schedule.instance.memory
    rounds, tokens = memory_curve(schedule)
    dense = len(rounds) > 2 * BARS
    style(ax)
    ax.fill_between(rounds, tokens, color=FILL, linewidth=0, rasterized=dense)
    ax.plot(rounds, tokens, color=CURVE, linewidth=0.3 if dense else 1.0, rasterized=dense)
    ax.axhline(budget, color=BUDGET, linewidth=1.2)
    ax.annotate("budget", (1, budget), (0, 3), ("axes fraction", "data"), "offset points", ha="right", color=BUDGET, fontsize=9)
    ax.set_ylim(0, budget * 1.18)
    ax.set_ylabel("tokens held", color=INK)
    ax.set_xlabel("round", color=INK)
    ax.xaxis.set_major_formatter("{x:,.0f}")
    ax.yaxis.set_major_formatter("{x:,.0f}")
    ax.xaxis.set_major_locator(whole_numbers())
    ax.yaxis.set_major_locator(whole_numbers(5))


def _story(schedule: Schedule) -> str:
    named = f"{schedule.instance.name}: " if schedule.instance.name else ""
    size = counted(schedule.instance.n, "request")
    return f"{named}{size}, total latency {schedule.total_latency:,}, makespan {schedule.makespan:,}"


def _memory_story(schedule: Schedule) -> str:
    budget = schedule.instance.memory
    rounds, tokens = memory_curve(schedule)
    share, peak = _utilisation(rounds, tokens, budget), int(tokens.max(initial=0))
    shared = ", shared prefixes counted once" if schedule.kv == "shared" else ""
    return f"memory of {budget:,} tokens: {share:.1%} used on average, peak {peak:,}{shared}"


def _utilisation(rounds: IntArray, tokens: IntArray, budget: int) -> float:
    """Return the share of the budget held, averaged over the rounds up to the makespan.

    A piece from a to b covers the rounds a + 1 .. b; its tokens grow by a fixed step, so their sum is half of
    (first + last) times their number.
    """
    if not len(rounds):
        return 0.0
    length = np.diff(rounds)[::2]
    after, last = tokens[::2], tokens[1::2]
    step = (last - after) / length
    held = (after + step + last) / 2 * length
    return float(held.sum() / (float(rounds[-1]) * budget))
