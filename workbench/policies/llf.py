"""Workflow-level least laxity first (section 7.2 of the paper)."""

from math import inf

from workbench.policies.base import Stage
from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Llf"]


class Llf(QueueingPolicy):
    """Least laxity first: workflows with the smallest slack before ``a_w + alpha H_w(t)`` go first.

    The laxity is ``a_w + alpha H_w(t) - t - remaining``, with the remaining critical path of the revealed subgraph: a
    revealed call that is not complete has no revealed children, so this is the longest remaining standalone service
    among the workflow's open calls. Keys are taken anew when the workflow reveals calls and when a call reaches decode.

    Parameters
    ----------
    alpha : float
        SLO scale of the deadlines; the paper gives none.
    dispatch : str
        Dispatch rule.
    """

    name = "llf"
    stages = (Stage.PREFILL, Stage.DECODE)

    def __init__(self, alpha: float = 2.0, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
        if not 0 < alpha < inf:
            raise ValueError(f"llf: alpha must be above 0 and finite, got {alpha}")
        self.alpha = alpha

    def key(self, view: View, call: int) -> float:
        """Return the laxity plus the present time, in seconds: all waiting laxities fall at the same pace."""
        w = view.workflow[call]
        remaining = max(view.expected_left(other) for other in view.open_calls[w])
        return view.arrival_s[w] + self.alpha * view.horizon_s(w) - remaining

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the workflow has revealed calls."""
        return view.workflow[call] in fresh
