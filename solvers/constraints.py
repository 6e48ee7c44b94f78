"""Constraints of the CP-SAT model: placement, precedence, capacities, and redundant load rows."""

from collections import defaultdict
from typing import TYPE_CHECKING

from ortools.sat.python import cp_model

if TYPE_CHECKING:
    from solvers.model import Model

__all__ = [
    "add_deadlines",
    "add_decode_capacity",
    "add_loads",
    "add_placement",
    "add_precedence",
    "add_prefill_capacity",
]

ENERGY_UNITS = 1000
"""Resolution of the capacity of a group in the decode load rows; keeps their coefficients small."""


def add_placement(model: "Model") -> None:
    """Give every call of a workflow on time one prefill class, one decode group and, where modelled, one instance."""
    by_call, by_prefill, by_decode = defaultdict(list), defaultdict(list), defaultdict(list)
    for (c, g, k), literal in model.pair.items():
        by_call[c].append(literal)
        by_prefill[c, g].append(literal)
        by_decode[c, k].append(literal)
    for w in model.workflows:
        for c in model.ticks.calls_of(w):
            if model.optional:
                model.cp.add(cp_model.LinearExpr.sum(by_call[c]) == model.on_time[w])
            else:
                model.cp.add_exactly_one(by_call[c])
    for key, literals in by_prefill.items():
        model.cp.add(cp_model.LinearExpr.sum(literals) == model.prefill_in[key])
    for key, literals in by_decode.items():
        model.cp.add(cp_model.LinearExpr.sum(literals) == model.decode_in[key])
    by_instance = defaultdict(list)
    for (c, k, _), literal in model.decode_on.items():
        by_instance[c, k].append(literal)
    for key, literals in by_instance.items():
        model.cp.add(cp_model.LinearExpr.sum(literals) == model.decode_in[key])
    if model.optional:
        model.cp.add(cp_model.LinearExpr.sum(list(model.on_time.values())) >= model.need)


def add_precedence(model: "Model") -> None:
    """Start decode after prefill and transfer, and prefill after every parent's decode and tool delay."""
    ticks = model.ticks
    lead = defaultdict(list)
    for (c, g, k), literal in model.pair.items():
        lead[c].append((literal, ticks.prefill[c][g] + ticks.transfer[c][g][k]))
    for w in model.workflows:
        for c in ticks.calls_of(w):
            before_decode = cp_model.LinearExpr.weighted_sum([v for v, _ in lead[c]], [t for _, t in lead[c]])
            model.cp.add(model.decode_start[c] >= model.prefill_start[c] + before_decode)
            for parent, delay in ticks.parents[c]:
                model.cp.add(model.prefill_start[c] >= model.end(parent) + delay * model.on_time[w])


def add_deadlines(model: "Model") -> None:
    """Complete every workflow by its deadline; the domains alone allow for the fastest decode only."""
    for w in model.workflows:
        for c in model.sinks(w):
            model.cp.add(model.end(c) <= model.deadline[w])


def add_prefill_capacity(model: "Model") -> None:
    """Run at most as many prefills at once in a class as it has instances."""
    ticks = model.ticks
    at_once = len(ticks.chains(model.calls))
    for g, servers in ticks.prefill_classes.items():
        if at_once <= len(servers):
            continue
        intervals = [
            model.cp.new_optional_fixed_size_interval_var(
                model.prefill_start[c], ticks.prefill[c][g], model.prefill_in[c, g], f"prefill_{c}_{g}"
            )
            for c in model.calls
            if ticks.prefill[c][g] > 0
        ]
        if len(servers) == 1:
            model.cp.add_no_overlap(intervals)
        else:
            model.cp.add_cumulative(intervals, [1] * len(intervals), len(servers))


def add_decode_capacity(model: "Model") -> None:
    """Keep the KV tokens held on every decode instance, and as a redundant row in every group, within capacity."""
    for k, group in enumerate(model.ticks.groups):
        if model.binds(k):
            group_uses = {c: model.decode_in[c, k] for c in model.candidates(k)}
            _add_memory(model, k, group_uses, group.capacity_tokens * len(group.instances))
        if k in model.packed:
            for j in range(len(group.instances)):
                uses = {c: v for (c, group_k, on), v in model.decode_on.items() if group_k == k and on == j}
                _add_memory(model, k, uses, group.capacity_tokens)


def _add_memory(model: "Model", k: int, uses: dict[int, cp_model.IntVar], capacity: int) -> None:
    ticks = model.ticks
    if ticks.most_tokens_at_once(list(uses)) <= capacity:
        return
    intervals, demands = [], []
    for c, literal in uses.items():
        if ticks.decode[c][k] > 0:
            intervals.append(
                model.cp.new_optional_fixed_size_interval_var(
                    model.decode_start[c], ticks.decode[c][k], literal, f"decode_{c}_{literal.index}"
                )
            )
            demands.append(ticks.demand[c])
    model.cp.add_cumulative(intervals, demands, capacity)


def add_loads(model: "Model", end: cp_model.IntVar) -> None:
    """Add redundant rows: what heads and tails confine to a window before ``end`` fits the pool's classes.

    For thresholds r and theta, the calls that start at or after r and leave at least theta until the end of their
    workflow share a window of ``end - theta - r`` ticks. Heads and tails hold wherever a call runs, so that a row also
    holds if none of its calls runs in the class.
    """
    ticks = model.ticks
    after_prefill = {
        c: min(ticks.transfer[c][g][k] + ticks.decode[c][k] for g, k in ticks.pairs[c]) + ticks.after[c]
        for c in model.calls
    }
    for g, servers in ticks.prefill_classes.items():
        head = {c: ticks.prefill_head[c] for c in model.calls}
        work = {c: (model.prefill_in[c, g], ticks.prefill[c][g]) for c in model.calls}
        _add_load_rows(model, end, head, after_prefill, work, len(servers))
    for k, group in enumerate(ticks.groups):
        calls = model.candidates(k)
        capacity = group.capacity_tokens * len(group.instances)
        unit = max(1, capacity // ENERGY_UNITS)
        tokens = {c: (model.decode_in[c, k], ticks.demand[c] * ticks.decode[c][k] // unit) for c in calls}
        head = {c: ticks.decode_head[c] for c in calls}
        after = {c: ticks.after[c] for c in calls}
        _add_load_rows(model, end, head, after, tokens, -(-capacity // unit))


def _add_load_rows(
    model: "Model",
    end: cp_model.IntVar,
    head: dict[int, int],
    after: dict[int, int],
    work: dict[int, tuple[cp_model.IntVar, int]],
    capacity: int,
) -> None:
    for release in _quantiles(list(head.values())):
        for theta in _quantiles([after[c] for c in head if head[c] >= release]):
            calls = [c for c in head if head[c] >= release and after[c] >= theta]
            load = cp_model.LinearExpr.weighted_sum([work[c][0] for c in calls], [work[c][1] for c in calls])
            model.cp.add(load <= capacity * (end - release - theta))


def _quantiles(values: list[int], number: int = 5) -> list[int]:
    ordered = sorted(set(values))
    return sorted({ordered[len(ordered) * i // number] for i in range(number)}) if ordered else []
