"""The waiting queue: requests by rank, then arrival, then index."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TypeAlias

__all__ = ["Queue"]

Entry: TypeAlias = tuple[float, float, int]


class Queue:
    """Waiting requests in order: (rank, arrival, index), smallest first. Iterating is safe only while nothing changes."""

    __slots__ = ("_entries", "_keys")

    def __init__(self) -> None:
        self._entries: list[Entry] = []  # the last one is the head, so that taking it is cheap
        self._keys: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        return (-entry[2] for entry in reversed(self._entries))

    def __contains__(self, i: int) -> bool:
        return i in self._keys

    @property
    def head(self) -> int | None:
        """The first request, None without any."""
        return -self._entries[-1][2] if self._entries else None

    def add(self, i: int, rank: float, arrival_s: float) -> None:
        """Put a request where it belongs."""
        entry = (-rank, -arrival_s, -i)
        self._keys[i] = entry
        insort(self._entries, entry)

    def remove(self, i: int) -> None:
        """Take a request out, wherever it is."""
        entry = self._keys.pop(i)
        if self._entries[-1] is entry:
            self._entries.pop()
        else:
            del self._entries[bisect_left(self._entries, entry)]
