"""The runtime's rules, each on an instance small enough to follow by hand."""

import pytest
from builders import Hardware, Job, Scripted, Watched, build, chain

from workbench import Call, Instance, Workflow, simulate
from workbench.policies import Assignment, Policy, Stage
from workbench.policies.fcfs import Fcfs
from workbench.view import Phase


def starts(schedule):
    """Return prefill and decode starts as lists."""
    return schedule.prefill_start_s.tolist(), schedule.decode_start_s.tolist()


# Order of events at one instant


def test_plans_come_after_completions_transfers_and_reveals_and_before_admissions():
    """At 2 s a decode ends, a transfer ends and a child is revealed; both plans see all of it, and nothing started."""
    # w0: a [0, 1] [1, 2] -> b; w1: c [1, 2], instant transfer. The KV holds one of them.
    seen = {}

    def watch(view, stage, plan):
        if view.now == 2:
            seen[stage] = {(view.workflow[c], view.index[c]): view.phase[c] for c in range(len(view.phase))}

    flows = [(0, chain(Job(1, 1), Job(1, 1))), (0, [Job(1, 1)])]
    both = Scripted(stages=(Stage.PREFILL, Stage.DECODE))
    schedule = simulate(build(flows, capacity=2), Watched(both, watch))
    expected = {(0, 0): Phase.COMPLETE, (0, 1): Phase.WAIT_PREFILL, (1, 0): Phase.WAIT_DECODE}
    assert seen == {Stage.PREFILL: expected, Stage.DECODE: expected}
    assert list(seen) == [Stage.PREFILL, Stage.DECODE]
    assert starts(schedule) == ([0, 2, 1], [1, 3, 2])


def test_a_prefill_that_ends_frees_its_instance_at_that_instant():
    """A call that arrives when another's prefill ends does not wait."""
    schedule = simulate(build([(0, [Job(1, 5)]), (1, [Job(1, 5)])]), "fcfs")
    assert schedule.prefill_start_s.tolist() == [0, 1]


def test_a_decode_that_ends_frees_its_tokens_at_that_instant():
    """Two calls of the whole capacity decode back to back: [1, 3] and [3, 5]."""
    schedule = simulate(build([(0, [Job(1, 2)]), (0, [Job(1, 2)])], capacity=2), "fcfs")
    assert schedule.decode_start_s.tolist() == [1, 3]


def test_an_arrival_and_a_reveal_at_one_instant_compete_by_rank():
    """At 2 s a call arrives and a child of better rank is revealed: the child goes first."""
    flows = [(2, [Job(1, 1)]), (0, chain(Job(1, 1), Job(1, 1)))]
    schedule = simulate(build(flows), Scripted(rank=lambda w, c: -c))
    assert schedule.prefill_start_s.tolist() == [3, 0, 2]


def test_reveals_at_one_instant_go_by_workflow_and_call_whatever_their_cause():
    """At 2 s w0's child is revealed by a completion, w1 arrives and w2's child's tool delay ends: in this order."""
    flows = [(0, chain(Job(1, 1), Job())), (2, [Job()]), (0, chain(Job(0.5, 0.25), Job(), delay=1.25))]
    two = Hardware((0, 0), (0,), (100,))
    watched = Watched(Scripted(place=lambda w, c: (int(w == 2), 0)))
    assert simulate(two.build(flows), watched).reveal_s.tolist() == [0, 2, 2, 0, 2]
    now, _, plan = watched.plans[-1]
    assert now == 2
    assert [name for name, *_ in plan] == [(0, 1), (1, 0), (2, 1)]


# Reveals


def test_a_child_without_tool_delay_is_revealed_when_its_parent_ends():
    """It starts at that instant on an idle instance."""
    schedule = simulate(build([(0, chain(Job(1, 2), Job(1, 2)))]), "fcfs")
    assert schedule.reveal_s.tolist() == [0, 3]
    assert starts(schedule) == ([0, 3], [1, 4])


def test_a_call_is_revealed_when_the_last_tool_delay_has_passed():
    """Parents end at 2 s and 4 s with tool delays of 7 s and 1 s: revealed at 9 s."""
    jobs = [Job(1, 1), Job(1, 2), Job(1, 1, parents={0: 7.0, 1: 1.0})]
    schedule = simulate(build([(0, jobs)]), "fcfs")
    assert schedule.decode_end_s.tolist() == [2, 4, 11]
    assert schedule.reveal_s.tolist() == [0, 0, 9]


def test_only_source_calls_are_revealed_at_arrival():
    """The first plan holds the sources alone."""
    watched = Watched("fcfs")
    simulate(build([(1, [Job(), Job(parents={0: 0.0}), Job()])]), watched)
    now, _, plan = watched.plans[0]
    assert now == 1
    assert [name for name, *_ in plan] == [(0, 0), (0, 2)]


