"""Workflow-level metrics (section 7.3 of the paper)."""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.compiled import CompiledInstance

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["attainment", "req", "reveal_times", "workflows_on_time"]

Floats = NDArray[np.float64]


def workflows_on_time(number: int, tau: float) -> int:
    """Return ``ceil(tau * number)``, the workflows that must be on time, free of rounding noise.

    Raises
    ------
    ValueError
        Unless ``0 < tau <= 1``.
    """
    if not 0 < tau <= 1:
        raise ValueError(f"tau must be above 0 and at most 1, got {tau}")
    return max(1, int(np.ceil(round(tau * number, 9))))


def req(ratios: ArrayLike, tau: float) -> float:
    """Return ``Req_tau``: the ceil(tau W)-th smallest of the W ratios ``(C_w - a_w) / H_w``.

    Examples
    --------
    >>> req([3.0, 1.0, 2.0, 4.0], 0.5)
    2.0
    """
    ordered = np.sort(np.asarray(ratios, dtype=np.float64))
    return float(ordered[workflows_on_time(len(ordered), tau) - 1])


def attainment(ratios: ArrayLike) -> "pd.Series":
    """Return the empirical distribution of the ratios: share of workflows on time, indexed by SLO scale."""
    import pandas as pd

    scale, counts = np.unique(np.asarray(ratios, dtype=np.float64), return_counts=True)
    share = np.cumsum(counts) / counts.sum()
    return pd.Series(share, index=pd.Index(scale, name="slo_scale"), name="attainment")


def reveal_times(instance: CompiledInstance, decode_end_s: Floats) -> Floats:
    """Return when each call is revealed, given when each call's decode ends (seconds)."""
    reveal = instance.arrival_s[instance.workflow].copy()
    child = np.repeat(np.arange(instance.n_calls), np.diff(instance.parent_start))
    np.maximum.at(reveal, child, decode_end_s[instance.parents] + instance.tool_delay_s)
    return reveal
