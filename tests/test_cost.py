"""Tests of the cost model against a plain transcription of its formula, by hand, and against kernel measurements."""

import csv
import math
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.catalogue import Catalogue, Deployment, Gpu, Model, builtin
from workbench.cluster import Cluster, Group, Link, Pool, preset
from workbench.cost import CostModel, kv_bandwidth, kv_transfer
from workbench.errors import InputError

A100, H100, H200 = "A100-80GB-SXM", "H100-80GB-SXM", "H200-141GB-SXM"
LLAMA, QWEN = "llama3.1-70b", "qwen3-235b-a22b"
DEPLOYED = [(model, gpu) for model in (LLAMA, QWEN) for gpu in (A100, H100, H200)]
REFERENCE = Path(os.environ.get("WORKBENCH_REFERENCE", os.devnull)) / "hardware"
needs_reference = pytest.mark.skipif(
    not REFERENCE.is_dir(), reason="WORKBENCH_REFERENCE names no directory with kernel measurements"
)

# tp, peak TFLOP/s, TB/s, then the fit: eff_compute, eff_mem, eff_attn, eff_kv, t0_prefill, t0_decode, ms_per_seq, touch
FIT = {
    (LLAMA, A100): (4, 312.0, 2.039, 0.6455, 0.7224, 0.7825, 0.4092, 12.9391, 4.0332, 0.0672, 1.0),
    (LLAMA, H100): (4, 989.4, 3.35, 0.5382, 0.7201, 0.5428, 0.8378, 6.0833, 1.466, 0.0284, 1.0),
    (LLAMA, H200): (4, 989.4, 4.8, 0.5396, 0.718, 0.3317, 0.8671, 6.26, 2.3317, 0.0277, 1.0),
    (QWEN, A100): (8, 312.0, 2.039, 0.2831, 0.854, 0.5528, 0.4369, 16.6107, 10.4286, 0.0231, 0.6456),
    (QWEN, H100): (8, 989.4, 3.35, 0.216, 0.8833, 0.8848, 0.8528, 11.8587, 7.2322, 0.0048, 0.7892),
    (QWEN, H200): (4, 989.4, 4.8, 0.3348, 0.9649, 0.6969, 0.8098, 11.7571, 8.0989, 0.0001, 0.7345),
}


def gemm_ms(model: str, gpu: str, tokens: float) -> float:
    tp, tflops, tb_s, eff_compute, eff_mem, *_, touch = FIT[model, gpu]
    if model == LLAMA:
        compute = 2 * 68451041280 * tokens / (tp * tflops * 1e12)
        memory = 2 * (68451041280 + 1050673152) / (tp * tb_s * 1e12)
        return 1e3 * max(compute / eff_compute, memory / eff_mem)
    touched = 1 - (1 - 8 / 128) ** (touch * tokens)
    compute = 2 * (6751780864 + 227096395776 * 8 / 128) * tokens / (tp * tflops * 1e12)
    memory = 2 * (6751780864 + 622329856 + 227096395776 * touched) / (tp * tb_s * 1e12)
    return 1e3 * (compute / eff_compute + memory / eff_mem)


def prefill_ms(model: str, gpu: str, new: float, prefix: float) -> float:
    tp, tflops, _, _, _, eff_attn, _, t0, *_ = FIT[model, gpu]
    shape = 80 * 64 * 128 if model == LLAMA else 94 * 64 * 128
    attention = 4 * shape * (new**2 / 2 + new * prefix) / (tp * tflops * 1e12)
    return t0 + gemm_ms(model, gpu, new) + 1e3 * attention / eff_attn


def step_ms(model: str, gpu: str, batch: float, kv_tokens: float) -> float:
    _, _, tb_s, _, _, _, eff_kv, _, t0, per_sequence, _ = FIT[model, gpu]
    kv_bytes = 81920 if model == LLAMA else 48128
    return t0 + gemm_ms(model, gpu, batch) + 1e3 * kv_tokens * kv_bytes / (tb_s * 1e12) / eff_kv + per_sequence * batch


