"""Agent workflows of the BFCL v3 multi-turn benchmark: lengths and structure only.

The benchmark publishes user turns, tool documents, ground-truth tool calls and simulators of the tools.
Executing the calls gives the conversation of an agent that makes no mistake; its prompts are counted with the
Llama 3.1 tokenizer.
"""

import ast
import base64
import copy
import hashlib
import importlib
import inspect
import json
import runpy
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import localcontext
from pathlib import Path
from types import ModuleType
from typing import Any

from tqdm import tqdm

from workbench.errors import InputError
from workbench.files import write_bytes

__all__ = ["ASSUMED_REPLY_TOKENS", "BFCL_WHEEL", "CATEGORIES", "TOKENIZER_WHEEL", "build", "write"]

SOURCE = "bfcl_v3_multi_turn"
CATEGORIES = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")
"""Categories in the package's order, 200 tasks each."""

ASSUMED_REPLY_TOKENS = 56
"""Tokens of the reply that closes a turn, its end-of-turn token included: assumed, the benchmark has none."""

# Control tokens of the Llama 3.1 chat format: ids as published, above the 128,000 text tokens.
BEGIN_OF_TEXT, START_HEADER, END_HEADER, END_OF_TURN = 128000, 128006, 128007, 128009
# Stands for each unknown token of an assumed reply; no text encodes to it.
UNKNOWN_TOKEN = -1

Encode = Callable[[str], list[int]]
"""Turns plain text into token ids, never into control tokens."""
Steps = tuple[tuple[str, str], ...]
"""Each tool call of a turn as the model writes it, and what the tool returns."""


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel on the package index, with the SHA-256 digest of the file."""

    distribution: str
    version: str
    filename: str
    sha256: str


BFCL_WHEEL = Wheel(
    "bfcl-eval",
    "2026.3.23",
    "bfcl_eval-2026.3.23-py3-none-any.whl",
    "3bb6dfa5f0c68ad403c9ec50b00db2bb3b4cc9b38ab1ff33f48fe30d853d3a0a",
)
TOKENIZER_WHEEL = Wheel(
    "llama-models",
    "0.3.0",
    "llama_models-0.3.0-py3-none-any.whl",
    "7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f",
)


def fetch(wheel: Wheel, directory: Path) -> Path:
    """Download a wheel without its dependencies, unless it is there already, and check its digest.

    Raises
    ------
    InputError
        If pip cannot download the wheel, or if the file is not the pinned one.
    """
    path = directory / wheel.filename
    pinned = f"{wheel.distribution}=={wheel.version}"
    if not path.exists():
        options = ["--no-deps", "--only-binary=:all:", "--disable-pip-version-check", "--no-input", "--quiet"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), pinned]
        run = subprocess.run(command, capture_output=True, text=True, check=False)
        if run.returncode or not path.exists():
            why = (run.stderr.strip().splitlines() or [f"exit code {run.returncode}"])[-1]
            raise InputError(
                f"cannot download {pinned} with pip ({why}); check the network and pip's index, "
                f"or put {wheel.filename} into the cache directory"
            )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != wheel.sha256:
        raise InputError(
            f"{path} has SHA-256 {digest}, but {pinned} has {wheel.sha256}; delete it and check pip's index"
        )
    return path


@contextmanager
def unpacked(cache_dir: Path | None = None) -> Iterator[Path]:
    """Fetch both wheels, into ``cache_dir`` if given, and unpack them into a directory removed on exit."""
    with tempfile.TemporaryDirectory(prefix="workbench-bfcl-") as scratch:
        wheels = Path(scratch, "wheels") if cache_dir is None else cache_dir
        wheels.mkdir(parents=True, exist_ok=True)
        root = Path(scratch, "unpacked")
        for wheel in (BFCL_WHEEL, TOKENIZER_WHEEL):
            with zipfile.ZipFile(fetch(wheel, wheels)) as archive:
                archive.extractall(root)
        yield root


def llama_encoder(root: Path) -> Encode:
    """Load the Llama 3.1 tokenizer from the unpacked wheels."""
    import tiktoken

    folder = root / "llama_models" / "llama3"
    pairs = (line.split() for line in (folder / "tokenizer.model").read_bytes().splitlines())
    ranks = {base64.b64decode(token): int(rank) for token, rank in pairs}
    # Read the split pattern from the source: importing it would need the distribution's dependencies.
    pattern = next(
        ast.literal_eval(node.value)
        for node in ast.walk(ast.parse((folder / "tokenizer.py").read_text("utf-8")))
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "pat_str"
    )
    tokenizer = tiktoken.Encoding("llama3", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    return tokenizer.encode_ordinary


@dataclass(frozen=True)
class Template:
    """The fixed texts of a prompt.

    Parameters
    ----------
    system : str
        Content of the system message.
    instruction : str
        What precedes the tool documents in the first user message.
    more_functions : str
        User message of the turn that brings withheld tools; ``{functions}`` stands for their documents.
    """

    system: str
    instruction: str
    more_functions: str


@dataclass(frozen=True)
class Turn:
    """A user's message and the steps that serve it."""

    user: str
    steps: Steps = ()