# Queues


def test_equal_ranks_go_by_workflow_and_call_and_not_by_reveal():
    """Among calls of one rank that wait, w0's later reveal passes w1's and w2's earlier ones."""
    # The server is busy until 4 s with w3; w2, w1, w0 arrive at 1, 2, 3 s.
    flows = [(3, [Job(), Job()]), (2, [Job()]), (1, [Job()]), (0, [Job(4)])]
    schedule = simulate(build(flows), Scripted())
    assert schedule.prefill_start_s.tolist() == [4, 5, 6, 7, 0]


def test_prefill_takes_the_best_rank_first_and_never_pre_empts():
    """A call of the best rank that arrives during a prefill waits for its end, then passes the one in the queue."""
    flows = [(0, [Job(5)]), (1, [Job(1)]), (2, [Job(1)])]
    schedule = simulate(build(flows), Scripted(rank=lambda w, c: -w))
    assert schedule.prefill_start_s.tolist() == [0, 6, 5]


def test_decode_admission_stops_at_the_first_call_that_does_not_fit():
    """Capacity 10: 6 tokens run until 11 s; a call of 8 waits for them, and one of 2 behind it waits too."""
    flows = [(0, [Job(1, 10, prompt=5)]), (0, [Job(1, 10, prompt=7)]), (0, [Job(1, 1)])]
    schedule = simulate(build(flows, capacity=10), "fcfs")
    assert schedule.transfer_end_s.tolist() == [1, 2, 3]
    assert schedule.decode_start_s.tolist() == [1, 11, 11]


def test_decode_admits_a_small_call_of_better_rank_before_a_large_one():
    """The same with the small call ranked first: it starts as soon as it is there."""
    flows = [(0, [Job(1, 10, prompt=5)]), (0, [Job(1, 10, prompt=7)]), (0, [Job(1, 1)])]
    schedule = simulate(build(flows, capacity=10), Scripted(rank=lambda w, c: (0, 2, 1)[w]))
    assert schedule.transfer_end_s.tolist() == [1, 3, 2]
    assert schedule.decode_start_s.tolist() == [1, 11, 2]


def test_a_call_in_transfer_does_not_hold_up_decode():
    """A better rank counts once its transfer is complete: the second call overtakes the first on the way."""
    flows = [(0, [Job(1, 3, transfer=5.0)]), (0, [Job(1, 3)])]
    schedule = simulate(build(flows, capacity=2), "fcfs")
    assert schedule.decode_start_s.tolist() == [6, 2]


def test_transfers_do_not_contend():
    """Two transfers of 4 s overlap."""
    schedule = simulate(build([(0, [Job(1, 1, 4.0)]), (0, [Job(1, 1, 4.0)])]), "fcfs")
    assert schedule.transfer_end_s.tolist() == [5, 6]


def test_times_follow_the_classes_of_the_instances():
    """Prefill on class 1 takes 3 s, transfer to class 1 takes 0.5 s, decode there 7 s."""
    job = Job(prefill=(2, 3), decode=(5, 7), transfer=((0.1, 0.2), (0.3, 0.5)))
    two = Hardware((0, 1), (0, 1), (10, 10))
    schedule = simulate(two.build([(0, [job])]), Scripted(place=lambda w, c: (1, 1)))
    assert (schedule.prefill_end_s[0], schedule.transfer_end_s[0], schedule.decode_end_s[0]) == (3, 3.5, 10.5)


# Moves and locks


class Mover(Policy):
    """Sends every waiting call to the pair that is given for the time of the plan."""

    name = "mover"

    def __init__(self, pairs):
        self.pairs = pairs

    def plan(self, view, stage):
        """Plan all waiting calls."""
        return [Assignment(call, 0, *self.pairs[view.now]) for call in view.waiting_prefill]


def test_a_waiting_call_can_be_moved_until_its_prefill_starts():
    """w0 starts on (0, 0) and stays; w1 waits behind it and is moved at 1 s to (1, 1), where it starts at once."""
    two = Hardware((0, 0), (0, 0), (10, 10))
    instance = two.build([(0, [Job(5)]), (0, [Job(1)]), (1, [Job(1)])])
    schedule = simulate(instance, Mover({0.0: (0, 0), 1.0: (1, 1)}))
    assert schedule.prefill_instance.tolist() == [0, 1, 1]
    assert schedule.locked_decode.tolist() == schedule.decode_instance.tolist() == [0, 1, 1]
    assert schedule.prefill_start_s.tolist() == [0, 1, 2]


