"""CP-SAT model of the offline problem in ticks: variables, hint and the order that a solution gives."""

from collections.abc import Callable, Sequence

from ortools.sat.python import cp_model

from solvers import constraints
from solvers.incumbent import replay
from solvers.ticks import TickInstance
from workbench import Schedule

__all__ = ["Model"]

LOOSE_CAPACITY = 12
"""Capacity over largest demand from which the decode instances of a group are first modelled as one memory."""


class Model:
    """Variables and constraints shared by every objective.

    Prefill runs on a class (identical single servers are one resource of that capacity, coloured afterwards), decode
    on an instance of a group where KV capacity can bind, else on the group. A workflow that is not ``on_time`` is
    absent: it runs after everything else, where it disturbs nobody.

    Parameters
    ----------
    ticks : TickInstance
        The rounded problem.
    deadline : (W,) sequence of int
        Latest completion of every workflow that is on time, in ticks.
    need : int
        Workflows that must be on time.
    exact_packing : bool
        Model every decode instance whose memory can bind, however large it is.

    Attributes
    ----------
    feasible : bool
        False if critical paths alone leave fewer than ``need`` workflows that can meet their deadline.
    """

    def __init__(self, ticks: TickInstance, deadline: Sequence[int], need: int, exact_packing: bool) -> None:
        instance = ticks.instance
        self.ticks = ticks
        self.deadline = deadline
        self.need = need
        self.cp = cp_model.CpModel()
        self.workflows = [
            w
            for w in range(instance.n_workflows)
            if all(ticks.prefill_head[c] + ticks.prefill_tail[c] <= deadline[w] for c in ticks.calls_of(w))
        ]
        self.feasible = len(self.workflows) >= need
        self.calls = [c for w in self.workflows for c in ticks.calls_of(w)]
        self.packed = {k for k in range(len(ticks.groups)) if self._is_packed(k, exact_packing)}
        self.optional = len(self.workflows) > need
        self.on_time: dict[int, cp_model.IntVar | bool] = {}
        self.prefill_start: dict[int, cp_model.IntVar] = {}
        self.decode_start: dict[int, cp_model.IntVar] = {}
        self.pair: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.prefill_in: dict[tuple[int, int], cp_model.IntVar] = {}
        self.decode_in: dict[tuple[int, int], cp_model.IntVar] = {}
        self.decode_on: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._hinted: list[tuple[cp_model.IntVar, int]] = []
        if self.feasible:
            self._add_variables()
            constraints.add_placement(self)
            constraints.add_precedence(self)
            constraints.add_deadlines(self)
            constraints.add_prefill_capacity(self)
            constraints.add_decode_capacity(self)

    def candidates(self, k: int) -> list[int]:
        """Return the calls that may decode in group ``k``."""
        return [c for c in self.calls if self.ticks.demand[c] <= self.ticks.groups[k].capacity_tokens]

    def binds(self, k: int) -> bool:
        """Return whether the calls that may decode in group ``k`` can overfill one of its instances."""
        return self.ticks.most_tokens_at_once(self.candidates(k)) > self.ticks.groups[k].capacity_tokens

    def relaxed_packing(self) -> bool:
        """Return whether some group of several instances is modelled as one memory though its capacity can bind."""
        groups = self.ticks.groups
        return any(len(groups[k].instances) > 1 and k not in self.packed and self.binds(k) for k in range(len(groups)))

    def _is_packed(self, k: int, exact_packing: bool) -> bool:
        group = self.ticks.groups[k]
        if len(group.instances) == 1 or not self.binds(k):
            return False
        largest = max(self.ticks.demand[c] for c in self.candidates(k))
        return exact_packing or group.capacity_tokens < LOOSE_CAPACITY * largest

    def _add_variables(self) -> None:
        ticks, cp = self.ticks, self.cp
        for w in self.workflows:
            self.on_time[w] = cp.new_bool_var(f"on_time_{w}") if self.optional else True
            for c in ticks.calls_of(w):
                latest = self.deadline[w]
                self.prefill_start[c] = cp.new_int_var(
                    ticks.prefill_head[c], latest - ticks.prefill_tail[c], f"prefill_{c}"
                )
                self.decode_start[c] = cp.new_int_var(
                    ticks.decode_head[c], latest - ticks.decode_tail[c], f"decode_{c}"
                )
                for g, k in ticks.pairs[c]:
                    self.pair[c, g, k] = cp.new_bool_var(f"pair_{c}_{g}_{k}")
                for g in dict.fromkeys(g for g, _ in ticks.pairs[c]):
                    self.prefill_in[c, g] = cp.new_bool_var(f"prefill_in_{c}_{g}")
                for k in dict.fromkeys(k for _, k in ticks.pairs[c]):
                    self.decode_in[c, k] = cp.new_bool_var(f"decode_in_{c}_{k}")
        for k in sorted(self.packed):
            # Identical instances are numbered by their first user, so call number r needs at most the first r + 1.
            for rank, c in enumerate(self.candidates(k)):
                for j in range(min(rank + 1, len(ticks.groups[k].instances))):
                    self.decode_on[c, k, j] = cp.new_bool_var(f"decode_on_{c}_{k}_{j}")

    def end(self, c: int) -> cp_model.LinearExpr:
        """Return the end of the decode of a call, in ticks."""
        ticks = self.ticks
        length = [
            (self.decode_in[c, k], ticks.decode[c][k]) for k in range(len(ticks.groups)) if (c, k) in self.decode_in
        ]
        decode = cp_model.LinearExpr.weighted_sum([v for v, _ in length], [d for _, d in length])
        return cp_model.LinearExpr.sum([self.decode_start[c], decode])

    def sinks(self, w: int) -> list[int]:
        """Return the calls of a workflow without children."""
        return [c for c in self.ticks.calls_of(w) if not self.ticks.instance.children[c]]

    def add_hint(self, schedule: Schedule, absent: frozenset[int] = frozenset()) -> None:
        """Hint every variable from a schedule in exact time; workflows in ``absent`` are hinted not on time."""
        ticks = self.ticks
        instance = ticks.instance
        group_of = {d: (k, j) for k, group in enumerate(ticks.groups) for j, d in enumerate(group.instances)}
        hint: dict[int, int] = {}
        variables: dict[int, cp_model.IntVar] = {}

        def put(variable: cp_model.IntVar, value: int) -> None:
            variables[variable.index] = variable
            hint[variable.index] = value

        for literals in (self.pair, self.prefill_in, self.decode_in, self.decode_on):
            for literal in literals.values():
                put(literal, 0)
        number: dict[int, dict[int, int]] = {k: {} for k in self.packed}
        prefill_start = ticks.floor_deadlines(schedule.prefill_start_s)
        decode_start = ticks.floor_deadlines(schedule.decode_start_s)
        for w in self.workflows:
            present = w not in absent
            if self.optional:
                put(self.on_time[w], int(present))  # type: ignore[arg-type]
            for c in ticks.calls_of(w):
                latest_prefill = self.deadline[w] - ticks.prefill_tail[c]
                latest_decode = self.deadline[w] - ticks.decode_tail[c]
                if not present:
                    put(self.prefill_start[c], ticks.prefill_head[c])
                    put(self.decode_start[c], ticks.decode_head[c])
                    continue
                g = int(instance.prefill_class[schedule.prefill_instance[c]])
                k, j = group_of[int(schedule.decode_instance[c])]
                put(self.prefill_start[c], min(max(prefill_start[c], ticks.prefill_head[c]), latest_prefill))
                put(self.decode_start[c], min(max(decode_start[c], ticks.decode_head[c]), latest_decode))
                put(self.pair[c, g, k], 1)
                put(self.prefill_in[c, g], 1)
                put(self.decode_in[c, k], 1)
                if k in self.packed:
                    put(self.decode_on[c, k, number[k].setdefault(j, len(number[k]))], 1)
        for index, value in hint.items():
            self.cp.add_hint(variables[index], value)

    def found_schedule(self, value: Callable[[cp_model.IntVar], int], label: str) -> Schedule:
        """Replay the solution that ``value`` reads, in exact time."""
        ticks = self.ticks
        n = ticks.instance.n_calls
        prefill: list[float | None] = [None] * n
        decode: list[float | None] = [None] * n
        servers: list[Sequence[int]] = [()] * n
        memories: list[Sequence[int]] = [()] * n
        for (c, g, k), literal in self.pair.items():
            if value(literal):
                prefill[c], decode[c] = value(self.prefill_start[c]), value(self.decode_start[c])
                servers[c] = ticks.prefill_classes[g]
                memories[c] = ticks.groups[k].instances
        for (c, k, j), literal in self.decode_on.items():
            if value(literal):
                memories[c] = (ticks.groups[k].instances[j],)
        return replay(ticks.instance, label, prefill, decode, servers, memories)
