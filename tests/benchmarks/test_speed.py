"""Speed, each figure beside a reference of the same run: ``make benchmark`` prints both and their ratio."""

from heapq import heappop, heappush
from time import process_time

import pytest
from builders import Watched
from oracles import algorithm_1

import workbench as wb

pytestmark = pytest.mark.benchmark


@pytest.fixture(scope="module", params=[False, True], ids=["paper's rate", "saturation"])
def demo(request) -> wb.Instance:
    """The demo's 400 workflows; horizons and compiled loops are ready before anything is timed."""
    inst = wb.Instance(wb.traces.bfcl(400, rate=40.0), "hetero-1", "llama3.1-70b")
    if request.param:
        inst = wb.Instance(wb.traces.bfcl(400, rate=40.0 / inst.offered_load()), "hetero-1", "llama3.1-70b")
    wb.simulate(inst, "hexagent").req(0.95)
    return inst


def test_planner_against_the_plain_transcription(demo, benchmark, capsys) -> None:
    """Mean time of a plan, by the planner in the run and by Algorithm 1 as written on every 50th of the same states."""
    seconds, plans = 0.0, 0

    def watch(view, stage, plan) -> None:
        nonlocal seconds, plans, turn
        turn += 1
        if turn % 50 == 0:
            began = process_time()
            assert algorithm_1(view, stage, 32) == plan
            seconds += process_time() - began
            plans += 1

    turn = 0
    wb.simulate(demo, Watched("hexagent:rerank_limit=32", watch))
    run = benchmark.pedantic(wb.simulate, args=(demo, "hexagent"), rounds=3)
    plain_ms = 1e3 * seconds / plans
    benchmark.extra_info["ratio"] = ratio = plain_ms / run.planner.ms_per_invocation
    with capsys.disabled():
        print(f"\nplan: {run.planner.ms_per_invocation:.4f} ms, plain {plain_ms:.3f} ms, {ratio:.0f} times")


@pytest.mark.parametrize("policy", ["workflow-fcfs", "hexagent"])
def test_calls_per_second_against_a_bare_event_loop(demo, policy, benchmark, capsys) -> None:
    """Calls served per CPU-second, beside the events per CPU-second of a loop that only pushes and pops."""
    began = process_time()
    queue = [(i * 0.37 % 1, i) for i in range(1000)]
    for i in range(200_000):
        time, _ = heappop(queue)
        heappush(queue, (time + 1, i))
    events = 200_000 / (process_time() - began)
    spent = []

    def run() -> None:
        began = process_time()
        wb.simulate(demo, policy)
        spent.append(process_time() - began)

    benchmark.pedantic(run, rounds=5, warmup_rounds=1)
    calls = demo.compile().n_calls / sorted(spent)[len(spent) // 2]
    benchmark.extra_info["calls_per_cpu_second"] = calls
    with capsys.disabled():
        print(f"\n{policy}: {calls:.0f} calls a CPU-second; bare loop {events:.0f} events; {calls / events:.4f}")
