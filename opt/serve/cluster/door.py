"""`simulate_pools`: a cluster and a router's name in, a timeline out."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from opt.core.cost import CostModel
from opt.core.instance import Instance
from opt.serve.cluster.cluster import PARTS, Cluster
from opt.serve.cluster.kernels import LADDER, step_s
from opt.serve.cluster.policies import ChunkRule, Harm, gap_targets, node_policy
from opt.serve.cluster.pools import Node, Pools, Role, read_pools
from opt.serve.cluster.rivals import co_locate, externality, joint, kairos, least_ttft, never, prefix_threshold, taichi
from opt.serve.cluster.rolling import MARGIN, rolling
from opt.serve.cluster.state import Router
from opt.sim.timeline import Timeline
from opt.sim.workload import DONE, Lengths, workload

__all__ = ["ROUTERS", "PoolsTimeline", "RouterKind", "RouterMaker", "disturbed", "simulate_pools"]

RouterMaker: TypeAlias = Callable[..., Router]  # (requests, pools, *, seed, **params)
TYPICAL = (32.0, 32_000.0, 4_000.0)  # decodes of a step, tokens they read, tokens of a prompt before its chunk


@dataclass(frozen=True)
class RouterKind:
    """An entry of `ROUTERS`.

    Args:
        make: from (requests, pools, *, seed, **params) to a router.
        summary: one line.
        decode: chunk rule of nodes that decode.
        prefill: chunk rule of nodes that are there for prompts; it matters where they decode too.
        roles: "own", or "mixed" for a cluster in which every node does both.
        small: nodes that decode have a token budget so small that their steps keep the strictest gap target.
        params: parameters of the nodes' policies.
    """

    make: RouterMaker
    summary: str
    decode: ChunkRule = "slack"
    prefill: ChunkRule = "budget"
    roles: str = "own"
    small: bool = False
    params: Mapping[str, Any] = field(default_factory=dict)


ROUTERS: dict[str, RouterKind] = {
    "never": RouterKind(never, "prompts on prefill nodes only", "ladder"),
    "co-locate": RouterKind(
        co_locate, "no roles: all stays on one node, chunks of one size", "budget", "budget", "mixed", small=True
    ),
    "prefix-threshold": RouterKind(prefix_threshold, "stays where it decodes if at most 16 tokens are not cached", "ladder"),
    "least-ttft": RouterKind(least_ttft, "decode node first, then the least time to the first token", "ladder"),
    "joint-least-ttft": RouterKind(joint, "least time to the first token over decode nodes and all pairs", "ladder"),
    "slo-externality": RouterKind(externality, "harm to residents minus own value", "ladder"),
    "taichi": RouterKind(taichi, "mixed pool: nodes with large chunks and nodes with small ones", "budget", small=True),
    "kairos": RouterKind(kairos, "Kairos: deflect if at most 1.3 times the prefill node's time, one prompt a node", "ladder"),
    "rolling": RouterKind(
        rolling, "planned anew at every heartbeat, in time first, on all nodes", "slack", "slack", params={"margin": MARGIN}
    ),
}


@dataclass(frozen=True, eq=False)
class PoolsTimeline(Timeline):
    """What happened in a cluster.

    Args:
        cluster: its nodes, links and routes.
    """

    cluster: Cluster | None = None

    @property
    def metrics(self) -> dict[str, Any]:
        """The figures of a timeline, and those of a cluster: who was deflected, parts of the latency, harm to decodes."""
        from opt.sim.metrics import metrics

        assert self.cluster is not None
        parts, harm = self.cluster.parts, self.cluster.harm
        done = self.workload.progress.state == DONE
        found = {name: _summary(getattr(parts, name)[done]) for name in PARTS}
        return {
            **metrics(self),
            "parts": found,
            "deflected": len(self.cluster.deflected),
            "transfers": int((done & (self.cluster.prefill_node != self.cluster.decode_node)).sum()),
            "mixed_steps": harm.mixed_steps,
            "late_by_chunks": harm.late,
            "decodes_beside_chunks": harm.tokens,
            "router_calls": self.cluster.calls,
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return one dictionary for each request: those of a timeline, its nodes, and the parts of its latency."""
        assert self.cluster is not None
        parts, names = self.cluster.parts, [node.name for node in self.cluster.pools.nodes]
        rows = super().rows()
        for i, row in enumerate(rows):
            places = (int(self.cluster.prefill_node[i]), int(self.cluster.decode_node[i]))
            row |= dict(zip(("prefill_node", "decode_node"), (names[k] if k >= 0 else None for k in places), strict=True))
            cells = {name: float(getattr(parts, name)[i]) for name in PARTS}
            row |= {name: None if np.isnan(cell) else cell for name, cell in cells.items()}
        return rows


def _summary(values: Any) -> dict[str, float | None]:
    if not len(values):
        return dict.fromkeys(("mean", "p50", "p95", "p99", "max"))
    return {
        "mean": float(values.mean()),
        **{f"p{q}": float(np.quantile(values, q / 100)) for q in (50, 95, 99)},
        "max": float(values.max()),
    }


