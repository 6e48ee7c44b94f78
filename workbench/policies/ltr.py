"""LTR: scheduling by learning to rank (2024, arXiv 2408.15792)."""

from workbench.policies.queueing import RenewedKeys
from workbench.view import View

__all__ = ["Ltr"]


class Ltr(RenewedKeys):
    """Calls ranked by predicted output length, shortest first; starved calls are promoted.

    Only the order of the predictions matters. A call that waits, for prefill or decode, ``promote_after_s`` after its
    reveal goes before all that are younger, by reveal. Dropped: the ranking model itself (predictions are part of the
    instance), pre-emption at every step, and the quantum after which a promoted request falls back.

    Parameters
    ----------
    promote_after_s : float
        Time since reveal after which a waiting call is promoted, in seconds.
    dispatch : str
        Dispatch rule; LTR orders one engine's queue and has none.
    """

    name = "ltr"

    def __init__(self, promote_after_s: float = 10.0, dispatch: str = "least_loaded") -> None:
        super().__init__(dispatch)
        if not promote_after_s > 0:
            raise ValueError(f"ltr: promote_after_s must be above 0, got {promote_after_s}")
        self.promote_after_s = promote_after_s

    def key(self, view: View, call: int) -> tuple[int, float, float]:
        """Return (0, reveal time in seconds, 0) of a starved call, else (1, predicted tokens, reveal time)."""
        reveal_s = view.reveal_s[call]
        if view.now - reveal_s >= self.promote_after_s:
            return 0, reveal_s, 0.0
        return 1, view.predicted_output_tokens[call], reveal_s
