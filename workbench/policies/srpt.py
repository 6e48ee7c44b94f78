"""Shortest remaining processing time (Schrage, 1968), on what workflows have revealed."""

import random
from collections.abc import Iterable

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Srpt"]


class Srpt(QueueingPolicy):
    """Workflows whose revealed calls have the least predicted service left go first.

    What is left is the sum over the workflow's open calls of their remaining service on the best pair that fits. Keys
    are taken anew when the workflow reveals calls or has had more service. Dropped: pre-emption, and the work that is
    not revealed.

    Parameters
    ----------
    dispatch : str
        Dispatch rule.
    """

    name = "srpt"
    stages = (Stage.PREFILL, Stage.DECODE)

    def __init__(self, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._served_s: dict[int, float] = {}

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Plan as any queueing policy; what a workflow has left is summed once a plan."""
        self._left_s: dict[int, float] = {}
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> float:
        """Return the workflow's remaining service in seconds."""
        w = view.workflow[call]
        self._served_s[call] = view.service_s[w]
        if w not in self._left_s:
            self._left_s[w] = sum(view.expected_left(other) for other in view.open_calls[w])
        return self._left_s[w]

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the workflow has revealed calls, or had service since the call's key was taken."""
        w = view.workflow[call]
        return w in fresh or view.service_s[w] != self._served_s.get(call)
