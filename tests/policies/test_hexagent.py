"""HexAGenT against a plain transcription of Algorithm 1, and by hand."""

import random

import pytest
from builders import CLUSTERS, Hardware, Job, Watched, build, chain, random_flows
from oracles import algorithm_1

from workbench import simulate
from workbench.policies import Stage

STATES = {
    **CLUSTERS,
    "one decode": Hardware((0, 0, 0, 0), (0,), (16,)),
    "many": Hardware((0, 1) * 3, (1, 0) * 3, (13,) * 6),
}


@pytest.mark.parametrize("hardware", STATES)
@pytest.mark.parametrize("rerank_limit", [0, 1, 3, 1000])
def test_plans_are_those_of_algorithm_1(rerank_limit, hardware):
    """On every live state of random runs, for both stages: same ranks, same pairs; ties and tight KV included."""
    compared = {Stage.PREFILL: 0, Stage.DECODE: 0}

    def watch(view, stage, plan):
        assert plan == algorithm_1(view, stage, rerank_limit)
        compared[stage] += len(plan) > 1

    for seed in range(10):
        rng = random.Random(1000 * rerank_limit + seed)
        flows = random_flows(rng, STATES[hardware], 9, seed % 2 == 0, seed % 3 == 0)
        crowded = [(arrival / 3, calls) for arrival, calls in flows]
        simulate(STATES[hardware].build(crowded), Watched(f"hexagent:rerank_limit={rerank_limit}", watch))
    assert compared[Stage.PREFILL] > 30
    assert compared[Stage.DECODE] > 50 or hardware != "one decode"


@pytest.mark.parametrize("rerank_limit", [0, 1000])
def test_plans_of_equal_calls_are_those_of_algorithm_1(rerank_limit):
    """Where everything ties, calls go by (workflow, call) and pairs by (finish, prefill finish, p, d)."""

    def watch(view, stage, plan):
        assert plan == algorithm_1(view, stage, rerank_limit)

    three = Hardware((0, 0, 0), (0, 0, 0), (8, 8, 8))
    flows = [(float(w // 4), chain(Job(1, 2, 0.5, 2, 2), Job(1, 2, 0.5, 2, 2))) for w in range(16)]
    simulate(three.build(flows), Watched(f"hexagent:rerank_limit={rerank_limit}", watch))


def test_the_queue_is_small_up_to_the_limit():
    """Three calls, limit 3: ranked anew after each assignment; limit 2: ranked once."""
    # On one server R = finish / H is 1 for each at first, so that a tie-break takes w0, which then holds it to 2 s.
    flows = [(0, [Job(2, 20)]), (0, [Job(1, 3)]), (0, [Job(1, 1)])]
    plans = {}
    for limit in (2, 3):
        watched = Watched(f"hexagent:rerank_limit={limit}")
        simulate(build(flows), watched)
        plans[limit] = [name for name, *_ in watched.plans[0][2]]
    assert plans[2] == [(0, 0), (1, 0), (2, 0)]
    # Anew, w1 then ends at 6 s with R = 6 / 4, and w2 at 4 s with R = 4 / 2.
    assert plans[3] == [(0, 0), (2, 0), (1, 0)]


def test_the_most_at_risk_goes_first():
    """Behind 10 s of prefill, a workflow of H = 2 has R = 12 / 2 and one of H = 20 has R = 30 / 20."""
    flows = [(0, [Job(10, 1)]), (0, [Job(2, 18)]), (0, [Job(1, 1)])]
    assert simulate(build(flows), "hexagent").prefill_start_s.tolist() == [0, 11, 10]


def test_the_pair_with_the_earliest_decode_finish_is_taken():
    """Prefill 1 is slower, but its link is faster: 2 + 0 + 5 before 1 + 3 + 5."""
    job = Job(prefill=(1, 2), decode=(5,), transfer=((3.0,), (0.0,)))
    two = Hardware((0, 1), (0,), (10,))
    assert simulate(two.build([(0, [job])]), "hexagent").prefill_instance.tolist() == [1]


def test_decode_occupancy_counts_in_the_choice():
    """Decode 0 is faster but full until 11 s: the second call goes to decode 1, which ends at 1 + 1 + 6 = 8 s."""
    two = Hardware((0,), (0, 1), (4, 10))
    flows = [(0, [Job(1, (10, 30), 0, 2, 2)]), (1, [Job(1, (4, 6), 0, 2, 2)])]
    schedule = simulate(two.build(flows), "hexagent")
    assert schedule.decode_instance.tolist() == [0, 1]
    assert schedule.decode_end_s.tolist() == [11, 8]


def test_a_plan_moves_calls_that_still_wait():
    """A call planned on one instance is placed anew when a later plan finds a better pair."""
    rng = random.Random(4)
    two = CLUSTERS["roomy"]
    watched = Watched("hexagent")
    simulate(two.build([(a / 4, calls) for a, calls in random_flows(rng, two, 20, False)]), watched)
    placed = {}
    for _, stage, plan in watched.plans:
        if stage is Stage.PREFILL:
            for name, _, p, d in plan:
                placed.setdefault(name, []).append((p, d))
    assert any(len(set(pairs)) > 1 for pairs in placed.values())


def test_estimates_that_were_overrun_are_taken_as_due_now():
    """A running decode predicted at 1 s that has run for 3 s is expected to end at once, not in the past."""

    def watch(view, stage, plan):
        assert plan == algorithm_1(view, stage, 32)
        if view.now == 4 and stage is Stage.PREFILL:
            assert view.expected_decode_left(0) == 0

    flows = [(0, [Job(1, 9, predicted_decode=1.0)]), (4, [Job(1, 1)]), (4, [Job(1, 2)])]
    simulate(build(flows, capacity=2), Watched("hexagent", watch))
