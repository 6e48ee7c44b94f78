"""Schedules as Chrome trace-event JSON, which ui.perfetto.dev opens.

Three processes: the workflows, the prefill pool and the decode pool. A prefill instance is one thread; a decode
instance is as many lanes as it has calls at once, and a counter of resident KV tokens. An arrow follows each call's KV
cache from prefill to decode. Timestamps are whole microseconds, so that slices which touch do not overlap when they are
read back.
"""

import json
from collections.abc import Iterator
from heapq import heappop, heappush
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.files import write_bytes
from workbench.schedule import Schedule

__all__ = ["write_trace"]

Event = dict[str, Any]
Ints = NDArray[np.int64]

WORKFLOWS, PREFILL, DECODE = 1, 2, 3
_FIRST_THREAD = 10  # apart from the process ids, which mark main threads


def write_trace(schedule: Schedule, path: str | Path) -> None:
    """Write a schedule as a trace in one step, gzipped when the name ends in ``.gz``.

    The same schedule gives the same bytes.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    path : str or pathlib.Path
        File to write.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    lines = ",\n".join(json.dumps(event, separators=(",", ":")) for event in _Trace(schedule).events())
    other = json.dumps({"instance": schedule.instance.name, "schedule": schedule.label})
    text = f'{{"displayTimeUnit":"ms","otherData":{other},"traceEvents":[\n{lines}\n]}}\n'
    write_bytes(path, text.encode())


class _Trace:
    """Events of one schedule; thread ids are unique over all processes."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.instance = schedule.instance
        self.workflow = self.instance.workflow.tolist()
        self.demand = self.instance.demand_tokens
        self.threads = 0

    def events(self) -> Iterator[Event]:
        """Yield metadata and events, process by process."""
        for order, (process, name) in enumerate(((WORKFLOWS, "workflows"), (PREFILL, "prefill"), (DECODE, "decode"))):
            yield _metadata("process_name", process, name=name)
            yield _metadata("process_sort_index", process, sort_index=order)
        yield from self._workflows()
        prefill_thread, slices = self._prefills()
        yield from slices
        decode_thread, slices = self._decodes()
        yield from slices
        yield from self._arrows(prefill_thread, decode_thread)
        yield from self._counters()

    def _thread(self, process: int, name: str) -> tuple[int, list[Event]]:
        """Return a new thread, sorted after those before it."""
        thread = _FIRST_THREAD + self.threads
        self.threads += 1
        return thread, [
            _metadata("thread_name", process, thread, name=name),
            _metadata("thread_sort_index", process, thread, sort_index=self.threads),
        ]

    def _call(self, c: int) -> str:
        return f"{self.instance.workflow_ids[self.workflow[c]]}/{self.instance.call_ids[c]}"

    def _lengths(self, c: int) -> dict[str, Any]:
        instance = self.instance
        return {
            "workflow": instance.workflow_ids[self.workflow[c]],
            "call": instance.call_ids[c],
            "input_tokens": int(instance.input_tokens[c]),
            "cached_prefix_tokens": int(instance.cached_prefix_tokens[c]),
            "output_tokens": int(instance.output_tokens[c]),
        }

    def _workflows(self) -> Iterator[Event]:
        instance, ratio = self.instance, self.schedule.flow_s / self.instance.horizon_s
        arrival, completion = _us(instance.arrival_s), _us(self.schedule.completion_s)
        calls = np.diff(instance.first_call).tolist()
        for w, name in enumerate(instance.workflow_ids):
            thread, metadata = self._thread(WORKFLOWS, name)
            yield from metadata
            arguments = {
                "calls": calls[w],
                "horizon_s": float(instance.horizon_s[w]),
                "horizon": instance.horizon_kind,
                "ratio": float(ratio[w]),
            }
            yield _slice(WORKFLOWS, thread, name, "workflow", int(arrival[w]), int(completion[w]), arguments)

    def _prefills(self) -> tuple[list[int], list[Event]]:
        """Return the thread of each prefill instance and the events."""
        schedule, threads, events = self.schedule, [], []
        for name in self.instance.instance_names[0]:
            thread, metadata = self._thread(PREFILL, name)
            threads.append(thread)
            events += metadata
        start, end = _us(schedule.prefill_start_s).tolist(), _us(schedule.prefill_end_s).tolist()
        of_call = [threads[p] for p in schedule.prefill_instance.tolist()]
        waited_us = (_us(schedule.prefill_start_s) - _us(schedule.reveal_s)).tolist()
        for c, thread in enumerate(of_call):
            arguments = {**self._lengths(c), "waited_ms": waited_us[c] / 1e3}
            events.append(_slice(PREFILL, thread, self._call(c), "prefill", start[c], end[c], arguments))
        return of_call, events

    def _decodes(self) -> tuple[list[int], list[Event]]:
        """Return the thread of each call, a lane of its decode instance, and the events."""
        schedule = self.schedule
        start, end = _us(schedule.decode_start_s), _us(schedule.decode_end_s)
        waited_us = (start - _us(schedule.transfer_end_s)).tolist()
        transfer_us = (_us(schedule.transfer_end_s) - _us(schedule.prefill_end_s)).tolist()
        of_call = [0] * self.instance.n_calls
        events: list[Event] = []
        for d, name in enumerate(self.instance.instance_names[1]):
            calls = np.flatnonzero(schedule.decode_instance == d)
            lanes = _lanes(start[calls], end[calls])
            threads = []
            for lane in range(max(lanes, default=-1) + 1):
                thread, metadata = self._thread(DECODE, f"D{d} lane {lane}")
                threads.append(thread)
                events += metadata
            for c, lane in zip(calls.tolist(), lanes, strict=True):
                arguments = {
                    **self._lengths(c),
                    "instance": name,
                    "kv_tokens": int(self.demand[c]),
                    "transfer_ms": transfer_us[c] / 1e3,
                    "waited_ms": waited_us[c] / 1e3,
                }
                of_call[c] = threads[lane]
                events.append(
                    _slice(DECODE, threads[lane], self._call(c), "decode", int(start[c]), int(end[c]), arguments)
                )
        return of_call, events

    def _arrows(self, prefill_thread: list[int], decode_thread: list[int]) -> Iterator[Event]:
        """Yield the two ends of each call's arrow; the first lies within the prefill slice, so that it binds to it."""
        schedule = self.schedule
        first = np.maximum(_us(schedule.prefill_start_s), _us(schedule.prefill_end_s) - 1).tolist()
        last = _us(schedule.decode_start_s).tolist()
        for c in range(self.instance.n_calls):
            both = {"cat": "transfer", "name": "KV transfer", "id": c}
            yield {"ph": "s", **both, "pid": PREFILL, "tid": prefill_thread[c], "ts": first[c]}
            yield {"ph": "f", "bp": "e", **both, "pid": DECODE, "tid": decode_thread[c], "ts": last[c]}

    def _counters(self) -> Iterator[Event]:
        """Yield the resident KV tokens of each decode instance, once for all changes of an instant."""
        start, end = _us(self.schedule.decode_start_s), _us(self.schedule.decode_end_s)
        begin = min(0, int(start.min())) if len(start) else 0
        for d, name in enumerate(self.instance.instance_names[1]):
            calls = np.flatnonzero(self.schedule.decode_instance == d)
            track = f"{name} resident KV (capacity {self.instance.capacity_tokens[d]} tokens)"
            times, position = np.unique(np.concatenate([[begin], start[calls], end[calls]]), return_inverse=True)
            change = np.zeros(len(times), dtype=np.int64)
            np.add.at(change, position, np.concatenate([[0], self.demand[calls], -self.demand[calls]]))
            for time, tokens in zip(times.tolist(), np.cumsum(change).tolist(), strict=True):
                yield {"ph": "C", "name": track, "pid": DECODE, "ts": time, "args": {"tokens": tokens}}


