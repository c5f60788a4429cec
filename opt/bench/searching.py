"""What the parts of the suite `search` share: instances, times, and a warm start."""

from __future__ import annotations

__all__ = ["INSTANCES", "PROOF_S", "SMALL_S", "warm"]

INSTANCES = {False: ("demo",), True: ("mixture-100", "demo", "mixture-5000", "mixture-20000")}  # by whether to be thorough
SMALL_S, PROOF_S = 5.0, 60.0  # seconds to search a small instance, and to prove its optimum


def warm() -> None:
    """Load the compiled loops, so that they are not measured."""
    from instances import generate
    from opt.solvers.door import solve

    solve(generate("mixture", n=50, memory=9000), "search", work=100)
