"""The contract between a policy and the runtime."""

import random
from collections.abc import Iterable
from enum import StrEnum
from typing import Any, Literal, NamedTuple, Protocol, runtime_checkable

from workbench.view import View

__all__ = ["Assignment", "Information", "Policy", "Stage"]

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


@runtime_checkable
class Policy(Protocol):
    """A scheduling policy.

    Subclass it, or write a class with the same attributes. It is asked for a plan when a workflow arrives or reveals
    calls (prefill stage) and when transfers complete (decode stage), for each stage named in ``stages``. A plan covers
    any of the calls that wait; those it leaves out keep their place. Every call must get one before it can start.

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

    def plan(self, view: View, stage: Stage) -> Iterable[Assignment]:
        """Return assignments for calls that wait for ``stage``."""
        raise NotImplementedError
