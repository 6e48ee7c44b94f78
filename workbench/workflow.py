"""Agent workflows: DAGs of LLM calls that reveal themselves while they run."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, overload

import networkx as nx
import numpy as np
from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from workbench.fields import STRICT, Count, Name, Positive, Seconds, Tokens

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Call", "Workflow", "Workload"]

# Streams of one seed, so that arrivals do not depend on which workflows were drawn.
ARRIVALS, DRAWS, LENGTHS = 1, 2, 3


@dataclass(frozen=True, config=STRICT)
class Call:
    """One LLM call of a workflow.

    Parameters
    ----------
    id : str
        Name of the call, unique within its workflow.
    input_tokens : int
        Length of the whole prompt, history included.
    output_tokens : int
        True number of generated tokens. Schedulers never see it.
    parents : dict of str to float
        Calls that must complete first, each with its tool delay in seconds: the time from the end of the parent's
        decode until this call may be revealed.
    predicted_output_tokens : int, optional
        What a scheduler believes ``output_tokens`` to be; the truth if omitted.
    cached_prefix_tokens : int
        Prompt tokens already in an idealised shared KV store. Prefill computes only the others; transfer and KV
        demand stay full.
    """

    id: Name
    input_tokens: Tokens
    output_tokens: Tokens
    parents: dict[Name, Seconds] = Field(default_factory=dict)
    predicted_output_tokens: Tokens | None = None
    cached_prefix_tokens: Count = 0

    @model_validator(mode="after")
    def _prefix_is_part_of_the_prompt(self) -> "Call":
        if self.cached_prefix_tokens >= self.input_tokens:
            raise ValueError(
                f"call '{self.id}': cached_prefix_tokens {self.cached_prefix_tokens} must be below input_tokens "
                f"{self.input_tokens}; leave at least one token to prefill"
            )
        return self


@dataclass(frozen=True, config=STRICT)
class Workflow:
    """A DAG of LLM calls with an arrival time (section 4.1 of the paper).

    Parameters
    ----------
    id : str
        Name of the workflow, unique within its workload.
    calls : tuple of Call
        The calls in any order; each names its parents.
    arrival_s : float
        Arrival time ``a_w`` in seconds.
    weight : float
        Weight in weighted flow time.

    Raises
    ------
    pydantic.ValidationError
        On duplicate call names, unknown parents and cycles, naming workflow and call.
    """

    id: Name
    calls: Annotated[tuple[Call, ...], Field(min_length=1)]
    arrival_s: Seconds = 0.0
    weight: Positive = 1.0

    @model_validator(mode="after")
    def _is_a_dag(self) -> "Workflow":
        known: set[str] = set()
        for call in self.calls:
            if call.id in known:
                raise ValueError(f"workflow '{self.id}': call '{call.id}' appears twice; give each call its own id")
            known.add(call.id)
        for call in self.calls:
            for parent in call.parents:
                if parent not in known:
                    raise ValueError(
                        f"workflow '{self.id}': call '{call.id}': parent '{parent}' is not a call of this workflow"
                    )
        if not nx.is_directed_acyclic_graph(self.graph):
            cycle = [edge[0] for edge in nx.find_cycle(self.graph)]
            raise ValueError(
                f"workflow '{self.id}': call '{cycle[0]}' depends on itself through {' -> '.join([*cycle, cycle[0]])};"
                " remove one of these parents"
            )
        return self

    @cached_property
    def graph(self) -> nx.DiGraph:
        """The workflow as a NetworkX graph: node attribute ``call``, edge attribute ``tool_delay_s`` (seconds)."""
        graph = nx.DiGraph()
        graph.add_nodes_from((call.id, {"call": call}) for call in self.calls)
        graph.add_edges_from(
            (parent, call.id, {"tool_delay_s": delay}) for call in self.calls for parent, delay in call.parents.items()
        )
        return nx.freeze(graph)

    @classmethod
    def from_graph(cls, graph: nx.DiGraph, id: str, arrival_s: float = 0.0, weight: float = 1.0) -> "Workflow":
        """Build a workflow from a NetworkX graph.

        Parameters
        ----------
        graph : networkx.DiGraph
            Node attributes are the fields of `Call` (``input_tokens``, ``output_tokens``, ...), or one attribute
            ``call``; the edge attribute ``tool_delay_s`` (seconds) defaults to 0.
        id, arrival_s, weight
            As for `Workflow`.

        Examples
        --------
        >>> import networkx as nx
        >>> dag = nx.DiGraph([("plan", "answer")])
        >>> for node in dag:
        ...     dag.nodes[node].update(input_tokens=800, output_tokens=60)
        >>> Workflow.from_graph(dag, "w0").depth
        2
        """
        calls = []
        for node, data in graph.nodes(data=True):
            fields: dict[str, Any] = dict(data)
            given = fields.pop("call", None)
            parents = {str(p): float(d.get("tool_delay_s", 0.0)) for p, _, d in graph.in_edges(node, data=True)}
            if given is not None:
                fields = {
                    "input_tokens": given.input_tokens,
                    "output_tokens": given.output_tokens,
                    "predicted_output_tokens": given.predicted_output_tokens,
                    "cached_prefix_tokens": given.cached_prefix_tokens,
                } | fields
            calls.append(Call(id=str(node), parents=parents, **fields))
        return cls(id=id, calls=tuple(calls), arrival_s=arrival_s, weight=weight)

    def revealed(self, completions: Mapping[str, float], at: float) -> nx.DiGraph:
        """Return the subgraph that an online scheduler may see at a given time.

        A call is revealed when every parent has completed and every tool delay has passed; source calls are
        revealed at arrival (section 4.1 of the paper).

        Parameters
        ----------
        completions : mapping of str to float
            Completion time in seconds of each call that has completed.
        at : float
            Time in seconds.
        """
        if at < self.arrival_s:
            return self.graph.subgraph([])
        return self.graph.subgraph(
            call.id
            for call in self.calls
            if all(p in completions and completions[p] + delay <= at for p, delay in call.parents.items())
        )

    @cached_property
    def depth(self) -> int:
        """Number of calls on the longest path."""
        return len(self._generations)

    @cached_property
    def width(self) -> int:
        """Largest number of calls at the same distance (in calls) from the sources."""
        return max(self._generations)

    @cached_property
    def _generations(self) -> list[int]:
        return [len(layer) for layer in nx.topological_generations(self.graph)]


@dataclass(frozen=True, config=STRICT)
class Workload:
    """Workflows with arrivals, and where they come from.

    Parameters
    ----------
    workflows : tuple of Workflow
        The workflows; their order breaks ties.
    source : str
        What is real and what is assumed about them.
    """

    workflows: Annotated[tuple[Workflow, ...], Field(min_length=1)]
    source: str = ""

    @model_validator(mode="after")
    def _ids_are_unique(self) -> "Workload":
        known: set[str] = set()
        for workflow in self.workflows:
            if workflow.id in known:
                raise ValueError(f"workflow '{workflow.id}' appears twice; give each workflow its own id")
            known.add(workflow.id)
        return self

    def __len__(self) -> int:
        """Return the number of workflows."""
        return len(self.workflows)

    def __iter__(self) -> Iterator[Workflow]:
        """Iterate over the workflows in order."""
        return iter(self.workflows)

    @overload
    def __getitem__(self, item: int) -> Workflow: ...

    @overload
    def __getitem__(self, item: slice) -> "Workload": ...

    def __getitem__(self, item: int | slice) -> "Workflow | Workload":
        """Return one workflow, or the workload of a slice of them."""
        return Workload(self.workflows[item], self.source) if isinstance(item, slice) else self.workflows[item]

    def arriving(self, rate: float, seed: int | None = None) -> "Workload":
        """Return the same workflows with new arrivals, in their present order.

        Parameters
        ----------
        rate : float
            Workflows per second.
        seed : int, optional
            Seed of a Poisson process; without it, the gap is fixed at ``1 / rate`` and the first arrives at 0.
        """
        if not 0 < rate < np.inf:
            raise ValueError(f"rate must be above 0 workflows per second and finite, got {rate}")
        if seed is None:
            times = np.arange(len(self)) / rate
        else:
            times = np.cumsum(np.random.default_rng([seed, ARRIVALS]).exponential(1 / rate, len(self)))
        return self._with(replace(w, arrival_s=time) for w, time in zip(self, times.tolist(), strict=True))

    def sample(self, number: int, seed: int) -> "Workload":
        """Return ``number`` workflows drawn without replacement, in random order."""
        if not 1 <= number <= len(self):
            raise ValueError(f"cannot draw {number} of {len(self)} workflows")
        picks = np.random.default_rng([seed, DRAWS]).choice(len(self), number, replace=False)
        return self._with(self.workflows[i] for i in picks)

    def with_length_error(self, level: float, seed: int) -> "Workload":
        """Return the same workflows with wrong predictions of output lengths: a factor ``1 + level`` or its inverse.

        Parameters
        ----------
        level : float
            Error level; half of the calls are expected to be longer and half shorter than they are.
        seed : int
            Seed of the draws, one for each call in order.
        """
        if not 0 <= level < np.inf:
            raise ValueError(f"level must be at least 0 and finite, got {level}")
        rng = np.random.default_rng([seed, LENGTHS])

        def predicted(call: Call) -> Call:
            factor = (1 + level) ** (1 if rng.random() < 0.5 else -1)
            return replace(call, predicted_output_tokens=max(1, round(call.output_tokens * factor)))

        return self._with_calls(predicted)

    def without_cached_prefix(self) -> "Workload":
        """Return the same workflows with every prompt prefilled in full."""
        return self._with_calls(lambda call: replace(call, cached_prefix_tokens=0))

    def _with_calls(self, changed: Callable[[Call], Call]) -> "Workload":
        return self._with(replace(w, calls=tuple(changed(call) for call in w.calls)) for w in self)

    def _with(self, workflows: Iterable[Workflow]) -> "Workload":
        return Workload(tuple(workflows), self.source)

    def to_frame(self) -> "pd.DataFrame":
        """Return the shape of every workflow: a row each, indexed by workflow id."""
        import pandas as pd

        rows = [
            {
                "workflow": w.id,
                "arrival_s": w.arrival_s,
                "calls": len(w.calls),
                "depth": w.depth,
                "width": w.width,
                "input_tokens": sum(c.input_tokens for c in w.calls),
                "new_tokens": sum(c.input_tokens - c.cached_prefix_tokens for c in w.calls),
                "output_tokens": sum(c.output_tokens for c in w.calls),
            }
            for w in self
        ]
        return pd.DataFrame(rows).set_index("workflow")
