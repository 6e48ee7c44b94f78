"""Partial schedules in exact time: earliest gaps on prefill servers and in the KV memory of decode instances."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from math import inf

import numpy as np

from workbench import CompiledInstance, Schedule

__all__ = ["Memory", "PartialSchedule", "Server"]


class Server:
    """A prefill instance: one call at a time."""

    def __init__(self) -> None:
        self._starts: list[float] = []
        self._ends: list[float] = []

    def earliest(self, ready_s: float, duration_s: float) -> float:
        """Return the earliest start at or after ``ready_s`` of a gap of ``duration_s`` seconds."""
        start = ready_s
        for i in range(bisect_right(self._ends, ready_s), len(self._starts)):
            if start + duration_s <= self._starts[i]:
                return start
            start = max(start, self._ends[i])
        return start

    def add(self, start_s: float, end_s: float) -> None:
        """Occupy the server from ``start_s`` to ``end_s``."""
        i = bisect_left(self._starts, start_s)
        self._starts.insert(i, start_s)
        self._ends.insert(i, end_s)


class Memory:
    """KV memory of a decode instance: a step function of tokens held over time.

    Parameters
    ----------
    capacity_tokens : int
        KV capacity ``Cap(d)``.
    """

    def __init__(self, capacity_tokens: int) -> None:
        self.capacity_tokens = capacity_tokens
        self._times = [-inf]
        self._held = [0]

    def earliest(self, ready_s: float, duration_s: float, tokens: int) -> float:
        """Return the earliest start at or after ``ready_s`` from which ``tokens`` fit for ``duration_s`` seconds."""
        times, held, room = self._times, self._held, self.capacity_tokens - tokens
        start = ready_s
        for i in range(bisect_right(times, ready_s) - 1, len(times)):
            if times[i] >= start + duration_s:
                break
            if held[i] > room:
                start = times[i + 1]
        return start

    def add(self, start_s: float, end_s: float, tokens: int) -> None:
        """Hold ``tokens`` from ``start_s`` to ``end_s``."""
        first, last = self._breakpoint(start_s), self._breakpoint(end_s)
        for i in range(first, last):
            self._held[i] += tokens

    def _breakpoint(self, time_s: float) -> int:
        i = bisect_left(self._times, time_s)
        if i == len(self._times) or self._times[i] != time_s:
            self._times.insert(i, time_s)
            self._held.insert(i, self._held[i - 1])
        return i


class PartialSchedule:
    """Calls placed one operation at a time, each at its earliest feasible start.

    Parameters
    ----------
    instance : CompiledInstance
        What is scheduled; every duration comes from it.
    """

    def __init__(self, instance: CompiledInstance) -> None:
        n = instance.n_calls
        self.instance = instance
        self.servers = [Server() for _ in instance.prefill_class]
        self.memories = [Memory(int(cap)) for cap in instance.capacity_tokens]
        self.prefill_start_s = np.full(n, np.nan)
        self.decode_start_s = np.full(n, np.nan)
        self.finish_s = np.full(n, np.nan)
        self.prefill_instance = np.full(n, -1)
        self.decode_instance = np.full(n, -1)
        self._prefill_s = instance.prefill_s.tolist()
        self._transfer_s = instance.transfer_s.tolist()
        self._decode_s = instance.decode_s.tolist()
        self._p_class = instance.prefill_class.tolist()
        self._d_class = instance.decode_class.tolist()
        self._demand = instance.demand_tokens.tolist()

    def ready_s(self, c: int) -> float:
        """Return when call ``c`` is revealed, in seconds; its parents must have been placed."""
        ready = float(self.instance.arrival_s[self.instance.workflow[c]])
        for parent, delay in self.instance.parents_of(c):
            ready = max(ready, float(self.finish_s[parent]) + delay)
        return ready

    def place_prefill(self, c: int, candidates: Iterable[int]) -> None:
        """Place the prefill of call ``c`` on the candidate instance where it ends first."""
        ready = self.ready_s(c)
        options = []
        for p in candidates:
            duration = self._prefill_s[c][self._p_class[p]]
            start = self.servers[p].earliest(ready, duration)
            options.append((start + duration, p, start))
        end, p, start = min(options)
        self.servers[p].add(start, end)
        self.prefill_instance[c], self.prefill_start_s[c] = p, start

    def place_decode(self, c: int, candidates: Iterable[int]) -> None:
        """Place the decode of call ``c``, whose prefill is placed, on the candidate where it ends first."""
        p = int(self.prefill_instance[c])
        prefill_end = float(self.prefill_start_s[c]) + self._prefill_s[c][self._p_class[p]]
        finish, d, start = min(self._decode_options(c, self._p_class[p], prefill_end, candidates))
        self.memories[d].add(start, finish, self._demand[c])
        self.decode_instance[c], self.decode_start_s[c], self.finish_s[c] = d, start, finish

    def place(self, c: int) -> None:
        """Place call ``c`` on the pair of instances with the earliest decode end."""
        ready = self.ready_s(c)
        first: dict[int, tuple[float, int]] = {}
        for p, g in enumerate(self._p_class):
            duration = self._prefill_s[c][g]
            option = (self.servers[p].earliest(ready, duration) + duration, p)
            first[g] = min(first.get(g, option), option)
        options = [
            (min(self._decode_options(c, g, end, range(len(self.memories))))[:1], end, p)
            for g, (end, p) in first.items()
        ]
        self.place_prefill(c, [min(options)[2]])
        self.place_decode(c, range(len(self.memories)))

    def _decode_options(
        self, c: int, g: int, prefill_end: float, candidates: Iterable[int]
    ) -> list[tuple[float, int, float]]:
        options = []
        for d in candidates:
            if self._demand[c] <= self.memories[d].capacity_tokens:
                h = self._d_class[d]
                duration = self._decode_s[c][h]
                ready = prefill_end + self._transfer_s[c][g][h]
                start = self.memories[d].earliest(ready, duration, self._demand[c])
                options.append((start + duration, d, start))
        return options

    def schedule(self, label: str) -> Schedule:
        """Return the schedule once every call is placed."""
        return Schedule.from_starts(
            self.instance,
            label,
            self.prefill_instance,
            self.decode_instance,
            self.prefill_start_s,
            self.decode_start_s,
        )
