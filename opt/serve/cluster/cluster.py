"""The clock of a cluster: engines that share one workload, a dispatcher, transfers, heartbeats.

A request arrives at the dispatcher, where the router sends it on at once or holds it and is asked again at the next
heartbeat. Its prompt is computed on one node; if it decodes on another, its keys and values are sent there, and the first
token is shown to the client when it is admitted to the decodes there, as where the decode node answers. Events are handled
in the order of time, and an engine only runs steps that start before anything that could still concern it.

Invariants (each has a test):
    K1. Conservation: every request is completed or rejected once, whatever the router; memory is empty at the end.
    K2. Causality: arrival <= start of the prompt <= its end <= delivery <= admission <= last token, and no router sees a
        report that is older than one heartbeat or newer than now.
    K3. queue + prefill + transfer + decode queue + decode = finish - arrival.
    K4. One node alone, all of it local, gives what its engine gives.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost import CostModel
from opt.serve.cluster.network import Network
from opt.serve.cluster.policies import Harm, gap_targets
from opt.serve.cluster.pools import Pools
from opt.serve.cluster.state import ClusterView, NodeState, Report, Route, Router
from opt.sim.engine import Engine, StalledError
from opt.sim.policy import Policy
from opt.sim.workload import DONE, REJECTED, Workload

__all__ = ["PARTS", "Cluster", "Parts"]

ARRIVE, PREFILLED, DELIVERED, BEAT = range(4)  # at one moment in this order
PATIENCE = 1000  # heartbeats with nothing to do but requests that the router holds
PARTS = ("queue_s", "prefill_s", "transfer_s", "decode_queue_s", "decode_s")


@dataclass(frozen=True, eq=False)
class Parts:
    """What the life of each request is made of, (n,) seconds each, NaN for rejected ones; they add up to its length.

    Args:
        queue_s: from arrival to the first step with its prompt.
        prefill_s: from there to the end of the prompt.
        transfer_s: from there until keys and values are where it decodes, waits for links included; 0 if it stays.
        decode_queue_s: from there to its admission to the decodes; 0 if it stays.
        decode_s: from there to the last token.
    """

    queue_s: FloatArray
    prefill_s: FloatArray
    transfer_s: FloatArray
    decode_queue_s: FloatArray
    decode_s: FloatArray


class Cluster:
    """A cluster with its requests; `run` serves them all.

    Args:
        workload: the requests and their progress.
        pools: nodes and links.
        policies: what each node runs.
        router: from a view of the cluster to the routes of some held requests.
        beliefs: the cost models by which the router thinks, the nodes' own by default.
        joined_s: (n,) where the policies note admissions to decodes.
        harm: where they note what chunks do to decodes.
    """

    def __init__(
        self,
        workload: Workload,
        pools: Pools,
        policies: Sequence[Policy],
        router: Router,
        *,
        beliefs: Sequence[CostModel] | None = None,
        joined_s: FloatArray | None = None,
        harm: Harm | None = None,
    ) -> None:
        n, nodes = workload.requests.n, pools.nodes
        self.workload, self.pools, self.router = workload, pools, router
        self.engines = tuple(
            Engine(workload, policy, node.config, node.cost, kv_tokens=node.kv_tokens)
            for node, policy in zip(nodes, policies, strict=True)
        )
        self.network = Network(pools)
        self.harm = harm or Harm()
        self.prefill_node, self.decode_node = np.full(n, -1, np.int64), np.full(n, -1, np.int64)
        self.prefilled_s, self.delivered_s = np.full(n, np.nan), np.full(n, np.nan)
        self.joined_s = np.full(n, np.nan) if joined_s is None else joined_s
        self.calls = 0
        self.targets_s = gap_targets(workload.requests)
        self._members: list[dict[int, None]] = [{} for _ in nodes]
        self._delivered: list[list[int]] = [[] for _ in nodes]
        costs = beliefs or [node.cost for node in nodes]
        hosts = [np.array([node.config.host_s, node.config.host_per_request_s]) for node in nodes]
        self.states = [
            NodeState(k, node, cost, engine, self._report(k, 0.0), host)
            for k, (node, cost, engine, host) in enumerate(zip(nodes, costs, self.engines, hosts, strict=True))
        ]
        self.view = ClusterView(0.0, [], self.states, pools, workload.requests, self.network)
        self._events: list[tuple[float, int, int]] = []
        self._stuck: set[int] = set()
        self._beating = False
        self._leaving = np.zeros(len(nodes), np.int64)  # requests on each node that will be sent on to another

    def run(self) -> None:
        """Serve all requests.

        Raises:
            StalledError: the router holds requests for ever, or an engine makes no progress.
        """
        for i, at in enumerate(self.workload.requests.arrival_s.tolist()):
            heapq.heappush(self._events, (at, ARRIVE, i))
        idle = 0
        while True:
            engine = self._next_engine()
            start = math.inf if engine is None else self._start_s(engine)
            if self._events and self._events[0][0] <= start:
                at, kind, i = heapq.heappop(self._events)
                self._handle(at, kind, i)
                idle = idle + 1 if kind == BEAT and engine is None and self.view.held else 0
                if idle > PATIENCE:
                    raise StalledError(f"the router holds {len(self.view.held)} requests and sends none while all nodes idle")
            elif engine is None:
                return
            else:
                self._step(engine)

    def _start_s(self, k: int) -> float:
        """Return when the next step of a busy engine starts, at the earliest."""
        engine = self.engines[k]
        return engine.now if engine.count or len(engine.waiting) else max(engine.now, engine.next_arrival_s)

    def _next_engine(self) -> int | None:
        """Return the busy engine that starts first, without those that wait for something to happen."""
        busy = [k for k, engine in enumerate(self.engines) if engine.busy and k not in self._stuck]
        return min(busy, key=self._start_s, default=None)

    def _step(self, k: int) -> None:
        """Let an engine run a step, or equal ones that start before anything that could concern it."""
        others = [self._start_s(m) for m in np.flatnonzero(self._leaving).tolist() if m != k and m not in self._stuck]
        event = self._events[0][0] if self._events else math.inf
        until = min([event, *others])
        engine = self.engines[k]
        if until <= self._start_s(k):
            until = math.nextafter(self._start_s(k), math.inf)
        if not engine.step(until) and engine.busy and engine.now >= until:
            self._stuck.add(k)
        self._collect(k)

    def _collect(self, k: int) -> None:
        """Take note of who has left an engine."""
        engine, progress = self.engines[k], self.workload.progress
        for i in engine.finished:
            del self._members[k][i]
            if self.prefill_node[i] != k:
                continue
            self.prefilled_s[i] = progress.first_s[i]
            if self.decode_node[i] != k:
                self._leaving[k] -= 1
                heapq.heappush(self._events, (engine.now, PREFILLED, i))
        engine.finished.clear()

    def _handle(self, at: float, kind: int, i: int) -> None:
        for k in self._stuck:
            self.engines[k].step(at)  # nothing runs: its clock catches up
        self._stuck.clear()
        self.view.now = at
        if kind == ARRIVE:
            self._ensure_beat(at)
            self.view.held.append(i)
            self._route()
        elif kind == PREFILLED:
            self._transfer(i, at)
        elif kind == DELIVERED:
            self._deliver(i, at)
        else:
            self._beat(at)

    def _ensure_beat(self, at: float) -> None:
        """Make sure that a heartbeat is to come, and that the last one is not older than a period."""
        if not self._beating:
            self._beating, period = True, self.pools.heartbeat_s
            for state in self.states:
                state.news(self._report(state.index, at))
            heapq.heappush(self._events, ((math.floor(at / period) + 1) * period, BEAT, 0))

    def _beat(self, at: float) -> None:
        """Take in reports, and ask the router about what it holds."""
        for state in self.states:
            state.news(self._report(state.index, at))
            for i in self._delivered[state.index]:
                state.forget(i)
            self._delivered[state.index].clear()
        if self.view.held:
            self._route()
        if self.view.held or any(self._members):
            heapq.heappush(self._events, (at + self.pools.heartbeat_s, BEAT, 0))
        else:
            self._beating = False

    def _report(self, k: int, at: float) -> Report:
        return Report.of(self.engines[k], list(self._members[k]), self.targets_s, at)

    def _route(self) -> None:
        """Ask the router, and send as it says."""
        self.calls += 1
        sent: set[int] = set()
        for route in self.router(self.view):
            if route.request in sent:
                raise ValueError(f"the router sends request {route.request} twice")
            self._send(route)
            sent.add(route.request)
        if sent:
            self.view.held[:] = [i for i in self.view.held if i not in sent]

    def _send(self, route: Route) -> None:
        """Submit a request to the node that computes its prompt."""
        i, k = route.request, route.prefill
        stays = route.decode == k or self.workload.output[i] == 1
        decode = k if stays else route.decode
        self.prefill_node[i], self.decode_node[i] = k, decode
        engine, state, prompt = self.engines[k], self.states[k], int(self.workload.requests.prompt[i])
        output = max(int(self.workload.requests.expected[i]), 1)
        uncached = state.uncached(i)
        engine.submit([i], self.view.now, tokens=None if stays else 1, keep=not stays)
        if self.workload.progress.state[i] == REJECTED:
            return
        self._members[k][i] = None
        state.send(uncached, prompt - uncached, prompt + (output if stays else 1) - 1)
        if not stays:
            self._leaving[k] += 1
            self.states[decode].expect(i, prompt, prompt + output - 1, float(self.targets_s[i]))

    def _transfer(self, i: int, at: float) -> None:
        """Send keys and values on their way."""
        source, target = int(self.prefill_node[i]), int(self.decode_node[i])
        size = float(self.workload.progress.computed[i]) * self.pools.kv_bytes_per_token
        heapq.heappush(self._events, (self.network.send(source, target, size, at), DELIVERED, i))

    def _deliver(self, i: int, at: float) -> None:
        """Let a request decode where its keys and values have arrived."""
        k, progress = int(self.decode_node[i]), self.workload.progress
        self.engines[int(self.prefill_node[i])].release(i)
        self.delivered_s[i] = at
        self.engines[k].submit([i], at, computed=int(progress.computed[i]))
        if progress.state[i] == REJECTED:
            self.states[k].forget(i)
            return
        self._members[k][i] = None
        self._delivered[k].append(i)

    @property
    def parts(self) -> Parts:
        """What the life of each request is made of."""
        progress, arrival = self.workload.progress, self.workload.requests.arrival_s
        done = progress.state == DONE
        moved = done & (self.prefill_node != self.decode_node)
        prefilled = np.where(moved, self.prefilled_s, progress.first_s)
        delivered = np.where(moved, self.delivered_s, prefilled)
        joined = np.where(moved, self.joined_s, prefilled)
        marks = [arrival, progress.start_s, prefilled, delivered, joined, progress.finish_s]
        return Parts(*(np.where(done, after - before, np.nan) for before, after in pairwise(marks)))

    @property
    def deflected(self) -> IntArray:
        """The requests whose prompt was computed on a decode node."""
        roles = np.array([node.role == "decode" for node in self.pools.nodes])
        sent = self.prefill_node >= 0
        found: IntArray = np.flatnonzero(sent & roles[self.prefill_node])
        return found