@dataclass(frozen=True)
class Conversation:
    """A task with its executed ground truth; ``docs`` are of the tools that are there from the start."""

    id: str
    docs: tuple[dict[str, Any], ...]
    turns: tuple[Turn, ...]


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Return the length in tokens of the longest common prefix."""
    if second[: len(first)] == first:
        return len(first)
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))


def chain(conversation: Conversation, template: Template, encode: Encode) -> dict[str, Any]:
    """Count a conversation as a chain of LLM calls: one per tool call, and one for the reply of each turn.

    A prompt is the whole history in the Llama 3.1 chat format, up to the header that asks for the assistant's
    next message. The result is one line of the workload file; lengths are in tokens, and those of outputs
    include the end-of-turn token.
    """

    def message(role: str, text: str) -> list[int]:
        # The blank line is encoded with the text: the tokenizer may merge it with what follows.
        return [START_HEADER, *encode(role), END_HEADER, *encode("\n\n" + text), END_OF_TURN]

    opening = template.instruction + "".join(json.dumps(doc, indent=4) + "\n\n" for doc in conversation.docs)
    ask = message("assistant", "")[:-1]
    assumed = [UNKNOWN_TOKEN] * (ASSUMED_REPLY_TOKENS - 1) + [END_OF_TURN]
    history = [BEGIN_OF_TEXT, *message("system", template.system)]
    held: list[int] = []
    calls: list[dict[str, Any]] = []

    def call(output: list[int], kind: str, turn: int) -> None:
        nonlocal held
        prompt = history + ask
        calls.append(
            {
                "id": f"c{len(calls)}",
                "parents": [f"c{len(calls) - 1}"] if calls else [],
                "input_tokens": len(prompt),
                "output_tokens": len(output),
                "cached_prefix_tokens": min(common_prefix(held, prompt), len(prompt) - 1),
                "tool_delay_s": None,
                "kind": kind,
                "turn": turn,
            }
        )
        held = prompt + output

    for number, turn in enumerate(conversation.turns):
        history += message("user", (opening if number == 0 else "") + turn.user.strip())
        for text, result in turn.steps:
            call([*encode(text), END_OF_TURN], "tool_call", number)
            history += message("assistant", text) + message("ipython", result)
        call(assumed, "turn_reply_assumed_len", number)
        history += ask + assumed
    return {"workflow_id": conversation.id, "source": SOURCE, "arrival_s": None, "calls": calls}


class Benchmark:
    """The data, tool simulators and prompt texts of the unpacked ``bfcl-eval`` wheel.

    Only the simulators are imported, and they leave no trace among the loaded modules.

    Attributes
    ----------
    template : Template
        The fixed texts of its Llama 3.1 prompts.
    hint : str
        What it appends to the description of each tool that is there from the start.
    """

    def __init__(self, root: Path) -> None:
        package = root / "bfcl_eval"
        self._data = package / "data"
        backend = runpy.run_path(str(package / "constants" / "executable_backend_config.py"))
        self._doc_files: dict[str, str] = backend["MULTI_TURN_FUNC_DOC_FILE_MAPPING"]
        self._stateless: list[str] = backend["STATELESS_CLASSES"]
        entries = (entry for category in CATEGORIES for entry in self._lines(f"BFCL_v4_{category}.json"))
        used = sorted({name for entry in entries for name in entry["involved_classes"]})
        modules = {name: backend["CLASS_FILE_PATH_MAPPING"][name] for name in used}
        self._simulators = _import_classes(root, modules, backend["BACKEND_PATH_PREFIX"])
        utils = _functions(package / "utils.py", {"_get_language_specific_hint", "is_java", "is_js"})
        self.hint: str = utils["_get_language_specific_hint"](CATEGORIES[0])
        handler = package / "model_handler" / "local_inference" / "llama_3_1.py"
        self._format: Callable[..., str] = _functions(handler, {"_format_prompt"})["_format_prompt"]
        prompts = runpy.run_path(str(package / "constants" / "default_prompts.py"))
        mark = "workbench"
        _, system, user, _ = self.text([{"role": "user", "content": mark}], ()).split("<|end_header_id|>\n\n")
        self.template = Template(
            system.split("<|eot_id|>")[0],
            user.split(mark + "<|eot_id|>")[0],
            prompts["DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING"],
        )

    def text(self, messages: list[dict[str, str]], docs: Sequence[dict[str, Any]]) -> str:
        """Return a prompt as the package's own Llama 3.1 handler writes it."""
        return self._format(None, messages, docs)

    def conversations(self, category: str) -> Iterator[Conversation]:
        """Execute the ground truth of every task of a category, in the package's order."""
        name = f"BFCL_v4_{category}.json"
        for entry, answer in zip(self._lines(name), self._lines(f"possible_answer/{name}"), strict=True):
            files = [self._doc_files[simulator] for simulator in entry["involved_classes"]]
            docs = {doc["name"]: doc for file in files for doc in self._lines(f"multi_turn_func_doc/{file}")}
            missed = entry.get("missed_function", {}).items()
            later = {int(turn): [docs.pop(tool) for tool in tools] for turn, tools in missed}
            # The package adds its hint to the first documents only, not to those withheld at first.
            first = tuple({**doc, "description": doc["description"] + self.hint} for doc in docs.values())
            users = [
                self.template.more_functions.format(functions=later[number])
                if number in later
                else messages[0]["content"]
                for number, messages in enumerate(entry["question"])
            ]
            with localcontext():  # a simulator sets the precision of decimals for the whole process
                steps = self._execute(entry, answer["ground_truth"], "long_context" in category)
            turns = tuple(Turn(user, done) for user, done in zip(users, steps, strict=True))
            yield Conversation(entry["id"], first, turns)

    def _lines(self, file: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self._data / file).read_text("utf-8").splitlines()]

    def _execute(self, entry: dict[str, Any], truth: list[list[str]], long_context: bool) -> list[Steps]:
        methods: dict[str, Callable[..., Any]] = {}
        for name in entry["involved_classes"]:
            instance = self._simulators[name]()
            if name not in self._stateless:
                scenario = copy.deepcopy(entry["initial_config"].get(name, {}))
                instance._load_scenario(scenario, long_context=long_context)  # noqa: SLF001  the only way in
            methods.update(inspect.getmembers(instance, inspect.ismethod))
        return [tuple(_step(source, methods) for source in calls) for calls in truth]


