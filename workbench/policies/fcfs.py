"""Per-call FCFS, the default of serving systems (section 3 of the paper)."""

from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Fcfs"]


class Fcfs(QueueingPolicy):
    """Per-call FCFS with the SGLang router's dispatch: calls are served in the order in which they were revealed.

    Parameters
    ----------
    dispatch : str
        The router's rule.
    """

    name = "fcfs"

    def __init__(self, dispatch: str = "power_of_two") -> None:
        super().__init__(dispatch)

    def key(self, view: View, call: int) -> float:
        """Return the reveal time in seconds."""
        return view.reveal_s[call]
