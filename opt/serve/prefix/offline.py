"""The offline problem when common prefixes are stored once: serial earliest fit under shared memory.

An order that is good for separate caches need not be good here: whoever starts beside others of its group costs little,
so orders that keep groups together fit more into every round. `fair_prompts` (`opt.solvers.bounds`) charges every
request its share of a common chunk, and the usual keys applied to those prompts are such orders.
"""

from __future__ import annotations

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from opt.core.columns import IntArray
from opt.core.errors import InstanceError
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.bounds import fair_prompts

__all__ = ["MOST_REFERENCES", "fair_instance", "pack_shared"]

MOST_REFERENCES = 50_000_000  # rounds times distinct chunks that are kept


def fair_instance(instance: Instance) -> Instance:
    """Return the requests without prefixes, every prompt reduced to its fair share of common chunks."""
    return Instance(instance.memory, fair_prompts(instance), instance.output, arrival=instance.arrival, ids=instance.ids)


def pack_shared(instance: Instance, order: IntArray) -> Proposal:
    """Return starts of serial earliest fit: in the given order, each where it fits first, common chunks stored once.

    Args:
        instance: the requests, in rounds.
        order: (n,) their indices, first to last.

    Returns:
        A proposal with `kv = "shared"`; `certify` decides whether it holds.

    Raises:
        InstanceError: rounds times distinct chunks are too many to keep.

    >>> instance = Instance(20, [8, 8], [2, 2], prefix=[[1], [1]], prefix_chunk=8)
    >>> pack_shared(instance, np.array([0, 1])).start.tolist()
    [0, 0]
    """
    size, which, offsets = _chunks(instance)
    rounds = int(instance.arrival.max(initial=0) + instance.output.sum()) + 1
    if rounds * (len(size) + 1) > MOST_REFERENCES:
        raise InstanceError(f"{rounds} rounds times {len(size)} chunks: more than {MOST_REFERENCES}; take fewer requests")
    held = np.zeros((len(size), rounds + 1), bool)  # whether a chunk is in memory in a round
    usage = np.zeros(rounds + 1, np.int64)
    start = np.zeros(instance.n, np.int64)
    for i in order.tolist():
        mine = which[offsets[i] : offsets[i + 1]]
        found = size[mine] @ held[mine]
        x = _earliest(instance, i, usage - found)
        s, o = int(instance.prompt[i]), int(instance.output[i])
        span = slice(x + 1, x + o + 1)
        usage[span] += s + np.arange(1, o + 1) - found[span]
        held[mine, span] = True
        start[i] = x
    return Proposal(start, kv="shared")


def _earliest(instance: Instance, i: int, free_of: IntArray) -> int:
    """Return the first start whose every round has room; `free_of` is what others hold, chunks of i left out."""
    s, o, a = int(instance.prompt[i]), int(instance.output[i]), int(instance.arrival[i])
    level = free_of + np.arange(len(free_of))  # started at x, round t holds level[t] + s - x
    most = sliding_window_view(level[a + 1 :], o).max(axis=1)
    fits = most + s - np.arange(a, a + len(most)) <= instance.memory
    return a + int(fits.argmax())  # the last window lies behind everything else


def _chunks(instance: Instance) -> tuple[IntArray, IntArray, IntArray]:
    """Return the size of every distinct chunk, the chunks of all requests, and where each request's begin."""
    ids, offsets, chunk = instance.prefix_ids, instance.prefix_offsets, instance.prefix_chunk
    if ids is None or offsets is None or chunk is None:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(instance.n + 1, np.int64)
    owner = np.repeat(np.arange(instance.n), np.diff(offsets))
    tokens = np.minimum(chunk, instance.prompt[owner] - (np.arange(len(ids)) - offsets[owner]) * chunk)
    distinct, which = np.unique(ids, return_inverse=True)
    size = np.full(len(distinct), chunk, np.int64)
    np.minimum.at(size, which, tokens)
    return size, which.astype(np.int64), np.asarray(offsets, np.int64)
