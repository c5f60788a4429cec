"""A radix tree over tokens, as engines use for prefix caches: the baseline that the Chunked Hash Tree is measured against.

Nodes hold runs of tokens; matching walks them and compares token by token (here with vectorised comparisons), so a look-up
costs the length of the match, for every waiting request in every step.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from opt.core.columns import IntArray

__all__ = ["RadixTree", "longest_match_first"]


class _Run:
    __slots__ = ("children", "tokens")

    def __init__(self, tokens: IntArray) -> None:
        self.tokens = tokens
        self.children: dict[int, _Run] = {}


class RadixTree:
    """Prompts that are cached.

    >>> tree = RadixTree()
    >>> tree.insert([1, 2, 3, 4]), tree.insert([1, 2, 9]), tree.match([1, 2, 9, 9])
    (0, 2, 3)
    """

    def __init__(self) -> None:
        self._root = _Run(np.empty(0, np.int64))

    def match(self, tokens: npt.ArrayLike) -> int:
        """Return how many leading tokens are in the tree."""
        return self._walk(np.asarray(tokens, np.int64))[2]

    def insert(self, tokens: npt.ArrayLike) -> int:
        """Put a prompt in, and return how much of it was there."""
        array = np.asarray(tokens, np.int64)
        node, within, found = self._walk(array)
        if within < len(node.tokens):  # split the run where the prompt leaves it
            lower = _Run(node.tokens[within:])
            lower.children = node.children
            node.tokens, node.children = node.tokens[:within], {int(lower.tokens[0]): lower}
        if found < len(array):
            node.children[int(array[found])] = _Run(array[found:])
        return found

    def _walk(self, tokens: IntArray) -> tuple[_Run, int, int]:
        """Return the last node of the match, how far into it, and the length of the match."""
        node, found = self._root, 0
        while found < len(tokens):
            child = node.children.get(int(tokens[found]))
            if child is None:
                break
            length = _common(child.tokens, tokens[found:])
            node, found = child, found + length
            if length < len(child.tokens):
                return node, length, found
        return node, len(node.tokens), found


def _common(a: IntArray, b: IntArray) -> int:
    """Return the length of the longest common prefix."""
    size = min(len(a), len(b))
    differ = a[:size] != b[:size]
    at = int(differ.argmax()) if size else 0
    return at if size and differ[at] else size


def longest_match_first(tree: RadixTree, waiting: Iterable[tuple[int, IntArray]]) -> list[int]:
    """Return waiting requests (number, tokens) as LPM sorts them: the longest cached prefix first, ties as given."""
    found = [(-tree.match(tokens), i) for i, tokens in waiting]
    found.sort(key=lambda entry: entry[0])
    return [i for _, i in found]
