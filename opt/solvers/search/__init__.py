"""Local search over plans: the solver `search`.

It works on start rounds, not on orders, because the optimum may hold requests back. One general move (`moves`) takes a few
requests out and puts them back differently while all that follows shifts as a rigid block, exactly and at the cost
of the neighbourhood alone. Annealing (`anneal`) decides what is kept, in phases of doubling length that start
again from the best plan. The first plan is the best of `staggered`, some orders and tuned windows (`windows`).
"""

from __future__ import annotations

from opt.solvers.search.driver import search

__all__ = ["search"]
