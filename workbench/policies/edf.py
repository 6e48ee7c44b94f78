"""Earliest deadline first, the classic of real-time scheduling (Liu and Layland, 1973), on workflow SLOs."""

from workbench.policies.base import Stage
from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Edf"]


class Edf(QueueingPolicy):
    """Earliest deadline first: workflows with the earliest ``a_w + alpha H_w(t)`` go first.

    Keys are taken anew when the workflow reveals calls and when a call reaches decode. Dropped: pre-emption.

    Parameters
    ----------
    alpha : float
        SLO scale of the deadlines.
    dispatch : str
        Dispatch rule.
    """

    name = "edf"
    stages = (Stage.PREFILL, Stage.DECODE)

    def __init__(self, alpha: float = 2.0, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
        if not alpha > 0:
            raise ValueError(f"edf: alpha must be above 0, got {alpha}")
        self.alpha = alpha

    def key(self, view: View, call: int) -> float:
        """Return the deadline in seconds."""
        w = view.workflow[call]
        return view.arrival_s[w] + self.alpha * view.horizon_s(w)

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the workflow has revealed calls."""
        return view.workflow[call] in fresh