def _lanes(start: Ints, end: Ints) -> list[int]:
    """Return a lane for each interval such that none overlap: the lowest that is free when the interval starts."""
    lanes = [0] * len(start)
    free: list[int] = []
    busy: list[tuple[int, int]] = []
    used = 0
    for i in np.lexsort((end, start)).tolist():
        while busy and busy[0][0] <= start[i]:
            heappush(free, heappop(busy)[1])
        if not free:
            heappush(free, used)
            used += 1
        lanes[i] = heappop(free)
        heappush(busy, (int(end[i]), lanes[i]))
    return lanes


def _us(seconds: NDArray[np.float64]) -> Ints:
    """Return times in whole microseconds."""
    return np.rint(seconds * 1e6).astype(np.int64)


def _slice(
    process: int, thread: int, name: str, category: str, start: int, end: int, arguments: dict[str, Any]
) -> Event:
    return {
        "ph": "X", "cat": category, "name": name, "pid": process, "tid": thread, "ts": start, "dur": end - start,
        "args": arguments,
    }  # fmt: skip


def _metadata(what: str, process: int, thread: int | None = None, **arguments: Any) -> Event:
    where = {"pid": process} if thread is None else {"pid": process, "tid": thread}
    return {"ph": "M", "name": what, **where, "args": arguments}
