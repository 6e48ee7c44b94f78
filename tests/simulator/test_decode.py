"""Decode models: batched decode against a loop over steps, by hand, and under every policy; interval as before."""

import random
from dataclasses import dataclass, replace

import numpy as np
import pytest
from builders import CLUSTERS, Job, Scripted, build, random_flows
from test_invariants import SCENARIOS, SPECS

from workbench import CompiledInstance, InputError, ScheduleError, compare, simulate
from workbench.checker import violations
from workbench.compiled import largest_batch
from workbench.cost import CostModel
from workbench.simulator.decode import BatchedDecode, IntervalDecode, decode_model


def with_steps(instance, fixed_s=0.25, per_call_s=0.125, kv_read_s=0.015625):
    """Return the instance with step times that grow with the batch; decode class ``h`` is ``1 + h`` times as slow."""
    batches = np.arange(largest_batch(instance.demand_tokens, instance.capacity_tokens) + 1)
    slowness = 1.0 + np.arange(instance.decode_s.shape[1])
    fixed = slowness[:, None] * (fixed_s + per_call_s * batches)
    return replace(instance, decode_fixed_s=fixed, kv_read_s=slowness * kv_read_s)


def arriving(arrivals, capacity=1_000_000, **steps):
    """Return calls that reach decode one second after they arrive, whatever goes before: (arrival, input, output)."""
    flows = [(at, [Job(prefill=1.0, prompt=prompt, output=output)]) for at, prompt, output in arrivals]
    return with_steps(build(flows, prefill_class=(0,) * len(flows), capacity=capacity), **steps)


def run(instance, **options):
    """Simulate with a prefill instance for each call, admitting in order of workflow."""
    return simulate(instance, Scripted(lambda w, c: w, lambda w, c: (w, 0)), decode="batched", **options).check()


@dataclass
class Running:
    """A call of the reference."""

    c: int
    tokens: int
    left: int


def reference(instance):
    """Serve one decode instance step by step; calls are ready one second after their arrival and admitted in order."""
    ready = sorted((float(at) + 1.0, c) for c, at in enumerate(instance.arrival_s))
    fixed, read, capacity = instance.decode_fixed_s[0], instance.kv_read_s[0], int(instance.capacity_tokens[0])
    demand = instance.demand_tokens.tolist()
    waiting: list[int] = []
    batch: list[Running] = []
    joining: list[int] = []
    start, end = {}, {}
    now = ready[0][0]
    step_end = None

    def admit(at):
        waiting.sort()
        held = sum(demand[r.c] for r in batch) + sum(demand[c] for c in joining)
        while waiting and held + demand[waiting[0]] <= capacity:
            c = waiting.pop(0)
            held += demand[c]
            joining.append(c)
            start[c] = at

    while ready or waiting or batch or joining:
        if step_end is None:
            now = ready[0][0] if not waiting and not joining else now
        else:
            while ready and ready[0][0] < step_end:
                at = ready[0][0]
                while ready and ready[0][0] == at:
                    waiting.append(ready.pop(0)[1])
                admit(at)
            now = step_end
            for r in batch:
                r.left -= 1
                if r.left == 0:
                    end[r.c] = now
            batch = [r for r in batch if r.left]
        while ready and ready[0][0] == now:
            waiting.append(ready.pop(0)[1])
        admit(now)
        for c in joining:
            batch.append(Running(c, int(instance.input_tokens[c]), max(1, int(instance.output_tokens[c]) - 1)))
        joining.clear()
        if not batch:
            step_end = None
            continue
        for r in batch:
            r.tokens += 1
        step_end = now + fixed[len(batch)] + read * sum(r.tokens for r in batch)
    calls = range(instance.n_calls)
    return np.array([start[c] for c in calls]), np.array([end[c] for c in calls])


