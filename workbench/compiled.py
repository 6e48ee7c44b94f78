"""The compiled instance: plain arrays that feed the simulator, every policy, the exact solver and the bounds."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.errors import InputError

__all__ = ["CompiledInstance", "largest_batch"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class CompiledInstance:
    """An instance of the scheduling problem as arrays; nothing else is ever the source of a duration.

    Calls of a workflow are contiguous. ``N`` calls, ``W`` workflows, ``P`` prefill and ``D`` decode instances in
    ``G`` prefill and ``H`` decode classes; instances of one class are alike but for decode capacity.

    Attributes
    ----------
    name : str
        Name of the instance.
    workflow_ids, call_ids : tuple of str
        Names; ``call_ids`` are unique within a workflow only.
    first_call : (W + 1,) int
        Calls of workflow ``w`` are ``first_call[w]:first_call[w + 1]``.
    arrival_s, weight : (W,) float
        Arrival times in seconds and weights.
    parent_start : (N + 1,) int
        CSR offsets: parents of call ``c`` are ``parents[parent_start[c]:parent_start[c + 1]]``.
    parents : (E,) int
        Parent calls.
    tool_delay_s : (E,) float
        Tool delay of each edge in seconds.
    input_tokens, output_tokens, predicted_output_tokens, cached_prefix_tokens : (N,) int
        Lengths.
    prefill_s : (N, G) float
        Prefill time in seconds.
    transfer_s : (N, G, H) float
        KV transfer time in seconds.
    decode_s, predicted_decode_s : (N, H) float
        Decode time in seconds with the true and with the predicted output length.
    prefill_class, decode_class : (P,) and (D,) int
        Class of each instance.
    capacity_tokens : (D,) int
        KV capacity of each decode instance.
    prefill_class_names, decode_class_names : tuple of str
        Names of the classes.
    decode_fixed_s : (H, B + 1) float, optional
        Seconds of a decode step apart from KV reads, by batch size, up to the most calls that can be resident at once
        or more; of no meaning for batch 0. Batched decode needs it.
    kv_read_s : (H,) float, optional
        Seconds that each resident KV token adds to a decode step. Batched decode needs it.
    """

    name: str
    workflow_ids: tuple[str, ...]
    call_ids: tuple[str, ...]
    first_call: Ints
    arrival_s: Floats
    weight: Floats
    parent_start: Ints
    parents: Ints
    tool_delay_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    predicted_output_tokens: Ints
    cached_prefix_tokens: Ints
    prefill_s: Floats
    transfer_s: Floats
    decode_s: Floats
    predicted_decode_s: Floats
    prefill_class: Ints
    decode_class: Ints
    capacity_tokens: Ints
    prefill_class_names: tuple[str, ...]
    decode_class_names: tuple[str, ...]
    decode_fixed_s: Floats | None = None
    kv_read_s: Floats | None = None

    def __post_init__(self) -> None:
        for value in vars(self).values():
            if isinstance(value, np.ndarray):
                value.setflags(write=False)
        self._validate_structure()
        for field in ("prefill_s", "decode_s", "predicted_decode_s"):
            if not (np.isfinite(getattr(self, field)).all() and (getattr(self, field) > 0).all()):
                raise InputError(f"instance '{self.name}': {field} must be positive and finite")
        if not (np.isfinite(self.transfer_s).all() and (self.transfer_s >= 0).all()):
            raise InputError(f"instance '{self.name}': transfer_s must be non-negative and finite")
        largest = self.capacity_tokens.max()
        for c in np.flatnonzero(self.demand_tokens > largest)[:1]:
            raise InputError(
                f"{self.call_name(c)}: KV demand {self.demand_tokens[c]} tokens (input + output) fits no decode "
                f"instance; the largest capacity is {largest}: shorten the call or raise the capacity"
            )
        self._validate_steps()

    def _validate_structure(self) -> None:
        """Refuse arrays that do not describe workflows on a cluster."""
        first, parents = self.first_call, self.parents
        child = np.repeat(np.arange(self.n_calls), np.diff(self.parent_start))
        checks = {
            "first_call must rise from 0 to the number of calls, a call or more each workflow": len(first) >= 2
            and first[0] == 0
            and first[-1] == self.n_calls
            and (np.diff(first) > 0).all(),
            "arrival_s must hold one finite, non-negative time a workflow": len(self.arrival_s) == self.n_workflows
            and bool((np.isfinite(self.arrival_s) & (self.arrival_s >= 0)).all()),
            "parents must be calls of the same workflow": ((parents >= 0) & (parents < self.n_calls)).all()
            and (self.workflow[parents] == self.workflow[child]).all(),
            "tool_delay_s must be finite and non-negative": np.isfinite(self.tool_delay_s).all()
            and (self.tool_delay_s >= 0).all(),
            "lengths must be at least 1 token": (self.input_tokens >= 1).all() and (self.output_tokens >= 1).all(),
            "prefill_class and decode_class must index the columns of the durations": all(
                len(index) > 0 and index.min() >= 0 and index.max() < columns
                for index, columns in (
                    (self.prefill_class, self.prefill_s.shape[1]),
                    (self.decode_class, self.decode_s.shape[1]),
                )
            ),
        }
        for rule, holds in checks.items():
            if not holds:
                raise InputError(f"instance '{self.name}': {rule}")
        if len(self.topological) < self.n_calls:
            raise InputError(f"instance '{self.name}': parents must not form a cycle")

    def _validate_steps(self) -> None:
        """Refuse step times that batched decode could not use."""
        fixed, read = self.decode_fixed_s, self.kv_read_s
        if fixed is None and read is None:
            return
        if fixed is None or read is None:
            raise InputError(f"instance '{self.name}': decode_fixed_s and kv_read_s must be given together")
        classes, batch = self.decode_s.shape[1], largest_batch(self.demand_tokens, self.capacity_tokens)
        steps = fixed[:, 1:] if fixed.ndim == 2 else fixed
        checks = {
            f"decode_fixed_s must hold {classes} rows of batches 0 to {batch} or more": fixed.ndim == 2
            and fixed.shape[0] == classes
            and fixed.shape[1] > batch,
            "decode_fixed_s must be positive and finite": np.isfinite(steps).all() and (steps > 0).all(),
            "decode_fixed_s must not fall as the batch grows": (np.diff(steps) >= 0).all(),
            f"kv_read_s must hold {classes} finite, non-negative values": read.shape == (classes,)
            and (np.isfinite(read) & (read >= 0)).all(),
        }
        for rule, holds in checks.items():
            if not holds:
                raise InputError(f"instance '{self.name}': {rule}")

    @classmethod
    def from_durations(
        cls,
        *,
        first_call: ArrayLike,
        prefill_s: ArrayLike,
        decode_s: ArrayLike,
        transfer_s: ArrayLike | None = None,
        demand_tokens: ArrayLike = 2,
        arrival_s: ArrayLike | None = None,
        parents: Sequence[Sequence[int]] | None = None,
        tool_delay_s: Sequence[Sequence[float]] | None = None,
        prefill_class: ArrayLike = (0,),
        decode_class: ArrayLike = (0,),
        capacity_tokens: ArrayLike = 1_000_000,
        decode_fixed_s: ArrayLike | None = None,
        kv_read_s: ArrayLike | None = None,
        name: str = "durations",
    ) -> "CompiledInstance":
        """Build an instance from durations, without a cost model (queueing studies, tests, imported schedules).

        Parameters
        ----------
        first_call : (W + 1,) array_like of int
            Call offsets of the workflows.
        prefill_s : (N, G) array_like
            Prefill seconds.
        decode_s : (N, H) array_like
            Decode seconds.
        transfer_s : (N, G, H) array_like, optional
            Transfer seconds, 0 if omitted.
        demand_tokens : (N,) array_like of int or int
            KV demand of each call, at least 2; all but one token count as input.
        arrival_s : (W,) array_like, optional
            Arrival seconds, 0 if omitted.
        parents : sequence of sequence of int, optional
            Parents of each call, by call index.
        tool_delay_s : sequence of sequence of float, optional
            Delay of each of those edges, 0 if omitted.
        prefill_class, decode_class : array_like of int
            Class of each instance.
        capacity_tokens : (D,) array_like of int or int
            KV capacity of each decode instance.
        decode_fixed_s : (H, B + 1) array_like, optional
            Seconds of a decode step by batch size, apart from KV reads; without it there is no batched decode.
        kv_read_s : (H,) array_like, optional
            Seconds that each resident KV token adds to a decode step; goes with `decode_fixed_s`.

        Examples
        --------
        >>> two_calls = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[1.0], [2.0]],
        ...                                             decode_s=[[3.0], [3.0]])
        >>> two_calls.n_calls
        2
        """
        prefill = np.array(prefill_s, dtype=np.float64, ndmin=2)
        decode = np.array(decode_s, dtype=np.float64, ndmin=2)
        n = len(prefill)
        first = np.array(first_call, dtype=np.int64)
        links = [list(p) for p in parents] if parents is not None else [[] for _ in range(n)]
        delays = [list(d) for d in tool_delay_s] if tool_delay_s is not None else [[0.0] * len(p) for p in links]
        demand = np.broadcast_to(np.array(demand_tokens, dtype=np.int64), (n,)).copy()
        p_class = np.array(prefill_class, dtype=np.int64)
        d_class = np.array(decode_class, dtype=np.int64)
        shape = (n, prefill.shape[1], decode.shape[1])
        one = np.ones(n, dtype=np.int64)
        return cls(
            name=name,
            workflow_ids=tuple(f"w{w}" for w in range(len(first) - 1)),
            call_ids=tuple(f"c{c - first[w]}" for w in range(len(first) - 1) for c in range(first[w], first[w + 1])),
            first_call=first,
            arrival_s=np.zeros(len(first) - 1) if arrival_s is None else np.array(arrival_s, dtype=np.float64),
            weight=np.ones(len(first) - 1),
            parent_start=np.cumsum([0] + [len(p) for p in links], dtype=np.int64),
            parents=np.array([p for row in links for p in row], dtype=np.int64),
            tool_delay_s=np.array([d for row in delays for d in row], dtype=np.float64),
            input_tokens=demand - 1,
            output_tokens=one,
            predicted_output_tokens=one.copy(),
            cached_prefix_tokens=np.zeros(n, dtype=np.int64),
            prefill_s=prefill,
            transfer_s=np.zeros(shape) if transfer_s is None else np.array(transfer_s, dtype=np.float64).reshape(shape),
            decode_s=decode,
            predicted_decode_s=decode.copy(),
            prefill_class=p_class,
            decode_class=d_class,
            capacity_tokens=np.broadcast_to(np.array(capacity_tokens, dtype=np.int64), d_class.shape).copy(),
            prefill_class_names=tuple(f"P-class{g}" for g in range(shape[1])),
            decode_class_names=tuple(f"D-class{h}" for h in range(shape[2])),
            decode_fixed_s=None if decode_fixed_s is None else np.array(decode_fixed_s, dtype=np.float64),
            kv_read_s=None if kv_read_s is None else np.array(kv_read_s, dtype=np.float64),
        )

    @property
    def n_calls(self) -> int:
        """Number of calls ``N``."""
        return len(self.call_ids)

    @property
    def n_workflows(self) -> int:
        """Number of workflows ``W``."""
        return len(self.workflow_ids)

    @cached_property
    def demand_tokens(self) -> Ints:
        """(N,) true KV demand ``m(c) = L_in + L_out`` in tokens (Eq. 3)."""
        demand: Ints = self.input_tokens + self.output_tokens
        return demand

    @cached_property
    def decode_steps(self) -> Ints:
        """(N,) decode steps of each call: the first output token belongs to prefill; at least one step."""
        steps: Ints = np.maximum(self.output_tokens - 1, 1)
        return steps

    @cached_property
    def predicted_demand_tokens(self) -> Ints:
        """(N,) KV demand as planners see it: with the predicted output length, clipped to the largest capacity."""
        demand: Ints = np.minimum(self.input_tokens + self.predicted_output_tokens, self.capacity_tokens.max())
        return demand

    @cached_property
    def workflow(self) -> Ints:
        """(N,) workflow of each call."""
        return np.asarray(np.repeat(np.arange(self.n_workflows), np.diff(self.first_call)))

    def parents_of(self, c: int) -> list[tuple[int, float]]:
        """Return the parents of a call, each with the tool delay in seconds."""
        edges = slice(self.parent_start[c], self.parent_start[c + 1])
        return list(zip(self.parents[edges].tolist(), self.tool_delay_s[edges].tolist(), strict=True))

    @cached_property
    def children(self) -> tuple[tuple[tuple[int, float], ...], ...]:
        """For each call its children with the tool delay in seconds, in call order."""
        rows: list[list[tuple[int, float]]] = [[] for _ in range(self.n_calls)]
        for c in range(self.n_calls):
            for parent, delay in self.parents_of(c):
                rows[parent].append((c, delay))
        return tuple(tuple(row) for row in rows)

    @cached_property
    def topological(self) -> Ints:
        """(N,) the calls in an order in which every parent comes first."""
        missing = np.diff(self.parent_start).tolist()
        order = [c for c in range(self.n_calls) if missing[c] == 0]
        for c in order:
            for child, _ in self.children[c]:
                missing[child] -= 1
                if missing[child] == 0:
                    order.append(child)
        return np.array(order, dtype=np.int64)

    @cached_property
    def instance_names(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Names of the prefill and of the decode instances, such as ``P0 H100-80GB-SXM:tp4``."""
        return (
            tuple(f"P{p} {self.prefill_class_names[g]}" for p, g in enumerate(self.prefill_class)),
            tuple(f"D{d} {self.decode_class_names[h]}" for d, h in enumerate(self.decode_class)),
        )

    @cached_property
    def horizon_s(self) -> Floats:
        """(W,) standalone horizon ``H_w`` of every workflow in seconds; greedy unless replaced by `with_horizons`."""
        from workbench.horizon import greedy_horizons

        return greedy_horizons(self)

    @cached_property
    def horizon_kind(self) -> str:
        """Which horizons `horizon_s` holds: ``greedy``, or the name given to `with_horizons`."""
        return "greedy"

    def with_horizons(self, horizon_s: ArrayLike, kind: str) -> "CompiledInstance":
        """Return the same instance measured against other standalone horizons (seconds, one a workflow)."""
        other = replace(self)
        values = np.array(horizon_s, dtype=np.float64)
        if values.shape != (self.n_workflows,) or not (values > 0).all():
            raise ValueError(f"expected {self.n_workflows} positive horizons")
        other.__dict__.update(horizon_s=values, horizon_kind=kind)
        return other

    def call_name(self, c: int) -> str:
        """Return how messages name a call: its workflow and its id."""
        return f"workflow '{self.workflow_ids[self.workflow[c]]}' call '{self.call_ids[c]}'"


def largest_batch(demand_tokens: Ints, capacity_tokens: Ints) -> int:
    """Return the most calls whose KV demand one decode instance can hold at once.

    Parameters
    ----------
    demand_tokens : (N,) int
        KV demand of each call.
    capacity_tokens : (D,) int
        KV capacity of each decode instance.

    Examples
    --------
    >>> largest_batch(np.array([5, 2, 3]), np.array([4, 9]))
    2
    """
    return int(np.searchsorted(np.cumsum(np.sort(demand_tokens)), capacity_tokens.max(), side="right"))
