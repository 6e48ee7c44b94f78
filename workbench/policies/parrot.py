"""Parrot: application-centric scheduling on the graph of semantic variables (2024, arXiv 2405.19888)."""

import random
from collections.abc import Iterable

from workbench.policies.base import Assignment, Stage
from workbench.policies.queueing import QueueingPolicy, extend_depths
from workbench.view import View

__all__ = ["Parrot"]


class Parrot(QueueingPolicy):
    """Programs in order of arrival, and deeper calls of a program first.

    The depth is the longest path from a source among the revealed calls. Dropped: performance objectives deduced from
    the whole graph, which the program hands over at once (here calls are revealed online); shared prefixes, of which
    only the dispatch to where the first parent went is left; and direct hand-over of outputs between calls.

    Parameters
    ----------
    dispatch : str
        Dispatch rule; ``cache_aware`` co-locates a program's calls unless the pool is out of balance.
    """

    name = "parrot"

    def __init__(self, dispatch: str = "cache_aware") -> None:
        super().__init__(dispatch)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run."""
        super().begin(view, rng)
        self._depth: list[int] = []

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Take in the calls revealed since the last plan, then plan as any queueing policy."""
        extend_depths(view, self._depth)
        return super().plan(view, stage)

    def key(self, view: View, call: int) -> tuple[float, int, int]:
        """Return (arrival in seconds, workflow, minus the call's depth)."""
        w = view.workflow[call]
        return view.arrival_s[w], w, -self._depth[call]
