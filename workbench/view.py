"""What a policy sees: the revealed part of the workflows and the state of the cluster, never the future.

Calls are known by a *handle*: the position in which they were revealed. The view holds the record of every revealed
call and nothing of any other, so that no policy can look ahead, by accident or otherwise.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from workbench.horizon import Standalone, list_schedule

__all__ = ["Phase", "View"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Phase(IntEnum):
    """Where a call is in its life (section 4.3 of the paper)."""

    WAIT_PREFILL = 0
    PREFILL = 1
    TRANSFER = 2
    WAIT_DECODE = 3
    DECODE = 4
    COMPLETE = 5


class Ordered(Protocol):
    """A queue that can list its calls by rank."""

    def ordered(self) -> list[int]:
        """Return the calls by rank."""


class View:
    """The State Collector's snapshot, kept up to date by the runtime; policies only read it.

    Attributes
    ----------
    now : float
        Present time in seconds.
    prefill_class, decode_class : (P,) and (D,) int
        Class of each instance.
    capacity_tokens : (D,) int
        KV capacity of each decode instance.
    arrival_s : dict of int to float
        Arrival of each workflow that has arrived.
    workflow, index : list of int
        Workflow of each revealed call, and its place in it; ties are broken by these.
    parents : list
        For each revealed call its parents as (handle, tool delay in seconds).
    input_tokens, new_tokens, predicted_output_tokens : list of int
        Prompt length, the part of it to prefill, and the predicted output length.
    order_key : (n,) int
        Tie-break of each revealed call: orders calls by (workflow, index).
    demand_tokens : (n,) int
        Predicted KV demand.
    prefill_s, transfer_s, decode_s : (n, G), (n, G, H), (n, H) float
        Estimates by class, in seconds.
    phase : list of Phase
        Where each call is.
    prefill_instance, decode_instance : list of int
        Assigned or used instance; -1 where there is none yet.
    reveal_s, prefill_start_s, prefill_end_s, decode_start_s, decode_end_s : list of float
        Observed times in seconds; NaN where they have not happened.
    unplanned : dict
        Handles of the calls that wait for prefill and that no plan has covered yet.
    waiting_prefill, prefilling, transferring : dict
        Handles of the calls in these phases (values are unused; order is that of entry).
    waiting_decode, decoding : list of dict
        Handles by decode instance.
    open_calls : dict of int to dict
        Handles of each arrived workflow's revealed calls that are not complete.
    service_s : dict of int to float
        Prefill and decode time that each arrived workflow's calls have had, in seconds.
    busy_until_s : (P,) float
        When the prefill that runs on each instance, or ran last, is expected to end, in seconds.
    bound_tokens : (D,) int
        Predicted KV demand of the calls that are locked to each decode instance and not complete.
    prefill_tokens, prefill_calls, decode_tokens, decode_calls : list
        Outstanding work of each instance: new prompt tokens and calls assigned to a prefill instance until their
        prefill ends, predicted KV demand and calls assigned to a decode instance until they are complete.
    """

    def __init__(self, prefill_class: Ints, decode_class: Ints, capacity_tokens: Ints) -> None:
        self.now = 0.0
        self.prefill_class = prefill_class
        self.decode_class = decode_class
        self.capacity_tokens = capacity_tokens
        self.arrival_s: dict[int, float] = {}
        self.workflow: list[int] = []
        self.index: list[int] = []
        self.parents: list[list[tuple[int, float]]] = []
        self.input_tokens: list[int] = []
        self.new_tokens: list[int] = []
        self.predicted_output_tokens: list[int] = []
        self.phase: list[Phase] = []
        self.prefill_instance: list[int] = []
        self.decode_instance: list[int] = []
        self.reveal_s: list[float] = []
        self.prefill_start_s: list[float] = []
        self.prefill_end_s: list[float] = []
        self.decode_start_s: list[float] = []
        self.decode_end_s: list[float] = []
        self.unplanned: dict[int, None] = {}
        self.waiting_prefill: dict[int, None] = {}
        self.prefilling: dict[int, None] = {}
        self.transferring: dict[int, None] = {}
        self.waiting_decode: list[dict[int, None]] = [{} for _ in decode_class]
        self.decoding: list[dict[int, None]] = [{} for _ in decode_class]
        self.open_calls: dict[int, dict[int, None]] = {}
        self.service_s: dict[int, float] = {}
        self.prefill_tokens = [0] * len(prefill_class)
        self.prefill_calls = [0] * len(prefill_class)
        self.decode_tokens = [0] * len(decode_class)
        self.decode_calls = [0] * len(decode_class)
        # Rows by call, with room to grow; how many classes the estimates tell apart shows at the first reveal.
        self._demand = np.zeros(0, dtype=np.int64)
        self._prefill, self._transfer, self._decode = np.zeros((0, 0)), np.zeros((0, 0, 0)), np.zeros((0, 0))
        self._order_key = np.zeros(0, dtype=np.int64)
        self._arrival, self._horizon, self._decode_end = np.zeros(0), np.zeros(0), np.zeros(0)
        self._class_capacity = np.zeros(0, dtype=np.int64)
        self._horizons: dict[int, _Horizon] = {}
        self._outdated: dict[int, None] = {}
        self.busy_until_s = np.zeros(len(prefill_class))
        self.bound_tokens = np.zeros(len(decode_class), dtype=np.int64)

    @property
    def demand_tokens(self) -> Ints:
        """(n,) predicted KV demand of each revealed call."""
        return self._demand[: len(self.workflow)]

    @property
    def order_key(self) -> Ints:
        """(n,) tie-break of each revealed call: orders calls by (workflow, index)."""
        return self._order_key[: len(self.workflow)]

    @property
    def estimates(self) -> tuple[Ints, Floats, Floats, Floats]:
        """(n, ...) demand, prefill, transfer and decode of each revealed call."""
        return self.demand_tokens, self.prefill_s, self.transfer_s, self.decode_s

    @property
    def expected_decode_end_s(self) -> Floats:
        """(n,) when each running decode is expected to end, in seconds; meaningless for calls in other phases.

        That is its start plus the estimate of `decode_s`, under batched decode too.
        """
        return self._decode_end[: len(self.workflow)]

    @property
    def prefill_s(self) -> Floats:
        """(n, G) estimated prefill seconds of each revealed call by class."""
        return self._prefill[: len(self.workflow)]

    @property
    def transfer_s(self) -> Floats:
        """(n, G, H) estimated transfer seconds of each revealed call by both classes."""
        return self._transfer[: len(self.workflow)]

    @property
    def decode_s(self) -> Floats:
        """(n, H) estimated decode seconds of each revealed call by class."""
        return self._decode[: len(self.workflow)]

    def reveal(
        self,
        workflow: int,
        index: int,
        parents: list[tuple[int, float]],
        lengths: tuple[int, int, int],
        estimates: tuple[int, Floats, Floats, Floats],
    ) -> int:
        """Add a call that has just been revealed and return its handle; for the runtime only."""
        call = len(self.workflow)
        if call == len(self._demand):
            self._grow(*estimates[1:])
        self._order_key[call] = (workflow << 32) + index
        self._arrival[call] = self.arrival_s[workflow]
        self._outdated[workflow] = None
        self._demand[call], self._prefill[call], self._transfer[call], self._decode[call] = estimates
        self.workflow.append(workflow)
        self.index.append(index)
        self.parents.append(parents)
        for column, length in zip(
            (self.input_tokens, self.new_tokens, self.predicted_output_tokens), lengths, strict=True
        ):
            column.append(length)
        self.phase.append(Phase.WAIT_PREFILL)
        self.prefill_instance.append(-1)
        self.decode_instance.append(-1)
        self.reveal_s.append(self.now)
        for column_s in (self.prefill_start_s, self.prefill_end_s, self.decode_start_s, self.decode_end_s):
            column_s.append(float("nan"))
        self.unplanned[call] = None
        self.waiting_prefill[call] = None
        self.open_calls[workflow][call] = None
        if workflow in self._horizons:
            self._horizons[workflow].unplaced.append(call)
        return call

    def bind_queues(self, decode_queues: Sequence["Ordered"]) -> None:
        """Let `decode_queue` read the runtime's queues; for the runtime only."""
        self._decode_queues = decode_queues

    def decode_queue(self, instance: int) -> list[int]:
        """Return the calls that wait for decode on an instance, in order of rank."""
        return self._decode_queues[instance].ordered() if self.waiting_decode[instance] else []

    def _grow(self, prefill: Floats, transfer: Floats, decode: Floats) -> None:
        """Make room for more calls with estimates like these."""
        rows = max(64, len(self._demand))
        for name in ("_demand", "_order_key", "_arrival", "_horizon", "_decode_end"):
            held = getattr(self, name)
            setattr(self, name, np.concatenate([held, np.zeros(rows, dtype=held.dtype)]))
        self._prefill, self._transfer, self._decode = (
            np.concatenate([held if held.size else np.zeros((0, *row.shape)), np.zeros((rows, *row.shape))])
            for held, row in ((self._prefill, prefill), (self._transfer, transfer), (self._decode, decode))
        )
        self._class_capacity = np.zeros(len(decode), dtype=np.int64)
        np.maximum.at(self._class_capacity, self.decode_class, self.capacity_tokens)

    def horizon_s(self, workflow: int) -> float:
        """Return ``H_w(t)``: the greedy standalone makespan of the workflow's revealed calls, in seconds."""
        state = self._horizons.get(workflow)
        if state is None:
            calls = [call for call, w in enumerate(self.workflow) if w == workflow]
            state = self._horizons[workflow] = _Horizon(self, calls)
        return state.value()

    def progress(self) -> tuple[Floats, Floats]:
        """Return ``a_w`` and ``H_w(t)`` of the workflow of each open call, (n,) seconds each; of no use for others."""
        for workflow in self._outdated:
            self._horizon[list(self.open_calls[workflow])] = self.horizon_s(workflow)
        self._outdated.clear()
        return self._arrival, self._horizon

    def prefill_free_at(self) -> Floats:
        """Return when each prefill instance is expected to be free, (P,) seconds, at least ``now``."""
        return np.maximum(self.busy_until_s, self.now)

    def expected_prefill_end(self, call: int) -> float:
        """Return when a running prefill is expected to end, in seconds, at least ``now``."""
        return max(self.now, float(self.busy_until_s[self.prefill_instance[call]]))

    def expected_decode_ready(self, call: int) -> float:
        """Return when a call in prefill or transfer is expected to be ready for decode, in seconds."""
        g = self.prefill_class[self.prefill_instance[call]]
        h = self.decode_class[self.decode_instance[call]]
        left_prefill = (
            self.expected_prefill_end(call) if self.phase[call] is Phase.PREFILL else self.prefill_end_s[call]
        )
        return max(self.now, left_prefill + float(self._transfer[call, g, h]))

    def expected_left(self, call: int) -> float:
        """Return the remaining service of a call that is not complete, without further waiting, in seconds."""
        if self.phase[call] is Phase.DECODE:
            return self.expected_decode_left(call)
        if self.phase[call] is Phase.WAIT_PREFILL:
            pairs = self._prefill[call][:, None] + self._transfer[call] + self._decode[call]
            return float(pairs[:, self._demand[call] <= self._class_capacity].min())
        decode = float(self._decode[call, self.decode_class[self.decode_instance[call]]])
        return self.expected_decode_ready(call) - self.now + decode

    def expected_decode_left(self, call: int) -> float:
        """Return how long a running decode is expected to go on, in seconds, at least 0."""
        return max(0.0, float(self._decode_end[call]) - self.now)


