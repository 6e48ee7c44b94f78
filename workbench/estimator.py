"""The Estimator (section 4.2 of the paper): what a scheduler believes calls to take, with error where it is wanted."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from workbench.compiled import CompiledInstance
from workbench.errors import InputError

__all__ = ["LARGEST_SEED", "EstimateError", "Estimator"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Words = NDArray[np.uint64]

PREFILL, DECODE = 0, 1
LARGEST_ADDITIVE_LEVEL = 0.5
LARGEST_LEVEL = 1e6
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class EstimateError:
    """Error on the prefill and decode times that schedulers see, as in section 7.6 of the paper; true times stay.

    Attributes
    ----------
    level : float
        Error level ``e``: every estimate is off by a factor ``1 + e`` or ``1 - e``, or, above 0.5, by ``1 + e`` or
        ``1 / (1 + e)``, so that none vanishes. Which of the two is a hash of seed, call, stage and class.
    seed : int
        Seed of the hash.
    bias : mapping of str to float
        Further factor for all estimates of a deployment class, such as ``{"A100-80GB-SXM:tp4": 1.2}``.
    """

    level: float = 0.0
    seed: int = 0
    bias: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 <= self.level <= LARGEST_LEVEL:
            raise InputError(f"estimate error must be at least 0 and at most {LARGEST_LEVEL:g}, got {self.level}")
        if not 0 <= self.seed <= LARGEST_SEED:
            raise InputError(f"seed must be from 0 to {LARGEST_SEED}, got {self.seed}")
        for name, factor in self.bias.items():
            if not 0 < factor < np.inf:
                raise InputError(f"bias of '{name}' must be above 0 and finite, got {factor}")

    def factors(self, instance: CompiledInstance, stage: int, names: tuple[str, ...]) -> Floats:
        """Return the factor on the estimate of each call by class, (N, classes)."""
        index = np.arange(instance.n_calls) - instance.first_call[instance.workflow]
        word = np.full((instance.n_calls, len(names)), self.seed, dtype=np.int64).view(np.uint64)
        for part in (instance.workflow[:, None], index[:, None], np.array(stage), np.arange(len(names))[None, :]):
            word = _mix(word ^ part.astype(np.int64).view(np.uint64))
        sign = np.where(word >> np.uint64(63), 1.0, -1.0)
        e = self.level
        factor = 1 + e * sign if e <= LARGEST_ADDITIVE_LEVEL else (1 + e) ** sign
        return np.asarray(factor * np.array([self.bias.get(name, 1.0) for name in names]))


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

    prefill_s: Floats
    transfer_s: Floats
    decode_s: Floats
    demand_tokens: Ints

    @classmethod
    def of(cls, instance: CompiledInstance, error: EstimateError | None = None) -> "Estimator":
        """Return the estimates for an instance, with error if one is given.

        Raises
        ------
        InputError
            If a bias names a class that the instance does not have.
        """
        prefill, decode = instance.prefill_s, instance.predicted_decode_s
        if error is not None:
            names = (*instance.prefill_class_names, *instance.decode_class_names)
            for name in error.bias:
                if name not in names:
                    raise InputError(
                        f"bias of '{name}': no such deployment class (known: {', '.join(dict.fromkeys(names))})"
                    )
            prefill = prefill * error.factors(instance, PREFILL, instance.prefill_class_names)
            decode = decode * error.factors(instance, DECODE, instance.decode_class_names)
        return cls(prefill, instance.transfer_s, decode, instance.predicted_demand_tokens)


def _mix(word: Words) -> Words:
    """Scramble 64-bit words: the finaliser of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014)."""
    word = word + np.uint64(0x9E3779B97F4A7C15)
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
