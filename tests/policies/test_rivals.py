"""The rival policies: each order and each dispatch by hand, and what all of them must keep."""

import random

import numpy as np
import pytest
from builders import CLUSTERS, MIXED, Hardware, Job, Watched, build, chain, random_flows, reveal

from workbench import InputError, simulate
from workbench.policies import available, create
from workbench.policies.dispatch import DISPATCH_RULES
from workbench.policies.fcfs import Fcfs
from workbench.policies.queueing import FinishedWorkflows
from workbench.view import View

RIVALS = [
    "continuum",
    "distserve",
    "edf",
    "fastserve",
    "hermes",
    "justitia",
    "kairos",
    "llumnix",
    "ltr",
    "parrot",
    "plas",
    "qlm",
    "random",
    "splitwise",
    "srpt",
    "ssjf",
]
TWO = Hardware((0, 0), (0, 0), (100, 100))


def starts(flows, spec, **cluster):
    """Return the prefill starts of all calls."""
    return simulate(build(flows, **cluster), spec).prefill_start_s.tolist()


def ranks(flows, spec, **cluster):
    """Return the ranks that each call was given in prefill plans, in order."""
    watched = Watched(spec)
    simulate(build(flows, **cluster), watched)
    return watched.ranks()


# Attained service.

ATTAINED = [(0, chain(Job(1, 1), Job(1, 1))), (1, [Job(8, 1)]), (7, [Job(1, 1)]), (8, [Job(1, 1)])]


@pytest.mark.parametrize("spec", ["plas", "hermes"])
def test_workflows_without_service_pass_one_that_has_had_some(spec):
    """At 9 s the server frees: workflows of 7 and 8 s go before the second call of one that has had 2 s of service.

    So does Hermes as long as it has learned nothing.
    """
    assert starts(ATTAINED, spec) == [0, 11, 1, 9, 10]


def test_plas_ranks_by_attained_service_then_arrival():
    """A second call after 2 s of service has (2, arrival), without its transfer."""
    flows = [(0.5, chain(Job(1, 1, transfer=4.0), Job(1, 1)))]
    assert ranks(flows, "plas") == {(0, 0): [(0, 0.5)], (0, 1): [(2, 0.5)]}


def test_plas_renews_the_rank_of_a_call_that_waits():
    """Of two roots one ends prefill at 1 s, when w2 comes: the other, still waiting, has attained 1 s too."""
    flows = [(0, [Job(1, 5), Job(1, 1)]), (0.5, [Job(2, 1)]), (1, [Job(1, 1)])]
    assert ranks(flows, "plas")[0, 1] == [(0, 0), (1, 0)]
    assert starts(flows, "plas") == [0, 4, 1, 3]


# Predicted duration and length.

BUSY = (0, [Job(5, 1)])


def test_fastserve_joins_the_queue_whose_quantum_covers_the_prefill():
    """Quanta of 1, 2, 4 s: the fastest class's prefill of 1, 1.5, 2, 2.5 and 99 s are queues 0, 1, 1, 2, 2."""
    flows = [(i, [Job(seconds, 1)]) for i, seconds in enumerate((1, 1.5, 2, 2.5, 99))]
    found = ranks(flows, "fastserve:first_queue_s=1:queues=3")
    assert [found[w, 0][0] for w in range(5)] == [(0, 0), (1, 1), (1, 2), (2, 3), (2, 4)]
    two = Hardware((0, 1), (0,), (100,))
    watched = Watched("fastserve:first_queue_s=1")
    simulate(two.build([(0, [Job((8, 2), 1)])]), watched)
    assert watched.ranks() == {(0, 0): [(1, 0)]}


def test_fastserve_serves_short_prefills_first_and_promotes_long_waits():
    """Behind 5 s: prefills of 0.4, 0.04 and 0.2 s go 0.04, 0.2, 0.4; the first goes first once it has waited 4 s."""
    flows = [BUSY, (1, [Job(0.4, 1)]), (2, [Job(0.04, 1)]), (3, [Job(0.2, 1)]), (5, [Job(0.01, 1)])]
    assert starts(flows, "fastserve") == pytest.approx([0, 5.25, 5, 5.05, 5.04])
    assert starts(flows, "fastserve:promote_after_s=4") == pytest.approx([0, 5, 5.4, 5.45, 5.44])


