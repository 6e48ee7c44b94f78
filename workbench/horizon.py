"""Standalone horizons: the makespan of a workflow alone on the empty cluster (section 5.1 of the paper).

The schedule is greedy: calls are taken by (standalone ready time, index) and each is given the prefill-decode pair with
the earliest decode finish. The horizon that policies see covers the revealed calls and uses estimates; the one that
metrics use covers the whole workflow and uses true durations. A greedy horizon may exceed the optimum.
"""

from collections.abc import Sequence
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from workbench import kernels
from workbench.compiled import CompiledInstance

__all__ = ["Standalone", "greedy_horizons"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Estimates = tuple[Ints, Floats, Floats, Floats]


class Standalone:
    """Greedy schedule of one workflow alone, extended call by call in order of (ready time, index).

    Parameters
    ----------
    prefill_class, decode_class : (P,) and (D,) int
        Class of each instance.
    capacity_tokens : (D,) int
        KV capacity of each decode instance.
    """

    def __init__(self, prefill_class: Ints, decode_class: Ints, capacity_tokens: Ints) -> None:
        self._hardware = (prefill_class, decode_class, capacity_tokens)
        self._free_at = np.zeros(len(prefill_class))
        self._occupancy = kernels.empty_occupancy(len(decode_class), 16)

    def serve(self, call: int, ready: float, estimates: Estimates) -> float:
        """Serve a call on the pair with the earliest decode finish and return that finish.

        Parameters
        ----------
        call : int
            The call.
        ready : float
            When it may start, in seconds after the workflow's arrival.
        estimates : tuple of arrays
            Demand in tokens (N,), and seconds of prefill (N, G), transfer (N, G, H) and decode (N, H) of all calls.
        """
        times, levels, size, peak = self._occupancy
        if int(size.max()) + 2 > times.shape[1]:
            times = np.concatenate([times, np.empty_like(times)], axis=1)
            levels = np.concatenate([levels, np.zeros_like(levels)], axis=1)
            self._occupancy = (times, levels, size, peak)
        return float(kernels.serve(call, ready, *estimates, self._free_at, *self._hardware, times, levels, size, peak))


def list_schedule(
    standalone: Standalone,
    calls: Sequence[int],
    parents: dict[int, list[tuple[int, float]]],
    estimates: Estimates,
) -> dict[int, float]:
    """Serve calls by (standalone ready time, index); return when each finishes, in seconds after arrival.

    Parameters
    ----------
    standalone : Standalone
        An empty cluster.
    calls : sequence of int
        The calls.
    parents : dict
        Parents of each call with the tool delay; every parent is one of the calls.
    estimates : tuple of arrays
        Demand (N,), prefill (N, G), transfer (N, G, H) and decode (N, H) of all calls.
    """
    missing = {c: len(parents[c]) for c in calls}
    ready_at = dict.fromkeys(calls, 0.0)
    children: dict[int, list[tuple[int, float]]] = {c: [] for c in calls}
    for c in calls:
        for parent, delay in parents[c]:
            children[parent].append((c, delay))
    queue = [(0.0, c) for c in calls if missing[c] == 0]
    finish: dict[int, float] = {}
    while queue:
        ready, c = heappop(queue)
        finish[c] = standalone.serve(c, ready, estimates)
        for child, delay in children[c]:
            ready_at[child] = max(ready_at[child], finish[c] + delay)
            missing[child] -= 1
            if missing[child] == 0:
                heappush(queue, (ready_at[child], child))
    return finish


def greedy_horizons(instance: CompiledInstance) -> Floats:
    """Return the greedy standalone makespan of every workflow with true durations, (W,) seconds."""
    hardware = (instance.prefill_class, instance.decode_class, instance.capacity_tokens)
    estimates = (instance.demand_tokens, instance.prefill_s, instance.transfer_s, instance.decode_s)
    horizons = np.zeros(instance.n_workflows)
    for w in range(instance.n_workflows):
        calls = range(instance.first_call[w], instance.first_call[w + 1])
        parents = {c: instance.parents_of(c) for c in calls}
        horizons[w] = max(list_schedule(Standalone(*hardware), calls, parents, estimates).values())
    return horizons
