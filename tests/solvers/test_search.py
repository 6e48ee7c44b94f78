"""The exact solver against brute force, hand-made cases, and its own promises."""

import dataclasses
import math
import signal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_instance

import solvers
import workbench as wb
from solvers.brute_force import brute_force
from solvers.incumbent import list_schedules
from workbench import CompiledInstance

TAUS = (0.5, 0.75, 1.0)


@pytest.mark.parametrize("block", range(10))
@pytest.mark.parametrize("objective", ["makespan", "alpha"])
def test_equals_brute_force(objective: str, block: int) -> None:
    """200 random tiny instances: the value is the optimum, the bound does not exceed it, the certificate is closed."""
    for seed in range(20 * block, 20 * block + 20):
        inst = tiny_instance(seed)
        tau = TAUS[seed % 3] if objective == "alpha" else 1.0
        optimum = brute_force(inst, objective, tau)
        certificate = solvers.solve(inst, objective=objective, tau=tau, hints=[], time_limit=60, workers=1)
        assert certificate.value == pytest.approx(optimum, rel=1e-9), inst.name
        assert certificate.lower_bound <= optimum * (1 + 1e-9), inst.name
        assert certificate.status == "closed", (inst.name, str(certificate))
        certificate.schedule.check()


@pytest.mark.parametrize("objective", ["makespan", "alpha"])
def test_times_that_are_no_multiples_of_a_tick(objective: str) -> None:
    """Rounding down keeps the bound below the optimum, and the replay in exact time above it, within the stated gap."""
    for seed in range(300, 315):
        tiny = tiny_instance(seed)
        rng = np.random.default_rng(seed)
        inst = CompiledInstance.from_durations(
            first_call=tiny.first_call,
            prefill_s=tiny.prefill_s * rng.uniform(0.5, 1.5, tiny.prefill_s.shape),
            decode_s=tiny.decode_s * rng.uniform(0.5, 1.5, tiny.decode_s.shape),
            transfer_s=tiny.transfer_s * math.pi / 3,
            demand_tokens=tiny.demand_tokens,
            arrival_s=tiny.arrival_s * 1.1,
            parents=[[p for p, _ in tiny.parents_of(c)] for c in range(tiny.n_calls)],
            prefill_class=tiny.prefill_class,
            decode_class=tiny.decode_class,
            capacity_tokens=tiny.capacity_tokens,
        )
        optimum = brute_force(inst, objective)
        certificate = solvers.solve(inst, objective=objective, hints=[], time_limit=60, workers=1)
        assert certificate.lower_bound <= optimum * (1 + 1e-12)
        assert certificate.value >= optimum * (1 - 1e-12)
        assert certificate.status == "closed", str(certificate)


def test_one_server_runs_one_prefill_at_a_time() -> None:
    """Prefills of 2 s and 3 s on one server and decodes of 1 s: the last decode ends at 6 s."""
    inst = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[2.0], [3.0]], decode_s=[[1.0], [1.0]])
    assert solvers.solve(inst).value == 6.0


def test_memory_that_holds_one_call_serialises_decodes() -> None:
    """Two calls of 6 tokens do not fit 10: decodes of 4 s follow one another after the first prefill of 1 s."""
    inst = CompiledInstance.from_durations(
        first_call=[0, 1, 2], prefill_s=[[1.0], [1.0]], decode_s=[[4.0], [4.0]], demand_tokens=6, capacity_tokens=10
    )
    assert solvers.solve(inst).value == 9.0


def test_slow_prefill_wins_when_its_link_is_fast() -> None:
    """Prefill of 3 s with a transfer of 0 s beats 2 s with 5 s."""
    inst = CompiledInstance.from_durations(
        first_call=[0, 1],
        prefill_s=[[2.0, 3.0]],
        decode_s=[[1.0]],
        transfer_s=[[[5.0], [0.0]]],
        prefill_class=[0, 1],
    )
    certificate = solvers.solve(inst)
    assert certificate.value == 4.0
    assert certificate.schedule.prefill_instance.tolist() == [1]


