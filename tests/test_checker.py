"""The checker passes what is feasible and reports every broken rule."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.checker import check, violations
from workbench.compiled import CompiledInstance
from workbench.errors import ScheduleError
from workbench.schedule import Schedule

TIMES = ("reveal_s", "prefill_start_s", "prefill_end_s", "transfer_end_s", "decode_start_s", "decode_end_s")


def serial_schedule(inst: CompiledInstance, choose=lambda c: (c, c)) -> Schedule:
    """Place calls one after another, each as early as it can be; ``choose`` gives the pair of instances, by residue."""
    n_p, n_d = len(inst.prefill_class), len(inst.decode_class)
    column = {name: [0.0] * inst.n_calls for name in TIMES}
    place = {"prefill_instance": [0] * inst.n_calls, "decode_instance": [0] * inst.n_calls}
    prefill_free = [0.0] * n_p
    placed = [[] for _ in range(n_d)]  # (start, end, tokens) on each decode instance
    for w in range(inst.n_workflows):
        for c in range(inst.first_call[w], inst.first_call[w + 1]):
            p, d = choose(c)[0] % n_p, choose(c)[1] % n_d
            demand = int(inst.input_tokens[c] + inst.output_tokens[c])
            while demand > inst.capacity_tokens[d]:
                d = (d + 1) % n_d
            g, h = inst.prefill_class[p], inst.decode_class[d]
            reveal = float(inst.arrival_s[w])
            for e in range(inst.parent_start[c], inst.parent_start[c + 1]):
                reveal = max(reveal, column["decode_end_s"][inst.parents[e]] + float(inst.tool_delay_s[e]))
            start = max(reveal, prefill_free[p])
            end = prefill_free[p] = start + float(inst.prefill_s[c, g])
            ready = end + float(inst.transfer_s[c, g, h])
            takes = float(inst.decode_s[c, h])
            for begin in sorted([ready] + [e for _, e, _ in placed[d] if e > ready]):
                instants = [begin] + [s for s, _, _ in placed[d] if begin < s < begin + takes]
                if all(
                    sum(m for s, e, m in placed[d] if s <= t < e) + demand <= inst.capacity_tokens[d] for t in instants
                ):
                    break
            placed[d].append((begin, begin + takes, demand))
            place["prefill_instance"][c], place["decode_instance"][c] = p, d
            for name, value in zip(TIMES, (reveal, start, end, ready, begin, begin + takes), strict=True):
                column[name][c] = value
    arrays = {name: np.array(values) for name, values in (place | column).items()}
    return Schedule(instance=inst, label="serial", locked_decode=arrays["decode_instance"].copy(), **arrays)


@st.composite
def instances(draw) -> CompiledInstance:
    seconds = st.floats(0.01, 5.0)
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    first = np.cumsum([0, *sizes])
    n = int(first[-1])
    own = [int(first[w]) for w, size in enumerate(sizes) for _ in range(size)]
    parents = [sorted(draw(st.sets(st.integers(own[c], c - 1), max_size=2))) if c > own[c] else [] for c in range(n)]
    apart = np.array([0.0, 0.25])  # classes differ by more than any mutation below
    base = np.array([[draw(seconds) for _ in range(3)] for _ in range(n)])
    capacity = draw(st.lists(st.integers(100, 200), min_size=2, max_size=3))
    epoch = draw(st.sampled_from([0.0, 1e6]))
    return CompiledInstance.from_durations(
        first_call=first,
        prefill_s=base[:, :1] + apart,
        decode_s=base[:, 1:2] + apart,
        transfer_s=0.01 * base[:, 2][:, None, None] + apart[None, :, None] + 0.5 * apart[None, None, :],
        demand_tokens=[draw(st.integers(2, 100)) for _ in range(n)],
        arrival_s=[epoch + draw(st.floats(0.0, 10.0)) for _ in sizes],
        parents=parents,
        tool_delay_s=[[draw(st.floats(0.0, 2.0)) for _ in row] for row in parents],
        prefill_class=[0, 1, 1],
        decode_class=[0, 1, 1][: len(capacity)],
        capacity_tokens=capacity,
    )


def mutated(schedule: Schedule, **changes) -> Schedule:
    """Return the schedule with entries replaced: ``field={call: value}``."""
    arrays = {}
    for name, entries in changes.items():
        arrays[name] = getattr(schedule, name).copy()
        for c, value in entries.items():
            arrays[name][c] = value
    return replace(schedule, **arrays)


def kinds(schedule: Schedule) -> set[str]:
    return {violation.kind for violation in violations(schedule)}


def kinds_of(schedule: Schedule, call: int) -> set[str]:
    return {violation.kind for violation in violations(schedule) if violation.call == call}


@given(instances(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_feasible_schedules_pass(inst, seed):
    pairs = np.random.default_rng(seed).integers(0, 6, (inst.n_calls, 2)).tolist()
    schedule = serial_schedule(inst, lambda c: pairs[c])
    assert violations(schedule) == []
    check(schedule)


@given(instances(), st.data())
@settings(max_examples=60, deadline=None)
def test_every_changed_entry_is_reported(inst, data):
    schedule = serial_schedule(inst)
    c = data.draw(st.integers(0, inst.n_calls - 1))
    for name in TIMES:
        for shift in (1e-3, -1e-3):
            changed = mutated(schedule, **{name: {c: getattr(schedule, name)[c] + shift}})
            assert kinds_of(changed, c), (name, shift)
    p, d = int(schedule.prefill_instance[c]), int(schedule.decode_instance[c])
    other_p = next(q for q, g in enumerate(inst.prefill_class) if g != inst.prefill_class[p])
    other_d = next(e for e, h in enumerate(inst.decode_class) if h != inst.decode_class[d])
    assert kinds_of(mutated(schedule, prefill_instance={c: other_p}), c) >= {"prefill-duration", "transfer-duration"}
    assert kinds_of(mutated(schedule, decode_instance={c: other_d}), c) >= {"decode-duration", "lock"}
    assert "decode-duration" in kinds_of(mutated(schedule, decode_instance={c: other_d}, locked_decode={c: other_d}), c)
    assert kinds_of(mutated(schedule, locked_decode={c: other_d}), c) == {"lock"}


@pytest.fixture
def chain() -> Schedule:
    """Return two calls in a chain (tool delay 0.5 s) and a lone one that arrives at 1 s; two equal decode instances."""
    inst = CompiledInstance.from_durations(
        first_call=[0, 2, 3],
        prefill_s=[[1.0], [1.0], [1.0]],
        decode_s=[[2.0], [2.0], [2.0]],
        transfer_s=[[[0.25]], [[0.25]], [[0.25]]],
        demand_tokens=[60, 60, 40],
        arrival_s=[0.0, 1.0],
        parents=[[], [0], []],
        tool_delay_s=[[], [0.5], []],
        decode_class=[0, 0],
        capacity_tokens=[100, 50],
    )
    return Schedule(
        instance=inst,
        label="hand-made",
        prefill_instance=np.array([0, 0, 0]),
        decode_instance=np.array([0, 0, 0]),
        locked_decode=np.array([0, 0, 0]),
        reveal_s=np.array([0.0, 3.75, 1.0]),
        prefill_start_s=np.array([0.0, 3.75, 1.0]),
        prefill_end_s=np.array([1.0, 4.75, 2.0]),
        transfer_end_s=np.array([1.25, 5.0, 2.25]),
        decode_start_s=np.array([1.25, 5.0, 2.25]),
        decode_end_s=np.array([3.25, 7.0, 4.25]),
    )


def moved(schedule: Schedule, c: int, shift: float, names=TIMES[1:]) -> Schedule:
    """Return the schedule with a whole stretch of a call's life moved."""
    return mutated(schedule, **{name: {c: getattr(schedule, name)[c] + shift} for name in names})


