"""Random order: what any rule about the order is worth."""

import random

from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["RandomOrder"]


class RandomOrder(QueueingPolicy):
    """Calls in random order: each draws its rank once, when it is revealed.

    Parameters
    ----------
    dispatch : str
        Dispatch rule; the default is that of the workflow-level baselines, so that only the order is random.
    """

    name = "random"

    def __init__(self, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._rng = rng

    def key(self, view: View, call: int) -> float:
        """Return a number drawn uniformly from [0, 1)."""
        return self._rng.random()
