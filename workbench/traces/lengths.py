"""Lengths files: one workflow a line as JSON, with lengths and structure only.

``{"workflow_id", "source", "arrival_s", "calls": [{"id", "parents": [ids], "input_tokens", "output_tokens",
"tool_delay_s", "cached_prefix_tokens", ...}]}``. ``arrival_s`` may be null or missing (0), likewise ``tool_delay_s``
(unknown; 0) and ``cached_prefix_tokens`` (0). ``tool_delay_s`` is the time from the end of the last parent, so every
parent edge carries it. Other fields describe where a call comes from and are not read.
"""

from pathlib import Path
from typing import Any

import pydantic_core
from pydantic import TypeAdapter, ValidationError

from workbench.errors import InputError
from workbench.files import describe, read_bytes
from workbench.workflow import Workflow, Workload

__all__ = ["read_lengths"]

_ADAPTER = TypeAdapter(Workflow)


def read_lengths(path: str | Path) -> Workload:
    """Read a lengths file, gzipped or not.

    Raises
    ------
    InputError
        One line that names file, line, field and mend.
    """
    workflows: list[Workflow] = []
    source = ""
    for number, line in enumerate(read_bytes(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = pydantic_core.from_json(line, allow_inf_nan=False)
            workflows.append(_workflow(row))
            source = source or str(row.get("source", ""))
        except ValidationError as error:
            raise InputError(f"{path} line {number}: {describe(error, row)}") from None
        except (KeyError, TypeError, AttributeError) as error:
            raise InputError(f"{path} line {number}: missing or malformed field {error}") from None
        except ValueError as error:
            raise InputError(f"{path} line {number}: not valid JSON: {error}") from None
    if not workflows:
        raise InputError(f"{path}: holds no workflow")
    try:
        return Workload(tuple(workflows), source)
    except ValidationError as error:
        raise InputError(f"{path}: {describe(error, {})}") from None


def _workflow(row: dict[str, Any]) -> Workflow:
    return _ADAPTER.validate_python(
        {
            "id": row["workflow_id"],
            "arrival_s": row.get("arrival_s") or 0.0,
            "calls": [
                {
                    "id": call["id"],
                    "input_tokens": call["input_tokens"],
                    "output_tokens": call["output_tokens"],
                    "parents": dict.fromkeys(call["parents"], call.get("tool_delay_s") or 0.0),
                    "cached_prefix_tokens": call.get("cached_prefix_tokens") or 0,
                }
                for call in row["calls"]
            ],
        }
    )
