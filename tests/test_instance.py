"""Tests of instances: the compiled arrays by hand, what is refused, and which catalogue entry is used."""

import math
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

import workbench as wb
from workbench.catalogue import Catalogue, Deployment, Gpu, Model, builtin
from workbench.cluster import Cluster, Group, Link, Pool
from workbench.cost import CostModel
from workbench.workflow import Call, Workflow, Workload

# A toy whose times are easy: 1 ms of compute a token, attention of 4 x 250 x n^2 / 2 FLOP at 1e12 FLOP/s, 1,000 bytes
# of KV a token. "fast" differs from "slow" by its fixed times only. Half of the memory holds 48,576 tokens.
TOY = Catalogue(
    gpus=tuple(Gpu(name, 1, 1, memory_mib=2000, rdma_gb_s=speed) for name, speed in (("slow", 1), ("fast", 4))),
    models=(Model("m", 1, 1, 1, 1, 250, total_params=500_000_000, dense_block_params=500_000_000, lm_head_params=0),),
    deployments=tuple(
        Deployment("m", gpu, 1, 1, 1, 1, 1, t0_prefill_ms=t0, t0_decode_ms=step, ms_per_seq=0, combine="max")
        for gpu, t0, step in (("slow", 500, 9), ("fast", 100, 4))
    ),
)
CLUSTER = Cluster(
    Pool((Group("slow", 2), Group("fast", 1))),
    Pool((Group("fast", 1), Group("slow", 1), Group("fast", 1))),
    transfer_latency_s=0.5,
    memory_fraction=0.5,
)
WORK = Workload(
    (
        Workflow(
            "w0",
            (
                Call("z", 3000, 11, parents={"b": 0.25, "a": 2.0}),
                Call("a", 1000, 3),
                Call("b", 2000, 1, {"a": 0.0}, predicted_output_tokens=5, cached_prefix_tokens=1000),
            ),
            arrival_s=1.0,
        ),
        Workflow("w1", (Call("a", 10, 6),), arrival_s=4.0, weight=2.5),
    )
)


def toy(**changes: Any) -> wb.Instance:
    settings: dict[str, Any] = {"workload": WORK, "cluster": CLUSTER, "model": "m", "reference_batch": 1}
    return wb.Instance(**{**settings, "catalogue": TOY, **changes})


def test_calls_keep_their_order_and_parents_become_offsets() -> None:
    inst = toy(name="n").compile()
    assert (inst.name, inst.workflow_ids, inst.call_ids) == ("n", ("w0", "w1"), ("z", "a", "b", "a"))
    assert inst.first_call.tolist() == [0, 3, 4]
    assert inst.parent_start.tolist() == [0, 2, 2, 3, 3]
    assert inst.parents.tolist() == [2, 1, 1]
    assert inst.tool_delay_s.tolist() == [0.25, 2.0, 0.0]
    assert inst.parents_of(0) == [(2, 0.25), (1, 2.0)]
    assert inst.children == ((), ((0, 2.0), (2, 0.0)), ((0, 0.25),), ())
    assert inst.topological.tolist() == [1, 3, 2, 0]
    assert inst.workflow.tolist() == [0, 0, 0, 1]
    assert inst.call_name(2) == "workflow 'w0' call 'b'"


def test_lengths_arrivals_and_weights_are_those_of_the_workload() -> None:
    inst = toy().compile()
    assert inst.arrival_s.tolist() == [1.0, 4.0]
    assert inst.weight.tolist() == [1.0, 2.5]
    assert inst.input_tokens.tolist() == [3000, 1000, 2000, 10]
    assert inst.output_tokens.tolist() == [11, 3, 1, 6]
    assert inst.predicted_output_tokens.tolist() == [11, 3, 5, 6]
    assert inst.cached_prefix_tokens.tolist() == [0, 0, 1000, 0]
    assert inst.demand_tokens.tolist() == [3011, 1003, 2001, 16]
    assert inst.predicted_demand_tokens.tolist() == [3011, 1003, 2005, 16]


