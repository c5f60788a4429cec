"""kvopt: certified batching of LLM requests under a KV-cache memory budget.

>>> import opt
>>> instance = opt.Instance(memory=17, prompt=[9, 2, 6, 2], output=[5, 5, 4, 3])
>>> result = opt.solve(instance, "svf-pack")
>>> result.total_latency, result.bound.ceil
(25, 24)

Importing this package loads no solver and no plotting; names are looked up on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from opt import plot as plot
    from opt.comparison import Comparison as Comparison
    from opt.comparison import compare as compare
    from opt.core.certify import certify as certify
    from opt.core.cost import COSTS as COSTS
    from opt.core.cost import CostModel as CostModel
    from opt.core.cost.plans import seconds as seconds
    from opt.core.errors import CertificateError as CertificateError
    from opt.core.errors import InstanceError as InstanceError
    from opt.core.files import Plan as Plan
    from opt.core.files import read as read
    from opt.core.files import verify as verify
    from opt.core.files import write as write
    from opt.core.instance import Instance as Instance
    from opt.core.model import Bound as Bound
    from opt.core.model import Proposal as Proposal
    from opt.core.model import Result as Result
    from opt.core.model import Schedule as Schedule
    from opt.core.traces import READERS as READERS
    from opt.core.traces import read_trace as read_trace
    from opt.serve.cluster import ROUTERS as ROUTERS
    from opt.sim.door import simulate as simulate
    from opt.sim.policies import POLICIES as POLICIES
    from opt.solvers.bounds import BOUNDS as BOUNDS
    from opt.solvers.door import lower_bound as lower_bound
    from opt.solvers.door import solve as solve
    from opt.solvers.registry import SOLVERS as SOLVERS

__version__ = "0.1.0"

_HOMES = {
    "BOUNDS": "opt.solvers.bounds",
    "Bound": "opt.core.model",
    "COSTS": "opt.core.cost",
    "CostModel": "opt.core.cost",
    "CertificateError": "opt.core.errors",
    "Comparison": "opt.comparison",
    "Instance": "opt.core.instance",
    "InstanceError": "opt.core.errors",
    "POLICIES": "opt.sim.policies",
    "Plan": "opt.core.files",
    "Proposal": "opt.core.model",
    "READERS": "opt.core.traces",
    "ROUTERS": "opt.serve.cluster",
    "Result": "opt.core.model",
    "SOLVERS": "opt.solvers.registry",
    "Schedule": "opt.core.model",
    "certify": "opt.core.certify",
    "compare": "opt.comparison",
    "lower_bound": "opt.solvers.door",
    "read": "opt.core.files",
    "read_trace": "opt.core.traces",
    "seconds": "opt.core.cost.plans",
    "simulate": "opt.sim.door",
    "solve": "opt.solvers.door",
    "verify": "opt.core.files",
    "write": "opt.core.files",
}

__all__ = [*_HOMES, "plot"]


def __getattr__(name: str) -> Any:
    if name == "plot":
        return importlib.import_module("opt.plot")
    if name not in _HOMES:
        raise AttributeError(f"module 'opt' has no attribute {name!r}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
