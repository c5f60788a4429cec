"""Measure whole iterations of a transformer with random weights, on a CPU or any CUDA device. Needs torch."""

from __future__ import annotations

from opt.measure.run import Measured, measure

__all__ = ["Measured", "measure"]
