"""What every iteration of a running SGLang did and how long it took: the log that `kvopt fit` reads."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from opt.core.cost.load import Load, batch

__all__ = ["TARGET", "Recorder", "log_to"]

TARGET = "sglang.srt.managers.scheduler.Scheduler.process_batch_result"


class Recorder:
    """Hears of every batch when its results are there.

    An iteration lasts from the end of the one before to its own; after an idle gap, from its own launch. This holds whether
    or not SGLang prepares the next batch meanwhile. Batches that make several tokens for a request (speculation) and those
    that only move memory are left out.

    Args:
        write: takes the load, the seconds, and the requests of the batch.
        now: SGLang's own clock.
    """

    def __init__(self, write: Callable[[Load, float, list[Any]], None], now: Callable[[], float] = time.monotonic) -> None:
        self._write, self._now = write, now
        self._ended: float | None = None

    def __call__(self, original: Callable[..., Any], scheduler: Any, work: Any, *args: Any, **kwargs: Any) -> Any:
        """Let SGLang take a batch's results in, then write the batch down."""
        load = load_of(work)
        found = original(scheduler, work, *args, **kwargs)
        ended = self._now()
        begun = work.launch_ts if work.after_idle_gap or self._ended is None else self._ended
        self._ended = ended
        if load is not None:
            self._write(load, ended - begun, work.reqs)
        return found


def load_of(work: Any) -> Load | None:
    """Return the load of one of SGLang's batches, None for kinds that do not belong in a log."""
    speculates = work.spec_algorithm is not None and not work.spec_algorithm.is_none()
    if speculates or work.forward_mode.name not in ("DECODE", "EXTEND", "MIXED"):
        return None
    if work.forward_mode.name == "DECODE":
        return batch(lengths=work.seq_lens_cpu.tolist())
    rows = list(zip(work.extend_lens, work.prefix_lens, strict=True))
    chunks = rows[: len(rows) - len(work.decoding_reqs or ())]  # decodes of a mixed batch stand at its end
    return batch(chunks, [size + before for size, before in rows[len(chunks) :]])


def log_to(path: str) -> Recorder:
    """Return a recorder that appends to a log of iterations; the file begins with the first of them.

    Only one scheduler of an engine writes, the others of a tensor-parallel group run the same batches.
    """
    from opt.fit.log import LOG_FORMAT

    head = {"format": LOG_FORMAT, "machine": {"host": platform.machine()}, "origin": {"source": "SGLang"}}

    def write(load: Load, seconds: float, _: list[Any]) -> None:
        from sglang.srt.runtime_context import get_parallel

        parallel = get_parallel()
        if parallel.tp_rank or parallel.pp_rank or (parallel.dp_rank or 0):
            return
        file = Path(path)
        cells = {name: value for name, value in load._asdict().items() if value} | {"seconds": seconds}
        lines = [cells] if file.exists() and file.stat().st_size else [head, cells]
        with file.open("a") as out:
            out.writelines(json.dumps(line, allow_nan=False) + "\n" for line in lines)

    return Recorder(write)
