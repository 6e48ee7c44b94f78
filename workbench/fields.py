"""Field types shared by the declarative records, and the configuration that makes them strict."""

from typing import Annotated

from pydantic import ConfigDict, Field

__all__ = ["STRICT", "Count", "Fraction", "Name", "Positive", "Seconds", "Size", "Tokens"]

STRICT = ConfigDict(extra="forbid", allow_inf_nan=False)

MAX_TOKENS = 100_000_000
MAX_SECONDS = 1e9

Name = Annotated[str, Field(min_length=1, max_length=200, strict=True)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)]
Size = Annotated[int, Field(ge=1, le=1_000_000_000, strict=True)]
Count = Annotated[int, Field(ge=0, le=1_000_000_000_000_000, strict=True)]
Seconds = Annotated[float, Field(ge=0, le=MAX_SECONDS, strict=True)]
Positive = Annotated[float, Field(ge=1e-12, le=1e12, strict=True)]
Fraction = Annotated[float, Field(gt=0, le=1, strict=True)]
