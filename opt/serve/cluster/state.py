"""What a router knows: the last report of every node, and what has been sent there since.

Reports come with the heartbeats, so they are up to one period old. A report tells of the node as it will stand when the
step in progress ends (`free_s`), which a node can foretell but for the requests that end with it. Sizes of prompts are
known, outputs only as far as they are announced. Which prefixes a node has cached is asked when needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from opt.core.columns import FloatArray, IntArray
from opt.core.cost import CostModel
from opt.serve.cluster.kernels import chunked_s, prompt_s, replay, step_s
from opt.serve.cluster.network import Network
from opt.serve.cluster.policies import peak_growth
from opt.serve.cluster.pools import Node, Pools
from opt.sim.engine import Engine
from opt.sim.workload import Requests

__all__ = ["ClusterView", "NodeState", "Report", "Route", "Router"]


@dataclass(frozen=True)
class Route:
    """Where a request goes: its prompt to one node, its decodes to another, or both to the same."""

    request: int
    prefill: int
    decode: int


@dataclass(frozen=True)
class Report:
    """A node at a heartbeat.

    Args:
        at_s: when it was made.
        free_s: when the step in progress ends; `at_s` where there is none.
        sizes, contexts: prompt tokens still to compute of each unfinished or waiting prompt, in order, and those before.
        tokens: the sum of the sizes.
        decodes, kv: requests that decode, or wait for it with their keys and values, and the tokens they read in a step.
        limit_s: the strictest gap target among them.
        growth: by how much all of these will grow in memory at most, as far as announced.
        available: tokens of memory that are free.
    """

    at_s: float
    free_s: float
    sizes: IntArray
    contexts: IntArray
    tokens: int
    decodes: int
    kv: int
    limit_s: float
    growth: int
    available: int

    @classmethod
    def of(cls, engine: Engine, members: Sequence[int], targets_s: FloatArray, at_s: float) -> Report:
        """Return the report of an engine that has these unfinished requests."""
        who = np.array(members, np.int64)
        progress, requests = engine.workload.progress, engine.workload.requests
        needs = requests.prompt[who] + progress.produced[who] - progress.computed[who]
        prompts = (needs > 1) | (progress.produced[who] == 0)
        decodes = who[~prompts]
        whole = requests.prompt[who] + np.maximum(requests.expected[who], progress.produced[who] + 1) - 1
        held = progress.computed[who] * (engine.memory.blocks[who] > 0)
        return cls(
            at_s=at_s,
            free_s=max(at_s, engine.now),
            sizes=needs[prompts],
            contexts=progress.computed[who][prompts],
            tokens=int(needs[prompts].sum()),
            decodes=len(decodes),
            kv=int(progress.computed[decodes].sum()) + len(decodes),
            limit_s=float(targets_s[decodes].min(initial=np.inf)),
            growth=peak_growth(held, np.maximum(whole - held, 0), engine.memory.block),
            available=engine.memory.available * engine.memory.block,
        )


@dataclass(eq=False)
class NodeState:
    """A node as the dispatcher knows it.

    Args:
        index, node: its place in the pools, and it.
        cost: what the dispatcher believes of its steps.
        engine: asked for nothing but cached prefixes.
        report: the last one.
        sent: prompts sent since, as (tokens to compute, tokens cached).
        coming: requests that will decode here and have not arrived: tokens of the prompt, and of all of it, and gap target.
        sent_tokens, coming_tokens: sums over these: to compute, to read in a step.
        promised: tokens of memory that all of these will take, as far as announced.
        decodes, kv: requests that decode here or will once they have arrived, and the tokens that they read in a step.
        limit_s: the strictest gap target among them.
        backlog_tokens: prompt tokens to compute that are here or on their way.
    """

    index: int
    node: Node
    cost: CostModel
    engine: Engine
    report: Report
    host: FloatArray
    sent: list[tuple[int, int]] = field(default_factory=list)
    coming: dict[int, tuple[int, int, float]] = field(default_factory=dict)
    sent_tokens: int = 0
    coming_tokens: int = 0
    promised: int = 0
    _sent_whole: int = 0
    _coming_whole: int = 0
    decodes: int = 0
    kv: int = 0
    limit_s: float = np.inf
    backlog_tokens: int = 0
    _ready_s: float | None = None

    @property
    def budget(self) -> int:
        """Tokens a step computes at most."""
        return self.node.config.token_budget

    def news(self, report: Report) -> None:
        """Take a report in; what it covers is forgotten."""
        self.report = report
        self.sent.clear()
        self.sent_tokens = self._sent_whole = 0
        self._update()

    def send(self, tokens: int, cached: int, whole: int) -> None:
        """Note a prompt that was sent here, and all the tokens that it will take."""
        self.sent.append((tokens, cached))
        self.sent_tokens += tokens
        self._sent_whole += whole
        self._update()

    def expect(self, i: int, tokens: int, whole: int, target_s: float) -> None:
        """Note a request that will decode here once its prompt is done elsewhere."""
        self.coming[i] = (tokens, whole, target_s)
        self.coming_tokens += tokens
        self._coming_whole += whole
        self._update()

    def forget(self, i: int) -> None:
        """Note that a request has arrived, and is in the reports."""
        tokens, whole, _ = self.coming.pop(i, (0, 0, np.inf))
        self.coming_tokens -= tokens
        self._coming_whole -= whole
        self._update()

    def _update(self) -> None:
        """Add what is on its way to what was reported."""
        report = self.report
        self.decodes, self.kv = report.decodes + len(self.coming), report.kv + self.coming_tokens
        self.limit_s = min([report.limit_s, *(target for _, _, target in self.coming.values())])
        self.backlog_tokens = report.tokens + self.sent_tokens
        self.promised = self._sent_whole + self._coming_whole
        self._ready_s = None

    def uncached(self, i: int) -> int:
        """Return the prompt tokens of a request that this node would have to compute."""
        return int(self.engine.workload.requests.prompt[i]) - self.engine.memory.match(i).tokens

    def backlog(self) -> tuple[IntArray, IntArray]:
        """Return (sizes, contexts) of the prompts that are here or on their way."""
        if not self.sent:
            return self.report.sizes, self.report.contexts
        more = np.array(self.sent, np.int64)
        return np.concatenate((self.report.sizes, more[:, 0])), np.concatenate((self.report.contexts, more[:, 1]))

    @property
    def prompts(self) -> int:
        """Unfinished prompts that are here or on their way."""
        return len(self.report.sizes) + len(self.sent)

    @property
    def headroom(self) -> int:
        """Tokens of memory left once all that is here, or on its way, has taken what it will, as far as announced."""
        return self.report.available - self.report.growth - self.promised

    @property
    def seats(self) -> int:
        """Requests that may still come; below 0 where some wait for others to end."""
        return self.node.config.max_running - self.decodes - self.prompts

    def lacks(self, tokens: int) -> float:
        """Return the larger share of all seats and memory that a request of so many tokens would have to wait for; 0: none."""
        seats, room = self.seats - 1, self.headroom - tokens
        if seats >= 0 and room >= 0:
            return 0.0
        return max(-seats / self.node.config.max_running, -room / self.node.kv_tokens)

    def ready_s(self, now: float) -> float:
        """Return when a node that only computes prompts is done with its backlog: the queue, replayed."""
        if self._ready_s is None:
            sizes, contexts = self.backlog()
            done = replay(self.cost.coefficients, self.host, sizes, contexts, self.budget)
            self._ready_s = self.report.free_s + (float(done[-1]) if len(done) else 0.0)
        return max(now, self._ready_s)

    def prompt_s(self, tokens: int, cached: int = 0) -> float:
        """Return the seconds of a prompt alone here."""
        return float(prompt_s(self.cost.coefficients, self.host, tokens, cached, self.budget))

    def step_s(self, more: int = 0, tokens: int = 0) -> float:
        """Return the seconds of a step of all decodes, `more` included, which read `tokens`."""
        load = np.array([0, 0, 0, 0, self.decodes + more, self.kv + tokens, 0], np.float64)
        return float(step_s(self.cost.coefficients, self.host, load, 0.0, 0.0))

    def beside_s(self, tokens: int, cached: int, limit_s: float, *, ladder: bool = False) -> float:
        """Return the seconds of a prompt in chunks beside the decodes, each step within `limit_s`; infinity if impossible."""
        return float(
            chunked_s(
                self.cost.coefficients,
                self.host,
                float(self.decodes),
                float(self.kv),
                limit_s,
                cached,
                tokens,
                self.budget,
                ladder,
            )
        )


@dataclass(eq=False)
class ClusterView:
    """The cluster as a router sees it when it is asked.

    Args:
        now: seconds.
        held: requests that have arrived and were sent nowhere, in the order of arrival.
        nodes: what is known of each.
        pools: the cluster.
        requests: what is known of all requests.
        network: for `transfer_s`.
    """

    now: float
    held: list[int]
    nodes: Sequence[NodeState]
    pools: Pools
    requests: Requests
    network: Network

    def transfer_s(self, source: int, target: int, i: int) -> float:
        """Return the seconds in which the keys and values of a prompt go from one node to another, the links being free."""
        if source == target:
            return 0.0
        return self.network.alone_s(source, target, float(self.requests.prompt[i]) * self.pools.kv_bytes_per_token)

    def holds(self, k: int, i: int) -> bool:
        """Whether a request, as far as it is announced, could ever be held by a node; one for prompts lets it go after them."""
        stays = self.nodes[k].node.role != "prefill"
        most = int(self.requests.prompt[i]) + (max(int(self.requests.expected[i]), 1) if stays else 1) - 1
        return most <= self.nodes[k].node.kv_tokens


Router: TypeAlias = Callable[[ClusterView], Iterable[Route]]  # which of the held requests go where, now; each is sent at once
