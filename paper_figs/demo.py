"""The workbench in one run: real workflows under five policies, and how far each is from a proven optimum.

400 BFCL-v3 workflows arrive on the paper's Hetero-1 cluster; an exact optimum is computed for the first eight of them.
Tables are printed and written with the pictures to ``paper_figs/out/demo/``. Run by ``make demo``.
"""

from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from tqdm import tqdm

import solvers
import workbench as wb
from solvers import Objective
from workbench import plots
from workbench.files import write_bytes
from workbench.policies import PAPER_POLICIES

__all__ = ["competitive_table", "main", "scenarios"]

OUT = Path(__file__).parent / "out" / "demo"
CLUSTER, MODEL = wb.preset("hetero-1"), "llama3.1-70b"
RATE = 40.0
SEED = 0
SLICE = 8


def scenarios() -> dict[str, wb.Instance]:
    """Return the demo's instances by name: the paper's rate, and the rates at which prefill is just saturated."""
    instances = {}
    for prefix in (True, False):
        work = wb.traces.bfcl(400, rate=RATE, seed=SEED, cached_prefix=prefix)
        at_rate = wb.Instance(work, CLUSTER, MODEL)
        saturating = RATE / at_rate.offered_load()
        prompts = "cached prefix" if prefix else "full prompts"
        if prefix:
            instances[f"{prompts}, {RATE:g}/s"] = at_rate
        instances[f"{prompts}, {saturating:.3g}/s"] = wb.Instance(work.arriving(saturating, SEED), CLUSTER, MODEL)
    return instances


def competitive_table(instance: wb.Instance, time_limit_s: float) -> tuple[pd.DataFrame, solvers.Certificate]:
    """Solve an instance for makespan and alpha, and set every policy against the optimum.

    Parameters
    ----------
    instance : Instance
        A small instance.
    time_limit_s : float
        Seconds for each objective.

    Returns
    -------
    table : pandas.DataFrame
        One row for each objective and policy: what the policy reached, the proven bracket of the optimum, and the
        bracket of the competitive ratio, [policy / upper bound, policy / lower bound].
    certificate : Certificate
        The optimum for the makespan.
    """
    runs = [wb.simulate(instance, policy, SEED) for policy in PAPER_POLICIES]
    objectives: tuple[Objective, ...] = ("makespan", "alpha")
    certificates = {
        objective: solvers.solve(instance, objective=objective, tau=1.0, time_limit=time_limit_s, hints=runs)
        for objective in tqdm(objectives, "optimum of the slice")
    }
    rows = []
    for objective, certificate in certificates.items():
        for run in runs:
            value = run.makespan_s if objective == "makespan" else run.req(1.0)
            rows.append(
                {
                    "objective": objective,
                    "policy": run.label,
                    "value": value,
                    "optimum_at_least": certificate.lower_bound,
                    "optimum_at_most": certificate.value,
                    "status": certificate.status,
                    "lower": None if certificate.value is None else value / certificate.value,
                    "upper": value / certificate.lower_bound,
                }
            )
    return pd.DataFrame(rows), certificates["makespan"]


def main() -> None:
    """Run the demo."""
    OUT.mkdir(parents=True, exist_ok=True)
    tables, curves = {}, {}
    for name, instance in scenarios().items():
        runs = [wb.simulate(instance, policy, SEED).check() for policy in tqdm(PAPER_POLICIES, name)]
        table = wb.summarise(runs)
        table.insert(0, "offered_load", instance.offered_load())
        tables[name] = table
        curves[name] = {run.label: run.attainment() for run in runs}
        print(
            f"\n{name}: 400 BFCL-v3 workflows on {CLUSTER.name}, {MODEL}; "
            f"offered prefill load {instance.offered_load():.2f}"
        )
        print(_text(table.drop(columns=["offered_load", "horizon"])))
        print()
    _write_csv("policies.csv", pd.concat(tables, names=["scenario"]).reset_index())

    first = wb.Instance(wb.traces.bfcl(400, rate=RATE, seed=SEED)[:SLICE], CLUSTER, MODEL, name="bfcl-slice")
    ratios, optimum = competitive_table(first, time_limit_s=20.0)
    print(f"\nthe first {SLICE} workflows ({first.compile().n_calls} calls), cached prefix: competitive ratios")
    print(_text(ratios.set_index(["objective", "policy"])))
    _write_csv("competitive.csv", ratios)

    figure = Figure(figsize=(4 * len(curves), 3.2), layout="constrained")
    for axes, (name, by_policy) in zip(figure.subplots(1, len(curves)), curves.items(), strict=True):
        plots.attainment(by_policy, ax=axes).set_title(name)
    figure.savefig(OUT / "attainment.png", dpi=150)
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    for axes, (objective, part) in zip(figure.subplots(1, 2), ratios.groupby("objective", sort=False), strict=True):
        plots.competitive_ratios(part, ax=axes).set_title(str(objective))
    figure.savefig(OUT / "competitive.png", dpi=150)
    wb.simulate(first, "hexagent").gantt(title="hexagent").savefig(OUT / "gantt_hexagent.png", dpi=150)
    if optimum.schedule is not None:
        optimum.schedule.gantt(title="offline optimum of the makespan").savefig(OUT / "gantt_optimum.png", dpi=150)
        optimum.schedule.to_perfetto(OUT / "optimum.perfetto.json")
    print(f"\ntables and pictures: {OUT}")


def _text(table: pd.DataFrame) -> str:
    return table.to_string(float_format=lambda value: f"{value:.3f}")


def _write_csv(name: str, table: pd.DataFrame) -> None:
    write_bytes(OUT / name, table.to_csv(index=False).encode())


if __name__ == "__main__":
    main()
