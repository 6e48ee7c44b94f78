"""Tests of the BFCL v3 multi-turn workflows."""

import ast
import gzip
import json
import os
import re
import sys
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from workbench.errors import InputError
from workbench.traces import fetch_bfcl as bfcl

COMMITTED = Path(__file__).parents[2] / "instances" / "workloads" / "bfcl_v3_multi_turn.jsonl.gz"
REFERENCE = Path(os.environ.get("WORKBENCH_REFERENCE", os.devnull))
INDEPENDENT = REFERENCE / "traces" / "bfcl_v3_multi_turn_groundtruth.jsonl.gz"
needs_reference = pytest.mark.skipif(
    not INDEPENDENT.exists(),
    reason="WORKBENCH_REFERENCE names no directory with the independent build",
)
CONTROL = {
    "<|begin_of_text|>": bfcl.BEGIN_OF_TEXT,
    "<|start_header_id|>": bfcl.START_HEADER,
    "<|end_header_id|>": bfcl.END_HEADER,
    "<|eot_id|>": bfcl.END_OF_TURN,
}


def read(path: Path) -> list[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def workflows() -> list[dict[str, Any]]:
    return read(COMMITTED)


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[bfcl.Benchmark, bfcl.Encode]]:
    pytest.importorskip("mpmath")
    pytest.importorskip("tiktoken")
    with bfcl.unpacked(tmp_path_factory.mktemp("wheels")) as root:
        yield bfcl.Benchmark(root), bfcl.llama_encoder(root)


def characters(text: str) -> list[int]:
    """Encode one token per character."""
    return [ord(character) for character in text]


def words(text: str) -> list[int]:
    """Encode one token per word or run of spaces; line breaks take in the spaces that follow."""
    return [sum(map(ord, token)) for token in re.findall(r"\n+ *|\w+| +|[^\w\s]", text)]


class TestCommittedFile:
    def test_holds_the_800_tasks_in_package_order(self, workflows: list[dict[str, Any]]) -> None:
        expected = [f"{category}_{number}" for category in bfcl.CATEGORIES for number in range(200)]
        assert [workflow["workflow_id"] for workflow in workflows] == expected

    def test_has_one_call_per_ground_truth_call_and_one_reply_per_turn(self, workflows: list[dict[str, Any]]) -> None:
        kinds = Counter(call["kind"] for workflow in workflows for call in workflow["calls"])
        assert kinds == {"tool_call": 4625, "turn_reply_assumed_len": 3336}
        for workflow in workflows:
            closings = [call["turn"] for call in workflow["calls"] if call["kind"] != "tool_call"]
            assert closings == list(range(len(closings)))
            assert workflow["calls"][-1]["kind"] == "turn_reply_assumed_len"
            turns = [call["turn"] for call in workflow["calls"]]
            assert turns == sorted(turns)

    def test_every_line_has_the_stated_fields(self, workflows: list[dict[str, Any]]) -> None:
        fields = "id parents input_tokens output_tokens cached_prefix_tokens tool_delay_s kind turn"
        for workflow in workflows:
            assert list(workflow) == ["workflow_id", "source", "arrival_s", "calls"]
            assert (workflow["source"], workflow["arrival_s"]) == ("bfcl_v3_multi_turn", None)
            for call in workflow["calls"]:
                assert " ".join(call) == fields
                assert call["tool_delay_s"] is None
                if call["kind"] != "tool_call":
                    assert call["output_tokens"] == bfcl.ASSUMED_REPLY_TOKENS == 56

    def test_is_made_of_chains(self, workflows: list[dict[str, Any]]) -> None:
        for workflow in workflows:
            ids = [call["id"] for call in workflow["calls"]]
            assert ids == [f"c{number}" for number in range(len(ids))]
            assert [call["parents"] for call in workflow["calls"]] == [[], *([id] for id in ids[:-1])]

    def test_prompts_grow_by_more_than_the_previous_output(self, workflows: list[dict[str, Any]]) -> None:
        for workflow in workflows:
            for before, after in zip(workflow["calls"], workflow["calls"][1:], strict=False):
                # Every next prompt adds a message and the header that asks for the next one.
                assert after["input_tokens"] >= before["input_tokens"] + before["output_tokens"] + 8

    def test_cached_prefix_is_what_the_previous_call_held(self, workflows: list[dict[str, Any]]) -> None:
        for workflow in workflows:
            assert workflow["calls"][0]["cached_prefix_tokens"] == 0
            for before, after in zip(workflow["calls"], workflow["calls"][1:], strict=False):
                held = before["input_tokens"] + before["output_tokens"]
                assert before["input_tokens"] <= after["cached_prefix_tokens"] <= held
                assert after["cached_prefix_tokens"] < after["input_tokens"]

    def test_can_be_written_again_byte_for_byte(self, workflows: list[dict[str, Any]], tmp_path: Path) -> None:
        for name in ("first.gz", "second.gz"):
            bfcl.write(workflows, tmp_path / name)
        written = (tmp_path / "first.gz").read_bytes()
        assert written == (tmp_path / "second.gz").read_bytes()
        assert gzip.decompress(written) == gzip.decompress(COMMITTED.read_bytes())
        assert sorted(path.name for path in tmp_path.iterdir()) == ["first.gz", "second.gz"]


