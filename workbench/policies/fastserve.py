"""FastServe: skip-join multi-level feedback queue (2023, arXiv 2305.05920)."""

import random
from math import ceil, log2

from workbench.policies.queueing import RenewedKeys
from workbench.view import View

__all__ = ["Fastserve"]


class Fastserve(RenewedKeys):
    """Skip-join queues: a call joins the queue whose quantum covers its prefill time; long waits are promoted.

    Quanta double from queue to queue; the prefill time is the estimate on the fastest class. Inside a queue calls go by
    reveal. A call that waits, for prefill or decode, ``promote_after_s`` after its reveal goes to the first queue.
    Dropped: pre-emption after each token, so that a call is never demoted once it runs, and proactive KV swapping.

    Parameters
    ----------
    first_queue_s : float
        Prefill time up to which a call joins the first queue, in seconds.
    queues : int
        Number of queues.
    promote_after_s : float
        Time since reveal after which a waiting call is promoted, in seconds.
    dispatch : str
        Dispatch rule; FastServe serves one engine and has none.
    """

    name = "fastserve"

    def __init__(
        self,
        first_queue_s: float = 0.05,
        queues: int = 6,
        promote_after_s: float = 10.0,
        dispatch: str = "least_loaded",
    ) -> None:
        super().__init__(dispatch)
        if not (first_queue_s > 0 and queues >= 1 and promote_after_s > 0):
            raise ValueError("fastserve: first_queue_s and promote_after_s must be above 0 and queues at least 1")
        self.first_queue_s, self.queues, self.promote_after_s = first_queue_s, queues, promote_after_s

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._joined: list[int] = []

    def key(self, view: View, call: int) -> tuple[int, float]:
        """Return (queue, reveal time in seconds)."""
        if view.now - view.reveal_s[call] >= self.promote_after_s:
            return 0, view.reveal_s[call]
        for fresh in range(len(self._joined), call + 1):
            quanta = float(view.prefill_s[fresh].min()) / self.first_queue_s
            self._joined.append(0 if quanta <= 1 else min(self.queues - 1, ceil(log2(quanta))))
        return self._joined[call], view.reveal_s[call]
