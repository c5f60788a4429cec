"""HiGHS with a time-indexed model in it, passed as arrays (an expression interface is ten times slower to build)."""

from __future__ import annotations

from typing import Any

import numpy as np

from opt.core.instance import Instance
from opt.solvers.exact.timeindexed import Model

__all__ = ["loaded"]


def loaded(instance: Instance, model: Model, *, integral: bool, threads: int) -> Any:
    """Return a silent HiGHS with the model in it: choice rows first, then one memory row per round."""
    import highspy

    class Silent(highspy.Highs):
        """The constructor turns callbacks on, and that prints a banner on stdout unless output is off before."""

        def enableCallbacks(self) -> None:  # noqa: N802 - HiGHS's name
            self.setOptionValue("output_flag", False)
            super().enableCallbacks()  # type: ignore[no-untyped-call]

    n, columns = instance.n, len(model.at)
    length = np.diff(model.first)
    first = model.first + np.arange(columns + 1)  # one more entry per column, its choice row
    index = np.empty(int(first[-1]), np.int32)
    value = np.empty(int(first[-1]), np.float64)
    index[first[:-1]], value[first[:-1]] = model.owner, 1.0
    place = np.arange(len(model.row)) + np.repeat(np.arange(columns), length) + 1
    index[place], value[place] = n + model.row, model.held
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = columns, n + model.rounds
    lp.col_cost_ = model.cost.astype(float)
    lp.col_lower_, lp.col_upper_ = np.zeros(columns), np.ones(columns)
    lp.row_lower_ = np.concatenate([np.ones(n), np.full(model.rounds, -highspy.kHighsInf)])
    lp.row_upper_ = np.concatenate([np.ones(n), np.full(model.rounds, float(instance.memory))])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = first.astype(np.int32), index, value
    if integral:
        lp.integrality_ = [highspy.HighsVarType.kInteger] * columns
    solver: Any = Silent()  # type: ignore[no-untyped-call]
    solver.setOptionValue("log_to_console", False)
    # HiGHS starts its threads once per process; a later model that asks for another number is refused, so start afresh.
    highspy.Highs.resetGlobalScheduler(True)
    solver.setOptionValue("threads", threads)
    solver.passModel(lp)
    return solver
