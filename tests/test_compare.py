"""Tests of the comparison of policies."""

import math
from collections.abc import Iterable

import pytest

import workbench as wb
from workbench.compiled import CompiledInstance
from workbench.errors import InputError
from workbench.policies import Assignment, Policy, Stage, available
from workbench.view import View

COLUMNS = ["req95", "req99", "mean", "p50", "makespan", "invocations", "ms_per_invocation", "horizon"]


def burst(workflows: int) -> CompiledInstance:
    """Return workflows of one call that all arrive at 0 and queue for one prefill instance, 1 s each and 1 s decode."""
    return CompiledInstance.from_durations(
        first_call=range(workflows + 1), prefill_s=[[1.0]] * workflows, decode_s=[[1.0]] * workflows
    )


def test_the_figures_of_a_queue_are_those_calculated_by_hand() -> None:
    # Completions at 2, 3, ..., 41 s over a horizon of 2 s: ratios 1, 1.5, ..., 20.5.
    row = wb.compare(burst(40), ["workflow-fcfs"]).loc["workflow-fcfs"]
    assert row.req95 == 19.5  # the 38th of 40
    assert row.req99 == 20.5  # the 40th of 40
    assert row.p50 == 10.5  # the 20th of 40
    assert row["mean"] == pytest.approx(10.75)
    assert row.makespan == 41.0
    assert row.horizon == "greedy"


def test_there_is_a_row_for_each_policy_in_the_order_asked_for() -> None:
    table = wb.compare(burst(3), ["llf:alpha=3", "fcfs", "hexagent"])
    assert table.index.tolist() == ["llf:alpha=3", "fcfs", "hexagent"]
    assert table.index.name == "policy"
    assert table.columns.tolist() == COLUMNS
    assert (table.invocations > 0).all()
    assert (table.ms_per_invocation > 0).all()


def test_all_built_in_policies_are_compared_by_default() -> None:
    assert wb.compare(burst(2)).index.tolist() == list(available())


def test_a_policy_class_of_ones_own_is_compared_like_a_built_in_one() -> None:
    class Lifo(Policy):
        name = "lifo"

        def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
            return [Assignment(call, -call, 0, 0) for call in view.waiting_prefill]

    table = wb.compare(burst(4), [Lifo, Lifo(), "workflow-fcfs"])
    assert table.index.tolist() == ["lifo", "lifo", "workflow-fcfs"]
    assert table.makespan.tolist() == [5.0, 5.0, 5.0]


def test_a_misspelt_policy_is_refused_before_anything_runs() -> None:
    class Explosive(Policy):
        name = "explosive"

        def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
            raise AssertionError("ran")

    with pytest.raises(InputError, match="unknown policy 'fcsf'"):
        wb.compare(burst(1), [Explosive, "fcsf"])


def test_the_figures_repeat_but_for_wall_clock_time() -> None:
    inst = wb.Instance(wb.traces.bfcl(12, rate=20, seed=1), "hetero-1", "llama3.1-70b")
    first, second = (wb.compare(inst, ["fcfs", "hexagent"], seed=5).drop(columns="ms_per_invocation") for _ in range(2))
    assert first.equals(second)


def test_the_seed_reaches_policies_that_draw() -> None:
    inst = wb.Instance(wb.traces.bfcl(12, rate=40, seed=1), "hetero-1", "llama3.1-70b")
    means = {wb.compare(inst, ["fcfs:dispatch=random"], seed=seed)["mean"].iloc[0] for seed in range(4)}
    assert len(means) > 1


def test_a_schedule_without_plans_has_no_time_per_plan() -> None:
    schedule = wb.simulate(burst(2), "fcfs")
    unplanned = wb.Schedule.from_starts(
        schedule.instance,
        "by hand",
        schedule.prefill_instance,
        schedule.decode_instance,
        schedule.prefill_start_s,
        schedule.decode_start_s,
    )
    row = wb.summarise([unplanned]).loc["by hand"]
    assert (row.invocations, row.makespan) == (0, 3.0)
    assert math.isnan(row.ms_per_invocation)
