"""Tests of instance files: exact round trips, stable bytes, strict fields, and writing without harm."""

import gzip
import hashlib
import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.catalogue import Catalogue, Deployment, Gpu, Model
from workbench.cluster import Cluster, Group, Link, Pool
from workbench.errors import InputError
from workbench.files import FORMAT, VERSION
from workbench.workflow import Call, Workflow, Workload

OWN = Catalogue(
    (Gpu("g", 1.5, 2.5, 300_000, 7.0, "made up"), Gpu("unused", 1, 1, 1, 1)),
    (Model("m", 3, 64, 4, 2, 16, 10**9, 9 * 10**8, 10**8, 5 * 10**8, 8, 2, 1, "made up"),),
    (Deployment("m", "g", 2, 0.5, 0.6, 0.7, 0.8, 1.25, 2.5, 0.125, "sum", 0.9),),
)
CLUSTER = Cluster(Pool((Group("g", 2),)), Pool((Group("g", 3, 2),), 90_000), "own", (Link("g", "g", 3.5),), 0.001, 0.8)


def own(**changes: Any) -> wb.Instance:
    calls = (
        Call("ä\n", 50, 5, predicted_output_tokens=9),
        Call("b", 70, 1, {"ä\n": 0.1}, cached_prefix_tokens=55),
        Call("c", 1, 1, {"b": 1 / 3, "ä\n": 1e-9}),
    )
    work = Workload((Workflow("w\u2028", calls, 0.1 + 0.2, 2.0), Workflow("v", (Call("x", 1, 1),))), "somewhere")
    settings: dict[str, Any] = {"cluster": CLUSTER, "model": "m", "reference_batch": 3, "name": "n"}
    return wb.Instance(**{"workload": work, **settings, "catalogue": OWN, **changes})


def plain(document: Any, path: Path) -> Path:
    path.write_text(json.dumps(document))
    return path


def document() -> dict[str, Any]:
    """Return a sound document that spells out every part."""
    gpu = {"name": "g", "bf16_tflops": 1, "hbm_tb_s": 1, "memory_mib": 3000, "rdma_gb_s": 1}
    model = dict.fromkeys(("layers", "hidden", "heads", "kv_heads", "head_dim", "total_params"), 1)
    fit = dict.fromkeys(("tp", "eff_compute", "eff_mem", "eff_attn", "eff_kv", "t0_prefill_ms", "t0_decode_ms"), 1)
    validated = {key: [1, 2] for key in ("prompt_tokens", "batch", "context_tokens")}
    return {
        "format": FORMAT,
        "version": VERSION,
        "workload": {"workflows": [{"id": "w", "calls": [{"id": "a", "input_tokens": 5, "output_tokens": 5}]}]},
        "cluster": {
            "prefill": {"groups": [{"gpu": "g", "count": 1}]},
            "decode": {"groups": [{"gpu": "g", "count": 1}]},
            "links": [{"prefill": "g", "decode": "g", "gb_s": 1}],
        },
        "model": "m",
        "catalogue": {
            "gpus": [gpu],
            "models": [{"name": "m", "dense_block_params": 1, "lm_head_params": 1, **model}],
            "deployments": [
                {"model": "m", "gpu": "g", "ms_per_seq": 0, "combine": "max", "validated": validated, **fit}
            ],
        },
    }