def test_hand_made_schedule_passes(chain):
    assert violations(chain) == []


@pytest.mark.parametrize("name", [*TIMES, "prefill_instance", "decode_instance", "locked_decode"])
def test_wrong_length_is_a_shape(chain, name):
    assert kinds(replace(chain, **{name: getattr(chain, name)[:-1]})) == {"shape"}


def test_wrong_type_is_a_shape(chain):
    assert kinds(replace(chain, prefill_instance=chain.prefill_instance.astype(float))) == {"shape"}


@pytest.mark.parametrize("name", TIMES)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_time_that_is_not_finite_is_a_range(chain, name, value):
    found = violations(mutated(chain, **{name: {1: value}}))
    assert [(v.kind, v.call) for v in found] == [("range", 1)]
    assert name in found[0].message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prefill_instance", -1),
        ("prefill_instance", 1),
        ("decode_instance", -1),
        ("decode_instance", 2),
        ("locked_decode", -2),
        ("locked_decode", 2),
    ],
)
def test_instance_that_is_not_there_is_a_range(chain, name, value):
    assert kinds(mutated(chain, **{name: {2: value}})) == {"range"}


def test_prefill_before_arrival(chain):
    late = replace(chain.instance, arrival_s=np.array([0.0, 1.0 + 1e-6]))
    found = violations(mutated(replace(chain, instance=late), reveal_s={2: 1.0 + 1e-6}))
    assert [(v.kind, v.call) for v in found] == [("release", 2)]
    assert found[0].message == (
        "workflow 'w1' call 'c0': prefill starts at 1 s, before the workflow arrives at 1.000001 s"
    )


