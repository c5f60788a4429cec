"""The Chunked Hash Tree: which waiting request adds least to the prefixes that the running ones hold, in a microsecond.

Every prompt is a list of cumulative chunk hashes (`opt.serve.prefix.hashing`), so prompts form a forest: a node is a
prefix, its parent the prefix one chunk shorter. The *working set* is the set of nodes on the paths of the active
requests; `missing(i)` is how many nodes of i's path are not in it. The published structure (Feather, arXiv 2605.06046)
keeps missing counts with every waiting request and rewrites those of all sharers whenever a chunk enters or leaves the
working set. Here no count is stored. The working set contains the ancestors of its nodes, so with `least(v)` the least
(depth, request) among those waiting in v's subtree,

    min over waiting i of (missing(i), i) = min over v in the working set, or the root, of least(v) - (depth(v), 0):

a request counted from an ancestor of the deepest working node of its path only looks worse than it is, never better.
So activating a request costs as many steps as it has chunks, whoever shares them, and selecting one is a look at a heap.

Costs, with c chunks in a prompt: insert, activate, finish O(c log W); select O(log W) amortised; `missing`, `common_with`
O(c); `common` O(log c). There is no limit on levels. Invariants (each has a test): T1 the answers are those of a naive
model that compares prompts; T2 heaps hold at most a constant times what is there; T3 an emptied tree has no nodes.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from heapq import heapify, heappop, heappush, heapreplace

__all__ = ["ChunkedHashTree", "Node"]

SLACK = 32  # stale entries that a heap may hold beyond twice its live ones


class Node:
    """A prefix: `depth` chunks, `refs` active and `waiting` waiting requests that begin with it."""

    __slots__ = ("children", "depth", "key", "least", "parent", "refs", "serial", "waiting")

    def __init__(self, key: Hashable, parent: Node | None, depth: int, serial: int) -> None:
        self.key = key
        self.parent = parent
        self.depth = depth
        self.serial = serial
        self.children: dict[Hashable, Node] = {}
        self.refs = 0
        self.waiting = 0
        self.least: list[tuple[int, int]] = []  # heap of (depth, request) of who waits here or below; some have left


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
        self.root = Node(None, None, 0, 0)
        self.waiting: dict[int, list[Node]] = {}
        self.active: dict[int, list[Node]] = {}
        self.total_chunks = 0  # over active requests
        self.distinct_chunks = 0  # in the working set
        self.nodes = 0  # different prefixes of all who wait or run
        self._serial = 0
        self._nearest: list[tuple[int, int, int, Node]] = []  # heap of (missing, request, serial, working node)
        self._heaviest: list[tuple[int, int, Node]] = []  # heap of (-weight, serial, node)

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
        node, path = self.root, [self.root]
        for key in chunks:
            child = node.children.get(key)
            if child is None:
                self._serial += 1
                self.nodes += 1
                child = node.children[key] = Node(key, node, node.depth + 1, self._serial)
            path.append(child)
            node = child
        self._enqueue(i, path)

    def _enqueue(self, i: int, path: list[Node]) -> None:
        """Count a request as waiting on every node of its path."""
        self.waiting[i] = path
        entry = (len(path) - 1, i)
        known = -1
        for node in path:
            node.waiting += 1
            heap = node.least
            heappush(heap, entry)
            if heap[0] is entry and (node.refs or node.parent is None):
                heappush(self._nearest, (entry[0] - node.depth, i, node.serial, node))
            if len(heap) > 2 * node.waiting + SLACK:
                self._compact(node)
        for node in reversed(path):  # of nodes with the same requests the deepest weighs most
            if node.waiting != known and node.waiting > 1 and node.depth:
                heappush(self._heaviest, (-(node.waiting - 1) * node.depth, node.serial, node))
            known = node.waiting
        self._trim()

    def _dequeue(self, i: int) -> list[Node]:
        path = self.waiting.pop(i)
        for node in path:
            node.waiting -= 1
        return path

    def activate(self, i: int) -> None:
        """Let a waiting request be active; its prefixes join the working set."""
        path = self._dequeue(i)
        self.active[i] = path
        self.total_chunks += len(path) - 1
        for node in path:
            node.refs += 1
            if node.refs == 1 and node.parent is not None:
                self.distinct_chunks += 1
                self._offer(node)

    def _offer(self, node: Node) -> None:
        """Put a working node's best candidate among those to choose from."""
        found = self._least(node)
        if found is not None:
            heappush(self._nearest, (found[0] - node.depth, found[1], node.serial, node))

    def _least(self, node: Node) -> tuple[int, int] | None:
        """Return the least (depth, request) that waits at or below a node."""
        heap, waiting = node.least, self.waiting
        while heap:
            depth, i = heap[0]
            path = waiting.get(i)
            if path is not None and len(path) - 1 == depth and path[node.depth] is node:
                return heap[0]
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

    def _leave(self, i: int) -> list[Node]:
        path = self.active.pop(i)
        self.total_chunks -= len(path) - 1
        for node in path:
            node.refs -= 1
            if not node.refs and node.parent is not None:
                self.distinct_chunks -= 1
        return path

    def _prune(self, path: list[Node]) -> None:
        """Take away what nobody begins with any more."""
        for node in reversed(path):
            if node.waiting or node.refs or node.parent is None:
                return
            del node.parent.children[node.key]
            self.nodes -= 1

    def select(self) -> tuple[int, int] | None:
        """Return the waiting request with the least (missing, request) and its missing chunks; None if nobody waits."""
        heap = self._nearest
        while heap:
            missing, i, serial, node = heap[0]
            found = self._least(node) if node.refs or node.parent is None else None
            if found is None:
                heappop(heap)
            elif found == (missing + node.depth, i):
                return i, missing
            else:
                heapreplace(heap, (found[0] - node.depth, found[1], serial, node))
        return None

    def heaviest(self) -> Node | None:
        """Return the prefix whose waiting requests share most: the largest (waiting - 1) * depth; None if nobody shares."""
        heap = self._heaviest
        while heap:
            weight, serial, node = heap[0]
            now = -(node.waiting - 1) * node.depth
            if now >= 0:
                heappop(heap)
            elif now == weight:
                return node
            else:
                heapreplace(heap, (now, serial, node))
        return None

    def missing(self, i: int) -> int:
        """Return how many chunks of a waiting request are not in the working set."""
        path = self.waiting[i]
        return len(path) - 1 - self._depth_where(path, 1)

    @property
    def common(self) -> int:
        """The length in chunks of the prefix common to all active requests; 0 without any."""
        if not self.active:
            return 0
        return self._depth_where(next(iter(self.active.values())), len(self.active))

    def common_with(self, i: int) -> int:
        """Return what `common` would be if waiting request i were active; its own length if nobody is."""
        return self._depth_where(self.waiting[i], len(self.active)) if self.active else len(self.waiting[i]) - 1

    def _depth_where(self, path: list[Node], refs: int) -> int:
        """Return the depth of the last node of a path with at least so many active requests, by bisection."""
        low, high = 0, len(path) - 1
        while low < high:
            middle = (low + high + 1) // 2
            if path[middle].refs >= refs:
                low = middle
            else:
                high = middle - 1
        return low

    def sharers(self, i: int, depth: int) -> int:
        """Return how many other waiting requests begin with the first `depth` chunks of waiting request i."""
        return self.waiting[i][depth].waiting - 1

    def below(self, node: Node) -> Iterator[int]:
        """Yield the waiting requests that begin with a node, least (depth, request) first, as far as they are asked for.

        Nothing may join or leave in between.
        """
        heap = list(node.least)
        heapify(heap)
        previous = None
        while heap:
            entry = heappop(heap)
            path = self.waiting.get(entry[1])
            if entry != previous and path is not None and len(path) - 1 == entry[0] and path[node.depth] is node:
                yield entry[1]
            previous = entry

    def first(self, node: Node) -> int | None:
        """Return the waiting request with the least (depth, request) that begins with a node; None if nobody does."""
        found = self._least(node)
        return None if found is None else found[1]

    def _compact(self, node: Node) -> None:
        """Keep only live entries, each once."""
        live = {(depth, i) for depth, i in node.least if len(self.waiting.get(i, ())) - 1 == depth}
        node.least = [entry for entry in live if self.waiting[entry[1]][node.depth] is node]
        heapify(node.least)

    def _trim(self) -> None:
        """Rebuild the two heaps over nodes when most of their entries are stale."""
        limit = SLACK + 4 * (len(self.waiting) + self.distinct_chunks)
        if len(self._nearest) > limit:
            nodes = {node.serial: node for *_, node in self._nearest if node.refs or node.parent is None}
            self._nearest = []
            for node in nodes.values():
                self._offer(node)
        if len(self._heaviest) > limit:
            nodes = {node.serial: node for *_, node in self._heaviest if node.waiting > 1}
            self._heaviest = [(-(node.waiting - 1) * node.depth, node.serial, node) for node in nodes.values()]
            heapify(self._heaviest)
