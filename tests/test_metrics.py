"""Workflow-level metrics against their definitions."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from builders import Job, build, chain
from hypothesis import given
from hypothesis import strategies as st

from workbench import metrics, simulate

RATIOS = st.lists(st.sampled_from([0.5, 1.0, 1.25, 1.5, 2.0, 3.0]) | st.floats(0.1, 50), min_size=1, max_size=30)


def on_time(ratios, alpha):
    """Return how many workflows are on time at an SLO scale."""
    return sum(ratio <= alpha for ratio in ratios)


@given(RATIOS, st.sampled_from(["0.05", "0.5", "0.75", "0.9", "0.95", "0.99", "1"]))
def test_req_is_the_least_scale_with_enough_workflows_on_time(ratios, tau):
    """Among all ratios, the least alpha with at least tau |W| workflows at or below it."""
    needed = Fraction(tau) * len(ratios)
    expected = min(alpha for alpha in ratios if on_time(ratios, alpha) >= needed)
    assert metrics.req(ratios, float(tau)) == expected


@given(RATIOS)
def test_attainment_is_the_empirical_distribution(ratios):
    """At each scale of the curve, the share on time; it rises to 1."""
    curve = metrics.attainment(ratios)
    assert curve.index.tolist() == sorted(set(ratios))
    assert curve.tolist() == pytest.approx([on_time(ratios, alpha) / len(ratios) for alpha in curve.index])
    assert curve.iloc[-1] == 1
    assert (curve.name, curve.index.name) == ("attainment", "slo_scale")


@given(RATIOS, st.sampled_from([0.5, 0.75, 0.95, 1.0]))
def test_attainment_reaches_tau_at_req(ratios, tau):
    """Req_tau is the first scale at which the curve is at least tau."""
    curve = metrics.attainment(ratios)
    assert metrics.req(ratios, tau) == curve.index[(curve >= tau - 1e-12).argmax()]


@pytest.mark.parametrize("number", [1, 3, 7, 20, 40, 99, 100, 400, 1000])
def test_workflows_on_time_is_free_of_rounding_noise(number):
    """For every percentage the exact ceiling: 0.95 * 20 is 19 and 0.07 * 100 is 7, not one more."""
    for percent in range(1, 101):
        assert metrics.workflows_on_time(number, percent / 100) == ceil(Fraction(percent, 100) * number)


def test_workflows_on_time_where_floats_overshoot():
    """0.07 * 100 and 0.55 * 100 are above 7 and 55 in floating point; of one workflow one is needed."""
    assert 0.07 * 100 > 7
    assert 0.55 * 100 > 55
    assert metrics.workflows_on_time(100, 0.07) == 7
    assert metrics.workflows_on_time(100, 0.55) == 55
    assert metrics.workflows_on_time(20, 0.95) == 19
    assert metrics.workflows_on_time(21, 0.95) == 20
    assert metrics.workflows_on_time(1, 0.01) == 1


@pytest.mark.parametrize("tau", [0.0, -0.5, 1.01, 95, float("nan")])
def test_tau_is_a_share(tau):
    """A percentage or a negative number is refused."""
    with pytest.raises(ValueError, match="tau must be above 0 and at most 1"):
        metrics.req([1.0], tau)


def test_reveal_times_follow_from_decode_ends():
    """Sources at arrival; a join when the later of 4 + 0.5 and 2 + 3 has passed."""
    jobs = [Job(), Job(), Job(parents={0: 3.0, 1: 0.5}), Job(parents={2: 0.0})]
    instance = build([(1.0, jobs), (9.0, [Job()])])
    ends = np.array([2.0, 4.0, 8.0, 10.0, 12.0])
    assert metrics.reveal_times(instance, ends).tolist() == [1, 1, 5, 8, 9]
    assert instance.arrival_s.tolist() == [1, 9]


def test_reveal_times_agree_with_the_simulator():
    """The runtime reveals when the metric says."""
    flows = [(0.25 * w, chain(Job(1, 2), Job(0.5, 1), Job(1, 1), delay=0.125 * w)) for w in range(6)]
    schedule = simulate(build(flows, capacity=4), "hexagent")
    assert metrics.reveal_times(schedule.instance, schedule.decode_end_s).tolist() == schedule.reveal_s.tolist()


def test_ratios_are_flow_over_horizon():
    """Two calls of 1 + 1 s on one server arrive at 1 s: they end at 3 and 4 s, ratios 1 and 1.5."""
    schedule = simulate(build([(1, [Job(1, 1)]), (1, [Job(1, 1)])]), "fcfs")
    assert schedule.completion_s.tolist() == [3, 4]
    assert schedule.flow_s.tolist() == [2, 3]
    assert schedule.ratios().tolist() == [1, 1.5]
    assert schedule.ratios().index.tolist() == ["w0", "w1"]
    assert (schedule.req(0.5), schedule.req(0.51), schedule.makespan_s) == (1, 1.5, 4)
    assert schedule.attainment().to_dict() == {1.0: 0.5, 1.5: 1.0}


def test_a_workflow_completes_with_its_last_call():
    """Not with the call of the highest index."""
    schedule = simulate(build([(0, [Job(1, 9), Job(1, 1)]), (0, [Job(1, 1)])]), "fcfs")
    assert schedule.decode_end_s.tolist() == [10, 3, 4]
    assert schedule.completion_s.tolist() == [10, 4]
