"""Autellix-ATLAS: adaptive thread-level attained service (section 7.2 of the paper; Autellix, arXiv 2502.13965)."""

import random
from collections.abc import Iterable
from math import ceil, log2

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Atlas"]


class Atlas(QueueingPolicy):
    """ATLAS: calls whose critical path has attained the least service go first.

    A source call has attained 0; another call the largest, over its parents, of what the parent had attained plus the
    parent's own service (prefill and decode time as observed). Attained service is discretised into queues whose bounds
    double; inside a queue calls are served in order of reveal. Anti-starvation: when a workflow has waited more than
    ``beta`` times its service, its calls go to the first queue. Autellix also pre-empts running calls; here service is
    not pre-emptive, so only waiting calls are reordered.

    Parameters
    ----------
    first_queue_s : float
        Attained service up to which a call is in the first queue, in seconds.
    queues : int
        Number of queues.
    beta : float
        Ratio of waiting to service above which a workflow is promoted.
    dispatch : str
        Dispatch rule; ``pinned`` is Autellix's balancer.
    """

    name = "atlas"

    def __init__(
        self, first_queue_s: float = 1.0, queues: int = 8, beta: float = 10.0, dispatch: str = "pinned"
    ) -> None:
        super().__init__(dispatch)
        if not (first_queue_s > 0 and queues >= 1 and beta > 0):
            raise ValueError("atlas: first_queue_s and beta must be above 0 and queues at least 1")
        self.first_queue_s, self.queues, self.beta = first_queue_s, queues, beta

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._attained: list[float] = []
        self._promoted: set[int] = set()

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Take in the calls revealed since the last plan, then plan as any queueing policy."""
        for call in range(len(self._attained), len(view.workflow)):
            attained = 0.0
            for parent, _ in view.parents[call]:
                attained = max(attained, self._attained[parent] + self._served(view, parent))
            self._attained.append(attained)
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[int, float]:
        """Return (queue, reveal time in seconds)."""
        if self._starves(view, view.workflow[call]):
            self._promoted.add(call)
            return 0, view.reveal_s[call]
        quanta = self._attained[call] / self.first_queue_s
        return (0 if quanta <= 1 else min(self.queues - 1, ceil(log2(quanta)))), view.reveal_s[call]

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the workflow has just begun to starve."""
        return call not in self._promoted and self._starves(view, view.workflow[call])

    def _starves(self, view: View, workflow: int) -> bool:
        """Return whether the workflow's time in the system is over ``1 + beta`` times the service it has had."""
        service = view.service_s[workflow]
        return service > 0 and view.now - view.arrival_s[workflow] - service > self.beta * service

    def _served(self, view: View, call: int) -> float:
        """Return the observed prefill and decode time of a completed call in seconds."""
        prefill = view.prefill_end_s[call] - view.prefill_start_s[call]
        return prefill + view.decode_end_s[call] - view.decode_start_s[call]
