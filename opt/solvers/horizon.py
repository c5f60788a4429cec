"""Receding horizon as a solver: look at the next window of requests, start what is due, look again (`opt.solvers.rollout`).

For a backlog each window is improved by a search (orders, and requests held back) once the best rule is found. With arrivals
nothing that comes later is looked at, so the schedule is one that an online system could have followed.
"""

from __future__ import annotations

import numpy as np

from opt.core.clock import now
from opt.core.columns import IntArray
from opt.core.exact import exact_sum
from opt.core.instance import Instance
from opt.core.model import Proposal

__all__ = ["horizon", "rolled"]

SETTINGS = ((64, 200), (64, 1000), (128, 1000), (32, 1000))  # (window, moves), tried in turn on a backlog
LENGTH = 128  # requests made up from the past, with arrivals
LARGEST = 50_000  # requests; planning windows of more takes minutes


def horizon(
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    window: int | None = None,
    moves: int | None = None,
) -> Proposal:
    """Return the schedule of a receding horizon, with and without arrivals.

    Args:
        instance: the requests.
        seed: of the search within windows.
        time_limit: seconds; no further setting is begun beyond it (the first always runs to its end).
        window: requests planned at once; by default a few settings are tried on a backlog, and 64 with arrivals.
        moves: changes tried on every plan; by default 200 to 1,000 on a backlog. With arrivals there is no plan unless this is
            given, and then it is made as if nobody else came.

    On a backlog the result is never worse than `staggered`, which is the plan to beat; `stats["form"]` says what won. With
    arrivals it is what the policy did, knowing at each round only who had arrived (and their outputs). What it does is, on what
    is known and made up, at least as good as what its usual rule would do; over a whole trace that is an average, not a
    guarantee.

    Raises:
        ValueError: `window` or `moves` out of range.
    """
    for name, value, least in (("window", window, 1), ("moves", moves, 0)):
        if value is not None and (type(value) is not int or not least <= value <= 10**6):
            raise ValueError(f"{name} = {value!r}: must be an integer from {least} to 1,000,000")
    if not instance.n:
        return Proposal(np.zeros(0, np.int64), stats={"form": "nothing to plan"})
    if not instance.offline:
        figures = (window or 64, 0 if moves else LENGTH, moves or 0)
        return Proposal(rolled(instance, *figures, seed=seed), stats={"form": _name(figures[0], figures[2])})
    settings = SETTINGS if window is None and moves is None else ((window or 64, 200 if moves is None else moves),)
    return _backlog(instance, settings, seed, None if time_limit is None else now() + time_limit)


def _backlog(instance: Instance, settings: tuple[tuple[int, int], ...], seed: int, deadline: float | None) -> Proposal:
    """Return the best of `staggered` and the settings that there is time for."""
    from opt.solvers.staggered import staggered

    known = staggered(instance)
    assert known.start is not None, "a heuristic without a time limit always finds a schedule"
    best, form, late = known.start, f"staggered: {known.stats['form']}", False
    for index, (window, moves) in enumerate(settings if instance.n <= LARGEST else ()):
        late = index > 0 and deadline is not None and now() > deadline
        if late:
            break
        start = rolled(instance, window, 0, moves, seed=seed)
        if exact_sum(start) < exact_sum(best):
            best, form = start, _name(window, moves)
    return Proposal(best, stop_reason="time_limit" if late else "done", stats={"form": form, "factor": known.stats["factor"]})


def _name(window: int, moves: int) -> str:
    return f"window {window}, {moves} moves"


def rolled(instance: Instance, window: int, length: int, moves: int, *, seed: int = 0) -> IntArray:
    """Return the starts (n,) of the receding horizon when every output is known on arrival."""
    from opt.solvers.online import online_rounds

    most = instance.memory - instance.prompt
    log = online_rounds(
        instance.output,
        instance.prompt,
        instance.arrival,
        instance.memory,
        instance.output,
        most,
        instance.volume,
        window=window,
        length=length,
        moves=moves,
        seed=seed,
    )
    start = np.empty(instance.n, np.int64)
    start[log[:, 0]] = log[:, 1]
    return start
