"""Solve an instance to a certificate: incumbents, CP-SAT on the rounded problem, replay in exact time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from math import ceil, floor
from time import perf_counter
from typing import Literal, Protocol

import numpy as np
from ortools.sat.python import cp_model

import workbench as wb
from solvers import bounds, constraints
from solvers.certificate import CLOSED_GAP, ROUNDING, Certificate, relative_gap
from solvers.incumbent import list_schedules, replay_schedule
from solvers.model import Model
from solvers.ticks import SNAP, TickInstance, choose_tick
from workbench import CompiledInstance, Schedule
from workbench.metrics import workflows_on_time
from workbench.policies import PAPER_POLICIES

__all__ = ["Compilable", "Objective", "solve"]

REPORT_EVERY_S = 0.25

MOST_TICKS = 10**12
"""Ticks in the horizon at most; CP-SAT refuses models with much larger times."""

ALPHA_GRID = 1000
"""Steps of alpha per unit in the direct model; a finer grid bounds worse."""

Objective = Literal["makespan", "alpha"]
Progress = Callable[[float, float | None, float | None], None]


class Compilable(Protocol):
    """An instance that compiles, such as `workbench.Instance`."""

    def compile(self) -> CompiledInstance:
        """Return the arrays."""


def solve(
    instance: Compilable | CompiledInstance,
    objective: Objective = "makespan",
    tau: float = 1.0,
    time_limit: float = 60.0,
    workers: int = 2,
    seed: int = 0,
    tick_s: float | None = None,
    hints: Iterable[Schedule] | None = None,
    on_progress: Progress | None = None,
) -> Certificate:
    """Find the offline optimum: interval decode, plans without latency, everything known in advance.

    Parameters
    ----------
    instance : Instance or CompiledInstance
        What to schedule.
    objective : {"makespan", "alpha"}
        Completion of the last workflow, or the least SLO scale for a share ``tau`` of the workflows (Eq. 1).
    tau : float
        Share of workflows on time, for ``alpha``.
    time_limit : float
        Seconds for the search; incumbents and combinatorial bounds come on top, and are all there is at 0.
    workers : int
        Threads of CP-SAT. With more than one, runs that reach the time limit are not reproducible from the seed.
    seed : int
        Seed of CP-SAT.
    tick_s : float, optional
        Time unit of the rounded problem in seconds; chosen from the horizon if omitted.
    hints : iterable of Schedule, optional
        Known schedules of this instance, of which placement and starts are taken; simulations of the paper's policies
        if omitted.
    on_progress : callable, optional
        Called with (elapsed seconds, upper bound, lower bound).

    Returns
    -------
    Certificate
        The bracket, also when the search is stopped by Ctrl-C once it has its first schedule.

    Raises
    ------
    ScheduleError
        If a hint is not feasible.
    RuntimeError
        If CP-SAT contradicts a known schedule or refuses the model.

    Examples
    --------
    >>> one_server = CompiledInstance.from_durations(first_call=[0, 1, 2], prefill_s=[[2.0], [2.0]],
    ...                                              decode_s=[[1.0], [1.0]])
    >>> certificate = solve(one_server)
    >>> certificate.status, certificate.value
    ('closed', 5.0)
    """
    compiled = instance if isinstance(instance, CompiledInstance) else instance.compile()
    if objective not in ("makespan", "alpha"):
        raise ValueError(f"objective must be makespan or alpha, got '{objective}'")
    if not (time_limit >= 0 and workers >= 1 and seed >= 0 and (tick_s is None or tick_s > 0)):
        raise ValueError("time_limit must be at least 0 s, workers at least 1, seed at least 0 and tick_s above 0 s")
    search = _Search(compiled, objective, tau, time_limit, workers, seed, on_progress)
    search.start(hints, tick_s)
    try:
        if objective == "makespan":
            search.minimise_makespan()
        else:
            search.minimise_alpha()
    except KeyboardInterrupt:
        search.interrupted = True
    return search.certificate()


class _Search:
    """State of one solve: the bracket so far, and what remains of the time."""

    def __init__(
        self,
        instance: CompiledInstance,
        objective: Objective,
        tau: float,
        time_limit: float,
        workers: int,
        seed: int,
        on_progress: Progress | None,
    ) -> None:
        self.instance = instance
        self.objective = objective
        self.tau = tau
        self.need = workflows_on_time(instance.n_workflows, tau if objective == "alpha" else 1.0)
        self.time_limit, self.workers, self.seed = time_limit, workers, seed
        self.on_progress = on_progress
        self.began = perf_counter()
        self.solver_status = "UNKNOWN"
        self.interrupted = False

    def start(self, hints: Iterable[Schedule] | None, tick_s: float | None) -> None:
        """Take the best known schedule and the combinatorial bound."""
        instance = self.instance
        known = list(hints) if hints is not None else [wb.simulate(instance, policy) for policy in PAPER_POLICIES]
        known = [
            Schedule.from_starts(
                instance, run.label, run.prefill_instance, run.decode_instance, run.prefill_start_s, run.decode_start_s
            ).check()
            for run in known
        ]
        known.extend(list_schedules(instance))
        best = min(known, key=self.value_of)
        self.schedule, self.upper, self.upper_method = best, self.value_of(best), best.label
        self.offer(replay_schedule(instance, best))
        bound = (
            bounds.makespan_bound(instance) if self.objective == "makespan" else bounds.alpha_bound(instance, self.tau)
        )
        self.lower, self.lower_method = 0.0, ""
        self.prove(bound.value, bound.method)
        if tick_s is not None and self.schedule.makespan_s / tick_s > MOST_TICKS:
            raise ValueError(f"tick_s must leave at most {MOST_TICKS:.0e} ticks in the horizon, got {tick_s}")
        self.ticks = TickInstance(instance, tick_s or choose_tick(instance, self.schedule.makespan_s))
        self.search_began = perf_counter()
        self.report()

    def value_of(self, schedule: Schedule) -> float:
        """Return the objective of a schedule in exact time."""
        return schedule.makespan_s if self.objective == "makespan" else schedule.req(self.tau)

    def offer(self, schedule: Schedule) -> bool:
        """Keep a schedule if it is better, and return whether it is."""
        value = self.value_of(schedule)
        if value >= self.upper:
            return False
        self.schedule, self.upper, self.upper_method = schedule, value, schedule.label
        return True

    def prove(self, lower: float, method: str) -> None:
        """Raise the lower bound."""
        if lower > self.upper * (1 + ROUNDING):
            raise RuntimeError(f"{method} proves {lower}, above the value {self.upper} of a known schedule")
        if lower > self.lower:
            self.lower, self.lower_method = min(lower, self.upper), method

    def report(self) -> None:
        """Tell the caller where the search stands."""
        if self.on_progress is not None:
            self.on_progress(perf_counter() - self.search_began, self.upper, self.lower)

    @property
    def left_s(self) -> float:
        """Seconds that remain."""
        return max(0.0, self.time_limit - (perf_counter() - self.search_began))

    @property
    def done(self) -> bool:
        """Whether the bracket is closed or the time is over."""
        gap = relative_gap(self.upper, self.lower)
        return self.interrupted or self.left_s <= 0 or (gap is not None and gap <= 1e-12)

    def minimise_makespan(self) -> None:
        """Optimise the rounded problem; model every instance's memory where a group's alone does not settle it."""
        for exact_packing in (False, True):
            if self.done:
                return
            deadlines = self.ticks.floor_deadlines(np.full(self.instance.n_workflows, self.upper))
            model = Model(self.ticks, deadlines, self.need, exact_packing)
            least = floor(self.lower / self.ticks.tick_s * (1 - SNAP))
            end = model.cp.new_int_var(least, deadlines[0], "makespan")
            for w in model.workflows:
                for c in model.sinks(w):
                    model.cp.add(end >= model.end(c))
            constraints.add_loads(model, end)
            model.cp.minimize(end)
            model.add_hint(self.schedule)
            model.cp.add_hint(end, deadlines[0])
            status, bound = self._run(model, self.left_s, "CP-SAT")
            self.solver_status = status
            if bound is not None:
                self.prove(bound * self.ticks.tick_s * (1 - SNAP), "CP-SAT")
            if not model.relaxed_packing():
                return

    def minimise_alpha(self) -> None:
        """Alternate probes at fixed alpha, which prove bounds, with the direct model, which finds schedules."""
        budget_s = 0.3
        while not self.done:
            for alpha in (self.upper, self.upper / (1 + 0.9 * CLOSED_GAP), (self.lower + self.upper) / 2):
                if self.lower < alpha <= self.upper and not self.done:
                    self._probe(alpha, min(budget_s, self.left_s))
            if self._closed:
                return
            if not self.done:
                self._direct(min(5 * budget_s, self.left_s))
            budget_s *= 2

    @property
    def _closed(self) -> bool:
        """Whether the gap is small enough for the certificate to count as closed."""
        gap = relative_gap(self.upper, self.lower)
        return gap is not None and gap <= CLOSED_GAP

    def _probe(self, alpha: float, seconds: float) -> None:
        """Ask for a schedule within ``alpha``, or better than that where the incumbent has reached it."""
        instance, ticks = self.instance, self.ticks
        limit = instance.arrival_s + alpha * instance.horizon_s
        deadlines = ticks.strict_deadlines(limit) if alpha == self.upper else ticks.floor_deadlines(limit)
        for exact_packing in (False, True):
            model = Model(ticks, deadlines, self.need, exact_packing)
            if not model.feasible:
                self.prove(self._below(alpha), "critical paths at fixed alpha")
                return
            late = self.late(alpha)
            model.add_hint(self.schedule, late)
            before = self.upper
            status, _ = self._run(model, seconds, "CP-SAT at fixed alpha", may_fail=True)
            if status == "INFEASIBLE":
                self.prove(self._below(alpha), "CP-SAT: infeasible at fixed alpha")
                return
            if status == "UNKNOWN" or self.upper < before or not model.relaxed_packing():
                return

    def _direct(self, seconds: float) -> None:
        """Minimise alpha on a grid."""
        instance, ticks = self.instance, self.ticks
        deadlines = ticks.floor_deadlines(instance.arrival_s + self.upper * instance.horizon_s)
        model = Model(ticks, deadlines, self.need, exact_packing=True)
        least = max(0, floor(self.lower * ALPHA_GRID))
        scale = model.cp.new_int_var(least, ceil(self.upper * ALPHA_GRID), "alpha")
        horizon = np.ceil(instance.horizon_s / ticks.tick_s * (1 - SNAP)).astype(int).tolist()
        arrival = np.ceil(instance.arrival_s / ticks.tick_s * (1 - SNAP)).astype(int).tolist()
        for w in model.workflows:
            for c in model.sinks(w):
                on_time = model.cp.add(ALPHA_GRID * model.end(c) <= ALPHA_GRID * arrival[w] + scale * horizon[w])
                if model.optional:
                    on_time.only_enforce_if(model.on_time[w])
        model.cp.minimize(scale)
        model.add_hint(self.schedule, self.late(self.upper))
        model.cp.add_hint(scale, ceil(self.upper * ALPHA_GRID))
        status, bound = self._run(model, seconds, "CP-SAT")
        self.solver_status = status
        if bound is not None:
            self.prove(self._below((bound - 1) / ALPHA_GRID), "CP-SAT on a grid of alpha")

    def late(self, alpha: float) -> frozenset[int]:
        """Return the workflows that the incumbent has late and the quantile lets be."""
        ratios = self.schedule.flow_s / self.instance.horizon_s
        order = np.argsort(-ratios, kind="stable")[: self.instance.n_workflows - self.need]
        return frozenset(w for w in order.tolist() if ratios[w] > alpha)

    def _below(self, alpha: float) -> float:
        """Return a bound proven by infeasibility at ``alpha``, lowered by the rounding of the deadlines."""
        latest = float(((self.instance.arrival_s + alpha * self.instance.horizon_s) / self.instance.horizon_s).max())
        return alpha - 4 * SNAP * latest

    def _run(self, model: Model, seconds: float, label: str, may_fail: bool = False) -> tuple[str, float | None]:
        """Run CP-SAT, replay what it finds, and return its status and bound (None without one)."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = seconds
        solver.parameters.num_workers = self.workers
        solver.parameters.random_seed = self.seed
        solver.parameters.catch_sigint_signal = False
        search = self

        class Watch(cp_model.CpSolverSolutionCallback):
            def on_solution_callback(self) -> None:
                search.offer(model.found_schedule(self.value, label))
                search.report()

        status = self._solve_stoppably(solver, model.cp, Watch())
        name: str = solver.status_name(status)
        if status == cp_model.MODEL_INVALID or (status == cp_model.INFEASIBLE and not may_fail):
            raise RuntimeError(
                f"CP-SAT answers {name} though a schedule of value {self.upper} is known: {model.cp.validate()}"
            )
        self.report()
        has_bound = status in (cp_model.OPTIMAL, cp_model.FEASIBLE) or (status == cp_model.UNKNOWN and not may_fail)
        bound = solver.best_objective_bound if has_bound and model.cp.has_objective() else None
        return name, bound

    def _solve_stoppably(
        self, solver: cp_model.CpSolver, model: cp_model.CpModel, watch: cp_model.CpSolverSolutionCallback
    ) -> cp_model.CpSolverStatus:
        """Solve in a thread, so that progress is told and Ctrl-C is seen meanwhile."""
        with ThreadPoolExecutor(max_workers=1) as pool:
            running = pool.submit(solver.solve, model, watch)
            try:
                while True:
                    try:
                        return running.result(timeout=REPORT_EVERY_S)
                    except TimeoutError:
                        self.report()
            except KeyboardInterrupt:
                self.interrupted = True
                solver.stop_search()
                return running.result()

    def certificate(self) -> Certificate:
        """Return what was found and proven."""
        return Certificate(
            objective=self.objective,
            tau=self.tau if self.objective == "alpha" else None,
            value=self.upper,
            lower_bound=self.lower,
            solver_status=self.solver_status,
            wall_s=perf_counter() - self.began,
            schedule=self.schedule,
            upper_bound_method=self.upper_method,
            lower_bound_method=self.lower_method,
            tick_s=self.ticks.tick_s,
            interrupted=self.interrupted,
            horizon_kind=self.instance.horizon_kind,
            versions={"ortools": version("ortools")},
        )
