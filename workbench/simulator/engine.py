"""The event loop: arrivals, prefill, transfer, decode, and plans that land (sections 4.3 and 5.2 of the paper)."""

import random
from dataclasses import asdict
from functools import cache
from heapq import heappop, heappush
from typing import Any

import numpy as np

from workbench import policies
from workbench.compiled import CompiledInstance
from workbench.errors import InputError
from workbench.estimator import LARGEST_SEED, EstimateError, Estimator
from workbench.instance import Instance
from workbench.policies import Policy, Stage
from workbench.schedule import Schedule
from workbench.simulator.decode import decode_model
from workbench.simulator.dispatcher import PlanDispatcher
from workbench.simulator.latency import PlanLatency
from workbench.view import Phase, View

__all__ = ["simulate"]

# Order of events at one instant: completions, then transfers, then arrivals and reveals, then plans that land.
COMPLETION, TRANSFER_END, REVEAL, PLAN_LANDS = 0, 1, 2, 3

ADMISSIONS = ("in_order", "backfill")


def simulate(
    instance: Instance | CompiledInstance,
    policy: str | Policy | type[Policy] = "hexagent",
    seed: int = 0,
    plan_latency: str | PlanLatency = "zero",
    admission: str = "in_order",
    error: EstimateError | None = None,
    decode: str = "interval",
    **options: Any,
) -> Schedule:
    """Run a policy on an instance and return the schedule.

    Unless planning latency is measured, a run is a pure function of its arguments.

    Parameters
    ----------
    instance : Instance or CompiledInstance
        What to serve.
    policy : str, Policy or type
        Name of a built-in policy, a policy class, or a policy.
    seed : int
        Seed of a policy that draws at random.
    plan_latency : str or PlanLatency
        How long a plan is in flight: ``zero``, ``constant:MS``, ``measured`` or ``measured:FACTOR``.
    admission : {"in_order", "backfill"}
        Whether decode admission stops at the first call that does not fit, or passes it over.
    error : EstimateError, optional
        Error on the estimates that the policy sees.
    decode : {"interval", "batched"}
        Whether a call decodes for a fixed time, or a token a step with all calls that run on its instance. It holds its
        KV demand throughout either way, and what policies expect is the fixed time.
    **options
        Parameters of the policy, where a name or class is given.

    Raises
    ------
    InputError
        On an unknown policy, parameter, latency, admission or decode model, and on batched decode of an instance that
        holds no decode step times.
    ValueError
        If the policy breaks its contract: it assigns a call that does not wait, names an instance that is not there,
        or leaves a call without an assignment.

    Examples
    --------
    >>> one = CompiledInstance.from_durations(first_call=[0, 1], prefill_s=[[1.0]], decode_s=[[2.0]])
    >>> simulate(one, "fcfs").makespan_s
    3.0
    """
    _warm_up()
    compiled = instance.compile() if isinstance(instance, Instance) else instance
    chosen = policies.create(policy, **options)
    name = policy if isinstance(policy, str) else chosen.name
    label = ":".join([name, *(f"{parameter}={value}" for parameter, value in options.items())])
    if not 0 <= seed <= LARGEST_SEED:
        raise InputError(f"seed must be from 0 to {LARGEST_SEED}, got {seed}")
    if admission not in ADMISSIONS:
        raise InputError(f"admission must be one of {', '.join(ADMISSIONS)}, got '{admission}'")
    return _Run(compiled, chosen, label, seed, PlanLatency.parse(plan_latency), admission, error, decode).schedule()


@cache
def _warm_up() -> None:
    """Compile or load the planner's inner loops before any planning is timed."""
    three = CompiledInstance.from_durations(
        first_call=[0, 1, 2, 3],
        prefill_s=[[1.0]] * 3,
        decode_s=[[9.0]] * 3,
        demand_tokens=[4, 4, 4],
        capacity_tokens=5,
    )
    _Run(three, policies.create("hexagent"), "hexagent", 0, PlanLatency(), "in_order", None, "interval").schedule()


