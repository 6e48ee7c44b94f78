"""Workflow-level FCFS with load-balanced dispatch (section 7.2 of the paper)."""

from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["WorkflowFcfs"]


class WorkflowFcfs(QueueingPolicy):
    """Workflow-FCFS: calls of workflows that arrived earlier go first, to the instances with least outstanding tokens.

    Parameters
    ----------
    dispatch : str
        Dispatch rule.
    """

    name = "workflow-fcfs"

    def __init__(self, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)

    def key(self, view: View, call: int) -> float:
        """Return the workflow's arrival in seconds."""
        return view.arrival_s[view.workflow[call]]
