"""Queues of calls: by rank, and as a whole plan that stands until the next one."""

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.policies import Ranking
from workbench.view import Phase

__all__ = ["RankedQueue", "StandingPlan"]

Ints = NDArray[np.int64]


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


class StandingPlan:
    """The last ranking, read off instance by instance when one is idle.

    Parameters
    ----------
    phase : list of Phase
        Phase of every revealed call; one that waits no more is passed over.
    """

    def __init__(self, phase: list[Phase]) -> None:
        self._phase = phase
        self._ranking: Ranking | None = None
        self._calls: set[int] = set()
        self._left: dict[int, list[int]] = {}

    def adopt(self, ranking: Ranking) -> None:
        """Put a ranking in the place of the last one."""
        self._ranking = ranking
        self._calls = set(ranking.calls.tolist())
        self._left = {}

    def covers(self, call: int) -> bool:
        """Return whether the last ranking placed a call."""
        return self._ranking is not None and call in self._calls

    def load(self, new_tokens: list[int], demand_tokens: Ints, pools: tuple[int, int]) -> tuple[list[int], list[int]]:
        """Return the new prompt tokens and the KV tokens of the calls that still wait, by instance of each pool."""
        tokens, memory = [0] * pools[0], [0] * pools[1]
        if self._ranking is not None:
            for call, _, p, d in self._ranking:
                if self._phase[call] is Phase.WAIT_PREFILL:
                    tokens[p] += new_tokens[call]
                    memory[d] += int(demand_tokens[call])
        return tokens, memory

    def take(self, instance: int) -> tuple[int, int, int] | None:
        """Return (call, rank, decode instance) of the first call that waits for this prefill instance, or None."""
        if self._ranking is None:
            return None
        calls, prefill, decode = self._ranking.calls, self._ranking.prefill, self._ranking.decode
        if instance not in self._left:
            self._left[instance] = np.flatnonzero(prefill == instance)[::-1].tolist()
        left = self._left[instance]
        while left:
            rank = left.pop()
            call = int(calls[rank])
            if self._phase[call] is Phase.WAIT_PREFILL:
                return call, rank, int(decode[rank])
        return None
