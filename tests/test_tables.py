"""Tests of the tables that describe clusters, models and instances."""

import math

import pytest

import workbench as wb
from workbench.errors import InputError
from workbench.tables import cluster_table, instance_table, model_table
from workbench.workflow import Call, Workflow


def test_a_cluster_table_has_a_row_for_each_class_of_each_pool() -> None:
    table = cluster_table("hetero-2", "qwen3-235b-a22b")
    assert table.index.tolist() == [
        (pool, name)
        for pool in ("prefill", "decode")
        for name in ("A100-80GB-SXM:tp8", "H100-80GB-SXM:tp8", "H200-141GB-SXM:tp4")
    ]
    assert table.instances.tolist() == [3, 4, 3] * 2
    assert table.gpus.tolist() == [24, 32, 12] * 2
    assert table.kv_capacity_tokens.tolist() == [381299, 374221, 375220] * 2


def test_a_cluster_table_shows_the_bandwidth_of_every_pair() -> None:
    table = cluster_table("hetero-1", "llama3.1-70b")
    links = table.loc["prefill"].filter(like="kv_gb_s_to_")
    assert links.columns.tolist() == [
        f"kv_gb_s_to_{gpu}" for gpu in ("A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM")
    ]
    assert links.to_numpy().tolist() == [[80, 80, 80], [80, 144, 144], [80, 144, 144]]


def test_a_cluster_table_shows_times_in_milliseconds() -> None:
    row = cluster_table("a100-4p4d", "llama3.1-70b").loc[("decode", "A100-80GB-SXM:tp4")]
    # 12.9391 + 2 x 68,451,041,280 x 1,000 / (1,248e12 x 0.6455), and attention:
    # 4 x 655,360 x 500,000 / (1,248e12 x 0.7825)
    assert row.prefill_1k_ms == pytest.approx(12.9391 + 169.943 + 1.34219, rel=1e-5)
    # 4.0332 + weights 139,003,428,864 bytes / (8.156e12 x 0.7224) + 16,000 x 81,920 / (2.039e12 x 0.4092) + 16 x 0.0672
    assert row.decode_step_ms == pytest.approx(4.0332 + 23.5923 + 1.57092 + 1.0752, rel=1e-5)


def test_a_model_table_has_a_column_for_each_deployment() -> None:
    table = model_table("llama3.1-70b")
    assert table.columns.tolist() == ["A100-80GB-SXM:tp4", "H100-80GB-SXM:tp4", "H200-141GB-SXM:tp4"]
    h100 = table["H100-80GB-SXM:tp4"]
    assert h100["kv_capacity_tokens"] == 508934
    assert round(h100["weights_gb_per_gpu"], 2) == 35.28
    assert (h100["kv_bytes_per_token"], h100["kv_bytes_per_token_per_gpu"]) == (327680, 81920)
    assert (h100["eff_compute"], h100["held_out_prefill_pct"], h100["held_out_decode_pct"]) == (0.5382, 1.51, 1.48)
    assert h100["validated_prompt_tokens"] == "32 to 16384"
    assert h100["touch"] is None  # a dense model has no experts to touch
    assert model_table("qwen3-235b-a22b")["H100-80GB-SXM:tp8"]["touch"] == 0.7892


def test_an_instance_table_counts_what_the_workload_holds() -> None:
    first = Workflow("a", (Call("x", 100, 10), Call("y", 400, 20, {"x": 0.0}, cached_prefix_tokens=100)), arrival_s=0.5)
    second = Workflow("b", (Call("x", 300, 60),), arrival_s=2.0)
    instance = wb.Instance([first, second], "hetero-1", "llama3.1-70b", name="two")
    facts = instance_table(instance)["value"]
    assert (facts["name"], facts["source"], facts["model"], facts["cluster"]) == (
        "two",
        "-",
        "llama3.1-70b",
        "hetero-1",
    )
    assert (facts["workflows"], facts["calls"]) == (2, 3)
    assert (facts["prefill instances"], facts["decode instances"]) == (8, 8)
    assert facts["input tokens, median (largest)"] == "300 (400)"
    assert facts["output tokens, median (largest)"] == "20 (60)"
    assert facts["cached prefix, share of input"] == "12.5%"
    assert facts["arrivals, s"] == "0.500 to 2.000"
    assert facts["offered prefill load"] == f"{instance.offered_load():.2f}"
    assert facts["KV capacity, smallest (largest) tokens"] == "508934 (1225616)"


def test_an_instance_table_says_where_no_prefix_is_cached() -> None:
    facts = instance_table(wb.Instance([Workflow("a", (Call("x", 100, 10),))], "a100-4p4d", "llama3.1-70b"))["value"]
    assert facts["cached prefix, share of input"] == "none: prompts are prefilled in full"
    assert float(facts["offered prefill load"]) == math.inf


def test_unknown_names_are_refused() -> None:
    with pytest.raises(InputError, match="unknown cluster 'x'"):
        cluster_table("x", "llama3.1-70b")
    with pytest.raises(InputError, match="unknown model 'x'"):
        cluster_table("hetero-1", "x")
    with pytest.raises(InputError, match="unknown model 'x'"):
        model_table("x")
