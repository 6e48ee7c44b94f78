"""Combinatorial lower bounds in exact time: critical paths and class loads. They need no solver."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench import CompiledInstance
from workbench.metrics import workflows_on_time

__all__ = ["LowerBound", "alpha_bound", "makespan_bound"]

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

ROUNDING = 1e-12
"""Relative amount by which a bound summed in floating point is lowered."""


@dataclass(frozen=True)
class LowerBound:
    """A lower bound and how it was proven."""

    value: float
    method: str


@dataclass(frozen=True)
class CallBounds:
    """Shortest times of every call, seconds, (N,) each.

    Attributes
    ----------
    prefill_head, decode_head : float
        Earliest start of prefill and of decode.
    after_prefill, after_decode : float
        Shortest time from the end of prefill, or of decode, to the end of the workflow.
    finish : float
        Earliest end of decode.
    prefill_work, decode_work : float
        Least server-seconds of prefill and token-seconds of KV memory.
    """

    prefill_head: Floats
    decode_head: Floats
    after_prefill: Floats
    after_decode: Floats
    finish: Floats
    prefill_work: Floats
    decode_work: Floats

    @classmethod
    def of(cls, instance: CompiledInstance) -> "CallBounds":
        """Compute the shortest times over the placements on which a call fits."""
        used_p, used_d = np.unique(instance.prefill_class), np.unique(instance.decode_class)
        largest = np.array([instance.capacity_tokens[instance.decode_class == h].max() for h in used_d])
        fits = instance.demand_tokens[:, None] <= largest[None, :]
        prefill = instance.prefill_s[:, used_p]
        decode = np.where(fits, instance.decode_s[:, used_d], np.inf)
        transfer = instance.transfer_s[:, used_p][:, :, used_d]
        to_decode = (prefill[:, :, None] + np.where(fits[:, None, :], transfer, np.inf)).min(axis=(1, 2))
        from_prefill = (transfer + decode[:, None, :]).min(axis=(1, 2))
        whole = (prefill[:, :, None] + transfer + decode[:, None, :]).min(axis=(1, 2))
        head = instance.arrival_s[instance.workflow].copy()
        after = np.zeros(instance.n_calls)
        for c in instance.topological.tolist():
            for parent, delay in instance.parents_of(c):
                head[c] = max(head[c], head[parent] + whole[parent] + delay)
        for c in instance.topological[::-1].tolist():
            after[c] = max((delay + whole[child] + after[child] for child, delay in instance.children[c]), default=0.0)
        return cls(
            prefill_head=head,
            decode_head=head + to_decode,
            after_prefill=from_prefill + after,
            after_decode=after,
            finish=head + whole,
            prefill_work=prefill.min(axis=1),
            decode_work=decode.min(axis=1) * instance.demand_tokens,
        )


def load_bound(head: Floats, work: Floats, after: Floats, capacity: float, calls: Bools) -> float:
    """Return the latest of ``r + work / capacity + shortest tail`` over the calls with head at least ``r``, seconds."""
    order = np.flatnonzero(calls)
    order = order[np.argsort(-head[order], kind="stable")]
    work_so_far = np.cumsum(work[order])
    tail_so_far = np.minimum.accumulate(after[order])
    return float((head[order] + work_so_far / capacity + tail_so_far).max())


def completion_bound(instance: CompiledInstance, bounds: CallBounds, workflows: Bools) -> float:
    """Return a time before which not all the given workflows can be complete, from the load of both pools."""
    calls = workflows[instance.workflow]
    servers, tokens = float(len(instance.prefill_class)), float(instance.capacity_tokens.sum())
    prefill = load_bound(bounds.prefill_head, bounds.prefill_work, bounds.after_prefill, servers, calls)
    decode = load_bound(bounds.decode_head, bounds.decode_work, bounds.after_decode, tokens, calls)
    return max(prefill, decode)


def makespan_bound(instance: CompiledInstance) -> LowerBound:
    """Return a lower bound on the makespan: the longest critical path, or the load of a pool.

    Examples
    --------
    >>> one_server = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[2.0], [2.0]],
    ...                                              decode_s=[[1.0], [1.0]])
    >>> round(makespan_bound(one_server).value, 6)
    5.0
    """
    bounds = CallBounds.of(instance)
    path = float(bounds.finish.max())
    load = completion_bound(instance, bounds, np.ones(instance.n_workflows, dtype=np.bool_))
    value = max(path, load) * (1 - ROUNDING)
    return LowerBound(value, "critical path" if path >= load else "load of a pool")


def alpha_bound(instance: CompiledInstance, tau: float) -> LowerBound:
    """Return a lower bound on ``alpha_tau``: the quantile of the critical paths, or for tau = 1 the load of a pool.

    The last to complete of the workflows that arrive at or after some time completes no earlier than their load
    allows, so one of them has at least the ratio that this time gives it.
    """
    bounds = CallBounds.of(instance)
    arrival, horizon = instance.arrival_s, instance.horizon_s
    finish = np.maximum.reduceat(bounds.finish, instance.first_call[:-1])
    need = workflows_on_time(instance.n_workflows, tau)
    path = float(np.sort((finish - arrival) / horizon)[need - 1])
    load = 0.0
    if need == instance.n_workflows:
        for release in np.unique(arrival):
            late = arrival >= release
            end = completion_bound(instance, bounds, late)
            load = max(load, float(((end - arrival[late]) / horizon[late]).min()))
    value = max(path, load)
    value -= ROUNDING * float(((arrival + value * horizon) / horizon).max())
    return LowerBound(value, "critical path" if path >= load else "load of a pool")
