"""The offline problem in whole ticks, rounded so that its optimum is a lower bound in exact time.

Releases, durations, transfers and tool delays are rounded down and may become zero. Rounding every start of a feasible
exact schedule down gives a feasible schedule of the rounded problem, no completion of which is later in seconds.
"""

from dataclasses import dataclass
from math import floor, log10

import numpy as np
from numpy.typing import NDArray

from workbench import CompiledInstance

__all__ = ["SNAP", "DecodeGroup", "TickInstance", "choose_tick"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SNAP = 1e-12
"""Relative distance at which a time counts as a multiple of the tick; bounds are lowered by as much."""

MIN_TICKS = 1_000_000
"""Ticks in the horizon at least, unless a coarser tick loses nothing; at most ten times as many."""


def down(time_s: Floats, tick_s: float) -> Ints:
    """Return times in ticks, rounded down unless within `SNAP` of the next tick."""
    ticks = time_s / tick_s
    return np.floor(ticks * (1 + SNAP)).astype(np.int64)


def choose_tick(instance: CompiledInstance, horizon_s: float) -> float:
    """Return a power of ten of a second as tick: the coarsest that loses nothing, else 1e6 to 1e7 ticks a horizon.

    Parameters
    ----------
    horizon_s : float
        Upper bound on the makespan in seconds.

    Examples
    --------
    >>> whole = CompiledInstance.from_durations(first_call=[0, 1], prefill_s=[[2.0]], decode_s=[[3.5]])
    >>> choose_tick(whole, horizon_s=5.5)
    0.1
    """
    arrays = (instance.prefill_s, instance.decode_s, instance.transfer_s, instance.tool_delay_s, instance.arrival_s)
    times = np.unique(np.concatenate([array.ravel() for array in arrays]))
    finest = floor(log10(horizon_s / MIN_TICKS))
    shortest = min(instance.prefill_s.min(), instance.decode_s.min())
    for exponent in range(floor(log10(shortest)), finest, -1):
        ticks = times / 10.0**exponent
        if (np.abs(ticks - np.rint(ticks)) <= SNAP * ticks).all():
            return float(10.0**exponent)
    return float(10.0**finest)


@dataclass(frozen=True)
class DecodeGroup:
    """Decode instances of one class and one capacity.

    Attributes
    ----------
    decode_class : int
        Class ``h``.
    capacity_tokens : int
        KV capacity of each instance.
    instances : tuple of int
        The instances.
    """

    decode_class: int
    capacity_tokens: int
    instances: tuple[int, ...]


class TickInstance:
    """An instance in ticks; arrays are indexed like those of `CompiledInstance`, decode by group instead of class.

    Parameters
    ----------
    instance : CompiledInstance
        The instance in seconds.
    tick_s : float
        Length of a tick in seconds.
    """

    def __init__(self, instance: CompiledInstance, tick_s: float) -> None:
        self.instance = instance
        self.tick_s = tick_s
        kinds = sorted(set(zip(instance.decode_class.tolist(), instance.capacity_tokens.tolist(), strict=True)))
        self.groups = tuple(
            DecodeGroup(
                h,
                cap,
                tuple(np.flatnonzero((instance.decode_class == h) & (instance.capacity_tokens == cap)).tolist()),
            )
            for h, cap in kinds
        )
        self.prefill_classes = {
            g: tuple(np.flatnonzero(instance.prefill_class == g).tolist())
            for g in np.unique(instance.prefill_class).tolist()
        }
        in_group = [group.decode_class for group in self.groups]
        self.arrival: list[int] = down(instance.arrival_s, tick_s).tolist()
        self.prefill: list[list[int]] = down(instance.prefill_s, tick_s).tolist()
        self.transfer: list[list[list[int]]] = down(instance.transfer_s[:, :, in_group], tick_s).tolist()
        self.decode: list[list[int]] = down(instance.decode_s[:, in_group], tick_s).tolist()
        self.demand: list[int] = instance.demand_tokens.tolist()
        delays = down(instance.tool_delay_s, tick_s).tolist()
        first = instance.parent_start.tolist()
        self.parents: list[list[tuple[int, int]]] = [
            list(zip(instance.parents[first[c] : first[c + 1]].tolist(), delays[first[c] : first[c + 1]], strict=True))
            for c in range(instance.n_calls)
        ]
        self._find_heads_and_tails()

    def _find_heads_and_tails(self) -> None:
        """Compute the earliest starts and the shortest times to the end of the workflow, with `after` per call."""
        instance = self.instance
        n = instance.n_calls
        self.pairs: list[list[tuple[int, int]]] = [
            [
                (g, k)
                for g in self.prefill_classes
                for k, group in enumerate(self.groups)
                if self.demand[c] <= group.capacity_tokens
            ]
            for c in range(n)
        ]
        to_decode = [min(self.prefill[c][g] + self.transfer[c][g][k] for g, k in self.pairs[c]) for c in range(n)]
        shortest_decode = [min(self.decode[c][k] for _, k in self.pairs[c]) for c in range(n)]
        whole = [
            min(self.prefill[c][g] + self.transfer[c][g][k] + self.decode[c][k] for g, k in self.pairs[c])
            for c in range(n)
        ]
        order = instance.topological.tolist()
        self.prefill_head = [self.arrival[w] for w in instance.workflow.tolist()]
        for c in order:
            for parent, delay in self.parents[c]:
                self.prefill_head[c] = max(self.prefill_head[c], self.prefill_head[parent] + whole[parent] + delay)
        self.after = [0] * n
        for c in reversed(order):
            for parent, delay in self.parents[c]:
                self.after[parent] = max(self.after[parent], delay + whole[c] + self.after[c])
        self.decode_head = [self.prefill_head[c] + to_decode[c] for c in range(n)]
        self.prefill_tail = [whole[c] + self.after[c] for c in range(n)]
        self.decode_tail = [shortest_decode[c] + self.after[c] for c in range(n)]

    def calls_of(self, w: int) -> range:
        """Return the calls of a workflow."""
        return range(int(self.instance.first_call[w]), int(self.instance.first_call[w + 1]))

    def floor_deadlines(self, limit_s: Floats) -> list[int]:
        """Return the latest completion in ticks of workflows that complete by ``limit_s`` seconds."""
        return [int(t) for t in down(limit_s, self.tick_s)]

    def strict_deadlines(self, limit_s: Floats) -> list[int]:
        """Return the latest completion in ticks of workflows that complete before ``limit_s`` seconds."""
        return [int(t) - 1 for t in np.ceil(limit_s / self.tick_s * (1 - SNAP))]

    def chains(self, calls: list[int]) -> list[list[int]]:
        """Partition calls greedily into chains of ancestors; of a chain at most one call runs at a time."""
        wanted = set(calls)
        chain_ending_at: dict[int, list[int]] = {}
        chains = []
        for c in self.instance.topological.tolist():
            if c not in wanted:
                continue
            chain = next((chain_ending_at.pop(p) for p, _ in self.parents[c] if p in chain_ending_at), None)
            if chain is None:
                chain = []
                chains.append(chain)
            chain.append(c)
            chain_ending_at[c] = chain
        return chains

    def most_tokens_at_once(self, calls: list[int]) -> int:
        """Return an upper bound on the KV tokens that the given calls hold at one time."""
        return sum(max(self.demand[c] for c in chain) for chain in self.chains(calls))