def test_instances_of_one_deployment_share_a_class_in_order_of_first_use() -> None:
    inst = toy().compile()
    assert inst.prefill_class_names == ("slow:tp1", "fast:tp1")
    assert inst.decode_class_names == ("fast:tp1", "slow:tp1")
    assert inst.prefill_class.tolist() == [0, 0, 1]
    assert inst.decode_class.tolist() == [0, 1, 0]
    assert inst.instance_names == (
        ("P0 slow:tp1", "P1 slow:tp1", "P2 fast:tp1"),
        ("D0 fast:tp1", "D1 slow:tp1", "D2 fast:tp1"),
    )
    assert inst.capacity_tokens.tolist() == [48_576] * 3


def test_durations_are_those_calculated_by_hand() -> None:
    inst = toy().compile()
    attention = np.array([4.5e-3, 0.5e-3, 0.5e-3 + 1e-3, 5e-8])  # b: 1,000 new tokens after 1,000 cached ones
    new = np.array([3.0, 1.0, 1.0, 0.01])
    assert inst.prefill_s == pytest.approx(np.column_stack([0.5 + new + attention, 0.1 + new + attention]), rel=1e-12)
    moved = np.array([3.0e6, 1.0e6, 2.0e6, 1e4])  # bytes: the whole prompt, cached or not
    assert inst.transfer_s[:, 0, 0] == pytest.approx(0.5 + moved / 1e9, rel=1e-12)
    assert inst.transfer_s[:, 1, 0] == pytest.approx(0.5 + moved / 4e9, rel=1e-12)
    assert inst.transfer_s[:, 1, 1] == pytest.approx(0.5 + moved / 1e9, rel=1e-12)
    steps = np.array([10, 2, 1, 5])  # the first token belongs to prefill, and there is at least one step
    resident = np.array([10 * 3000 + 55, 2 * 1000 + 3, 2001, 5 * 10 + 15])
    fast, slow = (steps * step + resident * 1e-9 for step in (0.005, 0.010))
    assert inst.decode_s == pytest.approx(np.column_stack([fast, slow]), rel=1e-12)
    assert inst.predicted_decode_s[2] == pytest.approx(
        [4 * s + (4 * 2000 + 10) * 1e-9 for s in (0.005, 0.010)], rel=1e-12
    )
    assert inst.predicted_decode_s[[0, 1, 3]].tolist() == inst.decode_s[[0, 1, 3]].tolist()


def test_the_reference_batch_slows_decode_only() -> None:
    one, many = toy().compile(), toy(reference_batch=5).compile()
    # five sequences: 5 ms of compute instead of 1 ms of weights, and five times the resident tokens
    assert many.decode_s[1] == pytest.approx([2 * s + 5 * 2003e-9 for s in (0.009, 0.014)], rel=1e-12)
    assert many.prefill_s.tolist() == one.prefill_s.tolist()
    assert wb.Instance(WORK, CLUSTER, "m", catalogue=TOY).reference_batch == 16


def test_a_cap_lowers_the_capacity_of_its_pool_but_cannot_raise_it() -> None:
    for cap, expected in ((4000, 4000), (48_576, 48_576), (10**6, 48_576)):
        decode = Pool(CLUSTER.decode.groups, kv_capacity_tokens=cap)
        capped = Cluster(CLUSTER.prefill, decode, transfer_latency_s=0.5, memory_fraction=0.5)
        assert toy(cluster=capped).compile().capacity_tokens.tolist() == [expected] * 3


def test_a_link_changes_its_transfers_alone() -> None:
    linked = Cluster(
        CLUSTER.prefill,
        CLUSTER.decode,
        links=(Link("slow", "fast", 0.001),),
        transfer_latency_s=0.5,
        memory_fraction=0.5,
    )
    changed, base = toy(cluster=linked).compile().transfer_s, toy().compile().transfer_s
    assert changed[1, 0, 0] == pytest.approx(0.5 + 1.0)
    changed = changed.copy()
    changed[:, 0, 0] = base[:, 0, 0]
    assert changed.tolist() == base.tolist()


