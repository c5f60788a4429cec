"""The real engine on a small model with random weights: who gets which tokens, when, and how long iterations take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from opt.core.cost import Load
from opt.core.cost.load import batch
from opt.core.instance import Instance
from opt.plugins.small import TINY, prompt_tokens, write_model
from opt.plugins.vllm.drive import offline

__all__ = ["Served", "serve"]


@dataclass
class Served:
    """A run.

    Args:
        tokens: output tokens by request.
        latency_s: seconds from the start to a request's last token.
        busy_s: the same in processor time of this process, which other programs do not lengthen.
        finished_at: the same in iterations.
        preemptions, recomputed: of all requests, and the tokens computed again after them.
        iterations: their loads and seconds.
        deciding_s: seconds spent in the scheduler.
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    latency_s: dict[int, float] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    finished_at: dict[int, int] = field(default_factory=dict)
    preemptions: int = 0
    recomputed: int = 0
    iterations: list[tuple[Load, float]] = field(default_factory=list)
    deciding_s: float = 0.0


def serve(
    instance: Instance,
    scheduler: str | None = None,
    *,
    block_size: int = 32,
    seats: int = 16,
    budget: int = 512,
    policy: str = "fcfs",
    priority: Sequence[int] | None = None,
    hints: Sequence[int] | None = None,
    shape: Mapping[str, Any] = TINY,
    settings: Mapping[str, Any] | None = None,
) -> Served:
    """Serve a backlog with vLLM, in this process, and return what happened.

    Args:
        instance: the requests; its memory is the pool, in whole blocks.
        scheduler: the class's full name, vLLM's own by default.
        block_size, seats, budget, policy: vLLM's settings.
        priority: (n,) for the policy "priority".
        hints: (n,) expected outputs, the true ones by default.
        shape: of the model.
        settings: those of `opt.plugins.settings`.
    """
    offline()
    from vllm import LLM, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        llm = LLM(
            model=write_model(Path(folder), shape),
            load_format="dummy",
            skip_tokenizer_init=True,
            dtype="float32",
            seed=0,
            enforce_eager=True,
            block_size=block_size,
            num_gpu_blocks_override=instance.memory // block_size + 1,
            max_num_seqs=seats,
            max_num_batched_tokens=budget,
            max_model_len=min(int(shape["max_position_embeddings"]), instance.memory),
            scheduling_policy=policy,
            scheduler_cls=scheduler,
            enable_prefix_caching=False,
            disable_log_stats=True,
            additional_config={"kvopt": dict(settings)} if settings else {},
        )
        expected = instance.output.tolist() if hints is None else list(hints)
        rank = [0] * instance.n if priority is None else list(priority)
        engine = llm.llm_engine
        run = Served()
        watch(engine.engine_core.engine_core.scheduler, run)
        for i, output in enumerate(instance.output.tolist()):
            params = SamplingParams(
                max_tokens=output, ignore_eos=True, temperature=0, detokenize=False, extra_args={"kvopt_output": expected[i]}
            )
            engine.add_request(str(i), {"prompt_token_ids": prompt_tokens(instance, i)}, params, priority=rank[i])
        _work(engine, run)
        engine.engine_core.shutdown()
    return run


def _work(engine: Any, run: Served) -> None:
    """Run the engine until nothing is left."""
    begun, busy = time.perf_counter(), time.process_time()
    while engine.has_unfinished_requests():
        since = time.perf_counter()
        outputs = engine.step()
        now = time.perf_counter()
        load, _ = run.iterations[-1]
        run.iterations[-1] = (load, now - since)
        for output in outputs:
            if output.finished:
                i = int(output.request_id.partition("-")[0])
                run.tokens[i] = list(output.outputs[0].token_ids)
                run.latency_s[i] = now - begun
                run.busy_s[i] = time.process_time() - busy
                run.finished_at[i] = len(run.iterations)
    run.iterations = [(load, seconds) for load, seconds in run.iterations if load.prefill_tokens or load.decodes]


def watch(scheduler: Any, run: Served) -> None:
    """Note every step of a scheduler: its load, what it computes again, and the time it takes to decide."""
    schedule, update = scheduler.schedule, scheduler.update_from_output
    reached: dict[str, int] = {}

    def decide(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        before = {name: request.num_preemptions for name, request in scheduler.requests.items()}
        decided = schedule(*args, **kwargs)
        run.deciding_s += time.perf_counter() - begun
        run.preemptions += sum(scheduler.requests[name].num_preemptions - count for name, count in before.items())
        chunks, lengths = [], []
        for name, size in decided.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            context = request.num_computed_tokens - size
            run.recomputed += max(0, min(reached.get(name, 0), context + size) - context)
            reached[name] = max(reached.get(name, 0), context + size)
            if size == 1 and context >= request.num_prompt_tokens:
                lengths.append(context + 1)
            else:
                chunks.append((size, context))
        run.iterations.append((batch(chunks, lengths), 0.0))
        return decided

    def follow(*args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        found = update(*args, **kwargs)
        run.deciding_s += time.perf_counter() - begun
        return found

    scheduler.schedule, scheduler.update_from_output = decide, follow
