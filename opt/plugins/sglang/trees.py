"""SGLang's prefix trees beside ours: the same prompts looked up and put in, one after another, in one process."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import time
import types
from array import array
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

from opt.serve.prefix.hashing import chunk_hashes

__all__ = ["importable", "prompts", "race", "radix_cache", "unified_cache"]


class Tree(NamedTuple):
    """What every tree can do.

    Args:
        look_up: a prompt that arrives; returns the tokens that are there.
        again: the same while it waits.
        put_in: it, after it was looked up.
        drop: the oldest prompt, of which so many tokens are in no later one.
    """

    look_up: Callable[[list[int]], int]
    again: Callable[[list[int]], int]
    put_in: Callable[[list[int]], None]
    drop: Callable[[int], None]


def importable() -> None:
    """Let SGLang be imported without what it draws and sees with: nothing here does."""
    if any(isinstance(finder, _Blank) for finder in sys.meta_path):
        return
    assert importlib.import_module("transformers").AutoImageProcessor  # looks once whether torchvision is there, and remembers
    sys.meta_path.append(_Blank())


class _Blank(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds, last of all finders, the missing packages as modules in which every name stands for nothing in particular."""

    missing = ("IPython", "torchvision")

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] not in self.missing:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Nameless(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        return None


class _Nameless(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return mock.MagicMock()


def prompts(n: int, seed: int) -> list[list[int]]:
    """Return prompts of about 1,200 tokens in 30 families, of which some 87 % are shared with an earlier one."""
    rng = np.random.default_rng(seed)
    stems = [rng.integers(0, 30_000, int(rng.integers(600, 1600))).tolist() for _ in range(30)]
    return [stems[int(rng.integers(30))] + rng.integers(0, 30_000, int(rng.integers(50, 250))).tolist() for _ in range(n)]


def race(*, seed: int, page: int, n: int = 1500, window: int | None = None) -> dict[str, dict[str, Any]]:
    """Return for every tree the mean microseconds of its calls, and whether hits are those of the first tree.

    `match_us` looks an arriving prompt up, `again_us` does so once more, as schedulers do in every step while it waits,
    `insert_us` puts it in, and `drop_us` takes the oldest one out. Ours include hashing, at the arrival.

    Args:
        seed: of the prompts.
        page: tokens to a page or chunk; hits are whole pages.
        n: prompts.
        window: how many prompts run at a time. They are held, the others leave at once; in SGLang's trees they are locked
            meanwhile, as it does with running requests, and then as many tokens are evicted. None keeps all prompts.
    """
    importable()
    rows = prompts(n, seed)
    freed = _freed(rows, page, window)
    caches = {"SGLang RadixCache": radix_cache(page)}
    caches |= {f"SGLang unified, {core}": unified_cache(page, core) for core in ("python", "rust")}
    rivals = {name: _sglang_tree(cache, page, locks=window is not None) for name, cache in caches.items() if cache is not None}
    rivals |= {"kvopt Chunked Hash Tree": _hash_tree(page), "kvopt chained hash set": _hash_set(page)}
    first: list[int] | None = None
    found: dict[str, dict[str, Any]] = {}
    for name, tree in rivals.items():
        hits, times = _run(tree, rows, freed)
        first = hits if first is None else first
        share = sum(hits) / sum(map(len, rows))
        found[name] = {**times, "equal_hits": hits == first, "hit_share": share}
    return found


def _run(tree: Tree, rows: list[list[int]], freed: list[int]) -> tuple[list[int], dict[str, float]]:
    """Return the hits of all prompts, and the mean microseconds of every kind of call."""
    hits, times = [], np.zeros(4)
    for tokens, tokens_freed in zip(rows, freed, strict=True):
        begun = time.thread_time()
        hits.append(tree.look_up(tokens))
        first_s = time.thread_time()
        assert tree.again(tokens) == hits[-1]
        again_s = time.thread_time()
        tree.put_in(tokens)
        inserted_s = time.thread_time()
        if tokens_freed >= 0:
            tree.drop(tokens_freed)
        times += first_s - begun, again_s - first_s, inserted_s - again_s, time.thread_time() - inserted_s
    means = (1e6 * times / len(rows)).tolist()
    return hits, dict(zip(("match_us", "again_us", "insert_us", "drop_us"), means, strict=True))


def _freed(rows: list[list[int]], page: int, window: int | None) -> list[int]:
    """Return how many tokens go when each prompt has come, counted one by one; -1 where no prompt goes."""
    if window is None:
        return [-1] * len(rows)
    held: Counter[int] = Counter()
    names = [chunk_hashes(tokens[: len(tokens) // page * page], page) for tokens in rows]
    freed = []
    for k, row in enumerate(names):
        held.update(row)
        gone = names[k - window] if k >= window else []
        held.subtract(gone)
        freed.append(page * sum(held[name] == 0 for name in gone) if k >= window else -1)
    return freed


def _sglang_tree(cache: Any, page: int, *, locks: bool) -> Tree:
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    held: deque[Any] | None = deque() if locks else None

    def key(tokens: list[int]) -> Any:
        return RadixKey(token_ids=array("q", tokens[: len(tokens) // page * page]))

    def look_up(tokens: list[int]) -> int:
        return int(cache.match_prefix(MatchPrefixParams(key=key(tokens))).device_prefix_len)

    def put_in(tokens: list[int]) -> None:
        known = key(tokens)
        put = cache.insert(InsertParams(key=known, value=torch.zeros(len(known), dtype=torch.int64)))
        if held is not None:
            held.append(cache.lock(put.last_device_node))

    def drop(tokens: int) -> None:
        assert held is not None
        cache.unlock(held.popleft())
        if tokens:
            cache.evict(EvictParams(num_tokens=tokens))

    return Tree(look_up, look_up, put_in, drop)


def radix_cache(page: int) -> Any:
    """Return SGLang's radix tree, without memory."""
    from sglang.srt.mem_cache.radix_cache import RadixCache

    return RadixCache.create_simulated(page_size=page, mock_allocator=_NoMemory())


def unified_cache(page: int, core: str) -> Any:
    """Return SGLang's unified tree with a core, "python" or "rust", without memory; None where the core is not built."""
    from sglang.srt.environ import envs
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache

    params = CacheInitParams(
        disable=False,
        req_to_token_pool=None,
        token_to_kv_pool_allocator=_NoMemory(),
        page_size=page,
        tree_components=(ComponentType.FULL,),
    )
    with envs.SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND.override(core), envs.SGLANG_RUST_BUILD_MODE.override("never"):
        cache = UnifiedRadixCache(params)
    if core not in type(cache.tree_core).__module__ and core == "rust":
        return None
    return cache


class _NoMemory:
    """Stands for SGLang's allocator: nothing is stored, so nothing has to be freed."""

    device = "cpu"

    def free_segment(self, *_: Any, **__: Any) -> None:
        """Do nothing."""

    def free(self, *_: Any, **__: Any) -> None:
        """Do nothing."""


def _hash_tree(page: int) -> Tree:
    from opt.serve.prefix.tree import ChunkedHashTree

    tree = ChunkedHashTree()
    arrived: list[int] = []
    dropped: list[int] = []

    def look_up(tokens: list[int]) -> int:
        i = len(arrived)
        arrived.append(i)
        hashes = chunk_hashes(tokens[: len(tokens) // page * page], page)
        tree.insert(i, hashes)
        return page * (len(hashes) - tree.missing(i))

    def again(tokens: list[int]) -> int:
        return page * (len(tokens) // page - tree.missing(arrived[-1]))

    def drop(_: int) -> None:
        dropped.append(len(dropped))
        tree.finish(dropped[-1])

    return Tree(look_up, again, lambda _: tree.activate(arrived[-1]), drop)


def _hash_set(page: int) -> Tree:
    known: Counter[int] = Counter()
    rows: deque[list[int]] = deque()

    def again(_: list[int]) -> int:
        return page * next((k for k, name in enumerate(rows[-1]) if name not in known), len(rows[-1]))

    def look_up(tokens: list[int]) -> int:
        rows.append(chunk_hashes(tokens[: len(tokens) // page * page], page))
        return again(tokens)

    def drop(_: int) -> None:
        for name in rows.popleft():
            known[name] -= 1
            if not known[name]:
                del known[name]

    return Tree(look_up, again, lambda _: known.update(rows[-1]), drop)
