"""A run is a pure function of (instance, policy, seed)."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from builders import MIXED, Hardware, random_flows

from workbench import simulate
from workbench.policies import available, create

FOUR = Hardware((0,) * 4, (0,) * 4, (10_000,) * 4)
SPECS = [*available(), "fcfs:dispatch=random", "fcfs:dispatch=round_robin", "llf:dispatch=cache_aware"]

DIGESTS = """
import hashlib, random
from builders import MIXED, random_flows
from test_determinism import SPECS, columns
from workbench import simulate

instance = MIXED.build(random_flows(random.Random(9), MIXED, 20, True, True))
for spec in SPECS:
    schedule = simulate(instance, spec, seed=4)
    print(spec, hashlib.sha256(b"".join(column.tobytes() for column in columns(schedule))).hexdigest())
"""


def columns(schedule):
    """Return all arrays of a schedule."""
    return [value for value in vars(schedule).values() if isinstance(value, np.ndarray)]


def test_the_hash_seed_changes_nothing():
    """Fresh interpreters with different PYTHONHASHSEED make schedules of the same bytes."""
    here = Path(__file__).parent
    path = os.pathsep.join([str(here), str(here.parent), str(here.parent.parent)])
    outputs = [
        subprocess.run(
            [sys.executable, "-c", DIGESTS],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("0", "1", "77")
    ]
    assert len(outputs[0].splitlines()) == len(SPECS)
    assert outputs[0] == outputs[1] == outputs[2]


@pytest.mark.parametrize("spec", SPECS)
def test_a_policy_forgets_the_last_run(spec):
    """The same policy object gives the same schedule again, and after a run on another instance."""
    instance = MIXED.build(random_flows(random.Random(3), MIXED, 15, False, True))
    other = MIXED.build(random_flows(random.Random(4), MIXED, 7, False, True))
    policy = create(spec)
    runs = [columns(simulate(problem, policy, seed=5)) for problem in (instance, instance, other, instance)]
    fresh = columns(simulate(instance, spec, seed=5))
    for run in (runs[0], runs[1], runs[3]):
        assert all(np.array_equal(one, two) for one, two in zip(run, fresh, strict=True))


@pytest.mark.parametrize("spec", ["fcfs", "fcfs:dispatch=random"])
def test_the_seed_matters_where_a_policy_draws(spec):
    """Random dispatch, and that by the power of two choices among four instances, differs from seed to seed."""
    instance = FOUR.build(random_flows(random.Random(3), FOUR, 15, False))
    placed = [simulate(instance, spec, seed=seed).prefill_instance.tolist() for seed in range(4)]
    assert len({tuple(p) for p in placed}) > 1


@pytest.mark.parametrize("spec", ["workflow-fcfs", "llf", "atlas", "hexagent"])
def test_the_seed_does_not_matter_where_none_is_drawn(spec):
    """The other policies give one schedule whatever the seed."""
    instance = MIXED.build(random_flows(random.Random(3), MIXED, 15, False))
    one, two = (columns(simulate(instance, spec, seed=seed)) for seed in (0, 1))
    assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def test_the_global_random_state_is_left_alone():
    """Runs neither read nor move the module's random state."""
    random.seed(1)
    instance = FOUR.build(random_flows(random.Random(3), FOUR, 10, False))
    state = random.getstate()
    one = simulate(instance, "fcfs").prefill_instance
    assert random.getstate() == state
    random.seed(2)
    assert np.array_equal(one, simulate(instance, "fcfs").prefill_instance)
