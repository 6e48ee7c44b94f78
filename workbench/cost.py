"""Roofline cost model: prefill, decode, KV transfer and KV capacity of a model on a deployment.

The form and its parameters were fitted to kernel times (see ``catalogue/deployments.toml`` for source and validated
range). With ``P = tp * peak FLOP/s``, ``W = tp * memory bandwidth``, ``n`` tokens in the step and
``touched = 1 - (1 - k/E)^(touch n)`` the share of a mixture's experts that the step reads:

- compute  ``C = 2 (dense block parameters + active expert parameters) n / P``
- weights  ``M = bytes (dense block + LM head + touched expert parameters) / W``
- prefill  ``= t0 + combine(C / eff_compute, M / eff_mem) + A / eff_attn``, with attention
  ``A = 4 layers heads head_dim (n^2 / 2 + n prefix) / P`` over the new tokens and the cached prefix
- decode step  ``= t0 + combine(C / eff_compute, M / eff_mem) + K / eff_kv + per_seq B`` for ``B`` sequences with ``K``
  the time to read their resident KV at full memory bandwidth

``combine`` is max for a dense model and sum for a mixture of experts, whose expert loads and compute overlap poorly.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.catalogue import Catalogue, Deployment, Gpu, Model
from workbench.cluster import Cluster
from workbench.errors import InputError

__all__ = ["CostModel", "kv_bandwidth", "kv_transfer"]

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class CostModel:
    """Times and capacities of one instance of a deployment."""

    model: Model
    gpu: Gpu
    deployment: Deployment

    @classmethod
    def of(cls, catalogue: Catalogue, model: str, gpu: str, tp: int | None = None) -> "CostModel":
        """Return the cost model of a model on a GPU kind, looked up in a catalogue."""
        return cls(catalogue.model(model), catalogue.gpu(gpu), catalogue.deployment(model, gpu, tp))

    def prefill_s(self, new_tokens: ArrayLike, prefix_tokens: ArrayLike = 0) -> Floats:
        """Return the time to prefill one prompt.

        Parameters
        ----------
        new_tokens : array_like
            Prompt tokens to compute.
        prefix_tokens : array_like
            Prompt tokens whose KV is cached.

        Returns
        -------
        numpy.ndarray
            Seconds, of the broadcast shape.
        """
        new = np.asarray(new_tokens, dtype=np.float64)
        prefix = np.asarray(prefix_tokens, dtype=np.float64)
        shape = self.model.layers * self.model.heads * self.model.head_dim
        attention = 4 * shape * (new**2 / 2 + new * prefix) / self._flops
        return self.deployment.t0_prefill_ms * 1e-3 + self._gemm_s(new) + attention / self.deployment.eff_attn

    def decode_step_s(self, batch: ArrayLike, kv_tokens: ArrayLike) -> Floats:
        """Return the time of one decode step of ``batch`` sequences with ``kv_tokens`` resident tokens in all."""
        sequences = np.asarray(batch, dtype=np.float64)
        resident = np.asarray(kv_tokens, dtype=np.float64)
        return self._decode_fixed_s(sequences) + resident * self.kv_read_s

    def decode_s(self, input_tokens: ArrayLike, output_tokens: ArrayLike, batch: int) -> Floats:
        """Return the time to decode one call in a steady batch of calls like it (the interval model).

        The first output token belongs to prefill, so ``max(1, output_tokens - 1)`` steps are summed; in step ``k``
        each of the ``batch`` sequences has ``input_tokens + k`` tokens.

        Parameters
        ----------
        input_tokens, output_tokens : array_like
            Lengths of the call.
        batch : int
            Reference batch size.

        Returns
        -------
        numpy.ndarray
            Seconds, of the broadcast shape.
        """
        prompt = np.asarray(input_tokens, dtype=np.float64)
        steps = np.maximum(np.asarray(output_tokens, dtype=np.float64) - 1, 1)
        contexts: Floats = steps * prompt + steps * (steps + 1) / 2
        fixed = self._decode_fixed_s(np.asarray(batch, dtype=np.float64))
        return np.asarray(steps * fixed + batch * contexts * self.kv_read_s)

    @property
    def kv_read_s(self) -> float:
        """Seconds that one resident KV token adds to a decode step."""
        return self.kv_bytes_per_gpu / (self.gpu.hbm_tb_s * 1e12) / self.deployment.eff_kv

    @property
    def kv_bytes_per_gpu(self) -> float:
        """KV bytes a token on each GPU; heads are replicated when tp exceeds their number."""
        return self.model.kv_bytes_per_token / min(self.deployment.tp, self.model.kv_heads)

    def kv_capacity_tokens(self, memory_fraction: float = 0.9) -> int:
        """Return how many KV tokens an instance holds beside the weights.

        Raises
        ------
        InputError
            If the weights do not fit.
        """
        weights = self.model.weight_bytes_per_gpu(self.deployment.tp)
        free = memory_fraction * self.gpu.memory_bytes - weights
        tokens = int(free // self.kv_bytes_per_gpu)
        if tokens < 1:
            have = memory_fraction * self.gpu.memory_bytes
            raise InputError(
                f"the weights of {self.model.name} need {weights / 1e9:.1f} GB per GPU on {self.deployment.name}, "
                f"which has {have / 1e9:.1f} GB for them and a KV cache; raise tp or memory_fraction"
            )
        return tokens

    def _gemm_s(self, tokens: Floats) -> Floats:
        m, d = self.model, self.deployment
        active = m.dense_block_params + m.expert_params * m.active_expert_share
        touched = 1 - (1 - m.active_expert_share) ** (d.touch * tokens)
        compute = 2 * active * tokens / self._flops / d.eff_compute
        read = m.dense_block_params + m.lm_head_params + m.expert_params * touched
        memory = m.bytes_per_param * read / (d.tp * self.gpu.hbm_tb_s * 1e12) / d.eff_mem
        return np.maximum(compute, memory) if d.combine == "max" else compute + memory

    def _decode_fixed_s(self, batch: Floats) -> Floats:
        d = self.deployment
        return d.t0_decode_ms * 1e-3 + self._gemm_s(batch) + d.ms_per_seq * 1e-3 * batch

    @property
    def _flops(self) -> float:
        return self.deployment.tp * self.gpu.bf16_tflops * 1e12


def kv_bandwidth(cluster: Cluster, prefill: CostModel, decode: CostModel) -> float:
    """Return the effective KV bandwidth from a prefill to a decode instance, in bytes per second."""
    for link in cluster.links:
        if (link.prefill, link.decode) == (prefill.gpu.name, decode.gpu.name):
            return link.gb_s * 1e9
    return min(side.deployment.tp * side.gpu.rdma_gb_s for side in (prefill, decode)) * 1e9


def kv_transfer(cluster: Cluster, prefill: CostModel, decode: CostModel, input_tokens: ArrayLike) -> Floats:
    """Return the time in seconds to move the whole prompt's KV cache from a prefill to a decode instance."""
    size = np.asarray(input_tokens, dtype=np.float64) * prefill.model.kv_bytes_per_token
    return cluster.transfer_latency_s + size / kv_bandwidth(cluster, prefill, decode)
