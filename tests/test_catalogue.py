"""Tests of the catalogue: what ships, how entries are found, and what an entry may not say."""

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from workbench.catalogue import Catalogue, Deployment, Gpu, Model, builtin
from workbench.errors import InputError

ROOM: dict[str, Any] = {
    "eff_compute": 1,
    "eff_mem": 1,
    "eff_attn": 1,
    "eff_kv": 1,
    "t0_prefill_ms": 0,
    "t0_decode_ms": 0,
    "ms_per_seq": 0,
    "combine": "max",
}


def test_both_models_are_deployed_on_the_three_gpu_kinds_at_the_published_parallelism() -> None:
    found = {(d.model, d.gpu): d.tp for d in builtin().deployments}
    assert found == {
        ("llama3.1-70b", "A100-80GB-SXM"): 4,
        ("llama3.1-70b", "H100-80GB-SXM"): 4,
        ("llama3.1-70b", "H200-141GB-SXM"): 4,
        ("qwen3-235b-a22b", "A100-80GB-SXM"): 8,
        ("qwen3-235b-a22b", "H100-80GB-SXM"): 8,
        ("qwen3-235b-a22b", "H200-141GB-SXM"): 4,
    }


def test_every_shipped_entry_names_its_source() -> None:
    catalogue = builtin()
    assert all(entry.source for entry in (*catalogue.gpus, *catalogue.models, *catalogue.deployments))


def test_the_kv_cache_of_a_token_follows_from_the_model_shape() -> None:
    assert builtin().model("llama3.1-70b").kv_bytes_per_token == 2 * 80 * 8 * 128 * 2
    assert builtin().model("qwen3-235b-a22b").kv_bytes_per_token == 2 * 94 * 4 * 128 * 2


@pytest.mark.parametrize(
    ("model", "tp", "gigabytes"),
    [("llama3.1-70b", 4, 35.28), ("qwen3-235b-a22b", 8, 58.96), ("qwen3-235b-a22b", 4, 117.62)],
)
def test_weights_per_gpu_equal_the_published_figures(model: str, tp: int, gigabytes: float) -> None:
    assert round(builtin().model(model).weight_bytes_per_gpu(tp) / 1e9, 2) == gigabytes


def test_the_active_share_of_experts_is_zero_for_a_dense_model() -> None:
    assert builtin().model("llama3.1-70b").active_expert_share == 0
    assert builtin().model("qwen3-235b-a22b").active_expert_share == 8 / 128


@pytest.mark.parametrize(
    ("find", "message"),
    [
        (lambda c: c.gpu("B300"), r"unknown GPU kind 'B300' \(known: A100-80GB-SXM, H100-80GB-SXM, H200-141GB-SXM\)"),
        (lambda c: c.model("gpt"), r"unknown model 'gpt' \(known: llama3.1-70b, qwen3-235b-a22b\)"),
        (lambda c: c.deployment("llama3.1-70b", "A100-80GB-SXM", 2), r"on A100-80GB-SXM at tp 2 .*\(known: tp 4\)"),
        (lambda c: c.deployment("llama3.1-70b", "B300"), r"llama3.1-70b on B300 in the .*\(known: A100-80GB-SXM, H100"),
        (lambda c: c.deployment("gpt", "A100-80GB-SXM"), r"gpt on A100-80GB-SXM .*\(known: none for this model\)"),
    ],
)
def test_an_unknown_name_is_refused_with_the_known_ones(find: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find(builtin())


def test_the_first_deployment_is_taken_where_no_parallelism_is_asked_for() -> None:
    wide, narrow = (Deployment(model="m", gpu="g", tp=tp, **ROOM) for tp in (8, 2))
    catalogue = Catalogue(deployments=(wide, narrow))
    assert catalogue.deployment("m", "g") is wide
    assert catalogue.deployment("m", "g", 2) is narrow


def test_a_restricted_catalogue_keeps_only_what_is_used_in_order_of_use() -> None:
    part = builtin().restricted(
        "qwen3-235b-a22b", [("H200-141GB-SXM", None), ("A100-80GB-SXM", 8), ("H200-141GB-SXM", 4)]
    )
    assert [g.name for g in part.gpus] == ["H200-141GB-SXM", "A100-80GB-SXM"]
    assert [m.name for m in part.models] == ["qwen3-235b-a22b"]
    assert [d.name for d in part.deployments] == ["H200-141GB-SXM:tp4", "A100-80GB-SXM:tp8"]


GPU = {"name": "g", "bf16_tflops": 1, "hbm_tb_s": 1, "memory_mib": 1, "rdma_gb_s": 1}
MODEL = {
    "name": "m",
    "layers": 1,
    "hidden": 1,
    "heads": 1,
    "kv_heads": 1,
    "head_dim": 1,
    "total_params": 1,
    "dense_block_params": 1,
    "lm_head_params": 1,
}


@pytest.mark.parametrize("kind", [Gpu, Model, Deployment])
@pytest.mark.parametrize("bad", [0, -1, 10**400, float("nan"), float("inf"), True, "4", None])
def test_no_figure_of_an_entry_may_be_nonsense(kind: type, bad: object) -> None:
    sound = {Gpu: GPU, Model: MODEL, Deployment: {"model": "m", "gpu": "g", "tp": 1, **ROOM}}[kind]
    adapter: TypeAdapter[Any] = TypeAdapter(kind)
    adapter.validate_python(sound)
    for field, value in sound.items():
        zero_is_sound = bad == 0 and ("params" in field or "ms" in field)
        if not isinstance(value, str) and not zero_is_sound:
            with pytest.raises(ValidationError, match=field):
                adapter.validate_python({**sound, field: bad})


def test_a_token_cannot_use_more_experts_than_there_are() -> None:
    with pytest.raises(ValidationError, match="model 'm': experts_per_token 9 exceeds experts 8"):
        Model(**MODEL, expert_params=1, experts=8, experts_per_token=9)
