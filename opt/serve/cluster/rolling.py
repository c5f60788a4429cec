"""Our router: requests wait at the dispatcher, and are planned anew whenever something is heard.

* **Late.** A node is sent no more than it will have begun by the next heartbeat or the one after; everybody else stays
  movable. A wrong or stale estimate costs one request's place, not a queue's.
* **In time.** Requests go by the time their first token is due; if not all can be in time, as many as possible are (Moore
  and Hodgson), at the rate of all nodes together, and the others go after them, in what is left.
* **Everywhere.** Each request goes where its first token comes soonest, over prefill nodes (queue replayed, prefix
  found there, transfer) and decode nodes (backlog of deflected prompts and its own, in the largest chunks that the
  residents' gap targets allow). A decode node takes as many prompts as it has room for, the residents' own growth set aside.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.serve.chunking.kernels import in_time
from opt.serve.cluster.kernels import alone_s
from opt.serve.cluster.pools import Pools
from opt.serve.cluster.rivals import decode_node
from opt.serve.cluster.state import ClusterView, NodeState, Route, Router
from opt.sim.workload import Requests

__all__ = ["rolling"]

AHEAD = 1.5  # heartbeats of work that a node is sent at most beyond now
LOOKED_AT = 64  # requests that are placed in a plan, committed or not
MARGIN = 0.05  # share of the gap targets that chunks leave free, for what the cost models do not know
SAMPLE = 2048  # tokens by which the rates of nodes are compared


def rolling(
    requests: Requests,
    pools: Pools,
    *,
    seed: int = 0,
    ahead: float = AHEAD,
    deflect: bool = True,
    choose: bool = True,
    late_binding: bool = True,
    margin: float = MARGIN,
) -> Router:
    """Return the router that is described at the head of this module.

    Args:
        requests: all of them; what has not arrived is not looked at.
        pools: the cluster.
        seed: unused.
        ahead: heartbeats of work that a node is sent beyond now.
        deflect: off: prompts go to prefill nodes only.
        choose: off: by arrival.
        late_binding: off: everybody is sent at once.
        margin: share of the gap targets that is kept free.
    """
    return _Rolling(requests, pools, ahead, deflect, choose, late_binding, margin).__call__


@dataclass
class _Place:
    """A node in a plan: when it is ready for another prompt, and how much memory is left there."""

    node: NodeState
    own: bool  # prompts are its own work
    ready_s: float
    room: int


@dataclass
class _Rolling:
    requests: Requests
    pools: Pools
    ahead: float
    deflect: bool
    choose: bool
    late_binding: bool
    margin: float
    alone_s: FloatArray = field(default_factory=lambda: np.empty(0))

    def __call__(self, view: ClusterView) -> list[Route]:
        """Return what is sent now."""
        places = self._places(view)
        until = view.now + (self.ahead * self.pools.heartbeat_s if self.late_binding else np.inf)
        if min(place.ready_s for place in places) > until:
            return []
        routes: list[Route] = []
        for i in self._order(view, places)[: LOOKED_AT if self.late_binding else None].tolist():
            self._send(view, places, i, until, routes)
            if min(place.ready_s for place in places) > until:
                break
        return routes

    def _places(self, view: ClusterView) -> list[_Place]:
        prefill = self.pools.prefill
        places = [_Place(view.nodes[k], True, view.nodes[k].ready_s(view.now), view.nodes[k].headroom) for k in prefill]
        if not self.deflect:
            return places
        for k in self.pools.decode:
            node = view.nodes[k]
            if k not in prefill:
                backlog = node.beside_s(node.backlog_tokens, 0, self._limit(node)) if node.prompts else 0.0
                places.append(_Place(node, False, max(view.now, node.report.free_s) + backlog, node.headroom))
        return places

    def _limit(self, node: NodeState) -> float:
        return node.limit_s * (1.0 - self.margin)

    def _order(self, view: ClusterView, places: list[_Place]) -> IntArray:
        """Return the held requests: those that can be in time together by due time, then the others by arrival."""
        who = np.array(view.held, np.int64)
        if not self.choose or len(who) < 2:
            return who
        if not len(self.alone_s):
            node = view.nodes[self.pools.prefill[0]]
            self.alone_s = alone_s(node.cost.coefficients, node.host, self.requests.prompt, node.budget)
        arrival = self.requests.arrival_s[who]
        left = arrival + np.fmin(self.requests.ttft_s[who], np.inf) - view.now
        order = np.lexsort((who, arrival, left))
        who, left, work = who[order], left[order], self.alone_s[who[order]]
        hope = work <= left
        kept = np.zeros(len(who), bool)
        kept[hope] = in_time(work[hope] / self._speed(places), left[hope])
        return np.concatenate((who[kept], np.sort(who[~kept])))

    def _speed(self, places: list[_Place]) -> float:
        """Return how many times as much as the first prefill node all nodes do together."""
        first = places[0].node.prompt_s(SAMPLE)
        speeds = [
            first / (place.node.prompt_s(SAMPLE) if place.own else place.node.beside_s(SAMPLE, 0, self._limit(place.node)))
            for place in places
        ]
        return max(sum(speeds), 1e-9)

    def _send(self, view: ClusterView, places: list[_Place], i: int, until: float, routes: list[Route]) -> None:
        """Place a request where its first token comes soonest, and send it there if it would begin soon."""
        target = decode_node(view, i)
        whole = int(self.requests.prompt[i]) + max(int(self.requests.expected[i]), 1)
        best, soonest, busy = None, np.inf, 0.0
        for place in sorted(places, key=lambda place: place.ready_s):
            if place.ready_s >= soonest:
                break
            node, tokens = place.node, place.node.uncached(i)
            cached = int(self.requests.prompt[i]) - tokens
            if place.own:
                if not view.holds(node.index, i):
                    continue
                spent = node.prompt_s(tokens, cached)
                end = place.ready_s + spent + view.transfer_s(node.index, target, i)
            else:
                if place.room < whole:
                    continue
                spent = node.beside_s(tokens, cached, self._limit(node))
                end = place.ready_s + spent
            if end < soonest:
                best, soonest, busy = place, end, spent
        if best is None:
            if not any(view.holds(place.node.index, i) for place in places):
                routes.append(Route(i, places[0].node.index, target))  # no node ever will: the first one refuses it
            return
        if best.ready_s <= until:
            k = best.node.index
            routes.append(Route(i, k, target if best.own else k))
            best.room -= whole
        best.ready_s += busy