class _Run:
    """State of one simulation; calls are known by handle, the position in which they were revealed."""

    def __init__(
        self,
        instance: CompiledInstance,
        policy: Policy,
        label: str,
        seed: int,
        latency: PlanLatency,
        admission: str,
        error: EstimateError | None,
        decode: str,
    ) -> None:
        self.instance = instance
        self.policy = policy
        self.label = label
        self.seed = seed
        self.estimator = Estimator.of(instance, error)
        self.view = View(instance.prefill_class, instance.decode_class, instance.capacity_tokens)
        self.call: list[int] = []  # the instance's call of each handle
        self.handle = [-1] * instance.n_calls
        self.transfer_end_s: list[float] = []
        self.locked: list[int] = []
        self.events: list[tuple[float, int, int, int, int]] = []  # time, order, workflow, index, handle
        self.missing_parents = np.diff(instance.parent_start).tolist()
        self.reveal_at = [0.0] * instance.n_calls
        self.prefill_idle = [True] * len(instance.prefill_class)
        self.free_tokens = instance.capacity_tokens.tolist()
        self.latency, self.admission, self.error, self.decode = latency, admission, error, decode
        self.decode_model = decode_model(decode, instance, self._schedule_decode_end)
        self.dispatcher = PlanDispatcher(policy, self.view, latency, self._schedule_landing)

    def schedule(self) -> Schedule:
        """Run to the end."""
        view, events, instance = self.view, self.events, self.instance
        self.policy.begin(view, random.Random(self.seed))
        first, missing = instance.first_call.tolist(), self.missing_parents
        for w, arrival in enumerate(instance.arrival_s.tolist()):
            for c in range(first[w], first[w + 1]):
                if missing[c] == 0:
                    self.reveal_at[c] = arrival
                    heappush(events, (arrival, REVEAL, w, c, -1))
        dispatcher, stages = self.dispatcher, list(Stage)
        while events:
            now = view.now = events[0][0]
            revealed = transferred = False
            landed: list[Stage] = []
            while events and events[0][0] == now:
                _, kind, _, c, call = heappop(events)
                if kind == REVEAL:
                    self._reveal(c)
                    revealed = True
                elif kind == TRANSFER_END:
                    self._end_transfer(call)
                    transferred = True
                elif kind == PLAN_LANDS:
                    landed.append(stages[c])
                elif view.phase[call] is Phase.PREFILL:
                    self._end_prefill(call)
                elif self.decode_model.ends(c, view.decode_instance[call], now):
                    self._end_decode(call)
            for stage in landed:
                dispatcher.land(stage)
            if revealed:
                dispatcher.trigger(Stage.PREFILL)
            if transferred:
                dispatcher.trigger(Stage.DECODE)
            self._start_prefills()
            self._start_decodes()
        if len(self.call) < instance.n_calls or view.waiting_prefill:
            raise ValueError(
                f"policy '{self.policy.name}' left {len(view.waiting_prefill)} revealed calls without an assignment"
            )
        return self._result()

    def _reveal(self, c: int) -> None:
        instance, view, estimator = self.instance, self.view, self.estimator
        w = int(instance.workflow[c])
        if w not in view.arrival_s:
            view.arrival_s[w] = float(instance.arrival_s[w])
            view.open_calls[w] = {}
            view.service_s[w] = 0.0
        index = c - int(instance.first_call[w])
        prompt, cached = int(instance.input_tokens[c]), int(instance.cached_prefix_tokens[c])
        parents = [(self.handle[parent], delay) for parent, delay in instance.parents_of(c)]
        self.handle[c] = view.reveal(
            w,
            index,
            parents,
            (prompt, prompt - cached, int(instance.predicted_output_tokens[c])),
            (
                int(estimator.demand_tokens[c]),
                estimator.prefill_s[c],
                estimator.transfer_s[c],
                estimator.decode_s[c],
            ),
        )
        self.call.append(c)
        self.locked.append(-1)
        self.transfer_end_s.append(float("nan"))

    def _schedule_landing(self, time: float, stage: Stage) -> None:
        heappush(self.events, (time, PLAN_LANDS, 0, list(Stage).index(stage), -1))

    def _start_prefills(self) -> None:
        view, instance = self.view, self.instance
        for p, idle in enumerate(self.prefill_idle):
            if not (idle and view.waiting_prefill):
                continue
            call = self.dispatcher.next_for_prefill(p)
            if call is None:
                continue
            self.prefill_idle[p] = False
            del view.waiting_prefill[call]
            view.prefilling[call] = None
            view.phase[call] = Phase.PREFILL
            view.prefill_start_s[call] = view.now
            c = self.call[call]
            self.dispatcher.bind_decode(call, self._admissible(c, view.decode_instance[call]))
            self.locked[call] = view.decode_instance[call]
            view.bound_tokens[self.locked[call]] += view.demand_tokens[call]
            g = instance.prefill_class[p]
            view.busy_until_s[p] = view.now + float(view.prefill_s[call, g])
            self._push(view.now + float(instance.prefill_s[c, g]), COMPLETION, call)

    def _admissible(self, c: int, d: int) -> int:
        """Return the planned decode instance, or another when it refuses a call that is larger than predicted.

        The call is bound to its decode instance before prefill, where one that it can never fit refuses it; it then
        goes to the instance with the fewest outstanding tokens among those that hold it.
        """
        capacity, demand = self.instance.capacity_tokens, self.instance.demand_tokens[c]
        if demand <= capacity[d]:
            return d
        tokens = self.view.decode_tokens
        return min((e for e in range(len(capacity)) if demand <= capacity[e]), key=lambda e: (tokens[e], e))

    def _end_prefill(self, call: int) -> None:
        view, instance, c = self.view, self.instance, self.call[call]
        p, d = view.prefill_instance[call], view.decode_instance[call]
        self.prefill_idle[p] = True
        self.dispatcher.leave_prefill(call)
        del view.prefilling[call]
        view.transferring[call] = None
        view.phase[call] = Phase.TRANSFER
        view.prefill_end_s[call] = view.now
        view.service_s[view.workflow[call]] += view.now - view.prefill_start_s[call]
        end = view.now + float(instance.transfer_s[c, instance.prefill_class[p], instance.decode_class[d]])
        self.transfer_end_s[call] = end
        self._push(end, TRANSFER_END, call)

    def _end_transfer(self, call: int) -> None:
        view, d = self.view, self.view.decode_instance[call]
        del view.transferring[call]
        view.waiting_decode[d][call] = None
        view.phase[call] = Phase.WAIT_DECODE
        self.dispatcher.enter_decode(call)

    def _start_decodes(self) -> None:
        """Admit in order of rank; a call that does not fit stops the others, or is passed over when backfilling."""
        for d, waiting in enumerate(self.view.waiting_decode):
            if not waiting:
                continue
            queue = self.dispatcher.decode_queue[d]
            if self.admission == "backfill" and len(queue) > 1:
                for call in queue.ordered():
                    if self._fits(call, d):
                        self._start_decode(call, d)
                continue
            while (first := queue.first()) is not None and self._fits(first, d):
                self._start_decode(first, d)

    def _fits(self, call: int, d: int) -> bool:
        return bool(self.instance.demand_tokens[self.call[call]] <= self.free_tokens[d])

    def _start_decode(self, call: int, d: int) -> None:
        view, instance, c = self.view, self.instance, self.call[call]
        self.dispatcher.decode_queue[d].remove(call)
        self.free_tokens[d] -= int(instance.demand_tokens[c])
        del view.waiting_decode[d][call]
        view.decoding[d][call] = None
        view.phase[call] = Phase.DECODE
        view.decode_start_s[call] = view.now
        h = instance.decode_class[d]
        view.expected_decode_end_s[call] = view.now + view.decode_s[call, h]
        self.decode_model.admit(c, d, view.now)

    def _schedule_decode_end(self, time: float, c: int) -> None:
        self._push(time, COMPLETION, self.handle[c])

    def _end_decode(self, call: int) -> None:
        view, c, now = self.view, self.call[call], self.view.now
        d, w = view.decode_instance[call], view.workflow[call]
        self.free_tokens[d] += int(self.instance.demand_tokens[c])
        view.bound_tokens[d] -= view.demand_tokens[call]
        view.decode_tokens[d] -= int(view.demand_tokens[call])
        view.decode_calls[d] -= 1
        del view.decoding[d][call]
        del view.open_calls[w][call]
        view.phase[call] = Phase.COMPLETE
        view.decode_end_s[call] = now
        view.service_s[w] += now - view.decode_start_s[call]
        for child, delay in self.instance.children[c]:
            self.reveal_at[child] = max(self.reveal_at[child], now + delay)
            self.missing_parents[child] -= 1
            if self.missing_parents[child] == 0:
                heappush(self.events, (self.reveal_at[child], REVEAL, w, child, -1))

    def _push(self, time: float, order: int, call: int) -> None:
        heappush(self.events, (time, order, self.view.workflow[call], self.call[call], call))

    def _result(self) -> Schedule:
        view = self.view
        handles = self.handle

        def by_call(column: list[Any]) -> np.ndarray:
            return np.array(column)[handles]

        return Schedule(
            instance=self.instance,
            label=self.label,
            prefill_instance=by_call(view.prefill_instance),
            decode_instance=by_call(view.decode_instance),
            locked_decode=by_call(self.locked),
            reveal_s=by_call(view.reveal_s),
            prefill_start_s=by_call(view.prefill_start_s),
            prefill_end_s=by_call(view.prefill_end_s),
            transfer_end_s=by_call(self.transfer_end_s),
            decode_start_s=by_call(view.decode_start_s),
            decode_end_s=by_call(view.decode_end_s),
            planner=self.dispatcher.cost(),
            settings={
                "seed": self.seed,
                "decode": self.decode,
                "plan_latency": str(self.latency),
                "admission": self.admission,
                "estimate_error": asdict(self.error) if self.error else None,
            },
        )
