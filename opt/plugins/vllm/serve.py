"""The real engine on a small model with random weights: who gets which tokens, when, and how long iterations take."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

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
        latency_s: seconds from a request's arrival to its last token.
        busy_s: processor time of this process, which other programs do not lengthen, from the start to the last token.
        finished_at: the same in iterations.
        token_s: when each of a request's tokens came, in seconds from its arrival.
        preemptions, recomputed: of all requests, and the tokens computed again after them.
        iterations: their loads and seconds.
        deciding_s: seconds spent in the scheduler.
    """

    tokens: dict[int, list[int]] = field(default_factory=dict)
    latency_s: dict[int, float] = field(default_factory=dict)
    busy_s: dict[int, float] = field(default_factory=dict)
    finished_at: dict[int, int] = field(default_factory=dict)
    token_s: dict[int, list[float]] = field(default_factory=dict)
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
    processor: bool = False,
) -> Served:
    """Serve requests with vLLM, in this process, and return what happened.

    Args:
        instance: the requests; its memory is the pool, in whole blocks. Arrivals in seconds are kept; otherwise all are there
            at the start. Its targets `tpot_s` go to the scheduler; its prefix hashes switch the prefix cache on.
        scheduler: the class's full name, vLLM's own by default.
        block_size, seats, budget, policy: vLLM's settings.
        priority: (n,) for the policy "priority".
        hints: (n,) expected outputs, the true ones by default.
        shape: of the model.
        settings: those of `opt.plugins.settings`.
        processor: let all clocks, the scheduler's too, show this process's processor time, which other programs do not
            lengthen; it jumps to the next arrival when there is nothing to do.
    """
    offline()
    from vllm import LLM

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
            enable_prefix_caching=instance.prefix_ids is not None,
            disable_log_stats=True,
            additional_config={"kvopt": dict(settings)} if settings else {},
        )
        engine = llm.llm_engine
        run = Served()
        made = engine.engine_core.engine_core.scheduler
        watch(made, run)
        clock = Clock(time.process_time if processor else time.perf_counter)
        if hasattr(made, "now"):
            made.now = clock.now
        _work(engine, _coming(instance, hints, priority), run, clock)
        engine.engine_core.shutdown()
    return run


class Clock:
    """Seconds since it was made, by another clock; it can be put forward."""

    def __init__(self, source: Callable[[], float]) -> None:
        self._source, self._begun = source, source()

    def now(self) -> float:
        """Return the seconds."""
        return self._source() - self._begun

    def wait_until(self, time_s: float) -> None:
        """Sleep, or put a clock forward that stands still meanwhile."""
        left = time_s - self.now()
        if left > 0 and self._source is time.process_time:
            self._begun -= left
        elif left > 0:
            time.sleep(left)


Coming: TypeAlias = list[tuple[float, int, Callable[[Any], None]]]  # arrival, request, what adds it to an engine


def _coming(instance: Instance, hints: Sequence[int] | None, priority: Sequence[int] | None) -> Coming:
    """Return the requests, the last to arrive first."""
    from vllm import SamplingParams

    expected = instance.output.tolist() if hints is None else list(hints)
    rank = [0] * instance.n if priority is None else list(priority)
    arrival = [0.0] * instance.n if instance.arrival_s is None else instance.arrival_s.tolist()

    def adder(i: int) -> Callable[[Any], None]:
        extra: dict[str, Any] = {"kvopt_output": expected[i]}
        if instance.tpot_s is not None:
            extra["kvopt_tpot_s"] = float(instance.tpot_s[i])
        output = int(instance.output[i])
        params = SamplingParams(max_tokens=output, ignore_eos=True, temperature=0, detokenize=False, extra_args=extra)
        prompt = {"prompt_token_ids": prompt_tokens(instance, i)}
        return lambda engine: engine.add_request(str(i), prompt, params, priority=rank[i])

    return sorted(((arrival[i], i, adder(i)) for i in range(instance.n)), key=lambda entry: entry[:2], reverse=True)


def _work(engine: Any, coming: Coming, run: Served, clock: Clock) -> None:
    """Run the engine until nothing is left."""
    busy = time.process_time()
    arrived: dict[int, float] = {}
    while coming or engine.has_unfinished_requests():
        if not engine.has_unfinished_requests():
            clock.wait_until(coming[-1][0])
        while coming and coming[-1][0] <= clock.now():
            arrival, i, add = coming.pop()
            arrived[i] = arrival
            add(engine)
        since = clock.now()
        outputs = engine.step()
        now = clock.now()
        load, _ = run.iterations[-1]
        run.iterations[-1] = (load, now - since)
        for output in outputs:
            i = int(output.request_id.partition("-")[0])
            seen = run.token_s.setdefault(i, [])
            seen += [now - arrived[i]] * (len(output.outputs[0].token_ids) - len(seen))
            if output.finished:
                run.tokens[i] = list(output.outputs[0].token_ids)
                run.latency_s[i] = now - arrived[i]
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