def test_child_before_tool_delay_has_passed(chain):
    found = violations(moved(chain, 1, -1e-6))
    assert [(v.kind, v.call) for v in found] == [("precedence", 1)]
    assert "parent 'c0' has ended (3.25 s) and the tool has run (0.5 s)" in found[0].message


def test_child_that_ignores_its_parent(chain):
    assert kinds(mutated(moved(chain, 1, -1.0), reveal_s={1: 2.75})) == {"precedence", "reveal"}


def test_reveal_that_forgets_the_tool_delay(chain):
    found = violations(mutated(chain, reveal_s={1: 3.25}))
    assert [(v.kind, v.call) for v in found] == [("reveal", 1)]


def test_prefill_too_short(chain):
    assert kinds(moved(chain, 1, -1e-6, TIMES[2:])) == {"prefill-duration"}


def test_prefill_overlap_by_a_microsecond(chain):
    early = replace(chain.instance, arrival_s=np.array([0.0, 1.0 - 1e-6]))
    found = violations(mutated(moved(replace(chain, instance=early), 2, -1e-6), reveal_s={2: 1.0 - 1e-6}))
    assert [(v.kind, v.call) for v in found] == [("prefill-overlap", 2)]
    assert "P0 P-class0, which serves workflow 'w0' call 'c0' until 1 s" in found[0].message


def test_prefill_overlap_hidden_behind_a_short_call():
    """A long prefill is met by the third call, although the second has ended."""
    inst = CompiledInstance.from_durations(
        first_call=[0, 1, 2, 3], prefill_s=[[9.0], [1.0], [1.0]], decode_s=[[1.0]] * 3, prefill_class=[0]
    )
    start = np.array([0.0, 2.0, 5.0])
    one = np.zeros(3, dtype=np.int64)
    schedule = Schedule.from_starts(inst, "overlap", one, one, start, start + inst.prefill_s[:, 0])
    assert "prefill-overlap" in kinds(schedule)


@pytest.mark.parametrize(
    ("locked", "shift", "expected"), [(0, 1e-6, True), (0, -1e-6, True), (-1, -1e-6, True), (-1, 0.5, False)]
)
def test_transfer_duration_is_free_upwards_without_a_lock(chain, locked, shift, expected):
    changed = mutated(moved(chain, 1, shift, TIMES[3:]), locked_decode={1: locked})
    assert kinds(changed) == ({"transfer-duration"} if expected else set())


def test_decode_before_transfer_has_ended(chain):
    found = violations(moved(chain, 1, -1e-6, TIMES[4:]))
    assert [(v.kind, v.call) for v in found] == [("decode-start", 1)]


def test_decode_too_short(chain):
    assert kinds(moved(chain, 1, -1e-6, TIMES[5:])) == {"decode-duration"}


