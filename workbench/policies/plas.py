"""Autellix-PLAS: program-level attained service (Autellix, 2025, arXiv 2502.13965)."""

from workbench.policies.queueing import RenewedKeys
from workbench.view import View

__all__ = ["Plas"]


class Plas(RenewedKeys):
    """PLAS: workflows that have attained the least service go first, ties by arrival.

    Attained service is the prefill and decode time that the workflow's calls have had, each counted when it ends.
    Dropped: pre-emption by quanta and, with it, the multi-level queues that limit its cost; the starvation guard, which
    `atlas` has.

    Parameters
    ----------
    dispatch : str
        Dispatch rule; ``pinned`` is Autellix's balancer.
    """

    name = "plas"

    def __init__(self, dispatch: str = "pinned") -> None:
        super().__init__(dispatch)

    def key(self, view: View, call: int) -> tuple[float, float]:
        """Return (attained service, arrival) of the workflow in seconds."""
        w = view.workflow[call]
        return view.service_s[w], view.arrival_s[w]
