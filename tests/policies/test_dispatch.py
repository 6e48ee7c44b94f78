"""Each dispatch rule, on loads set by hand."""

import random

import numpy as np
import pytest
from builders import Hardware, Job, reveal

from workbench import InputError, simulate
from workbench.policies import create
from workbench.policies.dispatch import DISPATCH_RULES, Dispatcher
from workbench.view import View


def state(prefill: int = 3, capacity=(100, 100, 100)):
    """Return a view of idle instances."""
    zeros = np.zeros(prefill, dtype=np.int64)
    return View(zeros, np.zeros(len(capacity), dtype=np.int64), np.array(capacity))


def started(rule, view, seed=0):
    """Return a dispatcher of a run that is about to plan."""
    dispatcher = Dispatcher(rule)
    dispatcher.begin(view, random.Random(seed))
    dispatcher.refresh(view)
    return dispatcher


def calls(view, *jobs, parents=()):
    """Reveal calls and return their handles."""
    return [reveal(view, 0, len(view.workflow), job, parents) for job in jobs]


def test_least_loaded_takes_the_fewest_outstanding_tokens_of_each_pool():
    """Prefill counts prompt tokens, decode counts whole demands, and the pools are apart."""
    view = state()
    view.prefill_tokens, view.decode_tokens = [7, 3, 5], [9, 9, 4]
    assert started("least_loaded", view).choose(view, *calls(view, Job())) == (1, 2)


def test_calls_of_one_plan_count():
    """Prompts of 4, 1 and 2 with outputs of 1: prefill 0, 1, 1, and decode likewise."""
    view = state(2, (100, 100))
    dispatcher = started("least_loaded", view)
    handles = calls(view, Job(prompt=4), Job(prompt=1), Job(prompt=2))
    assert [dispatcher.choose(view, call) for call in handles] == [(0, 0), (1, 1), (1, 1)]


def test_a_new_plan_starts_from_the_loads_of_the_view():
    """What an earlier plan counted is dropped for what the runtime says."""
    view = state(2, (100, 100))
    dispatcher = started("least_loaded", view)
    first, second = calls(view, Job(prompt=50), Job())
    assert dispatcher.choose(view, first) == (0, 0)
    view.prefill_tokens, view.decode_tokens = [0, 8], [0, 8]
    dispatcher.refresh(view)
    assert dispatcher.choose(view, second) == (0, 0)


def test_equal_loads_go_to_whom_fewest_calls_were_sent():
    """With no tokens outstanding the instances take turns instead of leaving it all to the first."""
    view = state()
    dispatcher = started("least_loaded", view)
    chosen = []
    for call in calls(view, *[Job()] * 5):
        dispatcher.refresh(view)
        chosen.append(dispatcher.choose(view, call)[0])
    assert chosen == [0, 1, 2, 0, 1]


def test_round_robin_takes_turns_in_each_pool():
    """Whatever the loads: 0, 1, 2, 0 among three, 0, 1, 0, 1 among two."""
    view = state(3, (100, 100))
    view.prefill_tokens = [99, 0, 0]
    dispatcher = started("round_robin", view)
    assert [dispatcher.choose(view, call) for call in calls(view, *[Job()] * 4)] == [(0, 0), (1, 1), (2, 0), (0, 1)]


def test_random_is_uniform():
    """Of 6,000 draws among three, each instance gets 2,000, give or take five standard deviations."""
    view = state()
    dispatcher = started("random", view)
    (call,) = calls(view, Job())
    chosen = np.array([dispatcher.choose(view, call) for _ in range(6000)])
    for pool in (0, 1):
        assert np.bincount(chosen[:, pool]) == pytest.approx(2000, abs=5 * np.sqrt(6000 * 2 / 9))


def test_power_of_two_takes_the_emptier_of_two_drawn():
    """With loads 1 < 2 < 3 < 4, of six pairs three hold the emptiest, two the next, one the third, none the last."""
    view = state(4, (100,) * 4)
    view.prefill_tokens, view.decode_tokens = [40, 30, 10, 20], [400, 300, 100, 200]
    dispatcher = started("power_of_two", view)
    (call,) = calls(view, Job())
    chosen = []
    for _ in range(6000):
        dispatcher.refresh(view)
        chosen.append(dispatcher.choose(view, call))
    for pool in (0, 1):
        found = np.bincount([c[pool] for c in chosen], minlength=4)
        assert found == pytest.approx([0, 1000, 3000, 2000], abs=200)
        assert found[0] == 0


def test_power_of_two_draws_two_different_instances():
    """Among two it always takes the emptier."""
    view = state(2, (100, 100))
    view.prefill_tokens, view.decode_tokens = [5, 900], [900, 5]
    dispatcher = started("power_of_two", view)
    for call in calls(view, *[Job()] * 20):
        dispatcher.refresh(view)
        assert dispatcher.choose(view, call) == (0, 1)


