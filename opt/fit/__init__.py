"""Fit cost models to measured GPU times: operator tables that others published, or logs of whole iterations."""

from __future__ import annotations

from opt.fit.fitting import fit_iterations
from opt.fit.iterations import Iterations
from opt.fit.models import fit_log, fit_tables
from opt.fit.tables import read_table

__all__ = ["Iterations", "fit_iterations", "fit_log", "fit_tables", "read_table"]
