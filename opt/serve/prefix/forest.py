"""Who shares what, as a forest: one node for every run of chunks that the same requests have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from opt.core.errors import InstanceError
from opt.core.instance import Instance

if TYPE_CHECKING:
    import networkx

__all__ = ["sharing_forest"]


def sharing_forest(instance: Instance) -> networkx.DiGraph[int]:
    """Return the prompts' sharing structure as a networkx forest.

    A node is a maximal run of chunks with the same holders, its parent the run before it. Attributes of a node: `begin`
    and `end` (tokens from the start of the prompt), `requests` (how many hold it), `first` and `last` (the places of its
    holders, `last` excluded, when requests are sorted so that every node's are neighbours). Attributes of the graph:
    `order` (that order), `tokens` (all prompt tokens), `stored` (those that are left when each chunk counts once).

    Raises:
        InstanceError: the instance has no prefix hashes.

    >>> instance = Instance(100, [8, 8, 8], [1, 1, 1], prefix=[[1, 2], [1, 3], [4, 5]], prefix_chunk=4)
    >>> forest = sharing_forest(instance)
    >>> [(data["begin"], data["end"], data["requests"]) for _, data in forest.nodes(data=True)]
    [(0, 4, 2), (4, 8, 1), (4, 8, 1), (0, 8, 1)]
    >>> list(forest.edges), forest.graph["tokens"], forest.graph["stored"]
    ([(0, 1), (0, 2)], 24, 20)
    """
    import networkx

    rows, chunk = instance.prefix_rows(), instance.prefix_chunk
    if rows is None or chunk is None:
        raise InstanceError(f"instance {instance.name or '(unnamed)'} has no prefix hashes, so nothing is known to be shared")
    order = sorted(range(instance.n), key=lambda i: rows[i])
    sorted_rows, prompt = [rows[i] for i in order], instance.prompt[order].tolist()
    forest: networkx.DiGraph[int] = networkx.DiGraph(order=order, tokens=int(instance.prompt.sum()), stored=0)
    stack: list[tuple[int, int, int, int | None]] = [(0, instance.n, 0, None)]
    while stack:
        first, last, depth, parent = stack.pop()
        groups = list(_groups(sorted_rows, first, last, depth))
        if len(groups) > 1:
            stack += [(begin, end, depth, parent) for begin, end in reversed(groups)]
        elif groups:
            ((begin, end),) = groups
            deep = _agree(sorted_rows[begin], sorted_rows[end - 1], depth)
            tokens = min(deep * chunk, prompt[begin])
            node = _add(forest, parent, depth * chunk, tokens, begin, end)
            forest.graph["stored"] += tokens - depth * chunk
            stack.append((begin, end, deep, node))
    return forest


def _groups(rows: list[list[int]], first: int, last: int, depth: int) -> Iterator[tuple[int, int]]:
    """Yield (begin, end) of neighbours with the same chunk at `depth`; who has none is left out."""
    begin = first
    for at in range(first + 1, last + 1):
        if at == last or rows[at][depth : depth + 1] != rows[begin][depth : depth + 1]:
            if len(rows[begin]) > depth:
                yield begin, at
            begin = at


def _agree(first: list[int], last: list[int], depth: int) -> int:
    """Return how deep the first and the last of sorted rows agree: so do all between them."""
    while depth < min(len(first), len(last)) and first[depth] == last[depth]:
        depth += 1
    return depth


def _add(forest: networkx.DiGraph[int], parent: int | None, begin: int, end: int, first: int, last: int) -> int:
    node: int = forest.number_of_nodes()
    forest.add_node(node, begin=begin, end=end, requests=last - first, first=first, last=last)
    if parent is not None:
        forest.add_edge(parent, node)
    return node