def test_the_quantile_gives_up_the_workflow_that_costs_most() -> None:
    """With tau = 0.5 one workflow goes first and keeps its horizon; with tau = 1 the better of both orders counts."""
    inst = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[8.0], [1.0]], decode_s=[[1.0], [1.0]])
    assert solvers.solve(inst, objective="alpha", tau=0.5).value == pytest.approx(1.0)
    assert solvers.solve(inst, objective="alpha", tau=1.0).value == pytest.approx(10 / 9)


def test_no_time_gives_the_heuristic_and_the_combinatorial_bound() -> None:
    """With a limit of 0 s both sides of the bracket are real, and what CP-SAT said is UNKNOWN."""
    inst = wb.load("instances/small/fanout-03.json")
    for objective in ("makespan", "alpha"):
        certificate = solvers.solve(inst, objective=objective, time_limit=0)
        assert certificate.solver_status == "UNKNOWN"
        assert 0 < certificate.lower_bound <= certificate.value < math.inf
        assert certificate.schedule.check().makespan_s > 0


def test_real_slice_is_proven_and_no_policy_beats_the_bound() -> None:
    """Eight real workflows: both objectives close, and every simulated or listed schedule is above the bound."""
    inst = wb.load("instances/small/bfcl-08.json")
    runs = [wb.simulate(inst, policy) for policy in ("fcfs", "workflow-fcfs", "llf", "atlas", "hexagent")]
    for objective in ("makespan", "alpha"):
        certificate = solvers.solve(inst, objective=objective, hints=runs)
        assert certificate.status == "closed"
        for run in [*runs, *list_schedules(inst.compile())]:
            reached = run.makespan_s if objective == "makespan" else run.req(1.0)
            assert certificate.lower_bound <= reached
            assert certificate.value <= reached


def test_certificate_as_json_has_the_contract() -> None:
    """The dictionary has the fields of the command line's contract, and its schedule a row a call."""
    row = solvers.solve(tiny_instance(0), hints=None).to_dict()
    assert {"status", "value", "lower_bound", "gap", "wall_s", "schedule"} <= set(row)
    assert len(row["schedule"]["calls"]) == tiny_instance(0).n_calls


def test_progress_reports_brackets_that_only_shrink() -> None:
    """Every report has the lower bound below the upper, and neither moves outwards."""
    seen: list[tuple[float, float]] = []
    solvers.solve(
        wb.load("instances/small/fanout-03.json"),
        objective="alpha",
        on_progress=lambda _, upper, lower: seen.append((upper, lower)),
    )
    assert len(seen) > 1
    assert all(lower <= upper for upper, lower in seen)
    assert [upper for upper, _ in seen] == sorted((upper for upper, _ in seen), reverse=True)
    assert [lower for _, lower in seen] == sorted(lower for _, lower in seen)


def test_unknown_objective_is_refused() -> None:
    """A misspelt objective names itself."""
    with pytest.raises(ValueError, match="flow"):
        solvers.solve(tiny_instance(0), objective="flow")


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(1000, 9999), tau=st.sampled_from(TAUS))
def test_value_is_that_of_the_schedule(seed: int, tau: float) -> None:
    """The value is recomputed from the schedule, which the independent checker accepts."""
    inst = tiny_instance(seed)
    certificate = solvers.solve(inst, objective="alpha", tau=tau, hints=[], time_limit=5, workers=1)
    assert certificate.value == certificate.schedule.check().req(tau)
    assert certificate.lower_bound <= certificate.value


