"""Arguments of the command line that cannot be used: one line that says why, exit status 2, and nothing written."""

from pathlib import Path

import pytest
from test_bad_input import WHOLE, refused

ARGUMENTS = {
    "": "the following arguments are required: COMMAND (see workbench --help)",
    "frobnicate": "invalid choice: 'frobnicate' (choose from ",
    "--json": "the following arguments are required: COMMAND",
    "simulate": "the following arguments are required: file (see workbench simulate --help)",
    "compare": "the following arguments are required: file",
    "solve": "the following arguments are required: file",
    "validate": "the following arguments are required: files",
    "show": "the following arguments are required: kind, name",
    "show cluster": "the following arguments are required: name",
    "generate": "the following arguments are required: kind, -o/--output",
    "generate bfcl": "the following arguments are required: -o/--output",
    "fetch": "the following arguments are required: kind",
    "fetch gsm8k": "invalid choice: 'gsm8k'",
    "simulate FILE --frobnicate": "unrecognized arguments: --frobnicate",
    "simulate FILE FILE": "unrecognized arguments: ",
    "policies now": "unrecognized arguments: now",
    "simulate FILE --policy": "argument --policy: expected one argument",
    "simulate FILE --policy belady": "unknown policy 'belady' (known: atlas, ",
    "simulate FILE --policy :": "unknown policy ''",
    "simulate FILE --policy llf:": "policy 'llf': expected ",
    "simulate FILE --policy llf:alpha": "policy 'llf': expected alpha=float, got 'alpha'",
    "simulate FILE --policy llf:alpha=": "policy 'llf': expected alpha=float, got 'alpha='",
    "simulate FILE --policy llf:alpha=high": "policy 'llf': expected alpha=float, got 'alpha=high'",
    "simulate FILE --policy llf:alpha=0": "alpha must be above 0",
    "simulate FILE --policy llf:alpha=nan": "alpha must be above 0",
    "simulate FILE --policy llf:gamma=1": "policy 'llf' has no parameter gamma (known: alpha, dispatch)",
    "simulate FILE --policy fcfs:dispatch=best": "policy 'fcfs': unknown dispatch 'best' (known: ",
    "simulate FILE --policy fastserve:first_queue_s=1e-320": "first_queue_s must be 0 or from 1e-12",
    "simulate FILE --policy edf:alpha=inf": "alpha must be 0 or from",
    "simulate FILE --estimate-error 1e308": "at most 1e+06",
    "simulate FILE --estimate-error -1": "at least 0",
    "simulate FILE --seed -1": "seed must be from 0",
    "simulate FILE --seed 99999999999999999999999": "seed must be from 0",
    "simulate FILE --plan-latency soon": "planning latency must be",
    "simulate FILE --gantt OUT.xyz": "cannot draw to this file",
    "simulate FILE --policy hexagent:rerank_limit=-1": "rerank_limit must be from 0",
    "simulate FILE --policy hexagent:rerank_limit=2.5": "policy 'hexagent': expected rerank_limit=int",
    "simulate FILE --seed x": "argument --seed: invalid int value: 'x'",
    "simulate FILE --seed 1.5": "argument --seed: invalid int value: '1.5'",
    "simulate FILE --perfetto DIR": "cannot write the file: Is a directory",
    "simulate FILE --perfetto DIR/absent/run.json": "absent/run.json: cannot write the file: No such file or directory",
    "simulate FILE --gantt DIR/absent/run.png": "absent/run.png: ",
    "compare FILE --policies fcfs,,llf": "unknown policy ''",
    "compare FILE --policies fcfs,belady": "unknown policy 'belady'",
    "compare FILE --policies llf:alpha=-1": "alpha must be above 0",
    "compare FILE --policies": "argument --policies: expected one argument",
    "solve FILE --objective flow": "argument --objective: invalid choice: 'flow' (choose from 'makespan', 'alpha')",
    "solve FILE --objective alpha --tau 0": "--tau must be above 0 and at most 1, got 0.0",
    "solve FILE --objective alpha --tau 1.5": "--tau must be above 0 and at most 1, got 1.5",
    "solve FILE --objective alpha --tau nan": "--tau must be above 0 and at most 1, got nan",
    "solve FILE --tau half": "argument --tau: invalid float value: 'half'",
    "solve FILE --time-limit -1": "--time-limit must be ",
    "solve FILE --time-limit nan": "--time-limit must be ",
    "solve FILE --time-limit inf": "--time-limit must be ",
    "solve FILE --time-limit soon": "argument --time-limit: invalid float value: 'soon'",
    "solve FILE --workers 0": "--workers must be from 1 to 1024, got 0",
    "solve FILE --workers 99999": "--workers must be from 1 to 1024, got 99999",
    "solve FILE --seed -1": "--seed must be from 0 to 2147483647, got -1",
    "solve FILE --seed 99999999999": "--seed must be from 0 to 2147483647, got 99999999999",
    "show disk x": "argument kind: invalid choice: 'disk'",
    "show cluster hetero-9": "unknown cluster 'hetero-9' (known: hetero-1, hetero-2, h200-4p4d, a100-4p4d)",
    "show cluster hetero-1 --model gpt-2": "unknown model 'gpt-2'",
    "show model gpt-2": "unknown model 'gpt-2' (known: llama3.1-70b, qwen3-235b-a22b)",
    "generate gsm8k -o OUT": "invalid choice: 'gsm8k'",
    "generate bfcl -o OUT --workflows 0": "cannot draw 0 of 800 workflows",
    "generate bfcl -o OUT --workflows -3": "cannot draw -3 of 800 workflows",
    "generate bfcl -o OUT --workflows 801": "cannot draw 801 of 800 workflows",
    "generate bfcl -o OUT --workflows ten": "argument --workflows: invalid int value: 'ten'",
    "generate bfcl -o OUT --rate 0": "rate must be above 0 workflows per second and finite, got 0.0",
    "generate bfcl -o OUT --rate -1": "rate must be above 0",
    "generate bfcl -o OUT --rate nan": "rate must be above 0",
    "generate bfcl -o OUT --rate inf": "rate must be above 0 workflows per second and finite, got inf",
    "generate bfcl -o OUT --rate 1e-300": "field arrival_s: input should be less than or equal to 1000000000, got ",
    "generate bfcl -o OUT --rate fast": "argument --rate: invalid float value: 'fast'",
    "generate bfcl -o OUT --seed -1": "--seed must be at least 0, got -1",
    "generate bfcl -o OUT --cluster hetero-9": "unknown cluster 'hetero-9'",
    "generate bfcl -o OUT --model gpt-2": "unknown model 'gpt-2'",
    "generate bfcl -o DIR --workflows 2": "cannot write the file: Is a directory",
    "generate bfcl -o DIR/absent/x.json --workflows 2": "absent/x.json: cannot write the file: No such file",
}


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_bad_arguments_are_refused(arguments: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out, folder = tmp_path / "sound.json", tmp_path / "out.json", tmp_path / "folder"
    file.write_bytes(WHOLE)
    folder.mkdir()
    given = arguments.replace("FILE", str(file)).replace("OUT", str(out)).replace("DIR", str(folder))
    assert ARGUMENTS[arguments] in refused(given.split(), capsys)
    assert not out.exists()
    assert list(folder.iterdir()) == []


def test_an_empty_name_is_refused_with_its_field(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    generate = ["generate", "bfcl", "-o", str(tmp_path / "out.json"), "--workflows", "2"]
    assert refused([*generate, "--model", ""], capsys).startswith("field model: ")
    assert refused([*generate, "--cluster", ""], capsys).startswith("field cluster: unknown cluster ''")
