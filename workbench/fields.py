"""Field types shared by the declarative records, and the configuration that makes them strict."""

from typing import Annotated, Any

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field

__all__ = ["STRICT", "Count", "Fraction", "Name", "Positive", "Seconds", "Size", "Tokens"]

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

MAX_TOKENS = 100_000_000
MAX_SECONDS = 1e9


def _plain(value: Any) -> Any:
    """Return the Python integer of a NumPy one, which strict fields would refuse."""
    return int(value) if isinstance(value, np.integer) else value


Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True), BeforeValidator(_plain)]
Size = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000_000_000, strict=True), BeforeValidator(_plain)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, strict=True)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