def test_an_infeasible_hint_is_refused() -> None:
    """Two prefills at once on one server are no schedule, whatever the hint says."""
    inst = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[2.0], [2.0]], decode_s=[[1.0], [1.0]])
    zeros = np.zeros(2, dtype=np.int64)
    hint = wb.Schedule.from_starts(inst, "overlap", zeros, zeros, np.zeros(2), np.full(2, 2.0))
    with pytest.raises(wb.ScheduleError, match="prefill"):
        solvers.solve(inst, hints=[hint])


def test_a_hint_is_measured_with_the_horizons_of_the_instance() -> None:
    """A hint that was made with horizons twice as long is valued with those that are solved for."""
    inst = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[2.0], [2.0]], decode_s=[[1.0], [1.0]])
    hint = wb.simulate(inst.with_horizons(2 * inst.horizon_s, "doubled"), "fcfs")
    certificate = solvers.solve(inst, objective="alpha", hints=[hint])
    assert certificate.value == pytest.approx(5 / 3)
    assert certificate.status == "closed"


def test_a_bound_above_a_known_schedule_is_an_error() -> None:
    """A certificate cannot hold a bound above its value, so that a false bound never looks like an optimum."""
    good = solvers.solve(tiny_instance(0), hints=[])
    with pytest.raises(ValueError, match="exceeds"):
        dataclasses.replace(good, lower_bound=good.value * 1.01)


@pytest.mark.parametrize("options", [{"time_limit": -1}, {"workers": 0}, {"tick_s": 0.0}])
def test_arguments_that_make_no_sense_are_refused(options: dict[str, float]) -> None:
    """Each is a ValueError."""
    with pytest.raises(ValueError, match="must be"):
        solvers.solve(tiny_instance(0), **options)


@pytest.mark.parametrize("objective", ["makespan", "alpha"])
def test_identical_instances_with_tight_memory(objective: str) -> None:
    """Two equal decode instances that each hold two of three calls: packing has to be exact to equal brute force."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        inst = CompiledInstance.from_durations(
            first_call=[0, 1, 2, 3, 4],
            prefill_s=rng.integers(1, 4, (4, 1)),
            decode_s=rng.integers(2, 9, (4, 1)),
            demand_tokens=rng.integers(4, 8, 4),
            prefill_class=[0, 0],
            decode_class=[0, 0],
            capacity_tokens=11,
        )
        certificate = solvers.solve(inst, objective=objective, hints=[], workers=1)
        assert certificate.value == pytest.approx(brute_force(inst, objective))
        assert certificate.status == "closed"


class TestInterrupt:
    """Ctrl-C in a search that would go on: a hard instance whose probes take longer than the test."""

    @staticmethod
    def contended() -> CompiledInstance:
        """Forty workflows on two prefill and two decode instances whose memory holds few calls."""
        pool = wb.Pool((wb.Group("A100-80GB-SXM", 1), wb.Group("H100-80GB-SXM", 1)))
        tight = wb.Pool(pool.groups, kv_capacity_tokens=60_000)
        work = wb.traces.bfcl(12, rate=40.0)
        return wb.Instance(work, wb.Cluster(pool, tight), "llama3.1-70b").compile()

    def test_keeps_the_bracket(self) -> None:
        """The search ends soon after the signal and says that it was interrupted."""
        pressed: list[float] = []

        def press(elapsed_s: float, upper: float | None, lower: float | None) -> None:
            if elapsed_s > 1 and not pressed:
                pressed.append(elapsed_s)
                signal.raise_signal(signal.SIGINT)

        certificate = solvers.solve(
            self.contended(), objective="alpha", tau=0.75, time_limit=60, hints=[], on_progress=press
        )
        assert pressed
        assert certificate.interrupted
        assert 0 < certificate.lower_bound <= certificate.value
        certificate.schedule.check()

    def test_a_search_that_ends_by_its_limit_is_not_interrupted(self) -> None:
        """Short probes that end early for reasons of their own are not taken for Ctrl-C."""
        certificate = solvers.solve(self.contended(), objective="alpha", tau=0.75, time_limit=3, hints=[])
        assert not certificate.interrupted