class TestChain:
    template = bfcl.Template(system="sys", instruction="use:\n", more_functions="{functions}!")

    def test_counts_a_small_conversation_by_hand(self) -> None:
        turns = (bfcl.Turn("  go ", (('{"name": "f"}', "None"),)), bfcl.Turn("end"))
        conversation = bfcl.Conversation("w", ({"a": 1},), turns)

        calls = bfcl.chain(conversation, self.template, characters)["calls"]

        # A message is 3 control tokens, its role, two line breaks and its content.
        system = 3 + len("system") + 2 + len("sys")
        first = 3 + len("user") + 2 + len('use:\n{\n    "a": 1\n}\n\n') + len("go")
        ask = 2 + len("assistant") + 2
        tool = (ask + 13 + 1) + 3 + len("ipython") + 2 + len("None")
        second = 3 + len("user") + 2 + len("end")
        prompts = [1 + system + first + ask]
        prompts.append(prompts[0] + tool)
        prompts.append(prompts[1] + 56 + second + ask)
        assert [call["input_tokens"] for call in calls] == prompts == [60, 103, 184]
        assert [call["output_tokens"] for call in calls] == [14, 56, 56]
        assert [call["cached_prefix_tokens"] for call in calls] == [0, 60 + 14, 103 + 56]
        assert [call["kind"] for call in calls] == ["tool_call", *["turn_reply_assumed_len"] * 2]
        assert [call["turn"] for call in calls] == [0, 0, 1]

    def test_cached_prefix_ends_where_the_tokenizer_merges_differently(self) -> None:
        turns = (bfcl.Turn("go", ((" f", "None"),)),)
        conversation = bfcl.Conversation("w", (), turns)

        calls = bfcl.chain(conversation, self.template, words)["calls"]

        # As an output, " f" follows the blank line; in the history, the blank line takes in its space.
        assert calls[1]["cached_prefix_tokens"] == calls[0]["input_tokens"] - 1

    @pytest.mark.parametrize(
        ("first", "second", "length"),
        [([], [1], 0), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2], 2), ([1, 9, 3], [1, 2, 3], 1)],
    )
    def test_common_prefix(self, first: list[int], second: list[int], length: int) -> None:
        assert bfcl.common_prefix(first, second) == length


