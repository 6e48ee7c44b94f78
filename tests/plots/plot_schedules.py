"""Feasible schedules for figures: a central queue before prefill, and decode where and when there is room."""

import numpy as np

from workbench.compiled import CompiledInstance
from workbench.schedule import Schedule


def made(
    n_workflows: int, calls_each: int = 10, n_prefill: int = 8, n_decode: int = 8, label: str = "fcfs"
) -> Schedule:
    """Return chains of calls that arrive at the rate at which the cluster serves them."""
    rng = np.random.default_rng(0)
    n = n_workflows * calls_each
    inst = CompiledInstance.from_durations(
        first_call=np.arange(0, n + 1, calls_each),
        prefill_s=rng.uniform(0.1, 0.3, (n, 1)) * [1.0, 0.6],
        decode_s=rng.uniform(0.5, 2.0, (n, 1)) * [1.0, 0.7],
        demand_tokens=rng.integers(2_000, 9_000, n),
        arrival_s=np.cumsum(rng.exponential(0.25, n_workflows)),
        parents=[[c - 1] if c % calls_each else [] for c in range(n)],
        prefill_class=np.arange(n_prefill) * 2 // n_prefill,
        decode_class=np.arange(n_decode) * 2 // n_decode,
        capacity_tokens=20_000,
    )
    ready = np.where(np.arange(n) % calls_each == 0, inst.arrival_s[inst.workflow], np.inf)
    prefill, decode = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=np.int64)
    start, decode_start = np.zeros(n), np.zeros(n)
    prefill_free = np.zeros(n_prefill)
    holds: list[list[tuple[float, int]]] = [[] for _ in range(n_decode)]  # (end, tokens), in order of start
    for _ in range(n):
        c = int(np.argmin(ready))
        prefill[c] = p = int(np.argmin(prefill_free))
        start[c] = max(ready[c], prefill_free[p])
        prefill_free[p] = end = start[c] + inst.prefill_s[c, inst.prefill_class[p]]
        holds = [[(until, tokens) for until, tokens in held if until > ready[c]] for held in holds]
        options = [(_room(holds[d], end, int(inst.demand_tokens[c]), 20_000), d) for d in range(n_decode)]
        decode_start[c], decode[c] = min(options)
        end = decode_start[c] + inst.decode_s[c, inst.decode_class[decode[c]]]
        holds[decode[c]].append((end, int(inst.demand_tokens[c])))
        ready[c] = np.inf
        if (c + 1) % calls_each:
            ready[c + 1] = end
    return Schedule.from_starts(inst, label, prefill, decode, start, decode_start)


def _room(held: list[tuple[float, int]], earliest: float, demand: int, capacity: int) -> float:
    """Return when a call fits beside all that has been placed, which are taken to start at once."""
    for time in sorted([earliest] + [end for end, _ in held if end > earliest]):
        if sum(tokens for end, tokens in held if end > time) + demand <= capacity:
            return time
    raise AssertionError("the last end leaves room for any call")
