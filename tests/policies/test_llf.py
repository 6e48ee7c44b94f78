"""Least laxity first."""

import pytest
from builders import MIXED, Job, Watched, build, chain

from workbench import InputError, simulate


def test_the_rank_is_the_laxity():
    """Before service the laxity (plus t) is a_w + alpha H_w - H_w: 0 + 2*10 - 10 = 10 and 1 + 2*2 - 2 = 3."""
    watched = Watched("llf")
    simulate(build([(0, [Job(1, 9)]), (1, [Job(1, 1)])]), watched)
    assert watched.ranks() == {(0, 0): [10], (1, 0): [3]}


def test_the_horizon_grows_with_what_is_revealed():
    """A chain of 2 s and 4 s with a tool delay of 3 s: 0 + 2*2 - 2 = 2, then 0 + 2*(2 + 3 + 4) - 4 = 14."""
    watched = Watched("llf")
    simulate(build([(0, chain(Job(1, 1), Job(1, 3), delay=3.0))]), watched)
    assert watched.ranks() == {(0, 0): [2], (0, 1): [14]}


@pytest.mark.parametrize(("alpha", "order"), [(1.0, [5, 9]), (4.0, [6, 5])])
def test_the_order_follows_alpha(alpha, order):
    """H = 10 at 0 s and H = 2 at 1 s wait until 5 s: ranks 0 and 1 with alpha 1, ranks 30 and 7 with alpha 4."""
    flows = [(0, [Job(5, 5)]), (0.5, [Job(4, 6)]), (1, [Job(1, 1)])]
    schedule = simulate(build(flows), f"llf:alpha={alpha}")
    assert schedule.prefill_start_s.tolist() == [0, *order]


def test_the_remaining_path_is_that_of_the_longest_open_call():
    """Two roots of 2 s and 9 s on one server: H = 10 by the greedy schedule, remaining 9: both rank 2*10 - 9."""
    watched = Watched("llf")
    simulate(build([(0, [Job(1, 1), Job(1, 8)])]), watched)
    assert watched.ranks() == {(0, 0): [11], (0, 1): [11]}


def test_queued_calls_are_ranked_anew_when_their_workflow_reveals_calls():
    """While w1 prefills, w0's c waits with 2 * 6 - 5; b, revealed at 2 s, makes that 2 * 23 - 21. w2 keeps its rank."""
    # w0 alone: a ends at 2 s, c (prefill [1, 2]) at 6 s; then b prefills [2, 3] and ends at 23 s.
    flows = [
        (0, [Job(1, 1), Job(1, 4), Job(1, 20, parents={0: 0.0})]),
        (0.5, [Job(3, 1)]),
        (1, [Job(1, 100)]),
    ]
    watched = Watched("llf")
    schedule = simulate(build(flows), watched)
    assert schedule.reveal_s[2] == 2
    assert watched.ranks() == {(0, 0): [7], (0, 1): [7, 25], (0, 2): [25], (1, 0): [4.5], (2, 0): [102]}
    assert schedule.prefill_start_s.tolist() == [0, 4, 5, 1, 6]


def test_decode_is_ranked_by_the_laxity_at_that_time():
    """At the decode stage every call that waits there gets a rank: a_w + alpha H - its remaining decode."""
    seen = []

    def watch(view, stage, plan):
        if stage == "decode":
            seen.append((view.now, [a.rank for a in plan]))

    flows = [(0, [Job(1, 5)]), (0, [Job(1, 3)]), (0, [Job(1, 1)])]
    schedule = simulate(build(flows, capacity=2), Watched("llf", watch))
    # Prefill order by rank H: w2 (2), w1 (4), w0 (6). Decode: w2 at 1 s; w1 is ready at 2 s with 2*4 - 3 = 5.
    assert seen == [(1, [2 * 2 - 1]), (2, [2 * 4 - 3]), (3, [2 * 6 - 5])]
    assert schedule.decode_start_s.tolist() == [5, 2, 1]


def test_remaining_service_uses_the_best_pair_that_fits():
    """A call that only the slow class can hold remains with that class's time."""
    job = Job(prefill=(1, 2), decode=(1, 3), prompt=15, output=1)
    watched = Watched("llf")
    instance = MIXED.build([(0, [job])])
    assert instance.capacity_tokens.tolist() == [24, 20, 14]
    simulate(instance, watched)
    assert watched.ranks() == {(0, 0): [2 * 2 - 2]}
    slow = Job(prefill=(1, 2), decode=(1, 3), prompt=21, output=1)
    watched = Watched("llf")
    small = build([(0, [slow])], (0, 1), (0, 1), (5, 30))
    simulate(small, watched)
    assert watched.ranks() == {(0, 0): [2 * 4 - 4]}


@pytest.mark.parametrize("alpha", [0.0, -1.0, float("nan")])
def test_alpha_must_be_positive(alpha):
    """A scale of 0 or less, or none at all, is refused."""
    with pytest.raises(InputError, match="alpha must be above 0"):
        simulate(build([(0, [Job()])]), "llf", alpha=alpha)
