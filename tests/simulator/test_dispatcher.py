"""Plans in flight: what they may change, what happens meanwhile, and what is counted."""

import random

import numpy as np
import pytest
from builders import MIXED, TIGHT, random_flows

from workbench import Assignment, CompiledInstance, Policy, Stage, simulate
from workbench.policies import available


def one_server(arrivals: list[float], prefill: float = 1.0, workflows: list[int] | None = None) -> CompiledInstance:
    """One prefill and one decode instance; a workflow of one call for each arrival; decode takes 0.5 s."""
    n = len(arrivals)
    return CompiledInstance.from_durations(
        first_call=list(range(n + 1)), prefill_s=[[prefill]] * n, decode_s=[[0.5]] * n, arrival_s=arrivals
    )


class Recorder(Policy):
    """Last come, first served on instance 0, and a record of when it was asked."""

    name = "recorder"

    def begin(self, view, rng):
        self.asked = []

    def plan(self, view, stage):
        self.asked.append((view.now, sorted(view.waiting_prefill)))
        return [Assignment(call, 100 - view.reveal_s[call], 0, 0) for call in view.waiting_prefill]


@pytest.mark.parametrize("policy", ["fcfs", "llf", "hexagent"])
def test_no_latency_is_synchronous_planning(policy):
    """A constant latency of 0 ms is the same run as zero."""
    inst = MIXED.build(random_flows(random.Random(3), MIXED, 8, True))
    first, second = (simulate(inst, policy, plan_latency=latency) for latency in ("zero", "constant:0"))
    assert first.decode_end_s.tolist() == second.decode_end_s.tolist()


@pytest.mark.parametrize("policy", ["fcfs", "hexagent"])
def test_a_plan_takes_effect_when_it_lands(policy):
    """A call that arrives on an idle cluster at 1 s waits for its plan of 250 ms."""
    assert simulate(one_server([1.0]), policy, plan_latency="constant:250").prefill_start_s.tolist() == [1.25]


@pytest.mark.parametrize("policy", ["fcfs", "workflow-fcfs", "hexagent"])
def test_a_call_revealed_meanwhile_starts_under_the_fallback(policy):
    """The second call arrives while the first one's plan is in flight and starts at once; the first finds it served."""
    schedule = simulate(one_server([0.0, 0.1]), policy, plan_latency="constant:200")
    assert schedule.prefill_start_s.tolist() == [1.1, 0.1]
    assert schedule.planner.fallback_starts == 1


def test_calls_under_the_fallback_come_after_those_that_a_plan_ranked():
    """When the server is free at 1.2 s, the call that a plan of 0.4 s ranked goes before one under the fallback."""
    policy = Recorder()
    schedule = simulate(one_server([0.0, 0.4, 1.05, 1.1]), policy, plan_latency="constant:200")
    # The plan of 1.05 s is in flight until 1.25 s; the last call, of 1.1 s, has only the fallback until then.
    assert [now for now, _ in policy.asked][:3] == [0.0, 0.4, 1.05]
    assert schedule.prefill_start_s[0] == 0.2
    assert schedule.prefill_start_s[1] == 1.2
    assert schedule.planner.fallback_starts == 0


def test_an_entry_whose_call_has_started_is_stale():
    """A plan of 1.05 s covers the second call, which starts at 1.1 s under an earlier one, before this one lands."""
    schedule = simulate(one_server([0.0, 0.5, 1.05]), Recorder(), plan_latency="constant:100")
    assert schedule.prefill_start_s.tolist() == pytest.approx([0.1, 1.1, 2.1])
    planned = schedule.planner
    assert planned.stale == 1
    assert planned.stale_fraction == pytest.approx(1 / planned.entries)


def test_one_plan_in_flight_and_one_new_plan_for_what_came_meanwhile():
    """Five arrivals during a flight of 1 s give one more plan, when the first lands."""
    policy = Recorder()
    simulate(one_server([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], prefill=5.0), policy, plan_latency="constant:1000")
    assert [now for now, _ in policy.asked] == [0.0, 1.0]


@pytest.mark.parametrize("policy", sorted(available()))
@pytest.mark.parametrize("scenario", [MIXED, TIGHT], ids=["mixed", "tight"])
def test_all_policies_serve_every_call_once_with_plans_in_flight(policy, scenario):
    """Conservation, causality, capacity and locks hold, and at most one plan of a stage is in flight."""
    asked: dict[Stage, list[float]] = {stage: [] for stage in Stage}
    for seed, latency in enumerate(("constant:1", "constant:300", "constant:20000")):
        inst = scenario.build(random_flows(random.Random(seed), scenario, 8, True))
        chosen = available()[policy]()
        plan = chosen.plan
        for times in asked.values():
            times.clear()

        def watched(view, stage, plan=plan):
            asked[stage].append(view.now)
            return plan(view, stage)

        chosen.plan = watched
        schedule = simulate(inst, chosen, seed, plan_latency=latency).check()
        assert schedule.locked_decode.tolist() == schedule.decode_instance.tolist()
        for times in asked.values():
            assert all(np.diff(times) >= float(latency.split(":")[1]) / 1e3 - 1e-9)


def test_constant_latency_is_reproducible_and_measured_latency_is_feasible():
    """Two runs at 5 ms are equal; a measured run passes the checker and reports its planner time."""
    inst = MIXED.build(random_flows(random.Random(5), MIXED, 12, True))
    first, second = (simulate(inst, "hexagent", plan_latency="constant:5") for _ in range(2))
    assert first.decode_end_s.tolist() == second.decode_end_s.tolist()
    measured = simulate(inst, "hexagent", plan_latency="measured:1000").check()
    assert measured.planner.seconds > 0
    assert measured.settings["plan_latency"] == "measured:1000"


def test_backfill_passes_over_a_call_that_does_not_fit():
    """Capacity 10: 6 tokens run and 6 more do not fit; 4 tokens behind them wait, or go ahead when backfilling."""
    inst = CompiledInstance.from_durations(
        first_call=[0, 1, 2, 3],
        prefill_s=[[1.0]] * 3,
        decode_s=[[10.0]] * 3,
        demand_tokens=[6, 6, 4],
        arrival_s=[0.0, 0.1, 0.2],
        capacity_tokens=10,
    )
    assert simulate(inst, "workflow-fcfs").decode_start_s.tolist() == [1.0, 11.0, 11.0]
    assert simulate(inst, "workflow-fcfs", admission="backfill").check().decode_start_s.tolist() == [1.0, 11.0, 3.0]
