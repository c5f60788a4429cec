"""A figure that shows itself where it ends a notebook's cell."""

from __future__ import annotations

from io import BytesIO

from matplotlib.figure import Figure

__all__ = ["Picture"]

NOTEBOOK_DPI = 140  # pixels in an inch of a picture that is shown at 80: sharp on dense screens
SHOWN_DPI = 80


class Picture(Figure):
    """A matplotlib figure; Jupyter shows it as it is, although no `pyplot` knows of it."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        """Return the picture and the size to show it at, as IPython asks for them."""
        buffer = BytesIO()
        self.savefig(buffer, format="png", dpi=NOTEBOOK_DPI)
        width, height = (round(inches * SHOWN_DPI) for inches in self.get_size_inches())
        return buffer.getvalue(), {"width": width, "height": height}
