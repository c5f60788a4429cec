"""Cells of the suite `deflect`: bursty workloads at a load, on clusters of equal or unequal nodes.

Load is prompt work over what the prefill nodes alone can do, so a load above 1 needs deflection, or waits. Arrivals keep the
bursts of their workload; only time is stretched. Where `KVOPT_DATA` names the public data, traces are among the workloads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from opt.core.columns import FloatArray
from opt.core.errors import InstanceError
from opt.core.instance import Instance

if TYPE_CHECKING:
    from opt.serve.cluster.pools import Role

__all__ = ["A100", "BUDGET", "MEMORY", "TRACES", "TWO", "WORKLOADS", "Workload", "cluster", "requests_of", "traces"]

A100, H100 = "a100-llama-3-8b", "h100-llama-3-8b"
BUDGET = 4096  # tokens of a step on prefill nodes, and at most on decode nodes
MEMORY = 400_000
REQUESTS = 400
REFERENCE = 4096  # tokens by which the speed of a node is measured
TWO = "2P2D"
SIZES = {TWO: (2, 2), "4P4D": (4, 4)}


@dataclass(frozen=True)
class Workload:
    """A family of instances, its targets, and the variation of gaps where the family has no arrivals of its own."""

    family: str
    ttft_s: float
    itl_s: float
    gap_cv: float = 4.0


WORKLOADS: dict[str, Workload] = {
    "code": Workload("code", 2.0, 0.1),
    "code, strict": Workload("code", 1.0, 0.05),
    "conversation": Workload("conversation", 1.0, 0.1),
    "tenants": Workload("tenants", 1.0, 0.05),
    "agent": Workload("agent", 2.0, 0.1),
    "chat": Workload("chat", 0.25, 0.05),
    "chat and 16K": Workload("long mix", 3.0, 0.1),
    "reasoning": Workload("reasoning", 2.0, 0.1),
}
TRACES: dict[str, Workload] = {
    "Azure code": Workload("azure", 2.0, 0.1),
    "Mooncake": Workload("mooncake", 8.0, 0.1),
}
FILES = {"azure": "azure/AzureLLMInferenceTrace_code.csv.gz", "mooncake": "mooncake/conversation_trace.jsonl.gz"}
FIRST = 2000  # requests of a trace before the first one of seed 0


def requests_of(name: str, load: float, seed: int, speed: float, requests: int = REQUESTS) -> Instance:
    """Return a cell's requests: `load` times what prefill nodes of this speed (prompts like the A100's a second) can do."""
    from instances import FAMILIES

    workload = {**WORKLOADS, **TRACES}[name]
    rng = np.random.default_rng([seed, 7])
    if workload.family == "long mix":
        long = rng.random(requests) < 0.15
        prompt = np.where(
            long, rng.integers(4096, 16_385, requests), rng.lognormal(5.5, 1.0, requests).astype(np.int64).clip(8, 4000)
        )
        base = Instance(MEMORY, prompt, rng.lognormal(4.9, 0.8, requests).astype(np.int64).clip(4, 1000))
    elif name in TRACES:
        base = _window(workload.family, seed, requests)
    else:
        base = FAMILIES[workload.family].build(requests, MEMORY, seed)
    arrival = base.arrival_s
    if arrival is None:
        arrival = np.cumsum(rng.gamma(1 / workload.gap_cv**2, workload.gap_cv**2, requests))
    arrival = arrival - arrival[0]
    work = float(_alone_s(base).sum())
    arrival = arrival * (work / speed / load / arrival[-1])
    changes = {"ttft_s": np.full(requests, workload.ttft_s), "itl_s": np.full(requests, workload.itl_s)}
    return base.replace(arrival=None, arrival_s=arrival, **changes)


def _window(form: str, seed: int, requests: int) -> Instance:
    """Return successive requests of a public trace, others for every seed."""
    from opt.core.traces import read_trace
    from opt.fit.recipes import data_folder

    first = FIRST + seed * requests
    whole = read_trace(str(data_folder() / FILES[form]), form, memory=MEMORY, limit=first + requests)
    return whole.take(np.arange(first, first + requests))


def traces() -> list[str]:
    """Return the public traces, none where there is no folder of public data."""
    from opt.fit.recipes import data_folder

    try:
        folder = data_folder()
    except InstanceError:
        return []
    return [name for name, workload in TRACES.items() if (folder / FILES[workload.family]).exists()]


def _alone_s(instance: Instance) -> FloatArray:
    """Return (n,) the seconds of each prompt alone on an A100, nothing cached."""
    from opt.core.cost import cost_model
    from opt.serve.cluster.kernels import alone_s

    spent: FloatArray = alone_s(cost_model(A100).coefficients, np.zeros(2), instance.prompt, BUDGET)
    return spent


def cluster(kind: str, size: str) -> tuple[Any, float]:
    """Return a cluster, and how many A100 its prefill nodes are worth.

    Of heterogeneous nodes the first prefill node and the last decode node are H100, and A100 decode nodes have a fifth of
    the memory.
    """
    from opt.core.cost import cost_model
    from opt.serve.cluster import Node, Pools
    from opt.sim.config import EngineConfig

    slow, fast = cost_model(A100), cost_model(H100)
    config = EngineConfig(token_budget=BUDGET)
    prefill, decode = SIZES[size]
    nodes = []
    counts: tuple[tuple[Role, int], ...] = (("prefill", prefill), ("decode", decode))
    for role, count in counts:
        for k in range(count):
            quick = kind == "heterogeneous" and k == (0 if role == "prefill" else count - 1)
            small = kind == "heterogeneous" and role == "decode" and not quick
            mine = config.replace(name=f"{role}{k}", kv_tokens=(slow.memory or MEMORY) // 5 if small else None)
            nodes.append(Node(f"{role}{k}", role, fast if quick else slow, mine))
    pools = Pools(tuple(nodes), name=f"{kind} {size}")
    whole = Instance(MEMORY, [REFERENCE], [1])
    quicker = float(_alone_s(whole)[0]) / _quick_s(fast)
    return pools, prefill - 1 + quicker if kind == "heterogeneous" else float(prefill)


def _quick_s(cost: Any) -> float:
    from opt.serve.cluster.kernels import alone_s

    return float(alone_s(cost.coefficients, np.zeros(2), np.array([REFERENCE], np.int64), BUDGET)[0])
