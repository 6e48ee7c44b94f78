"""Justitia: fair queueing on memory cost in virtual time (2025, arXiv 2510.17015)."""

import random
from collections.abc import Iterable

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Justitia"]


class Justitia(QueueingPolicy):
    """Workflows in order of the virtual time at which fair sharing of the KV memory would have served them.

    A call costs its predicted KV demand times its decode time on the fastest class, in token seconds. Virtual time goes
    on at the KV capacity of all decode instances divided by the number of workflows with open calls, taken anew at each
    plan. A workflow's finish is the virtual time of its arrival plus the cost of its revealed calls. Dropped: the
    prediction of a whole application's cost at arrival (the finish grows as calls are revealed) and the growth of a
    call's memory token by token.

    Parameters
    ----------
    dispatch : str
        Dispatch rule; Justitia orders one engine's queue and has none.
    """

    name = "justitia"
    stages = (Stage.PREFILL, Stage.DECODE)

    def __init__(self, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._capacity_tokens = float(view.capacity_tokens.sum())
        self._virtual, self._at_s = 0.0, 0.0
        self._known = 0
        self._open: dict[int, None] = {}
        self._finish: dict[int, float] = {}

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Move virtual time on, add the cost of the calls revealed since, then plan as any queueing policy."""
        if self._open:
            self._virtual += (view.now - self._at_s) * self._capacity_tokens / len(self._open)
        self._at_s = view.now
        for call in range(self._known, len(view.workflow)):
            w = view.workflow[call]
            cost = float(view.demand_tokens[call] * view.decode_s[call].min())
            self._finish[w] = self._finish.get(w, self._virtual) + cost
            self._open[w] = None
        self._known = len(view.workflow)
        for w in [w for w in self._open if not view.open_calls[w]]:
            del self._open[w]
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> float:
        """Return the workflow's virtual finish, in token seconds for each open workflow."""
        return self._finish[view.workflow[call]]

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the workflow has revealed calls."""
        return view.workflow[call] in fresh