def cost(model: str = LLAMA, gpu: str = H100) -> CostModel:
    return CostModel.of(builtin(), model, gpu)


@pytest.mark.parametrize(("model", "gpu"), DEPLOYED)
@pytest.mark.parametrize(("new", "prefix"), [(1, 0), (32, 0), (1000, 0), (16384, 0), (50, 7000), (1, 100_000)])
def test_prefill_follows_the_formula(model: str, gpu: str, new: int, prefix: int) -> None:
    assert 1e3 * cost(model, gpu).prefill_s(new, prefix) == pytest.approx(
        prefill_ms(model, gpu, new, prefix), rel=1e-12
    )


@pytest.mark.parametrize(("model", "gpu"), DEPLOYED)
@pytest.mark.parametrize(("batch", "kv_tokens"), [(1, 1), (1, 16384), (16, 16_000), (256, 500_000), (400, 400)])
def test_a_decode_step_follows_the_formula(model: str, gpu: str, batch: int, kv_tokens: int) -> None:
    expected = step_ms(model, gpu, batch, kv_tokens)
    assert 1e3 * cost(model, gpu).decode_step_s(batch, kv_tokens) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("model", "gpu"), DEPLOYED)
@pytest.mark.parametrize(
    ("prompt", "output", "batch"), [(700, 1, 1), (700, 2, 16), (700, 3, 16), (1, 513, 7), (9000, 57, 256)]
)
def test_the_closed_form_of_decode_equals_the_sum_of_its_steps(
    model: str, gpu: str, prompt: int, output: int, batch: int
) -> None:
    steps = max(1, output - 1)  # the first output token belongs to prefill
    expected = sum(step_ms(model, gpu, batch, batch * (prompt + k)) for k in range(1, steps + 1))
    assert 1e3 * cost(model, gpu).decode_s(prompt, output, batch) == pytest.approx(expected, rel=1e-10)


def test_one_output_token_takes_one_step_like_two() -> None:
    assert cost().decode_s(800, 1, 16) == cost().decode_s(800, 2, 16) == cost().decode_step_s(16, 16 * 801)


def test_lengths_may_be_arrays_that_broadcast() -> None:
    grid = cost().prefill_s(np.array([[10], [20]]), np.array([0, 5, 9]))
    assert grid.shape == (2, 3)
    assert grid[1, 2] == cost().prefill_s(20, 9)
    assert cost().decode_s(np.array([5, 6]), np.array([7, 8]), 4)[1] == cost().decode_s(6, 8, 4)


@pytest.mark.parametrize(
    ("model", "gpu", "tokens"),
    [
        (LLAMA, A100, 513092),
        (LLAMA, H100, 508934),
        (LLAMA, H200, 1225616),
        (QWEN, A100, 381299),
        (QWEN, H100, 374221),
        (QWEN, H200, 375220),
    ],
)
def test_kv_capacities_equal_the_published_table(model: str, gpu: str, tokens: int) -> None:
    assert cost(model, gpu).kv_capacity_tokens() == tokens


def test_kv_heads_are_replicated_when_parallelism_exceeds_their_number() -> None:
    assert cost(QWEN, H100).kv_bytes_per_gpu == 192512 / 4  # tp 8, 4 KV heads
    assert cost(QWEN, H200).kv_bytes_per_gpu == 192512 / 4  # tp 4
    assert cost(LLAMA, H100).kv_bytes_per_gpu == 327680 / 4  # tp 4, 8 KV heads


def test_a_smaller_share_of_memory_holds_fewer_tokens() -> None:
    # 0.1 of 81,559 MiB less is 8,552,066,252.8 bytes, 104,395.3 tokens of 81,920 bytes
    assert cost().kv_capacity_tokens(0.9) - cost().kv_capacity_tokens(0.8) in (104_395, 104_396)


