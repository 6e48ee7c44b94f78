"""ATLAS: attained service along the critical path, in queues."""

import pytest
from builders import Job, Watched, build, chain

from workbench import InputError, simulate


def queues(flows, spec):
    """Return the queue that each call was first given."""
    watched = Watched(spec)
    simulate(build(flows), watched)
    return {name: ranks[0][0] for name, ranks in watched.ranks().items()}


def test_attained_service_grows_along_a_chain_and_bounds_double():
    """2 s a call: attained 0, 2, 4, 6, 8 s with a first queue of 1 s are queues 0, 1, 2, 3, 3."""
    flows = [(0, chain(*[Job(1, 1)] * 5))]
    assert list(queues(flows, "atlas").values()) == [0, 1, 2, 3, 3]
    assert list(queues(flows, "atlas:first_queue_s=2").values()) == [0, 0, 1, 2, 2]
    assert list(queues(flows, "atlas:first_queue_s=1.9").values()) == [0, 1, 2, 2, 3]


def test_the_last_queue_takes_the_rest():
    """With three queues nothing goes beyond the third, with one everything is in the first."""
    flows = [(0, chain(*[Job(1, 1)] * 6))]
    assert list(queues(flows, "atlas:queues=3").values()) == [0, 1, 2, 2, 2, 2]
    assert list(queues(flows, "atlas:queues=1").values()) == [0] * 6


def test_a_join_takes_the_longest_of_its_parents():
    """Parents a (2 s), a -> b (2 + 7 s) and c (2 s): the join has attained 9 s, neither 13 s nor the last one's 2 s."""
    jobs = [Job(1, 1), Job(1, 6, parents={0: 0.0}), Job(1, 1), Job(1, 1, parents={0: 0.0, 1: 0.0, 2: 0.0})]
    assert queues([(0, jobs)], "atlas:first_queue_s=9")[0, 3] == 0
    assert queues([(0, jobs)], "atlas:first_queue_s=8.99")[0, 3] == 1
    assert queues([(0, jobs)], "atlas:first_queue_s=0.5")[0, 1] == 2


def test_service_is_prefill_and_decode_without_waiting_and_transfer():
    """A parent of 1 s prefill, 5 s transfer, 2 s decode that waited 3 s passes on 3 s."""
    flows = [(0, [Job(3, 1)]), (0, chain(Job(1, 2, transfer=5.0), Job(1, 1)))]
    assert queues(flows, "atlas:first_queue_s=3")[1, 1] == 0
    assert queues(flows, "atlas:first_queue_s=2.999")[1, 1] == 1


def test_less_attained_service_goes_first_and_fcfs_inside_a_queue():
    """At 9 s the server frees: roots of 7 and 8 s go by reveal, before the child of 2 s."""
    flows = [(0, chain(Job(1, 1), Job(1, 1))), (1, [Job(8, 1)]), (7, [Job(1, 1)]), (8, [Job(1, 1)])]
    schedule = simulate(build(flows), "atlas:beta=1000")
    assert schedule.reveal_s.tolist() == [0, 2, 1, 7, 8]
    assert schedule.prefill_start_s.tolist() == [0, 11, 1, 9, 10]


@pytest.mark.parametrize(("beta", "start"), [(3.4, 9), (3.6, 11)])
def test_a_starving_workflow_is_promoted(beta, start):
    """At 9 s, the last arrival, w0 has had 2 s of service and waited 7 s: beta 3.4 promotes its child, 3.6 does not."""
    flows = [(0, chain(Job(1, 1), Job(1, 1))), (1, [Job(8, 1)]), (7, [Job(1, 1)]), (9, [Job(1, 1)])]
    schedule = simulate(build(flows), f"atlas:beta={beta}")
    assert schedule.prefill_start_s[1] == start


def test_a_promoted_call_is_ranked_by_its_reveal_in_the_first_queue():
    """The child of 2 s is first given queue 1, then (0, 2 s), once."""
    flows = [(0, chain(Job(1, 1), Job(1, 1))), (1, [Job(8, 1)]), (7, [Job(1, 1)]), (8, [Job()]), (9, [Job(1, 1)])]
    watched = Watched("atlas:beta=2")
    simulate(build(flows), watched)
    assert watched.ranks()[0, 1] == [(1, 2.0), (0, 2.0)]


def test_a_workflow_without_service_does_not_starve():
    """Roots are in the first queue from the start and are never planned twice."""
    watched = Watched("atlas:beta=0.1")
    simulate(build([(0, [Job(9, 1)]), (0, [Job(1, 1)]), (5, [Job(1, 1)])]), watched)
    assert watched.ranks() == {(0, 0): [(0, 0.0)], (1, 0): [(0, 0.0)], (2, 0): [(0, 5.0)]}


@pytest.mark.parametrize("options", [{"first_queue_s": 0.0}, {"queues": 0}, {"beta": 0.0}])
def test_parameters_are_checked(options):
    """Nothing that makes no queues is accepted."""
    with pytest.raises(InputError, match="atlas"):
        simulate(build([(0, [Job()])]), "atlas", **options)
