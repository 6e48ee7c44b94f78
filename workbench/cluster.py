"""Prefill-decode disaggregated clusters: pools of instances and the links between them."""

from collections.abc import Iterator
from functools import cache
from typing import Annotated

from pydantic import Field, TypeAdapter, model_validator
from pydantic.dataclasses import dataclass

from workbench.catalogue import read_toml
from workbench.errors import InputError
from workbench.fields import STRICT, Fraction, Name, Positive, Seconds, Tokens

__all__ = ["Cluster", "Group", "Link", "Pool", "preset", "presets"]


@dataclass(frozen=True, config=STRICT)
class Group:
    """Equal instances of a pool.

    Parameters
    ----------
    gpu : str
        GPU kind.
    count : int
        Number of instances.
    tp : int, optional
        Tensor parallelism (GPUs an instance); what the catalogue has for the model if omitted.
    """

    gpu: Name
    count: Annotated[int, Field(ge=1, le=10_000, strict=True)]
    tp: Annotated[int, Field(ge=1, le=1024, strict=True)] | None = None


@dataclass(frozen=True, config=STRICT)
class Pool:
    """The instances of one stage.

    Parameters
    ----------
    groups : tuple of Group
        The instances.
    kv_capacity_tokens : int, optional
        Upper limit on the KV capacity of every decode instance, in tokens, where it is to be below what the memory
        holds. Decode batches are commonly capped in practice.
    """

    groups: Annotated[tuple[Group, ...], Field(min_length=1)]
    kv_capacity_tokens: Tokens | None = None

    @property
    def uses(self) -> Iterator[tuple[str, int | None]]:
        """(GPU kind, tensor parallelism) of every group."""
        return ((group.gpu, group.tp) for group in self.groups)

    def __len__(self) -> int:
        """Return the number of instances."""
        return sum(group.count for group in self.groups)


@dataclass(frozen=True, config=STRICT)
class Link:
    """Effective bandwidth (1e9 B/s an instance pair) from one GPU kind to another, where it is known better."""

    prefill: Name
    decode: Name
    gb_s: Positive


@dataclass(frozen=True, config=STRICT)
class Cluster:
    """A prefill pool and a decode pool (section 4.2 of the paper).

    Parameters
    ----------
    prefill, decode : Pool
        The pools.
    name : str
        Name in tables and plots.
    links : tuple of Link
        Exceptions to the default KV bandwidth, which is the smaller of both sides' tp x RDMA bandwidth per GPU.
    transfer_latency_s : float
        Constant part of every KV transfer in seconds; 0.4 ms as measured between RoCE nodes (Mooncake).
    memory_fraction : float
        Share of GPU memory for weights and KV cache.
    """

    prefill: Pool
    decode: Pool
    name: Name = "custom"
    links: tuple[Link, ...] = ()
    transfer_latency_s: Seconds = 0.0004
    memory_fraction: Fraction = 0.9

    @model_validator(mode="after")
    def _links_are_between_its_gpus(self) -> "Cluster":
        pairs: set[tuple[str, str]] = set()
        for link in self.links:
            for stage, pool in (("prefill", self.prefill), ("decode", self.decode)):
                known = [gpu for gpu, _ in pool.uses]
                if getattr(link, stage) not in known:
                    raise ValueError(
                        f"links: the {stage} pool has no GPU kind '{getattr(link, stage)}' (it has: {', '.join(known)})"
                    )
            if (link.prefill, link.decode) in pairs:
                raise ValueError(f"links: {link.prefill} to {link.decode} appears twice; keep one")
            pairs.add((link.prefill, link.decode))
        return self


@cache
def presets() -> dict[str, Cluster]:
    """Return the cluster presets by name."""
    clusters = TypeAdapter(tuple[Cluster, ...]).validate_python(read_toml("clusters.toml")["clusters"])
    return {cluster.name: cluster for cluster in clusters}


def preset(name: str) -> Cluster:
    """Return the cluster preset of that name, or raise `InputError`."""
    try:
        return presets()[name]
    except KeyError:
        raise InputError(f"unknown cluster '{name}' (known: {', '.join(presets())})") from None
