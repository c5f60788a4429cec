"""Transfers of keys and values over the links of a cluster.

A transfer takes the path of least latency. It starts when every link of the path is free in its direction, occupies each
for bytes / bandwidth, and arrives after the latencies of all and the bytes over the slowest. Requests are served in the
order in which they are made, so nothing that comes later delays a transfer, and its arrival is known at once.

Invariants (each has a test):
    N1. Never faster than an empty network: arrival >= request + latency + bytes / slowest bandwidth, equal when alone.
    N2. Conservation: a direction of a link carries at most its bandwidth.
"""

from __future__ import annotations

from itertools import pairwise

from opt.serve.cluster.pools import Pools

__all__ = ["Network"]


class Network:
    """The links of a cluster, and until when each direction is taken."""

    def __init__(self, pools: Pools) -> None:
        self._graph = pools.graph
        self._names = [node.name for node in pools.nodes]
        self._free: dict[tuple[str, str], float] = {}
        self._paths: dict[tuple[int, int], list[tuple[str, str]]] = {}
        self._alone: dict[tuple[int, int], tuple[float, float]] = {}  # latency and slowest bandwidth of a path

    def path(self, source: int, target: int) -> list[tuple[str, str]]:
        """Return the directed links between two nodes, by their places in the pools."""
        found = self._paths.get((source, target))
        if found is None:
            import networkx

            stops = networkx.shortest_path(self._graph, self._names[source], self._names[target], weight="latency_s")
            found = self._paths[(source, target)] = list(pairwise(stops))
        return found

    def alone_s(self, source: int, target: int, size: float) -> float:
        """Return the seconds of a transfer of `size` bytes in an empty network."""
        found = self._alone.get((source, target))
        if found is None:
            links = [self._graph.edges[hop] for hop in self.path(source, target)]
            slowest = min((link["bytes_per_s"] for link in links), default=float("inf"))
            found = self._alone[(source, target)] = (sum(link["latency_s"] for link in links), slowest)
        return float(found[0] + size / found[1])

    def start_s(self, source: int, target: int, at_s: float) -> float:
        """Return when a transfer asked for at `at_s` would start, as things stand."""
        return max([at_s, *(self._free.get(hop, 0.0) for hop in self.path(source, target))])

    def send(self, source: int, target: int, size: float, at_s: float) -> float:
        """Book a transfer of `size` bytes that is ready at `at_s`, and return when it arrives."""
        start = self.start_s(source, target, at_s)
        for hop in self.path(source, target):
            self._free[hop] = start + size / self._graph.edges[hop]["bytes_per_s"]
        return start + self.alone_s(source, target, size)