def test_ssjf_takes_the_shortest_and_ages():
    """Durations 2 s at 1 s and 1.5 s at 2 s: 2 > 1.5, but with a second of ageing a second 2 + 1 < 1.5 + 2."""
    flows = [BUSY, (1, [Job(1, 1)]), (2, [Job(1, 0.25, transfer=0.25)])]
    assert ranks(flows, "ssjf:ageing=0") == {(0, 0): [6], (1, 0): [2], (2, 0): [1.5]}
    assert starts(flows, "ssjf:ageing=0") == [0, 6, 5]
    assert starts(flows, "ssjf:ageing=1") == [0, 5, 6]


def test_ltr_takes_the_shortest_predicted_output_and_promotes_starved_calls():
    """Predicted 9 and 3 tokens (in truth 1 and 4): 3 first; at 5 s, when w3 comes, the other has waited 4 s."""
    flows = [BUSY, (1, [Job(output=1, predicted_output=9)]), (2, [Job(output=4, predicted_output=3)]), (5, [Job()])]
    assert ranks(flows, "ltr")[1, 0] == [(1, 9, 1)]
    assert starts(flows, "ltr") == [0, 7, 6, 5]
    assert ranks(flows, "ltr:promote_after_s=4")[1, 0] == [(1, 9, 1), (0, 1, 0)]
    assert starts(flows, "ltr:promote_after_s=4") == [0, 5, 7, 6]


def test_srpt_sums_what_a_workflow_has_left():
    """One call of 10 s against two of 2 s each: 4 goes first; at 6 s one of the two has had its prefill: 3."""
    flows = [BUSY, (1, [Job(1, 9)]), (2, [Job(1, 1), Job(1, 1)]), (6, [Job(9, 1)])]
    assert ranks(flows, "srpt") == {(0, 0): [6], (1, 0): [10], (2, 0): [4], (2, 1): [4, 3], (3, 0): [10]}
    assert starts(flows, "srpt") == [0, 7, 5, 6, 8]


# Deadlines.


@pytest.mark.parametrize(("alpha", "order"), [(0.01, [5, 9]), (2.0, [6, 5])])
def test_edf_takes_the_earliest_deadline(alpha, order):
    """H = 10 at 0.5 s and H = 2 at 1 s are due at 0.6 and 1.02 s with alpha 0.01, at 20.5 and 5 s with alpha 2."""
    flows = [(0, [Job(5, 5)]), (0.5, [Job(4, 6)]), (1, [Job(1, 1)])]
    assert starts(flows, f"edf:alpha={alpha}") == [0, *order]


def test_edf_follows_the_horizon():
    """A chain of 2 s and 4 s with a tool of 3 s is due at 1 + 2 * 2, then at 1 + 2 * 9; a waiting call follows."""
    assert ranks([(1, chain(Job(1, 1), Job(1, 3), delay=3.0))], "edf") == {(0, 0): [5], (0, 1): [19]}
    flows = [(0, [Job(1, 1), Job(1, 4), Job(1, 20, parents={0: 0.0})]), (0.5, [Job(3, 1)])]
    assert ranks(flows, "edf")[0, 1] == [12, 46]


def test_qlm_orders_groups_by_deadline_less_waiting():
    """w1's group is due at 9 s with 1 s of work. The other is due at 9.5 s: with 1 s of work it is later, with 2 s not.

    SLOs are 2 H: 8 s for w1, 5 s for the others. Inside a group calls go by reveal.
    """
    flows = [BUSY, (1, [Job(1, 3)]), (4.5, [Job(1, 1.5)]), (4.75, [Job(1, 1.5)])]
    assert starts(flows[:3], "qlm") == [0, 5, 6]
    assert starts(flows, "qlm") == [0, 7, 5, 6]
    found = ranks(flows, "qlm")
    assert (found[1, 0], found[2, 0], found[3, 0]) == ([(0, 1), (1, 1)], [(1, 4.5), (0, 4.5)], [(0, 4.75)])


# Workflows that have finished.


class Records(Fcfs):
    """Keeps what `FinishedWorkflows` says at each plan."""

    name = "records"

    def begin(self, view, rng):
        super().begin(view, rng)
        self.finished, self.said = FinishedWorkflows(), []

    def plan(self, view, stage):
        self.said.append((view.now, *self.finished.update(view)))
        return super().plan(view, stage)


def test_a_workflow_is_finished_when_it_is_idle_longer_than_any_tool_ran():
    """w0 is idle at 2 s and goes on at 4.5 s after a tool of 3 s; from then on a workflow must be idle for 3 s.

    w1 is found idle at 4.5 s and w0 at 7 s.
    """
    flows = [(0, chain(Job(1, 0.5), Job(1, 0.5), delay=3.0)), *((t, [Job(1, 1)]) for t in (2, 7, 8, 10))]
    records = Records()
    simulate(build(flows), records)
    assert records.said == [
        (0, [], []),
        (2, [0], []),
        (4.5, [], [0]),
        (7, [], []),
        (8, [1], []),
        (10, [0], []),
    ]


