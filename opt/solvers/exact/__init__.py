"""Exact solvers: a layered search where few requests run together, time-indexed models where many do.

* `dp` (dp, search, layers, training, ramps, fills, items): a search over (who has started, what the running hold), layer
  by layer, bounded by whole trajectories. For requests all there at the start.
* `milp`, `cpsat` (with timeindexed): HiGHS and CP-SAT on a Boolean for each request and start round, windows cut by prices.
* `exact` (structure): whichever suits.

* `opt.solvers.tree`: branch and bound on start windows; where it closes, the optimum has a certificate.

All start from the portfolio's plan and a brief local search, and search in a worker process (apart, `opt.solvers.worker`).

What was tried, and what it gave. On twelve requests under 49 tokens with optimum 639 the mean-busy-time bound is 430, the
trajectory bound with two running requests kept 622, with three 637: the rest is search. With outputs up to the memory
(two to four run together) `exact` proved ten out of ten such instances of 15 requests in 0.8 to 16 seconds each and eight
of ten of 20 within a minute; the time-indexed models without price cuts (`plain=True`) stop at 10 to 12 requests in a
minute, for both HiGHS and CP-SAT. With short outputs, where many run together, the relaxation is tight: a tree closes
twelve requests in about 150 nodes (a tenth of a second), fifteen in 3,000 to 20,000, where CP-SAT on cut windows, which
learns, needs half a second.

Inequalities of one round do not help where few run together. On twelve requests under 39 tokens the linear program gives
511, with the full knapsack hull in every round 514, and the optimum is 685. Cover and clique cuts, and dual-feasible
functions however many are priced, are all implied by that hull, so none was built: what is weak is that fractional
requests smear their memory ramps over many starts, and what helps keeps a ramp whole (`opt.solvers.ramps`).
"""
