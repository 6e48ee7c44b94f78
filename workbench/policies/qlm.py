"""QLM: queue management by groups of requests with like SLOs (2024, arXiv 2407.00047)."""

import random
from collections.abc import Iterator
from math import frexp

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import RenewedKeys
from workbench.view import View

__all__ = ["Qlm"]


class Qlm(RenewedKeys):
    """Groups of like SLO, ordered by deadline less estimated waiting; calls of a group in order of reveal.

    The SLO of a workflow is ``alpha H_w(t)``; a group holds the SLOs between two powers of 2 seconds. A group's waiting
    is estimated as the time in which the prefill pool works off the group's waiting calls. Groups are ordered by their
    earliest deadline less that time. Dropped: the linear program that orders groups over instances and models, eviction
    of running requests, swapping of models, and the distribution of output lengths (predictions are part of the
    instance).

    Parameters
    ----------
    alpha : float
        SLO scale of the deadlines.
    dispatch : str
        Dispatch rule; QLM's own fills queues of single instances.
    """

    name = "qlm"

    def __init__(self, alpha: float = 2.0, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
        if not alpha > 0:
            raise ValueError(f"qlm: alpha must be above 0, got {alpha}")
        self.alpha = alpha

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._work_s: list[float] = []
        self._group: dict[int, int] = {}
        self._due_s: dict[int, float] = {}

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Form and order the groups, then plan as any queueing policy."""
        first = len(self._work_s)
        for call in range(first, len(view.workflow)):
            self._work_s.append(float(view.prefill_s[call, view.prefill_class].mean()) / len(view.prefill_class))
        for w in dict.fromkeys(view.workflow[first:]):
            slo_s = self.alpha * view.horizon_s(w)
            self._group[w] = frexp(slo_s)[1]
            self._due_s[w] = view.arrival_s[w] + slo_s
        start_s: dict[int, float] = {}
        work_s: dict[int, float] = {}
        for waiting in (view.waiting_prefill, *view.waiting_decode):
            for call in waiting:
                w = view.workflow[call]
                group, due_s = self._group[w], self._due_s[w]
                start_s[group] = min(start_s.get(group, due_s), due_s)
                if waiting is view.waiting_prefill:
                    work_s[group] = work_s.get(group, 0.0) + self._work_s[call]
        for group, waiting_s in work_s.items():
            start_s[group] -= waiting_s
        self._place = {g: i for i, g in enumerate(sorted(start_s, key=lambda g: (start_s[g], g)))}
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[int, float]:
        """Return (place of the group, reveal time in seconds)."""
        return self._place[self._group[view.workflow[call]]], view.reveal_s[call]
