"""How long a plan takes to compute: until it lands, serving goes on without it (sections 4.3 and 5.2 of the paper)."""

from dataclasses import dataclass
from math import inf

from workbench.errors import InputError

__all__ = ["PlanLatency"]


@dataclass(frozen=True)
class PlanLatency:
    """Planning latency.

    Attributes
    ----------
    constant_s : float or None
        Seconds that every plan takes; None for ``scale`` times its measured wall-clock time.
    scale : float
        Factor on the measured time. A measured run is not reproducible.
    """

    constant_s: float | None = 0.0
    scale: float = 1.0

    @classmethod
    def parse(cls, text: "str | PlanLatency") -> "PlanLatency":
        """Read ``zero``, ``constant:MS`` or ``measured``, optionally ``measured:FACTOR``.

        Raises
        ------
        InputError
            On anything else.

        Examples
        --------
        >>> PlanLatency.parse("constant:10").constant_s
        0.01
        """
        if isinstance(text, PlanLatency):
            return text
        kind, _, number = text.partition(":")
        try:
            value = float(number) if number else None
        except ValueError:
            value = -1.0
        if kind == "zero" and value is None and ":" not in text:
            return cls()
        if kind == "constant" and value is not None and 0 <= value < inf:
            return cls(constant_s=value / 1e3)
        if kind == "measured" and (value is not None or ":" not in text) and (value is None or 0 < value < inf):
            return cls(constant_s=None, scale=1.0 if value is None else value)
        raise InputError(f"planning latency must be zero, constant:MS, measured or measured:FACTOR, got '{text}'")

    def of(self, wall_s: float) -> float:
        """Return how long a plan that took ``wall_s`` seconds to compute is in flight, in seconds."""
        return self.scale * wall_s if self.constant_s is None else self.constant_s

    def __str__(self) -> str:
        if self.constant_s is None:
            return f"measured:{self.scale:g}"
        return f"constant:{1e3 * self.constant_s:g}" if self.constant_s else "zero"
