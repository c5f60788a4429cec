"""Cumulative hashes of prompts' chunks: one array for all requests, and where each request's part begins."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray, frozen
from opt.core.errors import InstanceError

__all__ = ["HashArray", "prefix_cells", "taken"]

HashArray: TypeAlias = npt.NDArray[np.uint64]


def prefix_cells(prefix: Any, n: int) -> tuple[HashArray | None, IntArray | None]:
    """Return the hashes of all requests in one array with the (n + 1,) offsets of each request's part."""
    if prefix is None:
        return None, None
    if isinstance(prefix, tuple) and len(prefix) == 2 and isinstance(prefix[0], np.ndarray):
        offsets = prefix[1]
        hashes = _hash_array(prefix[0])
        if len(offsets) != n + 1 or offsets[0] != 0 or offsets[-1] != len(hashes) or (np.diff(offsets) < 0).any():
            raise InstanceError(f"prefix offsets must rise from 0 to {len(hashes)} in {n + 1} steps")
        return frozen(hashes), frozen(np.array(offsets, np.int64))
    if len(prefix) != n:
        raise InstanceError(f"prefix has {len(prefix)} lists for {n} requests")
    for at, row in enumerate(prefix):
        for value in row:
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < 2**64:
                raise InstanceError(f"prefix[{at}]: hash {value!r} must be an integer from 0 to 2**64 - 1")
    offsets = np.concatenate([[0], np.cumsum([len(row) for row in prefix], dtype=np.int64)]).astype(np.int64)
    return frozen(np.array([value for row in prefix for value in row], np.uint64)), frozen(offsets)


def _hash_array(hashes: npt.NDArray[Any]) -> HashArray:
    if hashes.dtype.kind not in "iu" or (hashes.size and hashes.min() < 0):
        raise InstanceError("prefix hashes must be integers from 0 to 2**64 - 1")
    return hashes.astype(np.uint64)


def taken(hashes: HashArray, offsets: IntArray, at: IntArray) -> tuple[HashArray, IntArray]:
    """Return the hashes and offsets of the requests `at`, in that order."""
    lengths = np.diff(offsets)[at]
    ends = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    source = np.repeat(offsets[:-1][at] - ends[:-1], lengths) + np.arange(ends[-1])
    return hashes[source], ends
