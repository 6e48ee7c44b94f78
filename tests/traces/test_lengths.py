"""Tests of the reader of lengths files."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from workbench.errors import InputError
from workbench.traces import read_lengths
from workbench.workflow import Call, Workflow, Workload

ROOT = {"id": "a", "parents": [], "input_tokens": 100, "output_tokens": 10}
CHILD = {"id": "b", "parents": ["a"], "input_tokens": 150, "output_tokens": 5, "tool_delay_s": 0.5}
JOIN = {"id": "c", "parents": ["a", "b"], "input_tokens": 200, "output_tokens": 7, "tool_delay_s": 2, "kind": "join"}


def row(*calls: Any, **fields: Any) -> dict[str, Any]:
    return {"workflow_id": "w0", "source": "made up", "calls": list(calls), **fields}


def written(folder: Path, *lines: Any) -> Path:
    path = folder / "lengths.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def refusal(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        read_lengths(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    assert "\n" not in message
    return message.removeprefix(str(path))


def test_a_file_becomes_a_workload_with_its_dag_kept(tmp_path: Path) -> None:
    second = row({**ROOT, "cached_prefix_tokens": 99}, workflow_id="w1", arrival_s=2)
    path = written(tmp_path, row(ROOT, CHILD, JOIN, arrival_s=None), "", second)
    calls = (Call("a", 100, 10), Call("b", 150, 5, {"a": 0.5}), Call("c", 200, 7, {"a": 2.0, "b": 2.0}))
    last = Workflow("w1", (Call("a", 100, 10, cached_prefix_tokens=99),), 2.0)
    assert read_lengths(path) == Workload((Workflow("w0", calls), last), "made up")


def test_null_stands_for_what_is_not_known(tmp_path: Path) -> None:
    path = written(tmp_path, row(ROOT, {**CHILD, "tool_delay_s": None, "cached_prefix_tokens": None}))
    assert read_lengths(path).workflows[0].calls[1] == Call("b", 150, 5, {"a": 0.0})


def test_a_gzipped_file_reads_like_a_plain_one(tmp_path: Path) -> None:
    path = written(tmp_path, row(ROOT, CHILD))
    packed = tmp_path / "packed"
    packed.write_bytes(gzip.compress(path.read_bytes()))
    assert read_lengths(packed) == read_lengths(path)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (
            row({**ROOT, "input_tokens": 0}),
            "call 'a' field input_tokens: input should be greater than or equal to 1, got 0",
        ),
        (row(ROOT, {**CHILD, "output_tokens": True}), "call 'b' field output_tokens: input should be a valid integer"),
        (row(ROOT, {**CHILD, "output_tokens": "9"}), "call 'b' field output_tokens: input should be a valid integer"),
        (
            row(ROOT, {**CHILD, "tool_delay_s": -1.0}),
            "call 'b' field parents.a: input should be greater than or equal to 0",
        ),
        (
            row({**ROOT, "cached_prefix_tokens": 100}),
            "call 'a': cached_prefix_tokens 100 must be below input_tokens 100",
        ),
        (row({**ROOT, "id": 4}), "call 0 field id: input should be a valid string, got 4"),
        (row(ROOT, arrival_s=-1), "field arrival_s: input should be greater than or equal to 0, got -1"),
        (row(ROOT, CHILD, CHILD), "workflow 'w0': call 'b' appears twice"),
        (row(CHILD), "workflow 'w0': call 'b': parent 'a' is not a call of this workflow"),
        (row({**ROOT, "parents": ["a"]}), "workflow 'w0': call 'a' depends on itself"),
        (row(), "field calls: "),
        ({"workflow_id": "w0"}, "missing or malformed field 'calls'"),
        (row({"id": "a"}), "missing or malformed field 'input_tokens'"),
        (row({**ROOT, "parents": None}), "missing or malformed field"),
        (row(5), "missing or malformed field"),
        ([1], "missing or malformed field"),
        ("{", "not valid JSON: EOF while parsing"),
        ('{"workflow_id": NaN}', "not valid JSON"),
        ("[" * 5000, "not valid JSON: recursion limit exceeded"),
    ],
)
def test_a_malformed_line_is_refused_with_its_number_call_and_field(tmp_path: Path, bad: Any, message: str) -> None:
    assert refusal(written(tmp_path, row(ROOT, workflow_id="sound"), bad)).startswith(f" line 2: {message}")


def test_workflow_ids_that_repeat_across_lines_are_refused(tmp_path: Path) -> None:
    assert "workflow 'w0' appears twice" in refusal(written(tmp_path, row(ROOT), row(ROOT)))


def test_a_file_without_workflows_and_no_file_are_refused(tmp_path: Path) -> None:
    assert refusal(written(tmp_path, "", "  ")) == ": holds no workflow"
    assert refusal(tmp_path / "absent") == ": cannot read the file: No such file or directory"
    assert refusal(tmp_path) == ": cannot read the file: Is a directory"
