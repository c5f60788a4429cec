"""vLLM's real scheduler without a model: made-up outputs, real decisions. For tests, and to measure what deciding costs.

A request's tokens are the same whoever runs it: prompts come from the chunk hashes of an instance, outputs are unique to the
request, so that exactly what shares a hash shares blocks.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opt.core.instance import Instance
from opt.plugins.small import TINY, VOCABULARY, prompt_tokens, write_model

__all__ = ["Step", "build", "offline", "requests_of", "run"]


def offline() -> None:
    """Set what vLLM reads from the environment when it is imported: no downloads, no reports, one thread."""
    wanted = {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": "0",
        "OMP_NUM_THREADS": "1",
    }
    for name, value in wanted.items():
        os.environ.setdefault(name, value)


@dataclass(frozen=True)
class Step:
    """What a step did, by request number.

    Args:
        tokens: tokens computed.
        preempted: who lost its memory in it, in order.
        finished: who ended with it.
        cached: tokens that those admitted found in the prefix cache.
        used: blocks in use when it was decided.
    """

    tokens: dict[int, int] = field(default_factory=dict)
    preempted: list[int] = field(default_factory=list)
    finished: list[int] = field(default_factory=list)
    cached: dict[int, int] = field(default_factory=dict)
    used: int = 0


def build(
    scheduler: Callable[..., Any] | None = None,
    *,
    blocks: int,
    block_size: int = 16,
    budget: int = 512,
    seats: int = 16,
    max_chunk: int = 0,
    policy: str = "fcfs",
    prefix_cache: bool = True,
    whole_prompt: bool = True,
    watermark: float = 0.0,
    settings: Mapping[str, Any] | None = None,
) -> Any:
    """Return a scheduler that has all it needs but a model.

    Args:
        scheduler: its class; vLLM's own by default.
        blocks: usable ones.
        block_size, budget, seats, max_chunk, policy, prefix_cache, whole_prompt, watermark: as in vLLM's configuration.
        settings: those of `opt.plugins.settings`.
    """
    offline()
    import torch
    from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
    from vllm.v1.structured_output import StructuredOutputManager

    longest = int(TINY["max_position_embeddings"])
    with tempfile.TemporaryDirectory() as folder:
        model = ModelConfig(
            model=write_model(Path(folder)), skip_tokenizer_init=True, dtype="float32", seed=0, max_model_len=longest
        )
        config = VllmConfig(
            model_config=model,
            scheduler_config=SchedulerConfig(
                max_num_seqs=seats,
                max_num_batched_tokens=budget,
                max_model_len=longest,
                is_encoder_decoder=False,
                enable_chunked_prefill=True,
                long_prefill_token_threshold=max_chunk,
                policy=policy,
                scheduler_reserve_full_isl=whole_prompt,
                watermark=watermark,
                async_scheduling=False,
            ),
            cache_config=CacheConfig(block_size=block_size, enable_prefix_caching=prefix_cache),
            additional_config={"kvopt": dict(settings)} if settings else {},
        )
        manager = StructuredOutputManager(config)
    config.cache_config.num_gpu_blocks = blocks + 1
    group = KVCacheGroupSpec(
        ["layer"], FullAttentionSpec(block_size=block_size, num_kv_heads=1, head_size=1, dtype=torch.float32)
    )
    return (scheduler or Scheduler)(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(num_blocks=blocks + 1, kv_cache_tensors=[], kv_cache_groups=[group]),
        block_size=block_size,
        structured_output_manager=manager,
        log_stats=False,
    )


def requests_of(instance: Instance, block_size: int = 16, *, hints: Sequence[int] | None = None) -> list[Any]:
    """Return an instance's requests as vLLM's, with their index as id.

    Args:
        instance: it; arrivals stand in the order of the index among equals.
        block_size: of the scheduler they go to.
        hints: expected outputs, the true ones by default.
    """
    from vllm.sampling_params import SamplingParams
    from vllm.utils.hashing import sha256
    from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
    from vllm.v1.request import Request

    init_none_hash(sha256)
    hasher = get_request_block_hasher(block_size, sha256)
    expected = instance.output.tolist() if hints is None else list(hints)
    begun = time.time()  # a step is a millisecond on the requests' clock: only their order counts
    rank = [0] * instance.n if instance.priority is None else instance.priority.tolist()
    return [
        Request(
            f"{i:09d}",
            prompt_tokens(instance, i),
            SamplingParams(max_tokens=output, ignore_eos=True, extra_args={"kvopt_output": expected[i]}),
            None,
            arrival_time=begun + arrival / 1000,
            priority=rank[i],
            block_hasher=hasher,
        )
        for i, (output, arrival) in enumerate(zip(instance.output.tolist(), instance.arrival.tolist(), strict=True))
    ]


def run(
    scheduler: Any,
    instance: Instance,
    *,
    hints: Sequence[int] | None = None,
    most: int = 10**6,
    watch: Callable[[Any], None] | None = None,
) -> list[Step]:
    """Return every step that a scheduler takes until all requests have their outputs.

    Requests arrive by `instance.arrival`, in steps; a step with nothing to do is not one.

    Args:
        scheduler: of `build`.
        instance: the requests.
        hints: expected outputs, the true ones by default.
        most: steps.
        watch: called with the scheduler before every step.
    """
    from vllm.v1.outputs import ModelRunnerOutput

    coming = sorted(
        zip(instance.arrival.tolist(), range(instance.n), requests_of(instance, scheduler.block_size, hints=hints), strict=True)
    )
    coming.reverse()
    steps: list[Step] = []
    now = 0
    while (coming or scheduler.has_unfinished_requests()) and len(steps) < most:
        if not scheduler.has_unfinished_requests():
            now = max(now, coming[-1][0])
        while coming and coming[-1][0] <= now:
            scheduler.add_request(coming.pop()[2])
        if watch is not None:
            watch(scheduler)
        before = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        computed = {name: request.num_computed_tokens for name, request in scheduler.requests.items()}
        decided = scheduler.schedule()
        order = list(decided.num_scheduled_tokens)
        preempted = [name for name, count in before.items() if scheduler.requests[name].num_preemptions > count]
        cached = {
            int(name): scheduler.requests[name].num_computed_tokens - decided.num_scheduled_tokens[name]
            for name in order
            if computed[name] == 0 or name in preempted
        }
        used = scheduler.kv_cache_config.num_blocks - 1 - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        sampled = [[] if scheduler.requests[name].is_prefill_chunk else [_token(scheduler.requests[name])] for name in order]
        scheduler.update_from_output(decided, ModelRunnerOutput(order, {name: k for k, name in enumerate(order)}, sampled))
        finished = sorted(int(name) for name in order if name not in scheduler.requests)
        tokens = {int(name): count for name, count in decided.num_scheduled_tokens.items()}
        steps.append(Step(tokens, sorted(map(int, preempted)), finished, cached, used))
        now += 1
    return steps


def _token(request: Any) -> int:
    """Return a made-up token that, with those before it, no other request has."""
    number = int(request.request_id)
    made = request.num_output_tokens
    return int((number // VOCABULARY**made) % VOCABULARY) if made < 3 else 0
