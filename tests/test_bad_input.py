"""Malformed files and arguments: exit status 2, one line on stderr that names the place, nothing on stdout."""

import copy
import gzip
import json
import os
import random
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from workbench import load, save
from workbench.cli import main

SOUND: dict[str, Any] = {
    "format": "hexagent-workbench/instance",
    "version": 1,
    "workload": {
        "workflows": [
            {
                "id": "w0",
                "calls": [
                    {"id": "a", "input_tokens": 800, "output_tokens": 60},
                    {"id": "b", "input_tokens": 900, "output_tokens": 40, "parents": {"a": 0.5}},
                ],
            },
            {"id": "w1", "arrival_s": 0.25, "calls": [{"id": "a", "input_tokens": 500, "output_tokens": 5}]},
        ]
    },
    "cluster": "hetero-1",
    "model": "llama3.1-70b",
}
FULL_CLUSTER: dict[str, Any] = {
    "prefill": {"groups": [{"gpu": "A100-80GB-SXM", "count": 1}]},
    "decode": {"groups": [{"gpu": "H100-80GB-SXM", "count": 1}]},
}
W0 = ("workload", "workflows", 0)
A, B = (*W0, "calls", 0), (*W0, "calls", 1)
GPU = {"name": "g", "bf16_tflops": 1, "hbm_tb_s": 1, "memory_mib": 90_000, "rdma_gb_s": 1}
HUGE, HUGER = "1" + "0" * 400, "1" + "0" * 5000


def edited(place: tuple[Any, ...], value: Any, base: dict[str, Any] = SOUND) -> dict[str, Any]:
    changed = copy.deepcopy(base)
    here: Any = changed
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return changed


def spelt(place: tuple[Any, ...], text: str, base: dict[str, Any] = SOUND) -> bytes:
    """Return the sound document with JSON text of any kind in one place."""
    return json.dumps(edited(place, "@@", base)).replace('"@@"', text).encode()


def clustered(place: tuple[Any, ...], text: str) -> bytes:
    return spelt(("cluster", *place), text, edited(("cluster",), FULL_CLUSTER))


def catalogued(place: tuple[Any, ...], text: str) -> bytes:
    return spelt(("catalogue", *place), text, edited(("catalogue",), {"gpus": [GPU]}))


def without(key: str) -> bytes:
    return json.dumps({name: value for name, value in SOUND.items() if name != key}).encode()


