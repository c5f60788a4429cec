"""Pictures of schedules and comparisons, as matplotlib figures one can go on with.

Nothing here touches `pyplot`: there is no current figure, nothing to close, and no display is needed. matplotlib is
imported when a picture is drawn, not before.
"""

from __future__ import annotations

from opt.plot.comparison import ratios
from opt.plot.gantt import memory_curve, schedule
from opt.plot.sharing import sharing
from opt.plot.style import save

__all__ = ["memory_curve", "ratios", "save", "schedule", "sharing"]