def assert_as_reference(instance, exact):
    """Compare starts, ends and the order of ends."""
    schedule = run(instance)
    start, end = reference(instance)
    if exact:
        assert schedule.decode_start_s.tolist() == start.tolist()
        assert schedule.decode_end_s.tolist() == end.tolist()
        return
    np.testing.assert_allclose(schedule.decode_start_s, start, rtol=1e-9)
    np.testing.assert_allclose(schedule.decode_end_s, end, rtol=1e-9)
    for one, other in zip(*np.triu_indices(len(end), 1), strict=True):
        if end[one] != end[other]:
            assert (schedule.decode_end_s[one] < schedule.decode_end_s[other]) == (end[one] < end[other])
        else:
            assert schedule.decode_end_s[one] == schedule.decode_end_s[other]


@pytest.mark.parametrize("capacity", [1_000_000, 60, 30])
def test_the_clock_agrees_with_a_loop_over_steps(capacity):
    """On random arrivals; where every sum is exact in binary, so that boundaries and arrivals coincide, to the bit."""
    for seed in range(150):
        rng = random.Random(seed)
        grid = seed % 2 == 0
        spread = rng.choice([0.0, 2.0, 20.0])
        arrivals = [
            (
                rng.randint(0, int(8 * spread)) / 8 if grid else rng.uniform(0, spread),
                rng.randint(1, 12),
                rng.choice([1, 2, 3, rng.randint(4, 18)]),
            )
            for _ in range(rng.randint(1, 14))
        ]
        steps = {} if grid else {"fixed_s": 0.21, "per_call_s": rng.choice([0.0, 0.03]), "kv_read_s": rng.random() / 50}
        assert_as_reference(arriving(arrivals, capacity, **steps), exact=grid)


def test_long_decodes_agree_with_a_loop_over_steps():
    """Thousands of steps, and a KV share that makes the last steps several times as long as the first."""
    rng = random.Random(7)
    for _ in range(5):
        arrivals = [(rng.uniform(0, 40), rng.randint(1, 3000), rng.randint(1, 3000)) for _ in range(30)]
        assert_as_reference(arriving(arrivals, 30_000, fixed_s=0.01, per_call_s=1e-4, kv_read_s=1e-6), exact=False)


def test_a_call_that_joins_while_a_step_runs_waits_for_its_end():
    """Steps of 1 s and 0.5 s a call, KV reads of 1 s a token; the second call is admitted in the first one's step.

    Call 0 (2 prompt tokens, 3 steps) starts at 1: step 1 takes 1.5 + 3 = 4.5 s, to 5.5. Call 1 (1 prompt token, 1 step)
    is admitted at 2 and joins at 5.5: the step takes 2 + 4 + 2 = 8 s, to 13.5, and ends call 1. Step 3 takes
    1.5 + 5 = 6.5 s, to 20.
    """
    schedule = run(arriving([(0.0, 2, 4), (1.0, 1, 2)], fixed_s=1.0, per_call_s=0.5, kv_read_s=1.0))
    assert schedule.decode_start_s.tolist() == [1.0, 2.0]
    assert schedule.decode_end_s.tolist() == [20.0, 13.5]


def test_a_call_that_is_admitted_at_a_boundary_joins_at_once():
    """Steps of 1 s whatever the batch: call 1 comes at the boundary at 2 s, call 2 just after it."""
    instance = arriving([(0.0, 1, 9), (1.0, 1, 2), (1.25, 1, 2)], fixed_s=1.0, per_call_s=0.0, kv_read_s=0.0)
    assert run(instance).decode_end_s.tolist() == [9.0, 3.0, 4.0]


def test_a_call_may_join_where_the_last_one_ends():
    """Call 1 is admitted in the only step of call 0 and begins when that ends."""
    instance = arriving([(0.0, 1, 1), (0.5, 1, 1)], fixed_s=1.0, per_call_s=0.0, kv_read_s=0.0)
    assert run(instance).decode_end_s.tolist() == [2.0, 3.0]