SMALL = "hermes:shortest_s=1:longest_s=4:buckets=3:prior_workflows=3"


def test_hermes_index_by_hand():
    """Bounds 1, 2, 4 with weight 1 each: nothing attained min(3, 5/2, 7/3); after 1 s, 1 or 3 left: 4/2.

    The workflow of 1.5 s that has finished by 5 s doubles the middle: min(4, 7/3, 9/4); after 1 s
    min((1 * 2 + 1 * 1) / 2, (2 + 3) / 3) = 3/2.
    """
    flows = [(0, chain(Job(0.75, 0.25), Job(0.25, 0.25))), (5, chain(Job(0.5, 0.5), Job(0.25, 0.25)))]
    found = ranks(flows, SMALL)
    assert [found[name][0][0] for name in ((0, 0), (0, 1), (1, 0), (1, 1))] == pytest.approx([7 / 3, 2, 9 / 4, 3 / 2])
    assert [found[name][0][1] for name in found] == [0, 0, 5, 5]


def test_hermes_takes_back_a_workflow_that_goes_on():
    """w0 counts at 2 s with 1.5 s; it goes on at 4.5 s after its tool, and nothing is known any more at 4.6 s."""
    flows = [(0, chain(Job(1, 0.5), Job(1, 0.5), delay=3.0)), (2, [Job(1, 1)]), (4.6, [Job(1, 1)])]
    found = ranks(flows, SMALL)
    assert found[1, 0][0] == pytest.approx((9 / 4, 2))
    assert found[2, 0][0] == pytest.approx((7 / 3, 4.6))


def test_hermes_prefers_a_workflow_that_is_near_a_usual_end():
    """Once many took 2 s in all, one that has had 1 s is nearly done, and passes an older one that has not begun."""
    usual = [(2.0 * i, [Job(1, 1)]) for i in range(8)]
    flows = [*usual, (20, chain(Job(0.5, 0.5), Job(1, 1))), (20.5, [Job(4, 1)]), (20.75, [Job(1, 1)])]
    assert starts(flows, "hermes")[8:] == [20, 24.5, 20.5, 25.5]
    assert starts(flows, "plas")[8:] == [20, 25.5, 20.5, 24.5]


def test_kairos_expects_what_finished_workflows_had_left_at_that_depth():
    """A chain of two calls of 2 s teaches 4 s at depth 0 and 2 s at depth 1; with the prior of 10 s: 7 and 6 s.

    So w1's second call passes w3, revealed before it.
    """
    flows = [(t, chain(Job(1, 1), Job(1, 1))) for t in (0, 5)] + [(6, [Job(3, 1)]), (6.5, [Job(1, 1)])]
    found = ranks(flows, "kairos")
    assert [found[0, i] for i in (0, 1)] == [[(10, 0)], [(10, 0)]]
    assert [found[1, i] for i in (0, 1)] == [[(7, 5)], [(6, 5)]]
    assert found[3, 0] == [(7, 6.5)]
    assert starts(flows, "kairos")[2:] == [5, 9, 6, 10]


def test_kairos_takes_back_and_renews():
    """w0 counts with 2 s at depth 0 at 3 s and not when it goes on; the waiting w2 learns of it."""
    flows = [(0, chain(Job(1, 1), Job(1, 1), delay=4.0)), (3, [Job(9, 1)]), (4, [Job(1, 1)])]
    found = ranks(flows, "kairos")
    assert found[1, 0] == [(6, 3)]
    assert found[2, 0] == [(6, 4), (10, 4)]
    assert starts(flows, "kairos") == [0, 12, 3, 13]


# Programs.


def test_parrot_takes_deeper_calls_of_a_program_first_and_programs_by_arrival():
    """b, the child of a, is revealed at 2 s and passes d, a root of the same program; w1 comes after all of w0."""
    flows = [(0, [Job(1, 1), Job(1, 1), Job(1, 1), Job(1, 1, parents={0: 0.0})]), (0.25, [Job(1, 1)])]
    assert starts(flows, "parrot") == [0, 1, 3, 2, 4]
    assert ranks(flows, "parrot")[0, 3] == [(0, 0, -1)]


