"""HexAGenT: projected-risk ranking with joint prefill-decode placement (section 5 of the paper)."""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from workbench import kernels
from workbench.policies.base import Assignment, Policy, Ranking, Stage
from workbench.view import View

__all__ = ["Hexagent"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

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

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Rank and place every call that waits for the stage."""
        return self._plan_prefill(view) if stage is Stage.PREFILL else self._plan_decode(view)

    def _plan_prefill(self, view: View) -> Ranking:
        arrival, horizon = view.progress()
        committed: tuple[Ints, Floats, Floats, Ints] | None = None
        while True:
            done, *plan = kernels.plan_prefill(
                view.now,
                self.rerank_limit,
                np.fromiter(view.waiting_prefill, np.int64, len(view.waiting_prefill)),
                view.order_key,
                arrival,
                horizon,
                view.demand_tokens,
                view.prefill_s,
                view.transfer_s,
                view.decode_s,
                view.prefill_free_at(),
                view.prefill_class,
                view.decode_class,
                view.capacity_tokens,
                view.bound_tokens,
                committed,
            )
            if done:
                return Ranking(*plan)
            committed = self._committed(view)

    def _plan_decode(self, view: View) -> Iterator[Assignment]:
        waiting = [call for queue in view.waiting_decode for call in queue]
        if len(waiting) == 1:
            yield Assignment(waiting[0], 0, -1, view.decode_instance[waiting[0]])
            return
        calls = sorted(waiting, key=view.order_key.__getitem__)
        running = [call for decoding in view.decoding for call in decoding]
        rows, run_rows = np.array(calls, dtype=np.int64), np.array(running, dtype=np.int64)
        instance = np.array([view.decode_instance[call] for call in calls], dtype=np.int64)
        arrival, horizon = view.progress()
        order = kernels.plan_decode(
            view.now,
            self.rerank_limit,
            view.now - arrival[rows],
            horizon[rows],
            view.demand_tokens[rows],
            view.decode_s[rows, view.decode_class[instance]],
            instance,
            view.capacity_tokens,
            np.array([view.decode_instance[call] for call in running], dtype=np.int64),
            np.maximum(0, view.expected_decode_end_s[run_rows] - view.now),
            view.demand_tokens[run_rows],
        )
        for rank, q in enumerate(order.tolist()):
            yield Assignment(calls[q], rank, -1, view.decode_instance[calls[q]])

    def _committed(self, view: View) -> tuple[Ints, Floats, Floats, Ints]:
        """Return the calls bound to a decode instance, in the order in which the projection lets them start.

        Their instance, when each can start, for how long, and demand: what is running, then what waits for decode by
        rank, then what is in transfer and in prefill by when it is ready.
        """
        running = [call for decoding in view.decoding for call in decoding]
        rows = [(call, view.now) for d in range(len(view.decode_class)) for call in view.decode_queue(d)]
        for calls in (view.transferring, view.prefilling):
            coming = sorted((view.expected_decode_ready(call), view.order_key[call], call) for call in calls)
            rows.extend((call, ready) for ready, _, call in coming)
        bound = np.array(running + [call for call, _ in rows], dtype=np.int64)
        instance = np.array([view.decode_instance[call] for call in bound.tolist()], dtype=np.int64)
        ready = np.full(len(bound), view.now)
        ready[len(running) :] = [ready_s for _, ready_s in rows]
        left = view.decode_s[bound, view.decode_class[instance]]
        left[: len(running)] = np.maximum(0, view.expected_decode_end_s[bound[: len(running)]] - view.now)
        return instance, ready, left, view.demand_tokens[bound]