def family(rule, prompt=3000, calls_by_instance=None):
    """Return where a child goes whose first parent used prefill 2 and decode 1, and whose second used 1 and 2."""
    view = state(3, (9000,) * 3)
    one, two = calls(view, Job(), Job())
    view.prefill_instance[one], view.decode_instance[one] = 2, 1
    view.prefill_instance[two], view.decode_instance[two] = 1, 2
    view.prefill_tokens, view.decode_tokens = [0, 5, 9], [0, 9, 5]
    if calls_by_instance:
        view.prefill_calls, view.decode_calls = list(calls_by_instance), list(calls_by_instance)
    (child,) = calls(view, Job(prompt=prompt), parents=[(one, 0.0), (two, 0.0)])
    return started(rule, view).choose(view, child)


def test_cache_aware_follows_the_first_parent():
    """Though others are emptier."""
    assert family("cache_aware") == (2, 1)
    assert family("cache_aware", prompt=1) == (2, 1)


@pytest.mark.parametrize(
    ("loads", "chosen"),
    [
        ((0, 0, 32), (2, 1)),  # 32 more is balanced
        ((0, 0, 33), (0, 0)),  # 33 more is not
        ((470, 470, 517), (2, 1)),  # more than 32, but only 1.1 times
        ((470, 470, 518), (0, 0)),
    ],
)
def test_cache_aware_leaves_the_parent_when_calls_are_out_of_balance(loads, chosen):
    """Then the instance with the fewest tokens takes the call."""
    assert family("cache_aware", calls_by_instance=loads) == chosen


def test_cache_aware_balances_those_that_hold_the_call():
    """An instance too small for the call may be as busy as it likes."""
    view = state(1, (100, 100, 5))
    (parent,) = calls(view, Job())
    view.prefill_instance[parent], view.decode_instance[parent] = 0, 1
    view.decode_calls, view.decode_tokens = [0, 1, 99], [0, 7, 99]
    (child,) = calls(view, Job(prompt=50), parents=[(parent, 0.0)])
    assert started("cache_aware", view).choose(view, child) == (0, 1)


def test_cache_aware_sends_roots_to_the_least_loaded():
    """A call without parents has no home."""
    view = state()
    view.prefill_tokens, view.decode_tokens = [7, 3, 5], [9, 9, 4]
    assert started("cache_aware", view).choose(view, *calls(view, Job())) == (1, 2)


def test_pinned_keeps_long_calls_at_home():
    """Prompts above 2,048 tokens follow the first parent, others go to the least loaded; roots too."""
    assert family("pinned", prompt=2049) == (2, 1)
    assert family("pinned", prompt=2048) == (0, 0)
    view = state(3, (9000,) * 3)
    view.prefill_tokens, view.decode_tokens = [7, 3, 5], [9, 9, 4]
    assert started("pinned", view).choose(view, *calls(view, Job(prompt=5000))) == (1, 2)


@pytest.mark.parametrize("rule", DISPATCH_RULES)
def test_only_decode_instances_that_hold_the_call_are_chosen(rule):
    """Of capacities 50, 10, 50 and 10 a demand of 30 never goes to the small ones, a demand of 10 may."""
    view = state(1, (50, 10, 50, 10))
    view.decode_tokens = [900, 0, 800, 0]
    dispatcher = started(rule, view)
    (small,) = calls(view, Job(prompt=9))
    view.decode_instance[small] = 1
    chosen = set()
    for call in calls(view, *[Job(prompt=29)] * 40, parents=[(small, 0.0)]):
        dispatcher.refresh(view)
        chosen.add(dispatcher.choose(view, call)[1])
    assert chosen <= {0, 2}
    taken = set()
    for call in calls(view, *[Job(prompt=9)] * 60, parents=[(small, 0.0)]):
        taken.add(dispatcher.choose(view, call)[1])
    assert taken & {1, 3}


def test_loads_fall_when_stages_end():
    """Prefill tokens count until prefill ends, decode tokens until the call is complete."""
    two = Hardware((0, 0), (0, 0), (100, 100))
    # w0 (9 tokens) prefills on 0 during [0, 1] and decodes to 11 s; at 5 s prefill 0 is empty again, decode 0 is not.
    schedule = simulate(two.build([(0, [Job(1, 10, prompt=9)]), (0.5, [Job(9, 1)]), (5, [Job()])]), "workflow-fcfs")
    assert schedule.prefill_instance.tolist() == [0, 1, 0]
    assert schedule.decode_instance.tolist() == [0, 1, 1]


def test_an_unknown_rule_is_refused():
    """The message lists the known ones."""
    with pytest.raises(InputError, match=r"unknown dispatch 'nearest' \(known: power_of_two, round_robin"):
        create("fcfs", dispatch="nearest")
