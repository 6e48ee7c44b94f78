"""Feasible schedules without a search: list schedules, and the exact-time replay of a found order."""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from solvers.timeline import PartialSchedule
from workbench import CompiledInstance, Schedule

__all__ = ["list_schedules", "replay", "replay_schedule"]

Floats = NDArray[np.float64]


def shortest_tail_s(instance: CompiledInstance) -> Floats:
    """Return the shortest time from the start of each call to the end of its workflow, (N,) seconds."""
    fits = instance.demand_tokens[:, None] <= instance.capacity_tokens[None, :]
    pair = (
        instance.prefill_s[:, instance.prefill_class][:, :, None]
        + instance.transfer_s[:, instance.prefill_class][:, :, instance.decode_class]
        + np.where(fits, instance.decode_s[:, instance.decode_class], np.inf)[:, None, :]
    )
    tail: Floats = pair.min(axis=(1, 2))
    for c in instance.topological[::-1].tolist():
        tail[c] += max((delay + tail[child] for child, delay in instance.children[c]), default=0.0)
    return tail


def list_schedules(instance: CompiledInstance) -> list[Schedule]:
    """Return list schedules by four priorities: reveal time, workflow arrival, deadline and longest tail.

    Every call, once its parents are placed, is taken in order of priority and put on the pair of instances with the
    earliest decode end, in the earliest gap.
    """
    tail = shortest_tail_s(instance)
    arrival = instance.arrival_s[instance.workflow]
    deadline = (instance.arrival_s + instance.horizon_s)[instance.workflow]
    static = {"arrival": arrival - 1e-9 * tail, "deadline": deadline - tail, "longest tail": arrival - tail}
    schedules = []
    for rule in ("reveal", *static):
        partial = PartialSchedule(instance)
        complete(partial, None if rule == "reveal" else static[rule])
        schedules.append(partial.schedule(f"list schedule by {rule}"))
    return schedules


def complete(partial: PartialSchedule, priority: Floats | None = None) -> None:
    """Place every call that is not placed yet, lowest ``priority`` first; by reveal time without priorities."""
    instance = partial.instance
    missing = [
        sum(partial.decode_instance[parent] < 0 for parent, _ in instance.parents_of(c))
        for c in range(instance.n_calls)
    ]

    def key(c: int) -> tuple[float, int]:
        return (partial.ready_s(c) if priority is None else float(priority[c]), c)

    queue = [key(c) for c in range(instance.n_calls) if missing[c] == 0 and partial.decode_instance[c] < 0]
    heapify(queue)
    while queue:
        _, c = heappop(queue)
        partial.place(c)
        for child, _ in instance.children[c]:
            missing[child] -= 1
            if missing[child] == 0:
                heappush(queue, key(child))


def replay(
    instance: CompiledInstance,
    label: str,
    prefill_start: Sequence[float | None],
    decode_start: Sequence[float | None],
    prefill_candidates: Sequence[Sequence[int]],
    decode_candidates: Sequence[Sequence[int]],
) -> Schedule:
    """Rebuild a schedule in exact time from the order of its starts.

    Operations are placed in order of their given starts, each at its earliest feasible time; no operation of a
    feasible schedule starts later in its replay. Calls without given starts are placed last.

    Parameters
    ----------
    prefill_start, decode_start : (N,) sequence of float or None
        Starts in any unit; only their order counts. None for calls that the order leaves out.
    prefill_candidates, decode_candidates : (N,) sequence of sequence of int
        Instances on which each operation may run.
    """
    position = np.empty(instance.n_calls, dtype=np.int64)
    position[instance.topological] = np.arange(instance.n_calls)
    operations = [
        (start, int(position[c]), stage, c)
        for stage, starts in enumerate((prefill_start, decode_start))
        for c, start in enumerate(starts)
        if start is not None
    ]
    partial = PartialSchedule(instance)
    for _, _, stage, c in sorted(operations):
        if stage == 0:
            partial.place_prefill(c, prefill_candidates[c])
        else:
            partial.place_decode(c, decode_candidates[c])
    complete(partial)
    return partial.schedule(label)


def replay_schedule(instance: CompiledInstance, schedule: Schedule) -> Schedule:
    """Replay a schedule on its own placement; the result is never later at any call."""
    return replay(
        instance,
        schedule.label,
        schedule.prefill_start_s.tolist(),
        schedule.decode_start_s.tolist(),
        [[p] for p in schedule.prefill_instance.tolist()],
        [[d] for d in schedule.decode_instance.tolist()],
    )
