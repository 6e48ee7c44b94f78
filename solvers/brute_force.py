"""Exhaustive search for tiny instances in exact time: the oracle of the tests, independent of the CP-SAT model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf

from workbench import CompiledInstance
from workbench.metrics import req

__all__ = ["brute_force"]


@dataclass
class _State:
    """A partial schedule; operations are added in order of their starts."""

    prefill_end: dict[int, float] = field(default_factory=dict)
    prefill_on: dict[int, int] = field(default_factory=dict)
    decode_end: dict[int, float] = field(default_factory=dict)
    free_at: dict[int, float] = field(default_factory=dict)
    running: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    now: float = 0.0


def brute_force(instance: CompiledInstance, objective: str = "makespan", tau: float = 1.0) -> float:
    """Return the optimum by enumeration.

    Every schedule in which no operation can start earlier without another starting later is reached by adding
    operations in order of start, each as early as it can be on the instance chosen for it. One of them is optimal,
    because both objectives never fall when a call ends later.

    Parameters
    ----------
    instance : CompiledInstance
        At most about five calls on a few instances; the time grows exponentially.
    objective : {"makespan", "alpha"}
        Seconds until the last workflow is complete, or the least SLO scale.
    tau : float
        Share of workflows on time, for ``alpha``.
    """
    best = inf
    stack = [_State()]
    while stack:
        state = stack.pop()
        if len(state.decode_end) == instance.n_calls:
            best = min(best, _value(instance, state.decode_end, objective, tau))
        elif _optimistic(instance, state, objective, tau) < best:
            stack.extend(_extensions(instance, state))
    return best


def _value(instance: CompiledInstance, decode_end: dict[int, float], objective: str, tau: float) -> float:
    ends = [0.0] * instance.n_workflows
    for c, end in decode_end.items():
        w = int(instance.workflow[c])
        ends[w] = max(ends[w], end)
    if objective == "makespan":
        return max(ends)
    return req([(e - a) / h for e, a, h in zip(ends, instance.arrival_s, instance.horizon_s, strict=True)], tau)


def _optimistic(instance: CompiledInstance, state: _State, objective: str, tau: float) -> float:
    """Return a value that no completion of the partial schedule beats: the rest starts now, on its fastest class."""
    ends = dict(state.decode_end)
    for c in range(instance.n_calls):
        if c not in ends:
            prefill = 0.0 if c in state.prefill_end else float(instance.prefill_s[c].min())
            ends[c] = state.now + prefill + float(instance.decode_s[c].min())
    return _value(instance, ends, objective, tau) - 1e-9


def _extensions(instance: CompiledInstance, state: _State) -> Iterator[_State]:
    """Yield the partial schedule with one more operation, none of which starts before the last one that was added."""
    for c in range(instance.n_calls):
        if c not in state.prefill_end:
            parents = instance.parents_of(c)
            if all(parent in state.decode_end for parent, _ in parents):
                ready = float(instance.arrival_s[instance.workflow[c]])
                for parent, delay in parents:
                    ready = max(ready, state.decode_end[parent] + delay)
                yield from _prefills(instance, state, c, ready)
        elif c not in state.decode_end:
            yield from _decodes(instance, state, c)


def _prefills(instance: CompiledInstance, state: _State, c: int, ready: float) -> Iterator[_State]:
    for p, g in enumerate(instance.prefill_class.tolist()):
        start = max(ready, state.free_at.get(p, 0.0))
        if start >= state.now:
            end = start + float(instance.prefill_s[c, g])
            yield _State(
                state.prefill_end | {c: end},
                state.prefill_on | {c: p},
                state.decode_end,
                state.free_at | {p: end},
                state.running,
                start,
            )


def _decodes(instance: CompiledInstance, state: _State, c: int) -> Iterator[_State]:
    g = int(instance.prefill_class[state.prefill_on[c]])
    demand = int(instance.input_tokens[c] + instance.output_tokens[c])
    for d, h in enumerate(instance.decode_class.tolist()):
        if demand > instance.capacity_tokens[d]:
            continue
        held = state.running.get(d, [])
        ready = state.prefill_end[c] + float(instance.transfer_s[c, g, h])
        # All decodes so far began by now, so from now on the tokens held only fall, at the ends.
        after = max(ready, state.now)
        for start in sorted([after, *(end for end, _ in held if end > after)]):
            if sum(tokens for end, tokens in held if end > start) + demand <= instance.capacity_tokens[d]:
                break
        end = start + float(instance.decode_s[c, h])
        yield _State(
            state.prefill_end,
            state.prefill_on,
            state.decode_end | {c: end},
            state.free_at,
            state.running | {d: [*held, (end, demand)]},
            start,
        )
