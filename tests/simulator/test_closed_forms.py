"""The simulator against results known in closed form: chains on an idle cluster, and M/G/1 queues."""

import random

import numpy as np
import pytest
from builders import CLUSTERS, Job, build, chain, random_job
from scipy import stats

from workbench import CompiledInstance, simulate


@pytest.mark.parametrize("hardware", CLUSTERS)
def test_a_chain_on_an_idle_cluster_takes_its_horizon(hardware):
    """HexAGenT serves a lone chain with ratio 1: the sum of the best pairs' times and the tool delays."""
    rng = random.Random(1)
    for _ in range(40):
        cluster = CLUSTERS[hardware]
        jobs = [random_job(rng, cluster, grid=False) for _ in range(rng.randint(1, 12))]
        delay = rng.choice([0.0, rng.uniform(0, 3)])
        least = (len(jobs) - 1) * delay
        for job in jobs:
            pairs = [
                job.prefill[g] + job.transfer[g][h] + job.decode[h]
                for g in set(cluster.prefill_class)
                for d, h in enumerate(cluster.decode_class)
                if job.prompt + job.output <= cluster.capacity[d]
            ]
            least += min(pairs)
        schedule = simulate(cluster.build([(rng.uniform(0, 5), chain(*jobs, delay=delay))]), "hexagent")
        assert schedule.flow_s[0] == pytest.approx(least, rel=1e-12)
        assert schedule.ratios().iloc[0] == pytest.approx(1, rel=1e-12)


def test_chains_that_never_meet_take_their_horizons():
    """Chains that arrive one after the other's end all have ratio 1."""
    rng = random.Random(2)
    cluster = CLUSTERS["mixed"]
    flows = [(100.0 * w, chain(*[random_job(rng, cluster, grid=False) for _ in range(5)])) for w in range(10)]
    ratios = simulate(cluster.build(flows), "hexagent").ratios()
    assert ratios.to_numpy() == pytest.approx(1, rel=1e-12)


def waits(service_s, rho: float, seed: int):
    """Return the prefill waits of one-call workflows that arrive as a Poisson process, at load ``rho``."""
    number = len(service_s)
    gaps = np.random.default_rng(seed).exponential(1 / rho, number)
    queue = CompiledInstance.from_durations(
        first_call=np.arange(number + 1),
        arrival_s=np.cumsum(gaps),
        prefill_s=service_s[:, None],
        decode_s=np.full((number, 1), 1e-6),
        capacity_tokens=10**12,
    )
    schedule = simulate(queue, "fcfs")
    return schedule.prefill_start_s - schedule.reveal_s


def assert_mean(values, expected: float, batches: int = 25):
    """Check the mean by batch means at 99.9 %, with an interval of at most a tenth of the mean to either side."""
    means = np.array([batch.mean() for batch in np.array_split(values, batches)])
    half = stats.t.ppf(0.9995, batches - 1) * means.std(ddof=1) / np.sqrt(batches)
    assert half < 0.1 * expected
    assert means.mean() == pytest.approx(expected, abs=half)


def test_mean_wait_of_the_m_d_1_queue():
    """Equal prefills of 1 s at load 0.7 wait rho / (2 (1 - rho)) = 1.1667 s on average (Pollaczek-Khinchine)."""
    values = waits(np.ones(85_000), 0.7, seed=11)
    assert_mean(values[5_000:], 0.7 / (2 * 0.3))


def test_mean_wait_of_the_m_m_1_queue():
    """Exponential prefills of mean 1 s at load 0.6 wait rho / (1 - rho) = 1.5 s on average."""
    values = waits(np.random.default_rng(12).exponential(1, 95_000), 0.6, seed=13)
    assert_mean(values[5_000:], 0.6 / 0.4)


def test_waits_follow_lindleys_recursion():
    """One server, first come first served: W(n+1) = max(0, W(n) + S(n) - A(n+1)), call by call."""
    service = np.random.default_rng(3).exponential(1, 2_000)
    gaps = np.random.default_rng(4).exponential(1 / 0.9, 2_000)
    expected = [0.0]
    for n in range(1, 2_000):
        expected.append(max(0.0, expected[-1] + service[n - 1] - gaps[n]))
    assert waits(service, 0.9, seed=4) == pytest.approx(expected, abs=1e-8)


def test_decode_of_unit_demands_is_a_queue_with_many_servers():
    """Capacity for two calls: three equal decodes of 4 s that are ready at 1, 2 and 3 s start at 1, 2 and 5 s."""
    three = build([(0, [Job(1, 4)]) for _ in range(3)], capacity=4)
    assert simulate(three, "fcfs").decode_start_s.tolist() == [1, 2, 5]
