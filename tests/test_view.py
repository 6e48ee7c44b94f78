"""The snapshot that policies see, against a recount, and its expectations by hand."""

import random
from dataclasses import replace

import numpy as np
import pytest
from builders import CLUSTERS, Hardware, Job, Scripted, Watched, build, random_flows

from workbench import CompiledInstance, simulate
from workbench.policies import Stage, available
from workbench.view import Phase

CLUSTER_FIELDS = {"prefill_class", "decode_class", "capacity_tokens"}


def recount(view, stage, plan):
    """Check every running count and set of the view against the phases."""
    calls = range(len(view.workflow))
    phase = view.phase

    def of(*phases):
        return {c for c in calls if phase[c] in phases}

    assert set(view.waiting_prefill) == of(Phase.WAIT_PREFILL)
    assert set(view.prefilling) == of(Phase.PREFILL)
    assert set(view.transferring) == of(Phase.TRANSFER)
    for d in range(len(view.decode_class)):
        here = {c for c in calls if view.decode_instance[c] == d}
        assert set(view.waiting_decode[d]) == of(Phase.WAIT_DECODE) & here
        assert set(view.decoding[d]) == of(Phase.DECODE) & here
        assert sorted(view.decode_queue(d)) == sorted(view.waiting_decode[d])
        outstanding = here - of(Phase.COMPLETE)
        assert view.decode_calls[d] == len(outstanding)
        assert view.decode_tokens[d] == sum(view.demand_tokens[c] for c in outstanding)
    for p in range(len(view.prefill_class)):
        queued = {c for c in of(Phase.WAIT_PREFILL, Phase.PREFILL) if view.prefill_instance[c] == p}
        assert view.prefill_calls[p] == len(queued)
        assert view.prefill_tokens[p] == sum(view.new_tokens[c] for c in queued)
    for w, arrival in view.arrival_s.items():
        own = [c for c in calls if view.workflow[c] == w]
        assert arrival <= view.now
        assert set(view.open_calls[w]) == {c for c in own if phase[c] is not Phase.COMPLETE}
        service = np.nansum([view.prefill_end_s[c] - view.prefill_start_s[c] for c in own])
        service += np.nansum([view.decode_end_s[c] - view.decode_start_s[c] for c in own])
        assert view.service_s[w] == pytest.approx(service)
    for c in calls:
        times = (view.prefill_start_s[c], view.prefill_end_s[c], view.decode_start_s[c], view.decode_end_s[c])
        happened = [time for time in times if not np.isnan(time)]
        assert happened == sorted(happened)
        assert all(time <= view.now for time in (view.reveal_s[c], *happened))
        stages = {Phase.PREFILL: 1, Phase.TRANSFER: 2, Phase.WAIT_DECODE: 2, Phase.DECODE: 3, Phase.COMPLETE: 4}
        assert len(happened) == stages.get(phase[c], 0)


@pytest.mark.parametrize("hardware", CLUSTERS)
@pytest.mark.parametrize("spec", [*available(), "fcfs:dispatch=cache_aware"])
def test_counts_and_sets_agree_with_the_phases(spec, hardware):
    """At every plan, with calls that move, that are larger than predicted, and that wait in every stage."""
    for seed in range(3):
        flows = random_flows(random.Random(seed), CLUSTERS[hardware], 10, seed % 2 == 0, True)
        simulate(CLUSTERS[hardware].build(flows), Watched(spec, recount))


def test_more_calls_than_the_first_arrays_hold():
    """Estimates of early calls survive when room is made for later ones."""
    flows = [(0.1 * w, [Job(1 + w, 2 + w, 3 + w, prompt=5 + w)]) for w in range(150)]
    seen = []

    def watch(view, stage, plan):
        seen.append((view.prefill_s, view.transfer_s, view.decode_s, view.demand_tokens))

    simulate(build(flows), Watched("fcfs", watch))
    prefill, transfer, decode, demand = seen[-1]
    assert prefill[:, 0].tolist() == [1 + w for w in range(150)]
    assert transfer[:, 0, 0].tolist() == [3 + w for w in range(150)]
    assert decode[:, 0].tolist() == [2 + w for w in range(150)]
    assert demand.tolist() == [6 + w for w in range(150)]


def at(now, flows, ask, hardware=None, policy=None):
    """Run, and return what a function of the view gives at the first plan at that time."""
    found = []

    def watch(view, stage, plan):
        if view.now == now and not found:
            found.append(ask(view))

    simulate((hardware or Hardware()).build(flows), Watched(policy or Scripted(), watch))
    return found[0]


def test_expectations_of_a_running_prefill():
    """Prefill [0, 4], then transfer 2 s: at 1 s it is free at 4 s, decode is ready at 6 s, and 5 + 3 s remain."""
    flows = [(0, [Job(4, 3, 2.0)]), (1, [Job(1, 1)])]

    def ask(view):
        return (
            view.phase[0],
            view.prefill_free_at().tolist(),
            view.expected_prefill_end(0),
            view.expected_decode_ready(0),
            view.expected_left(0),
        )

    assert at(1, flows, ask) == (Phase.PREFILL, [4], 4, 6, 8)