def test_kv_over_capacity_by_a_token(chain):
    inst = replace(chain.instance, input_tokens=chain.instance.input_tokens + np.array([0, 0, 1]))
    found = violations(replace(chain, instance=inst))
    assert [(v.kind, v.call) for v in found] == [("kv-capacity", 2)]
    assert "41 KV tokens, which makes 101 of 100 on D0 D-class0" in found[0].message


def test_kv_released_at_the_instant_it_is_taken(chain):
    """Ends come before starts; a microsecond earlier is too early."""
    later = moved(chain, 1, 4.25 - 5.0, TIMES[4:])
    full = replace(later.instance, input_tokens=later.instance.input_tokens + np.array([0, 40, 0]))
    assert kinds(replace(later, instance=full)) == {"decode-start"}
    assert kinds(moved(replace(later, instance=full), 1, -1e-6, TIMES[4:])) == {"decode-start", "kv-capacity"}


def test_call_larger_than_its_instance(chain):
    changed = mutated(chain, decode_instance={1: 1}, locked_decode={1: 1})
    assert [(v.kind, v.call) for v in violations(changed)] == [("call-size", 1)]


def test_call_moved_after_its_lock(chain):
    found = violations(mutated(chain, decode_instance={2: 1}))
    assert [(v.kind, v.call) for v in found] == [("lock", 2)]
    assert found[0].message.endswith("decodes on D1 D-class0, but was locked to D0 when prefill started")


def test_moving_a_call_onto_a_busy_prefill_instance():
    inst = CompiledInstance.from_durations(
        first_call=[0, 1, 2], prefill_s=[[1.0], [1.0]], decode_s=[[1.0], [1.0]], prefill_class=[0, 0]
    )
    schedule = serial_schedule(inst)
    assert kinds(schedule) == set()
    assert kinds(mutated(schedule, prefill_instance={1: 0})) == {"prefill-overlap"}


@pytest.mark.parametrize("epoch", [0.0, 1e6])
def test_rounding_passes_and_a_microsecond_does_not(epoch):
    inst = CompiledInstance.from_durations(
        first_call=[0, 200], prefill_s=np.full((200, 1), 0.1), decode_s=np.full((200, 1), 0.7), arrival_s=[epoch],
        parents=[[], *[[c] for c in range(199)]],
    )  # fmt: skip
    schedule = serial_schedule(inst)
    start = np.float64(epoch) + 0.8 * np.arange(200)  # rounds otherwise than repeated addition
    other = Schedule.from_starts(
        inst, "closed form", schedule.prefill_instance, schedule.decode_instance, start, start + 0.1
    )
    assert violations(schedule) == violations(other) == []
    assert "precedence" in kinds(moved(schedule, 100, -1e-6))


def test_error_names_the_first_violations_and_counts_the_others(chain):
    with pytest.raises(ScheduleError) as error:
        check(mutated(chain, reveal_s={0: 1.0, 1: 1.0, 2: 2.0}, decode_end_s={0: 9.0, 1: 9.0, 2: 9.0}))
    lines = str(error.value).splitlines()
    assert lines[0].startswith("schedule 'hand-made' breaks the model")
    assert len(lines) == 7
    assert lines[-1].endswith("more")
    assert chain.check() is chain


def test_hundred_thousand_calls_take_about_a_second():
    n, p, d = 100_000, 8, 8
    rng = np.random.default_rng(0)
    inst = CompiledInstance.from_durations(
        first_call=np.arange(0, n + 1, 10),
        prefill_s=rng.uniform(0.01, 0.02, (n, 1)),
        decode_s=rng.uniform(0.1, 0.9, (n, 1)),
        parents=[[c - 1] if c % 10 else [] for c in range(n)],
        prefill_class=[0] * p,
        decode_class=[0] * d,
    )
    where = np.arange(n) // 10 % p
    start = np.arange(n) // (10 * p) * 11.0 + np.arange(n) % 10 * 1.1
    schedule = Schedule.from_starts(inst, "large", where, where, start, start + inst.prefill_s[:, 0])
    began = perf_counter()
    assert violations(schedule) == []
    assert perf_counter() - began < 5.0
