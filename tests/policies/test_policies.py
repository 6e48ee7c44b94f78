"""Policies by name, with parameters."""

import pytest
from builders import Job, build

from workbench import InputError, compare, simulate
from workbench.policies import Policy, available, create, parameters
from workbench.policies.atlas import Atlas
from workbench.policies.fcfs import Fcfs
from workbench.policies.hexagent import Hexagent
from workbench.policies.llf import Llf
from workbench.policies.workflow_fcfs import WorkflowFcfs


def test_the_built_in_policies_are_found_by_name():
    """Every policy stands under the name it gives itself and declares what it may see."""
    found = available()
    assert {"atlas", "fcfs", "hexagent", "llf", "workflow-fcfs"} <= set(found)
    assert all(name == policy.name and Policy in policy.__mro__ for name, policy in found.items())
    for policy in (Atlas, Fcfs, Hexagent, Llf, WorkflowFcfs):
        assert found[policy.name] is policy
        assert policy.information == "revealed"


def test_parameters_are_listed_with_their_defaults():
    """In order of the signature."""
    assert parameters(Llf) == {"alpha": 2.0, "dispatch": "least_loaded"}
    assert parameters(Hexagent) == {"rerank_limit": 32}
    assert parameters(Policy) == {}


def test_a_specification_sets_parameters_of_their_own_type():
    """Numbers become float or int as the default is; later options win."""
    policy = create("llf:alpha=3:dispatch=random")
    assert (type(policy), policy.alpha, policy.dispatcher.rule) == (Llf, 3.0, "random")
    assert isinstance(policy.alpha, float)
    assert create("hexagent:rerank_limit=0").rerank_limit == 0
    assert create("llf:alpha=3", alpha=5.0).alpha == 5.0
    assert create(Atlas, queues=3).queues == 3


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("fifo", {}, r"unknown policy 'fifo' \(known: atlas, .*hexagent, .*workflow-fcfs"),
        ("", {}, "unknown policy ''"),
        ("llf:beta=3", {}, r"policy 'llf' has no parameter beta \(known: alpha, dispatch\)"),
        ("llf", {"beta": 3}, "policy 'llf' has no parameter beta"),
        (Llf, {"beta": 3}, "policy 'llf' has no parameter beta"),
        ("llf:alpha=three", {}, "expected alpha=float, got 'alpha=three'"),
        ("hexagent:rerank_limit=2.5", {}, "expected rerank_limit=int"),
        ("llf:alpha", {}, "expected alpha=float, got 'alpha'"),
        ("llf:", {}, "policy 'llf'"),
        ("hexagent:rerank_limit=-1", {}, "rerank_limit must be from 0"),
        ("fcfs:dispatch=nearest", {}, "unknown dispatch 'nearest'"),
        (Fcfs(), {"dispatch": "random"}, "policy 'fcfs' is already made"),
    ],
)
def test_mistakes_are_input_errors(spec, options, message):
    """Unknown policy, unknown parameter, a value of the wrong type, options for a policy that is already made."""
    with pytest.raises(InputError, match=message):
        create(spec, **options)
    with pytest.raises(InputError, match=message):
        simulate(build([(0, [Job()])]), spec, **options)


def test_own_policies_run_like_built_in_ones():
    """A class with the attributes of the contract needs no base class."""

    class Plain:
        name = "plain"
        information = "revealed"
        stages = ("prefill",)

        def begin(self, view, rng):
            self.calls = 0

        def plan(self, view, stage):
            return [(call, 0, 0, 0) for call in view.waiting_prefill]

    assert simulate(build([(0, [Job(1, 2)])]), Plain()).makespan_s == 3
    assert simulate(build([(0, [Job(1, 2)])]), Plain).label == "plain"


def test_compare_refuses_a_misspelt_policy_before_it_runs_any():
    """No time is lost on the others."""
    with pytest.raises(InputError, match="unknown policy 'fcsf'"):
        compare(build([(0, [Job()])]), ["fcfs", "fcsf"])
