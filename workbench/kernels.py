"""Compiled inner loops: KV occupancy over time, the best prefill-decode pair of a call, and the greedy planner.

The KV occupancy of decode instance ``d`` is a step function: ``levels[d, i]`` tokens are held from ``times[d, i]``
until ``times[d, i + 1]``, for ``i < size[d]``; ``peak[d]`` is the highest level.
All functions stand in one file, because a cached compilation only notices changes of its own file.
"""

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["empty_occupancy", "hold", "plan_decode", "plan_prefill", "serve"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

UNKNOWN = -2
"""Decode instance of a pair that cannot be told without the occupancy."""


@njit(cache=True)
def empty_occupancy(instances: int, steps: int) -> tuple[Floats, Ints, Ints, Ints]:
    """Return (times, levels, size, peak) of empty decode instances with room for that many steps each."""
    times = np.empty((instances, steps))
    times[:, 0] = -np.inf
    levels = np.zeros((instances, steps), dtype=np.int64)
    return times, levels, np.ones(instances, dtype=np.int64), np.zeros(instances, dtype=np.int64)


@njit(cache=True)
def _step_at(times: Floats, size: Ints, d: int, time: float) -> int:
    """Return the last step of instance ``d`` that starts at or before ``time``."""
    low, high = 0, size[d]
    while high - low > 1:
        middle = (low + high) // 2
        if times[d, middle] <= time:
            low = middle
        else:
            high = middle
    return low


@njit(cache=True)
def _split(times: Floats, levels: Ints, size: Ints, d: int, time: float) -> int:
    """Make a step begin at ``time`` and return it."""
    i = _step_at(times, size, d, time)
    if times[d, i] == time:
        return i
    for k in range(size[d], i + 1, -1):
        times[d, k] = times[d, k - 1]
        levels[d, k] = levels[d, k - 1]
    times[d, i + 1] = time
    levels[d, i + 1] = levels[d, i]
    size[d] += 1
    return i + 1


@njit(cache=True)
def hold(times: Floats, levels: Ints, size: Ints, peak: Ints, d: int, start: float, end: float, tokens: int) -> None:
    """Hold ``tokens`` on instance ``d`` from ``start`` (inclusive) to ``end`` (exclusive)."""
    if end <= start:
        return
    first = _split(times, levels, size, d, start)
    last = _split(times, levels, size, d, end)
    for i in range(first, last):
        levels[d, i] += tokens
        peak[d] = max(peak[d], levels[d, i])


@njit(cache=True)
def _earliest(times: Floats, levels: Ints, size: Ints, d: int, room: int, ready: float, duration: float) -> float:
    """Return the first time at or after ``ready`` from which the level stays within ``room`` for ``duration``."""
    i = _step_at(times, size, d, ready)
    start = ready
    while True:
        if levels[d, i] > room:
            start = times[d, i + 1]  # the last level is 0, so there is a next step
        elif i + 1 == size[d] or times[d, i + 1] >= start + duration:
            return start
        i += 1


@njit(cache=True)
def _fits(times: Floats, levels: Ints, size: Ints, d: int, room: int, start: float, duration: float) -> bool:
    """Return whether the level stays within ``room`` from ``start`` for ``duration``."""
    i = _step_at(times, size, d, start)
    while levels[d, i] <= room:
        i += 1
        if i == size[d] or times[d, i] >= start + duration:
            return True
    return False


@njit(cache=True)
def _first_free(free_at: Floats, prefill_class: Ints, g: int, ready: float) -> int:
    """Return the instance of class ``g`` that can begin first at or after ``ready``; the least index among equals."""
    best = -1
    for p in range(len(free_at)):
        if prefill_class[p] == g and (best < 0 or max(ready, free_at[p]) < max(ready, free_at[best])):
            best = p
    return best


@njit(cache=True)
def _best_pair(
    c: int,
    ready: float,
    demand: Ints,
    prefill: Floats,
    transfer: Floats,
    decode: Floats,
    candidates: Ints,
    free_at: Floats,
    decode_class: Ints,
    capacity: Ints,
    times: Floats,
    levels: Ints,
    size: Ints,
    peak: Ints,
) -> tuple[float, float, float, int, int]:
    """Return (decode finish, prefill end, decode start, p, d) of the pair first by (finish, prefill end, p, d).

    ``candidates[g]`` is the instance of class ``g`` that is free first: no other of its class can be better, since all
    times after the prefill's end depend on the class alone and never fall when the prefill ends later. For the same
    reason the first decode instance of a class on which the call fits as soon as it arrives is the best of its class;
    only where there is none are later starts looked for. Where fitting cannot be told because no occupancy is given, d
    is `UNKNOWN`.
    """
    best_finish, best_prefill_end, best_start, best_p, best_d = np.inf, np.inf, 0.0, -1, -1
    for g in range(len(candidates)):
        p = candidates[g]
        if p < 0:
            continue
        prefill_end = max(ready, free_at[p]) + prefill[c, g]
        for h in range(decode.shape[1]):
            length = decode[c, h]
            arrived = prefill_end + transfer[c, g, h]
            if arrived + length > best_finish:
                continue
            fits_at_once = False
            for late in range(2):
                for d in range(len(capacity)):
                    room = capacity[d] - demand[c]
                    if decode_class[d] != h or room < 0 or fits_at_once:
                        continue
                    start = arrived
                    if peak[d] > room:
                        if len(size) == 0:
                            return np.inf, np.inf, 0.0, p, UNKNOWN
                        if late:
                            start = _earliest(times, levels, size, d, room, arrived, length)
                        elif not _fits(times, levels, size, d, room, arrived, length):
                            continue
                    fits_at_once = late == 0
                    finish = start + length
                    if finish < best_finish or (
                        finish == best_finish
                        and (
                            prefill_end < best_prefill_end
                            or (prefill_end == best_prefill_end and (p < best_p or (p == best_p and d < best_d)))
                        )
                    ):
                        best_finish, best_prefill_end, best_start, best_p, best_d = finish, prefill_end, start, p, d
                if fits_at_once:
                    break
    return best_finish, best_prefill_end, best_start, best_p, best_d


@njit(cache=True)
def serve(
    c: int,
    ready: float,
    demand: Ints,
    prefill: Floats,
    transfer: Floats,
    decode: Floats,
    free_at: Floats,
    prefill_class: Ints,
    decode_class: Ints,
    capacity: Ints,
    times: Floats,
    levels: Ints,
    size: Ints,
    peak: Ints,
) -> float:
    """Serve call ``c`` on its best pair, update the simulated cluster, and return the decode finish."""
    candidates = np.empty(prefill.shape[1], dtype=np.int64)
    for g in range(len(candidates)):
        candidates[g] = _first_free(free_at, prefill_class, g, ready)
    finish, prefill_end, start, p, d = _best_pair(
        c, ready, demand, prefill, transfer, decode,
        candidates, free_at, decode_class, capacity, times, levels, size, peak,
    )  # fmt: skip
    free_at[p] = prefill_end
    hold(times, levels, size, peak, d, start, finish, demand[c])
    return finish


@njit(cache=True)
def plan_prefill(
    now: float,
    rerank_limit: int,
    calls: Ints,
    order_key: Ints,
    arrival: Floats,
    horizon: Floats,
    demand: Ints,
    prefill: Floats,
    transfer: Floats,
    decode: Floats,
    free_at: Floats,
    prefill_class: Ints,
    decode_class: Ints,
    capacity: Ints,
    bound_tokens: Ints,
    committed: tuple[Ints, Floats, Floats, Ints] | None,
) -> tuple[bool, Ints, Ints, Ints]:
    """Rank and place the calls that wait for prefill (Algorithm 1 with section 5.3 of the paper).

    After an assignment resources are only scarcer, so the best pair of another call stays best unless it used the
    prefill instance that was taken, or a decode instance whose occupancy now binds; only such calls are projected anew.

    Parameters
    ----------
    now : float
        Time of the plan, seconds.
    rerank_limit : int
        The paper's small queue: at most this many calls are ranked anew after each assignment.
    calls : (Q,) int
        The waiting calls.
    order_key, arrival, horizon, demand, prefill, transfer, decode
        By call: the tie-break, ``a_w`` and ``H_w(t)`` of the workflow in seconds, and the estimates.
    free_at : (P,) float
        When each prefill instance is expected to be free; it is changed.
    prefill_class, decode_class, capacity
        The instances.
    bound_tokens : (D,) int
        KV demand of all calls bound to each decode instance.
    committed : tuple of (M,) arrays, optional
        Those calls in the order in which they are simulated: instance, when each can start to decode and for how long
        (for a running call: now and the time that is left), and demand. Without it the plan is given up as soon as the
        tokens bound to an instance do not tell whether a call fits.

    Returns
    -------
    done : bool
        False if the plan needs ``committed``.
    calls, prefill_instance, decode_instance : (Q,) int
        The calls by rank, and the pair of each.
    """
    waiting = len(calls)
    rows = calls[np.argsort(order_key[calls])]
    if committed is None:
        times, levels, size, _ = empty_occupancy(0, 1)
        peak = bound_tokens.copy()
    else:
        times, levels, size, peak = _simulate_committed(
            capacity, committed[0], committed[1], committed[2], committed[3], waiting
        )
    candidates = np.empty(prefill.shape[1], dtype=np.int64)
    for g in range(len(candidates)):
        candidates[g] = _first_free(free_at, prefill_class, g, now)
    finish, prefill_end, start = np.empty(waiting), np.empty(waiting), np.empty(waiting)
    best_p, best_d = np.empty(waiting, dtype=np.int64), np.empty(waiting, dtype=np.int64)
    ratio = np.empty(waiting)
    stale = np.ones(waiting, dtype=np.bool_)
    pending = np.ones(waiting, dtype=np.bool_)
    order = np.empty(waiting, dtype=np.int64)
    on_p = np.empty(waiting, dtype=np.int64)
    on_d = np.empty(waiting, dtype=np.int64)
    rerank = waiting <= rerank_limit
    for rank in range(waiting):
        first, last = 0, waiting
        if rank > 0 and not rerank:  # the order stands: only the next call is projected anew
            first, last = order[rank], order[rank] + 1
            stale[first] = True
        for q in range(first, last):
            if pending[q] and stale[q]:
                c = rows[q]
                finish[q], prefill_end[q], start[q], best_p[q], best_d[q] = _best_pair(
                    c, now, demand, prefill, transfer, decode,
                    candidates, free_at, decode_class, capacity, times, levels, size, peak,
                )  # fmt: skip
                if best_d[q] == UNKNOWN:
                    return False, order, on_p, on_d
                stale[q] = False
                ratio[q] = ((now - arrival[c]) + (finish[q] - now)) / horizon[c]
        if rerank:
            chosen = -1
            for q in range(waiting):
                if pending[q] and (chosen < 0 or ratio[q] > ratio[chosen]):
                    chosen = q
            order[rank] = chosen
        elif rank == 0:
            order[:] = np.argsort(-ratio, kind="mergesort")
        q = order[rank]
        c = rows[q]
        p, d = best_p[q], best_d[q]
        pending[q] = False
        on_p[rank], on_d[rank] = p, d
        free_at[p] = prefill_end[q]
        candidates[prefill_class[p]] = _first_free(free_at, prefill_class, prefill_class[p], now)
        if committed is None:
            peak[d] += demand[c]
        else:
            hold(times, levels, size, peak, d, start[q], finish[q], demand[c])
        for other in range(waiting if rerank else 0):
            if best_p[other] == p or (best_d[other] == d and peak[d] > capacity[d] - demand[rows[other]]):
                stale[other] = True
    return True, rows[order], on_p, on_d


@njit(cache=True)
def _simulate_committed(
    capacity: Ints, instance: Ints, ready: Floats, decode: Floats, demand: Ints, more: int
) -> tuple[Floats, Ints, Ints, Ints]:
    """Return the occupancy once each committed call in turn starts as early as it fits; with room for ``more``."""
    times, levels, size, peak = empty_occupancy(len(capacity), 2 * (len(instance) + more) + 2)
    for k in range(len(instance)):
        d = instance[k]
        room = capacity[d] - demand[k]
        start = ready[k]
        if peak[d] > room:
            start = _earliest(times, levels, size, d, max(room, 0), ready[k], decode[k])
        hold(times, levels, size, peak, d, start, start + decode[k], demand[k])
    return times, levels, size, peak


@njit(cache=True)
def plan_decode(
    now: float,
    rerank_limit: int,
    elapsed: Floats,
    horizon: Floats,
    demand: Ints,
    decode: Floats,
    instance: Ints,
    capacity: Ints,
    running_instance: Ints,
    running_left: Floats,
    running_demand: Ints,
) -> Ints:
    """Rank the calls that wait for decode on the instance they are locked to (section 5.4 of the paper).

    Parameters
    ----------
    now, rerank_limit, elapsed, horizon, demand
        As for `plan_prefill`.
    decode : (Q,) float
        Decode seconds of each call on its instance.
    instance : (Q,) int
        Decode instance of each call.
    running_instance, running_left, running_demand : (M,)
        Instance, seconds left and tokens of each running call.

    Returns
    -------
    order : (Q,) int
        The calls by rank.
    """
    waiting = len(demand)
    begun = np.full(len(running_left), now)
    times, levels, size, peak = _simulate_committed(
        capacity, running_instance, begun, running_left, running_demand, waiting
    )
    order = np.empty(waiting, dtype=np.int64)
    start = np.empty(waiting)
    risk = np.empty(waiting)
    rerank = waiting <= rerank_limit
    stale = np.ones(len(capacity), dtype=np.bool_)
    pending = np.ones(waiting, dtype=np.bool_)
    for rank in range(waiting):
        chosen, greatest = -1, -np.inf
        for q in range(waiting):
            if not pending[q]:
                continue
            d = instance[q]
            if stale[d]:
                room = max(capacity[d] - demand[q], 0)
                start[q] = now
                if peak[d] > room:
                    start[q] = _earliest(times, levels, size, d, room, now, decode[q])
                risk[q] = (elapsed[q] + (start[q] + decode[q] - now)) / horizon[q]
            if risk[q] > greatest:
                chosen, greatest = q, risk[q]
        stale[:] = False
        d = instance[chosen]
        pending[chosen] = False
        order[rank] = chosen
        if rerank:
            hold(times, levels, size, peak, d, start[chosen], start[chosen] + decode[chosen], demand[chosen])
            stale[d] = True
    return order
