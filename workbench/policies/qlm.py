"""QLM: queue management by groups of requests with like SLOs (2024, arXiv 2407.00047)."""

import random
from collections.abc import Iterator
from math import floor, log2

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

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Form and order the groups, then plan as any queueing policy."""
        deadline_s: dict[int, float] = {}
        work_s: dict[int, float] = {}
        self._group: dict[int, int] = {}
        for call in range(len(self._work_s), len(view.workflow)):
            self._work_s.append(float(view.prefill_s[call, view.prefill_class].mean()) / len(view.prefill_class))
        for waiting in (view.waiting_prefill, *view.waiting_decode):
            for call in waiting:
                w = view.workflow[call]
                slo_s = self.alpha * view.horizon_s(w)
                group = self._group[call] = floor(log2(slo_s)) if slo_s > 0 else -1074
                due_s = view.arrival_s[w] + slo_s
                deadline_s[group] = min(deadline_s.get(group, due_s), due_s)
                if waiting is view.waiting_prefill:
                    work_s[group] = work_s.get(group, 0.0) + self._work_s[call]
        latest_start_s = {g: due_s - work_s.get(g, 0.0) for g, due_s in deadline_s.items()}
        self._place = {g: i for i, g in enumerate(sorted(latest_start_s, key=lambda g: (latest_start_s[g], g)))}
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[int, float]:
        """Return (place of the group, reveal time in seconds)."""
        return self._place[self._group[call]], view.reveal_s[call]
