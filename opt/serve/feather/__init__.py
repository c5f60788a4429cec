"""Prefix-homogeneous batches: Feather's bandit, a plain tree order, an oracle, and an analytic former.

All of them run in the loop of `opt.serve.feather.loop`: decodes, unfinished prompts, then whom the former admits. They
differ in whom they admit next, and in when they stop although there is room.
"""
