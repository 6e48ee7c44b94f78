"""A schedule: where and when every call ran. One type for the simulator, the exact solver and the plots."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from workbench import metrics
from workbench.compiled import CompiledInstance

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

__all__ = ["PlannerCost", "Schedule"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class PlannerCost:
    """What a policy's planning took. ``seconds`` is wall-clock time and differs from run to run.

    Attributes
    ----------
    invocations : int
        How often the policy was asked for a plan.
    seconds : float
        Total planner time.
    entries : int
        Calls that plans covered when they were made.
    stale : int
        Those that had started when the plan landed.
    fallback_starts : int
        Prefills that started under the fallback, because the call was revealed while a plan was in flight.
    """

    invocations: int = 0
    seconds: float = 0.0
    entries: int = 0
    stale: int = 0
    fallback_starts: int = 0

    @property
    def ms_per_invocation(self) -> float:
        """Mean planner time of one invocation in milliseconds; NaN without invocations."""
        return 1e3 * self.seconds / self.invocations if self.invocations else float("nan")

    @property
    def stale_fraction(self) -> float:
        """Share of the planned entries that were stale; NaN without entries."""
        return self.stale / self.entries if self.entries else float("nan")


@dataclass(frozen=True, eq=False)
class Schedule:
    """Placement and times of every call of an instance; all arrays are indexed by call, times in seconds.

    Attributes
    ----------
    instance : CompiledInstance
        What was scheduled.
    label : str
        Policy, with the parameters that were given, or method of the solver that made it.
    prefill_instance, decode_instance : (N,) int
        Placement.
    locked_decode : (N,) int
        Decode instance that was fixed when prefill started; -1 where it was left free.
    reveal_s : (N,) float
        When the call was revealed: arrival, or the last parent's end plus tool delay.
    prefill_start_s, prefill_end_s, transfer_end_s, decode_start_s, decode_end_s : (N,) float
        Times of the call's life; the transfer starts when prefill ends.
    planner : PlannerCost
        Planner invocations and time.
    settings : mapping
        Seed and runtime options.
    """

    instance: CompiledInstance
    label: str
    prefill_instance: Ints
    decode_instance: Ints
    locked_decode: Ints
    reveal_s: Floats
    prefill_start_s: Floats
    prefill_end_s: Floats
    transfer_end_s: Floats
    decode_start_s: Floats
    decode_end_s: Floats
    planner: PlannerCost = field(default_factory=PlannerCost)
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_starts(
        cls,
        instance: CompiledInstance,
        label: str,
        prefill_instance: Ints,
        decode_instance: Ints,
        prefill_start_s: Floats,
        decode_start_s: Floats,
        settings: Mapping[str, Any] | None = None,
    ) -> "Schedule":
        """Complete a schedule from placements and start times with the instance's durations (interval decode)."""
        calls = np.arange(instance.n_calls)
        p_class = instance.prefill_class[prefill_instance]
        d_class = instance.decode_class[decode_instance]
        prefill_end = prefill_start_s + instance.prefill_s[calls, p_class]
        decode_end = decode_start_s + instance.decode_s[calls, d_class]
        return cls(
            instance=instance,
            label=label,
            prefill_instance=prefill_instance,
            decode_instance=decode_instance,
            locked_decode=decode_instance.copy(),
            reveal_s=metrics.reveal_times(instance, decode_end),
            prefill_start_s=prefill_start_s,
            prefill_end_s=prefill_end,
            transfer_end_s=prefill_end + instance.transfer_s[calls, p_class, d_class],
            decode_start_s=decode_start_s,
            decode_end_s=decode_end,
            settings={"decode": "interval", **(settings or {})},
        )

    @property
    def completion_s(self) -> Floats:
        """(W,) completion time ``C_w`` of every workflow in seconds."""
        return np.maximum.reduceat(self.decode_end_s, self.instance.first_call[:-1])

    @property
    def makespan_s(self) -> float:
        """Completion of the last workflow in seconds."""
        return float(self.completion_s.max())

    @property
    def flow_s(self) -> Floats:
        """(W,) time from arrival to completion of every workflow in seconds."""
        return self.completion_s - self.instance.arrival_s

    def ratios(self) -> "pd.Series":
        """Return ``(C_w - a_w) / H_w`` of every workflow, indexed by workflow id."""
        import pandas as pd

        index = pd.Index(self.instance.workflow_ids, name="workflow")
        return pd.Series(self.flow_s / self.instance.horizon_s, index=index, name="ratio")

    def req(self, tau: float) -> float:
        """Return the least SLO scale at which a share ``tau`` of the workflows is on time (section 7.3)."""
        return metrics.req(self.flow_s / self.instance.horizon_s, tau)

    def attainment(self) -> "pd.Series":
        """Return the attainment curve: the share of workflows on time, indexed by SLO scale."""
        return metrics.attainment(self.flow_s / self.instance.horizon_s)

    def to_frame(self) -> "pd.DataFrame":
        """Return one row a call: names, lengths, placement by name, and times in seconds."""
        import pandas as pd

        inst = self.instance
        prefill_names, decode_names = inst.instance_names
        return pd.DataFrame(
            {
                "workflow": [inst.workflow_ids[w] for w in inst.workflow],
                "call": inst.call_ids,
                "input_tokens": inst.input_tokens,
                "cached_prefix_tokens": inst.cached_prefix_tokens,
                "output_tokens": inst.output_tokens,
                "prefill_instance": [prefill_names[p] for p in self.prefill_instance],
                "decode_instance": [decode_names[d] for d in self.decode_instance],
                "reveal_s": self.reveal_s,
                "prefill_start_s": self.prefill_start_s,
                "prefill_end_s": self.prefill_end_s,
                "transfer_end_s": self.transfer_end_s,
                "decode_start_s": self.decode_start_s,
                "decode_end_s": self.decode_end_s,
            }
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the schedule as plain lists for JSON: one entry a call, in seconds."""
        rows = self.to_frame().drop(columns=["input_tokens", "cached_prefix_tokens", "output_tokens"])
        rows["locked_decode"] = self.locked_decode
        return {"label": self.label, "settings": dict(self.settings), "calls": rows.to_dict(orient="records")}

    def check(self) -> "Schedule":
        """Verify every rule of the model independently and return the schedule itself.

        Raises
        ------
        ScheduleError
            Naming the violated rules.
        """
        from workbench.checker import check

        check(self)
        return self

    def gantt(self, **options: Any) -> "Figure":
        """Draw the schedule as a Gantt chart; see `workbench.plots.gantt`."""
        from workbench.plots import gantt

        return gantt(self, **options)

    def to_perfetto(self, path: str | Path) -> None:
        """Write a Chrome trace JSON file that ui.perfetto.dev opens; see `workbench.perfetto`."""
        from workbench.perfetto import write_trace

        write_trace(self, path)
