"""Standalone horizons against closed forms and a plain list schedule, from scratch and as calls are revealed."""

import random

import numpy as np
import pytest
from builders import CLUSTERS, Hardware, Job, Watched, build, chain, random_calls, random_flows, random_job, reveal
from hypothesis import given
from hypothesis import strategies as st
from oracles import hardware_of, revealed_horizon, standalone

from workbench import simulate
from workbench.horizon import Standalone, greedy_horizons
from workbench.policies import Assignment, Policy
from workbench.view import View


def by_hand(instance, w):
    """Return every call's standalone finish by the plain list schedule, with true durations."""
    calls = {
        c: (
            int(instance.demand_tokens[c]),
            instance.prefill_s[c].tolist(),
            instance.transfer_s[c].tolist(),
            instance.decode_s[c].tolist(),
        )
        for c in range(instance.first_call[w], instance.first_call[w + 1])
    }
    return standalone(calls, {c: instance.parents_of(c) for c in calls}, hardware_of(instance))


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_a_chain_takes_the_sum_of_its_best_pairs_and_tool_delays(hardware):
    """Per call the least prefill + transfer + decode over the pairs that hold it."""
    cluster, rng = CLUSTERS[hardware], random.Random(7)
    for _ in range(30):
        jobs = [random_job(rng, cluster, grid=False) for _ in range(rng.randint(1, 9))]
        calls = chain(*jobs, delay=rng.uniform(0, 2))
        expected = sum(sum(job.parents.values()) for job in calls)
        for job in calls:
            expected += min(
                job.prefill[g] + job.transfer[g][h] + job.decode[h]
                for g in cluster.prefill_class
                for h, capacity in zip(cluster.decode_class, cluster.capacity, strict=True)
                if job.prompt + job.output <= capacity
            )
        assert greedy_horizons(cluster.build([(3.0, calls)]))[0] == pytest.approx(expected, rel=1e-12)


def test_a_fan_out_on_one_instance_by_hand():
    """Root [0, 1] [1, 3]; three children prefill [3, 4], [4, 5], [5, 6]; two decode at once, 4 s each: 4, 5, then 8."""
    jobs = [Job(1, 2), *(Job(1, 4, parents={0: 0.0}) for _ in range(3))]
    instance = build([(0, jobs)], capacity=4)
    assert instance.horizon_s.tolist() == [12]
    assert by_hand(instance, 0) == {0: 3, 1: 8, 2: 9, 3: 12}


def test_a_call_in_a_gap_by_hand():
    """KV of 10: 8 tokens are held [1, 5] and [5, 9]; a call of 2, ready at 3 s, fits beside, one of 3 does not."""
    jobs = [Job(1, 4, prompt=7), Job(1, 4, prompt=7), Job(1, 5, prompt=1)]
    assert build([(0, jobs)], capacity=10).horizon_s.tolist() == [9]
    jobs[2].prompt = 2
    assert build([(0, jobs)], capacity=10).horizon_s.tolist() == [14]


def test_calls_go_by_ready_time_then_index():
    """After the root, call 2 is ready at 2 s and call 1, with a tool delay, at 3 s, when the server is busy."""
    jobs = [Job(1, 1), Job(1, 1, parents={0: 1.0}), Job(4, 1, parents={0: 0.0}), Job(2, 1, parents={0: 0.0})]
    instance = build([(0, jobs)])
    assert by_hand(instance, 0) == {0: 2, 2: 7, 3: 9, 1: 10}
    assert instance.horizon_s.tolist() == [10]


def test_only_instances_that_hold_a_call_serve_it():
    """The fast decode instance is too small for 6 tokens."""
    two = Hardware((0,), (0, 1), (5, 10))
    assert two.build([(0, [Job(1, (2, 9), prompt=4)]), (0, [Job(1, (2, 9), prompt=5)])]).horizon_s.tolist() == [3, 10]


def test_a_workflow_is_alone():
    """Other workflows and the arrival change nothing."""
    calls = [Job(1, 2), Job(2, 1)]
    lone, crowd = build([(0, calls)]), build([(0, calls), (0, calls), (7, calls)])
    assert crowd.horizon_s.tolist() == [lone.horizon_s[0]] * 3


