"""DistServe: disaggregated prefill and decode (2024, arXiv 2401.09670)."""

from workbench.policies.fcfs import Fcfs

__all__ = ["Distserve"]


class Distserve(Fcfs):
    """Calls in order of reveal, to the instances with the fewest calls in progress plus queued.

    DistServe chooses the decode instance when prefill has ended. Here it is chosen at dispatch, and calls that have not
    reached decode count there. Dropped with that: late choice of decode, pulling of KV by the decode side when it has
    room, batches of prefills of balanced length, and the search for a placement of the instances.

    Parameters
    ----------
    dispatch : str
        Dispatch rule.
    """

    name = "distserve"

    def __init__(self, dispatch: str = "fewest_calls") -> None:
        super().__init__(dispatch)