def simulate_pools(
    instance: Instance,
    pools: Pools | str | Path,
    router: str | RouterKind = "rolling",
    *,
    seed: int = 0,
    lengths: Lengths = "auto",
    round_s: float | None = None,
    beliefs: Sequence[CostModel] | None = None,
    wrap: Callable[[Router], Router] | None = None,
    **params: Any,
) -> PoolsTimeline:
    """Return what happens when a cluster serves the requests.

    Args:
        instance: the requests; its memory is not used, since every node has its own.
        pools: a cluster, or a file `kvopt-pools/1`.
        router: a name in `ROUTERS`, or an entry of your own.
        seed: same seed, same timeline.
        lengths: what routers are told of the outputs, see `opt.sim.workload.workload`.
        round_s: how long a round of `arrival` is.
        beliefs: cost models of the nodes as the router and the nodes' chunk rules believe them, exact by default.
        wrap: changes the router before it is used, as to time its decisions.
        params: further arguments of the router.

    Raises:
        ValueError: an unknown name or parameter, a value out of range, or a router that makes no progress.
    """
    cluster = pools if isinstance(pools, Pools) else read_pools(pools)
    kind = _kind_of(router)
    load = workload(instance, lengths=lengths, round_s=round_s)
    used = _as_used(cluster, kind, float(gap_targets(load.requests).min(initial=np.inf)))
    _check(kind.make, router if isinstance(router, str) else "given", params)
    joined, harm = np.full(instance.n, np.nan), Harm()
    policies = []
    for k, node in enumerate(cluster.nodes):
        rule = kind.prefill if node.role == "prefill" else kind.decode
        belief = None if beliefs is None else beliefs[k]
        policies.append(node_policy(load.requests, rule=rule, belief=belief, joined_s=joined, harm=harm, **kind.params))
    made = kind.make(load.requests, used, seed=seed, **params)
    machine = Cluster(load, used, policies, wrap(made) if wrap else made, beliefs=beliefs, joined_s=joined, harm=harm)
    machine.run()
    costs = ", ".join(dict.fromkeys(node.cost.name for node in used.nodes))
    label = router if isinstance(router, str) else "given"
    return PoolsTimeline(instance, load, machine.engines, label, costs, seed, params, cluster=machine)


def _kind_of(router: str | RouterKind) -> RouterKind:
    if isinstance(router, RouterKind):
        return router
    if router not in ROUTERS:
        close = difflib.get_close_matches(router, list(ROUTERS), 3)
        hint = f"; did you mean {' or '.join(close)}?" if close else ""
        raise ValueError(f"unknown router {router!r}{hint}; `kvopt list routers` shows all")
    return ROUTERS[router]


def _as_used(pools: Pools, kind: RouterKind, strict_s: float) -> Pools:
    """Return the cluster with the roles and budgets that a router's system has, for a strictest gap target."""

    def used(node: Node) -> Node:
        role: Role = "mixed" if kind.roles == "mixed" else node.role
        if not kind.small or role == "prefill":
            return dataclasses.replace(node, role=role)
        budget = min(_small_chunk(node, strict_s), node.config.token_budget)
        most = None if node.config.max_chunk is None else min(node.config.max_chunk, budget)
        return dataclasses.replace(node, role=role, config=node.config.replace(token_budget=budget, max_chunk=most))

    return dataclasses.replace(pools, nodes=tuple(used(node) for node in pools.nodes))


def _small_chunk(node: Node, strict_s: float) -> int:
    """Return the token budget of a node that is to keep a gap target with chunks of one size: what an operator would set.

    It is the largest of 2048, 1024, ... 128 tokens with which a typical step (`TYPICAL` decodes, a long prompt) keeps it.
    """
    decodes, kv, context = TYPICAL
    load = np.array([0, 0, 0, 0, decodes, kv, 0], np.float64)
    host = np.array([node.config.host_s, node.config.host_per_request_s])
    sizes = LADDER.tolist()
    fits = [size for size in sizes if step_s(node.cost.coefficients, host, load, context, float(size)) <= strict_s]
    return int(max(fits, default=sizes[-1]))


def _check(make: RouterMaker, name: str, params: Mapping[str, Any]) -> None:
    known = set(inspect.signature(make).parameters) - {"requests", "pools", "seed"}
    unknown = sorted(set(params) - known)
    if unknown:
        have = f"it takes {', '.join(sorted(known))}" if known else "it takes none"
        raise ValueError(f"router {name} has no parameter {', '.join(unknown)}; {have}")


def disturbed(cost: CostModel, low: float, high: float, seed: int) -> CostModel:
    """Return a cost model whose every term, and all knots together, are off by factors from 1 + low to 1 + high."""
    rng = np.random.default_rng(seed)
    terms = {name: seconds * float(rng.uniform(1 + low, 1 + high)) for name, seconds in cost.terms.items()}
    factor = float(rng.uniform(1 + low, 1 + high))
    knots = tuple((tokens, seconds * factor) for tokens, seconds in cost.knots)
    return dataclasses.replace(cost, terms=terms, knots=knots)
