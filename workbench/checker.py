"""Independent checker: every rule of the model, re-derived from the instance's arrays alone.

It shares no code with what makes or measures schedules, so that a mistake there cannot hide itself. A call holds its
true KV demand while it decodes. In the interval model that is a fixed time. Where the schedule's settings say
``decode: batched``, how long depends on what runs beside a call; what is verified is that it takes no less than its own
steps would take alone on the instance, a lower bound. Times may differ by a slack of ``tolerance_s`` plus 1e-13 of
their magnitude, which covers rounding in floating point and nothing else.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from workbench.compiled import CompiledInstance
from workbench.errors import ScheduleError
from workbench.schedule import Schedule

__all__ = ["Kind", "Violation", "check", "violations"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

Kind = Literal[
    "shape",
    "range",
    "release",
    "reveal",
    "precedence",
    "prefill-duration",
    "prefill-overlap",
    "transfer-duration",
    "decode-start",
    "decode-duration",
    "call-size",
    "kv-capacity",
    "lock",
]

RELATIVE_SLACK = 1e-13
NAMED = 5
_PLACES = ("prefill_instance", "decode_instance", "locked_decode")
_TIMES = ("reveal_s", "prefill_start_s", "prefill_end_s", "transfer_end_s", "decode_start_s", "decode_end_s")


@dataclass(frozen=True)
class Violation:
    """A rule of the model that a schedule breaks.

    Attributes
    ----------
    kind : str
        Which rule.
    call : int or None
        Index of the call that breaks it; None where a whole array is unusable.
    message : str
        One line with workflow, call, instance and the numbers.
    """

    kind: Kind
    call: int | None
    message: str


def violations(schedule: Schedule, tolerance_s: float = 1e-9) -> list[Violation]:
    """Return every violation of the model's rules in a schedule; an empty list means that it is valid.

    Arrays that cannot be read (wrong length, not finite, an instance that is not there) are reported alone: the other
    rules have no meaning then.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    tolerance_s : float
        Absolute slack in seconds.
    """
    unusable = list(_shapes(schedule)) or list(_ranges(schedule))
    return unusable or list(_Rules(schedule, tolerance_s).broken())


def check(schedule: Schedule) -> None:
    """Verify a schedule.

    Raises
    ------
    ScheduleError
        If it breaks a rule; the message counts the violations and lists the first few.
    """
    found = violations(schedule)
    if found:
        lines = [f"schedule '{schedule.label}' breaks the model {len(found)} times:"]
        lines += [f"  {violation.kind}: {violation.message}" for violation in found[:NAMED]]
        if len(found) > NAMED:
            lines.append(f"  and {len(found) - NAMED} more")
        raise ScheduleError("\n".join(lines))


def _shapes(schedule: Schedule) -> Iterator[Violation]:
    expected = (schedule.instance.n_calls,)
    for names, kinds, what in ((_PLACES, "iu", "integers"), (_TIMES, "f", "floats")):
        for name in names:
            array = np.asarray(getattr(schedule, name))
            if array.shape != expected or array.dtype.kind not in kinds:
                found = f"{array.dtype} of shape {array.shape}"
                yield Violation("shape", None, f"{name}: expected {what} of shape {expected}, found {found}")
    if _batched(schedule) and (schedule.instance.decode_fixed_s is None or schedule.instance.kv_read_s is None):
        yield Violation("shape", None, "decode is batched, but the instance holds no decode step times")


def _ranges(schedule: Schedule) -> Iterator[Violation]:
    instance = schedule.instance
    sizes = (len(instance.prefill_class), len(instance.decode_class), len(instance.decode_class))
    for name, size, least in zip(_PLACES, sizes, (0, 0, -1), strict=True):
        value = getattr(schedule, name)
        for c in np.flatnonzero((value < least) | (value >= size)).tolist():
            message = f"{instance.call_name(c)}: {name} is {value[c]}, expected {least} to {size - 1}"
            yield Violation("range", c, message)
    for name in _TIMES:
        value = getattr(schedule, name)
        for c in np.flatnonzero(~np.isfinite(value)).tolist():
            yield Violation("range", c, f"{instance.call_name(c)}: {name} is {value[c]}, expected a finite time")


class _Rules:
    """The rules on times, capacities and locks, for a schedule whose arrays are sound."""

    def __init__(self, schedule: Schedule, tolerance_s: float) -> None:
        self.schedule = schedule
        self.instance: CompiledInstance = schedule.instance
        self.tolerance_s = tolerance_s
        self.calls = np.arange(self.instance.n_calls)
        self.prefill_class = self.instance.prefill_class[schedule.prefill_instance]
        self.decode_class = self.instance.decode_class[schedule.decode_instance]
        self.demand = self.instance.input_tokens + self.instance.output_tokens

    def broken(self) -> Iterator[Violation]:
        """Yield the violations, rule by rule in the order of a call's life."""
        yield from self._release()
        yield from self._reveal()
        yield from self._precedence()
        yield from self._prefill_duration()
        yield from self._prefill_overlap()
        yield from self._transfer_duration()
        yield from self._decode_start()
        yield from self._decode_duration()
        yield from self._call_size()
        yield from self._kv_capacity()
        yield from self._lock()

    def _slack(self, time: Floats) -> Floats:
        return self.tolerance_s + RELATIVE_SLACK * np.abs(time)

    def _early(self, time: Floats, earliest: Floats) -> Bools:
        return np.asarray(time < earliest - self._slack(earliest))

    def _differs(self, time: Floats, expected: Floats) -> Bools:
        return np.asarray(np.abs(time - expected) > self._slack(expected))

    def _report(self, kind: Kind, mask: Bools, describe: Callable[[int], str]) -> Iterator[Violation]:
        for c in np.flatnonzero(mask).tolist():
            yield Violation(kind, c, f"{self.instance.call_name(c)}: {describe(c)}")

    def _prefill_name(self, c: int) -> str:
        return self.instance.instance_names[0][int(self.schedule.prefill_instance[c])]

    def _decode_name(self, c: int) -> str:
        return self.instance.instance_names[1][int(self.schedule.decode_instance[c])]

    def _arrival(self) -> Floats:
        return np.repeat(self.instance.arrival_s, np.diff(self.instance.first_call))

    def _edges(self) -> tuple[Ints, Floats]:
        """Return the child of each edge, and when its parent's end plus the tool delay allows that child."""
        child = np.repeat(self.calls, np.diff(self.instance.parent_start))
        return child, self.schedule.decode_end_s[self.instance.parents] + self.instance.tool_delay_s

    def _release(self) -> Iterator[Violation]:
        start, arrival = self.schedule.prefill_start_s, self._arrival()
        return self._report(
            "release",
            self._early(start, arrival),
            lambda c: f"prefill starts at {_s(start[c])}, before the workflow arrives at {_s(arrival[c])}",
        )

    def _reveal(self) -> Iterator[Violation]:
        found, expected = self.schedule.reveal_s, self._arrival()
        child, allowed = self._edges()
        np.maximum.at(expected, child, allowed)
        return self._report(
            "reveal",
            self._differs(found, expected),
            lambda c: f"revealed at {_s(found[c])}, but arrival, parents and tool delays give {_s(expected[c])}",
        )

    def _precedence(self) -> Iterator[Violation]:
        start = self.schedule.prefill_start_s
        child, allowed = self._edges()
        for edge in np.flatnonzero(self._early(start[child], allowed)).tolist():
            c, parent = int(child[edge]), int(self.instance.parents[edge])
            message = (
                f"{self.instance.call_name(c)}: prefill starts at {_s(start[c])}, before {_s(allowed[edge])}, when its "
                f"parent '{self.instance.call_ids[parent]}' has ended ({_s(self.schedule.decode_end_s[parent])}) and "
                f"the tool has run ({_s(self.instance.tool_delay_s[edge])})"
            )
            yield Violation("precedence", c, message)

    def _prefill_duration(self) -> Iterator[Violation]:
        start, end = self.schedule.prefill_start_s, self.schedule.prefill_end_s
        takes = self.instance.prefill_s[self.calls, self.prefill_class]
        return self._report(
            "prefill-duration",
            self._differs(end, start + takes),
            lambda c: (
                f"prefill from {_s(start[c])} to {_s(end[c])} on {self._prefill_name(c)}, where it takes {_s(takes[c])}"
            ),
        )

    def _prefill_overlap(self) -> Iterator[Violation]:
        where, start, end = (
            self.schedule.prefill_instance,
            self.schedule.prefill_start_s,
            self.schedule.prefill_end_s,
        )
        order = np.lexsort((end, start, where))
        before, after = order[:-1], order[1:]
        clash = (where[before] == where[after]) & self._early(start[after], end[before])
        for b, c in zip(before[clash].tolist(), after[clash].tolist(), strict=True):
            message = (
                f"{self.instance.call_name(c)}: prefill starts at {_s(start[c])} on {self._prefill_name(c)}, "
                f"which serves {self.instance.call_name(b)} until {_s(end[b])}"
            )
            yield Violation("prefill-overlap", c, message)

    def _transfer_duration(self) -> Iterator[Violation]:
        start, end = self.schedule.prefill_end_s, self.schedule.transfer_end_s
        takes = self.instance.transfer_s[self.calls, self.prefill_class, self.decode_class]
        free = self.schedule.locked_decode < 0
        wrong = np.where(free, self._early(end, start + takes), self._differs(end, start + takes))
        return self._report(
            "transfer-duration",
            wrong,
            lambda c: (
                f"transfer from {_s(start[c])} to {_s(end[c])}, which takes {_s(takes[c])} "
                f"from {self._prefill_name(c)} to {self._decode_name(c)}"
            ),
        )

    def _decode_start(self) -> Iterator[Violation]:
        start, ready = self.schedule.decode_start_s, self.schedule.transfer_end_s
        return self._report(
            "decode-start",
            self._early(start, ready),
            lambda c: f"decode starts at {_s(start[c])}, before the transfer ends at {_s(ready[c])}",
        )

    def _decode_duration(self) -> Iterator[Violation]:
        if _batched(self.schedule):
            yield from self._batched_decode_duration()
            return
        start, end = self.schedule.decode_start_s, self.schedule.decode_end_s
        takes = self.instance.decode_s[self.calls, self.decode_class]
        yield from self._report(
            "decode-duration",
            self._differs(end, start + takes),
            lambda c: (
                f"decode from {_s(start[c])} to {_s(end[c])} on {self._decode_name(c)}, where it takes {_s(takes[c])}"
            ),
        )

    def _batched_decode_duration(self) -> Iterator[Violation]:
        fixed, read = self.instance.decode_fixed_s, self.instance.kv_read_s
        assert fixed is not None and read is not None
        start, end = self.schedule.decode_start_s, self.schedule.decode_end_s
        steps = np.where(self.instance.output_tokens > 2, self.instance.output_tokens - 1, 1)
        tokens = steps * self.instance.input_tokens + steps * (steps + 1) / 2
        least = steps * fixed[self.decode_class, 1] + read[self.decode_class] * tokens
        return self._report(
            "decode-duration",
            self._early(end, start + least),
            lambda c: (
                f"decode from {_s(start[c])} to {_s(end[c])} on {self._decode_name(c)}, where its {steps[c]} steps "
                f"alone take {_s(least[c])}"
            ),
        )

    def _call_size(self) -> Iterator[Violation]:
        capacity = self.instance.capacity_tokens[self.schedule.decode_instance]
        return self._report(
            "call-size",
            self.demand > capacity,
            lambda c: f"holds {self.demand[c]} KV tokens, more than the {capacity[c]} of {self._decode_name(c)}",
        )

    def _kv_capacity(self) -> Iterator[Violation]:
        """Sum what is resident at every start; at one instant ends come before starts."""
        where, start, end = self.schedule.decode_instance, self.schedule.decode_start_s, self.schedule.decode_end_s
        n = len(self.calls)
        time = np.concatenate([start, end - self._slack(end)])
        starts = np.repeat([1, 0], n)
        order = np.lexsort((starts, time, np.concatenate([where, where])))
        resident = np.empty(2 * n, dtype=np.int64)
        resident[order] = np.cumsum(np.concatenate([self.demand, -self.demand])[order])
        capacity = self.instance.capacity_tokens[where]
        return self._report(
            "kv-capacity",
            (resident[:n] > capacity) & (self.demand <= capacity),
            lambda c: (
                f"decode starts at {_s(start[c])} with {self.demand[c]} KV tokens, which makes {resident[c]} of "
                f"{capacity[c]} on {self._decode_name(c)}"
            ),
        )

    def _lock(self) -> Iterator[Violation]:
        locked, used = self.schedule.locked_decode, self.schedule.decode_instance
        return self._report(
            "lock",
            (locked >= 0) & (locked != used),
            lambda c: f"decodes on {self._decode_name(c)}, but was locked to D{locked[c]} when prefill started",
        )


def _batched(schedule: Schedule) -> bool:
    return bool(schedule.settings.get("decode") == "batched")


def _s(time: float) -> str:
    return f"{time:.15g} s"
