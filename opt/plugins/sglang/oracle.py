"""SGLang's own ordering of the waiting queue beside our policies of the same names, whenever one of our runs asks for it.

Our engine serves random requests under `sglang-lpm` or `sglang-dfs-weight`. SGLang's `SchedulePolicy` has a queue of its
own meanwhile, which it sorts in place as in its scheduler: who was admitted leaves it, who arrives or was retracted comes
to its end. Its prefix tree is told which prompts our cache takes in, in this order, and what it loses. So every difference
is one of ordering. Compared is the whole order, not only who is admitted.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

from opt.core.cost import UNIT
from opt.core.instance import Instance
from opt.plugins.sglang.trees import importable, radix_cache, unified_cache
from opt.sim.batch import View
from opt.sim.config import EngineConfig
from opt.sim.engine import Engine
from opt.sim.memory import Memory
from opt.sim.policies import SGLANG
from opt.sim.policies.sglang import ORDERS, Loop
from opt.sim.policy import Policy
from opt.sim.prefix import Prefixes
from opt.sim.workload import workload

__all__ = ["Comparison", "compare", "draw"]


@dataclass
class Comparison:
    """The orders that a run asked for.

    Args:
        orders: how many, up to the first unknown difference.
        equal: how many are SGLang's.
        retracted: how many differ in the places of retracted requests alone.
        merged: how many differ only among requests with the same cached prefix, after the cache has lost prompts.
        sorted: orders of queues that were not in SGLang's order before it sorted them.
        longest: requests in the longest queue.
        lost: whether the cache lost prompts.
        there, here: SGLang's order and ours, where they differ first in a way that `opt.sim.policies.sglang` does not state.
    """

    orders: int = 0
    equal: int = 0
    retracted: int = 0
    merged: int = 0
    sorted: int = 0
    longest: int = 0
    lost: bool = False
    there: list[int] = field(default_factory=list)
    here: list[int] = field(default_factory=list)


def draw(seed: int, *, roomy: bool | None = None) -> tuple[Instance, EngineConfig]:
    """Return random requests with common prefixes, and settings of an engine; where it is `roomy`, prompts stay cached."""
    rng = np.random.default_rng(seed)
    chunk, n = int(rng.choice([4, 8, 16, 32])), int(rng.integers(20, 220))
    prompt, output = rng.integers(1, 20 * chunk, n), rng.integers(1, 60, n)
    arrival = np.sort(rng.integers(0, int(rng.choice([1, 100, 600])), n))
    roomy = bool(rng.random() < 0.4) if roomy is None else roomy
    least = int((prompt + output).max())
    memory = int((prompt + output).sum()) + 1000 if roomy else least + int(rng.integers(0, 40 * chunk + 400))
    instance = Instance(memory, prompt, output, arrival=arrival, prefix=_rows(rng, prompt, chunk), prefix_chunk=chunk)
    if rng.random() < 0.15:
        instance = instance.replace(predicted=np.maximum(1, output // 3))  # too few are set aside: some are retracted
    budget, seats = int(rng.choice([128, 512, 4096])), int(rng.choice([1, 4, 16]))
    return instance, SGLANG.replace(token_budget=budget, max_running=seats, prefix_cache=True)


def _rows(rng: np.random.Generator, prompt: Any, chunk: int) -> list[list[int]]:
    """Return hashes of prompts that leave common trunks, of common trees, at random depths."""
    rows: list[list[int]] = []
    fresh = 1
    for tokens in prompt.tolist():
        size = -(-tokens // chunk)
        model = rows[int(rng.integers(len(rows)))] if rows and rng.random() < 0.8 else []
        kept = model[: int(rng.integers(0, min(len(model), size) + 1))]
        rows.append(kept + list(range(fresh, fresh + size - len(kept))))
        fresh += size
    return rows


def compare(instance: Instance, config: EngineConfig, order: str, tree: str = "radix") -> Comparison:
    """Serve the requests, and return how SGLang would have sorted each queue.

    Args:
        instance, config: of `draw`.
        order: "lpm" or "dfs-weight".
        tree: SGLang's: "radix", which may lose prompts, or "rust", which may not.
    """
    load = workload(instance, round_s=1.0)
    found = Comparison()
    loop = Loop(ORDERS[order], np.random.PCG64(0), dated=order == "dfs-weight")
    engine = Engine(load, Policy(loop.decide), config, UNIT, kv_tokens=instance.memory)
    shadow = _Shadow(order, instance, tree, engine.memory)

    def both(_: Loop, view: View) -> Iterator[int]:
        there = shadow.order(view)
        here = _whole(ORDERS[order](loop, view), view)
        if not found.there:
            _note(found, there, here, shadow)
        return shadow.following(here)

    loop.order = both
    engine.submit(range(instance.n))
    engine.advance()
    return found


def _whole(order: Iterable[int], view: View) -> list[int]:
    """Return an order with those whom it leaves out: where only the head is asked for, the others follow by arrival."""
    return list(dict.fromkeys([*order, *view.waiting]))


def _note(found: Comparison, there: list[int], here: list[int], shadow: _Shadow) -> None:
    found.orders += 1
    found.longest = max(found.longest, len(there))
    found.sorted += there != shadow.before
    found.lost |= shadow.lost
    kind = "equal" if there == here else shadow.kind(there, here)
    if kind:
        setattr(found, kind, getattr(found, kind) + 1)
        shadow.queue = [shadow.requests[i] for i in here]  # so that one difference is not counted again and again
    else:
        found.there, found.here = there, here


class _Shadow:
    """SGLang's policy, its queue and its tree, which follows our memory."""

    def __init__(self, order: str, instance: Instance, tree: str, memory: Memory) -> None:
        importable()
        from sglang.srt.managers.schedule_policy import SchedulePolicy

        self.prunable = tree == "radix"
        self.cache = radix_cache(1) if tree == "radix" else unified_cache(1, tree)
        self.policy = SchedulePolicy(order, self.cache, False, False, False)
        self.policy._touch_waiting_prefixes = lambda *_: None  # renews recency only, and asks the settings of a whole server
        assert memory.prefixes is not None
        self.memory, self.prefixes = memory, memory.prefixes
        self.requests = [_request(i, instance, self.prefixes) for i in range(instance.n)]
        self.queue: list[SimpleNamespace] = []
        self.before: list[int] = []
        self.admitted: dict[int, None] = {}
        self.retractions = np.zeros(instance.n, np.int64)
        self.lost = False

    def order(self, view: View) -> list[int]:
        """Return the waiting requests as SGLang sorts them now."""
        self.learn()
        retracted = np.flatnonzero(view.progress.preemptions > self.retractions).tolist()
        self.retractions = view.progress.preemptions.copy()
        self.queue = [request for request in self.queue if request.rid in view.waiting and request.rid not in retracted]
        known = {request.rid for request in self.queue}
        coming = sorted((i for i in view.waiting if i not in known), key=lambda i: i in retracted)
        self.queue += [self.requests[i] for i in coming]
        for request in self.queue:
            request.output_ids = array("q", [-1 - request.rid] * int(view.progress.produced[request.rid]))
        self.before = [request.rid for request in self.queue]
        self.policy.calc_priority(self.queue)
        return [request.rid for request in self.queue]

    def following(self, order: list[int]) -> Iterator[int]:
        """Yield an order while it is followed, and let the tree follow what admissions do to the cache."""
        for i in order:
            self.admitted.pop(i, None)
            self.admitted[i] = None
            yield i
            self.learn()

    def learn(self) -> None:
        """Bring the tree to what is cached: first what went, then what came, in the order of admission."""
        unit, present = self.prefixes.unit, self.memory.present
        if self.prunable:
            self.lost |= _prune(self.cache.root_node, unit, present)
        for i in self.admitted:
            names = self.prefixes.units(i)
            depth = next((k for k, name in enumerate(names) if not present[name]), len(names))
            if depth:
                _insert(self.cache, self.requests[i].origin_input_ids[: depth * unit])

    def kind(self, there: list[int], here: list[int]) -> str:
        """Return which of the differences that our policy states this one is; "" for none."""
        who = self.retractions
        if [i for i in there if not who[i]] == [i for i in here if not who[i]]:
            return "retracted"
        if not self.lost or self.policy.policy.value != "dfs-weight":
            return ""
        node = {request.rid: request.last_node for request in self.queue}
        return "merged" if all(node[i] is node[j] for i, j in zip(there, here, strict=True)) else ""