def test_horizons_use_true_lengths():
    """Predictions do not count: of 5 tokens each, not 3, two calls do not decode together in 8; 6 s, then 11 s."""
    job = Job(1, 5, prompt=2, output=3, predicted_decode=1.0, predicted_output=1)
    assert build([(0, [job])]).horizon_s.tolist() == [6]
    assert build([(0, [job, job])], capacity=8).horizon_s.tolist() == [11]


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_greedy_horizons_are_those_of_a_plain_list_schedule(hardware):
    """To the last bit, on random DAGs with ties, tool delays and tight KV."""
    for seed in range(25):
        instance = CLUSTERS[hardware].build(random_flows(random.Random(seed), CLUSTERS[hardware], 6, seed % 2 == 0))
        assert greedy_horizons(instance).tolist() == [max(by_hand(instance, w).values()) for w in range(6)]


def test_wide_workflows_outgrow_the_first_arrays():
    """Two hundred calls on one instance need more steps of occupancy than it starts with."""
    rng = random.Random(5)
    jobs = [Job(rng.uniform(0.1, 1), rng.uniform(1, 9), prompt=rng.randint(1, 8)) for _ in range(200)]
    instance = build([(0, jobs)], capacity=30)
    assert instance.horizon_s[0] == max(by_hand(instance, 0).values())


@given(st.integers(0, 10**6), st.sampled_from(sorted(CLUSTERS)), st.booleans())
def test_the_growing_horizon_equals_one_from_scratch(seed, hardware, grid):
    """Whatever the order of reveal and whenever it is asked for, `View.horizon_s` is that of the revealed calls."""
    rng = random.Random(seed)
    cluster = CLUSTERS[hardware]
    hidden = [dict(enumerate(random_calls(rng, cluster, grid))) for _ in range(3)]
    view = View(*(np.array(row) for row in (cluster.prefill_class, cluster.decode_class, cluster.capacity)))
    handles = [{}, {}, {}]
    ask = rng.choice([0.2, 1.0])
    while any(hidden):
        w = rng.choice([w for w in range(3) if hidden[w]])
        i = rng.choice([i for i, job in hidden[w].items() if all(p in handles[w] for p in job.parents)])
        job = hidden[w].pop(i)
        handles[w][i] = reveal(view, w, i, job, [(handles[w][p], delay) for p, delay in job.parents.items()])
        if rng.random() < ask:
            assert view.horizon_s(w) == revealed_horizon(view, w)
    for w in range(3):
        assert view.horizon_s(w) == revealed_horizon(view, w)
        assert view.horizon_s(w) == view.horizon_s(w)


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_the_horizon_at_every_reveal_of_a_run(hardware):
    """In live runs too, and at the end it is the metric's horizon, as estimates are true."""
    last = {}

    def watch(view, stage, plan):
        for w in view.arrival_s:
            assert view.horizon_s(w) == revealed_horizon(view, w)
            last[w] = view.horizon_s(w)

    for seed in range(4):
        flows = random_flows(random.Random(seed), CLUSTERS[hardware], 6, seed % 2 == 0)
        schedule = simulate(CLUSTERS[hardware].build(flows), Watched("workflow-fcfs", watch))
        assert [last[w] for w in range(6)] == schedule.instance.horizon_s.tolist()


def test_a_horizon_first_asked_for_late_covers_all_that_was_revealed():
    """A policy that looks at it at the last call of a chain only gets all three calls and both tool delays."""

    class Late(Policy):
        name = "late"

        def plan(self, view, stage):
            self.found = view.horizon_s(0) if len(view.workflow) == 3 else None
            return [Assignment(call, 0, 0, 0) for call in view.waiting_prefill]

    policy = Late()
    simulate(build([(0, chain(Job(1, 1), Job(1, 2), Job(1, 3), delay=0.5))]), policy)
    assert policy.found == 2 + 0.5 + 3 + 0.5 + 4


def test_standalone_serves_in_turn_and_returns_finishes():
    """Two equal calls on one pair: 3 s, then 4 s, as decode has room; with room for one, 3 s and 5 s."""
    zero = np.zeros(1, dtype=np.int64)
    call = (np.array([2]), np.array([[1.0]]), np.array([[[0.0]]]), np.array([[2.0]]))
    for capacity, finishes in ((4, [3.0, 4.0]), (2, [3.0, 5.0])):
        alone = Standalone(zero, zero, np.array([capacity]))
        assert [alone.serve(0, 0.0, call) for _ in range(2)] == finishes
