"""Workflow-level FCFS."""

from builders import Hardware, Job, Watched, build, chain

from workbench import simulate


def test_calls_of_older_workflows_go_first():
    """w0's child, revealed at 5 s, passes w2, which came at 3 s: the order differs from per-call FCFS."""
    flows = [(0, chain(Job(1, 4), Job(1, 1))), (2, [Job(5, 1)]), (3, [Job(2, 1)])]
    schedule = simulate(build(flows), "workflow-fcfs")
    assert schedule.prefill_start_s.tolist() == [0, 7, 2, 8]


def test_the_rank_is_the_arrival():
    """Also for calls revealed later."""
    watched = Watched("workflow-fcfs")
    simulate(build([(0.5, chain(Job(1, 4), Job(1, 1))), (2, [Job()])]), watched)
    assert watched.ranks() == {(0, 0): [0.5], (1, 0): [2], (0, 1): [0.5]}


def test_dispatch_is_to_the_fewest_outstanding_tokens():
    """Prompts of 9, 2 and 3 tokens: the first goes to instance 0, the others to 1."""
    two = Hardware((0, 0), (0,), (100,))
    schedule = simulate(two.build([(0, [Job(prompt=9), Job(prompt=2), Job(prompt=3)])]), "workflow-fcfs")
    assert schedule.prefill_instance.tolist() == [0, 1, 1]