def test_an_instant_is_told_from_the_next_float():
    """A call admitted at a boundary joins there, one admitted the least bit later a step after; whatever the rounding.

    The boundary is where a call of ``n`` steps would end; it is then met again with longer calls in its place.
    """
    rng = random.Random(3)
    for _ in range(300):
        steps = {"fixed_s": rng.uniform(0.01, 1), "per_call_s": 0.0, "kv_read_s": rng.choice([0.0, rng.random() / 99])}
        n = rng.randint(1, 400)
        instance = arriving([(0.0, rng.randint(1, 50), n + 1), (0.0, 1, 500), (0.0, 1, 2)], **steps)
        boundary = first_end(instance, [(0, 1.0), (1, 1.0)])
        longer = replace(instance, output_tokens=np.array([600, 500, 2]))
        joined = first_end(longer, [(0, 1.0), (1, 1.0), (2, boundary)])
        later = first_end(longer, [(0, 1.0), (1, 1.0), (2, float(np.nextafter(boundary, np.inf)))])
        step = steps["fixed_s"] + steps["kv_read_s"] * (int(instance.input_tokens[0]) + 1 + 2 * (n + 1) + 2)
        assert joined == pytest.approx(boundary + step, rel=1e-9)
        assert later > joined + step / 2


def first_end(instance, admissions):
    """Return when the first call ends after calls were admitted at given times, before any of them ends."""
    ends = []
    model = BatchedDecode(instance, lambda time, c: ends.append(time))
    for c, time in admissions:
        model.admit(c, 0, time)
    return ends[-1]


def test_the_first_token_belongs_to_prefill():
    """Outputs of 1 and 2 tokens take one step, 3 take two; 10 prompt tokens, and steps of 1 s and 0.5 s a token."""
    ends = [
        run(arriving([(0.0, 10, output)], fixed_s=1.0, per_call_s=0.0, kv_read_s=0.5)).decode_end_s[0] - 1
        for output in (1, 2, 3)
    ]
    assert ends == [6.5, 6.5, 13.5]


def test_a_call_holds_its_whole_demand_until_it_ends():
    """Two calls of 5 + 5 tokens on 19: the second starts when the first ends, though fewer tokens are resident."""
    schedule = run(arriving([(0.0, 5, 5), (0.0, 5, 5)], 19, fixed_s=1.0, per_call_s=0.0, kv_read_s=0.0))
    assert schedule.decode_start_s.tolist() == [1.0, 5.0]
    assert schedule.decode_end_s.tolist() == [5.0, 9.0]


def test_a_lone_call_takes_what_the_cost_model_says_at_batch_1():
    """On each class of the cluster, for outputs of 1, 2 and many tokens."""
    from workbench import Call, Instance, Workflow
    from workbench.catalogue import builtin

    for output in (1, 2, 700):
        lone = Instance([Workflow("w", (Call("c", 3000, output),))], "hetero-1", "llama3.1-70b").compile()
        for h, name in enumerate(lone.decode_class_names):
            d = lone.decode_class.tolist().index(h)
            schedule = simulate(lone, Scripted(place=lambda w, c, d=d: (0, d)), decode="batched").check()
            gpu, _, tp = name.partition(":tp")
            expected = float(CostModel.of(builtin(), "llama3.1-70b", gpu, int(tp)).decode_s(3000, output, 1))
            assert schedule.decode_end_s[0] == pytest.approx(schedule.decode_start_s[0] + expected, rel=1e-12)
            ends = []
            model = BatchedDecode(lone, lambda time, c, ends=ends: ends.append(time))
            model.admit(0, d, 0.0)
            assert ends == pytest.approx([expected], rel=1e-12)