def test_a_call_that_fits_no_decode_instance_is_refused_by_name() -> None:
    with pytest.raises(ValidationError) as caught:
        toy(workload=[Workflow("wf", (Call("ok", 5, 5), Call("huge", 48_570, 7)))])
    assert (
        "workflow 'wf' call 'huge': KV demand 48577 tokens (input + output) fits no decode instance; the largest "
        "capacity is 48576" in str(caught.value)
    )
    assert toy(workload=[Workflow("wf", (Call("full", 48_570, 6),))]).compile().n_calls == 1


def test_a_call_that_fits_one_decode_instance_is_served() -> None:
    big = Gpu("big", 1, 1, memory_mib=3000, rdma_gb_s=1)
    fit = Deployment("m", "big", 1, 1, 1, 1, 1, t0_prefill_ms=1, t0_decode_ms=1, ms_per_seq=0, combine="max")
    mixed = Cluster(CLUSTER.prefill, Pool((Group("slow", 1), Group("big", 1))), memory_fraction=0.5)
    catalogue = Catalogue((*TOY.gpus, big), TOY.models, (*TOY.deployments, fit))
    inst = toy(cluster=mixed, catalogue=catalogue, workload=[Workflow("w", (Call("a", 60_000, 1),))]).compile()
    assert inst.capacity_tokens.tolist() == [48_576, 572_864]  # 1500 MiB less 1e9 bytes


def test_weights_must_fit_on_prefill_instances_too() -> None:
    small = Gpu("small", 1, 1, memory_mib=1900, rdma_gb_s=1)
    fit = Deployment("m", "small", 1, 1, 1, 1, 1, t0_prefill_ms=1, t0_decode_ms=1, ms_per_seq=0, combine="max")
    cluster = Cluster(Pool((Group("small", 1),)), Pool((Group("slow", 1),)), memory_fraction=0.5)
    catalogue = Catalogue((*TOY.gpus, small), TOY.models, (*TOY.deployments, fit))
    with pytest.raises(ValidationError, match=r"the weights of m need 1\.0 GB per GPU on small:tp1, which has 1\.0 GB"):
        toy(cluster=cluster, catalogue=catalogue)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cluster": "hetero-9"}, "unknown cluster 'hetero-9'"),
        ({"model": "gpt"}, "unknown model 'gpt'"),
        ({"cluster": Cluster(Pool((Group("B300", 1),)), CLUSTER.decode)}, "no deployment of m on B300"),
        ({"cluster": Cluster(Pool((Group("slow", 1, tp=2),)), CLUSTER.decode)}, "no deployment of m on slow at tp 2"),
        ({"workload": []}, "workload"),
        ({"workload": [1]}, "workload"),
        ({"reference_batch": 0}, "reference_batch"),
        ({"reference_batch": 1.5}, "reference_batch"),
        ({"colour": "red"}, "colour"),
    ],
)
def test_what_cannot_be_an_instance_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        toy(**changes)


def test_workflows_may_be_given_as_a_list_and_a_preset_by_name() -> None:
    inst = wb.Instance(list(WORK), "hetero-1", "llama3.1-70b")
    assert inst.workload == Workload(WORK.workflows)
    assert inst.cluster == wb.preset("hetero-1")
    assert inst.compile().capacity_tokens.tolist() == [513092] * 2 + [508934] * 3 + [1225616] * 3


def test_own_catalogue_entries_come_before_shipped_ones() -> None:
    shipped = builtin().deployment("llama3.1-70b", "H100-80GB-SXM")
    fields = {name: getattr(shipped, name) for name in shipped.__dataclass_fields__}
    own = Deployment(**{**fields, "t0_prefill_ms": shipped.t0_prefill_ms + 1000})
    here = wb.Instance(WORK, "hetero-1", "llama3.1-70b", catalogue=Catalogue(deployments=(own,)))
    there = wb.Instance(WORK, "hetero-1", "llama3.1-70b")
    added = here.compile().prefill_s - there.compile().prefill_s
    assert added == pytest.approx(np.tile([0.0, 1.0, 0.0], (4, 1)))
    assert own in here.catalogue.deployments
    assert shipped not in here.catalogue.deployments


