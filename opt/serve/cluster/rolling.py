"""Our router: requests wait at the dispatcher, and are planned anew whenever something is heard.

* **Late.** A node is sent no more than it will have begun by the next heartbeat or the one after; everybody else stays
  movable. A wrong or stale estimate costs one request's place, not a queue's.
* **In time.** Requests go by the time their first token is due; if not all can be in time, as many as possible are (Moore
  and Hodgson), at the rate of all nodes together, and the others go after them, in what is left.
* **Everywhere.** Each request goes where its first token comes soonest, over prefill nodes (queue replayed, prefix
  found there, transfer) and decode nodes (backlog of deflected prompts and its own, in the largest chunks that the
  residents' gap targets allow). A decode node takes as many prompts as it has room for, the residents' own growth set aside.
* **Stay.** Where no decode node has room, a request decodes where its prompt was computed, and the prompts there then go in
  chunks as well.
"""

from __future__ import annotations

from collections.abc import Iterator
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
    stay: bool = True,
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
        stay: off: who has no room to decode waits for it.
        margin: share of the gap targets that is kept free.
    """
    return _Rolling(requests, pools, ahead, deflect, choose, late_binding, stay, margin).__call__


@dataclass
class _Place:
    """A node in a plan, and when it is ready for another prompt."""

    node: NodeState
    own: bool  # prompts are its own work
    ready_s: float

    def seconds(self, tokens: int, cached: int, limit_s: float) -> float:
        """Return how long a prompt takes here: alone, or in chunks beside decodes."""
        node = self.node
        return node.beside_s(tokens, cached, limit_s) if node.decodes or not self.own else node.prompt_s(tokens, cached)


@dataclass
class _Rolling:
    requests: Requests
    pools: Pools
    ahead: float
    deflect: bool
    choose: bool
    late_binding: bool
    stay: bool
    margin: float
    alone_s: FloatArray = field(default_factory=lambda: np.empty(0))

    def __call__(self, view: ClusterView) -> Iterator[Route]:
        """Yield what is sent now."""
        places = self._places(view)
        until = view.now + (self.ahead * self.pools.heartbeat_s if self.late_binding else np.inf)
        if min(place.ready_s for place in places) > until:
            return
        for i in self._order(view, places)[: LOOKED_AT if self.late_binding else None].tolist():
            yield from self._send(view, places, i, until)
            if min(place.ready_s for place in places) > until:
                return

    def _places(self, view: ClusterView) -> list[_Place]:
        prefill = self.pools.prefill
        others = [k for k in self.pools.decode if k not in prefill] if self.deflect else []
        return [self._place(view, view.nodes[k], k in prefill) for k in (*prefill, *others)]

    def _place(self, view: ClusterView, node: NodeState, own: bool) -> _Place:
        if own and not node.decodes:
            ready = node.ready_s(view.now)
        else:
            backlog = node.beside_s(node.backlog_tokens, 0, self._limit(node)) if node.prompts else 0.0
            ready = max(view.now, node.report.free_s) + backlog
        return _Place(node, own, ready)

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
        return max(sum(first / place.seconds(SAMPLE, 0, self._limit(place.node)) for place in places), 1e-9)

    def _send(self, view: ClusterView, places: list[_Place], i: int, until: float) -> Iterator[Route]:
        """Place a request where its first token comes soonest, and yield the route if it would begin soon."""
        prompt = int(self.requests.prompt[i])
        whole = prompt + max(int(self.requests.expected[i]), 1)
        target = decode_node(view, i)
        crowded = view.nodes[target].lacks(whole) > 0
        best, soonest, busy, end_node = None, np.inf, 0.0, target
        for place in sorted(places, key=lambda place: place.ready_s):
            if place.ready_s >= soonest:
                break
            k, fits = place.node.index, not place.node.lacks(whole)
            stays = not place.own or (crowded and self.stay and fits)
            if not (fits if stays else view.holds(k, i)):
                continue
            tokens = place.node.uncached(i)
            spent = place.seconds(tokens, prompt - tokens, self._limit(place.node))
            end = place.ready_s + spent + (0.0 if stays else view.transfer_s(k, target, i))
            if end < soonest:
                best, soonest, busy, end_node = place, end, spent, k if stays else target
        if best is None:
            if not any(view.holds(place.node.index, i) for place in places):
                yield Route(i, places[0].node.index, target)  # no node ever will: the first one refuses it
            return
        if best.ready_s <= until:
            yield Route(i, best.node.index, end_node)
        best.ready_s += busy