def _step(source: str, methods: dict[str, Callable[..., Any]]) -> tuple[str, str]:
    """Execute a ground-truth call; return the text a Llama model writes for it, and the tool's answer."""
    node = ast.parse(source, mode="eval").body
    assert isinstance(node, ast.Call) and isinstance(node.func, ast.Name), source
    method = methods[node.func.id]
    names = inspect.signature(method).parameters
    arguments = dict(zip(names, map(ast.literal_eval, node.args), strict=False))
    arguments.update((str(keyword.arg), ast.literal_eval(keyword.value)) for keyword in node.keywords)
    text = json.dumps({"name": node.func.id, "parameters": arguments}, ensure_ascii=False)
    try:
        result = method(**arguments)
    except Exception as error:  # the agent reads the error and goes on
        return text, f"Error during execution: {error}"
    if isinstance(result, dict):
        with suppress(TypeError, ValueError):  # the package prints what JSON cannot hold
            return text, json.dumps(result)
    return text, str(result)


def _functions(path: Path, names: set[str]) -> dict[str, Any]:
    """Compile single functions of a source file without running the file."""
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    found = [node for node in nodes if isinstance(node, ast.FunctionDef) and node.name in names]
    for node in found:
        node.decorator_list = []
    namespace: dict[str, Any] = {"json": json}
    exec(compile(ast.Module([*found], []), str(path), "exec"), namespace)
    return namespace


