"""The Estimator (section 4.2 of the paper): what a scheduler believes calls to take."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workbench.compiled import CompiledInstance

__all__ = ["Estimator"]


@dataclass(frozen=True)
class Estimator:
    """Scheduler-visible estimates of every call; true durations never leave the runtime.

    Attributes
    ----------
    prefill_s, transfer_s, decode_s : (N, G), (N, G, H), (N, H) float
        Seconds by class; decode uses the predicted output length.
    demand_tokens : (N,) int
        KV demand with the predicted output length, clipped to the largest capacity.
    """

    prefill_s: NDArray[np.float64]
    transfer_s: NDArray[np.float64]
    decode_s: NDArray[np.float64]
    demand_tokens: NDArray[np.int64]

    @classmethod
    def of(cls, instance: CompiledInstance) -> "Estimator":
        """Return the estimates for an instance."""
        return cls(
            instance.prefill_s, instance.transfer_s, instance.predicted_decode_s, instance.predicted_demand_tokens
        )