WHOLE = json.dumps(SOUND).encode()
CALL_A = "workflow 'w0' call 'a' field "
FILES = {
    "empty": (b"", "not valid JSON"),
    "blank": (b" \n ", "not valid JSON"),
    "truncated": (WHOLE[:-20], "not valid JSON: EOF while parsing"),
    "trailing text": (WHOLE + b"x", "not valid JSON: trailing characters"),
    "two documents": (WHOLE + WHOLE, "not valid JSON"),
    "single quotes": (WHOLE.replace(b'"', b"'"), "not valid JSON"),
    "trailing comma": (WHOLE[:-1] + b",}", "not valid JSON"),
    "comment": (b"// an instance\n" + WHOLE, "not valid JSON"),
    "byte order mark": (b"\xef\xbb\xbf" + WHOLE, "not valid JSON"),
    "UTF-16": (WHOLE.decode().encode("utf-16"), "not valid JSON"),
    "Latin-1": (spelt((*A, "id"), '"é"').replace("é".encode(), b"\xe9"), "not valid JSON"),
    "binary": (bytes(range(256)), "not valid JSON"),
    "zeros": (b"\0" * 1000, "not valid JSON"),
    "a list": (b"[]", "expected a JSON object"),
    "null": (b"null", "expected a JSON object"),
    "a string": (b'"instance"', "expected a JSON object"),
    "a number": (b"1", "expected a JSON object"),
    "an empty object": (b"{}", "field format"),
    "deep list": (b"[" * 100_000, "not valid JSON: recursion limit exceeded"),
    "deep object": (b'{"a":' * 100_000, "not valid JSON: recursion limit exceeded"),
    "deep field": (spelt(("name",), "[" * 5000 + "]" * 5000), "not valid JSON: recursion limit exceeded"),
    "gzip cut off": (gzip.compress(WHOLE * 9)[:-30], "cannot read the file: Compressed file ended"),
    "gzip header alone": (gzip.compress(b"")[:5], "cannot read the file"),
    "gzip of noise": (b"\x1f\x8b" + bytes(range(255, 0, -1)), "cannot read the file"),
    "gzip with a wrong sum": (gzip.compress(WHOLE)[:-8] + b"\1" * 8, "cannot read the file: CRC check failed"),
    "gzip of text": (gzip.compress(b"hello"), "not valid JSON"),
    "gzip in gzip": (gzip.compress(gzip.compress(WHOLE)), "not valid JSON"),
    "format missing": (without("format"), 'field format: expected "hexagent-workbench/instance", got None'),
    "format unknown": (spelt(("format",), '"other"'), "field format: "),
    "version missing": (without("version"), "field version: this workbench reads version 1, got None"),
    "version unknown": (spelt(("version",), "2"), "field version: this workbench reads version 1, got 2"),
    "version a string": (spelt(("version",), '"1"'), "field version: "),
    "version a bool": (spelt(("version",), "true"), "field version: "),
    "version a float": (spelt(("version",), "1.0"), "field version: "),
    "version huge": (spelt(("version",), HUGE), "field version: "),
    "version huger": (spelt(("version",), HUGER), "not valid JSON"),
    "workload missing": (without("workload"), "field workload: missing; add it"),
    "cluster missing": (without("cluster"), "field cluster: missing; add it"),
    "model missing": (without("model"), "field model: missing; add it"),
    "workload null": (spelt(("workload",), "null"), "field workload: "),
    "workload a list": (spelt(("workload",), "[]"), "field workload: "),
    "workload a number": (spelt(("workload",), "7"), "field workload: "),
    "no workflows": (spelt(("workload", "workflows"), "[]"), "field workload.workflows: "),
    "workflows an object": (spelt(("workload", "workflows"), "{}"), "field workload.workflows: "),
    "workflow a number": (spelt(W0, "3"), "workflow 0: "),
    "workflow null": (spelt(W0, "null"), "workflow 0: "),
    "workflow id a number": (spelt((*W0, "id"), "17"), "workflow 0 field id: input should be a valid string, got 17"),
    "workflow id empty": (spelt((*W0, "id"), '""'), "workflow '' field id: "),
    "workflow id twice": (spelt((*W0, "id"), '"w1"'), "workflow 'w1' appears twice"),
    "arrival negative": (spelt((*W0, "arrival_s"), "-0.5"), "workflow 'w0' field arrival_s: "),
    "arrival NaN": (spelt((*W0, "arrival_s"), "NaN"), "not valid JSON"),
    "arrival Infinity": (spelt((*W0, "arrival_s"), "Infinity"), "not valid JSON"),
    "arrival overflowing": (spelt((*W0, "arrival_s"), "1e999"), "workflow 'w0' field arrival_s: "),
    "arrival far away": (spelt((*W0, "arrival_s"), "1e300"), "workflow 'w0' field arrival_s: "),
    "arrival a string": (spelt((*W0, "arrival_s"), '"0"'), "workflow 'w0' field arrival_s: "),
    "arrival a bool": (spelt((*W0, "arrival_s"), "true"), "workflow 'w0' field arrival_s: "),
    "arrival huge": (spelt((*W0, "arrival_s"), HUGE), "workflow 'w0' field arrival_s: "),
    "weight zero": (spelt((*W0, "weight"), "0"), "workflow 'w0' field weight: "),
    "no calls": (spelt((*W0, "calls"), "[]"), "workflow 'w0' field calls: "),
    "calls null": (spelt((*W0, "calls"), "null"), "workflow 'w0' field calls: "),
    "call a list": (spelt(A, "[1]"), "workflow 'w0' call 0: "),
    "call empty": (spelt(A, "{}"), "workflow 'w0' call 0 field id: missing; add it"),
    "call id a number": (spelt((*A, "id"), "5"), "workflow 'w0' call 0 field id: "),
    "call id twice": (spelt((*A, "id"), '"b"'), "workflow 'w0': call 'b' appears twice"),
    "call id with a lone surrogate": (spelt((*A, "id"), '"\\ud800"'), "not valid JSON"),
    "input zero": (spelt((*A, "input_tokens"), "0"), CALL_A + "input_tokens: "),
    "input negative": (spelt((*A, "input_tokens"), "-1"), CALL_A + "input_tokens: "),
    "input a float": (spelt((*A, "input_tokens"), "800.0"), CALL_A + "input_tokens: "),
    "input a string": (spelt((*A, "input_tokens"), '"800"'), CALL_A + "input_tokens: "),
    "input a bool": (spelt((*A, "input_tokens"), "true"), CALL_A + "input_tokens: "),
    "input null": (spelt((*A, "input_tokens"), "null"), CALL_A + "input_tokens: "),
    "input a list": (spelt((*A, "input_tokens"), "[800]"), CALL_A + "input_tokens: "),
    "input huge": (spelt((*A, "input_tokens"), HUGE), CALL_A + "input_tokens: "),
    "input huger": (spelt((*A, "input_tokens"), HUGER), "not valid JSON"),
    "output zero": (spelt((*A, "output_tokens"), "0"), CALL_A + "output_tokens: "),
    "predicted zero": (spelt((*A, "predicted_output_tokens"), "0"), CALL_A + "predicted_output_tokens: "),
    "prefix the whole prompt": (
        spelt((*A, "cached_prefix_tokens"), "800"),
        "workflow 'w0' call 'a': cached_prefix_tokens 800 must be below input_tokens 800",
    ),
    "parent unknown": (
        spelt((*B, "parents"), '{"z": 0}'),
        "workflow 'w0': call 'b': parent 'z' is not a call of this workflow",
    ),
    "parent itself": (spelt((*B, "parents"), '{"b": 0}'), "workflow 'w0': call 'b' depends on itself"),
    "cycle": (spelt((*A, "parents"), '{"b": 0}'), "workflow 'w0': call 'a' depends on itself through"),
    "parents a list": (spelt((*B, "parents"), '["a"]'), "workflow 'w0' call 'b' field parents: "),
    "parents a string": (spelt((*B, "parents"), '"a"'), "workflow 'w0' call 'b' field parents: "),
    "parent without a name": (spelt((*B, "parents"), '{"": 0}'), "workflow 'w0' call 'b' field parents."),
    "tool delay negative": (spelt((*B, "parents", "a"), "-1"), "workflow 'w0' call 'b' field parents.a: "),
    "tool delay null": (spelt((*B, "parents", "a"), "null"), "workflow 'w0' call 'b' field parents.a: "),
    "unknown field": (spelt((*A, "outputtokens"), "4"), CALL_A + "outputtokens: unknown field"),
    "id with line breaks": (
        spelt(W0, '{"id": "x\\ny\\r\\u2028z", "calls": []}'),
        "workflow 'x y z' field calls: ",
    ),
    "id with control characters": (
        spelt(W0, '{"id": "x\\u0000y\\u001b[31m", "calls": []}'),
        "workflow 'x\\x00y\\x1b[31m' field calls: ",
    ),
    "demand above capacity": (
        spelt((*A, "input_tokens"), "2000000"),
        "workflow 'w0' call 'a': KV demand 2000060 tokens (input + output) fits no decode instance; the largest "
        "capacity is 1225616: shorten the call or raise the capacity",
    ),
    "model unknown": (spelt(("model",), '"gpt-2"'), "unknown model 'gpt-2' (known: llama3.1-70b, qwen3-235b-a22b)"),
    "model a number": (spelt(("model",), "70"), "field model: "),
    "model empty": (spelt(("model",), '""'), "field model: "),
    "reference batch zero": (spelt(("reference_batch",), "0"), "field reference_batch: "),
    "reference batch huge": (spelt(("reference_batch",), HUGE), "field reference_batch: "),
    "name a number": (spelt(("name",), "3"), "field name: "),
    "cluster unknown": (
        spelt(("cluster",), '"hetero-9"'),
        "field cluster: unknown cluster 'hetero-9' (known: hetero-1",
    ),
    "cluster a list": (spelt(("cluster",), "[]"), "field cluster: "),
    "cluster empty": (spelt(("cluster",), "{}"), "field cluster.prefill: missing; add it"),
    "pool empty": (clustered(("decode", "groups"), "[]"), "field cluster.decode.groups: "),
    "count zero": (clustered(("prefill", "groups", 0, "count"), "0"), "field cluster.prefill.groups.0.count: "),
    "count negative": (clustered(("decode", "groups", 0, "count"), "-2"), "field cluster.decode.groups.0.count: "),
    "count huge": (clustered(("decode", "groups", 0, "count"), HUGE), "field cluster.decode.groups.0.count: "),
    "gpu unknown": (
        clustered(("decode", "groups", 0, "gpu"), '"B300"'),
        "no deployment of llama3.1-70b on B300 in the catalogue (known: A100-80GB-SXM, H100-80GB-SXM, H200-141GB-SXM)",
    ),
    "tp unknown": (clustered(("decode", "groups", 0, "tp"), "2"), "at tp 2 in the catalogue (known: tp 4)"),
    "tp zero": (clustered(("decode", "groups", 0, "tp"), "0"), "field cluster.decode.groups.0.tp: "),
    "capacity zero": (clustered(("decode", "kv_capacity_tokens"), "0"), "field cluster.decode.kv_capacity_tokens: "),
    "capacity below a demand": (
        clustered(("decode", "kv_capacity_tokens"), "900"),
        "workflow 'w0' call 'b': KV demand 940 tokens (input + output) fits no decode instance; the largest capacity "
        "is 900",
    ),
    "memory fraction zero": (clustered(("memory_fraction",), "0"), "field cluster.memory_fraction: "),
    "memory fraction above one": (clustered(("memory_fraction",), "1.5"), "field cluster.memory_fraction: "),
    "weights that do not fit": (
        clustered(("memory_fraction",), "0.2"),
        "the weights of llama3.1-70b need 35.3 GB per GPU on H100-80GB-SXM:tp4, which has 17.1 GB",
    ),
    "latency negative": (clustered(("transfer_latency_s",), "-1"), "field cluster.transfer_latency_s: "),
    "link to an absent gpu": (
        clustered(("links",), '[{"prefill": "A100-80GB-SXM", "decode": "A100", "gb_s": 5}]'),
        "field cluster: links: the decode pool has no GPU kind 'A100' (it has: H100-80GB-SXM)",
    ),
    "link without bandwidth": (
        clustered(("links",), '[{"prefill": "A100-80GB-SXM", "decode": "H100-80GB-SXM", "gb_s": 0}]'),
        "field cluster.links.0.gb_s: ",
    ),
    "catalogue a list": (spelt(("catalogue",), "[]"), "field catalogue: "),
    "gpu memory huge": (catalogued(("gpus", 0, "memory_mib"), HUGE), "gpu 'g' field memory_mib: "),
    "gpu memory too large for a machine word": (catalogued(("gpus", 0, "memory_mib"), "1" + "0" * 20), "gpu 'g' field"),
    "gpu speed zero": (catalogued(("gpus", 0, "bf16_tflops"), "0"), "gpu 'g' field bf16_tflops: "),
    "gpu without a name": (catalogued(("gpus", 0, "name"), "null"), "gpu 0 field name: "),
}


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command line, check how it refuses, and return what it says."""
    status = main(arguments)
    out, err = capsys.readouterr()
    assert (status, out) == (2, "")
    assert err.startswith("workbench: ")
    assert err.endswith("\n")
    line = err[:-1]
    assert line.isprintable(), "one line without control characters"
    return line.removeprefix("workbench: ")


@pytest.mark.parametrize("command", [["validate"], ["simulate"], ["compare"], ["solve"], ["show", "instance"]])
@pytest.mark.parametrize("case", ["truncated", "cycle", "demand above capacity", "gzip cut off"])
def test_every_command_refuses_a_malformed_file(
    command: list[str], case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bad.json"
    path.write_bytes(FILES[case][0])
    assert refused([*command, str(path)], capsys).startswith(f"{path}: {FILES[case][1]}")


@pytest.mark.parametrize("case", FILES)
def test_a_malformed_file_is_refused_with_file_and_place(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, message = FILES[case]
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    line = refused(["validate", str(path)], capsys)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert len(line) < len(str(path)) + 400


def test_the_document_that_the_cases_spoil_is_sound(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for i, body in enumerate((SOUND, edited(("cluster",), FULL_CLUSTER), edited(("catalogue",), {"gpus": [GPU]}))):
        path = tmp_path / f"{i}.json"
        path.write_text(json.dumps(body))
        assert main(["validate", str(path)]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["validate"], ["simulate"], ["compare"], ["solve"], ["show", "instance"]])
def test_what_is_no_file_is_refused(command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    absent = tmp_path / "absent.json"
    assert refused([*command, str(absent)], capsys) == f"{absent}: cannot read the file: No such file or directory"
    assert refused([*command, str(tmp_path)], capsys) == f"{tmp_path}: cannot read the file: Is a directory"
    below = tmp_path / "file"
    below.write_text("x")
    assert refused([*command, str(below / "x")], capsys).endswith("x: cannot read the file: Not a directory")
    assert refused([*command, "x" * 5000], capsys).endswith("cannot read the file: File name too long")
    assert refused([*command, ""], capsys) == ": cannot read the file: No such file or directory"


def test_a_file_that_may_not_be_read_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret.json"
    path.write_bytes(WHOLE)
    path.chmod(0)
    if os.access(path, os.R_OK):  # the superuser may read everything

        def closed(*_: object, **__: object) -> None:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr("builtins.open", closed)
    assert refused(["validate", str(path)], capsys) == f"{path}: cannot read the file: Permission denied"


def test_one_bad_file_among_good_ones_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    good.write_bytes(WHOLE)
    bad.write_bytes(WHOLE[:50])
    assert refused(["validate", str(good), str(bad), str(good)], capsys).startswith(f"{bad}: ")


@pytest.mark.parametrize(
    ("arguments", "content", "message"),
    [
        (["show", "instance", "bad.json"], FILES["id with line breaks"][0], "bad.json: workflow 'x y z' field calls: "),
        (["generate", "bfcl", "--rate", "nan", "-o", "bad.json"], b"", "rate must be above 0"),
    ],
)
def test_the_real_program_refuses_in_one_line(
    arguments: list[str], content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_bytes(content)
    command = [sys.executable, "-W", "error", "-m", "workbench", *arguments]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.count("\n") == 1
    assert run.stderr.startswith(f"workbench: {message}")


def accepted_or_refused(content: bytes, path: Path, capsys: pytest.CaptureFixture[str]) -> int:
    """Validate some bytes, check how they are refused, if so, and return the exit status."""
    path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        status = main(["validate", str(path)])
    out, err = capsys.readouterr()
    if status == 0:
        assert err == ""
    else:
        assert (status, out) == (2, "")
        assert err.startswith(f"workbench: {path}: ")
        assert err[:-1].isprintable()
    return status


def test_changed_bytes_are_accepted_or_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng = random.Random(20240607)
    statuses = []
    for _ in range(500):
        content = bytearray(WHOLE)
        for _ in range(rng.choice([1, 1, 1, 2, 5])):
            at = rng.randrange(len(content))
            kind = rng.randrange(4)
            if kind == 0:
                content[at] = rng.randrange(256)
            elif kind == 1:
                del content[at : at + rng.choice([1, 1, 10])]
            elif kind == 2:
                content[at:at] = rng.choice(
                    [b"0", b"-", b"9" * 30, b'"', b"{", b"]", b",", b"\\", b"\0", b"e5", b"\xff"]
                )
            else:
                content[at:at] = content[at : at + rng.randrange(40)]
        statuses.append(accepted_or_refused(bytes(content), tmp_path / "bad.json", capsys))
    assert 20 < statuses.count(0) < 250  # both outcomes were met


def test_changed_bytes_of_a_gzipped_file_are_accepted_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = random.Random(7)
    packed = gzip.compress(WHOLE, mtime=0)
    for _ in range(150):
        content = bytearray(packed)
        content[rng.randrange(len(content))] = rng.randrange(256)
        accepted_or_refused(bytes(content), tmp_path / "bad.json", capsys)


def leaves(here: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [place] if place else []
    if isinstance(here, dict | list):
        for key, value in here.items() if isinstance(here, dict) else enumerate(here):
            found.extend(leaves(value, (*place, key)))
    return found


ODD = ["0", "-1", "1", "1.5", "true", "null", '""', '"x"', "[]", "{}", "[null]", '{"a": 1}', "1e-300", "1e-12", "1e12"]
ODD += ["1e300", "1e15", "1000000000", "1000000000000000", "1" + "0" * 20, HUGE, '"\\u0000"', '"' + "y" * 300 + '"']


def test_any_value_in_any_place_is_accepted_or_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "full.json"
    path.write_bytes(WHOLE)
    save(load(path), path)
    full = json.loads(path.read_text())
    for model in full["catalogue"]["models"]:  # make defaults visible, so that they are spoilt too
        model.update(bytes_per_param=2, experts=0, experts_per_token=0, expert_params=0)
    places = [(place, text) for place in leaves(full) for text in ODD]
    statuses = []
    for place, text in random.Random(3).sample(places, 500):
        statuses.append(accepted_or_refused(spelt(place, text, full), path, capsys))
    assert 30 < statuses.count(0) < 250