def test_parrot_groups_programs_that_arrive_together():
    """The depth counts inside a program only: w1's deep call does not pass w0's roots."""
    flows = [(0, [Job(1, 1)] * 4), (0, [Job(1, 1), Job(1, 1, parents={0: 0.0})])]
    assert starts(flows, "parrot") == [0, 1, 2, 3, 4, 6]


def test_continuum_serves_programs_by_arrival_where_their_first_calls_went():
    """w0's second call passes w2. On two pairs it goes back to the loaded pair 0."""
    flows = [(0, chain(Job(1, 4), Job(1, 1))), (2, [Job(5, 1)]), (3, [Job(2, 1)])]
    assert starts(flows, "continuum") == [0, 7, 2, 8]
    flows = [(0, chain(Job(1, 1), Job(1, 1))), (1.5, [Job(9, 9)]), (1.75, [Job(9, 9, prompt=5)])]
    for spec, instance in (("continuum", 0), ("continuum:dispatch=least_loaded", 1)):
        schedule = simulate(TWO.build(flows), spec)
        assert schedule.prefill_instance.tolist() == schedule.decode_instance.tolist() == [0, instance, 1, 0]


def test_justitia_orders_by_virtual_finish():
    """10 tokens of KV. w1 (4 tokens for 9 s) comes at V = 10, w2 (2 tokens for 1 s) at V = 10 + 10 / 2: 46 and 17."""
    flows = [BUSY, (1, [Job(1, 9, prompt=2, output=2)]), (2, [Job(1, 1)])]
    assert ranks(flows, "justitia", capacity=10) == {(0, 0): [2], (1, 0): [46], (2, 0): [17]}
    assert starts(flows, "justitia", capacity=10) == [0, 6, 5]


def test_justitia_adds_the_cost_of_revealed_calls_to_the_finish():
    """Calls of 2 tokens for 1 s and 3 s at V = 0: 2, then 8, also for the other call that waits."""
    flows = [(0, [Job(1, 1), Job(1, 1), Job(1, 3, parents={0: 0.0})]), (0.5, [Job(3, 1)])]
    found = ranks(flows, "justitia", capacity=2)
    assert found[0, 0] == [4]
    assert found[0, 2] == [10]
    assert ranks([(0, chain(Job(1, 1), Job(1, 3)))], "justitia") == {(0, 0): [2], (0, 1): [8]}


def test_random_draws_a_rank_for_each_call_once():
    """The ranks are the seed's numbers in order of reveal, and the least goes first."""
    flows = [BUSY, *((1 + i / 8, [Job(1, 1)]) for i in range(6))]
    for seed in range(4):
        rng = random.Random(seed)
        drawn = [rng.random() for _ in range(7)]
        watched = Watched("random")
        schedule = simulate(build(flows), watched, seed=seed)
        assert watched.ranks() == {(w, 0): [rank] for w, rank in enumerate(drawn)}
        assert np.argsort(schedule.prefill_start_s[1:]).tolist() == np.argsort(drawn[1:]).tolist()


# Dispatch.


@pytest.mark.parametrize("spec", ["splitwise", "distserve", "llumnix"])
def test_systems_of_placement_serve_in_order_of_reveal(spec):
    """w0's second call, revealed at 5 s, waits behind w2, which came at 3 s."""
    flows = [(0, chain(Job(1, 4), Job(1, 1))), (2, [Job(5, 1)]), (3, [Job(2, 1)])]
    assert starts(flows, spec) == [0, 9, 2, 7]


LOADS = {"prefill_tokens": [7, 3, 5], "prefill_calls": [1, 4, 2], "decode_tokens": [30, 20, 50]}


@pytest.mark.parametrize(
    ("spec", "decode_calls", "chosen"),
    [
        ("splitwise", [3, 2, 1], (1, 1)),  # fewest pending tokens, least KV taken
        ("distserve", [3, 2, 1], (0, 2)),  # fewest calls
        ("distserve", [3, 2, 2], (0, 1)),
        ("llumnix", [3, 4, 1], (1, 2)),  # free KV a call: 70 / 3, 40 / 4, 50 / 1
        ("llumnix", [1, 1, 1], (1, 0)),  # 70, 40, 50
        ("llumnix", [3, 0, 1], (1, 2)),  # 70 / 3, 40, 50: no calls count as one
    ],
)
def test_dispatch_by_hand(spec, decode_calls, chosen):
    """On capacities of 100, 60 and 100 tokens."""
    view = View(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64), np.array([100, 60, 100]))
    for name, load in LOADS.items():
        setattr(view, name, load)
    view.decode_calls = decode_calls
    dispatcher = create(spec).dispatcher
    dispatcher.begin(view, random.Random(0))
    dispatcher.refresh(view)
    assert dispatcher.choose(view, reveal(view, 0, 0, Job())) == chosen


