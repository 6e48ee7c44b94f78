"""Tests of workflows: what is refused, what is revealed when, and how workloads are drawn and timed."""

import math
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from workbench.files import describe
from workbench.workflow import Call, Workflow, Workload

DIAMOND = Workflow(
    "w0",
    (
        Call("join", 300, 5, parents={"left": 0.0, "right": 2.0}),
        Call("root", 100, 10),
        Call("left", 200, 20, parents={"root": 0.5}),
        Call("right", 250, 30, parents={"root": 1.0}),
    ),
    arrival_s=10.0,
)


def refusal(call: dict[str, Any], **workflow: Any) -> str:
    """Return the message for a workload whose workflow 'w7' holds a sound call 'a' and the given one."""
    sound = {"id": "a", "input_tokens": 10, "output_tokens": 5}
    document = {"workflows": [{"id": "w7", "calls": [sound, call], **workflow}]}
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Workload).validate_python(document)
    return describe(caught.value, document)


def call(**fields: Any) -> dict[str, Any]:
    return {"id": "b", "input_tokens": 20, "output_tokens": 6, **fields}


@st.composite
def workflows(draw: st.DrawFn, name: str = "w") -> Workflow:
    number = draw(st.integers(1, 8))
    delays = st.sampled_from([0.0, 0.25, 1.5])
    calls = []
    for i in range(number):
        parents = draw(st.lists(st.integers(0, i - 1), unique=True)) if i else []
        size = draw(st.integers(1, 5000))
        calls.append(
            Call(
                f"c{i}",
                size,
                draw(st.integers(1, 5000)),
                {f"c{p}": draw(delays) for p in parents},
                draw(st.none() | st.integers(1, 5000)),
                draw(st.integers(0, size - 1)),
            )
        )
    return Workflow(name, tuple(draw(st.permutations(calls))), draw(st.floats(0, 1e6)), draw(st.floats(0.1, 10)))


@pytest.mark.parametrize("field", ["input_tokens", "output_tokens", "predicted_output_tokens"])
@pytest.mark.parametrize("value", [0, -1, True, "5", 5.0, math.nan, math.inf, 10**9, 10**400, [5]])
def test_a_length_that_is_no_positive_whole_number_is_refused_with_workflow_call_and_field(
    field: str, value: object
) -> None:
    assert refusal(call(**{field: value})).startswith(f"workflow 'w7' call 'b' field {field}: input should be ")


@pytest.mark.parametrize("delay", [-0.1, -1, math.nan, math.inf, -math.inf, True, "1", None, 1e10])
def test_a_tool_delay_that_is_no_duration_is_refused_with_the_edge(delay: object) -> None:
    assert refusal(call(parents={"a": delay})).startswith("workflow 'w7' call 'b' field parents.a: input should be ")


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, True, "0", None])
def test_an_arrival_that_is_no_time_is_refused(value: object) -> None:
    assert refusal(call(), arrival_s=value).startswith("workflow 'w7' field arrival_s: input should be ")


@pytest.mark.parametrize("value", [0, -1.0, math.nan, math.inf, True, "1"])
def test_a_weight_that_is_not_positive_is_refused(value: object) -> None:
    assert refusal(call(), weight=value).startswith("workflow 'w7' field weight: input should be ")


@pytest.mark.parametrize("prefix", [-1, True, 1.0, "3"])
def test_a_cached_prefix_that_is_no_count_is_refused(prefix: object) -> None:
    message = refusal(call(cached_prefix_tokens=prefix))
    assert message.startswith("workflow 'w7' call 'b' field cached_prefix_tokens: input should be ")


@pytest.mark.parametrize("prefix", [20, 21])
def test_a_cached_prefix_leaves_at_least_one_token_to_prefill(prefix: int) -> None:
    message = refusal(call(cached_prefix_tokens=prefix))
    assert message.startswith(f"workflow 'w7' call 'b': cached_prefix_tokens {prefix} must be below input_tokens 20")
    assert Call("b", 20, 6, cached_prefix_tokens=19).cached_prefix_tokens == 19


def test_a_call_that_is_its_own_parent_is_refused() -> None:
    message = refusal(call(parents={"b": 0.0}))
    assert message == "workflow 'w7': call 'b' depends on itself through b -> b; remove one of these parents"


def test_a_cycle_is_refused_with_its_calls() -> None:
    with pytest.raises(ValidationError, match=r"workflow 'w': call '(.)' depends on itself through \1 -> . -> . -> \1"):
        Workflow(
            "w",
            (
                Call("r", 1, 1),
                Call("x", 1, 1, parents={"z": 0.0, "r": 0.0}),
                Call("y", 1, 1, parents={"x": 0.0}),
                Call("z", 1, 1, parents={"y": 0.0}),
            ),
        )


def test_an_unknown_parent_is_refused() -> None:
    assert refusal(call(parents={"c": 0.0})) == "workflow 'w7': call 'b': parent 'c' is not a call of this workflow"


