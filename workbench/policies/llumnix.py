"""Llumnix: dynamic scheduling by freeness (2024, arXiv 2406.03243)."""

from workbench.policies.fcfs import Fcfs

__all__ = ["Llumnix"]


class Llumnix(Fcfs):
    """Calls in order of reveal, to the decode instance with the most free KV per call.

    The KV that dispatched calls will need counts as used, as Llumnix counts queued requests. Prefill instances hold no
    KV between calls; they are chosen by outstanding tokens. Dropped: live migration of running requests, and with it
    defragmentation; priority classes with headroom; scaling of the instances.

    Parameters
    ----------
    dispatch : str
        Dispatch rule.
    """

    name = "llumnix"

    def __init__(self, dispatch: str = "most_free") -> None:
        super().__init__(dispatch)
