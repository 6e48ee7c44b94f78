"""Every policy on every kind of load: conservation, causality, exclusive prefill and KV capacity."""

import random
from itertools import pairwise

import numpy as np
import pytest
from builders import CLUSTERS, LONE, MIXED, ROOMY, TIGHT, Hardware, Job, build, chain, random_flows

from workbench import Call, Instance, Workflow, simulate
from workbench.policies import available
from workbench.policies.dispatch import DISPATCH_RULES

SPECS = [
    *available(),
    "hexagent:rerank_limit=0",
    "hexagent:rerank_limit=2",
    "atlas:first_queue_s=0.5:queues=2:beta=0.5",
    *(f"fcfs:dispatch={rule}" for rule in DISPATCH_RULES),
    *(f"llf:dispatch={rule}" for rule in DISPATCH_RULES),
]


def star(leaves: int, delay: float = 0.0) -> list[Job]:
    """Return a root, its children, and a call that joins them."""
    jobs = [Job(1, 2, prompt=4), *(Job(0.5, 1 + i % 3, prompt=3 + i % 4, parents={0: delay}) for i in range(leaves))]
    return [*jobs, Job(1, 1, prompt=6, parents={i + 1: delay * i for i in range(leaves)})]


def tree(depth: int) -> list[Job]:
    """Return a binary tree."""
    return [Job(0.5, 1, 0.25, 3, 2, {(i - 1) // 2: 0.5} if i else {}) for i in range(2**depth - 1)]


def served_by_models():
    """Return an instance with durations from the cost model, on three kinds of GPU."""
    draw = random.Random(5)
    flows = []
    for w in range(12):
        calls = [Call("c0", 900, 80)]
        for i in range(1, draw.randint(2, 6)):
            parents = {f"c{draw.randrange(i)}": draw.choice([0.0, 0.3])}
            output = draw.randint(1, 300)
            calls.append(Call(f"c{i}", draw.randint(100, 4000), output, parents, draw.randint(1, 400), 50))
        flows.append(Workflow(f"w{w}", tuple(calls), arrival_s=draw.uniform(0, 2)))
    return Instance(flows, cluster="hetero-1", model="llama3.1-70b").compile()


def of_random(hardware: Hardware, seed: int, error: bool = False, number: int = 12):
    """Return random workflows on a cluster, on a grid of times for even seeds."""
    return hardware.build(random_flows(random.Random(seed), hardware, number, seed % 2 == 0, error))


SCENARIOS = {
    "one call": build([(0, [Job()])]),
    "chains": ROOMY.build([(0.3 * w, chain(*[Job(1, 2, 0.5)] * (1 + w % 5), delay=0.25)) for w in range(12)]),
    "fan-out and join": TIGHT.build([(w / 2, star(2 + w % 5)) for w in range(6)]),
    "trees with tool delays": ROOMY.build([(w, tree(3)) for w in range(5)]),
    "tight KV": Hardware((0, 0), (0, 0), (9, 9)).build([(w / 4, star(6, 0.5)) for w in range(5)]),
    "KV of exactly one call": build([(0, [Job(1, 1, prompt=9) for _ in range(6)])], capacity=10),
    "several classes": of_random(MIXED, 1),
    "simultaneous arrivals of equal calls": TIGHT.build([(0, star(3)) for _ in range(5)]),
    "equal times on a grid": of_random(TIGHT, 2),
    "single instance": of_random(LONE, 3),
    "lengths predicted too long and too short": of_random(MIXED, 4, error=True),
    "lengths mispredicted, tight KV": of_random(TIGHT, 5, error=True),
    "calls that fit one instance only": Hardware((0,), (0, 0, 0), (5, 30, 5)).build(
        [(w / 2, [Job(0.5, 2, 0, 2, 20, predicted_output=1), Job(0.5, 1)]) for w in range(6)]
    ),
    "late arrivals first in the list": build([(9.0 - w, chain(Job(1, 1), Job(1, 1))) for w in range(9)]),
    "cost model": served_by_models(),
}


def assert_valid(schedule):
    """Check the rules of the model one by one, without any code of the package."""
    inst, n = schedule.instance, schedule.instance.n_calls
    p, d = schedule.prefill_instance, schedule.decode_instance
    for column in (p, d, schedule.locked_decode, schedule.reveal_s, schedule.decode_end_s):
        assert column.shape == (n,)
    assert ((p >= 0) & (p < len(inst.prefill_class))).all()
    assert ((d >= 0) & (d < len(inst.decode_class))).all()
    assert (schedule.locked_decode == d).all()
    for w in range(inst.n_workflows):
        for c in range(inst.first_call[w], inst.first_call[w + 1]):
            g, h = inst.prefill_class[p[c]], inst.decode_class[d[c]]
            revealed = max([schedule.decode_end_s[q] + delay for q, delay in inst.parents_of(c)], default=0)
            assert schedule.reveal_s[c] == max(revealed, inst.arrival_s[w])
            assert schedule.prefill_start_s[c] >= schedule.reveal_s[c]
            assert schedule.prefill_end_s[c] == schedule.prefill_start_s[c] + inst.prefill_s[c, g]
            assert schedule.transfer_end_s[c] == schedule.prefill_end_s[c] + inst.transfer_s[c, g, h]
            assert schedule.decode_start_s[c] >= schedule.transfer_end_s[c]
            assert schedule.decode_end_s[c] == schedule.decode_start_s[c] + inst.decode_s[c, h]
    for instance in range(len(inst.prefill_class)):
        served = sorted((schedule.prefill_start_s[c], schedule.prefill_end_s[c]) for c in range(n) if p[c] == instance)
        assert all(one[1] <= other[0] for one, other in pairwise(served))
    for instance in range(len(inst.decode_class)):
        held = [c for c in range(n) if d[c] == instance]
        for time in schedule.decode_start_s[held]:
            running = [c for c in held if schedule.decode_start_s[c] <= time < schedule.decode_end_s[c]]
            assert sum(inst.input_tokens[c] + inst.output_tokens[c] for c in running) <= inst.capacity_tokens[instance]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_policy_makes_a_valid_schedule(scenario):
    """Each call is served once, after what it needs, one prefill at a time and within KV capacity."""
    for spec in SPECS:
        schedule = simulate(SCENARIOS[scenario], spec, seed=3)
        assert_valid(schedule)
        assert schedule.check() is schedule


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_random_loads_give_valid_schedules(hardware):
    """The same on random workflows, with and without prediction errors."""
    for seed in range(12):
        instance = of_random(CLUSTERS[hardware], 100 + seed, error=seed % 3 == 0, number=8)
        for spec in available():
            schedule = simulate(instance, spec, seed=seed)
            assert_valid(schedule)
            schedule.check()


@pytest.mark.parametrize("spec", [s for s in SPECS if s.split(":")[0] in ("fcfs", "workflow-fcfs", "llf", "atlas")])
def test_no_instance_idles_while_a_dispatched_call_waits(spec):
    """These policies never move a call, so between reveal and start its prefill instance is always busy."""
    for scenario in ("chains", "several classes", "equal times on a grid"):
        schedule = simulate(SCENARIOS[scenario], spec, seed=1)
        for c, start in enumerate(schedule.prefill_start_s):
            served = schedule.prefill_instance == schedule.prefill_instance[c]
            began = np.maximum(schedule.prefill_start_s, schedule.reveal_s[c])
            busy = np.maximum(0, np.minimum(schedule.prefill_end_s, start) - began)[served].sum()
            assert busy == pytest.approx(start - schedule.reveal_s[c], abs=1e-9)


def test_a_call_alone_takes_its_own_times():
    """One call on an idle cluster: prefill 1 s, transfer 0.5 s, decode 2 s after its arrival at 3 s."""
    alone = build([(3.0, [Job(1, 2, 0.5)])])
    for spec in SPECS:
        schedule = simulate(alone, spec)
        times = ("reveal_s", "prefill_start_s", "prefill_end_s", "transfer_end_s", "decode_start_s", "decode_end_s")
        assert [getattr(schedule, name)[0] for name in times] == [3.0, 3.0, 4.0, 4.5, 4.5, 6.5]
