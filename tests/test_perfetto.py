"""The trace holds every call once in each pool, in lanes that never overlap, with exact counters."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from workbench.compiled import CompiledInstance
from workbench.errors import InputError
from workbench.perfetto import DECODE, PREFILL, WORKFLOWS, _lanes, _us, write_trace
from workbench.schedule import Schedule


@pytest.fixture(scope="module")
def schedule() -> Schedule:
    """Return forty workflows of three calls on 2 prefill and 2 decode instances."""
    n = 120
    rng = np.random.default_rng(1)
    inst = CompiledInstance.from_durations(
        first_call=np.arange(0, n + 1, 3),
        prefill_s=rng.uniform(0.01, 0.03, (n, 1)),
        decode_s=rng.uniform(0.2, 0.3, (n, 1)),
        transfer_s=rng.uniform(0.001, 0.002, (n, 1, 1)),
        demand_tokens=rng.integers(20, 100, n),
        arrival_s=0.06 * np.arange(40),
        parents=[[c - 1] if c % 3 else [] for c in range(n)],
        prefill_class=[0, 0],
        decode_class=[0, 0],
        capacity_tokens=1500,
    )
    prefill, prefill_free = np.arange(n) % 2, np.zeros(2)
    start, decode_start, end = np.zeros(n), np.zeros(n), np.zeros(n)
    for c in sorted(range(n), key=lambda c: (c % 3, c)):
        ready = end[c - 1] if c % 3 else inst.arrival_s[c // 3]
        start[c] = max(ready, prefill_free[prefill[c]])
        prefill_free[prefill[c]] = start[c] + inst.prefill_s[c, 0]
        decode_start[c] = prefill_free[prefill[c]] + inst.transfer_s[c, 0, 0]
        end[c] = decode_start[c] + inst.decode_s[c, 0]
    return Schedule.from_starts(inst, "made", prefill, np.arange(n) // 3 % 2, start, decode_start).check()


@pytest.fixture(scope="module")
def events(schedule, tmp_path_factory) -> list[dict]:
    path = tmp_path_factory.mktemp("trace") / "run.json"
    write_trace(schedule, path)
    return json.loads(path.read_text())["traceEvents"]


def slices(events, process):
    return [event for event in events if event["ph"] == "X" and event["pid"] == process]


def names(events, what):
    return {(e["pid"], e.get("tid")): e["args"] for e in events if e["ph"] == "M" and e["name"] == what}


@pytest.mark.parametrize("process", [PREFILL, DECODE])
def test_one_slice_a_call_in_each_pool(schedule, events, process):
    found = {(e["args"]["workflow"], e["args"]["call"]): e for e in slices(events, process)}
    inst = schedule.instance
    assert len(found) == len(slices(events, process)) == inst.n_calls
    start, end = (
        (schedule.prefill_start_s, schedule.prefill_end_s)
        if process == PREFILL
        else (schedule.decode_start_s, schedule.decode_end_s)
    )
    for c in range(inst.n_calls):
        event = found[inst.workflow_ids[inst.workflow[c]], inst.call_ids[c]]
        assert event["ts"] == pytest.approx(1e6 * start[c], abs=0.51)
        assert event["ts"] + event["dur"] == pytest.approx(1e6 * end[c], abs=0.51)
        assert event["args"]["input_tokens"] == inst.input_tokens[c]
        assert event["args"]["output_tokens"] == inst.output_tokens[c]


def test_one_slice_a_workflow_from_arrival_to_completion(schedule, events):
    found = {e["name"]: e for e in slices(events, WORKFLOWS)}
    assert list(found) == list(schedule.instance.workflow_ids)
    for w, name in enumerate(schedule.instance.workflow_ids):
        assert found[name]["dur"] == pytest.approx(1e6 * schedule.flow_s[w], abs=1.01)
        assert found[name]["args"]["ratio"] == pytest.approx(schedule.ratios()[name])


def test_slices_of_a_thread_never_overlap(events):
    threads = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for lane in threads.values():
        lane.sort()
        assert all(end <= start for (_, end), (start, _) in pairwise(lane))


def test_threads_have_unique_ids_names_and_a_sort_order(schedule, events):
    thread_names, order = names(events, "thread_name"), names(events, "thread_sort_index")
    assert len({tid for _, tid in thread_names}) == len(thread_names)
    assert set(order) == set(thread_names) == {(e["pid"], e["tid"]) for e in events if e["ph"] == "X"}
    prefill = [args["name"] for (pid, _), args in thread_names.items() if pid == PREFILL]
    assert prefill == list(schedule.instance.instance_names[0])
    by_order = sorted(
        (order[key]["sort_index"], args["name"]) for key, args in thread_names.items() if key[0] == DECODE
    )
    lanes = Counter(name.split()[0] for _, name in by_order)
    assert [name for _, name in by_order] == [f"D{d} lane {k}" for d in range(2) for k in range(lanes[f"D{d}"])]
    assert names(events, "process_name") == {
        (WORKFLOWS, None): {"name": "workflows"},
        (PREFILL, None): {"name": "prefill"},
        (DECODE, None): {"name": "decode"},
    }


def test_there_are_as_many_lanes_as_calls_at_once(schedule, events):
    lanes = Counter(args["name"].split()[0] for (pid, _), args in names(events, "thread_name").items() if pid == DECODE)
    for d in range(2):
        calls = schedule.decode_instance == d
        start, end = schedule.decode_start_s[calls], schedule.decode_end_s[calls]
        assert lanes[f"D{d}"] == max(np.sum((start <= t) & (t < end)) for t in start) > 1


def test_counters_start_and_end_at_zero_and_stay_within_capacity(schedule, events):
    tracks = defaultdict(list)
    for event in events:
        if event["ph"] == "C":
            tracks[event["name"]].append((event["ts"], event["args"]["tokens"]))
    assert list(tracks) == [f"D{d} D-class0 resident KV (capacity 1500 tokens)" for d in range(2)]
    for d, samples in enumerate(tracks.values()):
        times, tokens = zip(*samples, strict=True)
        assert list(times) == sorted(set(times))
        assert tokens[0] == tokens[-1] == 0
        assert 0 <= min(tokens) <= max(tokens) <= 1500
        calls = schedule.decode_instance == d
        start, end = schedule.decode_start_s[calls], schedule.decode_end_s[calls]
        demand = schedule.instance.demand_tokens[calls]
        assert max(tokens) == max(demand[(start <= t) & (t < end)].sum() for t in start)


def test_arrows_bind_to_the_slices_of_their_call(schedule, events):
    def around(pid, tid, time):
        return [
            e["name"]
            for e in events
            if e["ph"] == "X" and (e["pid"], e["tid"]) == (pid, tid) and e["ts"] <= time < e["ts"] + e["dur"]
        ]

    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert len(begins) == len(ends) == schedule.instance.n_calls
    for c, begin in begins.items():
        end = ends[c]
        assert (begin["cat"], begin["name"]) == (end["cat"], end["name"])
        assert end["bp"] == "e"
        name = f"w{c // 3}/c{c % 3}"
        assert around(begin["pid"], begin["tid"], begin["ts"]) == [name]
        assert around(end["pid"], end["tid"], end["ts"]) == [name]


def test_slices_that_touch_between_microseconds_do_not_overlap():
    inst = CompiledInstance.from_durations(
        first_call=[0, 50], prefill_s=np.full((50, 1), 0.1 / 3), decode_s=np.full((50, 1), 0.1 / 7), capacity_tokens=2
    )
    one = np.zeros(50, dtype=np.int64)
    start = 0.1 / 3 * np.arange(50)
    schedule = Schedule.from_starts(inst, "touching", one, one, start, start + 0.1 / 3)
    assert set(_lanes(_us(schedule.decode_start_s), _us(schedule.decode_end_s))) == {0}
    assert (_us(schedule.prefill_end_s)[:-1] <= _us(schedule.prefill_start_s)[1:]).all()


def test_same_schedule_gives_same_bytes(schedule, tmp_path):
    for name in ("a.json", "b.json", "a.json.gz", "b.json.gz"):
        write_trace(schedule, tmp_path / name)
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()
    assert (tmp_path / "a.json.gz").read_bytes() == (tmp_path / "b.json.gz").read_bytes()
    assert gzip.decompress((tmp_path / "a.json.gz").read_bytes()) == (tmp_path / "a.json").read_bytes()


def test_write_is_whole_or_not_at_all(schedule, tmp_path):
    path = tmp_path / "run.json"
    path.write_text("old")
    broken = replace(schedule, decode_start_s=None)
    with pytest.raises(TypeError):
        write_trace(broken, path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(InputError, match="cannot write"):
        schedule.to_perfetto(tmp_path / "missing" / "run.json")
