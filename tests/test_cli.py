"""Tests of the command line: what goes to stdout and what to stderr, the fields of its JSON, and exit statuses."""

import io
import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest

import workbench as wb
from workbench import cli
from workbench.cli import main
from workbench.policies import available
from workbench.workflow import Call, Workflow

COMMANDS = ("simulate", "compare", "solve", "policies", "validate", "show", "generate", "fetch")
SUMMARY = {"policy", "req95", "req99", "mean", "p50", "makespan", "invocations", "ms_per_invocation"}
TIMES = ["reveal_s", "prefill_start_s", "prefill_end_s", "transfer_end_s", "decode_start_s", "decode_end_s"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of a small instance: a chain of two and a fan-out of three."""
    chain = Workflow("chain", (Call("a", 900, 40), Call("b", 1000, 30, {"a": 0.25})), 0.1)
    fan = Workflow("fan", (Call("a", 500, 20), Call("b", 800, 50, {"a": 0.0}), Call("c", 700, 60, {"a": 0.0})))
    path = tmp_path_factory.mktemp("cli") / "tiny.json"
    wb.save(wb.Instance([chain, fan], "a100-4p4d", "llama3.1-70b", name="tiny"), path)
    return path


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the file of an instance whose schedule is longer than a pipe holds."""
    path = tmp_path_factory.mktemp("cli") / "large.json.gz"
    wb.save(wb.Instance(wb.traces.bfcl(100, rate=40), "hetero-1", "llama3.1-70b"), path)
    return path


def constant(name: str) -> NoReturn:
    raise AssertionError(f"{name} is not JSON")


def strict(text: str) -> Any:
    """Parse a text that must be one JSON document on one line and nothing else."""
    assert text.count("\n") == 1
    return json.loads(text, parse_constant=constant)


def output(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(arguments) == 0
    return capsys.readouterr().out


def as_json(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    return strict(output([*arguments, "--json"], capsys))


def program(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workbench", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, **environment},
    )


def test_the_commands_are_those_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    listed = [line.split()[0] for line in capsys.readouterr().out.splitlines() if line.startswith("    ")]
    assert [command for command in COMMANDS if command not in listed] == []


@pytest.mark.parametrize("command", COMMANDS)
def test_the_help_of_a_command_ends_with_an_example_that_parses(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    text, _, example = capsys.readouterr().out.partition("example: workbench ")
    assert "--json" in text
    assert cli._parser().parse_args(shlex.split(example)).command == command


def test_simulate_as_json_holds_the_summary_and_every_call(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(["simulate", str(tiny), "--policy", "llf:alpha=3"], capsys)
    run = wb.simulate(wb.load(tiny), "llf:alpha=3")
    assert set(result) == SUMMARY | {"horizon", "schedule"}
    assert (result["policy"], result["horizon"]) == ("llf:alpha=3", "greedy")
    assert (result["req95"], result["p50"], result["makespan"]) == (run.req(0.95), run.req(0.5), run.makespan_s)
    assert result["invocations"] == run.planner.invocations
    calls = result["schedule"]["calls"]
    assert [(call["workflow"], call["call"]) for call in calls] == [
        ("chain", "a"),
        ("chain", "b"),
        ("fan", "a"),
        ("fan", "b"),
        ("fan", "c"),
    ]
    for field in TIMES:
        assert [call[field] for call in calls] == getattr(run, field).tolist()
    assert calls[0]["prefill_instance"] == f"P{run.prefill_instance[0]} A100-80GB-SXM:tp4"
    assert result["schedule"]["label"] == "llf:alpha=3"


def test_the_decode_model_is_chosen_by_name(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for model in ("interval", "batched"):
        run = wb.simulate(wb.load(tiny), "fcfs", decode=model)
        result = as_json(["simulate", str(tiny), "--policy", "fcfs", "--decode", model], capsys)
        assert result["schedule"]["settings"]["decode"] == model
        assert result["makespan"] == run.makespan_s
        (row,) = as_json(["compare", str(tiny), "--policies", "fcfs", "--decode", model], capsys)
        assert row["makespan"] == run.makespan_s
    for command in ("simulate", "compare"):
        assert main([command, str(tiny), "--decode", "chunked"]) == 2
        assert "argument --decode: invalid choice: 'chunked'" in capsys.readouterr().err


def test_simulate_as_text_shows_each_figure_on_a_line(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(["simulate", str(tiny), "--policy", "fcfs"], capsys).splitlines()
    shown = {line.split()[0]: line.split()[1] for line in lines if len(line.split()) == 2}
    assert (shown["policy"], shown["horizon"]) == ("fcfs", "greedy")
    assert float(shown["makespan"]) == pytest.approx(wb.simulate(wb.load(tiny), "fcfs").makespan_s, rel=1e-3)


def test_simulate_runs_hexagent_by_default(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert as_json(["simulate", str(tiny)], capsys)["policy"] == "hexagent"


def test_the_seed_reaches_a_policy_that_draws(large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["simulate", str(large), "--policy", "fcfs:dispatch=random", "--seed"]
    zero, again, one = (as_json([*arguments, seed], capsys)["schedule"]["calls"] for seed in ("0", "0", "1"))
    assert zero == again
    assert zero != one


def test_simulate_writes_a_trace(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(["simulate", str(tiny), "--perfetto", str(tmp_path / "run.json")], capsys)
    assert result["policy"] == "hexagent"
    events = json.loads((tmp_path / "run.json").read_text(), parse_constant=constant)["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) >= 2 * 5  # at least a prefill and a decode for each call


def test_simulate_draws_a_gantt_chart(tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = as_json(["simulate", str(tiny), "--gantt", str(tmp_path / "run.png")], capsys)
    assert result["policy"] == "hexagent"
    assert (tmp_path / "run.png").read_bytes().startswith(b"\x89PNG\r\n\x1a\n")


def test_simulate_refuses_an_infeasible_schedule(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(instance: wb.Instance, *_: object, **__: object) -> wb.Schedule:
        run = wb.simulate(instance, "fcfs")
        return wb.Schedule.from_starts(
            run.instance, "x", run.prefill_instance, run.decode_instance, run.prefill_start_s, run.prefill_start_s
        )

    monkeypatch.setattr("workbench.simulator.simulate", broken)
    with pytest.raises(wb.ScheduleError):
        main(["simulate", str(tiny)])


def test_compare_as_json_has_a_row_for_each_policy(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(["compare", str(tiny), "--policies", "llf,fcfs,llf:alpha=1.5"], capsys)
    assert [row["policy"] for row in rows] == ["llf", "fcfs", "llf:alpha=1.5"]
    expected = wb.compare(wb.load(tiny), ["llf", "fcfs", "llf:alpha=1.5"]).drop(columns="ms_per_invocation")
    for row in rows:
        assert set(row) == SUMMARY | {"horizon"}
        assert row["ms_per_invocation"] > 0
        assert {key: row[key] for key in expected.columns} == expected.loc[row["policy"]].to_dict()


def test_compare_runs_every_policy_by_default(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert [row["policy"] for row in as_json(["compare", str(tiny)], capsys)] == list(available())


def test_compare_shows_its_progress_on_stderr_only(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", str(tiny), "--policies", "fcfs,llf"]) == 0
    out, err = capsys.readouterr()
    assert "2/2" in err
    assert "2/2" not in out
    assert [line.split()[0] for line in out.splitlines()] == ["req95", "policy", "fcfs", "llf"]


@pytest.mark.parametrize(("objective", "tau"), [("makespan", None), ("alpha", 1.0), ("alpha", 0.5)])
def test_solve_as_json_brackets_the_optimum(
    objective: str, tau: float | None, tiny: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--objective", objective, *(["--tau", str(tau)] if tau else [])]
    result = as_json(["solve", str(tiny), *given, "--time-limit", "10"], capsys)
    assert {"status", "value", "lower_bound", "gap", "wall_s", "schedule"} <= set(result)
    assert (result["objective"], result["tau"]) == (objective, tau)
    assert result["status"] == "closed"
    assert 0 < result["lower_bound"] <= result["value"] * (1 + 1e-9)
    assert result["gap"] == pytest.approx(result["value"] / result["lower_bound"] - 1)
    assert 0 < result["wall_s"] < 20
    calls = result["schedule"]["calls"]
    ends = {"chain": 0.0, "fan": 0.0}
    for call in calls:
        ends[call["workflow"]] = max(ends[call["workflow"]], call["decode_end_s"])
    flows = [ends["chain"] - 0.1, ends["fan"]]
    ratios = sorted(flow / horizon for flow, horizon in zip(flows, wb.load(tiny).compile().horizon_s, strict=True))
    reached = max(ends.values()) if tau is None else ratios[round(2 * tau) - 1]
    assert result["value"] == pytest.approx(reached)
    heuristic = wb.simulate(wb.load(tiny), "hexagent")
    assert result["lower_bound"] <= (heuristic.makespan_s if tau is None else heuristic.req(tau)) * (1 + 1e-9)


def test_solve_as_text_names_status_and_both_bounds(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = output(["solve", str(tiny), "--time-limit", "10"], capsys)
    assert text.startswith("makespan: closed, ")
    assert "<= optimum <=" in text


def test_policies_lists_every_policy_with_its_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["policy"]: row for row in as_json(["policies"], capsys)}
    assert list(rows) == list(available())
    assert rows["llf"]["parameters"] == "alpha=2.0, dispatch=least_loaded"
    assert {row["information"] for row in rows.values()} <= {"revealed", "arrived", "clairvoyant"}
    assert all(row["what"] for row in rows.values())
    text = output(["policies"], capsys)
    assert all(name in text for name in rows)


def test_validate_counts_what_each_file_holds(tiny: Path, large: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(["validate", str(tiny), str(large)], capsys)
    assert rows[0] == {"file": str(tiny), "workflows": 2, "calls": 5}
    assert (rows[1]["file"], rows[1]["workflows"]) == (str(large), 100)
    assert str(tiny) in output(["validate", str(tiny)], capsys)


def test_show_cluster_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(["show", "cluster", "hetero-1", "--model", "qwen3-235b-a22b"], capsys)
    assert [(row["pool"], row["deployment"], row["instances"]) for row in rows][:3] == [
        ("prefill", "A100-80GB-SXM:tp8", 2),
        ("prefill", "H100-80GB-SXM:tp8", 3),
        ("prefill", "H200-141GB-SXM:tp4", 3),
    ]
    assert rows[3]["kv_gb_s_to_A100-80GB-SXM"] is None  # a decode pool sends nothing


def test_show_model_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    rows = {row["parameter"]: row for row in as_json(["show", "model", "llama3.1-70b"], capsys)}
    assert rows["kv_capacity_tokens"]["H200-141GB-SXM:tp4"] == 1225616
    assert rows["touch"]["H200-141GB-SXM:tp4"] is None


def test_show_instance_as_json(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = {row["instance"]: row["value"] for row in as_json(["show", "instance", str(tiny)], capsys)}
    assert (facts["name"], facts["workflows"], facts["calls"]) == ("tiny", 2, 5)


def test_generate_writes_the_instance_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "g.json.gz"
    wanted = ["--workflows", "7", "--rate", "3", "--seed", "5", "--cluster", "hetero-2", "--model", "qwen3-235b-a22b"]
    facts = as_json(["generate", "bfcl", *wanted, "-o", str(path)], capsys)
    expected = wb.Instance(wb.traces.bfcl(7, 3.0, 5), "hetero-2", "qwen3-235b-a22b", name="bfcl-7")
    assert wb.load(path) == expected
    assert facts == {
        "file": str(path),
        "workflows": 7,
        "calls": expected.compile().n_calls,
        "offered_load": expected.offered_load(),
    }


def test_generate_gives_the_same_bytes_for_the_same_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def generated(seed: str, *more: str) -> bytes:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json.gz"
        output(["generate", "bfcl", "--workflows", "9", "--seed", seed, *more, "-o", str(path)], capsys)
        return path.read_bytes()

    assert generated("3") == generated("3")
    assert len({generated("3"), generated("4"), generated("3", "--full-prompts"), generated("3", "--rate", "9")}) == 4


def test_a_figure_that_is_not_finite_becomes_null(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = as_json(["generate", "bfcl", "--workflows", "1", "-o", str(tmp_path / "one.json")], capsys)
    assert facts["offered_load"] is None  # one workflow has no rate


def test_the_module_runs_as_a_program_and_keeps_stdout_clean(tiny: Path) -> None:
    run = program("compare", str(tiny), "--policies", "fcfs,hexagent", "--json")
    assert run.returncode == 0
    assert [row["policy"] for row in strict(run.stdout)] == ["fcfs", "hexagent"]
    assert "Traceback" not in run.stderr


def test_a_generated_file_does_not_depend_on_the_hash_seed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    here, there = tmp_path / "here.json.gz", tmp_path / "there.json.gz"
    output(["generate", "bfcl", "--workflows", "5", "-o", str(here)], capsys)
    run = program("generate", "bfcl", "--workflows", "5", "-o", str(there), PYTHONHASHSEED="4711")
    assert run.returncode == 0, run.stderr
    assert here.read_bytes() == there.read_bytes()


def test_names_that_the_terminal_cannot_show_do_not_stop_the_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def plain_terminal(*arguments: str) -> str:
        shown = io.BytesIO()
        with io.TextIOWrapper(shown, encoding="ascii") as terminal, monkeypatch.context() as patch:
            patch.setattr(sys, "stdout", terminal)
            assert main(arguments) == 0
            return shown.getvalue().decode("ascii")

    path = str(tmp_path / "é.json")
    wb.save(wb.Instance([Workflow("ü", (Call("ö", 5, 5),))], "a100-4p4d", "llama3.1-70b", name="ä"), path)
    assert "\\xe4" in plain_terminal("show", "instance", path)
    assert strict(plain_terminal("simulate", path, "--json"))["schedule"]["calls"][0]["call"] == "ö"


@pytest.mark.parametrize("command", ["simulate", "compare", "solve", "validate", "policies"])
def test_an_interrupt_ends_with_130_and_one_line(
    command: str, tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, f"_{command}", interrupted)
    assert main([command, *([] if command == "policies" else [str(tiny)])]) == 130
    assert capsys.readouterr() == ("", "workbench: interrupted\n")


def test_ctrl_c_ends_a_running_comparison(large: Path) -> None:
    command = [sys.executable, "-m", "workbench", "compare", str(large), "--policies", ",".join(["hexagent"] * 200)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stderr is not None
        first = run.stderr.read(1)  # the progress bar appears, so that work has begun
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=30)
    assert (run.returncode, out) == (130, b"")
    assert b"workbench: interrupted" in first + err
    assert b"Traceback" not in err


@pytest.mark.parametrize("arguments", [["policies"], ["simulate", "LARGE", "--policy", "fcfs", "--json"]])
def test_a_reader_that_goes_away_causes_no_traceback(arguments: list[str], large: Path) -> None:
    given = [str(large) if argument == "LARGE" else argument for argument in arguments]
    command = [sys.executable, "-m", "workbench", *given]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        if "LARGE" in arguments:
            run.stdout.read(1)  # the reader goes away in the midst of the output, else before it
        run.stdout.close()
        assert run.stderr.read() == b""
    assert run.returncode == 141


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
def test_a_full_disk_under_stdout_is_one_line() -> None:
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "workbench", "policies"]
        run = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (2, "workbench: output: No space left on device\n")
