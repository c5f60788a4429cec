"""kvopt's orders in SGLang, through SGLang's own plug-in registry.

Once kvopt is installed beside SGLang, its entry point is found by itself; it does nothing unless the environment says which
order the waiting queue has, or where an iteration log goes:

    KVOPT_SGLANG_ORDER=svf python -m sglang.launch_server --model-path M
    KVOPT_SGLANG_LOG=log.jsonl python -m sglang.launch_server --model-path M      # for `kvopt fit log.jsonl -o mine.json`

Orders: `svf` (smallest volume), `sof` or `mc-sf` (shortest expected output), `total-size`, `lof`, `best-fit`, `random`, and
`fcfs`; without the variable SGLang's own `--schedule-policy` holds. Expected outputs: the hint `kvopt_output` in the request's
`custom_params` (a field of OpenAI-style requests, and of sampling parameters), else its limit `max_new_tokens`. Who has
waited longer than `KVOPT_SGLANG_PATIENCE_S` (120) goes first. Admission stays SGLang's: it sets aside a share of the outputs
to come by itself, and all of them for requests that ignore the end of sequence.

Tested with SGLang 0.5.23; with other versions, and with wrong values, SGLang ends at the start with one line that says why.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Callable, Mapping
from typing import Any

from opt.plugins.keys import NAMES, key_of
from opt.plugins.lengths import Lengths, as_length
from opt.plugins.sglang import record
from opt.plugins.versions import require
from opt.solvers.orders import KEYS

__all__ = ["BELOW", "LOWEST", "TARGET", "Reorder", "register"]

LOWEST, BELOW = "0.5.23", "0.5.24"
TARGET = "sglang.srt.managers.schedule_policy.SchedulePolicy.calc_priority"
HINT, ORDER, PATIENCE, LOG = "kvopt_output", "KVOPT_SGLANG_ORDER", "KVOPT_SGLANG_PATIENCE_S", "KVOPT_SGLANG_LOG"


def register() -> None:
    """Hook into SGLang what the environment asks for; nothing if it asks for nothing.

    Raises:
        SystemExit: another SGLang than those tested, an unknown order, or a patience that is no time. SGLang only logs
            other exceptions of a plug-in, and would serve on in its own order as if nothing had been asked for.
    """
    order, log = os.environ.get(ORDER, ""), os.environ.get(LOG, "")
    if not order and not log:
        return
    try:
        _hook(order, log)
    except (ImportError, ValueError) as error:
        raise SystemExit(f"kvopt: {error}") from None


def _hook(order: str, log: str) -> None:
    require("SGLang", ("sglang",), LOWEST, BELOW, f"pip install sglang=={LOWEST}")
    hooks: dict[str, Callable[..., Any]] = {}
    if order:
        hooks[TARGET] = Reorder(order, _patience(os.environ.get(PATIENCE, "120")))
    if log:
        hooks[record.TARGET] = record.log_to(log)
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    for target, hook in hooks.items():
        HookRegistry.register(target, hook, HookType.AROUND)


def _patience(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not seconds > 0:
        raise ValueError(f"{PATIENCE} = {text!r}: must be a number of seconds above 0")
    return seconds


class Reorder:
    """Sorts SGLang's waiting queue after SGLang has.

    Args:
        order: a name in `opt.solvers.orders.KEYS`, or another name of one (`opt.plugins.keys.NAMES`).
        patience_s: who has been seen waiting for longer goes first, the one seen first before the others.
        now: a clock in seconds.

    Raises:
        ValueError: the order is unknown.
    """

    def __init__(self, order: str, patience_s: float = 120.0, now: Callable[[], float] = time.monotonic) -> None:
        if NAMES.get(order, order) not in KEYS:
            raise ValueError(f"{ORDER} = {order!r}: must be one of {', '.join([*KEYS, *NAMES])}")
        self._order, self._patience_s, self._now = order, patience_s, now
        self._lengths = Lengths(None)
        self._seen: dict[str, tuple[float, int, int]] = {}  # first seen, tokens made then, key

    def __call__(self, original: Callable[..., Any], policy: Any, waiting_queue: list[Any], *args: Any, **kwargs: Any) -> Any:
        """Let SGLang match prefixes and sort, then sort by the order; ties stay as SGLang has them."""
        found = original(policy, waiting_queue, *args, **kwargs)
        now = self._now()
        seen = {request.rid: self._entry(request, now) for request in waiting_queue}
        self._seen = seen
        late = now - self._patience_s
        waiting_queue.sort(key=lambda request: _place(seen[request.rid], late))
        return found

    def _entry(self, request: Any, now: float) -> tuple[float, int, int]:
        made = len(request.output_ids)
        known = self._seen.get(request.rid)
        if known is not None and known[1] == made:
            return known
        hint = _hint(request.sampling_params)
        total = self._lengths.total(hint, int(request.sampling_params.max_new_tokens), made)
        seed = zlib.crc32(str(request.rid).encode())  # for `random`: of its own for each request, the same in every process
        key = key_of(self._order, len(request.origin_input_ids) + made, total - made, seed)
        return (now if known is None else known[0], made, key)


def _hint(params: Any) -> int | None:
    custom = getattr(params, "custom_params", None)
    return as_length(custom.get(HINT)) if isinstance(custom, Mapping) else None


def _place(entry: tuple[float, int, int], late: float) -> tuple[bool, float]:
    """Return where a request stands: the overdue by when they were first seen, then the others by key."""
    first, _, key = entry
    return (False, first) if first < late else (True, float(key))
