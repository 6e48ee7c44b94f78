"""Hermes: Gittins index on probabilistic demand (2025, arXiv 2506.14851)."""

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator

import numpy as np

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import FinishedWorkflows, RenewedKeys
from workbench.view import View

__all__ = ["Hermes"]


class Hermes(RenewedKeys):
    """Workflows with the least Gittins-like index of remaining demand go first, ties by arrival.

    With ``X`` the remaining demand of a workflow that has attained its present service, the index is the least, over
    ``D``, of ``E[min(X, D)] / P(X <= D)``. Demand is prefill and decode time; its distribution is learned from the
    workflows that finished in this run, in buckets with bounds in geometric progression, attained service rounded down
    to a bound. The prior is ``prior_workflows`` workflows spread evenly over the buckets: until something is learned,
    the least attained service goes first. Dropped: demand graphs by kind of application (calls are not labelled, so
    that all workflows share one distribution), pre-emption, and warming of back ends.

    Parameters
    ----------
    shortest_s, longest_s : float
        First and last bound of the buckets, in seconds; longer demands count as the last.
    buckets : int
        Number of buckets, at least 2.
    prior_workflows : float
        Weight of the prior.
    dispatch : str
        Dispatch rule; Hermes orders one queue and has none.
    """

    name = "hermes"

    def __init__(
        self,
        shortest_s: float = 0.1,
        longest_s: float = 3600.0,
        buckets: int = 48,
        prior_workflows: float = 4.0,
        dispatch: str = "least_loaded",
    ) -> None:
        super().__init__(dispatch)
        if not (0 < shortest_s < longest_s < float("inf") and buckets >= 2 and prior_workflows > 0):
            raise ValueError(
                "hermes: expected 0 < shortest_s < longest_s, at least 2 buckets and prior_workflows above 0"
            )
        self.shortest_s, self.longest_s, self.buckets = shortest_s, longest_s, buckets
        self.prior_workflows = prior_workflows

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._bounds: list[float] = np.geomspace(self.shortest_s, self.longest_s, self.buckets).tolist()
        self._weight = np.full(self.buckets, self.prior_workflows / self.buckets)
        self._index: dict[int, float] = {}
        self._finished = FinishedWorkflows()
        self._bucket: dict[int, int] = {}

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Take in the workflows that finished since the last plan, then plan as any queueing policy."""
        finished, resumed = self._finished.update(view)
        for w in resumed:
            self._weight[self._bucket.pop(w)] -= 1
        for w in finished:
            self._bucket[w] = min(bisect_left(self._bounds, view.service_s[w]), self.buckets - 1)
            self._weight[self._bucket[w]] += 1
        if finished or resumed:
            self._index.clear()
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[float, float]:
        """Return (index of the workflow, its arrival), both in seconds."""
        w = view.workflow[call]
        bucket = min(bisect_right(self._bounds, view.service_s[w]), self.buckets - 1)
        if bucket not in self._index:
            self._index[bucket] = self._gittins(bucket)
        return self._index[bucket], view.arrival_s[w]

    def _gittins(self, bucket: int) -> float:
        """Return the index of a workflow that has attained the lower bound of a bucket, in seconds."""
        attained_s = self._bounds[bucket - 1] if bucket else 0.0
        weight, left_s = self._weight[bucket:], np.array(self._bounds[bucket:]) - attained_s
        done = np.cumsum(weight)
        spent_s = np.cumsum(weight * left_s) + left_s * (done[-1] - done)
        return float((spent_s / done).min())
