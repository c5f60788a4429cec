"""Exact solvers: a layered search where few requests run together, time-indexed models where many do.

* `dp` (dp, search, layers, training, ramps, fills, items): a search over (who has started, what the running hold), layer
  by layer, bounded by whole trajectories. For requests all there at the start.
* `milp`, `cpsat` (with timeindexed): HiGHS and CP-SAT on a Boolean for each request and start round, windows cut by prices.
* `exact` (structure): whichever suits.

All start from the portfolio's plan and search in a worker process (apart, `opt.solvers.worker`).

What was tried, and what it gave. On twelve requests under 49 tokens with optimum 639 the mean-busy-time bound is 430, the
trajectory bound with two running requests kept 622, with three 637: the rest is search. With outputs up to the memory
(two to four run together) `exact` proved ten out of ten such instances of 15 requests in 0.8 to 16 seconds each and eight
of ten of 20 within a minute; the time-indexed models without price cuts (`plain=True`) stop at 10 to 12 requests in a
minute, for both HiGHS and CP-SAT. With short outputs, where many run together, the relaxation is tight and cut windows
settle 15 requests in well under a second.
"""