def _import_classes(root: Path, modules: dict[str, str], parent: str) -> dict[str, type[Any]]:
    """Import classes from modules below ``parent`` without running the package's own ``__init__`` files."""
    parts = parent.split(".")

    def loaded() -> dict[str, ModuleType]:
        return {name: module for name, module in sys.modules.items() if name.split(".")[0] == parts[0]}

    before = loaded()
    try:
        for name in before:
            del sys.modules[name]
        for depth in range(1, len(parts) + 1):
            stub = ModuleType(".".join(parts[:depth]))
            stub.__path__ = [str(root.joinpath(*parts[:depth]))]
            sys.modules[stub.__name__] = stub
        return {name: getattr(importlib.import_module(module), name) for name, module in modules.items()}
    finally:
        for name in loaded():
            del sys.modules[name]
        sys.modules.update(before)


def build(cache_dir: Path | None = None, progress: bool = True) -> list[dict[str, Any]]:
    """Rebuild the 800 workflows from the published packages.

    Parameters
    ----------
    cache_dir : Path, optional
        Where the downloaded wheels (9 MB) are kept for the next time; not kept if omitted.
    progress : bool
        Whether to show a progress bar on standard error.

    Returns
    -------
    list of dict
        One workflow each, as the lines of the workload file; all lengths in tokens.

    Raises
    ------
    InputError
        If an optional package is missing, a download fails or a wheel is not the pinned one.
    """
    try:
        import mpmath
        import tiktoken  # noqa: F401  fail before the download
    except ImportError as error:
        raise InputError(
            f"rebuilding the BFCL workflows needs {error.name}; install hexagent-workbench[fetch]"
        ) from error
    # A simulator sets mpmath's precision; put it back.
    with unpacked(cache_dir) as root, mpmath.workdps(mpmath.mp.dps):
        encode, benchmark = llama_encoder(root), Benchmark(root)
        found = (each for category in CATEGORIES for each in benchmark.conversations(category))
        bar = tqdm(found, "BFCL", 200 * len(CATEGORIES), unit=" workflows", disable=not progress)
        return [chain(each, benchmark.template, encode) for each in bar]


def write(workflows: Sequence[dict[str, Any]], path: Path) -> None:
    """Write workflows as gzipped JSONL, a line each; the same workflows give the same bytes.

    Raises
    ------
    InputError
        If the file cannot be written.
    """
    lines = (json.dumps(workflow, ensure_ascii=False, separators=(",", ":")) + "\n" for workflow in workflows)
    write_bytes(path, "".join(lines).encode())
