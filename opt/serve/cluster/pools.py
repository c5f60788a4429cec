"""What a cluster consists of: nodes with a role and an engine each, links between them, and the file `kvopt-pools/1`.

A file is a JSON object:

    {"format": "kvopt-pools/1", "kv_bytes_per_token": 131072, "heartbeat_s": 0.1,
     "nodes": [{"name": "p", "role": "prefill", "count": 2, "cost": "a100-llama-3-8b", "engine": {"token_budget": 4096}},
               {"name": "d", "role": "decode", "count": 2, "cost": "a100-llama-3-8b"}],
     "links": [{"between": ["p0", "switch"], "bytes_per_s": 25e9, "latency_s": 0.0002}, ...]}

`count` makes nodes p0, p1, ... (one node keeps its name); `engine` holds fields of `EngineConfig`. Ends of links that are
no nodes are switches. Without links every node has one of `DEFAULT_LINK` to a common switch. A role says what a node is
there for: prompts, decodes, or both; whether a decode node also takes prompts is the router's affair. Unknown keys,
duplicate names, and nodes that cannot reach each other are errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import msgspec

from opt.core.cost import CostModel, cost_model
from opt.core.errors import InstanceError
from opt.core.source import TraceSource
from opt.core.strict_json import as_json, load_as, write_bytes
from opt.sim.config import EngineConfig

if TYPE_CHECKING:
    import networkx

__all__ = ["POOLS_FORMAT", "Link", "Node", "Pools", "Role", "read_pools", "write_pools"]

POOLS_FORMAT = "kvopt-pools/1"
Role: TypeAlias = Literal["prefill", "decode", "mixed"]
MOST_NODES = 1024


@dataclass(frozen=True)
class Node:
    """One engine of a cluster.

    Args:
        name: unique among nodes and switches.
        role: "prefill", "decode" or "mixed".
        cost: how long its steps take.
        config: its own settings; changing those of one node changes no other.
    """

    name: str
    role: Role
    cost: CostModel
    config: EngineConfig = field(default_factory=EngineConfig)

    def __post_init__(self) -> None:
        if self.role not in ("prefill", "decode", "mixed"):
            raise InstanceError(f"node {self.name}: role = {self.role!r}: must be prefill, decode or mixed")
        if self.config.kv_tokens is None and self.cost.memory is None:
            raise InstanceError(f"node {self.name}: no KV capacity: cost {self.cost.name} has none, so set engine.kv_tokens")

    @property
    def kv_tokens(self) -> int:
        """Capacity of its KV cache in tokens."""
        tokens = self.config.kv_tokens if self.config.kv_tokens is not None else self.cost.memory
        assert tokens is not None
        return tokens


@dataclass(frozen=True)
class Link:
    """A link in both directions, each of which carries one transfer at a time, in order of request.

    Args:
        between: two names.
        bytes_per_s: bandwidth of a direction.
        latency_s: added to every transfer.
    """

    between: tuple[str, str]
    bytes_per_s: float
    latency_s: float = 0.0

    def __post_init__(self) -> None:
        if not 0 < self.bytes_per_s < float("inf"):
            raise InstanceError(f"link {' - '.join(self.between)}: bytes_per_s = {self.bytes_per_s}: must be above 0 and finite")
        if not 0 <= self.latency_s < float("inf"):
            raise InstanceError(f"link {' - '.join(self.between)}: latency_s = {self.latency_s}: must be 0 or more and finite")


DEFAULT_LINK = Link(("node", "switch"), 25e9, 1e-4)  # 200 Gb/s and 0.1 ms to a switch, for nodes of a file without links
DEFAULT_KV_BYTES = 131_072  # a token of Llama-3-8B: 32 layers, 8 heads of 128 for keys and for values, 2 bytes


@dataclass(frozen=True, eq=False)
class Pools:
    """A cluster.

    Args:
        nodes: at least one that may take prompts, and one that may decode.
        links: the network; empty for `DEFAULT_LINK` from every node to a switch.
        kv_bytes_per_token: what a transfer carries.
        heartbeat_s: seconds between two reports of the nodes to the dispatcher; it knows nothing newer of them.
        name: for messages.

    Raises:
        InstanceError: a name stands twice, a role is missing, or two nodes cannot reach each other.
    """

    nodes: tuple[Node, ...]
    links: tuple[Link, ...] = ()
    kv_bytes_per_token: float = DEFAULT_KV_BYTES
    heartbeat_s: float = 0.1
    name: str = "pools"

    def __post_init__(self) -> None:
        names = [node.name for node in self.nodes]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InstanceError(f"{self.name}: node name {twice[0]!r} stands twice")
        if not self.prefill or not self.decode:
            raise InstanceError(f"{self.name}: needs a node for prompts (prefill or mixed) and one for decodes (decode or mixed)")
        if not 0 < self.heartbeat_s < float("inf"):
            raise InstanceError(f"{self.name}: heartbeat_s = {self.heartbeat_s}: must be above 0 and finite")
        if not 0 <= self.kv_bytes_per_token < float("inf"):
            raise InstanceError(f"{self.name}: kv_bytes_per_token = {self.kv_bytes_per_token}: must be 0 or more and finite")
        self._check_reach()

    def _check_reach(self) -> None:
        import networkx

        whole = networkx.node_connected_component(self.graph, self.nodes[0].name)
        lost = [node.name for node in self.nodes if node.name not in whole]
        if lost:
            raise InstanceError(f"{self.name}: node {lost[0]} has no path of links to {self.nodes[0].name}")

    @cached_property
    def prefill(self) -> tuple[int, ...]:
        """Places of the nodes that take prompts as their own work."""
        return tuple(k for k, node in enumerate(self.nodes) if node.role != "decode")

    @cached_property
    def decode(self) -> tuple[int, ...]:
        """Places of the nodes that decode."""
        return tuple(k for k, node in enumerate(self.nodes) if node.role != "prefill")

    @cached_property
    def graph(self) -> networkx.Graph:
        """The network: nodes and switches by name, links with `bytes_per_s` and `latency_s`."""
        import networkx

        graph = networkx.Graph()
        graph.add_nodes_from(node.name for node in self.nodes)
        links = self.links or [replace(DEFAULT_LINK, between=(node.name, " switch")) for node in self.nodes]
        for link in links:
            graph.add_edge(*link.between, bytes_per_s=link.bytes_per_s, latency_s=link.latency_s)
        return graph


class _Node(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    name: str
    role: Role
    cost: str
    count: int = 1
    engine: dict[str, Any] = {}


class _Link(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    between: tuple[str, str]
    bytes_per_s: float
    latency_s: float = 0.0


class _PoolsFile(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    format: Literal["kvopt-pools/1"]
    nodes: list[_Node]
    links: list[_Link] = []
    kv_bytes_per_token: float = DEFAULT_KV_BYTES
    heartbeat_s: float = 0.1
    name: str = "pools"


def read_pools(source: TraceSource) -> Pools:
    """Return the cluster in a file; `-` is standard input.

    Raises:
        InstanceError: unreadable, another format, an unknown key, or a value out of range; the message names the place.
    """
    place, file = load_as(source, _PoolsFile, POOLS_FORMAT, "a pools file")
    try:
        nodes = tuple(node for entry in file.nodes for node in _nodes_of(entry))
        links = tuple(Link(link.between, link.bytes_per_s, link.latency_s) for link in file.links)
        return Pools(nodes, links, file.kv_bytes_per_token, file.heartbeat_s, file.name)
    except InstanceError as error:
        raise InstanceError(f"{place}: {error}") from None


def _nodes_of(entry: _Node) -> Sequence[Node]:
    if not 1 <= entry.count <= MOST_NODES:
        raise InstanceError(f"node {entry.name}: count = {entry.count}: must be from 1 to {MOST_NODES}")
    known = EngineConfig.__dataclass_fields__
    unknown = sorted(set(entry.engine) - set(known))
    if unknown:
        raise InstanceError(f"node {entry.name}: engine has no setting {unknown[0]!r}; it has {', '.join(known)}")
    cost = cost_model(entry.cost)
    names = [entry.name] if entry.count == 1 else [f"{entry.name}{k}" for k in range(entry.count)]
    return [Node(name, entry.role, cost, EngineConfig(**{**entry.engine, "name": name})) for name in names]


def write_pools(pools: Pools, path: str | Path) -> None:
    """Write a cluster to a file, `-` for standard output; costs are written by name."""
    plain = asdict(EngineConfig())
    nodes = []
    for node in pools.nodes:
        changes = {key: cell for key, cell in asdict(node.config).items() if cell != plain[key] and key != "name"}
        nodes.append({"name": node.name, "role": node.role, "cost": node.cost.name, "engine": changes})
    value = {
        "format": POOLS_FORMAT,
        "name": pools.name,
        "kv_bytes_per_token": pools.kv_bytes_per_token,
        "heartbeat_s": pools.heartbeat_s,
        "nodes": nodes,
        "links": [asdict(link) for link in pools.links],
    }
    write_bytes(as_json(value), path)
