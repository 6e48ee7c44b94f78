"""The answer of the exact solver: a schedule, a proven lower bound, and what each of them rests on."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from workbench import Schedule

__all__ = ["CLOSED_GAP", "ROUNDING", "Certificate", "relative_gap"]

CLOSED_GAP = 1e-3
"""Largest ``value / lower_bound - 1`` in exact time at which a certificate counts as closed."""

ROUNDING = 1e-9
"""Relative amount by which floating point may put a bound above the value that it equals."""


def relative_gap(value: float | None, lower_bound: float) -> float | None:
    """Return ``value / lower_bound - 1``, or None without a value."""
    return None if value is None else value / lower_bound - 1.0


@dataclass(frozen=True, eq=False)
class Certificate:
    """A bracket around the offline optimum of an instance, in exact (unrounded) time.

    Attributes
    ----------
    objective : {"makespan", "alpha"}
        What was minimised: completion of the last workflow in seconds, or the least SLO scale.
    tau : float or None
        Share of workflows on time that ``alpha`` asks for; None for the makespan.
    value : float or None
        Objective of `schedule`, an upper bound; None without a schedule.
    lower_bound : float
        Proven lower bound on the optimum.
    solver_status : str
        Last answer of CP-SAT to the optimisation model: ``OPTIMAL`` (of the rounded problem), ``FEASIBLE`` or
        ``UNKNOWN``; ``UNKNOWN`` also when it was not needed or had no time.
    wall_s : float
        Wall-clock time of the whole solve in seconds.
    schedule : Schedule or None
        The best schedule found.
    upper_bound_method, lower_bound_method : str
        What gave the schedule and what proved the bound.
    tick_s : float
        Time unit of the rounded problem in seconds.
    horizon_kind : str
        Which standalone horizons ``alpha`` is measured against.
    interrupted : bool
        Whether the search was stopped by Ctrl-C; the bracket is what it had reached.
    versions : mapping
        Version of OR-Tools.
    """

    objective: Literal["makespan", "alpha"]
    tau: float | None
    value: float | None
    lower_bound: float
    solver_status: str
    wall_s: float
    schedule: Schedule | None
    upper_bound_method: str
    lower_bound_method: str
    tick_s: float
    horizon_kind: str
    interrupted: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.value is not None and self.lower_bound > self.value * (1 + ROUNDING):
            raise ValueError(f"lower bound {self.lower_bound} exceeds the value {self.value} of a known schedule")

    @property
    def gap(self) -> float | None:
        """``value / lower_bound - 1`` in exact time, or None without a schedule."""
        return relative_gap(self.value, self.lower_bound)

    @property
    def status(self) -> Literal["closed", "open"]:
        """``closed`` when the gap is at most `CLOSED_GAP`, else ``open``."""
        return "closed" if self.gap is not None and self.gap <= CLOSED_GAP else "open"

    def to_dict(self) -> dict[str, Any]:
        """Return the certificate as plain values for JSON; what is missing is None."""
        return {
            "status": self.status,
            "value": self.value,
            "lower_bound": self.lower_bound,
            "gap": self.gap,
            "wall_s": self.wall_s,
            "schedule": None if self.schedule is None else self.schedule.to_dict(),
            "objective": self.objective,
            "tau": self.tau,
            "solver_status": self.solver_status,
            "upper_bound_method": self.upper_bound_method,
            "lower_bound_method": self.lower_bound_method,
            "tick_s": self.tick_s,
            "horizon_kind": self.horizon_kind,
            "interrupted": self.interrupted,
            "versions": dict(self.versions),
        }

    def __str__(self) -> str:
        name, unit = (f"alpha_{self.tau:g}", "") if self.objective == "alpha" else ("makespan", " s")
        if self.value is None or self.gap is None:
            return f"{name}: {self.status}, no schedule, at least {self.lower_bound:.6g}{unit} ({self.wall_s:.1f} s)"
        lines = [
            f"{name}: {self.status}, {self.lower_bound:.6g} <= optimum <= {self.value:.6g}{unit}, "
            f"gap {100 * self.gap:.2f} %, {self.wall_s:.1f} s{', interrupted' if self.interrupted else ''}",
            f"  schedule: {self.upper_bound_method}",
            f"  bound: {self.lower_bound_method}",
        ]
        if self.objective == "alpha":
            lines.append(f"  horizons: {self.horizon_kind}")
        return "\n".join(lines)