class TestErrors:
    def test_other_wheel_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / bfcl.BFCL_WHEEL.filename).write_bytes(b"not the wheel")
        with pytest.raises(InputError, match=r"^.*SHA-256.*delete it.*$"):
            bfcl.fetch(bfcl.BFCL_WHEEL, tmp_path)

    def test_failing_download_is_one_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        script = tmp_path / "pip.py"
        script.write_text("import sys\nprint('first')\nsys.exit('no network')\n")
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        with pytest.raises(InputError, match=r"^cannot download bfcl-eval==.*\(no network\); check .*$"):
            bfcl.fetch(bfcl.BFCL_WHEEL, tmp_path / "empty")

    def test_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mpmath", None)
        with pytest.raises(InputError, match=r"needs mpmath; install hexagent-workbench\[fetch\]$"):
            bfcl.build(progress=False)

    def test_failed_write_leaves_nothing(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise OSError("full")

        monkeypatch.setattr(os, "replace", refuse)
        with pytest.raises(InputError, match="full"):
            bfcl.write([], tmp_path / "file.gz")
        assert not list(tmp_path.iterdir())


@needs_reference
class TestIndependentBuild:
    def test_agrees_within_the_stated_bounds(self, workflows: list[dict[str, Any]]) -> None:
        reference = read(INDEPENDENT)
        pairs = []
        for ours, theirs in zip(workflows, reference, strict=True):
            assert ours["workflow_id"] == theirs["workflow_id"]
            pairs += list(zip(ours["calls"], theirs["calls"], strict=True))
        for field in ("id", "parents", "kind", "turn"):
            assert all(ours[field] == theirs[field] for ours, theirs in pairs)
        outputs = [ours["output_tokens"] - theirs["output_tokens"] for ours, theirs in pairs]
        assert sum(difference == 0 for difference in outputs) >= 0.999 * len(pairs)
        inputs = [ours["input_tokens"] / theirs["input_tokens"] - 1 for ours, theirs in pairs]
        assert min(inputs) > 0
        assert max(inputs) < 0.066
        assert 0.04 < median(inputs) < 0.05


@pytest.mark.slow
class TestRebuild:
    """Downloads 9 MB."""

    def test_gives_the_committed_bytes(self, tmp_path: Path) -> None:
        before = dict(sys.modules), list(sys.path)
        bfcl.write(bfcl.build(progress=False), tmp_path / COMMITTED.name)
        assert not [name for name in sys.modules if name not in before[0] and name.startswith("bfcl_eval")]
        assert sys.path == before[1]
        built, committed = (tmp_path / COMMITTED.name).read_bytes(), COMMITTED.read_bytes()
        assert gzip.decompress(built) == gzip.decompress(committed)
        if "ng" not in zlib.ZLIB_RUNTIME_VERSION:  # other implementations of zlib compress differently
            assert built == committed

    def test_prompts_are_those_of_the_package(self, package: tuple[bfcl.Benchmark, bfcl.Encode]) -> None:
        benchmark, encode = package
        # 55 tokens, so that with the end of the turn the reply has its assumed length.
        reply = " ".join(["yes"] * 55)
        assert len(encode(reply)) == bfcl.ASSUMED_REPLY_TOKENS - 1
        for category in bfcl.CATEGORIES:
            for conversation in benchmark.conversations(category):
                prompts = []
                messages: list[dict[str, str]] = []
                for turn in conversation.turns:
                    messages.append({"role": "user", "content": turn.user})
                    for text, result in turn.steps:
                        prompts.append(benchmark.text(messages, conversation.docs))
                        messages.append({"role": "assistant", "content": text})
                        messages.append({"role": "tool", "content": result})
                    prompts.append(benchmark.text(messages, conversation.docs))
                    messages.append({"role": "assistant", "content": reply})
                calls = bfcl.chain(conversation, benchmark.template, encode)["calls"]
                for call, prompt in zip(calls, prompts, strict=True):
                    pieces = re.split("(" + "|".join(map(re.escape, CONTROL)) + ")", prompt)
                    tokens = [t for piece in pieces for t in ([0] if piece in CONTROL else encode(piece))]
                    assert call["input_tokens"] == len(tokens)

    def test_no_ground_truth_call_fails(self, package: tuple[bfcl.Benchmark, bfcl.Encode]) -> None:
        benchmark, _ = package
        results = [
            result
            for category in bfcl.CATEGORIES
            for conversation in benchmark.conversations(category)
            for turn in conversation.turns
            for _, result in turn.steps
        ]
        assert len(results) == 4625
        assert not [result for result in results if result.startswith("Error during execution")]

    @needs_reference
    def test_equals_the_independent_build_under_its_conventions(
        self, package: tuple[bfcl.Benchmark, bfcl.Encode]
    ) -> None:
        benchmark, encode = package
        template = replace(benchmark.template, system=benchmark.template.system.rstrip())
        asking = benchmark.template.more_functions.removeprefix("{functions}")

        def user(text: str) -> str:
            if not text.endswith(asking):
                return text
            docs = ast.literal_eval(text.removesuffix(asking))
            return "\n\n".join(json.dumps(doc, indent=4) for doc in docs) + asking

        def turn(given: bfcl.Turn) -> bfcl.Turn:
            steps = [(json.dumps(json.loads(text)), json.dumps(result)) for text, result in given.steps]
            return bfcl.Turn(user(given.user), tuple(steps))

        theirs = iter(read(INDEPENDENT))
        for category in bfcl.CATEGORIES:
            for conversation in benchmark.conversations(category):
                docs = tuple(
                    doc | {"description": doc["description"].removesuffix(benchmark.hint)} for doc in conversation.docs
                )
                turns = tuple(map(turn, conversation.turns))
                calls = bfcl.chain(replace(conversation, docs=docs, turns=turns), template, encode)["calls"]
                lengths = [(call["input_tokens"], call["output_tokens"]) for call in calls]
                assert lengths == [(c["input_tokens"], c["output_tokens"]) for c in next(theirs)["calls"]]