@pytest.mark.parametrize("name", ["i.json", "i.json.gz", "without-ending"])
def test_an_instance_survives_the_way_through_a_file(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    wb.save(own(), path)
    read = wb.load(path)
    assert read == own()
    again = tmp_path / f"again-{name}"
    wb.save(read, again)
    assert again.read_bytes() == path.read_bytes()


@pytest.mark.parametrize("cluster", ["hetero-1", "hetero-2", "h200-4p4d", "a100-4p4d"])
@pytest.mark.parametrize("model", ["llama3.1-70b", "qwen3-235b-a22b"])
def test_a_preset_is_spelt_out_so_that_a_file_means_the_same_later(tmp_path: Path, cluster: str, model: str) -> None:
    instance = wb.Instance(wb.traces.bfcl(2), cluster, model)
    wb.save(instance, tmp_path / "i.json")
    written = json.loads((tmp_path / "i.json").read_text())
    assert written["cluster"]["name"] == cluster
    assert written["cluster"]["decode"]["groups"]
    assert [entry["name"] for entry in written["catalogue"]["models"]] == [model]
    assert len(written["catalogue"]["deployments"]) == len(written["cluster"]["decode"]["groups"])
    assert wb.load(tmp_path / "i.json") == instance


def test_arrays_are_the_same_after_a_round_trip(tmp_path: Path) -> None:
    wb.save(own(), tmp_path / "i.json")
    before, after = own().compile(), wb.load(tmp_path / "i.json").compile()
    for field in ("prefill_s", "transfer_s", "decode_s", "predicted_decode_s", "arrival_s", "tool_delay_s"):
        assert getattr(before, field).tobytes() == getattr(after, field).tobytes()


@settings(max_examples=30, deadline=None)
@given(
    arrival=st.floats(0, 1e9),
    delay=st.floats(0, 1e9),
    weight=st.floats(1e-12, 1e12),
    id=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200),
    lengths=st.tuples(st.integers(1, 40_000), st.integers(1, 40_000)),
)
def test_every_number_and_name_survives_exactly(
    tmp_path_factory: pytest.TempPathFactory,
    arrival: float,
    delay: float,
    weight: float,
    id: str,
    lengths: tuple[int, int],
) -> None:
    path = tmp_path_factory.getbasetemp() / "drawn.json"
    calls = (Call(id, *lengths), Call(f"{id[:199]}+" if id[:199] + "+" != id else "-", 5, 5, {id: delay}))
    instance = own(workload=[Workflow(id, calls, arrival, weight)])
    wb.save(instance, path)
    assert wb.load(path) == instance