def test_weights_that_do_not_fit_are_refused_with_both_sizes() -> None:
    whole = "the weights of llama3.1-70b need 35.3 GB per GPU on H100-80GB-SXM:tp4, which has 34.2 GB"
    with pytest.raises(InputError, match=whole):
        cost().kv_capacity_tokens(0.4)
    with pytest.raises(InputError, match=r"need 117\.6 GB per GPU"):
        CostModel(builtin().model(QWEN), builtin().gpu(A100), cost(QWEN, H200).deployment).kv_capacity_tokens()


def test_a_transfer_takes_latency_plus_bytes_over_the_slower_side() -> None:
    cluster = preset("hetero-1")
    # 1,000 tokens of 327,680 bytes at min(4 x 20, 4 x 36) = 80e9 B/s: 4.096 ms, and 0.4 ms latency
    for p, d in ((A100, H200), (H200, A100), (A100, A100)):
        assert kv_transfer(cluster, cost(LLAMA, p), cost(LLAMA, d), 1000) == pytest.approx(0.004496, rel=1e-12)
    # 144e9 B/s between the two others
    assert kv_transfer(cluster, cost(LLAMA, H100), cost(LLAMA, H200), 9000) == pytest.approx(
        0.0004 + 0.02048, rel=1e-12
    )
    # 192,512 bytes at min(8 x 20, 4 x 36) = 144e9 B/s
    assert kv_transfer(cluster, cost(QWEN, A100), cost(QWEN, H200), 9000) == pytest.approx(0.0004 + 0.012032, rel=1e-12)


def test_a_link_overrides_the_bandwidth_of_its_pair_and_direction_only() -> None:
    pool = Pool((Group(A100, 1), Group(H100, 1)))
    cluster = Cluster(pool, pool, links=(Link(A100, H100, 25.0),), transfer_latency_s=0.001)
    a100, h100 = cost(LLAMA, A100), cost(LLAMA, H100)
    assert kv_bandwidth(cluster, a100, h100) == 25e9
    assert kv_bandwidth(cluster, h100, a100) == 80e9
    assert kv_bandwidth(cluster, h100, h100) == 144e9
    assert kv_transfer(cluster, a100, h100, 10_000) == pytest.approx(0.001 + 3.2768e9 / 25e9, rel=1e-12)


def test_a_toy_deployment_costs_what_a_calculation_by_hand_gives() -> None:
    gpu = Gpu("g", bf16_tflops=1, hbm_tb_s=1, memory_mib=2000, rdma_gb_s=1)
    model = Model("m", 1, 1, 1, 1, 250, total_params=500_000_000, dense_block_params=500_000_000, lm_head_params=0)
    fit = Deployment("m", "g", 1, 1.0, 1.0, 1.0, 1.0, t0_prefill_ms=500, t0_decode_ms=1, ms_per_seq=0, combine="max")
    toy = CostModel.of(Catalogue((gpu,), (model,), (fit,)), "m", "g")
    # 1,000 tokens: 0.5 s fixed, 1 s of 1e9 FLOP a token at 1e12 FLOP/s, 0.5 ms of 4 x 250 x 500,000 FLOP
    assert toy.prefill_s(1000) == pytest.approx(1.5005, rel=1e-12)
    # 2,000 cached tokens add 4 x 250 x 1,000 x 2,000 FLOP
    assert toy.prefill_s(1000, 2000) == pytest.approx(1.5025, rel=1e-12)
    # one sequence: 1 ms fixed, 1 ms of weights (1e9 bytes at 1e12 B/s), 1 ns a resident token of 1,000 bytes
    assert toy.decode_s(100, 3, 1) == pytest.approx(0.004 + (101 + 102) * 1e-9, rel=1e-12)
    # five sequences: 5 ms of compute hide the weights
    assert toy.decode_step_s(5, 0) == pytest.approx(0.006, rel=1e-12)
    # half of 2,000 MiB less 1e9 bytes of weights
    assert toy.kv_capacity_tokens(0.5) == 48_576


tokens = st.integers(1, 200_000)
deployed = st.sampled_from(DEPLOYED)


