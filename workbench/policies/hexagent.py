"""HexAGenT: projected-risk ranking with joint prefill-decode placement (section 5 of the paper)."""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from workbench import kernels
from workbench.policies.base import Assignment, Policy, Stage
from workbench.view import View

__all__ = ["Hexagent"]

LARGEST_LIMIT = 1_000_000_000


class Hexagent(Policy):
    """HexAGenT (Algorithm 1 of the paper).

    Waiting calls are ranked by ``R = ((t - a_w) + Delta) / H_w(t)``, where ``Delta`` is the time until the call's
    projected decode finish on its best prefill-decode pair. A queue of at most ``rerank_limit`` calls is ranked anew
    after each assignment; a longer one is ranked once. The projection simulates decode occupancy with what is running,
    waiting for decode in rank order, in transfer, and in prefill (the last two by when they are ready).

    Parameters
    ----------
    rerank_limit : int
        The paper's unnamed bound of a small queue, for both stages; it gives no value.
    """

    name = "hexagent"
    stages = (Stage.PREFILL, Stage.DECODE)

    def __init__(self, rerank_limit: int = 32) -> None:
        if not 0 <= rerank_limit <= LARGEST_LIMIT:
            raise ValueError(f"hexagent: rerank_limit must be from 0 to {LARGEST_LIMIT}, got {rerank_limit}")
        self.rerank_limit = rerank_limit

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Rank and place every call that waits for the stage."""
        return self._plan_prefill(view) if stage is Stage.PREFILL else self._plan_decode(view)

    def _plan_prefill(self, view: View) -> Iterator[Assignment]:
        calls = sorted(view.waiting_prefill, key=lambda call: (view.workflow[call], view.index[call]))
        rows = np.array(calls, dtype=np.int64)
        committed = self._committed(view)
        bound = np.array(committed, dtype=np.int64)
        instance = np.array([view.decode_instance[call] for call in committed], dtype=np.int64)
        running = sum(len(calls) for calls in view.decoding)
        ready = [view.now] * running
        left = [view.expected_decode_left(call) for call in committed[:running]]
        for call in committed[running:]:
            waits = call in view.waiting_decode[view.decode_instance[call]]
            ready.append(view.now if waits else view.expected_decode_ready(call))
            left.append(float(view.decode_s[call, view.decode_class[view.decode_instance[call]]]))
        elapsed, horizon = self._progress(view, calls)
        order, on_p, on_d = kernels.plan_prefill(
            view.now,
            self.rerank_limit,
            elapsed,
            horizon,
            view.demand_tokens[rows],
            view.prefill_s[rows],
            view.transfer_s[rows],
            view.decode_s[rows],
            view.prefill_free_at(),
            view.prefill_class,
            view.decode_class,
            view.capacity_tokens,
            instance,
            np.array(ready, dtype=np.float64),
            np.array(left, dtype=np.float64),
            view.demand_tokens[bound],
        )
        for rank, (q, p, d) in enumerate(zip(order.tolist(), on_p.tolist(), on_d.tolist(), strict=True)):
            yield Assignment(calls[q], rank, p, d)

    def _plan_decode(self, view: View) -> Iterator[Assignment]:
        calls = sorted(
            (call for queue in view.waiting_decode for call in queue),
            key=lambda call: (view.workflow[call], view.index[call]),
        )
        running = [call for decoding in view.decoding for call in decoding]
        rows, run_rows = np.array(calls, dtype=np.int64), np.array(running, dtype=np.int64)
        instance = np.array([view.decode_instance[call] for call in calls], dtype=np.int64)
        elapsed, horizon = self._progress(view, calls)
        order = kernels.plan_decode(
            view.now,
            self.rerank_limit,
            elapsed,
            horizon,
            view.demand_tokens[rows],
            view.decode_s[rows, view.decode_class[instance]],
            instance,
            view.capacity_tokens,
            np.array([view.decode_instance[call] for call in running], dtype=np.int64),
            np.array([view.expected_decode_left(call) for call in running], dtype=np.float64),
            view.demand_tokens[run_rows],
        )
        for rank, q in enumerate(order.tolist()):
            yield Assignment(calls[q], rank, -1, view.decode_instance[calls[q]])

    def _committed(self, view: View) -> list[int]:
        """Return the calls bound to a decode instance, in the order in which the projection lets them start."""
        committed = [call for decoding in view.decoding for call in decoding]
        for d in range(len(view.decode_class)):
            committed.extend(view.decode_queue(d))
        for calls in (view.transferring, view.prefilling):
            committed.extend(
                sorted(calls, key=lambda c: (view.expected_decode_ready(c), view.workflow[c], view.index[c]))
            )
        return committed

    def _progress(self, view: View, calls: Sequence[int]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return ``t - a_w`` and ``H_w(t)`` for each call, in seconds."""
        workflows = [view.workflow[call] for call in calls]
        elapsed = np.array([view.now - view.arrival_s[w] for w in workflows], dtype=np.float64)
        return elapsed, np.array([view.horizon_s(w) for w in workflows], dtype=np.float64)
