"""SGLang itself on a small model with random weights, on a CPU, with its own processes and our plug-in as users have it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from opt.core.cost.load import Load
from opt.core.instance import Instance
from opt.plugins.sglang import HINT, LOG, ORDER
from opt.plugins.sglang.record import TARGET, Recorder
from opt.plugins.sglang.trees import importable
from opt.plugins.small import TINY, prompt_tokens, write_model

__all__ = ["Served", "main", "prepare", "serve"]

# SGLang starts its scheduler in a new process, which imports this script again, though not as `__main__`.
SCRIPT = """
import sys
from opt.plugins.sglang.serve import main, prepare

prepare(sys.argv[1])
if __name__ == "__main__":
    main(sys.argv[1])
"""
ALONE = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "SGLANG_RUST_BUILD_MODE": "never"}
ENDLESS = 2**30  # a token that no model makes
TASK, STEPS, ANSWERS = "task.json", "steps.jsonl", "answers.json"


@dataclass(frozen=True)
class Served:
    """A backlog that was served.

    Args:
        tokens: (n,) the output tokens of every request.
        latency_s: (n,) seconds from the start to its last token, as SGLang reports them.
        busy_s: (n,) the same in processor time of the scheduler's process, which other programs do not lengthen.
        finished_at: (n,) the iteration that made its last token, counted from 1.
        retractions: how often a request lost its memory.
        cached: (n,) tokens of its prompt that it found in the prefix cache.
        iterations: their loads and seconds.
        busy_iterations: the same in processor time of the scheduler's process.
    """

    tokens: list[list[int]]
    latency_s: list[float]
    busy_s: list[float]
    finished_at: list[int]
    retractions: int
    cached: list[int]
    iterations: list[tuple[Load, float]]
    busy_iterations: list[tuple[Load, float]]


def serve(
    backlogs: Sequence[Instance],
    order: str = "",
    *,
    hints: Sequence[Sequence[int]] | None = None,
    policy: str = "fcfs",
    seats: int = 16,
    budget: int = 512,
    prefix_cache: bool = True,
    overlap: bool = True,
    shape: Mapping[str, Any] = TINY,
    log: str = "",
    limit_s: float = 600,
) -> list[Served]:
    """Start SGLang, let it serve backlogs one after another, and return what happened to each.

    Each arrives as one batch, and the prefix cache is emptied after it. Outputs are as long as the instance says, which is
    their limit: no token ends them, and they do not ask SGLang to ignore one, since it admits such requests differently.

    Args:
        backlogs: the requests; the pool has the memory of the first.
        order: ours, as in `KVOPT_SGLANG_ORDER`; none leaves SGLang as it is.
        hints: for each backlog, (n,) expected outputs; the true ones by default.
        policy, seats, budget: SGLang's `schedule_policy`, `max_running_requests`, `chunked_prefill_size`.
        prefix_cache: whether prefixes are kept.
        overlap: whether SGLang prepares a step before it has the results of the one before, as it does by default.
        shape: of the model.
        log: a file for the iteration log, as in `KVOPT_SGLANG_LOG`.
        limit_s: seconds after which it is given up.

    Raises:
        RuntimeError: SGLang ended without answers; with its last words.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = {
            "model_path": write_model(folder / "model", {**shape, "eos_token_id": ENDLESS}),
            "max_total_tokens": backlogs[0].memory,
            "max_running_requests": seats,
            "chunked_prefill_size": budget,
            "schedule_policy": policy,
            "disable_radix_cache": not prefix_cache,
            "disable_overlap_schedule": not overlap,
        }
        told = [instance.output.tolist() for instance in backlogs] if hints is None else [list(row) for row in hints]
        first = backlogs[0].take(range(min(8, backlogs[0].n)))
        runs = [_requests(*run) for run in [(first, told[0][: first.n]), *zip(backlogs, told, strict=True)]]
        (folder / TASK).write_text(json.dumps({"engine": engine, "runs": runs}))
        script = folder / "served.py"
        script.write_text(SCRIPT)
        settings = {ORDER: order, LOG: log}
        done = subprocess.run(
            [sys.executable, str(script), name],
            env=os.environ | ALONE | settings,
            capture_output=True,
            text=True,
            timeout=limit_s,
            check=False,
        )
        if not (folder / ANSWERS).exists():
            raise RuntimeError(f"SGLang ended without answers:\n{(done.stderr + done.stdout)[-2000:]}")
        answers = json.loads((folder / ANSWERS).read_text())
        steps = [json.loads(line) for line in (folder / STEPS).read_text().splitlines()]
    return [_served(run, k, steps) for k, run in enumerate(answers) if k]  # the first one warms up


def _requests(instance: Instance, hints: list[int]) -> dict[str, Any]:
    return {
        "input_ids": [prompt_tokens(instance, i) for i in range(instance.n)],
        "sampling_params": [
            {"max_new_tokens": output, "temperature": 0, "custom_params": {HINT: hint}}
            for output, hint in zip(instance.output.tolist(), hints, strict=True)
        ],
    }


def _served(answers: list[dict[str, Any]], run: int, steps: list[dict[str, Any]]) -> Served:
    """Put together what SGLang answered and what its scheduler wrote down."""
    names = [f"{run}-{i}" for i in range(len(answers))]
    ends = {name: at for at, step in reversed(list(enumerate(steps))) for name in step["finished"]}
    first = 1 + max((at for name, at in ends.items() if int(name.partition("-")[0]) < run), default=-1)
    mine = steps[first : max(ends[name] for name in names) + 1]
    stamps = [step["busy"] for step in mine]
    begun = stamps[0] - mine[0]["seconds"]  # SGLang's process is busy while it waits for work, too
    return Served(
        [answer["output_ids"] for answer in answers],
        [answer["meta_info"]["e2e_latency"] for answer in answers],
        [steps[ends[name]]["busy"] - begun for name in names],
        [ends[name] - first + 1 for name in names],
        sum(answer["meta_info"]["num_retractions"] for answer in answers),
        [answer["meta_info"]["cached_tokens"] for answer in answers],
        [(Load(*step["load"]), step["seconds"]) for step in mine],
        [(Load(*step["load"]), step["busy"] - before) for step, before in zip(mine, [begun, *stamps[:-1]], strict=True)],
    )


def prepare(folder: str) -> None:
    """Let SGLang be imported, and have its scheduler write down every step; done in each of its processes."""
    importable()
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def write(load: Load, seconds: float, requests: list[Any]) -> None:
        finished = [request.rid for request in requests if request.finished()]
        row = {"load": list(load), "seconds": seconds, "busy": time.process_time(), "finished": finished}
        with (Path(folder) / STEPS).open("a") as out:
            out.write(json.dumps(row) + "\n")

    HookRegistry.register(TARGET, Recorder(write), HookType.AROUND)


def main(folder: str) -> None:
    """Start SGLang with the task in a folder, and write its answers there."""
    from sglang.srt.entrypoints.engine import Engine

    task = json.loads((Path(folder) / TASK).read_text())
    engine = Engine(
        **task["engine"],
        load_format="dummy",
        skip_tokenizer_init=True,
        device="cpu",
        attention_backend="torch_native",
        dtype="float32",
        random_seed=0,
        disable_cuda_graph=True,
        log_level="error",
    )
    answers = []
    for k, run in enumerate(task["runs"]):
        answers.append(engine.generate(**run, rid=[f"{k}-{i}" for i in range(len(run["input_ids"]))]))
        while not engine.flush_cache().success:  # refused until the last batch has left
            time.sleep(0.01)
    (Path(folder) / ANSWERS).write_text(json.dumps(answers))
    engine.shutdown()
