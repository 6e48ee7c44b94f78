"""The contract between a policy and the runtime."""

import random
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from workbench.view import View

__all__ = ["Assignment", "Information", "Policy", "Ranking", "Stage"]

Information = Literal["revealed"]


class Stage(StrEnum):
    """A serving stage that a plan is for."""

    PREFILL = "prefill"
    DECODE = "decode"


class Assignment(NamedTuple):
    """One entry of a plan.

    Attributes
    ----------
    call : int
        Handle of a call that waits for the stage.
    rank : comparable
        Queue priority; the least is served first, ties by (workflow, call). Ranks of one policy must compare.
    prefill, decode : int
        Instances. A decode plan names the instance that the call is locked to; its ``prefill`` is not used.
    """

    call: int
    rank: Any
    prefill: int
    decode: int


@dataclass(frozen=True, eq=False)
class Ranking:
    """A whole plan for the prefill stage: every call that waits, in order of rank, with its pair.

    It takes the place of the plan before it. A call is sent to its pair when its prefill starts, not before. Iterating
    gives the same plan as assignments.

    Attributes
    ----------
    calls, prefill, decode : (Q,) int
        Handles by rank, and the instances of each.
    """

    calls: NDArray[np.int64]
    prefill: NDArray[np.int64]
    decode: NDArray[np.int64]

    def __len__(self) -> int:
        """Return the number of calls."""
        return len(self.calls)

    def __iter__(self) -> Iterator[Assignment]:
        """Iterate over the assignments by rank."""
        for rank, row in enumerate(zip(self.calls.tolist(), self.prefill.tolist(), self.decode.tolist(), strict=True)):
            call, prefill, decode = row
            yield Assignment(call, rank, prefill, decode)


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy.

    Subclass it, or write a class with the same attributes. It is asked for a plan when a workflow arrives or reveals
    calls (prefill stage) and when transfers complete (decode stage), for each stage named in ``stages``. A plan covers
    any of the calls that wait; those it leaves out keep their place. Every call must get one before it can start, but
    for those revealed while a plan is in flight, which may start under the runtime's fallback.

    Attributes
    ----------
    name : str
        Name in tables and plots.
    information : str
        What the policy may see; ``revealed`` is what an online policy sees.
    stages : tuple of Stage
        Stages in which it wants to be asked.
    """

    name: str
    information: Information = "revealed"
    stages: tuple[Stage, ...] = (Stage.PREFILL,)

    def begin(self, view: View, rng: random.Random) -> None:
        """Start a run: forget the last one. ``rng`` is the run's only source of chance."""

    @abstractmethod
    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Return assignments for calls that wait for ``stage``, or (prefill only) a ranking of all of them."""