def test_expectations_of_a_call_in_transfer():
    """Prefill [0, 1], transfer [1, 4]: at 2 s decode is ready at 4 s, 2 + 3 s remain, and the server is free."""
    flows = [(0, [Job(1, 3, 3.0)]), (2, [Job(1, 1)])]

    def ask(view):
        return view.phase[0], view.prefill_free_at().tolist(), view.expected_decode_ready(0), view.expected_left(0)

    assert at(2, flows, ask) == (Phase.TRANSFER, [2], 4, 5)


def test_expectations_of_a_call_that_waits_for_decode():
    """It is ready now, and its own decode of 3 s remains, not its wait for the other's tokens."""
    flows = [(0, [Job(1, 9)]), (0, [Job(1, 3)]), (5, [Job(1, 1)])]

    def ask(view):
        return view.phase[1], view.decode_queue(0), view.expected_decode_ready(1), view.expected_left(1)

    assert at(5, flows, ask, Hardware(capacity=(2,))) == (Phase.WAIT_DECODE, [1], 5, 3)


def test_expectations_of_a_running_decode():
    """Decode [1, 10]: at 4 s 6 s remain."""
    flows = [(0, [Job(1, 9)]), (4, [Job(1, 1)])]
    assert at(4, flows, lambda view: (view.expected_decode_left(0), view.expected_left(0))) == (6, 6)


def test_expectations_go_by_predictions_and_are_never_in_the_past():
    """A decode predicted at 2 s that takes 9 s: 1 s remains at 2 s, none at 4 s."""
    flows = [(0, [Job(1, 9, predicted_decode=2.0)]), (2, [Job()]), (4, [Job()])]
    assert at(2, flows, lambda view: view.expected_decode_left(0)) == 1
    assert at(4, flows, lambda view: view.expected_decode_left(0)) == 0


def test_a_waiting_call_remains_with_its_best_pair_that_holds_it():
    """Pairs of 1 + 0 + 2 (too small), 1 + 4 + 3, 2 + 0.5 + 3 s: 5.5 s."""
    job = Job((1, 2), (2, 3), ((0.0, 4.0), (0.0, 0.5)), prompt=9)
    two = Hardware((0, 1), (0, 1), (5, 10))
    assert at(0, [(0, [job])], lambda view: view.expected_left(0), two, "fcfs") == 5.5


def test_predicted_demand_is_clipped_to_the_largest_capacity():
    """A call predicted at 60 tokens on instances of 10 and 40 shows 40."""
    two = Hardware((0,), (0, 0), (10, 40))
    job = Job(prompt=10, output=5, predicted_output=50)
    assert at(0, [(0, [job])], lambda view: view.demand_tokens.tolist(), two, "fcfs") == [40]


def test_the_decode_queue_is_in_order_of_rank():
    """Calls wait for decode by the rank they were given, not as they came."""
    # Four prefill instances; w0 holds the KV from 1 s on, and the calls of w1 are ready at 2, 3 and 4 s.
    flows = [(0, [Job(1, 20)]), (0, [Job(2), Job(3), Job(4)]), (9, [Job()])]
    ranks = Scripted(rank=lambda w, c: -c, place=lambda w, c: (0 if w == 0 else 1 + c, 0))
    four = Hardware((0,) * 4, (0,), (2,))
    names = at(9, flows, lambda view: [(view.workflow[c], view.index[c]) for c in view.decode_queue(0)], four, ranks)
    assert names == [(1, 2), (1, 1), (1, 0)]


def test_lengths_are_those_a_scheduler_may_know():
    """The prompt, what of it is not cached, and the predicted output, not the true one."""
    instance = build([(0, [Job(prompt=10, output=5, predicted_output=8)])])
    instance = replace(instance, cached_prefix_tokens=np.array([4]))
    found = []

    def watch(view, stage, plan):
        lengths = view.input_tokens, view.new_tokens, view.predicted_output_tokens, view.demand_tokens.tolist()
        found.append([length[0] for length in lengths])

    simulate(instance, Watched("fcfs", watch))
    assert found == [[10, 6, 8, 18]]


def test_nothing_in_the_view_leads_to_the_instance():
    """Neither an attribute, however deep, nor the memory behind an array belongs to the compiled instance."""
    instance = build([(0, [Job(prompt=10)]), (1, [Job(prompt=20)])])
    held = {name: value for name, value in vars(instance).items() if value is not None}
    hidden = {id(value) for name, value in held.items() if name not in CLUSTER_FIELDS}
    checked = []

    def walk(thing, seen):
        assert id(thing) not in hidden
        assert not isinstance(thing, CompiledInstance)
        if id(thing) in seen:
            return
        seen[id(thing)] = thing
        if isinstance(thing, np.ndarray):
            parts = [] if thing.base is None else [thing.base]
        elif isinstance(thing, dict):
            parts = [*thing, *thing.values()]
        elif isinstance(thing, list | tuple | set):
            parts = thing
        else:
            slots = getattr(thing, "__dict__", {})
            parts = slots.values() if type(thing).__module__.startswith("workbench") else ()
        for part in parts:
            walk(part, seen)

    def watch(view, stage, plan):
        seen = {}
        view.horizon_s(0)
        walk(view, seen)
        checked.append(len(seen))

    simulate(instance, Watched("hexagent", watch))
    assert min(checked) > 30


def test_stages_are_named():
    """Plans for a stage can be told by its name."""
    assert [str(stage) for stage in Stage] == ["prefill", "decode"]
