"""The Plan Dispatcher (section 4.2 of the paper): asks for plans, keeps one in flight a stage, and applies what lands.

While a plan is in flight serving goes on: calls that are revealed meanwhile follow a fallback, workflow-FCFS order on
the pair with the fewest outstanding tokens, and may start under it; on an instance they come after calls that a plan
ranked. Calls that the plan in flight covers wait for it, unless an earlier plan placed them. A plan that lands changes
calls that still wait and nothing else.
"""

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

from workbench.policies import Assignment, Policy, Ranking, Stage
from workbench.schedule import PlannerCost
from workbench.simulator.latency import PlanLatency
from workbench.simulator.queue import RankedQueue, StandingPlan
from workbench.view import Phase, View

__all__ = ["PlanDispatcher"]

PLANNED, FALLBACK = 0, 1

Plan = Ranking | list[Assignment]


class PlanDispatcher:
    """Queues of both pools, and the plans that order them.

    Parameters
    ----------
    policy : Policy
        Who is asked for plans.
    view : View
        What it sees.
    latency : PlanLatency
        How long a plan is in flight.
    schedule_landing : callable
        Called with (time in seconds, stage) when a plan takes off.
    """

    def __init__(
        self, policy: Policy, view: View, latency: PlanLatency, schedule_landing: Callable[[float, Stage], None]
    ) -> None:
        self._policy = policy
        self._view = view
        self._latency = latency
        self._schedule_landing = schedule_landing
        self._in_flight: dict[Stage, Plan] = {}
        self._took_off_s: dict[Stage, float] = {}
        self._triggered_meanwhile: set[Stage] = set()
        self._standing = StandingPlan(view.phase)
        self._prefill_queue = [RankedQueue() for _ in view.prefill_class]
        self.decode_queue = [RankedQueue() for _ in view.decode_class]
        self._key: dict[int, tuple[int, Any, int, int]] = {}
        self._under_fallback: dict[int, None] = {}
        self._invocations, self._seconds = 0, 0.0
        self._entries = self._stale = self._fallback_starts = 0
        view.bind_queues(self.decode_queue)

    def trigger(self, stage: Stage) -> None:
        """React to new work in a stage: plan, or serve by the fallback until the plan in flight lands."""
        if stage not in self._policy.stages:
            return
        if stage not in self._in_flight:
            self._take_off(stage)
            return
        if self._took_off_s[stage] == self._view.now:
            return  # the plan in flight has seen this work
        self._triggered_meanwhile.add(stage)
        if stage is Stage.PREFILL:
            covered = {call for call, *_ in self._in_flight[stage]}
            fresh = [c for c in self._view.unplanned if c not in covered and c not in self._under_fallback]
            if fresh:
                self._fall_back(fresh)

    def land(self, stage: Stage) -> None:
        """Apply the plan in flight; start another if there was new work meanwhile."""
        plan = self._in_flight.pop(stage)
        self._apply_plan(plan, stage)
        if stage in self._triggered_meanwhile:
            self._triggered_meanwhile.remove(stage)
            self._take_off(stage)

    def next_for_prefill(self, p: int) -> int | None:
        """Take the first call for an idle prefill instance: by the standing plan, then from its queue."""
        planned = self._standing.take(p)
        if planned is None:
            call = self._prefill_queue[p].first()
        else:
            call, rank, d = planned
            self._assign(call, rank, p, d)
        if call is not None:
            self._prefill_queue[p].remove(call)
            self._view.unplanned.pop(call, None)
            if call in self._under_fallback:
                del self._under_fallback[call]
                self._fallback_starts += 1
        return call

    def bind_decode(self, call: int, d: int) -> None:
        """Plan a decode instance for a call and count it there."""
        view = self._view
        before = view.decode_instance[call]
        if before != d:
            for instance, sign in ((before, -1), (d, 1)):
                if instance >= 0:
                    view.decode_tokens[instance] += sign * int(view.demand_tokens[call])
                    view.decode_calls[instance] += sign
            view.decode_instance[call] = d

    def leave_prefill(self, call: int) -> None:
        """Uncount a call whose prefill has ended."""
        self._count_prefill(self._view.prefill_instance[call], call, -1)

    def enter_decode(self, call: int) -> None:
        """Queue a call whose transfer is complete on its decode instance, by its last rank."""
        self.decode_queue[self._view.decode_instance[call]].put(call, self._key[call])

    def cost(self) -> PlannerCost:
        """Return what planning took and came to."""
        return PlannerCost(self._invocations, self._seconds, self._entries, self._stale, self._fallback_starts)

    def _take_off(self, stage: Stage) -> None:
        waiting = self._view.waiting_prefill if stage is Stage.PREFILL else any(self._view.waiting_decode)
        if not waiting:
            return
        began = perf_counter()
        made: Iterable[Assignment] = self._policy.plan(self._view, stage)
        plan: Plan = made if isinstance(made, Ranking) else list(made)
        took = perf_counter() - began
        self._seconds += took
        self._invocations += 1
        self._entries += len(plan)
        self._verify(plan, stage)
        flight = self._latency.of(took)
        if flight == 0:
            self._apply_plan(plan, stage)
        else:
            self._in_flight[stage] = plan
            self._took_off_s[stage] = self._view.now
            self._schedule_landing(self._view.now + flight, stage)

    def _verify(self, plan: Plan, stage: Stage) -> None:
        """Refuse a plan that breaks the contract; a ranking is read as it is used."""
        view, name = self._view, self._policy.name
        if isinstance(plan, Ranking):
            if stage is Stage.DECODE or not len(plan.calls) == len(plan.prefill) == len(plan.decode):
                raise ValueError(f"policy '{name}' returned a ranking that is not one of calls for prefill")
            return
        phase = Phase.WAIT_PREFILL if stage is Stage.PREFILL else Phase.WAIT_DECODE
        for call, _, p, d in plan:
            if not (0 <= call < len(view.workflow) and view.phase[call] is phase):
                raise ValueError(f"policy '{name}' planned call {call}, which does not wait for {stage}")
            if stage is Stage.DECODE and d != view.decode_instance[call]:
                raise ValueError(
                    f"policy '{name}' moves call {call} to decode instance {d}; it is locked to "
                    f"{view.decode_instance[call]}"
                )
            if stage is Stage.PREFILL and not (0 <= p < len(self._prefill_queue) and 0 <= d < len(self.decode_queue)):
                raise ValueError(f"policy '{name}' sends call {call} to instances ({p}, {d}), not in the cluster")

    def _apply_plan(self, plan: Plan, stage: Stage) -> None:
        """Put a plan into effect for the calls that still wait."""
        view = self._view
        phase = Phase.WAIT_PREFILL if stage is Stage.PREFILL else Phase.WAIT_DECODE
        if isinstance(plan, Ranking):
            self._standing.adopt(plan)
            for call in [call for call in view.unplanned if self._standing.covers(call)]:
                del view.unplanned[call]
                self._leave_fallback(call)
            if self._latency.constant_s != 0:
                self._stale += sum(view.phase[call] is not phase for call in plan.calls.tolist())
            return
        for call, rank, p, d in plan:
            if view.phase[call] is not phase:
                self._stale += 1
            elif stage is Stage.PREFILL:
                view.unplanned.pop(call, None)
                self._leave_fallback(call)
                self._assign(call, rank, p, d)
            else:
                key = self._key[call] = (PLANNED, rank, view.workflow[call], view.index[call])
                self.decode_queue[d].put(call, key)

    def _assign(self, call: int, rank: Any, p: int, d: int, tier: int = PLANNED) -> None:
        """Queue a call that waits for prefill where a plan or the fallback wants it."""
        view = self._view
        before = view.prefill_instance[call]
        if before != p:
            if before >= 0:
                self._prefill_queue[before].remove(call)
                self._count_prefill(before, call, -1)
            self._count_prefill(p, call, 1)
            view.prefill_instance[call] = p
        self.bind_decode(call, d)
        key = self._key[call] = (tier, rank, view.workflow[call], view.index[call])
        self._prefill_queue[p].put(call, key)

    def _fall_back(self, calls: list[int]) -> None:
        """Queue calls that no plan covers in workflow-FCFS order, each on the pair with fewest outstanding tokens."""
        view = self._view
        pools = (len(view.prefill_class), len(view.decode_class))
        planned_tokens, planned_memory = self._standing.load(view.new_tokens, view.demand_tokens, pools)
        tokens = [a + b for a, b in zip(view.prefill_tokens, planned_tokens, strict=True)]
        memory = [a + b for a, b in zip(view.decode_tokens, planned_memory, strict=True)]
        for call in sorted(calls, key=lambda c: (view.arrival_s[view.workflow[c]], view.workflow[c], view.index[c])):
            demand = int(view.demand_tokens[call])
            p = min(range(pools[0]), key=lambda i: (tokens[i], i))
            d = min((i for i in range(pools[1]) if demand <= view.capacity_tokens[i]), key=lambda i: (memory[i], i))
            tokens[p] += view.new_tokens[call]
            memory[d] += demand
            self._under_fallback[call] = None
            self._assign(call, view.arrival_s[view.workflow[call]], p, d, FALLBACK)

    def _leave_fallback(self, call: int) -> None:
        """Take a call that a plan now covers from where the fallback had queued it."""
        if call in self._under_fallback:
            del self._under_fallback[call]
            p = self._view.prefill_instance[call]
            self._prefill_queue[p].remove(call)
            self._count_prefill(p, call, -1)
            self._view.prefill_instance[call] = -1

    def _count_prefill(self, p: int, call: int, sign: int) -> None:
        self._view.prefill_tokens[p] += sign * self._view.new_tokens[call]
        self._view.prefill_calls[p] += sign
