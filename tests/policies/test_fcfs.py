"""Per-call FCFS."""

from builders import Job, Watched, build, chain

from workbench import simulate


def test_calls_are_served_in_order_of_reveal():
    """w0's child, revealed at 5 s, waits behind w2, which came at 3 s, though w0 is the oldest workflow."""
    flows = [(0, chain(Job(1, 4), Job(1, 1))), (2, [Job(5, 1)]), (3, [Job(2, 1)])]
    schedule = simulate(build(flows), "fcfs")
    assert schedule.reveal_s.tolist() == [0, 5, 2, 3]
    assert schedule.prefill_start_s.tolist() == [0, 9, 2, 7]


def test_the_rank_is_the_reveal_time():
    """Each call is planned once, with the time of its reveal."""
    watched = Watched("fcfs")
    simulate(build([(0.5, chain(Job(1, 4), Job(1, 1), delay=0.25)), (2, [Job()])]), watched)
    assert watched.ranks() == {(0, 0): [0.5], (1, 0): [2], (0, 1): [5.75]}


def test_decode_is_in_order_of_reveal():
    """With room for one, the call that came first decodes first, though the other was ready before it."""
    flows = [(0, [Job(1, 9)]), (0.5, [Job(1, 1, transfer=3.0)]), (0.75, [Job(1, 1)])]
    schedule = simulate(build(flows, capacity=2), "fcfs")
    assert schedule.transfer_end_s.tolist() == [1, 5, 3]
    assert schedule.decode_start_s.tolist() == [1, 10, 11]