def test_compiled_step_times_are_those_of_the_cost_model():
    """Fixed part and KV reads sum to `CostModel.decode_step_s`, up to the most calls that fit."""
    from workbench import Call, Instance, Workflow
    from workbench.catalogue import builtin

    flows = [Workflow(f"w{w}", (Call("c", 200_000, 300),)) for w in range(9)]
    instance = Instance(flows, "hetero-1", "llama3.1-70b").compile()
    batch = int(instance.capacity_tokens.max()) // 200_300
    assert 1 <= batch < 9
    assert instance.decode_fixed_s.shape == (len(instance.decode_class_names), batch + 1)
    for h, name in enumerate(instance.decode_class_names):
        gpu, _, tp = name.partition(":tp")
        cost = CostModel.of(builtin(), "llama3.1-70b", gpu, int(tp))
        for b in range(1, batch + 1):
            step = instance.decode_fixed_s[h, b] + 5000 * instance.kv_read_s[h]
            assert step == pytest.approx(cost.decode_step_s(b, 5000), rel=1e-12)


def test_the_largest_batch_is_bounded_by_capacity_and_calls():
    """The smallest calls that fit together on the largest instance."""
    demand = np.array([7, 3, 3, 9])
    assert [largest_batch(demand, np.array([2, k])) for k in (9, 6, 13, 22, 100)] == [2, 2, 3, 4, 4]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_policy_makes_a_valid_schedule(scenario):
    """The checker's rules hold under batched decode, and the run says how it decoded."""
    instance = SCENARIOS[scenario]
    instance = instance if instance.decode_fixed_s is not None else with_steps(instance)
    for spec in SPECS:
        schedule = simulate(instance, spec, seed=3, decode="batched").check()
        assert schedule.settings["decode"] == "batched"


@pytest.mark.parametrize("options", [{"admission": "backfill"}, {"plan_latency": "constant:300"}])
@pytest.mark.parametrize("hardware", CLUSTERS)
def test_random_loads_give_valid_schedules(hardware, options):
    """With the other settings of the runtime, on a grid of times and off it."""
    for seed in range(6):
        flows = random_flows(random.Random(seed), CLUSTERS[hardware], 10, seed % 2 == 0, seed % 3 == 0)
        instance = with_steps(CLUSTERS[hardware].build(flows))
        for spec in ("hexagent", "llf", "atlas"):
            simulate(instance, spec, decode="batched", **options).check()


def test_a_batched_run_is_reproducible():
    """The same times, to the bit, on calls that tie and calls that do not."""
    for seed in range(4):
        flows = random_flows(random.Random(seed), CLUSTERS["mixed"], 12, seed % 2 == 0)
        instance = with_steps(CLUSTERS["mixed"].build(flows))
        one, other = (simulate(instance, "hexagent", decode="batched") for _ in range(2))
        assert one.decode_end_s.tobytes() == other.decode_end_s.tobytes()
        assert one.decode_instance.tolist() == other.decode_instance.tolist()


def test_calls_that_end_together_complete_in_order_of_call():
    """Equal calls on two instances, all due in one instant."""
    flows = [(0.0, [Job(prefill=1.0, prompt=2, output=2)]) for _ in range(6)]
    instance = with_steps(build(flows, prefill_class=(0,) * 6, decode_class=(0, 0)))
    ended: list[int] = []
    events: list[tuple[float, int]] = []
    model = BatchedDecode(instance, lambda time, c: events.append((time, c)))
    for c in range(6):
        model.admit(c, c % 2, 1.0)
    while events:
        events.sort()
        time, c = events.pop(0)
        if model.ends(c, c % 2, time):
            ended.append(c)
    assert ended == [0, 1, 2, 3, 4, 5]


def test_interval_decode_takes_the_compiled_time():
    """Whatever else runs; and it is what a run does unless told otherwise."""
    instance = SCENARIOS["several classes"]
    ends: list[tuple[float, int]] = []
    model = IntervalDecode(instance, lambda time, c: ends.append((time, c)))
    model.admit(3, 1, 2.0)
    model.admit(4, 1, 2.0)
    assert ends == [(2.0 + instance.decode_s[c, instance.decode_class[1]], c) for c in (3, 4)]
    assert model.ends(3, 1, ends[0][0])
    plain, named = simulate(instance, "llf"), simulate(instance, "llf", decode="interval")
    assert plain.settings["decode"] == "interval"
    assert plain.decode_end_s.tobytes() == named.decode_end_s.tobytes()


