"""What detecting shared prefixes costs on one core: the Chunked Hash Tree, and a radix tree sorted as LPM does.

Times are processor time of the thread, so that other processes do not count; medians.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

import numpy as np

from opt.bench.runner import Params, Record, Table, grouped, median_of
from opt.core.columns import IntArray

__all__ = ["CLOCKED", "measure", "tables", "tasks"]

CLOCKED = frozenset({"median_us", "p99_us", "rest_us", "lpm_us", "tree_us", "ratio"})

CHUNK = 512
GROUPS = 100
UNIQUE = 20
RUNNING = 256
LENGTHS = (1_000, 2_500, 10_000, 20_000, 40_000, 100_000)
WAITING = (100, 1_000, 10_000, 100_000)


def tasks(seeds: int) -> list[Params]:
    """Return insertions by prompt length, selections by queue length, and scheduling steps of both structures."""
    kinds: list[Params] = [{"kind": "insert", "tokens": tokens} for tokens in LENGTHS]
    kinds += [{"kind": "select", "waiting": waiting} for waiting in WAITING]
    kinds += [{"kind": "step", "tokens": tokens, "waiting": 1_000} for tokens in (1_000, 5_000, 20_000)]
    kinds += [{"kind": "step", "tokens": 20_000, "waiting": waiting} for waiting in (100, 300)]
    return [{"part": "detection", "seed": seed, **kind} for kind in kinds for seed in range(seeds)]


def measure(params: Params) -> dict[str, Any]:
    """Run one task."""
    return {"insert": _insert, "select": _select, "step": _step}[params["kind"]](params)


def _prompts(tokens: int, seed: int) -> Iterator[IntArray]:
    """Yield prompts of GROUPS groups in turn, all but UNIQUE tokens of each shared."""
    rng = np.random.default_rng(seed)
    shared = rng.integers(0, 2**17, (GROUPS, tokens - UNIQUE))
    while True:
        for g in rng.permutation(GROUPS).tolist():
            yield np.concatenate([shared[g], rng.integers(0, 2**17, UNIQUE)])


def _spent(work: Callable[[], Any]) -> float:
    begun = time.thread_time()
    work()
    return time.thread_time() - begun


def _summary(seconds: list[float]) -> dict[str, float]:
    return {"median_us": 1e6 * float(np.median(seconds)), "p99_us": 1e6 * float(np.quantile(seconds, 0.99))}


def _insert(params: Params) -> dict[str, Any]:
    """Hash and insert prompts into a tree that holds a thousand."""
    from opt.serve.prefix.hashing import chunk_hashes
    from opt.serve.prefix.tree import ChunkedHashTree

    tree, prompts = ChunkedHashTree(), _prompts(params["tokens"], params["seed"])

    def insert(i: int, prompt: IntArray) -> None:
        tree.insert(i, chunk_hashes(prompt, CHUNK))

    seconds = [_spent(partial(insert, i, next(prompts))) for i in range(2_000)]
    return _summary(seconds[1_000:])


def _select(params: Params) -> dict[str, Any]:
    """Select among many, activate, and let the oldest of RUNNING finish, with an arrival for each."""
    from opt.serve.prefix.tree import ChunkedHashTree

    rng, waiting = np.random.default_rng(params["seed"]), params["waiting"]
    tree, running = ChunkedHashTree(), deque[int]()
    for i in range(waiting):
        tree.insert(i, _names(i, rng))
    selects, rest = [], []
    for k in range(3_000):
        begun = time.thread_time()
        found = tree.select()
        chosen = time.thread_time()
        assert found is not None
        tree.activate(found[0])
        running.append(found[0])
        if len(running) > RUNNING:
            tree.finish(running.popleft())
        tree.insert(waiting + k, _names(waiting + k, rng))
        rest.append(time.thread_time() - chosen)
        selects.append(chosen - begun)
    return {**_summary(selects), "rest_us": 1e6 * float(np.median(rest))}


def _names(i: int, rng: np.random.Generator) -> list[int]:
    """Return the chunks of a prompt of 20 chunks, the last one its own."""
    group = int(rng.integers(GROUPS))
    return [*range(group * 100, group * 100 + 19), 10**6 + i]


def _step(params: Params) -> dict[str, Any]:
    """One scheduling step of each structure: an arrival, the choice of the next request, its admission, a completion."""
    from opt.serve.prefix.radix import RadixTree, longest_match_first

    prompts = _prompts(params["tokens"], params["seed"])
    waiting = {i: next(prompts) for i in range(params["waiting"])}
    radix = RadixTree()
    for i in range(0, params["waiting"], 2):
        radix.insert(waiting[i])  # a warm cache: every group is known
    lpm = [_spent(lambda: longest_match_first(radix, waiting.items())) for _ in range(8)]
    ours = _tree_steps(waiting, prompts)
    return {
        "lpm_us": 1e6 * float(np.median(lpm)),
        "tree_us": 1e6 * float(np.median(ours)),
        "ratio": float(np.median(lpm) / np.median(ours)),
    }


def _tree_steps(waiting: dict[int, IntArray], prompts: Iterator[IntArray]) -> list[float]:
    from opt.serve.prefix.hashing import chunk_hashes
    from opt.serve.prefix.tree import ChunkedHashTree

    tree, running, seconds = ChunkedHashTree(), deque[int](), []
    for i, prompt in waiting.items():
        tree.insert(i, chunk_hashes(prompt, CHUNK))
    for k in range(500):
        arriving = next(prompts)
        begun = time.thread_time()
        tree.insert(len(waiting) + k, chunk_hashes(arriving, CHUNK))
        found = tree.select()
        assert found is not None
        tree.activate(found[0])
        running.append(found[0])
        if len(running) > RUNNING:
            tree.finish(running.popleft())
        seconds.append(time.thread_time() - begun)
    return seconds


def tables(records: list[Record]) -> list[Table]:
    """Return the three tables."""
    kinds = grouped(records, "kind")
    return [
        make(kinds[(kind,)]) for kind, make in (("insert", _inserts), ("select", _selects), ("step", _steps)) if (kind,) in kinds
    ]


def _inserts(records: list[Record]) -> Table:
    found = [
        (tokens, _median(mine, "median_us"), _median(mine, "p99_us")) for (tokens,), mine in grouped(records, "tokens").items()
    ]
    slopes = [None, *(math.log(b[1] / a[1]) / math.log(b[0] / a[0]) for a, b in pairwise(found))]
    rows = [[*cells, 1e3 * cells[1] / cells[0], slope] for cells, slope in zip(found, slopes, strict=True)]
    columns = ["prompt tokens", "median us", "P99 us", "us per 1000 tokens", "slope from the size before"]
    return Table(
        f"hash and insert a prompt, chunks of {CHUNK}: at most linear in its length (limit: 500 us at 10,000)", columns, rows
    )


def _selects(records: list[Record]) -> Table:
    rows = [
        [waiting, *(_median(mine, key) for key in ("median_us", "p99_us", "rest_us"))]
        for (waiting,), mine in grouped(records, "waiting").items()
    ]
    columns = ["waiting", "select, median us", "select, P99 us", "arrival, activation, completion, median us"]
    return Table("selection by queue length, prompts of 20 chunks (limit: 5 us at 10,000 waiting)", columns, rows)


def _steps(records: list[Record]) -> Table:
    rows = [
        [tokens, waiting, _median(mine, "lpm_us"), _median(mine, "tree_us"), _median(mine, "ratio")]
        for (tokens, waiting), mine in grouped(records, "tokens", "waiting").items()
    ]
    columns = ["prompt tokens", "waiting", "radix tree, LPM, us", "hash tree, us", "times cheaper"]
    return Table(
        "one scheduling step: arrival, choice, admission, completion (limit: 100 times at 20,000 and 1,000)", columns, rows
    )


def _median(records: list[Record], name: str) -> float:
    found = median_of(records, name)
    return math.nan if found is None else found
