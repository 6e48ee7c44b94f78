"""An instance: workload, cluster and model, declarative and serialisable; it compiles once into plain arrays."""

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, Field, model_validator
from pydantic.dataclasses import dataclass

from workbench.catalogue import Catalogue, builtin
from workbench.cluster import Cluster, Pool, preset
from workbench.compiled import CompiledInstance, largest_batch
from workbench.cost import CostModel, kv_transfer
from workbench.fields import STRICT, Name
from workbench.workflow import Workflow, Workload

__all__ = ["REFERENCE_BATCH", "Instance"]

REFERENCE_BATCH = 16
"""Default batch of the interval decode model: the geometric middle of the validated batches, 1 to 256."""


def _as_workload(value: Any) -> Any:
    if isinstance(value, Sequence) and value and all(isinstance(w, Workflow) for w in value):
        return Workload(tuple(value))
    return value


def _as_cluster(value: Any) -> Any:
    return preset(value) if isinstance(value, str) else value


@dataclass(frozen=True, config=STRICT)
class Instance:
    """An instance of the scheduling problem (section 5.1 of the paper).

    Parameters
    ----------
    workload : Workload or sequence of Workflow
        The workflows.
    cluster : Cluster or str
        The cluster, or the name of a preset such as ``hetero-1``.
    model : str
        The model, such as ``llama3.1-70b``.
    reference_batch : int
        Batch ``B_ref`` at which interval decode times are taken.
    catalogue : Catalogue, optional
        Own GPU kinds, models and deployments; they come before the built-in ones. The instance keeps all that it uses,
        so that it means the same whatever ships with a later version.
    name : str
        Name in tables and plots.

    Raises
    ------
    pydantic.ValidationError
        If weights do not fit, a call's KV demand fits no decode instance, or a name is unknown.

    Examples
    --------
    >>> from workbench.workflow import Call, Workflow
    >>> chain = Workflow("w0", (Call("a", 800, 60), Call("b", 900, 40, parents={"a": 0.2})))
    >>> Instance([chain], cluster="hetero-1", model="llama3.1-70b").compile().n_calls
    2
    """

    workload: Annotated[Workload, BeforeValidator(_as_workload)]
    cluster: Annotated[Cluster, BeforeValidator(_as_cluster)]
    model: Name
    reference_batch: Annotated[int, Field(ge=1, le=100_000, strict=True)] = REFERENCE_BATCH
    catalogue: Catalogue = Field(default_factory=Catalogue)
    name: str = ""

    @model_validator(mode="after")
    def _complete_and_compile(self) -> "Instance":
        own, shipped = self.catalogue, builtin()
        known = Catalogue(own.gpus + shipped.gpus, own.models + shipped.models, own.deployments + shipped.deployments)
        uses = [*self.cluster.prefill.uses, *self.cluster.decode.uses]
        object.__setattr__(self, "catalogue", known.restricted(self.model, uses))
        self._compiled  # noqa: B018  an instance that exists can be compiled
        return self

    def compile(self) -> CompiledInstance:
        """Return the instance as arrays; computed once."""
        return self._compiled

    @cached_property
    def _compiled(self) -> CompiledInstance:
        calls = [call for workflow in self.workload for call in workflow.calls]
        first = np.cumsum([0] + [len(workflow.calls) for workflow in self.workload], dtype=np.int64)
        parents: list[int] = []
        delays: list[float] = []
        for offset, workflow in zip(first[:-1].tolist(), self.workload, strict=True):
            position = {call.id: offset + i for i, call in enumerate(workflow.calls)}
            for call in workflow.calls:
                parents.extend(position[parent] for parent in call.parents)
                delays.extend(call.parents.values())
        inputs = np.array([call.input_tokens for call in calls], dtype=np.int64)
        outputs = np.array([call.output_tokens for call in calls], dtype=np.int64)
        predicted = np.array([call.predicted_output_tokens or call.output_tokens for call in calls], dtype=np.int64)
        cached = np.array([call.cached_prefix_tokens for call in calls], dtype=np.int64)
        p_costs, p_class = self._classes(self.cluster.prefill)
        d_costs, d_class = self._classes(self.cluster.decode)
        capacity = [cost.kv_capacity_tokens(self.cluster.memory_fraction) for cost in d_costs]
        for cost in p_costs:
            cost.kv_capacity_tokens(self.cluster.memory_fraction)
        limit = self.cluster.decode.kv_capacity_tokens
        capacity = [min(tokens, limit) if limit else tokens for tokens in capacity]
        capacity_tokens = np.array(capacity, dtype=np.int64)[d_class]
        batch = self.reference_batch
        batches = np.arange(largest_batch(inputs + outputs, capacity_tokens) + 1)
        return CompiledInstance(
            name=self.name,
            workflow_ids=tuple(workflow.id for workflow in self.workload),
            call_ids=tuple(call.id for call in calls),
            first_call=first,
            arrival_s=np.array([workflow.arrival_s for workflow in self.workload]),
            weight=np.array([workflow.weight for workflow in self.workload]),
            parent_start=np.cumsum([0] + [len(call.parents) for call in calls], dtype=np.int64),
            parents=np.array(parents, dtype=np.int64),
            tool_delay_s=np.array(delays, dtype=np.float64),
            input_tokens=inputs,
            output_tokens=outputs,
            predicted_output_tokens=predicted,
            cached_prefix_tokens=cached,
            prefill_s=np.column_stack([cost.prefill_s(inputs - cached, cached) for cost in p_costs]),
            transfer_s=np.stack(
                [np.column_stack([kv_transfer(self.cluster, p, d, inputs) for d in d_costs]) for p in p_costs], axis=1
            ),
            decode_s=np.column_stack([cost.decode_s(inputs, outputs, batch) for cost in d_costs]),
            predicted_decode_s=np.column_stack([cost.decode_s(inputs, predicted, batch) for cost in d_costs]),
            prefill_class=p_class,
            decode_class=d_class,
            capacity_tokens=capacity_tokens,
            prefill_class_names=tuple(cost.deployment.name for cost in p_costs),
            decode_class_names=tuple(cost.deployment.name for cost in d_costs),
            decode_fixed_s=np.stack([cost.decode_step_s(batches, 0) for cost in d_costs]),
            kv_read_s=np.array([cost.kv_read_s for cost in d_costs]),
        )

    def _classes(self, pool: Pool) -> tuple[list[CostModel], np.ndarray]:
        """Return the cost model of each deployment class of a pool, and the class of each of its instances."""
        costs: dict[str, CostModel] = {}
        members: list[str] = []
        for group in pool.groups:
            cost = CostModel.of(self.catalogue, self.model, group.gpu, group.tp)
            costs.setdefault(cost.deployment.name, cost)
            members.extend([cost.deployment.name] * group.count)
        order = list(costs)
        return list(costs.values()), np.array([order.index(name) for name in members], dtype=np.int64)

    def offered_load(self) -> float:
        """Return the prefill work that arrives per second over what the prefill pool can do; above 1 queues grow.

        The pool's rate is the greatest with which it can serve this mix, every call at the pool's mean speed for it:
        ``sum over calls of 1 / sum over instances of 1 / prefill_s``, over the time in which the workflows arrive.
        """
        inst = self.compile()
        span = float(inst.arrival_s.max() - inst.arrival_s.min())
        if span == 0:
            return float("inf")
        arriving = span * inst.n_workflows / max(1, inst.n_workflows - 1)
        return float((1 / (1 / inst.prefill_s[:, inst.prefill_class]).sum(axis=1)).sum() / arriving)
