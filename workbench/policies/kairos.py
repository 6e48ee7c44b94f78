"""Kairos: multi-agent serving by expected remaining latency (2025, arXiv 2508.06948)."""

import random
from collections.abc import Iterator

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import FinishedWorkflows, RenewedKeys, extend_depths
from workbench.view import View

__all__ = ["Kairos"]


class Kairos(RenewedKeys):
    """Calls with the shortest expected remaining workflow go first, ties by arrival of the workflow.

    A call's depth, the longest path to it, stands for the agent that Kairos tells apart. The expectation at a depth is
    the mean, over the calls at that depth of workflows that finished in this run, of the prefill and decode time that
    their workflow had after their reveal; the prior is ``prior_calls`` calls of ``prior_remaining_s`` at every depth.
    Dropped: named agents and the comparison of whole distributions between them, and dispatch by predicted memory over
    time slots, for which the least outstanding KV demand stands.

    Parameters
    ----------
    prior_remaining_s : float
        Expected remaining service before anything is learned, in seconds.
    prior_calls : float
        Weight of the prior at each depth.
    dispatch : str
        Dispatch rule.
    """

    name = "kairos"

    def __init__(
        self, prior_remaining_s: float = 10.0, prior_calls: float = 1.0, dispatch: str = "least_loaded"
    ) -> None:
        super().__init__(dispatch)
        if not (prior_remaining_s >= 0 and prior_calls > 0):
            raise ValueError("kairos: prior_remaining_s must be at least 0 and prior_calls above 0")
        self.prior_remaining_s, self.prior_calls = prior_remaining_s, prior_calls

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._finished = FinishedWorkflows()
        self._depth: list[int] = []
        self._calls: dict[int, list[tuple[int, float]]] = {}  # by workflow: depth, service attained at reveal
        self._total_s: dict[int, float] = {}
        self._known_calls: list[int] = []
        self._known_s: list[float] = []

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Take in what was revealed and finished since the last plan, then plan as any queueing policy."""
        first = len(self._depth)
        extend_depths(view, self._depth)
        finished, resumed = self._finished.update(view)
        for w in resumed:
            self._count(w, -1)
        for call in range(first, len(self._depth)):
            w, depth = view.workflow[call], self._depth[call]
            self._calls.setdefault(w, []).append((depth, view.service_s[w]))
            if depth == len(self._known_s):
                self._known_calls.append(0)
                self._known_s.append(0.0)
        for w in finished:
            self._total_s[w] = view.service_s[w]
            self._count(w, 1)
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[float, float]:
        """Return (expected remaining service, arrival of the workflow) in seconds."""
        depth = self._depth[call]
        known_s = self._known_s[depth] + self.prior_calls * self.prior_remaining_s
        return known_s / (self._known_calls[depth] + self.prior_calls), view.arrival_s[view.workflow[call]]

    def _count(self, workflow: int, sign: int) -> None:
        for depth, attained_s in self._calls[workflow]:
            self._known_calls[depth] += sign
            self._known_s[depth] += sign * (self._total_s[workflow] - attained_s)
