"""Clusters, models and instances as tables."""

import numpy as np
import pandas as pd

from workbench.catalogue import Deployment, builtin
from workbench.cluster import preset
from workbench.cost import CostModel, kv_bandwidth
from workbench.errors import InputError
from workbench.instance import Instance

__all__ = ["cluster_table", "instance_table", "model_table"]


def cluster_table(name: str, model: str) -> pd.DataFrame:
    """Return a cluster preset serving a model: a row for each deployment class of each pool.

    ``kv_gb_s_to`` columns are the effective KV bandwidth from a prefill class to a decode class in 1e9 B/s;
    ``prefill_1k_ms`` is the time of a prompt of 1,000 tokens, ``decode_step_ms`` that of a step of 16 sequences with
    1,000 tokens each.
    """
    cluster, catalogue = preset(name), builtin()
    decodes = [CostModel.of(catalogue, model, gpu, tp) for gpu, tp in cluster.decode.uses]
    rows = []
    for pool_name, pool in (("prefill", cluster.prefill), ("decode", cluster.decode)):
        for group in pool.groups:
            cost = CostModel.of(catalogue, model, group.gpu, group.tp)
            row = {
                "pool": pool_name,
                "deployment": cost.deployment.name,
                "instances": group.count,
                "gpus": group.count * cost.deployment.tp,
                "kv_capacity_tokens": cost.kv_capacity_tokens(cluster.memory_fraction),
                "prefill_1k_ms": 1e3 * float(cost.prefill_s(1000)),
                "decode_step_ms": 1e3 * float(cost.decode_step_s(16, 16_000)),
            }
            if pool_name == "prefill":
                row |= {f"kv_gb_s_to_{d.gpu.name}": kv_bandwidth(cluster, cost, d) / 1e9 for d in decodes}
            rows.append(row)
    return pd.DataFrame(rows).set_index(["pool", "deployment"])


def model_table(name: str) -> pd.DataFrame:
    """Return a model's deployments: fitted parameters, held-out error and KV capacity, a column each."""
    catalogue = builtin()
    model = catalogue.model(name)
    columns = {}
    for deployment in (d for d in catalogue.deployments if d.model == name):
        cost = CostModel(model, catalogue.gpu(deployment.gpu), deployment)
        columns[deployment.name] = {
            "weights_gb_per_gpu": model.weight_bytes_per_gpu(deployment.tp) / 1e9,
            "kv_bytes_per_token": model.kv_bytes_per_token,
            "kv_bytes_per_token_per_gpu": cost.kv_bytes_per_gpu,
            "kv_capacity_tokens": cost.kv_capacity_tokens(),
            "eff_compute": deployment.eff_compute,
            "eff_mem": deployment.eff_mem,
            "eff_attn": deployment.eff_attn,
            "eff_kv": deployment.eff_kv,
            "t0_prefill_ms": deployment.t0_prefill_ms,
            "t0_decode_ms": deployment.t0_decode_ms,
            "ms_per_seq": deployment.ms_per_seq,
            "touch": deployment.touch if model.experts else None,
            "combine": deployment.combine,
            "held_out_prefill_pct": deployment.held_out_prefill_pct,
            "held_out_decode_pct": deployment.held_out_decode_pct,
            "validated_prompt_tokens": _span(deployment, "prompt_tokens"),
            "validated_batch": _span(deployment, "batch"),
            "validated_context_tokens": _span(deployment, "context_tokens"),
            "source": deployment.source,
        }
    if not columns:
        raise InputError(f"model '{name}' has no deployment in the catalogue")
    return pd.DataFrame(columns).rename_axis(index="parameter")


def instance_table(instance: Instance) -> pd.DataFrame:
    """Return an instance's size, load and lengths: one value a row."""
    inst = instance.compile()
    shape = instance.workload.to_frame()
    cached = inst.cached_prefix_tokens.sum() / inst.input_tokens.sum()
    facts = {
        "name": instance.name or "-",
        "source": instance.workload.source or "-",
        "model": instance.model,
        "cluster": instance.cluster.name,
        "prefill instances": len(inst.prefill_class),
        "decode instances": len(inst.decode_class),
        "reference batch": instance.reference_batch,
        "workflows": inst.n_workflows,
        "calls": inst.n_calls,
        "depth, median (largest)": f"{shape.depth.median():.0f} ({shape.depth.max()})",
        "width, median (largest)": f"{shape.width.median():.0f} ({shape.width.max()})",
        "input tokens, median (largest)": f"{np.median(inst.input_tokens):.0f} ({inst.input_tokens.max()})",
        "output tokens, median (largest)": f"{np.median(inst.output_tokens):.0f} ({inst.output_tokens.max()})",
        "cached prefix, share of input": f"{cached:.1%}" if cached else "none: prompts are prefilled in full",
        "arrivals, s": f"{inst.arrival_s.min():.3f} to {inst.arrival_s.max():.3f}",
        "offered prefill load": f"{instance.offered_load():.2f}",
        "standalone horizon, median s": f"{np.median(inst.horizon_s):.3f} ({inst.horizon_kind})",
        "KV capacity, smallest (largest) tokens": f"{inst.capacity_tokens.min()} ({inst.capacity_tokens.max()})",
    }
    return pd.DataFrame({"value": facts}).rename_axis(index="instance")


def _span(deployment: Deployment, what: str) -> str | None:
    if deployment.validated is None:
        return None
    least, largest = getattr(deployment.validated, what)
    return f"{least} to {largest}"
