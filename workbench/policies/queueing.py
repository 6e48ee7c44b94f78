"""Queueing policies: an order of the waiting calls and a dispatcher, chosen apart."""

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

from workbench.policies.base import Assignment, Policy, Stage
from workbench.policies.dispatch import Dispatcher
from workbench.view import View

__all__ = ["FinishedWorkflows", "QueueingPolicy", "RenewedKeys", "extend_depths"]


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

    @abstractmethod
    def key(self, view: View, call: int) -> Any:
        """Return the queue priority of a call; the least is served first."""

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether a call that is queued for prefill needs a new key; ``fresh`` workflows just revealed calls."""
        return False

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Dispatch the calls that have no instance yet, and renew the keys that changed."""
        if stage is Stage.DECODE:
            for queue in view.waiting_decode:
                for call in queue:
                    yield Assignment(call, self.key(view, call), -1, view.decode_instance[call])
            return
        self.dispatcher.refresh(view)
        fresh = {view.workflow[call] for call in view.unplanned}
        # Only a policy whose keys change looks at the calls that are queued already.
        static = type(self).changed is QueueingPolicy.changed
        for call in list(view.unplanned) if static else view.waiting_prefill:
            if call in view.unplanned:
                yield Assignment(call, self.key(view, call), *self.dispatcher.choose(view, call))
            elif self.changed(view, call, fresh):
                yield Assignment(call, self.key(view, call), view.prefill_instance[call], view.decode_instance[call])


class RenewedKeys(QueueingPolicy):
    """A queueing policy whose keys move: they are taken anew at every plan, and handed out where they have moved.

    Calls that wait for decode are planned as well. A key must be cheap: every waiting call's is taken at every plan.
    """

    stages = (Stage.PREFILL, Stage.DECODE)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._given: dict[int, Any] = {}

    def plan(self, view: View, stage: Stage) -> Iterator[Assignment]:
        """Plan as any queueing policy, and keep the keys that are handed out."""
        for assignment in super().plan(view, stage):
            self._given[assignment.call] = assignment.rank
            yield assignment

    def changed(self, view: View, call: int, fresh: set[int]) -> bool:
        """Return whether the key is not the one that the call was given."""
        return bool(self._given.get(call) != self.key(view, call))


class FinishedWorkflows:
    """Tells which workflows are over, as far as revealed calls show it.

    A workflow whose revealed calls are all complete may be over, or a tool may be running. It counts as finished when
    it has been idle for as long as the longest tool delay seen so far in the run, and is taken back if it goes on. An
    update costs a step for each workflow with open calls.
    """

    def __init__(self) -> None:
        self._known = 0
        self._longest_tool_s = 0.0
        self._open: dict[int, None] = {}
        self._idle_since_s: dict[int, float] = {}
        self._finished: set[int] = set()

    def update(self, view: View) -> tuple[list[int], list[int]]:
        """Return the workflows that have finished since the last update, and those that turned out not to have."""
        resumed = []
        for call in range(self._known, len(view.workflow)):
            workflow = view.workflow[call]
            self._longest_tool_s = max([self._longest_tool_s, *(delay for _, delay in view.parents[call])])
            self._idle_since_s.pop(workflow, None)
            if workflow in self._finished:
                self._finished.remove(workflow)
                resumed.append(workflow)
            self._open[workflow] = None
        self._known = len(view.workflow)
        for workflow in [w for w in self._open if not view.open_calls[w]]:
            del self._open[workflow]
            self._idle_since_s[workflow] = view.now
        finished = []
        for workflow, since_s in self._idle_since_s.items():  # the longest idle first
            if view.now - since_s < self._longest_tool_s:
                break
            finished.append(workflow)
        for workflow in finished:
            del self._idle_since_s[workflow]
            self._finished.add(workflow)
        return finished, resumed


def extend_depths(view: View, depths: list[int]) -> None:
    """Add the depths of the calls revealed since: 0 at sources, else one more than the deepest parent's."""
    for call in range(len(depths), len(view.workflow)):
        depths.append(1 + max((depths[parent] for parent, _ in view.parents[call]), default=-1))