def test_a_call_leaves_its_old_queue_when_it_is_moved():
    """w1 moves away from instance 0 and back: it is served once, there."""
    two = Hardware((0, 0), (0, 0), (10, 10))
    instance = two.build([(0, [Job(5)]), (0, [Job(1)]), (1, [Job(9)]), (2, [Job(1)])])
    moves = {0.0: (0, 0), 1.0: (1, 1), 2.0: (0, 0)}

    class Once(Mover):
        def plan(self, view, stage):
            keep = {2: {1, 3}, 1: {2}}.get(view.now, set(view.workflow))
            return [a for a in super().plan(view, stage) if view.workflow[a.call] in keep]

    schedule = simulate(instance, Once(moves))
    assert schedule.prefill_instance.tolist() == [0, 0, 1, 0]
    assert schedule.prefill_start_s.tolist() == [0, 5, 1, 6]


def test_a_waiting_call_keeps_its_place_when_a_plan_leaves_it_out():
    """A plan for the newcomer alone changes nothing for the others."""

    class Newcomers(Policy):
        name = "newcomers"

        def plan(self, view, stage):
            for call in view.waiting_prefill:
                if view.prefill_instance[call] < 0:
                    yield Assignment(call, -view.workflow[call], 0, 0)

    schedule = simulate(build([(0, [Job(4)]), (1, [Job()]), (2, [Job()]), (3, [Job()])]), Newcomers())
    assert schedule.prefill_start_s.tolist() == [0, 6, 5, 4]


def test_a_decode_plan_reorders_a_locked_queue():
    """Ranks of the decode stage replace those of prefill: w2 decodes before w1 after all."""

    class Reverses(Scripted):
        def plan(self, view, stage):
            for a in super().plan(view, stage):
                yield a._replace(rank=view.workflow[a.call] * (1 if stage is Stage.PREFILL else -1))

    flows = [(0, [Job(1, 5)]), (0, [Job(1, 1)]), (0, [Job(1, 1)])]
    schedule = simulate(build(flows, capacity=2), Reverses(stages=tuple(Stage)))
    assert starts(schedule) == ([0, 1, 2], [1, 7, 6])


def test_a_call_larger_than_predicted_goes_where_it_fits_with_fewest_tokens():
    """Planned for 3 tokens on instance 0, it needs 8: that one refuses it, and of 1 and 2 the emptier takes it."""
    three = Hardware((0,), (0, 0, 0), (5, 10, 10))
    large = Job(1, 1, prompt=2, output=6, predicted_output=1)
    flows = [(0, [Job(1, 9, prompt=3)]), (0, [large])]
    schedule = simulate(three.build(flows), Scripted(place=lambda w, c: (0, 1 if w == 0 else 0)))
    assert schedule.decode_instance.tolist() == schedule.locked_decode.tolist() == [1, 2]


def test_a_call_larger_than_predicted_stays_where_it_fits():
    """Its planned instance holds it: nothing changes."""
    two = Hardware((0,), (0, 0), (10, 10))
    large = Job(1, 1, prompt=2, output=6, predicted_output=1)
    schedule = simulate(two.build([(0, [large])]), Scripted(place=lambda w, c: (0, 1)))
    assert schedule.decode_instance.tolist() == [1]


def test_admission_goes_by_true_demand():
    """Two calls predicted at 3 tokens need 6 each of 10: they decode one after the other."""
    large = Job(1, 4, prompt=2, output=4, predicted_output=1)
    schedule = simulate(build([(0, [large]), (0, [large])], capacity=10), "fcfs")
    assert schedule.decode_start_s.tolist() == [1, 5]


def test_true_times_run_whatever_is_predicted():
    """A decode predicted at 1 s that takes 4 s takes 4 s."""
    schedule = simulate(build([(0, [Job(1, 4, predicted_decode=1.0)])]), "hexagent")
    assert schedule.decode_end_s.tolist() == [5]


# Planner invocations


@pytest.mark.parametrize(
    ("spec", "flows", "expected"),
    [
        ("fcfs", [(0, chain(Job(), Job(), Job()))], 3),
        ("hexagent", [(0, chain(Job(), Job(), Job()))], 6),
        ("llf", [(0, chain(Job(), Job()))], 4),
        ("fcfs", [(0, [Job()]), (0, [Job()]), (1, [Job()])], 2),
        ("hexagent", [(0, [Job()]), (0, [Job()])], 3),
        # Two reveals and three transfers; the arrival at 5 s asks for no decode plan, though a call waits there.
        ("hexagent", [(0, [Job(1, 9, prompt=500_000)]), (0, [Job(1, 9, prompt=500_000)]), (5, [Job()])], 5),
    ],
)
def test_planner_invocations(spec, flows, expected):
    """One prefill plan for each instant with reveals, one decode plan for each with transfers that complete."""
    schedule = simulate(build(flows), spec)
    assert schedule.planner.invocations == expected
    assert schedule.planner.seconds > 0


