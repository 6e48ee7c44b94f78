"""Splitwise: phase splitting with join-the-shortest-queue dispatch (2024, arXiv 2311.18677)."""

from workbench.policies.fcfs import Fcfs

__all__ = ["Splitwise"]


class Splitwise(Fcfs):
    """Calls in order of reveal; prefill with the fewest pending tokens, decode with the least KV memory taken.

    Memory counts from dispatch until the call is complete, as in the system's own scheduler, which makes the two rules
    together ``least_loaded``. Dropped: the mixed pool that takes either phase under load, and layer-wise transfer that
    overlaps prefill.

    Parameters
    ----------
    dispatch : str
        Dispatch rule.
    """

    name = "splitwise"

    def __init__(self, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