def _request(i: int, instance: Instance, prefixes: Prefixes) -> SimpleNamespace:
    """Return what SGLang's policy reads of a request.

    Tokens are made so that prompts share exactly the units of our cache: unit u is the tokens u * unit, u * unit + 1, ...
    What is left of a prompt follows from the hash of its last chunk.
    """
    unit = prefixes.unit
    tokens = [name * unit + k for name in prefixes.units(i) for k in range(unit)]
    last = prefixes.distinct + int(prefixes.ids[prefixes.offsets[i + 1] - 1])
    tokens += [last * unit + k for k in range(int(instance.prompt[i]) - len(tokens))]
    return SimpleNamespace(
        rid=i,
        origin_input_ids=array("q", tokens),
        output_ids=array("q"),
        extra_key=None,
        cache_salt=None,
        session=None,
        kv=SimpleNamespace(cache_protected_len=0),
        _compute_max_prefix_len=lambda size: size - 1,
    )


def _insert(cache: Any, tokens: array[int]) -> None:
    import torch
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    cache.insert(InsertParams(key=RadixKey(token_ids=tokens), value=torch.zeros(len(tokens), dtype=torch.int64)))


def _prune(root: Any, unit: int, present: npt.NDArray[np.bool_]) -> bool:
    """Take out of SGLang's tree whatever is not cached any more, and return whether there was anything."""
    lost, stack = False, [root]
    while stack:
        node = stack.pop()
        for first, child in list(node.children.items()):
            names = [token // unit for token in child.key.token_ids[::unit]]
            kept = next((k for k, name in enumerate(names) if not present[name]), len(names))
            lost |= kept < len(names)
            if not kept:
                del node.children[first]
            elif kept < len(names):
                child.key, child.value, child.children = child.key[: kept * unit], child.value[: kept * unit], {}
            else:
                stack.append(child)
    return lost