def test_gzipped_bytes_do_not_depend_on_time_file_name_or_hash_seed(tmp_path: Path) -> None:
    code = "import sys, workbench as wb; wb.save(wb.load(sys.argv[1]), sys.argv[2])"
    wb.save(own(), tmp_path / "a.json.gz")
    target = tmp_path / "other-name.json.gz"
    command = [sys.executable, "-c", code, str(tmp_path / "a.json.gz"), str(target)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONHASHSEED": "4711"}, timeout=60)
    assert target.read_bytes() == (tmp_path / "a.json.gz").read_bytes()
    assert target.read_bytes()[4:8] == b"\0\0\0\0"  # no time stamp


def test_twenty_thousand_calls_survive_the_way_through_a_file(tmp_path: Path) -> None:
    calls = tuple(Call(f"c{i}", 500 + i, 60, {f"c{i - 1}": 0.1} if i else {}) for i in range(20))
    instance = wb.Instance([Workflow(f"w{i}", calls, i / 7) for i in range(1000)], "hetero-1", "llama3.1-70b")
    wb.save(instance, tmp_path / "large.json.gz")
    read = wb.load(tmp_path / "large.json.gz")
    assert read.compile().n_calls == 20_000
    assert read == instance


def test_a_file_may_name_a_preset_and_leave_out_defaults(tmp_path: Path) -> None:
    short = document() | {"cluster": "a100-4p4d", "model": "llama3.1-70b"}
    del short["catalogue"]
    expected = wb.Instance([Workflow("w", (Call("a", 5, 5),))], "a100-4p4d", "llama3.1-70b")
    assert wb.load(plain(short, tmp_path / "short.json")) == expected


@pytest.mark.parametrize(
    ("place", "where"),
    [
        ((), "field colour"),
        (("workload",), "field workload.colour"),
        (("workload", "workflows", 0), "workflow 'w' field colour"),
        (("workload", "workflows", 0, "calls", 0), "workflow 'w' call 'a' field colour"),
        (("cluster",), "field cluster.colour"),
        (("cluster", "prefill"), "field cluster.prefill.colour"),
        (("cluster", "decode"), "field cluster.decode.colour"),
        (("cluster", "prefill", "groups", 0), "field cluster.prefill.groups.0.colour"),
        (("cluster", "links", 0), "field cluster.links.0.colour"),
        (("catalogue",), "field catalogue.colour"),
        (("catalogue", "gpus", 0), "gpu 'g' field colour"),
        (("catalogue", "models", 0), "model 'm' field colour"),
        (("catalogue", "deployments", 0), "deployment 0 field colour"),
        (("catalogue", "deployments", 0, "validated"), "deployment 0 field validated.colour"),
    ],
)
def test_an_unknown_field_is_refused_everywhere(tmp_path: Path, place: tuple[Any, ...], where: str) -> None:
    body = document()
    wb.load(plain(body, tmp_path / "sound.json"))
    here: Any = body
    for step in place:
        here = here[step]
    here["colour"] = "red"
    path = plain(body, tmp_path / "coloured.json")
    with pytest.raises(InputError) as caught:
        wb.load(path)
    assert str(caught.value) == f"{path}: {where}: unknown field; remove it or mend its spelling"


def required(here: Any, place: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the place of every field that a document must have."""
    optional = {"links", "validated", "catalogue", "gpus", "models", "deployments"}
    found: list[tuple[Any, ...]] = []
    for key, value in here.items() if isinstance(here, dict) else enumerate(here):
        if isinstance(here, dict) and key not in optional:
            found.append((*place, key))
        if isinstance(value, dict | list) and key not in ("prompt_tokens", "batch", "context_tokens"):
            found.extend(required(value, (*place, key)))
    return found


@pytest.mark.parametrize("place", required(document()), ids=lambda place: ".".join(map(str, place)))
def test_a_missing_field_is_refused_by_name(tmp_path: Path, place: tuple[Any, ...]) -> None:
    body = document()
    here: Any = body
    for step in place[:-1]:
        here = here[step]
    del here[place[-1]]
    with pytest.raises(InputError, match=rf"field [\w.]*{place[-1]}: (missing; add it|.*got None)"):
        wb.load(plain(body, tmp_path / "i.json"))


@pytest.mark.parametrize("version", [0, 2, -1, "1", True, 1.0, None, [1], 10**400])
def test_another_version_is_refused(tmp_path: Path, version: object) -> None:
    with pytest.raises(InputError, match=r"field version: this workbench reads version 1, got "):
        wb.load(plain(document() | {"version": version}, tmp_path / "i.json"))


@pytest.mark.parametrize("format", ["", "instance", None, 1, FORMAT.upper()])
def test_another_format_is_refused(tmp_path: Path, format: object) -> None:
    with pytest.raises(InputError, match=f'field format: expected "{FORMAT}", got '):
        wb.load(plain(document() | {"format": format}, tmp_path / "i.json"))


def test_the_first_bytes_decide_whether_a_file_is_gzipped(tmp_path: Path) -> None:
    (tmp_path / "packed.json").write_bytes(gzip.compress(json.dumps(document()).encode()))
    plain(document(), tmp_path / "plain.json.gz")
    assert wb.load(tmp_path / "packed.json") == wb.load(tmp_path / "plain.json.gz")


@pytest.mark.parametrize("packed", [False, True])
def test_a_pipe_is_read_like_a_file(tmp_path: Path, packed: bool) -> None:
    content = json.dumps(document()).encode()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(gzip.compress(content) if packed else content,))
    writer.start()
    try:
        assert wb.load(pipe) == wb.load(plain(document(), tmp_path / "i.json"))
    finally:
        writer.join()


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(pipe.read_bytes()), daemon=True)
    reader.start()
    wb.save(own(), pipe)
    reader.join(timeout=10)
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    wb.save(own(), tmp_path / "i.json")
    assert received == [(tmp_path / "i.json").read_bytes()]


def test_a_link_keeps_pointing_to_the_file_that_is_written(tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("real.json")
    wb.save(own(), tmp_path / "link.json")
    assert (tmp_path / "link.json").is_symlink()
    assert wb.load(tmp_path / "real.json") == own()


def test_writing_leaves_no_other_file_behind(tmp_path: Path) -> None:
    wb.save(own(), tmp_path / "i.json")
    wb.save(own(name="other"), tmp_path / "i.json")
    assert [path.name for path in tmp_path.iterdir()] == ["i.json"]
    assert wb.load(tmp_path / "i.json").name == "other"
    assert stat.S_IMODE((tmp_path / "i.json").stat().st_mode) == 0o644


def test_a_write_that_fails_keeps_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wb.save(own(), tmp_path / "i.json")
    before = hashlib.sha256((tmp_path / "i.json").read_bytes()).digest()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(InputError, match=r"i\.json: cannot write the file: No space left on device"):
        wb.save(own(name="other"), tmp_path / "i.json")
    assert [path.name for path in tmp_path.iterdir()] == ["i.json"]
    assert hashlib.sha256((tmp_path / "i.json").read_bytes()).digest() == before


def test_a_place_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent/i\.json: cannot write the file: No such file or directory"):
        wb.save(own(), tmp_path / "absent" / "i.json")
    with pytest.raises(InputError, match="cannot write the file: Is a directory"):
        wb.save(own(), tmp_path)


def test_a_file_that_is_too_large_is_refused_before_it_is_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workbench.files.LARGEST_FILE", 2**20)
    bomb = tmp_path / "bomb.json.gz"
    bomb.write_bytes(gzip.compress(b"[" * 2**22))
    with pytest.raises(InputError, match=r"bomb\.json\.gz: larger than 1 MiB; split the workload"):
        wb.load(bomb)