class _Horizon:
    """Incremental ``H_w(t)`` of one workflow."""

    def __init__(self, view: View, calls: Sequence[int]) -> None:
        self._view = view
        self._calls: list[int] = []
        self._start_anew()
        self.unplaced = list(calls)

    def _start_anew(self) -> None:
        view = self._view
        self._alone = Standalone(view.prefill_class, view.decode_class, view.capacity_tokens)
        self._finish: dict[int, float] = {}
        self._last = (-1.0, -1)

    def value(self) -> float:
        if self.unplaced:
            view = self._view
            fresh, self.unplaced = self.unplaced, []
            self._calls.extend(fresh)
            placed = all(parent in self._finish for call in fresh for parent, _ in view.parents[call])
            keys = sorted((self._ready(call), view.index[call], call) for call in fresh) if placed else []
            if placed and keys[0][:2] > self._last:
                for ready, index, call in keys:
                    self._finish[call] = self._alone.serve(call, ready, view.estimates)
                    self._last = (ready, index)
            else:
                self._replay()
            self._value = max(self._finish.values())
        return self._value

    def _ready(self, call: int) -> float:
        return max((self._finish[p] + delay for p, delay in self._view.parents[call]), default=0.0)

    def _replay(self) -> None:
        """Schedule all revealed calls from scratch: a new call comes before a placed one or after another new one."""
        view = self._view
        self._start_anew()
        order = sorted(self._calls, key=view.index.__getitem__)
        place = {call: i for i, call in enumerate(order)}
        rows = np.array(order)
        demand, prefill, transfer, decode = (array[rows] for array in view.estimates)
        parents = {i: [(place[p], delay) for p, delay in view.parents[call]] for call, i in place.items()}
        finish = list_schedule(self._alone, range(len(order)), parents, (demand, prefill, transfer, decode))
        self._finish = {call: finish[i] for call, i in place.items()}
        self._last = max((self._ready(call), view.index[call]) for call in order)
