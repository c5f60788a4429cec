"""Published routers and their neighbours. All send a request as soon as it arrives, and all see what was sent since the
last heartbeat, which makes them no worse than published.

Where a rule compares times to the first token, the transfer of keys and values is among them: the token is shown where it
decodes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from opt.serve.cluster.kernels import step_s
from opt.serve.cluster.pools import Pools
from opt.serve.cluster.state import ClusterView, NodeState, Route, Router
from opt.sim.workload import Requests

__all__ = [
    "beside_decodes_s",
    "best_pair",
    "co_locate",
    "decode_node",
    "externality",
    "joint",
    "kairos",
    "least_ttft",
    "never",
    "prefix_threshold",
    "taichi",
]

THRESHOLD = 16  # uncached tokens up to which a prompt stays where it decodes
ALPHA = 1.3  # how much longer than on a prefill node a deflected prompt may take, in Kairos
HARM = 0.1  # weight of the residents' slack that a deflection takes up, against its own value


def decode_node(view: ClusterView, i: int) -> int:
    """Return the decode node for a request: the quickest of those with a seat and room, else where least is missing."""
    prompt = int(view.requests.prompt[i])
    whole = prompt + max(int(view.requests.expected[i]), 1)
    nodes = [view.nodes[k] for k in view.pools.decode if view.holds(k, i)] or [view.nodes[k] for k in view.pools.decode]
    return min(nodes, key=lambda node: (node.lacks(whole), node.step_s(1, prompt), node.index)).index


def on_prefill_s(view: ClusterView, k: int, i: int, decode: int) -> float:
    """Return the time to the first token on a prefill node: the queue replayed, the prompt, the transfer."""
    node = view.nodes[k]
    tokens = node.uncached(i)
    own = node.prompt_s(tokens, int(view.requests.prompt[i]) - tokens)
    return node.ready_s(view.now) - view.now + own + view.transfer_s(k, decode, i)


def beside_decodes_s(view: ClusterView, node: NodeState, i: int, *, ladder: bool = True, limit_s: float | None = None) -> float:
    """Return the time to the first token on a node that decodes: its backlog and the prompt in chunks beside its decodes."""
    tokens, limit = node.uncached(i), node.limit_s if limit_s is None else limit_s
    start = max(0.0, node.report.free_s - view.now)
    cached = int(view.requests.prompt[i]) - tokens
    return start + node.beside_s(tokens + node.backlog_tokens, cached, limit, ladder=ladder)


def best_pair(view: ClusterView, i: int) -> tuple[float, Route]:
    """Return the least time to the first token over prefill nodes, with the decode node chosen first."""
    target = decode_node(view, i)
    times = [(on_prefill_s(view, k, i, target), k) for k in view.pools.prefill if view.holds(k, i)]
    seconds, k = min(times, default=(np.inf, view.pools.prefill[0]))
    return seconds, Route(i, k, target)


def local_nodes(view: ClusterView, i: int) -> list[NodeState]:
    """Return the decode nodes where a request could stay: those with a seat and room for it."""
    whole = int(view.requests.prompt[i]) + max(int(view.requests.expected[i]), 1)
    return [view.nodes[k] for k in view.pools.decode if view.holds(k, i) and not view.nodes[k].lacks(whole)]


def _each(choose: Callable[[ClusterView, int], Route]) -> Router:
    """Return the router that sends every request as soon as it arrives."""
    return lambda view: [choose(view, view.held[0])]


def never(requests: Requests, pools: Pools, *, seed: int = 0) -> Router:
    """Return the router without deflection: every prompt to the prefill node with the least time to the first token."""
    return _each(lambda view, i: best_pair(view, i)[1])


def co_locate(requests: Requests, pools: Pools, *, seed: int = 0) -> Router:
    """Return the router of a cluster without roles: everything stays on the node with the least time to the first token."""

    def choose(view: ClusterView, i: int) -> Route:
        nodes = [node for node in view.nodes if view.holds(node.index, i)] or list(view.nodes)
        whole = int(view.requests.prompt[i]) + max(int(view.requests.expected[i]), 1)

        def key(node: NodeState) -> tuple[float, float, float, int]:
            return node.lacks(whole), beside_decodes_s(view, node, i, ladder=False, limit_s=np.inf), node.step_s(), node.index

        k = min(nodes, key=key).index
        return Route(i, k, k)

    return _each(choose)


def prefix_threshold(requests: Requests, pools: Pools, *, seed: int = 0, threshold: int = THRESHOLD) -> Router:
    """Return the router that lets a prompt stay where it decodes if at most `threshold` tokens are not cached there."""

    def choose(view: ClusterView, i: int) -> Route:
        node = min((view.nodes[k] for k in view.pools.decode), key=lambda node: (node.uncached(i), node.step_s(), node.index))
        return Route(i, node.index, node.index) if node.uncached(i) <= threshold else best_pair(view, i)[1]

    return _each(choose)


def least_ttft(requests: Requests, pools: Pools, *, seed: int = 0) -> Router:
    """Return the router that first chooses where to decode, then the node with the least time to the first token."""

    def choose(view: ClusterView, i: int) -> Route:
        seconds, route = best_pair(view, i)
        here = beside_decodes_s(view, view.nodes[route.decode], i)
        return Route(i, route.decode, route.decode) if here < seconds else route

    return _each(choose)


def joint(requests: Requests, pools: Pools, *, seed: int = 0) -> Router:
    """Return the router that minimises the time to the first token over every decode node alone and every pair at once."""

    def choose(view: ClusterView, i: int) -> Route:
        here = [(beside_decodes_s(view, node, i), 0.0, node.index, node.index) for node in local_nodes(view, i)]
        free = [node.index for node in local_nodes(view, i)] or [decode_node(view, i)]
        load = {k: view.nodes[k].step_s(1, int(view.requests.prompt[i])) for k in free}
        there = [(on_prefill_s(view, k, i, d), load[d], k, d) for k in view.pools.prefill for d in free if view.holds(k, i)]
        if not here and not there:
            return best_pair(view, i)[1]
        _, _, k, d = min(here + there)
        return Route(i, k, d)

    return _each(choose)


def externality(requests: Requests, pools: Pools, *, seed: int = 0, weight: float = HARM) -> Router:
    """Return the router that minimises harm to others minus own value.

    Value is 1 for a first token within its target, and falls below 0 in proportion to its lateness. Harm of a deflection is
    the share of the residents' gap target that its steps take up, times `weight`; on a prefill node nobody is harmed.
    """

    def choose(view: ClusterView, i: int) -> Route:
        target = view.requests.ttft_s[i]
        target = np.inf if np.isnan(target) else float(target)

        def value(seconds: float) -> float:
            return 1.0 if seconds <= target else max(-1e6, (target - seconds) / target)

        seconds, route = best_pair(view, i)
        options = [(-value(seconds), seconds, route.prefill, route.decode)]
        for node in local_nodes(view, i):
            own = beside_decodes_s(view, node, i)
            taken = 1.0 - node.step_s() / node.limit_s if node.decodes and node.limit_s < np.inf else 0.0
            options.append((weight * taken - value(own) if own < np.inf else np.inf, own, node.index, node.index))
        _, _, k, d = min(options)
        return Route(i, k, d)

    return _each(choose)


def taichi(requests: Requests, pools: Pools, *, seed: int = 0) -> Router:
    """Return a router after TaiChi: all nodes are mixed, some with large chunks for prompts, the others with small ones.

    A prompt goes where its first token comes soonest, by the chunks of each kind of node. From a node with large chunks its
    decodes move on, since steps there would break their gap target.
    """

    def choose(view: ClusterView, i: int) -> Route:
        options = [best_pair(view, i)]
        options += [
            (beside_decodes_s(view, node, i, ladder=False, limit_s=np.inf), Route(i, node.index, node.index))
            for node in local_nodes(view, i)
        ]
        return min(options, key=lambda option: (option[0], option[1].prefill))[1]

    return _each(choose)


def average_queue_s(view: ClusterView, k: int, i: int) -> float:
    """Return Kairos's estimate of the time to the first token on a prefill node, with the transfer.

    The wait is (sum of the tokens ahead / chunk) steps, each as long as a chunk after half of these tokens; own time is the
    sum of its chunks.
    """
    node, ahead = view.nodes[k], view.nodes[k].backlog_tokens
    tokens = node.uncached(i)
    chunk = float(node.budget)
    step = step_s(node.cost.coefficients, node.host, np.zeros(7), ahead / 2, min(chunk, float(max(ahead, 1))))
    wait = ahead / min(chunk, float(max(ahead, 1))) * step if ahead else 0.0
    return wait + node.prompt_s(tokens, int(view.requests.prompt[i]) - tokens)


def kairos(requests: Requests, pools: Pools, *, seed: int = 0, alpha: float = ALPHA, beta: float = 1.0) -> Router:
    """Return Kairos (arXiv 2607.02043): deflect to the best decode node without a prompt in flight.

    The condition is TTFT there <= alpha * TTFT on the best prefill node, and <= the request's target. The transfer, which
    the printed estimate lacks, is included.
    """

    def choose(view: ClusterView, i: int) -> Route:
        target = decode_node(view, i)
        fits = [k for k in view.pools.prefill if view.holds(k, i)] or list(view.pools.prefill)
        there, k = min((average_queue_s(view, k, i) + view.transfer_s(k, target, i), k) for k in fits)
        free = [node for node in local_nodes(view, i) if not node.prompts]
        here, d = min(
            ((node.beside_s(node.uncached(i), 0, beta * node.limit_s, ladder=True), node.index) for node in free),
            default=(np.inf, -1),
        )
        limit = view.requests.ttft_s[i]
        return Route(i, d, d) if here <= alpha * there and not here > limit and here < np.inf else Route(i, k, target)

    return _each(choose)
