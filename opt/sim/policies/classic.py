"""Three published schedulers: Sarathi-Serve's stall-free batching, Orca's iteration-level batching, static batching."""

from __future__ import annotations

from functools import partial

from opt.core.columns import IntArray
from opt.sim.batch import FOREVER, Batch, View
from opt.sim.config import EngineConfig
from opt.sim.engine import Policy
from opt.sim.policies.orders import add_partial, require_announced
from opt.sim.policies.vllm import decode_or_preempt, vllm_step
from opt.sim.workload import Requests

__all__ = ["orca", "sarathi", "static"]


def sarathi(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return Sarathi-Serve (arXiv 2403.02310): all decodes, then unfinished prompts, then new ones, in one token budget.

    The budget is the engine's `token_budget`: 512 for strict latency targets, the default here, 2048 for relaxed ones.
    """
    return Policy(partial(vllm_step, victim="last", swap=False))


def orca(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return Orca (OSDI 2022): at every iteration, by arrival, whoever's whole life has room; prompts are not cut.

    Memory for prompt and announced output is set aside at admission, so nobody is preempted unless it outgrows what was
    announced.
    """
    require_announced(requests, "orca")
    return Policy(_orca)


def _orca(view: View) -> Batch:
    batch = view.batch()
    decode_or_preempt(view, batch)
    add_partial(view, batch)
    _admit_reserved(view, batch)
    return _end(batch)


def static(requests: Requests, config: EngineConfig, *, seed: int = 0) -> Policy:
    """Return static batching: a batch is filled by arrival, with room for every whole life, and runs until all are done."""
    require_announced(requests, "static")
    return Policy(_static)


def _static(view: View) -> Batch:
    batch = view.batch()
    decode_or_preempt(view, batch)
    add_partial(view, batch)
    if not len(view.running):
        _admit_reserved(view, batch)
    return _end(batch)


def _admit_reserved(view: View, batch: Batch) -> None:
    """Admit by arrival while the peaks of all who run fit together."""
    block, (_, memory) = view.config.block_size, view.memory
    reserved = int(_peaks(view, view.running, block).sum())
    while (head := view.waiting.head) is not None:
        peak = int(_peaks(view, head, block))
        if (reserved + peak > memory and len(view.running)) or not batch.add(head):
            return
        reserved += peak


def _peaks(view: View, who: IntArray | int, block: int) -> IntArray:
    """Return the most tokens each may hold, in whole blocks; someone longer than announced counts with what it has."""
    requests, progress = view.requests, view.progress
    longest = requests.prompt[who] + requests.expected[who].clip(progress.produced[who] + 1)
    peaks: IntArray = -(-longest // block) * block
    return peaks


def _end(batch: Batch) -> Batch:
    if not batch.chunks and not batch.preempted:
        batch.repeat = FOREVER
    return batch
