"""Requests in groups that share a prefix: the workload on which prefix-homogeneous batches are usually shown."""

from __future__ import annotations

import numpy as np

from opt.core.errors import InstanceError
from opt.core.instance import Instance

__all__ = ["grouped"]


def grouped(
    n: int,
    *,
    groups: int,
    shared: int,
    unique: int = 20,
    longest: int = 200,
    rate: float | None = None,
    chunk: int = 256,
    memory: int,
    seed: int = 0,
) -> Instance:
    """Return n requests in groups of equal chance, each with a prefix of its own.

    Args:
        n: requests.
        groups: how many there are; 0 gives every request a prompt of its own, so that nothing is shared.
        shared: tokens of the common prefix, in whole chunks.
        unique: tokens of each prompt behind it.
        longest: outputs are uniform on 1 .. longest tokens; policies are told `longest` (`max_output`).
        rate: Poisson arrivals a second; None lets all be there at once.
        chunk: tokens in a prefix hash.
        memory: tokens.
        seed: of a PCG64 generator.

    Raises:
        InstanceError: `shared` is not a multiple of `chunk`, or a number is out of range.

    >>> instance = grouped(3, groups=1, shared=512, memory=10_000)
    >>> instance.prompt.tolist(), [len(row) for row in instance.prefix_rows()], instance.client
    ([532, 532, 532], [3, 3, 3], ('0', '0', '0'))
    """
    if shared % chunk or groups < 0 or longest < 1 or (rate is not None and rate <= 0):
        raise InstanceError(
            f"groups = {groups}, shared = {shared}, chunk = {chunk}, longest = {longest}, rate = {rate}: shared must be a "
            "multiple of chunk, groups at least 0, longest at least 1, rate above 0"
        )
    rng = np.random.Generator(np.random.PCG64(seed))
    group = rng.integers(0, groups, n) if groups else np.arange(n)
    depth, tail = shared // chunk, -(-unique // chunk)
    names = rng.permutation(max(groups, n) * (depth + 1))  # distinct numbers stand for hashes
    rows = [
        [*names[g * depth : (g + 1) * depth].tolist(), *(2**40 + i * tail + k for k in range(tail))] for i, g in enumerate(group)
    ]
    return Instance(
        memory,
        np.full(n, shared + unique),
        rng.integers(1, longest + 1, n),
        arrival_s=np.zeros(n) if rate is None else np.cumsum(rng.exponential(1 / rate, n)),
        max_output=np.full(n, longest),
        prefix=rows,
        prefix_chunk=chunk,
        client=[str(g) for g in group] if groups else None,
        name=f"groups-{groups}-{shared}-{longest}",
        origin={"recipe": "opt.serve.prefix.groups.grouped", "seed": seed, "groups": groups, "shared": shared, "rate": rate},
    )
