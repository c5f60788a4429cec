"""vLLM V1: no phases; running requests first, then the waiting queue until the first that does not fit.

Every step has a token budget. Running requests catch up with what they need, in the order of their admission: decodes one
token, an unfinished prompt as much as the budget and the largest chunk allow, so one long prompt can use up the budget and
newcomers wait for it (`max_chunk` in the engine's settings shares it; whoever is alone is not held to it). When memory runs
out, victims lose everything and are recomputed: under `fcfs` the last of the running list, under `priority` the worst
(priority, arrival); a victim that is itself in need ends the list for this step. Only if nobody was preempted is the
waiting queue tried, head first, and the first that cannot be admitted blocks those behind it.

Held step by step against vLLM 0.32's own scheduler (`kvopt bench engines`): tokens of every request, victims, who ends,
cached tokens, blocks in use. Differences that are left:

* Two requests may compute the same block: at once under `max_chunk`, or because the last token of a prompt is always computed
  anew. vLLM's prefix cache keeps both copies, and what either computes after it; ours knows the first. So vLLM now and then
  finds a few blocks more.
* Under `priority`, a request whose chunk is in the step is never preempted in it. vLLM does that, and then keeps blocks in
  its prefix cache that were never computed.
* Without a prefix cache's hashes (`prefix` in the instance), nothing is found again but by the preempted request itself.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.workload import Requests

__all__ = ["admit_in_order", "decode_or_preempt", "vllm", "vllm_step"]


def vllm(
    requests: Requests, config: EngineConfig, *, seed: int = 0, priority: bool = False, swap: bool = False, victim: str = ""
) -> Policy:
    """Return vLLM's scheduler.

    Args:
        requests: what is known of them.
        config: unused; the view has it.
        seed: unused.
        priority: order by (priority, arrival) instead of arrival.
        swap: let a waiting request of strictly better priority take the seat of the worst running one when all seats
            are taken; equal priorities never swap, so nobody is swapped back and forth. vLLM does not do it.
        victim: who loses its memory: "last" admitted, "worst" (priority, arrival), or "least-computed", who loses the
            least work, the later admitted among equals. By default "last", or "worst" with `priority`.

    Raises:
        ValueError: `victim` is unknown.
    """
    rule = victim or ("worst" if priority else "last")
    if rule not in VICTIMS:
        raise ValueError(f"victim = {victim!r}: must be one of {', '.join(VICTIMS)}")
    decide = partial(vllm_step, victim=rule, swap=swap and priority)
    return Policy(decide, requests.rank if priority else None)


def vllm_step(view: View, *, victim: str, swap: bool) -> Batch:
    """Fill a step: the running requests, then the waiting queue; see the head of this module."""
    batch = view.batch()
    if len(view.running) + len(view.waiting) <= 1:
        batch.max_chunk = None
    _go_on(view, batch, victim)
    if swap:
        _swap_seats(view, batch)
    if not batch.preempted or swap:
        admit_in_order(view, batch)
    if not batch.chunks and not batch.preempted:
        batch.repeat = FOREVER
    return batch


def _go_on(view: View, batch: Batch, victim: str) -> None:
    """Schedule the running requests in the order of their admission, as far as the budget goes.

    Where memory runs out, victims give way; if the request that needs it is the victim itself, nobody after it is scheduled
    under vLLM's own rules.
    """
    ready = view.ready()
    prompts_last = np.array_equal(view.running[: len(ready)], ready)
    quick = prompts_last and len(ready) <= batch.budget and batch.decode(ready)
    for i in view.partial() if quick else view.running.tolist():
        most = batch.budget  # what victims give back goes to those after
        if most <= 0:
            return
        while i not in batch.preempted and not batch.add(i, most):
            worst = _victim(view, victim, batch)
            batch.preempt(worst)
            if worst == i and victim != "least-computed":
                return


def decode_or_preempt(view: View, batch: Batch, victim: str = "last") -> None:
    """Add all decodes; where they do not all fit in memory, victims are preempted until the others do."""
    while not batch.decode(view.ready()[: batch.budget]):
        batch.preempt(_victim(view, victim, batch))


def admit_in_order(view: View, batch: Batch) -> None:
    """Admit waiting requests, head first, until one does not fit the memory, the seats or the budget."""
    while (head := view.waiting.head) is not None and batch.seats > 0 and batch.budget > 0:
        if not admissible(view, batch, head) or not batch.add(head):
            return


def admissible(view: View, batch: Batch, i: int) -> bool:
    """Whether a waiting request may be admitted under the engine's rules `admit` and `watermark`."""
    config = view.config
    blocks = view.memory[1] // config.block_size + 1  # vLLM counts the one it keeps for itself
    free = int(config.watermark * blocks) * config.block_size if len(view.running) else 0
    whole = config.admit == "prompt"
    chunk = min(batch.budget, batch.max_chunk or batch.budget)
    return (not whole and not free) or batch.fits(i, None if whole else chunk, keep_free=free)


def _last(view: View, batch: Batch) -> int:
    return int(view.running[-1])


def _worst(view: View, batch: Batch) -> int:
    rank, arrival = view.requests.rank, view.requests.arrival_s
    busy = {i for i, _, _ in batch.chunks}
    found: int = max((i for i in view.running.tolist() if i not in busy), key=lambda i: (rank[i], arrival[i]))
    return found


def _least_computed(view: View, batch: Batch) -> int:
    computed = view.progress.computed
    busy = {i for i, _, _ in batch.chunks}
    found: int = min((i for i in reversed(view.running.tolist()) if i not in busy), key=lambda i: computed[i])
    return found


VICTIMS = {"last": _last, "worst": _worst, "least-computed": _least_computed}


def _victim(view: View, rule: str, batch: Batch) -> int:
    return VICTIMS[rule](view, batch)


def _swap_seats(view: View, batch: Batch) -> None:
    """Preempt the worst running request while a strictly better one waits for a seat."""
    rank = view.requests.rank
    while batch.seats <= 0 and (head := view.waiting.head) is not None and len(view.running) > len(batch.chunks):
        worst = _worst(view, batch)
        if rank[head] >= rank[worst]:
            return
        batch.preempt(worst)
        if not batch.add(head):
            return
