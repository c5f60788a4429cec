"""The small families on which standard policies do badly.

The adversarial families here are those of which the theorems in `proofs` speak. Each takes its size from the memory; a
larger `n`, where allowed, means more copies. The order of the requests matters: it is the order of arrival, by which
policies break ties.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt

import numpy as np

from instances.family import GENERATOR, MAX_REQUESTS, Columns, Family
from opt.core.errors import InstanceError

__all__ = ["GENERATOR", "MAX_REQUESTS", "TRAPS", "Columns", "Family", "distinct_pairs"]


def _requests(*groups: tuple[int, int, int]) -> Columns:
    """Return the columns of `count` requests (prompt, output) for each group, in that order."""
    count, prompt, output = (np.array(column, np.int64) for column in zip(*groups, strict=True))
    return {"prompt": np.repeat(prompt, count), "output": np.repeat(output, count)}


def _fcfs_size(memory: int) -> int:
    if memory % 2:
        raise InstanceError(f"memory = {memory}: fcfs-trap needs an even memory, such as {memory - 1} or {memory + 1}")
    return memory + 3


def _fcfs(n: int, memory: int, seed: int) -> Columns:
    """Three requests of which no two fit together, then M short ones that all wait behind them."""
    return _requests((3, memory // 2, memory // 2), (memory, 1, 1))


def _fcfs_strong(n: int, memory: int, seed: int) -> Columns:
    """k requests that own the memory for M rounds each, then kM that take one round and one token."""
    copies = n // (memory + 1)
    return _requests((copies, 0, memory), (copies * memory, 0, 1))


def _skip_unit(memory: int) -> int:
    return isqrt(memory) + 1


def _skip(n: int, memory: int, seed: int) -> Columns:
    """k requests that fill the memory for one round each: nothing can slip past; then k * sqrt(M) tiny ones."""
    copies = n // _skip_unit(memory)
    return _requests((copies, memory - 1, 1), (n - copies, 0, 1))


def _sof(n: int, memory: int, seed: int) -> Columns:
    """sqrt(M) short outputs with huge prompts, served first by their output though M small requests would fit at once."""
    return _requests((isqrt(memory), memory - 1, 1), (memory, 1, 2))


def _total_size(n: int, memory: int, seed: int) -> Columns:
    """8 requests that last M/4 rounds are one token smaller than many that last one round."""
    long = memory // 4
    return _requests((8, 1, long), (n - 8, long + 1, 1))


def _total_size_strong(n: int, memory: int, seed: int) -> Columns:
    """k requests of M - 1 rounds are one token smaller than the k * sqrt(M) that last one round; none fit together."""
    copies = n // _skip_unit(memory)
    return _requests((copies, 0, memory - 1), (n - copies, memory - 1, 1))


def _fcfs_sealed(n: int, memory: int, seed: int) -> Columns:
    """k requests that own the memory for M rounds each, k that seal it for one, then kM of one token and one round."""
    copies = n // (memory + 2)
    return _requests((copies, 0, memory), (copies, memory - 1, 1), (copies * memory, 0, 1))


def _log_classes(memory: int) -> int:
    return _largest(lambda classes: 1 << 2 * classes, memory, "fcfs-trap-log")


def _log_unit(memory: int) -> int:
    classes = _log_classes(memory)
    return (4 << classes) - 4 + memory * isqrt(3 * classes)


def _fcfs_log(n: int, memory: int, seed: int) -> Columns:
    """Thin requests of M/2, M/4, .. sqrt(M) rounds, of each length in inverse number, each sealed by one that fills the
    memory for a round: all scales waste the same time. Then M * isqrt(3 log4 M) requests of one token, k times over.
    """
    copies, classes = n // _log_unit(memory), _log_classes(memory)
    pairs = [request for i in range(classes) for request in [(1, 0, memory >> (i + 1)), (1, memory - 1, 1)] * (copies << (i + 1))]
    return _requests(*pairs, (copies * memory * isqrt(3 * classes), 0, 1))


def _lof(n: int, memory: int, seed: int) -> Columns:
    """k requests that fill the memory for two rounds; k * M / sqrt(M) smaller ones of one round find no room beside them."""
    copies = n // _lof_unit(memory)
    return _requests((copies * isqrt(memory), memory - 2, 2), (copies * memory, 1, 1))


def _lof_unit(memory: int) -> int:
    return isqrt(memory) + memory


def _sof_strong(n: int, memory: int, seed: int) -> Columns:
    """5k sqrt(M) requests that fill the memory for one round go before 3kM that take two rounds and at most two tokens."""
    copies = n // _sof_unit(memory)
    return _requests((copies * 5 * isqrt(memory), memory - 1, 1), (copies * 3 * memory, 0, 2))


def _sof_unit(memory: int) -> int:
    return 5 * isqrt(memory) + 3 * memory


def _skip_ahead(n: int, memory: int, seed: int) -> Columns:
    """k sqrt(M) requests that leave one token free for one round: enough for one of k thin ones to slip in and stay M rounds."""
    copies = n // _skip_unit(memory)
    return _requests((n - copies, memory - 2, 1), (copies, 0, memory))


def _one_bit_root(memory: int) -> int:
    return _largest(lambda root: root * (root + 1), memory, "one-bit-trap")


def _one_bit_unit(memory: int) -> int:
    return 2 * _one_bit_root(memory) + 1


def _one_bit(n: int, memory: int, seed: int) -> Columns:
    """One request of M rounds makes the cap M; k q outputs of q + 1 are just above the root of it, so each reserves all M."""
    root, copies = _one_bit_root(memory), n // _one_bit_unit(memory)
    return _requests((copies * (root + 1) - 1, 0, 1), (copies * root, 0, root + 1), (1, 0, memory))


def _svf_memory(long: int) -> int:
    return long * (long + 3) // 2 + 1


def _svf_size(memory: int) -> int:
    return 2 * _largest(_svf_memory, memory, "svf-trap")


def _svf(n: int, memory: int, seed: int) -> Columns:
    """L long thin requests alternate with L short fat ones of the same volume M - 1; no fat one fits beside a thin one."""
    return _requests(*[(1, 1, n // 2), (1, memory - 2, 1)] * (n // 2))


def _svf_no_ties_memory(long: int) -> int:
    return long**3 + long**2 + long * (long + 1) // 2 + 2


def _svf_no_ties_size(memory: int) -> int:
    return 2 * _largest(_svf_no_ties_memory, memory, "svf-trap-no-ties")


def _svf_no_ties(n: int, memory: int, seed: int) -> Columns:
    """Volumes rise strictly and alternate in shape: (L*L + i, L), then one of one round that is larger by 1.

    The L long ones fit together; no short one fits beside any of them.
    """
    long = n // 2
    pairs = [(long * long + i, long**3 + i * long + long * (long + 1) // 2) for i in range(1, long + 1)]
    return _requests(*[request for thin, volume in pairs for request in ((1, thin, long), (1, volume, 1))])


def _svf_strong(n: int, memory: int, seed: int) -> Columns:
    """As `_svf`, with as many pairs as one likes: a stream of thin ones, one a round, would fill the memory exactly."""
    return _requests(*[(1, 1, _largest(_svf_memory, memory, "svf-trap-strong")), (1, memory - 2, 1)] * (n // 2))


def distinct_pairs(longest: int) -> list[tuple[int, int, int]]:
    """Return (prompt, output, volume) of thin requests with outputs above half of `longest`, volumes two apart.

    For each output the prompt is the least that lifts the volume to V = a(3a + 1)/2 or above, a the longest: the volumes
    lie in V .. V + a - 1 and every prompt is at least a, so no request of volume and peak in V .. V + a fits beside one.
    At most a/3 of them are kept, so that all thin ones fit together.
    """
    goal, found = longest * (3 * longest + 1) // 2, []
    for output in range(longest // 2 + 1, longest + 1):
        prompt = -(-(goal - output * (output + 1) // 2) // output)
        found.append((prompt * output + output * (output + 1) // 2, prompt, output))
    kept: list[tuple[int, int, int]] = []
    for volume, prompt, output in sorted(found):
        if not kept or volume >= kept[-1][2] + 2:
            kept.append((prompt, output, volume))
    return kept[: max(1, longest // 3)]


def _distinct_memory(longest: int) -> int:
    return distinct_pairs(longest)[-1][2] + 1


def _distinct_longest(memory: int) -> int:
    """The memory is at least 3/2 of the square, so the search may start near the root."""
    return _largest(_distinct_memory, memory, "svf-trap-distinct", max(2, isqrt(2 * memory // 3) - 3))


def _distinct_size(memory: int) -> int:
    return 2 * len(distinct_pairs(_distinct_longest(memory)))


def _svf_distinct(n: int, memory: int, seed: int) -> Columns:
    """Volumes rise strictly and alternate in shape: thin ones of many lengths, each sealed by one that is larger by 1."""
    pairs = distinct_pairs(_distinct_longest(memory))
    return _requests(*[request for s, o, volume in pairs for request in ((1, s, o), (1, volume, 1))])


def _equal_memory(together: int) -> int:
    return together * (2 * together - 1)


def _equal_batch(memory: int) -> int:
    return _largest(_equal_memory, memory, "equal-trap")


def _equal(n: int, memory: int, seed: int) -> Columns:
    """All the same: k start together and fill the memory only at their end; one a round would fill it all the time."""
    return _requests((n, 0, 2 * _equal_batch(memory) - 1))


def _largest(needed: Callable[[int], int], memory: int, name: str, first: int = 2) -> int:
    """Return the L >= first with `needed(L) == memory`, or refuse, naming the nearest memories."""
    long = first
    while needed(long + 1) <= memory:
        long += 1
    if needed(long) != memory:
        raise InstanceError(f"memory = {memory}: the nearest that {name} can use are {needed(long)} and {needed(long + 1)}")
    return long


def _four(n: int, memory: int, seed: int) -> Columns:
    if memory != 17:
        raise InstanceError(f"memory = {memory}: the four requests are made for a memory of 17")
    return {"prompt": [9, 2, 6, 2], "output": [5, 5, 4, 3]}


def _trap(
    name: str,
    description: str,
    memory: int,
    least: int,
    columns: Callable[[int, int, int], Columns],
    count: Callable[[int], int],
    unit: Callable[[int], int] | None = None,
) -> Family:
    return Family(name, description, memory, count(memory), least, columns, count, unit)


_TRAPS = (
    _trap("fcfs-trap", "first come first served takes 2M/9 times too long", 64, 2, _fcfs, _fcfs_size),
    _trap(
        "fcfs-trap-strong",
        "first come first served takes M(k-1)/(k+1) times too long; n = k(M+1)",
        32,
        1,
        _fcfs_strong,
        lambda memory: 4 * (memory + 1),
        lambda memory: memory + 1,
    ),
    _trap(
        "skip-trap",
        "skipping a blocked head does not save first come first served: about sqrt(M); n = k(sqrt(M)+1)",
        64,
        2,
        _skip,
        lambda memory: isqrt(memory) * _skip_unit(memory),
        _skip_unit,
    ),
    _trap("sof-trap", "shortest output first takes (2/9)sqrt(M) times too long", 64, 3, _sof, lambda m: m + isqrt(m)),
    _trap(
        "fcfs-trap-sealed",
        "first come first served, longest output first, largest peak first: about M times too long; n = k(M+2)",
        32,
        1,
        _fcfs_sealed,
        lambda memory: 4 * (memory + 2),
        lambda memory: memory + 2,
    ),
    _trap(
        "fcfs-trap-log",
        "first come first served takes M sqrt(log2(M)/6) times too long; M = 4^K",
        64,
        16,
        _fcfs_log,
        _log_unit,
        _log_unit,
    ),
    _trap(
        "lof-trap",
        "longest output first takes about sqrt(M) times too long, skipping or not; n = k(sqrt(M)+M)",
        64,
        2,
        _lof,
        _lof_unit,
        _lof_unit,
    ),
    _trap(
        "sof-trap-strong",
        "shortest output first takes (15/26)sqrt(M) times too long, skipping or not; n = k(5 sqrt(M)+3M)",
        36,
        2,
        _sof_strong,
        _sof_unit,
        _sof_unit,
    ),
    _trap(
        "total-size-trap",
        "smallest prompt + output first takes 0.16 sqrt(M) times too long",
        128,
        8,
        _total_size,
        lambda memory: 8 + 8 * isqrt(memory // 8),
    ),
    _trap(
        "total-size-trap-strong",
        "smallest prompt + output first takes about sqrt(M) times too long, skipping or not; n = k(sqrt(M)+1)",
        64,
        2,
        _total_size_strong,
        lambda memory: isqrt(memory) * _skip_unit(memory),
        _skip_unit,
    ),
    _trap(
        "skip-ahead-trap",
        "skipping makes smallest volume, output or size first about sqrt(M) times too slow; n = k(sqrt(M)+1)",
        64,
        2,
        _skip_ahead,
        lambda memory: isqrt(memory) * _skip_unit(memory),
        _skip_unit,
    ),
    _trap(
        "one-bit-trap",
        "knowing one bit of each output: about sqrt(M) times too long; M = q(q+1), n = k(2q+1)",
        42,
        6,
        _one_bit,
        lambda memory: 4 * _one_bit_unit(memory),
        _one_bit_unit,
    ),
    _trap("svf-trap", "smallest volume first, ties against it: (sqrt(2)/3)sqrt(M); M = L(L+3)/2 + 1", 66, 6, _svf, _svf_size),
    _trap(
        "svf-trap-no-ties",
        "smallest volume first without ties: about M^(1/3); M = L^3 + L^2 + L(L+1)/2 + 2",
        614,
        17,
        _svf_no_ties,
        _svf_no_ties_size,
    ),
    _trap(
        "svf-trap-strong",
        "smallest volume first, ties against it: sqrt(M/2); M = L(L+3)/2 + 1, n = 2k",
        66,
        6,
        _svf_strong,
        lambda memory: 4 * _svf_size(memory),
        lambda memory: 2,
    ),
    _trap(
        "svf-trap-distinct",
        "smallest volume first without ties: at least sqrt(M)/log(M)",
        _distinct_memory(24),
        _distinct_memory(2),
        _svf_distinct,
        _distinct_size,
    ),
    _trap(
        "equal-trap",
        "equal requests: every order takes 2 - 1/k times too long; M = k(2k-1), n a multiple of k",
        28,
        6,
        _equal,
        lambda memory: 16 * _equal_batch(memory),
        _equal_batch,
    ),
    _trap("four", "four requests whose optimum, 24, no priority order reaches", 17, 17, _four, lambda m: 4),
)

TRAPS: dict[str, Family] = {family.name: family for family in _TRAPS}