def test_a_call_id_that_appears_twice_is_refused() -> None:
    assert refusal(call(id="a")) == "workflow 'w7': call 'a' appears twice; give each call its own id"


def test_a_workflow_id_that_appears_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="workflow 'w' appears twice"):
        Workload((Workflow("w", (Call("a", 1, 1),)), Workflow("w", (Call("a", 1, 1),))))


@pytest.mark.parametrize("id", ["", "x" * 201, 3, None, True])
def test_an_id_that_is_no_short_string_is_refused_with_the_position(id: object) -> None:
    assert refusal(call(id=id)).startswith("workflow 'w7' call ")


def test_a_misspelt_field_is_refused() -> None:
    assert refusal(call(ouput_tokens=3)).startswith("workflow 'w7' call 'b' field ouput_tokens: unknown field")


def test_a_workflow_without_calls_and_a_workload_without_workflows_are_refused() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        Workflow("w", ())
    with pytest.raises(ValidationError, match="at least 1 item"):
        Workload(())


def test_depth_counts_calls_on_the_longest_path_and_width_the_widest_layer() -> None:
    assert (DIAMOND.depth, DIAMOND.width) == (3, 2)
    fan = Workflow("f", (Call("r", 1, 1), *(Call(f"k{i}", 1, 1, parents={"r": 0.0}) for i in range(5))))
    assert (fan.depth, fan.width) == (2, 5)


def test_the_graph_carries_calls_and_tool_delays_and_cannot_be_changed() -> None:
    graph = DIAMOND.graph
    assert set(graph.edges(data="tool_delay_s")) == {
        ("root", "left", 0.5),
        ("root", "right", 1.0),
        ("left", "join", 0.0),
        ("right", "join", 2.0),
    }
    assert graph.nodes["right"]["call"] is DIAMOND.calls[3]
    with pytest.raises(nx.NetworkXError):
        graph.add_node("late")


def test_a_graph_with_lengths_as_node_attributes_becomes_a_workflow() -> None:
    dag = nx.DiGraph()
    dag.add_node(1, input_tokens=100, output_tokens=10)
    dag.add_node(2, input_tokens=200, output_tokens=20, cached_prefix_tokens=110, predicted_output_tokens=25)
    dag.add_edge(1, 2, tool_delay_s=3)
    expected = (Call("1", 100, 10), Call("2", 200, 20, {"1": 3.0}, 25, 110))
    assert Workflow.from_graph(dag, "w", 1.5, 2.0) == Workflow("w", expected, 1.5, 2.0)


def test_a_graph_attribute_overrides_the_call_it_comes_with() -> None:
    dag = nx.DiGraph()
    dag.add_node("a", call=Call("old", 100, 10, cached_prefix_tokens=50), output_tokens=11)
    assert Workflow.from_graph(dag, "w").calls == (Call("a", 100, 11, cached_prefix_tokens=50),)


def test_a_graph_with_a_cycle_or_a_misspelt_attribute_is_refused() -> None:
    dag = nx.DiGraph([("a", "b"), ("b", "a")])
    nx.set_node_attributes(dag, {n: {"input_tokens": 1, "output_tokens": 1} for n in "ab"})
    with pytest.raises(ValidationError, match="depends on itself"):
        Workflow.from_graph(dag, "w")
    dag.remove_edge("b", "a")
    dag.nodes["a"]["tokens"] = 4
    with pytest.raises(ValidationError, match="tokens"):
        Workflow.from_graph(dag, "w")


@given(workflows())
def test_a_workflow_survives_the_way_through_its_graph(workflow: Workflow) -> None:
    assert Workflow.from_graph(workflow.graph, workflow.id, workflow.arrival_s, workflow.weight) == workflow


@given(workflows())
def test_a_workflow_survives_the_way_through_plain_data(workflow: Workflow) -> None:
    adapter = TypeAdapter(Workflow)
    assert adapter.validate_json(adapter.dump_json(workflow)) == workflow


def test_nothing_is_revealed_before_arrival_and_only_sources_at_arrival() -> None:
    assert set(DIAMOND.revealed({}, 9.999)) == set()
    assert set(DIAMOND.revealed({}, 10.0)) == {"root"}


def test_a_child_is_revealed_at_the_very_end_of_its_tool_delay() -> None:
    done = {"root": 12.0}
    assert set(DIAMOND.revealed(done, 12.499)) == {"root"}
    assert set(DIAMOND.revealed(done, 12.5)) == {"root", "left"}
    assert set(DIAMOND.revealed(done, 13.0)) == {"root", "left", "right"}


def test_a_call_waits_for_every_parent_and_every_tool_delay() -> None:
    assert "join" not in DIAMOND.revealed({"root": 12.0, "right": 13.0}, 99.0)
    done = {"root": 12.0, "right": 14.0, "left": 15.9}
    assert "join" not in DIAMOND.revealed(done, 15.99)
    assert set(DIAMOND.revealed(done, 16.0).edges) == set(DIAMOND.graph.edges)