# The contract


class Breaks(Policy):
    """Returns assignments made by a function of the view, after a proper plan for the stage."""

    name = "breaks"
    stages = tuple(Stage)

    def __init__(self, assignments):
        self.assignments = assignments

    def plan(self, view, stage):
        """Return what was asked for."""
        return self.assignments(view, stage)


def proper(view):
    """Return assignments for all that wait for prefill."""
    return [Assignment(call, 0, 0, 0) for call in view.waiting_prefill]


def moves_locked(view, stage):
    """Move a call at its decode stage."""
    return proper(view) if stage is Stage.PREFILL else [Assignment(0, 0, 0, 1)]


def plans_started(view, stage):
    """Plan again a call whose prefill has started."""
    return [*proper(view), *([Assignment(0, 0, 1, 1)] if view.now == 1 else [])] if stage is Stage.PREFILL else []


CONTRACT = {
    "leaves calls out": (
        lambda view, stage: proper(view)[:1] if stage is Stage.PREFILL else [],
        "left 1 revealed calls without an assignment",
    ),
    "plans nothing": (lambda view, stage: [], "left 2 revealed calls without an assignment"),
    "plans a started call": (plans_started, "planned call 0, which does not wait for prefill"),
    "plans a call twice, the second time for decode": (
        lambda view, stage: [Assignment(0, 0, 0, 0)] if stage is Stage.PREFILL else [Assignment(1, 0, 0, 0)],
        "planned call 1, which does not wait for decode",
    ),
    "plans an unknown call": (lambda view, stage: [Assignment(9, 0, 0, 0)], "planned call 9"),
    "plans a negative call": (lambda view, stage: [Assignment(-1, 0, 0, 0)], "planned call -1"),
    "moves a locked call": (moves_locked, "moves call 0 to decode instance 1; it is locked to 0"),
    "names no prefill instance": (lambda view, stage: [Assignment(0, 0, 2, 0)], r"sends call 0 to instances \(2, 0\)"),
    "names no decode instance": (lambda view, stage: [Assignment(0, 0, 0, 2)], r"sends call 0 to instances \(0, 2\)"),
    "leaves prefill open": (lambda view, stage: [Assignment(0, 0, -1, 0)], r"sends call 0 to instances \(-1, 0\)"),
    "leaves decode open": (lambda view, stage: [Assignment(0, 0, 0, -1)], r"sends call 0 to instances \(0, -1\)"),
}


@pytest.mark.parametrize("breach", CONTRACT)
def test_a_policy_that_breaks_the_contract_is_named(breach):
    """The error says which policy did what to which call."""
    assignments, message = CONTRACT[breach]
    two = Hardware((0, 0), (0, 0), (10, 10))
    later = [(1, [Job()])] if breach == "plans a started call" else []
    with pytest.raises(ValueError, match=f"policy 'breaks' {message}"):
        simulate(two.build([(0, [Job(5), Job(5)]), *later]), Breaks(assignments))


# What simulate takes and returns


def test_simulate_takes_a_name_a_class_or_a_policy():
    """All three run the same policy; options go with name and class."""
    instance = build([(0, [Job(), Job()])])
    for policy in ("fcfs", Fcfs, Fcfs()):
        assert simulate(instance, policy).prefill_start_s.tolist() == [0, 1]
    assert simulate(instance, Fcfs, dispatch="random").label == "fcfs:dispatch=random"
    assert simulate(instance, "fcfs:dispatch=random").label == "fcfs:dispatch=random"


def test_simulate_compiles_an_instance():
    """A declarative instance and its compiled form give the same schedule."""
    instance = Instance([Workflow("w", (Call("a", 500, 20),))], cluster="hetero-1", model="llama3.1-70b")
    schedule = simulate(instance, "hexagent", seed=7)
    assert schedule.instance is instance.compile()
    assert schedule.makespan_s == simulate(instance.compile(), "hexagent").makespan_s
    assert schedule.settings["seed"] == 7
    assert schedule.settings["decode"] == "interval"


def test_the_instance_is_not_changed():
    """Its arrays cannot be written, and a run leaves them as they were."""
    instance = build([(0, chain(Job(), Job()))])
    before = [value.copy() for value in (instance.prefill_s, instance.capacity_tokens, instance.arrival_s)]
    simulate(instance, "hexagent")
    after = [instance.prefill_s, instance.capacity_tokens, instance.arrival_s]
    assert all((a == b).all() and not b.flags.writeable for a, b in zip(before, after, strict=True))