@given(deployed, tokens, tokens, st.integers(1, 1000))
def test_prefill_grows_with_new_tokens_and_with_the_prefix(
    where: tuple[str, str], new: int, prefix: int, more: int
) -> None:
    here = cost(*where)
    assert (
        here.prefill_s(new + more, prefix) > here.prefill_s(new, prefix) or where[0] == LLAMA
    )  # flat while memory-bound
    assert here.prefill_s(new + more, prefix) >= here.prefill_s(new, prefix)
    assert here.prefill_s(new, prefix + more) > here.prefill_s(new, prefix)


@given(deployed, st.integers(2, 10_000), st.integers(1, 100_000))
def test_a_cached_prefix_never_makes_prefill_slower_than_the_whole_prompt(
    where: tuple[str, str], prompt: int, cached: int
) -> None:
    prefix = cached % prompt
    assert cost(*where).prefill_s(prompt - prefix, prefix) <= cost(*where).prefill_s(prompt) * (1 + 1e-12)


@given(deployed, tokens, st.integers(2, 10_000), st.integers(1, 256), st.integers(1, 1000))
def test_decode_grows_with_prompt_output_and_batch(
    where: tuple[str, str], prompt: int, output: int, batch: int, more: int
) -> None:
    here = cost(*where)
    base = here.decode_s(prompt, output, batch)
    assert here.decode_s(prompt + more, output, batch) > base
    assert here.decode_s(prompt, output + more, batch) > base
    assert here.decode_s(prompt, output, batch + more) > base


@given(tokens, st.integers(2, 10_000))
def test_the_newer_gpu_is_never_slower(prompt: int, output: int) -> None:
    for model in (LLAMA, QWEN):
        assert cost(model, H100).prefill_s(prompt) < cost(model, A100).prefill_s(prompt)
        assert cost(model, H200).decode_s(prompt, output, 16) < cost(model, A100).decode_s(prompt, output, 16)


def measured(file: str, deployment: Deployment) -> list[dict[str, str]]:
    """Return the held-out rows of one deployment on the software that the fit was made for."""
    name = {LLAMA: "llama-3.1-70b", QWEN: "qwen3-235b-a22b"}[deployment.model]
    with open(REFERENCE / file, newline="", encoding="utf-8") as lines:
        return [
            row
            for row in csv.DictReader(lines)
            if (row["split"], row["software"]) == ("held_out", "SGLang 0.5.9")
            and (row["model"], row["gpu"], int(row["tp"])) == (name, deployment.gpu, deployment.tp)
        ]


def mean_error_pct(predicted_s: list[float], rows: list[dict[str, str]]) -> float:
    errors = [abs(1e3 * p / float(row["latency_ms"]) - 1) for p, row in zip(predicted_s, rows, strict=True)]
    return 100 * math.fsum(errors) / len(errors)


@needs_reference
@pytest.mark.parametrize(("model", "gpu"), DEPLOYED)
def test_the_decode_error_on_held_out_shapes_is_the_one_published(model: str, gpu: str) -> None:
    here = cost(model, gpu)
    rows = measured("decode.csv", here.deployment)
    predicted = [float(here.decode_step_s(int(row["batch"]), int(row["kv_tokens"]))) for row in rows]
    assert len(rows) > 100
    assert round(mean_error_pct(predicted, rows), 2) == here.deployment.held_out_decode_pct


@needs_reference
@pytest.mark.parametrize(("model", "gpu"), DEPLOYED)
def test_the_prefill_error_on_held_out_shapes_is_the_one_published(model: str, gpu: str) -> None:
    here = cost(model, gpu)
    rows = measured("prefill.csv", here.deployment)
    predicted = []
    for row in rows:
        batch, total = int(row["batch"]), int(row["total_tokens"])
        # Attention of b prompts of n / b tokens is n^2 / (2 b): as one prompt of n tokens, a prefix of n (1/b - 1) / 2.
        predicted.append(float(here.prefill_s(total, total * (1 / batch - 1) / 2)))
    assert len(rows) == 100
    assert round(mean_error_pct(predicted, rows), 2) == here.deployment.held_out_prefill_pct
