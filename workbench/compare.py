"""Several policies on one instance, a row each."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from workbench.compiled import CompiledInstance
from workbench.estimator import EstimateError
from workbench.instance import Instance
from workbench.policies import Policy, available, create
from workbench.schedule import Schedule
from workbench.simulator import PlanLatency, simulate

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "summarise"]


def compare(
    instance: Instance | CompiledInstance,
    policies: Sequence[str | Policy | type[Policy]] | None = None,
    seed: int = 0,
    progress: bool = False,
    plan_latency: str | PlanLatency = "zero",
    admission: str = "in_order",
    error: EstimateError | None = None,
    decode: str = "interval",
) -> "pd.DataFrame":
    """Simulate policies on an instance.

    Parameters
    ----------
    instance : Instance or CompiledInstance
        What to serve.
    policies : sequence, optional
        Policies as for `simulate`; all built-in ones if omitted.
    seed : int
        Seed of each run.
    progress : bool
        Whether to show a progress bar on standard error.
    plan_latency, admission, error, decode
        As for `simulate`.

    Returns
    -------
    pandas.DataFrame
        See `summarise`.
    """
    from tqdm import tqdm

    chosen = list(available()) if policies is None else policies
    for policy in chosen:
        create(policy)  # refuses a misspelt one before the first run
    bar = tqdm(chosen, "policies", disable=not progress)
    return summarise(simulate(instance, policy, seed, plan_latency, admission, error, decode) for policy in bar)


def summarise(schedules: Iterable[Schedule]) -> "pd.DataFrame":
    """Return one row a schedule, indexed by its label.

    ``req95``, ``req99``, ``mean`` and ``p50`` are of the ratios ``(C_w - a_w) / H_w``; ``makespan`` is in seconds;
    ``invocations`` counts plans. ``ms_per_invocation`` is wall-clock time and differs from run to run.
    """
    import pandas as pd

    rows = []
    for schedule in schedules:
        ratios = schedule.ratios()
        rows.append(
            {
                "policy": schedule.label,
                "req95": schedule.req(0.95),
                "req99": schedule.req(0.99),
                "mean": float(ratios.mean()),
                "p50": schedule.req(0.5),
                "makespan": schedule.makespan_s,
                "invocations": schedule.planner.invocations,
                "ms_per_invocation": schedule.planner.ms_per_invocation,
                "horizon": schedule.instance.horizon_kind,
            }
        )
    return pd.DataFrame(rows).set_index("policy")