def test_an_instance_keeps_just_the_catalogue_entries_it_uses() -> None:
    catalogue = wb.Instance(WORK, "a100-4p4d", "qwen3-235b-a22b").catalogue
    assert catalogue == builtin().restricted("qwen3-235b-a22b", [("A100-80GB-SXM", 8)])
    assert len(catalogue.deployments) == 1


def test_compiling_twice_gives_the_same_read_only_arrays() -> None:
    instance = toy()
    assert instance.compile() is instance.compile()
    with pytest.raises(ValueError, match="read-only"):
        instance.compile().prefill_s[0, 0] = 0


def test_offered_load_is_work_over_what_the_pool_can_do() -> None:
    # Harmonic pool time of each call by hand: two slow instances and one fast.
    slow = [3.5045, 1.5005, 1.5015, 0.51000005]
    fast = [3.1045, 1.1005, 1.1015, 0.11000005]
    work = sum(1 / (2 / s + 1 / f) for s, f in zip(slow, fast, strict=True))
    # Two workflows 3 s apart stand for arrivals over 6 s.
    assert toy().offered_load() == pytest.approx(work / 6, rel=1e-9)


def test_offered_load_doubles_with_the_rate_and_is_infinite_for_a_burst() -> None:
    works = [Workflow(f"w{i}", (Call("a", 1000, 3),)) for i in range(10)]
    slow, fast = (toy(workload=Workload(tuple(works)).arriving(rate)).offered_load() for rate in (1.0, 2.0))
    assert fast == pytest.approx(2 * slow)
    assert slow == pytest.approx(1 / (2 / 1.5005 + 1 / 1.1005))
    assert toy(workload=works).offered_load() == math.inf


def test_the_horizon_of_a_chain_is_its_fastest_way_through() -> None:
    chain = Workflow("w", (Call("a", 1000, 3), Call("b", 1000, 3, parents={"a": 0.75})), arrival_s=5.0)
    inst = toy(workload=[chain]).compile()
    fast = 1.1005 + 0.50025 + 2 * 0.005 + 2003e-9
    assert inst.horizon_s == pytest.approx([2 * fast + 0.75], rel=1e-12)
    assert inst.horizon_kind == "greedy"


def test_other_horizons_change_ratios_and_are_named() -> None:
    inst = toy().compile()
    other = inst.with_horizons([2.0, 4.0], "exact")
    assert (other.horizon_s.tolist(), other.horizon_kind, inst.horizon_kind) == ([2.0, 4.0], "exact", "greedy")
    run, base = wb.simulate(other, "fcfs"), wb.simulate(inst, "fcfs")
    assert run.ratios().tolist() == pytest.approx((base.flow_s / [2.0, 4.0]).tolist())


@pytest.mark.parametrize("horizons", [[1.0], [1.0, 0.0], [1.0, -2.0], [1.0, math.nan], [[1.0, 2.0]]])
def test_horizons_of_the_wrong_number_or_sign_are_refused(horizons: Any) -> None:
    with pytest.raises(ValueError, match="expected 2 positive horizons"):
        toy().compile().with_horizons(horizons, "exact")


def test_the_built_in_cost_model_feeds_the_compiled_arrays() -> None:
    inst = wb.Instance(WORK, "hetero-1", "qwen3-235b-a22b", reference_batch=8).compile()
    h200 = CostModel.of(builtin(), "qwen3-235b-a22b", "H200-141GB-SXM")
    assert inst.prefill_s[2, 2] == h200.prefill_s(1000, 1000)
    assert inst.decode_s[0, 2] == h200.decode_s(3000, 11, 8)
