"""Continuum: program-level FCFS with KV caches pinned between turns (2025, arXiv 2511.02230)."""

from workbench.policies.workflow_fcfs import WorkflowFcfs

__all__ = ["Continuum"]


class Continuum(WorkflowFcfs):
    """Programs in order of arrival, each call on the instances that its first parent used.

    Without prefix reuse this is workflow-FCFS with pinned dispatch. Dropped: the time-to-live after which a pinned
    cache is given up, the memory that pinned caches hold while tools run, and the prefill that they save.

    Parameters
    ----------
    dispatch : str
        Dispatch rule; ``sticky`` stands for the pinned caches.
    """

    name = "continuum"

    def __init__(self, dispatch: str = "sticky") -> None:
        super().__init__(dispatch)
