"""SGLang's prefix trees beside ours: the same prompts looked up and put in, one after another, in one process."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
import time
import types
from array import array
from collections.abc import Callable
from typing import Any
from unittest import mock

import numpy as np

from opt.serve.prefix.hashing import chunk_hashes

__all__ = ["importable", "prompts", "race", "radix_cache", "unified_cache"]

# To look a prompt up when it arrives, to do so again while it waits, to put it in.
Tree = tuple[Callable[[list[int]], int], Callable[[list[int]], int], Callable[[list[int]], None]]


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


def race(*, seed: int, page: int, n: int = 1500) -> dict[str, dict[str, Any]]:
    """Return for every tree the mean microseconds of its calls, and whether hits are those of the first tree.

    `match_us` looks an arriving prompt up, `again_us` does so once more, as schedulers do in every step while it waits, and
    `insert_us` puts it in. Ours include hashing, at the arrival.

    Args:
        seed: of the prompts.
        page: tokens to a page or chunk; hits are whole pages.
        n: prompts.
    """
    importable()
    rows = prompts(n, seed)
    caches = {"SGLang RadixCache": radix_cache(page)}
    caches |= {f"SGLang unified, {core}": unified_cache(page, core) for core in ("python", "rust")}
    rivals = {name: _sglang_tree(cache, page) for name, cache in caches.items() if cache is not None}
    rivals |= {"kvopt Chunked Hash Tree": _hash_tree(page), "kvopt chained hash set": _hash_set(page)}
    first: list[int] | None = None
    found: dict[str, dict[str, Any]] = {}
    for name, (look_up, again, put_in) in rivals.items():
        hits, times = [], np.zeros(3)
        for tokens in rows:
            begun = time.thread_time()
            hits.append(look_up(tokens))
            first_s = time.thread_time()
            assert again(tokens) == hits[-1]
            again_s = time.thread_time()
            put_in(tokens)
            times += first_s - begun, again_s - first_s, time.thread_time() - again_s
        first = hits if first is None else first
        share = sum(hits) / sum(map(len, rows))
        means = zip(("match_us", "again_us", "insert_us"), (1e6 * times / n).tolist(), strict=True)
        found[name] = {**dict(means), "equal_hits": hits == first, "hit_share": share}
    return found


def _sglang_tree(cache: Any, page: int) -> Tree:
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams, MatchPrefixParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    def key(tokens: list[int]) -> Any:
        return RadixKey(token_ids=array("q", tokens[: len(tokens) // page * page]))

    def look_up(tokens: list[int]) -> int:
        return int(cache.match_prefix(MatchPrefixParams(key=key(tokens))).device_prefix_len)

    def put_in(tokens: list[int]) -> None:
        known = key(tokens)
        cache.insert(InsertParams(key=known, value=torch.zeros(len(known), dtype=torch.int64)))

    return look_up, look_up, put_in


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

    def look_up(tokens: list[int]) -> int:
        i = len(tree.active)
        hashes = chunk_hashes(tokens[: len(tokens) // page * page], page)
        tree.insert(i, hashes)
        return page * (len(hashes) - tree.missing(i))

    def again(tokens: list[int]) -> int:
        return page * (len(tokens) // page - tree.missing(len(tree.active)))

    return look_up, again, lambda _: tree.activate(len(tree.active))


def _hash_set(page: int) -> Tree:
    known: set[int] = set()
    last: list[list[int]] = [[]]

    def again(_: list[int]) -> int:
        return page * next((k for k, name in enumerate(last[0]) if name not in known), len(last[0]))

    def look_up(tokens: list[int]) -> int:
        last[0] = chunk_hashes(tokens[: len(tokens) // page * page], page)
        return again(tokens)

    return look_up, again, lambda _: known.update(last[0])
