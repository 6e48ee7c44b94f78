"""GPU kinds, models, fitted deployments and cluster presets, as data: the TOML files beside this module."""

import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from workbench.errors import InputError
from workbench.fields import STRICT, Count, Name, Positive, Seconds, Size

__all__ = ["Catalogue", "Deployment", "Gpu", "Model", "Validated", "builtin", "read_toml"]

T = TypeVar("T", "Gpu", "Model")


@dataclass(frozen=True, config=STRICT)
class Gpu:
    """A GPU kind: datasheet peaks and the effective RDMA bandwidth of its network card.

    Parameters
    ----------
    bf16_tflops : float
        Dense BF16 peak, 1e12 FLOP/s.
    hbm_tb_s : float
        Memory bandwidth, 1e12 B/s.
    memory_mib : int
        Memory the driver shows, MiB.
    rdma_gb_s : float
        Effective bandwidth to a GPU of another node, 1e9 B/s.
    """

    name: Name
    bf16_tflops: Positive
    hbm_tb_s: Positive
    memory_mib: Size
    rdma_gb_s: Positive
    source: str = ""

    @property
    def memory_bytes(self) -> int:
        """Memory in bytes."""
        return self.memory_mib * 2**20


@dataclass(frozen=True, config=STRICT)
class Model:
    """Shape and parameter counts of a model; ``experts`` is 0 for a dense one."""

    name: Name
    layers: Size
    hidden: Size
    heads: Size
    kv_heads: Size
    head_dim: Size
    total_params: Count
    dense_block_params: Count
    lm_head_params: Count
    expert_params: Count = 0
    experts: Count = 0
    experts_per_token: Count = 0
    bytes_per_param: Annotated[float, Field(ge=0.1, le=16, strict=True)] = 2
    source: str = ""

    @model_validator(mode="after")
    def _uses_experts_that_it_has(self) -> "Model":
        if self.experts_per_token > self.experts:
            raise ValueError(
                f"model '{self.name}': experts_per_token {self.experts_per_token} exceeds experts {self.experts}"
            )
        return self

    @property
    def kv_bytes_per_token(self) -> float:
        """KV-cache bytes of one token over the whole model, without replication."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_param

    def weight_bytes_per_gpu(self, tp: int) -> float:
        """Return the weight bytes on each of ``tp`` GPUs; expert routers and surplus KV projections are replicated."""
        router = self.layers * self.hidden * self.experts
        kv_projection = 2 * self.layers * self.hidden * self.kv_heads * self.head_dim
        replicated = router * (1 - 1 / tp) + kv_projection * (1 / min(tp, self.kv_heads) - 1 / tp)
        return self.bytes_per_param * (self.total_params / tp + replicated)

    @property
    def active_expert_share(self) -> float:
        """Share of the expert parameters that one token uses."""
        return self.experts_per_token / self.experts if self.experts else 0.0


@dataclass(frozen=True, config=STRICT)
class Validated:
    """Range of shapes on which a deployment's parameters were compared with measurements: [least, largest]."""

    prompt_tokens: tuple[Size, Size]
    batch: tuple[Size, Size]
    context_tokens: tuple[Size, Size]


@dataclass(frozen=True, config=STRICT)
class Deployment:
    """Roofline parameters of one model on one GPU kind at one tensor parallelism; see `workbench.cost`."""

    model: Name
    gpu: Name
    tp: Annotated[int, Field(gt=0, le=1024, strict=True)]
    eff_compute: Positive
    eff_mem: Positive
    eff_attn: Positive
    eff_kv: Positive
    t0_prefill_ms: Seconds
    t0_decode_ms: Seconds
    ms_per_seq: Seconds
    combine: Literal["max", "sum"]
    touch: Positive = 1.0
    held_out_prefill_pct: Seconds | None = None
    held_out_decode_pct: Seconds | None = None
    validated: Validated | None = None
    source: str = ""

    @property
    def name(self) -> str:
        """Name of the deployment class, for instance ``H100-80GB-SXM:tp4``."""
        return f"{self.gpu}:tp{self.tp}"


@dataclass(frozen=True, config=STRICT)
class Catalogue:
    """GPU kinds, models and deployments that clusters refer to by name."""

    gpus: tuple[Gpu, ...] = ()
    models: tuple[Model, ...] = ()
    deployments: tuple[Deployment, ...] = ()

    def gpu(self, name: str) -> Gpu:
        """Return the GPU kind of that name, or raise `InputError`."""
        return _named(self.gpus, name, "GPU kind")

    def model(self, name: str) -> Model:
        """Return the model of that name, or raise `InputError`."""
        return _named(self.models, name, "model")

    def deployment(self, model: str, gpu: str, tp: int | None = None) -> Deployment:
        """Return the deployment of a model on a GPU kind.

        Parameters
        ----------
        model, gpu : str
            Names of the model and the GPU kind.
        tp : int, optional
            Tensor parallelism; the catalogue's first for this model and GPU kind if omitted.

        Raises
        ------
        InputError
            If the catalogue has none.
        """
        here = [d for d in self.deployments if d.model == model and d.gpu == gpu]
        for deployment in here:
            if tp in (None, deployment.tp):
                return deployment
        wanted = f"{model} on {gpu}" + (f" at tp {tp}" if tp else "")
        known = ", ".join(dict.fromkeys(f"tp {d.tp}" for d in here)) or ", ".join(
            dict.fromkeys(d.gpu for d in self.deployments if d.model == model)
        )
        raise InputError(f"no deployment of {wanted} in the catalogue (known: {known or 'none for this model'})")

    def restricted(self, model: str, uses: Iterable[tuple[str, int | None]]) -> "Catalogue":
        """Return the part of the catalogue that one model on the given (GPU kind, tp) uses, in order of use."""
        models = (self.model(model),)
        deployments = list(dict.fromkeys(self.deployment(model, gpu, tp) for gpu, tp in uses))
        gpus = list(dict.fromkeys(self.gpu(d.gpu) for d in deployments))
        return Catalogue(tuple(gpus), models, tuple(deployments))


def _named(entries: tuple[T, ...], name: str, what: str) -> T:
    for entry in entries:
        if entry.name == name:
            return entry
    known = ", ".join(dict.fromkeys(entry.name for entry in entries))
    raise InputError(f"unknown {what} '{name}' (known: {known})")


def read_toml(name: str) -> dict[str, Any]:
    """Return the parsed TOML file of that name in this package."""
    return tomllib.loads(files(__package__).joinpath(name).read_text(encoding="utf-8"))


@cache
def builtin() -> Catalogue:
    """Return the catalogue that ships with the workbench."""
    tables = read_toml("gpus.toml") | read_toml("models.toml") | read_toml("deployments.toml")
    return TypeAdapter(Catalogue).validate_python(tables)
