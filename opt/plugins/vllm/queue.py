"""A waiting queue for vLLM that is ordered by any key, in which nobody waits for ever."""

from __future__ import annotations

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from vllm.v1.core.sched.request_queue import RequestQueue

__all__ = ["ChosenQueue", "RankedQueue"]

Entry: TypeAlias = tuple[float, float, str]  # key, arrival, id; negated where the list's end is the head


class RankedQueue(RequestQueue):
    """Waiting requests by (key, arrival, id); whoever has waited longer than `patience_s` goes first, oldest first.

    Args:
        key: the key of a request, asked when it joins (again, after a preemption).
        patience_s: seconds.
        now: the clock, in the unit of `arrival_time`.
    """

    def __init__(
        self, key: Callable[[Any], float], patience_s: float = float("inf"), now: Callable[[], float] = time.time
    ) -> None:
        self._key, self._patience_s, self._now = key, patience_s, now
        self._requests: dict[str, Any] = {}
        self._entries: dict[str, Entry] = {}
        self._ranked: list[Entry] = []  # ascending
        self._by_arrival: list[tuple[float, str]] = []
        self.joined = 0  # how often somebody has

    def add_request(self, request: Any) -> None:
        """Put a request where it belongs."""
        name = request.request_id
        entry = (self._key(request), request.arrival_time, name)
        self._requests[name], self._entries[name] = request, entry
        insort(self._ranked, entry)
        insort(self._by_arrival, entry[1:])
        self.joined += 1

    def rekey(self, key: Callable[[Any], float]) -> None:
        """Order everybody anew by another key, which newcomers get too."""
        self._key = key
        self._entries = {name: (key(request), request.arrival_time, name) for name, request in self._requests.items()}
        self._ranked = sorted(self._entries.values())

    def _head(self) -> str:
        if not self._ranked:
            raise IndexError("the queue is empty")
        arrival, oldest = self._by_arrival[0]
        return oldest if self._now() - arrival > self._patience_s else self._ranked[0][2]

    def peek_request(self) -> Any:
        """Return the head."""
        return self._requests[self._head()]

    def pop_request(self) -> Any:
        """Take the head out."""
        return self._take(self._head())

    def _take(self, name: str) -> Any:
        entry = self._entries.pop(name)
        del self._ranked[bisect_left(self._ranked, entry)]
        del self._by_arrival[bisect_left(self._by_arrival, entry[1:])]
        return self._requests.pop(name)

    def prepend_request(self, request: Any) -> None:
        """Let a preempted or skipped request join again; it goes where its key says."""
        self.add_request(request)

    def prepend_requests(self, requests: Iterable[Any]) -> None:
        """Do the same for several."""
        for request in list(requests):
            self.add_request(request)

    def remove_request(self, request: Any) -> None:
        """Take a request out, wherever it is."""
        self._take(request.request_id)

    def remove_requests(self, requests: Iterable[Any]) -> None:
        """Take out those of some requests that are here."""
        for request in list(requests):
            if request.request_id in self._requests:
                self._take(request.request_id)

    def __contains__(self, request: Any) -> bool:
        return request.request_id in self._requests

    def __bool__(self) -> bool:
        return bool(self._ranked)

    def __len__(self) -> int:
        return len(self._ranked)

    def __iter__(self) -> Iterator[Any]:
        """Yield the requests in order, as far as they are asked for; nothing may join or leave in between."""
        limit = self._now() - self._patience_s
        late = set()
        for arrival, name in self._by_arrival:
            if arrival >= limit:
                break
            late.add(name)
            yield self._requests[name]
        for _, _, name in self._ranked:
            if name not in late:
                yield self._requests[name]


class ChosenQueue(RankedQueue):
    """The same, but some may be chosen to go before all others; `moved` lists who has joined or left, to be emptied at will."""

    def __init__(
        self, key: Callable[[Any], float], patience_s: float = float("inf"), now: Callable[[], float] = time.time
    ) -> None:
        super().__init__(key, patience_s, now)
        self.moved: list[Any] = []
        self._chosen: dict[str, None] = {}

    def choose(self, requests: Iterable[Any]) -> None:
        """Let some waiting requests go first, in this order, and nobody who was chosen before."""
        self._chosen = dict.fromkeys(request.request_id for request in requests)

    def add_request(self, request: Any) -> None:
        """Put a request where it belongs."""
        super().add_request(request)
        self.moved.append(request)

    def _head(self) -> str:
        return next(iter(self._chosen)) if self._chosen else super()._head()

    def _take(self, name: str) -> Any:
        self._chosen.pop(name, None)
        request = super()._take(name)
        self.moved.append(request)
        return request

    def __iter__(self) -> Iterator[Any]:
        """Yield the requests in order, as `RankedQueue` does."""
        yield from (self._requests[name] for name in self._chosen)
        yield from (request for request in super().__iter__() if request.request_id not in self._chosen)
