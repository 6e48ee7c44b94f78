"""Small instances, given by durations, and policies that watch a run."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench.compiled import CompiledInstance
from workbench.policies import Assignment, Policy, Stage, create
from workbench.view import View

Seconds = float | Sequence[float]


@dataclass
class Job:
    """A call: seconds by class (one figure: the same in every class), tokens, and parents with their tool delay."""

    prefill: Seconds = 1.0
    decode: Seconds = 1.0
    transfer: Any = 0.0
    prompt: int = 1
    output: int = 1
    parents: dict[int, float] = field(default_factory=dict)
    predicted_decode: Seconds | None = None
    predicted_output: int | None = None


Flow = tuple[float, list[Job]]


def build(
    flows: Sequence[Flow],
    prefill_class: Sequence[int] = (0,),
    decode_class: Sequence[int] = (0,),
    capacity: int | Sequence[int] = 1_000_000,
) -> CompiledInstance:
    """Compile flows of (arrival, calls); the parents of a call are places in its own flow."""
    classes, kinds = max(prefill_class) + 1, max(decode_class) + 1
    jobs = [job for _, calls in flows for job in calls]
    first = np.cumsum([0] + [len(calls) for _, calls in flows]).tolist()
    parents = [
        [offset + p for p in job.parents] for offset, (_, calls) in zip(first, flows, strict=False) for job in calls
    ]
    predicted = [job.decode if job.predicted_decode is None else job.predicted_decode for job in jobs]
    instance = CompiledInstance.from_durations(
        first_call=first,
        arrival_s=[arrival for arrival, _ in flows],
        prefill_s=[np.broadcast_to(job.prefill, classes) for job in jobs],
        decode_s=[np.broadcast_to(job.decode, kinds) for job in jobs],
        transfer_s=[np.broadcast_to(job.transfer, (classes, kinds)) for job in jobs],
        demand_tokens=[job.prompt + job.output for job in jobs],
        parents=parents,
        tool_delay_s=[list(job.parents.values()) for job in jobs],
        prefill_class=prefill_class,
        decode_class=decode_class,
        capacity_tokens=capacity,
    )
    return replace(
        instance,
        input_tokens=np.array([job.prompt for job in jobs]),
        output_tokens=np.array([job.output for job in jobs]),
        predicted_output_tokens=np.array([job.predicted_output or job.output for job in jobs]),
        predicted_decode_s=np.array([np.broadcast_to(seconds, kinds) for seconds in predicted], dtype=np.float64),
    )


def chain(*jobs: Job, delay: float = 0.0) -> list[Job]:
    """Return the jobs one after the other."""
    return [replace(job, parents={i - 1: delay} if i else {}) for i, job in enumerate(jobs)]


@dataclass(frozen=True)
class Hardware:
    """A cluster as arguments of `build`, and how demanding the calls on it are."""

    prefill_class: tuple[int, ...] = (0,)
    decode_class: tuple[int, ...] = (0,)
    capacity: tuple[int, ...] = (40,)

    def build(self, flows: Sequence[Flow]) -> CompiledInstance:
        """Compile flows for this cluster."""
        return build(flows, self.prefill_class, self.decode_class, self.capacity)


LONE = Hardware()
TIGHT = Hardware((0, 0), (0, 0), (12, 20))
ROOMY = Hardware((0, 0), (0, 0), (10_000, 10_000))
MIXED = Hardware((0, 1, 1), (0, 1, 1), (24, 20, 14))
CLUSTERS = {"lone": LONE, "tight": TIGHT, "roomy": ROOMY, "mixed": MIXED}


def random_job(rng: random.Random, hardware: Hardware, grid: bool, error: bool = False) -> Job:
    """Draw a call that fits the cluster; on the grid, durations repeat and sums of them are exact."""

    def seconds(largest: float) -> float:
        return rng.randint(1, int(4 * largest)) / 4 if grid else rng.uniform(0.05, largest)

    classes, kinds = max(hardware.prefill_class) + 1, max(hardware.decode_class) + 1
    largest = min(12, max(hardware.capacity))
    prompt, output = rng.randint(1, largest - 4), rng.randint(1, 4)
    job = Job(
        prefill=[seconds(2) for _ in range(classes)],
        decode=[seconds(4) for _ in range(kinds)],
        transfer=[[rng.choice([0.0, 0.25, seconds(1)]) for _ in range(kinds)] for _ in range(classes)],
        prompt=prompt,
        output=output,
    )
    if error:
        job.predicted_output = rng.choice([1, output, 3 * output, 50])
        factor = rng.choice([0.25, 1.0, 2.0])
        job.predicted_decode = [factor * s for s in job.decode]
    return job


def random_calls(rng: random.Random, hardware: Hardware, grid: bool, error: bool = False) -> list[Job]:
    """Draw a DAG: a chain, a tree, a fan-out with join, or whatever comes; parents stand before their children."""
    jobs = [random_job(rng, hardware, grid, error) for _ in range(rng.randint(1, 6))]
    shape = rng.choice(["chain", "tree", "join", "any"])
    for i, job in enumerate(jobs[1:], start=1):
        if shape == "chain":
            parents = [i - 1]
        elif shape == "tree":
            parents = [rng.randrange(i)]
        elif shape == "join":
            parents = [0] if i < len(jobs) - 1 else list(range(1, i)) or [0]
        else:
            parents = rng.sample(range(i), rng.randint(0, min(i, 3)))
        job.parents = {p: rng.choice([0.0, 0.0, 0.5, 1.25]) for p in parents}
    return jobs


def random_flows(rng: random.Random, hardware: Hardware, number: int, grid: bool, error: bool = False) -> list[Flow]:
    """Draw workflows whose arrivals are not in order; on the grid some coincide."""
    arrivals = [rng.randint(0, 2 * number) / 2 if grid else rng.uniform(0, number) for _ in range(number)]
    return [(arrival, random_calls(rng, hardware, grid, error)) for arrival in arrivals]


def reveal(view: View, workflow: int, index: int, job: Job, parents: Sequence[tuple[int, float]] = ()) -> int:
    """Reveal a call in a view that no runtime drives, and return its handle."""
    view.arrival_s.setdefault(workflow, view.now)
    view.open_calls.setdefault(workflow, {})
    view.service_s.setdefault(workflow, 0.0)
    classes, kinds = int(view.prefill_class.max()) + 1, int(view.decode_class.max()) + 1
    return view.reveal(
        workflow,
        index,
        list(parents),
        (job.prompt, job.prompt, job.output),
        (
            job.prompt + job.output,
            np.broadcast_to(np.asarray(job.prefill, dtype=np.float64), classes),
            np.broadcast_to(np.asarray(job.transfer, dtype=np.float64), (classes, kinds)),
            np.broadcast_to(np.asarray(job.decode, dtype=np.float64), kinds),
        ),
    )


class Scripted(Policy):
    """Ranks and places calls by functions of (workflow, call)."""

    name = "scripted"

    def __init__(self, rank=lambda w, c: 0, place=lambda w, c: (0, 0), stages=(Stage.PREFILL,)):
        self.rank, self.place, self.stages = rank, place, stages

    def plan(self, view, stage):
        """Plan every waiting call."""
        waiting = view.waiting_prefill if stage is Stage.PREFILL else [c for q in view.waiting_decode for c in q]
        for call in waiting:
            name = view.workflow[call], view.index[call]
            placed = self.place(*name) if stage is Stage.PREFILL else (-1, view.decode_instance[call])
            yield Assignment(call, self.rank(*name), *placed)


class Watched(Policy):
    """Another policy, whose plans are kept and shown to a function together with the view."""

    def __init__(self, policy: str | Policy, watch=lambda view, stage, plan: None):
        self.inner = create(policy)
        self.name, self.stages, self.watch = self.inner.name, self.inner.stages, watch
        self.plans = []

    def begin(self, view, rng):
        """Start a run."""
        self.plans = []
        self.inner.begin(view, rng)

    def plan(self, view, stage):
        """Return the other policy's plan."""
        plan = list(self.inner.plan(view, stage))
        named = [((view.workflow[a.call], view.index[a.call]), a.rank, a.prefill, a.decode) for a in plan]
        self.plans.append((view.now, stage, named))
        self.watch(view, stage, plan)
        return plan

    def ranks(self) -> dict[tuple[int, int], list[Any]]:
        """Return the ranks that each (workflow, call) was given in prefill plans, in order."""
        found: dict[tuple[int, int], list[Any]] = {}
        for _, stage, plan in self.plans:
            if stage is Stage.PREFILL:
                for name, rank, _, _ in plan:
                    found.setdefault(name, []).append(rank)
        return found
