"""Tests of clusters: the presets and what a cluster may not say."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from workbench.catalogue import builtin
from workbench.cluster import Cluster, Group, Link, Pool, preset, presets
from workbench.errors import InputError

A100, H100, H200 = "A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"
SOUND: dict[str, Any] = {
    "prefill": {"groups": [{"gpu": "g", "count": 1}]},
    "decode": {"groups": [{"gpu": "h", "count": 2}]},
}


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("hetero-1", {A100: 2, H100: 3, H200: 3}),
        ("hetero-2", {A100: 3, H100: 4, H200: 3}),
        ("h200-4p4d", {H200: 4}),
        ("a100-4p4d", {A100: 4}),
    ],
)
def test_a_preset_has_the_published_instances_in_each_pool(name: str, counts: dict[str, int]) -> None:
    cluster = preset(name)
    assert cluster.name == name
    for pool in (cluster.prefill, cluster.decode):
        assert {group.gpu: group.count for group in pool.groups} == counts
        assert len(pool) == sum(counts.values())
        assert pool.kv_capacity_tokens is None


def test_the_presets_share_latency_and_memory_fraction() -> None:
    assert len(presets()) == 4
    assert {(c.transfer_latency_s, c.memory_fraction, c.links) for c in presets().values()} == {(0.0004, 0.9, ())}


@pytest.mark.parametrize("model", ["llama3.1-70b", "qwen3-235b-a22b"])
def test_every_preset_can_serve_both_models(model: str) -> None:
    for cluster in presets().values():
        for pool in (cluster.prefill, cluster.decode):
            assert all(builtin().deployment(model, gpu, tp) for gpu, tp in pool.uses)


def test_an_unknown_preset_is_refused_with_the_known_ones() -> None:
    with pytest.raises(
        InputError, match=r"unknown cluster 'hetero-3' \(known: hetero-1, hetero-2, h200-4p4d, a100-4p4d\)"
    ):
        preset("hetero-3")


@pytest.mark.parametrize(
    ("place", "value", "field"),
    [
        (("prefill", "groups", 0, "count"), 0, "count"),
        (("prefill", "groups", 0, "count"), -1, "count"),
        (("prefill", "groups", 0, "count"), 10_001, "count"),
        (("prefill", "groups", 0, "count"), True, "count"),
        (("prefill", "groups", 0, "count"), 1.0, "count"),
        (("decode", "groups", 0, "tp"), 0, "tp"),
        (("decode", "groups", 0, "tp"), 10**400, "tp"),
        (("decode", "groups", 0, "gpu"), "", "gpu"),
        (("decode", "groups"), [], "groups"),
        (("decode", "kv_capacity_tokens"), 0, "kv_capacity_tokens"),
        (("decode", "kv_capacity_tokens"), 1e5, "kv_capacity_tokens"),
        (("decode", "capacity"), 5, "capacity"),
        (("memory_fraction",), 0, "memory_fraction"),
        (("memory_fraction",), 1.01, "memory_fraction"),
        (("transfer_latency_s",), -1e-9, "transfer_latency_s"),
        (("transfer_latency_s",), float("nan"), "transfer_latency_s"),
        (("name",), "", "name"),
        (("decodes",), {}, "decodes"),
    ],
)
def test_a_malformed_cluster_is_refused_with_the_field(place: tuple[Any, ...], value: object, field: str) -> None:
    cluster: Any = {
        **SOUND,
        "prefill": {"groups": [{"gpu": "g", "count": 1}]},
        "decode": {"groups": [{"gpu": "h", "count": 2}]},
    }
    here = cluster
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(Cluster).validate_python(cluster)
    assert caught.value.errors()[0]["loc"][-1] == field


def test_a_link_must_join_gpu_kinds_of_the_cluster() -> None:
    pools = {"prefill": Pool((Group("g", 1),)), "decode": Pool((Group("h", 2),))}
    assert Cluster(**pools, links=(Link("g", "h", 5.0),)).links[0].gb_s == 5
    with pytest.raises(ValidationError, match=r"links: the prefill pool has no GPU kind 'h' \(it has: g\)"):
        Cluster(**pools, links=(Link("h", "h", 5.0),))
    with pytest.raises(ValidationError, match=r"links: the decode pool has no GPU kind 'g' \(it has: h\)"):
        Cluster(**pools, links=(Link("g", "g", 5.0),))


def test_a_link_given_twice_is_refused() -> None:
    with pytest.raises(ValidationError, match="links: g to h appears twice"):
        Cluster(Pool((Group("g", 1),)), Pool((Group("h", 2),)), links=(Link("g", "h", 5.0), Link("g", "h", 6.0)))
