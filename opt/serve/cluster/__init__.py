"""Clusters: pools of engines with links between them, and routers that say where prompts are computed.

A router is a function from a `ClusterView` to the `Route`s of some of the requests that it holds; one line in `ROUTERS`
gives it a name. `simulate_pools` runs it. See `opt.serve.cluster.cluster` for the clock and its invariants.
"""

from __future__ import annotations

from opt.serve.cluster.cluster import Cluster, Parts
from opt.serve.cluster.door import ROUTERS, PoolsTimeline, RouterKind, disturbed, simulate_pools
from opt.serve.cluster.pools import Link, Node, Pools, read_pools, write_pools
from opt.serve.cluster.state import ClusterView, NodeState, Report, Route, Router

__all__ = [
    "ROUTERS",
    "Cluster",
    "ClusterView",
    "Link",
    "Node",
    "NodeState",
    "Parts",
    "Pools",
    "PoolsTimeline",
    "Report",
    "Route",
    "Router",
    "RouterKind",
    "disturbed",
    "read_pools",
    "simulate_pools",
    "write_pools",
]
