"""Real workflows that ship with the workbench."""

from functools import cache
from pathlib import Path

from workbench.traces.lengths import read_lengths
from workbench.workflow import Workload

__all__ = ["bfcl", "workloads_folder"]


def workloads_folder() -> Path:
    """Return the folder of the committed workloads: in the package once installed, else in the source tree."""
    package = Path(__file__).parents[1]
    installed = package / "data" / "workloads"
    return installed if installed.is_dir() else package.parent / "instances" / "workloads"


def bfcl(workflows: int = 400, rate: float = 40.0, seed: int = 0, cached_prefix: bool = True) -> Workload:
    """Draw BFCL-v3 multi-turn workflows with Poisson arrivals.

    Tasks, tool documents, tool calls and tool results are real; that the agent makes no mistake, and the length of
    the reply that closes a turn, are assumed (``instances/workloads/README.md``). Tool delays are 0: the tools are
    simulators.
    Counts and rates of the paper's trace are the defaults (section 7.1); its arrival process is not stated there.

    Parameters
    ----------
    workflows : int
        Number of workflows, at most 800.
    rate : float
        Mean arrivals per second.
    seed : int
        Seed of the draw and of the arrivals.
    cached_prefix : bool
        Whether prefill skips the history that the workflow's previous call already held.

    Examples
    --------
    >>> bfcl(3, rate=1.0).workflows[0].width
    1
    """
    drawn = _bfcl().sample(workflows, seed).arriving(rate, seed)
    return drawn if cached_prefix else drawn.without_cached_prefix()


@cache
def _bfcl() -> Workload:
    return read_lengths(workloads_folder() / "bfcl_v3_multi_turn.jsonl.gz")