def test_an_instance_without_step_times_is_refused():
    """Named with the mend; so are a model that is not there and step times of which half is missing."""
    instance = build([(0, [Job()])])
    with pytest.raises(InputError, match=r"no decode step times.* decode_fixed_s and kv_read_s"):
        simulate(instance, "fcfs", decode="batched")
    with pytest.raises(InputError, match="decode must be one of interval, batched, got 'chunked'"):
        decode_model("chunked", instance, lambda time, c: None)
    for half in ({"decode_fixed_s": [[0, 1]]}, {"kv_read_s": [1]}):
        with pytest.raises(InputError, match="given together"):
            CompiledInstance.from_durations(first_call=[0, 1], prefill_s=[[1]], decode_s=[[1]], **half)


@pytest.mark.parametrize(
    ("fixed", "read", "message"),
    [
        ([[0, 1]], [0.0], "1 rows of batches 0 to 2 or more"),
        ([0, 1, 1], [0.0], "1 rows of batches 0 to 2 or more"),
        ([[0, 1, 1], [0, 1, 1]], [0.0], "1 rows of batches 0 to 2 or more"),
        ([[0, 0, 1]], [0.0], "positive and finite"),
        ([[0, 1, np.inf]], [0.0], "positive and finite"),
        ([[0, 2, 1]], [0.0], "must not fall as the batch grows"),
        ([[0, 1, 1]], [-1.0], "1 finite, non-negative values"),
        ([[0, 1, 1]], [0.0, 0.0], "1 finite, non-negative values"),
    ],
)
def test_step_times_that_cannot_be_used_are_refused(fixed, read, message):
    """For two calls that fit together."""
    with pytest.raises(InputError, match=message):
        CompiledInstance.from_durations(
            first_call=[0, 1, 2], prefill_s=[[1], [1]], decode_s=[[1], [1]], decode_fixed_s=fixed, kv_read_s=read
        )


def test_step_times_may_be_given_with_durations():
    """Two calls of one step in a batch: 1 s a call and half a second a token, of which each has two."""
    instance = CompiledInstance.from_durations(
        first_call=[0, 1, 2],
        prefill_s=[[1], [1]],
        decode_s=[[9], [9]],
        prefill_class=[0, 0],
        decode_fixed_s=[[0, 1, 2]],
        kv_read_s=[0.5],
    )
    assert run(instance).decode_end_s.tolist() == [5.0, 5.0]


def test_the_checker_knows_the_least_time_of_a_batched_decode():
    """Three steps alone take 3 x 0.375 + (3 + 4 + 5) / 64 s; less is a violation, more is not."""
    schedule = run(arriving([(0.0, 2, 4)]))
    least = 3 * 0.375 + 12 / 64
    assert schedule.decode_end_s[0] == 1 + least
    replace(schedule, decode_end_s=schedule.decode_end_s + 5).check()
    early = replace(schedule, decode_end_s=schedule.decode_end_s - 1e-6)
    assert [violation.kind for violation in violations(early)] == ["decode-duration"]
    with pytest.raises(ScheduleError, match=r"where its 3 steps alone take 1\.3125 s"):
        early.check()
    assert [v.kind for v in violations(replace(schedule, settings={}))] == ["decode-duration"]
    bare = replace(schedule, instance=build([(0.0, [Job(prompt=2, output=4)])]))
    assert [v.kind for v in violations(bare)] == ["shape"]


def test_compare_runs_either_model():
    """The same row as `simulate`."""
    instance = SCENARIOS["cost model"]
    table = compare(instance, ["fcfs"], decode="batched")
    assert table.loc["fcfs", "req95"] == simulate(instance, "fcfs", decode="batched").req(0.95)
    assert table.loc["fcfs", "req95"] != compare(instance, ["fcfs"]).loc["fcfs", "req95"]