@pytest.mark.parametrize(
    ("rule", "chosen"),
    [("fewest_calls", [0, 1, 2, 0]), ("most_free", [0, 2, 2, 1]), ("sticky", [0, 1, 2, 1])],
)
def test_calls_of_one_plan_count(rule, chosen):
    """Demands of 50, 9, 9, 9 on idle instances of 100, 80 and 100 tokens.

    Free KV a call: 100, 80, 100; then 50, 80, 100; then 50, 80, 91; then 50, 80, 82 / 2.
    """
    view = View(np.zeros(1, dtype=np.int64), np.zeros(3, dtype=np.int64), np.array([100, 80, 100]))
    dispatcher = create(f"fcfs:dispatch={rule}").dispatcher
    dispatcher.begin(view, random.Random(0))
    dispatcher.refresh(view)
    calls = [reveal(view, 0, i, Job(prompt=prompt)) for i, prompt in enumerate((49, 8, 8, 8))]
    assert [dispatcher.choose(view, call)[1] for call in calls] == chosen


# All of them.


def test_all_rivals_are_built_in():
    """Under their names, with a line that says what they do, seeing revealed calls only."""
    found = available()
    assert set(RIVALS) <= set(found)
    for name in RIVALS:
        assert len(found[name].__doc__.splitlines()[0]) > 20
        assert found[name].information == "revealed"
        assert create(name).dispatcher.rule in DISPATCH_RULES


@pytest.mark.parametrize("name", RIVALS)
def test_schedules_are_feasible_and_runs_repeat(name):
    """On every cluster, with ties and with wrong predictions; a policy forgets its last run."""
    for hardware in CLUSTERS.values():
        for seed in range(4):
            rng = random.Random(seed)
            flows = [(a / 3, c) for a, c in random_flows(rng, hardware, 8, seed % 2 == 0, seed > 1)]
            instance, policy = hardware.build(flows), Watched(name)
            first = simulate(instance, policy, seed=seed).check()
            plans = policy.plans
            second = simulate(instance, policy, seed=seed)
            assert policy.plans == plans
            assert np.array_equal(first.decode_end_s, second.decode_end_s)


@pytest.mark.parametrize("rule", DISPATCH_RULES)
@pytest.mark.parametrize("name", ["plas", "hermes", "qlm", "edf", "parrot", "justitia"])
def test_any_order_runs_with_any_dispatch(name, rule):
    """On mixed hardware with tight KV."""
    schedule = simulate(MIXED.build(random_flows(random.Random(5), MIXED, 10, False, True)), name, dispatch=rule)
    assert schedule.check().makespan_s > 0


def test_the_dispatch_changes_the_schedule_and_not_the_order():
    """One server each: every rule gives the same schedule. Two: not."""
    flows = random_flows(random.Random(6), CLUSTERS["lone"], 8, False)
    lone = [simulate(CLUSTERS["lone"].build(flows), "edf", dispatch=rule).makespan_s for rule in DISPATCH_RULES]
    assert len(set(lone)) == 1
    mixed = [simulate(MIXED.build(flows), "edf", dispatch=rule).makespan_s for rule in DISPATCH_RULES]
    assert len(set(mixed)) > 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("edf", {"alpha": 0.0}),
        ("fastserve", {"first_queue_s": 0.0}),
        ("fastserve", {"queues": 0}),
        ("fastserve", {"promote_after_s": -1.0}),
        ("hermes", {"shortest_s": 0.0}),
        ("hermes", {"shortest_s": 9.0, "longest_s": 8.0}),
        ("hermes", {"longest_s": float("inf")}),
        ("hermes", {"buckets": 1}),
        ("hermes", {"prior_workflows": 0.0}),
        ("kairos", {"prior_remaining_s": -1.0}),
        ("kairos", {"prior_calls": 0.0}),
        ("ltr", {"promote_after_s": float("nan")}),
        ("qlm", {"alpha": -1.0}),
        ("ssjf", {"ageing": -0.1}),
        *((name, {"dispatch": "nearest"}) for name in RIVALS),
    ],
)
def test_parameters_are_checked(name, options):
    """The message names the policy."""
    with pytest.raises(InputError, match=name):
        create(name, **options)
