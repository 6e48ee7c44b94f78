"""Planning latency as text."""

import pytest

from workbench.errors import InputError
from workbench.simulator import PlanLatency


@pytest.mark.parametrize(
    ("text", "constant_s", "wall_s", "flight_s"),
    [
        ("zero", 0.0, 9.0, 0.0),
        ("constant:10", 0.01, 9.0, 0.01),
        ("measured", None, 0.5, 0.5),
        ("measured:4", None, 0.5, 2.0),
    ],
)
def test_reads_and_prints(text: str, constant_s: float | None, wall_s: float, flight_s: float) -> None:
    """Each form gives the flight it says, and comes back as text that means the same."""
    latency = PlanLatency.parse(text)
    assert latency.constant_s == constant_s
    assert latency.of(wall_s) == flight_s
    assert PlanLatency.parse(str(latency)) == latency


@pytest.mark.parametrize(
    "text",
    [
        "",
        "zero:1",
        "zero:",
        "constant",
        "constant:",
        "constant:-1",
        "constant:inf",
        "constant:nan",
        "measured:",
        "measured:0",
        "measured:x",
        "soon",
    ],
)
def test_refuses_anything_else(text: str) -> None:
    """What is not a latency is an input error that names it."""
    with pytest.raises(InputError, match="planning latency must be"):
        PlanLatency.parse(text)
