"""Who shares what, as a picture: prompts side by side, common runs drawn once over all who have them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opt.core.instance import Instance
from opt.plot.style import PALE, counted, figure_of, new_figure, style, title, whole_numbers

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["sharing"]

ALONE = "#e2e2e2"
AIRY = 200  # up to here white lines separate the runs


def sharing(instance: Instance, ax: Axes | None = None) -> Figure:
    """Draw the sharing forest of an instance: each prompt a column, each common run one block over all who have it.

    The blocks' area is what memory holds if every chunk is stored once, up to their width: a block of w requests and d
    tokens stands for d tokens instead of w d. Grey runs belong to one request alone.

    Args:
        instance: requests with prefix hashes.
        ax: where to draw; None makes a figure of its own.

    Returns:
        The matplotlib figure.

    Raises:
        InstanceError: the instance has no prefix hashes.
    """
    from matplotlib import colormaps
    from matplotlib.collections import PatchCollection
    from matplotlib.colors import LogNorm
    from matplotlib.patches import Rectangle

    from opt.serve.prefix.forest import sharing_forest

    forest = sharing_forest(instance)
    if ax is None:
        ax = new_figure(9.0, 4.5).add_subplot()
    nodes = [data for _, data in forest.nodes(data=True)]
    boxes = [Rectangle((d["first"], d["begin"]), d["requests"], d["end"] - d["begin"]) for d in nodes]
    colours, norm = colormaps["viridis_r"], LogNorm(1, max([2, *(d["requests"] for d in nodes)]))
    faces = [ALONE if d["requests"] == 1 else colours(norm(d["requests"])) for d in nodes]
    width = 0.5 if instance.n <= AIRY else 0.0
    ax.add_collection(PatchCollection(boxes, facecolors=faces, edgecolors="white", linewidths=width))
    ax.set_xlim(0, max(instance.n, 1))
    ax.set_ylim(int(instance.prompt.max(initial=1)), 0)
    ax.xaxis.set_major_locator(whole_numbers())
    ax.set_xlabel("requests, sharers next to each other", color=PALE)
    ax.set_ylabel("prompt tokens", color=PALE)
    style(ax)
    title(ax, _story(instance, forest.graph["tokens"], forest.graph["stored"]))
    return figure_of(ax)


def _story(instance: Instance, tokens: int, stored: int) -> str:
    less = 1 - stored / tokens if tokens else 0.0
    once = f"{stored:,} when common prefixes are stored once ({less:.0%} less)"
    return f"{counted(instance.n, 'request')}, {tokens:,} prompt tokens; {once}"
