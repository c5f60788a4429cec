"""The Chunked Hash Tree: which waiting request adds least to the prefixes that the running ones hold, in a microsecond.

Every prompt is a list of cumulative chunk hashes (`opt.serve.prefix.hashing`), so prompts form a forest of prefixes. A node
is a *run*: chunks one after another that the same requests have, from where some prompt leaves the path to where the next
one does. It is split when a prompt leaves it in the middle. The *working set* is the set of runs on the paths of the
active requests; `missing(i)` is how many chunks of i's prompt are not in it. The published structure (Feather, arXiv
2605.06046) keeps missing counts with every waiting request and rewrites those of all sharers whenever a chunk enters or
leaves the working set. Here no count is stored. The working set contains the ancestors of its nodes, so with `least(v)`
the least (depth, request) among those waiting in v's subtree,

    min over waiting i of (missing(i), i) = min over v in the working set, or the root, of least(v) - (depth(v), 0):

a request counted from an ancestor of the deepest working node of its path only looks worse than it is, never better.
So activating a request costs as many steps as its path has runs, whoever shares them, and selecting one is a look at a heap.

Costs, with c chunks in a prompt and k runs on its path (one more than the places where others part from it): insert
O(c + k log W), and a copy of a heap where a run is split; activate, finish O(k log W); select O(log W) amortised;
`missing`, `common`, `common_with` O(k). There is no limit on levels. Invariants (each has a test): T1 the answers are those
of a naive model that compares prompts; T2 heaps hold at most a constant times what is there; T3 an emptied tree has no
nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from typing import TypeAlias

__all__ = ["ChunkedHashTree", "Node"]

SLACK = 32  # stale entries that a heap may hold beyond twice its live ones

Entry: TypeAlias = tuple[int, int, int]  # chunks of a waiting request, its number, and the ticket it has while it waits


class Node:
    """A run of chunks: `depth` chunks up to its end, `refs` active and `waiting` waiting requests that begin with them."""

    __slots__ = ("children", "depth", "keys", "least", "offered", "parent", "refs", "serial", "waiting", "weight")

    def __init__(self, keys: list[Hashable], parent: Node | None, serial: int) -> None:
        self.keys = keys
        self.parent = parent
        self.depth: int = len(keys) + (0 if parent is None else parent.depth)
        self.serial = serial
        self.children: dict[Hashable, Node] = {}  # by the first chunk of each
        self.refs = 0
        self.waiting = 0
        self.least: list[Entry] = []  # heap of who waits here or below; some have left
        self.offered: tuple[int, int] | None = None  # the (missing, request) with which the node is among the nearest
        self.weight = 0  # the weight with which it is among the heaviest; 0 if it is not


class ChunkedHashTree:
    """Waiting and active requests by the prefixes they share.

    A request is `insert`ed as waiting, `activate`d, and `finish`ed; an active one may `wait` again, a waiting one may be
    `remove`d. Requests are integers; the smaller one goes first among equals.

    >>> tree = ChunkedHashTree()
    >>> for i, chunks in enumerate(["ab", "xyz", "abc"]):
    ...     tree.insert(i, chunks)
    >>> tree.activate(0)
    >>> tree.select(), tree.missing(1), tree.common, tree.common_with(2), tree.common_with(1)
    ((2, 1), 3, 2, 2, 0)
    """

    def __init__(self) -> None:
        self.root = Node([], None, 0)
        self.waiting: dict[int, Node] = {}  # the run that each prompt ends with
        self.active: dict[int, Node] = {}
        self.total_chunks = 0  # over active requests
        self.distinct_chunks = 0  # in the working set
        self.nodes = 0  # different chunks of all who wait or run
        self._serial = 0
        self._tickets: dict[int, int] = {}  # of who waits: an entry with another ticket is stale
        # Heaps of nodes by what they promise at best: one valid entry for each node, others are passed over.
        self._nearest: list[tuple[int, int, int, Node]] = []  # (missing, request, serial, working node)
        self._heaviest: list[tuple[int, int, Node]] = []  # (-weight, serial, node)
        self._deepest: list[tuple[int, int, Node]] = []  # (-depth, serial, working node with waiting requests)
        self._limits = [SLACK, SLACK, SLACK]

    def __contains__(self, i: int) -> bool:
        return i in self.waiting or i in self.active

    def insert(self, i: int, chunks: Sequence[Hashable]) -> None:
        """Let a request wait.

        Args:
            i: its number.
            chunks: its chunk hashes; names of any hashable kind do, if equal ones mean equal chunks after equal ones.

        Raises:
            ValueError: the request is already here.
        """
        if i in self:
            raise ValueError(f"request {i} is already in the tree")
        self._enqueue(i, self._end_of(list(chunks)))

    def _end_of(self, keys: list[Hashable]) -> Node:
        """Return the run that a prompt ends with; runs are added, and split, as it needs."""
        node, at = self.root, 0
        while at < len(keys):
            child = node.children.get(keys[at])
            if child is None:
                return self._add(node, keys[at:])
            run = child.keys
            mine = keys[at : at + len(run)]
            if mine != run:
                same = next((k for k, (a, b) in enumerate(zip(mine, run, strict=False)) if a != b), len(mine))
                child = self._split(child, same)
            node, at = child, child.depth
        return node

    def _add(self, parent: Node, keys: list[Hashable]) -> Node:
        self._serial += 1
        self.nodes += len(keys)
        node = parent.children[keys[0]] = Node(keys, parent, self._serial)
        return node

    def _split(self, node: Node, at: int) -> Node:
        """Cut a run before its chunk number `at`, and return the upper part, a new node; the lower one stays who it is."""
        assert node.parent is not None
        self._serial += 1
        upper = node.parent.children[node.keys[0]] = Node(node.keys[:at], node.parent, self._serial)
        node.keys, node.parent = node.keys[at:], upper
        upper.children[node.keys[0]] = node
        upper.refs, upper.waiting, upper.least = node.refs, node.waiting, node.least.copy()
        if upper.refs:
            self._offer(upper, self._least(upper))
            if upper.waiting:
                heappush(self._deepest, (-upper.depth, upper.serial, upper))
        return upper

    def _enqueue(self, i: int, end: Node) -> None:
        """Count a request as waiting on every node of its path."""
        self._serial += 1
        self.waiting[i], self._tickets[i] = end, self._serial
        entry = (end.depth, i, self._serial)
        node: Node | None = end
        known = -1
        while node is not None:
            count = node.waiting = node.waiting + 1
            heap = node.least
            heappush(heap, entry)
            if heap[0] is entry and (node.refs or node.parent is None):
                self._offer(node, entry)
            if len(heap) > 2 * count + SLACK:
                self._compact(node)
            if count == 1 and node.refs:
                heappush(self._deepest, (-node.depth, node.serial, node))
            weight = (count - 1) * node.depth
            if count != known and weight > node.weight:  # of nodes with the same requests the deepest weighs most
                node.weight = weight
                heappush(self._heaviest, (-weight, node.serial, node))
            known, node = count, node.parent
        self._trim()

    def _dequeue(self, i: int) -> Node:
        del self._tickets[i]
        end = self.waiting.pop(i)
        node: Node | None = end
        while node is not None:
            node.waiting -= 1
            node = node.parent
        return end

    def activate(self, i: int) -> None:
        """Let a waiting request be active; its prefixes join the working set."""
        end = self._dequeue(i)
        self.active[i] = end
        self.total_chunks += end.depth
        node: Node | None = end
        while node is not None:
            node.refs += 1
            if node.refs == 1 and node.parent is not None:
                self.distinct_chunks += len(node.keys)
                self._offer(node, self._least(node))
                if node.waiting:
                    heappush(self._deepest, (-node.depth, node.serial, node))
            node = node.parent

    def _offer(self, node: Node, found: Entry | None) -> None:
        """Put a working node's best candidate among those to choose from, unless it promises as much already."""
        if found is None:
            return
        key = found[0] - node.depth, found[1]
        if node.offered is None or key < node.offered:
            node.offered = key
            heappush(self._nearest, (*key, node.serial, node))

    def _least(self, node: Node) -> Entry | None:
        """Return the least (depth, request) that waits at or below a node."""
        heap, tickets = node.least, self._tickets
        while heap:
            entry = heap[0]
            if tickets.get(entry[1]) == entry[2]:
                return entry
            heappop(heap)
        return None

    def finish(self, i: int) -> None:
        """Forget an active request."""
        self._prune(self._leave(i))

    def wait(self, i: int) -> None:
        """Let an active request wait again."""
        self._enqueue(i, self._leave(i))

    def remove(self, i: int) -> None:
        """Forget a waiting request."""
        self._prune(self._dequeue(i))

    def _leave(self, i: int) -> Node:
        end = self.active.pop(i)
        self.total_chunks -= end.depth
        node: Node | None = end
        while node is not None:
            node.refs -= 1
            if not node.refs and node.parent is not None:
                self.distinct_chunks -= len(node.keys)
            node = node.parent
        return end

    def _prune(self, node: Node) -> None:
        """Take away what nobody begins with any more."""
        while not (node.waiting or node.refs or node.parent is None):
            del node.parent.children[node.keys[0]]
            self.nodes -= len(node.keys)
            node = node.parent

    def select(self) -> tuple[int, int] | None:
        """Return the waiting request with the least (missing, request) and its missing chunks; None if nobody waits."""
        heap = self._nearest
        while heap:
            missing, i, serial, node = heap[0]
            if node.offered != (missing, i):
                heappop(heap)
                continue
            found = self._least(node) if node.refs or node.parent is None else None
            if found is None:
                node.offered = None
                heappop(heap)
                continue
            now = found[0] - node.depth, found[1]
            if now == node.offered:
                return i, missing
            node.offered = now
            heapreplace(heap, (*now, serial, node))
        return None

    def heaviest(self) -> Node | None:
        """Return the prefix whose waiting requests share most: the largest (waiting - 1) * depth; None if nobody shares."""
        heap = self._heaviest
        while heap:
            weight, serial, node = heap[0]
            now = (node.waiting - 1) * node.depth
            if now <= 0 or node.weight != -weight:
                node.weight = 0 if node.weight == -weight else node.weight
                heappop(heap)
            elif now == -weight:
                return node
            else:
                node.weight = now
                heapreplace(heap, (-now, serial, node))
        return None

    def deepest(self) -> Node | None:
        """Return the longest prefix that an active and a waiting request have in common; None if there is none."""
        heap = self._deepest
        while heap:
            node = heap[0][2]
            if node.refs and node.waiting and node.depth:
                return node
            heappop(heap)
        return None

    def missing(self, i: int) -> int:
        """Return how many chunks of a waiting request are not in the working set."""
        end = self.waiting[i]
        return end.depth - self._depth_where(end, 1)

    @property
    def common(self) -> int:
        """The length in chunks of the prefix common to all active requests; 0 without any."""
        if not self.active:
            return 0
        return self._depth_where(next(iter(self.active.values())), len(self.active))

    def common_with(self, i: int) -> int:
        """Return what `common` would be if waiting request i were active; its own length if nobody is."""
        return self._depth_where(self.waiting[i], len(self.active))

    def _depth_where(self, node: Node, refs: int) -> int:
        """Return the depth of the last node of a path with at least so many active requests; `node` is its end."""
        while node.refs < refs and node.parent is not None:
            node = node.parent
        return node.depth

    def sharers(self, i: int, depth: int) -> int:
        """Return how many other waiting requests begin with the first `depth` chunks of waiting request i."""
        node = self.waiting[i]
        while node.parent is not None and node.parent.depth >= depth:
            node = node.parent
        return node.waiting - 1

    def below(self, node: Node) -> Iterator[int]:
        """Yield the waiting requests that begin with a node, least (depth, request) first, as far as they are asked for.

        Nothing may join or leave in between. The heap is walked, not sorted: k requests cost O(k log k).
        """
        heap, tickets = node.least, self._tickets
        edge = [(heap[0], 0)] if heap else []
        while edge:
            (_, i, ticket), at = heappop(edge)
            for child in range(2 * at + 1, min(2 * at + 3, len(heap))):
                heappush(edge, (heap[child], child))
            if tickets.get(i) == ticket:
                yield i

    def first(self, node: Node) -> int | None:
        """Return the waiting request with the least (depth, request) that begins with a node; None if nobody does."""
        found = self._least(node)
        return None if found is None else found[1]

    def _compact(self, node: Node) -> None:
        """Keep only live entries."""
        node.least = [entry for entry in node.least if self._tickets.get(entry[1]) == entry[2]]
        heapify(node.least)

    def _trim(self) -> None:
        """Rebuild the heaps over nodes when they have doubled."""
        if len(self._nearest) > self._limits[0]:
            self._nearest = [entry for entry in self._nearest if _stands(entry[3], entry[:2])]
            heapify(self._nearest)
            self._limits[0] = 2 * len(self._nearest) + SLACK
        if len(self._heaviest) > self._limits[1]:
            self._heaviest = [entry for entry in self._heaviest if _weighs(entry[2], -entry[0])]
            heapify(self._heaviest)
            self._limits[1] = 2 * len(self._heaviest) + SLACK
        if len(self._deepest) > self._limits[2]:
            self._deepest = list({entry[1]: entry for entry in self._deepest if entry[2].refs and entry[2].waiting}.values())
            heapify(self._deepest)
            self._limits[2] = 2 * len(self._deepest) + SLACK


def _stands(node: Node, key: tuple[int, int]) -> bool:
    """Whether an entry among the nearest is valid; a node that has left the working set is taken out."""
    if node.offered == key and not (node.refs or node.parent is None):
        node.offered = None
    return node.offered == key


def _weighs(node: Node, weight: int) -> bool:
    """Whether an entry among the heaviest is valid; a node that nobody shares any more is taken out."""
    if node.weight == weight and node.waiting < 2:
        node.weight = 0
    return node.weight == weight
