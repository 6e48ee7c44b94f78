"""SSJF: speculative shortest job first (2024, arXiv 2404.08509)."""

from workbench.policies.queueing import QueueingPolicy
from workbench.view import View

__all__ = ["Ssjf"]


class Ssjf(QueueingPolicy):
    """Shortest predicted call first, with ageing.

    The duration is prefill, transfer and decode on the best pair, by the predicted output length. Every second since
    the reveal counts as ``ageing`` seconds less. All waiting calls age at one pace, so that their order never changes
    and a key is taken once. Dropped: the proxy model itself (predictions are part of the instance) and batching.

    Parameters
    ----------
    ageing : float
        Seconds of predicted duration that a second of waiting makes up for; 0 is none.
    dispatch : str
        Dispatch rule; SSJF orders one engine's queue and has none.
    """

    name = "ssjf"

    def __init__(self, ageing: float = 0.1, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
        if not ageing >= 0:
            raise ValueError(f"ssjf: ageing must be at least 0, got {ageing}")
        self.ageing = ageing

    def key(self, view: View, call: int) -> float:
        """Return the predicted duration plus what ageing will not take off, in seconds."""
        return view.expected_left(call) + self.ageing * view.reveal_s[call]
