"""Orders in seconds: smallest share of the machine's time first.

In seconds a request costs two things. It holds memory, and a memory of `M` tokens passes `M` token-rounds in each round,
so a volume of `v` takes `v / M` rounds, each as long as an iteration with nothing to do but decode. And it makes the
iterations it takes part in longer: by its prompt once, and by its decodes and their reads of the KV cache. The sum of
both over all requests is about the time that the whole backlog takes, so the order by it is shortest processing time
first on the machine as a whole. A short answer to a long prompt, cheap in rounds, is dear in seconds.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from opt.core.columns import FloatArray
from opt.core.cost.load import Load
from opt.core.cost.model import CostModel
from opt.core.cost.registry import cost_model
from opt.core.instance import Instance
from opt.core.model import Proposal
from opt.solvers.orders import Rule, order_by, packed

__all__ = ["COST", "MEASURED", "machine_seconds", "run_measured"]

COST = "h100-llama-3-8b"  # where none is asked for
TICKS = 10**9  # of a key in a second, so that it is an integer


def machine_seconds(instance: Instance, cost: CostModel | str | Path = COST) -> FloatArray:
    """Return each request's share of the machine's time in seconds (n,).

    Args:
        instance: the requests.
        cost: a cost model, its name in `COSTS`, or a cost file.
    """
    model = cost_model(cost)
    usual = _usual_batch(instance)
    alone = model.seconds(usual)
    rows = np.tile(np.array(usual, np.float64), (instance.n, 1))
    prompt, output = instance.prompt.astype(np.float64), instance.output.astype(np.float64)
    columns = dict(zip(Load._fields, rows.T, strict=True))
    columns["prefill_tokens"] += prompt
    columns["prefill_pairs"] += prompt * (prompt + 1) / 2
    columns["prefill_sequences"] += prompt > 0
    compute = model.seconds_of_rows(rows) - alone
    one_more = model.seconds(usual._replace(decodes=usual.decodes + 1)) - alone
    per_token = (model.seconds(usual._replace(kv_tokens=usual.kv_tokens + 1000)) - alone) / 1000
    read = instance.volume - (prompt + output)  # the k-th round reads prompt + k - 1 tokens, the first round none
    shared = instance.volume / max(instance.memory, 1) * model.seconds(Load(decodes=1))
    return shared + compute + (output - 1) * one_more + read * per_token


def _usual_batch(instance: Instance) -> Load:
    """Return a decode batch that fills the memory: as many as fit at mean size, halfway through on average."""
    if not instance.n:
        return Load(decodes=1)
    mean = float((instance.prompt + instance.output / 2).mean())
    fitting = max(int(instance.memory / max(mean, 1)), 1)
    return Load(decodes=min(fitting, instance.n), kv_tokens=min(fitting, instance.n) * mean)


MEASURED: dict[str, Callable[[Instance, CostModel | str | Path], FloatArray]] = {"svf-seconds": machine_seconds}


def run_measured(
    name: str,
    rule: Rule,
    instance: Instance,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    cost: CostModel | str | Path = COST,
    ageing: int = 0,
) -> Proposal:
    """Return the schedule of an order in seconds under a rule.

    Args:
        name: a key of `MEASURED`; the smaller its seconds, the earlier a request goes.
        rule: as in `run_order`.
        instance: the requests.
        seed, time_limit: unused; a million requests take seconds.
        cost: what an iteration takes.
        ageing: nanoseconds that a waiting request gains in every round; 0: none.
    """
    key = np.round(MEASURED[name](instance, cost) * TICKS).astype(np.int64)
    return packed(instance, order_by(instance, key, ageing=ageing), rule)
