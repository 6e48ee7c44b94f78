"""Instance files: versioned JSON, plain or gzip, with errors that name file, field and mend."""

import gzip
import io
import json
import os
import tempfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from workbench.errors import InputError, one_line
from workbench.instance import Instance

__all__ = ["FORMAT", "VERSION", "describe", "load", "read_bytes", "save", "write_bytes"]

FORMAT = "hexagent-workbench/instance"
VERSION = 1
LARGEST_FILE = 2**30

_ADAPTER = TypeAdapter(Instance)
_KINDS = {"workflows": "workflow", "calls": "call", "gpus": "gpu", "models": "model", "deployments": "deployment"}


def load(path: str | Path) -> Instance:
    """Read an instance file.

    Parameters
    ----------
    path : str or pathlib.Path
        A JSON file, gzipped or not.

    Raises
    ------
    InputError
        One line that names the file, the field and the mend.
    """
    content = read_bytes(path)
    try:
        document = pydantic_core.from_json(content, allow_inf_nan=False)
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON: {one_line(error)}; is the file complete?") from None
    if not isinstance(document, dict):
        raise InputError(f"{path}: expected a JSON object with the fields of an instance")
    if document.get("format") != FORMAT:
        raise InputError(f'{path}: field format: expected "{FORMAT}", got {_short(document.get("format"))}')
    version = document.get("version")
    if version != VERSION or type(version) is not int:
        raise InputError(
            f"{path}: field version: this workbench reads version {VERSION}, got {_short(version)}; "
            "write the file anew with a matching workbench"
        )
    body = {key: value for key, value in document.items() if key not in ("format", "version")}
    try:
        return _ADAPTER.validate_python(body)
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error, body)}") from None


def save(instance: Instance, path: str | Path) -> None:
    """Write an instance file, gzipped when the name ends in ``.gz``; the same instance gives the same bytes."""
    body = _ADAPTER.dump_python(instance, mode="json", exclude_defaults=True)
    # What changes results is written even at its default, so that a file means the same under a later version.
    body["reference_batch"] = instance.reference_batch
    body["cluster"]["transfer_latency_s"] = instance.cluster.transfer_latency_s
    body["cluster"]["memory_fraction"] = instance.cluster.memory_fraction
    text = json.dumps({"format": FORMAT, "version": VERSION, **body}, ensure_ascii=False, separators=(",", ":"))
    write_bytes(path, (text + "\n").encode())


def read_bytes(path: str | Path) -> bytes:
    """Return a file's content, unpacked when it is gzipped, or raise `InputError`."""
    try:
        with open(path, "rb") as raw:
            packed = raw.peek(2).startswith(b"\x1f\x8b")
            with gzip.open(raw) if packed else raw as stream:
                content = stream.read(LARGEST_FILE + 1)
    except (OSError, EOFError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or one_line(error)
        raise InputError(f"{path}: cannot read the file: {reason}") from None
    if len(content) > LARGEST_FILE:
        raise InputError(f"{path}: larger than {LARGEST_FILE >> 20} MiB; split the workload")
    return content


def write_bytes(path: str | Path, content: bytes) -> None:
    """Write a file in one step, gzipped when the name ends in ``.gz``, so that no reader sees half of it."""
    target = Path(os.path.realpath(path))
    if target.suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as stream:  # no name, time or system in the header
            stream.write(content)
        content = packed.getvalue()
    try:
        if target.exists() and not target.is_file():  # a pipe or a device: nothing to replace
            target.write_bytes(content)
            return
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(content)
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise InputError(f"{path}: cannot write the file: {error.strerror or error}") from None


def describe(error: ValidationError, document: Any) -> str:
    """Return a validation error as one line that names workflow, call and field.

    Parameters
    ----------
    error : pydantic.ValidationError
        The error; its first finding is described.
    document : object
        What was validated, to turn positions into ids.
    """
    finding = error.errors(include_url=False)[0]
    places, field = _places(finding["loc"], document)
    message = finding["msg"].removeprefix("Value error, ")
    if finding["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
        message = "unknown field; remove it or mend its spelling"
    elif finding["type"] == "missing":
        message = "missing; add it"
    elif finding["type"] != "value_error":
        message = f"{message[0].lower()}{message[1:]}, got {_short(finding['input'])}"
    if places:
        message = message.removeprefix(f"{places[-1]}: ")
    where = " ".join(filter(None, [*places, f"field {field}" if field else ""]))
    return one_line(f"{where}: {message}" if where else message)


def _places(location: tuple[int | str, ...], document: Any) -> tuple[list[str], str]:
    """Split a location into named records (workflow 'w' call 'c') and the field within the last of them."""
    places: list[str] = []
    field: list[str] = []
    here: Any = document
    collection = ""
    for step in location:
        try:
            here = here[step]
        except (KeyError, IndexError, TypeError):
            here = None
        if isinstance(step, int) and collection in _KINDS:
            name = here.get("id", here.get("name")) if isinstance(here, Mapping) else None
            places.append(f"{_KINDS[collection]} '{name}'" if isinstance(name, str) else f"{_KINDS[collection]} {step}")
            field = []
        elif step != "[key]" and not (isinstance(step, int) and not collection):  # nor the position of an argument
            field.append(str(step))
        collection = str(step)
    return places, ".".join(field)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
