"""The compiled instance: indices, derived arrays, and what it refuses."""

import random
from dataclasses import fields, replace

import numpy as np
import pytest
from builders import MIXED, Hardware, Job, build, chain, random_flows

from workbench import Call, CompiledInstance, InputError, Instance, Workflow


def diamond():
    """Return two workflows; the second is a diamond whose calls stand in reverse order."""
    jobs = [
        Job(parents={1: 0.5, 2: 1.5}),
        Job(parents={3: 0.25}),
        Job(parents={3: 0.0}),
        Job(prompt=7, output=3),
    ]
    return build([(2.0, [Job(1, 2)]), (1.0, jobs)])


def test_calls_of_a_workflow_are_contiguous():
    """Offsets, the workflow of each call, and names."""
    instance = diamond()
    assert (instance.n_calls, instance.n_workflows) == (5, 2)
    assert instance.first_call.tolist() == [0, 1, 5]
    assert instance.workflow.tolist() == [0, 1, 1, 1, 1]
    assert instance.call_name(3) == "workflow 'w1' call 'c2'"
    assert instance.demand_tokens.tolist() == [2, 2, 2, 2, 10]


def test_parents_and_children_mirror_each_other():
    """Each edge with its tool delay, from both ends."""
    instance = diamond()
    assert [instance.parents_of(c) for c in range(5)] == [[], [(2, 0.5), (3, 1.5)], [(4, 0.25)], [(4, 0.0)], []]
    assert instance.children == ((), (), ((1, 0.5),), ((1, 1.5),), ((2, 0.25), (3, 0.0)))


def test_topological_order_has_parents_first():
    """Also where calls stand in reverse; every call once."""
    instance = diamond()
    assert instance.topological.tolist() == [0, 4, 2, 3, 1]
    for seed in range(20):
        other = MIXED.build(random_flows(random.Random(seed), MIXED, 5, True))
        place = {c: i for i, c in enumerate(other.topological.tolist())}
        assert sorted(place) == list(range(other.n_calls))
        assert all(place[p] < place[c] for c in place for p, _ in other.parents_of(c))


def test_predicted_demand_is_clipped_to_the_largest_capacity():
    """Truth 15 and predicted 12 and 60 tokens, on 10 and 40."""
    jobs = [Job(prompt=10, output=5, predicted_output=2), Job(prompt=10, output=5, predicted_output=50)]
    instance = Hardware((0,), (0, 0), (10, 40)).build([(0, jobs)])
    assert instance.demand_tokens.tolist() == [15, 15]
    assert instance.predicted_demand_tokens.tolist() == [12, 40]


def test_from_durations_fills_in_defaults():
    """No transfers, arrivals at 0, one pair of instances, demand of 2, predictions that are right."""
    instance = CompiledInstance.from_durations(first_call=[0, 2], prefill_s=[[1.0], [2.0]], decode_s=[[3.0], [4.0]])
    assert instance.transfer_s.tolist() == [[[0.0]], [[0.0]]]
    assert instance.arrival_s.tolist() == [0]
    assert instance.weight.tolist() == [1]
    assert instance.demand_tokens.tolist() == [2, 2]
    assert instance.predicted_decode_s.tolist() == instance.decode_s.tolist()
    assert (instance.prefill_class.tolist(), instance.decode_class.tolist()) == ([0], [0])
    assert instance.call_ids == ("c0", "c1")


def test_arrays_cannot_be_written():
    """An instance is the same for everyone who holds it."""
    instance = diamond()
    arrays = [value for value in (getattr(instance, f.name) for f in fields(instance)) if isinstance(value, np.ndarray)]
    assert len(arrays) == 17
    for array in arrays:
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


@pytest.mark.parametrize("field", ["prefill_s", "decode_s", "predicted_decode_s"])
@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf, np.nan])
def test_service_times_must_be_positive_and_finite(field, bad):
    """The message names the field."""
    instance = diamond()
    values = getattr(instance, field).copy()
    values[3] = bad
    with pytest.raises(InputError, match=f"{field} must be positive and finite"):
        replace(instance, **{field: values})


@pytest.mark.parametrize("bad", [-0.1, np.inf, np.nan])
def test_transfers_must_be_non_negative_and_finite(bad):
    """Zero is allowed."""
    instance = diamond()
    with pytest.raises(InputError, match="transfer_s must be non-negative and finite"):
        replace(instance, transfer_s=np.full_like(instance.transfer_s, bad))


def test_a_call_that_fits_nowhere_is_refused_by_name():
    """With its demand and the largest capacity."""
    two = Hardware((0,), (0, 0), (10, 12))
    two.build([(0, [Job(prompt=11, output=1)])])
    with pytest.raises(InputError, match=r"workflow 'w1' call 'c0': KV demand 13 tokens .* largest capacity is 12"):
        two.build([(0, [Job()]), (0, [Job(prompt=11, output=2)])])


def test_horizons_are_greedy_unless_replaced():
    """A replacement is named, leaves the original alone, and must have a positive figure for each workflow."""
    instance = build([(0, chain(Job(1, 2), Job(1, 1))), (0, [Job(1, 1)])])
    assert (instance.horizon_s.tolist(), instance.horizon_kind) == ([5, 2], "greedy")
    other = instance.with_horizons([4.0, 1.0], "half")
    assert (other.horizon_s.tolist(), other.horizon_kind) == ([4, 1], "half")
    assert (instance.horizon_s.tolist(), instance.horizon_kind) == ([5, 2], "greedy")
    for bad in ([1.0], [1.0, 0.0], [1.0, float("nan")]):
        with pytest.raises(ValueError, match="expected 2 positive horizons"):
            instance.with_horizons(bad, "bad")


def test_an_instance_compiles_to_the_lengths_it_was_given():
    """Parents in the order in which a call names them, prefixes, predictions and arrivals in their places."""
    calls = (
        Call("join", 900, 30, parents={"b": 0.5, "a": 0.0}, cached_prefix_tokens=100),
        Call("a", 500, 20, predicted_output_tokens=25),
        Call("b", 600, 10),
    )
    instance = Instance([Workflow("w", calls, arrival_s=1.5)], cluster="hetero-1", model="llama3.1-70b").compile()
    assert instance.call_ids == ("join", "a", "b")
    assert instance.parents_of(0) == [(2, 0.5), (1, 0.0)]
    assert instance.input_tokens.tolist() == [900, 500, 600]
    assert instance.output_tokens.tolist() == [30, 20, 10]
    assert instance.predicted_output_tokens.tolist() == [30, 25, 10]
    assert instance.cached_prefix_tokens.tolist() == [100, 0, 0]
    assert instance.arrival_s.tolist() == [1.5]
    assert (instance.predicted_decode_s[1] > instance.decode_s[1]).all()
    assert (instance.predicted_decode_s[[0, 2]] == instance.decode_s[[0, 2]]).all()
    assert instance.prefill_s.shape == (3, len(instance.prefill_class_names))
    assert instance.transfer_s.shape == (3, len(instance.prefill_class_names), len(instance.decode_class_names))
    assert instance.instance_names[0][0] == f"P0 {instance.prefill_class_names[0]}"
