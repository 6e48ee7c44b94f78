"""A queue of calls by rank, whose ranks may change."""

from heapq import heapify, heappop, heappush
from typing import Any

__all__ = ["RankedQueue"]


class RankedQueue:
    """Calls by key; the least key is served first."""

    def __init__(self) -> None:
        self._key: dict[int, Any] = {}
        self._heap: list[tuple[Any, int]] = []

    def __len__(self) -> int:
        """Return how many calls wait."""
        return len(self._key)

    def put(self, call: int, key: Any) -> None:
        """Add a call, or change its key."""
        self._key[call] = key
        heappush(self._heap, (key, call))
        if len(self._heap) > 2 * len(self._key) + 64:
            self._heap = [(key, call) for call, key in self._key.items()]
            heapify(self._heap)

    def remove(self, call: int) -> None:
        """Take a call out."""
        del self._key[call]

    def first(self) -> int | None:
        """Return the call with the least key, or None."""
        heap = self._heap
        while heap:
            key, call = heap[0]
            if self._key.get(call) is key:
                return call
            heappop(heap)
        return None

    def ordered(self) -> list[int]:
        """Return the calls by key."""
        return sorted(self._key, key=self._key.__getitem__)