@given(workflows(), st.data())
def test_revealed_holds_exactly_the_calls_whose_parents_and_delays_are_over(workflow: Workflow, data: Any) -> None:
    done = {
        c.id: workflow.arrival_s + data.draw(st.sampled_from([0.0, 0.25, 1.0, 3.0]))
        for c in workflow.calls
        if data.draw(st.booleans())
    }
    at = workflow.arrival_s + data.draw(st.sampled_from([0.0, 0.5, 1.5, 3.0, 9.0]))
    expected = set()
    for c in workflow.calls:
        over = [p in done and done[p] + delay <= at for p, delay in c.parents.items()]
        if False not in over:
            expected.add(c.id)
    assert set(workflow.revealed(done, at)) == expected


def chains(number: int) -> Workload:
    return Workload(
        tuple(Workflow(f"w{i}", (Call("a", 9000, 10, cached_prefix_tokens=i),), weight=1.0 + i) for i in range(number)),
        "made up",
    )


def test_a_rate_without_a_seed_gives_equal_gaps_from_zero() -> None:
    timed = chains(4).arriving(rate=8.0)
    assert [w.arrival_s for w in timed] == [0.0, 0.125, 0.25, 0.375]
    assert [(w.id, w.calls, w.weight) for w in timed] == [(w.id, w.calls, w.weight) for w in chains(4)]
    assert timed.source == "made up"


def test_a_seed_gives_poisson_arrivals_that_repeat() -> None:
    timed = chains(3000).arriving(rate=40.0, seed=7)
    gaps = np.diff([0.0, *(w.arrival_s for w in timed)])
    assert timed == chains(3000).arriving(rate=40.0, seed=7)
    assert timed != chains(3000).arriving(rate=40.0, seed=8)
    assert (gaps > 0).all()
    assert gaps.mean() == pytest.approx(1 / 40, rel=0.06)  # three standard errors of 3,000 exponential gaps
    assert np.median(gaps) == pytest.approx(math.log(2) / 40, rel=0.08)  # a constant or uniform gap has another median


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf])
def test_a_rate_that_is_not_positive_and_finite_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="rate must be above 0"):
        chains(2).arriving(rate)


def test_a_sample_draws_without_replacement_and_repeats_with_its_seed() -> None:
    drawn = [w.id for w in chains(50).sample(20, seed=3)]
    assert len(set(drawn)) == 20
    assert drawn != sorted(drawn, key=lambda id: int(id[1:]))
    assert drawn == [w.id for w in chains(50).sample(20, seed=3)]
    assert drawn != [w.id for w in chains(50).sample(20, seed=4)]
    assert {w.id for w in chains(5).sample(5, seed=0)} == {"w0", "w1", "w2", "w3", "w4"}


@pytest.mark.parametrize("number", [0, -1, 6])
def test_a_sample_of_an_impossible_size_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {number} of 5 workflows"):
        chains(5).sample(number, seed=0)


def test_without_cached_prefix_changes_nothing_else() -> None:
    call = Call("a", 100, 10, predicted_output_tokens=12, cached_prefix_tokens=40)
    child = Call("b", 150, 20, {"a": 0.5}, 22, 110)
    full = Workload((Workflow("w", (call, child), 3.0, 2.0),), "s").without_cached_prefix()
    assert full == Workload(
        (Workflow("w", (Call("a", 100, 10, {}, 12), Call("b", 150, 20, {"a": 0.5}, 22)), 3, 2),), "s"
    )


def test_a_slice_of_a_workload_is_a_workload() -> None:
    part = chains(5)[1:3]
    assert [w.id for w in part] == ["w1", "w2"]
    assert (len(part), part.source) == (2, "made up")


def test_the_frame_of_a_workload_sums_each_workflow() -> None:
    frame = Workload((DIAMOND, Workflow("w1", (Call("a", 100, 10, cached_prefix_tokens=60),)))).to_frame()
    assert frame.loc["w0"].to_dict() == {
        "arrival_s": 10.0,
        "calls": 4,
        "depth": 3,
        "width": 2,
        "input_tokens": 850,
        "new_tokens": 850,
        "output_tokens": 65,
    }
    assert frame.loc["w1", "new_tokens"] == 40


@settings(max_examples=50)
@given(st.lists(workflows(), min_size=1, max_size=3))
def test_sums_of_the_frame_do_not_depend_on_the_order_of_calls(drawn: list[Workflow]) -> None:
    named = [Workflow(f"w{i}", w.calls, w.arrival_s) for i, w in enumerate(drawn)]
    sorted_calls = [Workflow(w.id, tuple(sorted(w.calls, key=lambda c: c.id)), w.arrival_s) for w in named]
    assert Workload(tuple(named)).to_frame().equals(Workload(tuple(sorted_calls)).to_frame())
