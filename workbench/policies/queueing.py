"""Queueing policies: an order of the waiting calls and a dispatcher, chosen apart."""

import random
from collections.abc import Iterator
from typing import Any

from workbench.policies.base import Assignment, Policy, Stage
from workbench.policies.dispatch import Dispatcher
from workbench.view import View

__all__ = ["QueueingPolicy"]


class QueueingPolicy(Policy):
    """Dispatches every call once, when it is revealed, and serves each instance's queue by a key.

    Parameters
    ----------
    dispatch : str
        One of `workbench.policies.dispatch.DISPATCH_RULES`.
    """

    def __init__(self, dispatch: str) -> None:
        self.dispatcher = Dispatcher(dispatch)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        self.dispatcher.begin(view, rng)

    def key(self, view: View, call: int) -> Any:
        """Return the queue priority of a call; the least is served first."""
        raise NotImplementedError

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether a call that is queued for prefill needs a new key; ``fresh`` workflows just revealed calls."""
        return False

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Dispatch the calls that have no instance yet, and renew the keys that changed."""
        if stage is Stage.DECODE:
            for queue in view.waiting_decode:
                for call in queue:
                    yield Assignment(call, self.key(view, call), -1, view.decode_instance[call])
            return
        self.dispatcher.refresh(view)
        fresh = {view.workflow[call] for call in view.waiting_prefill if view.prefill_instance[call] < 0}
        for call in view.waiting_prefill:
            if view.prefill_instance[call] < 0:
                yield Assignment(call, self.key(view, call), *self.dispatcher.choose(view, call))
            elif self.changed(view, call, fresh):
                yield Assignment(call, self.key(view, call), view.prefill_instance[call], view.decode_instance[call])
