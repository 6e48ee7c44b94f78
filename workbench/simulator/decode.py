"""How long calls decode: for a fixed time (interval), or a token a step with all that run beside them (batched).

The interval model is the paper's simulator. In the batched model (continuous batching) all calls that run on an
instance advance by one token a step. A step of ``B`` calls with ``K`` resident KV tokens takes
``decode_fixed_s[h, B] + kv_read_s[h] K`` seconds, where a call in its ``k``-th step has ``input_tokens + k`` tokens. A
call takes ``max(1, output_tokens - 1)`` steps, for its first token belongs to prefill, and ends at the end of its last
one. One that is admitted while a step runs joins at the next step boundary; an idle instance begins a step at once.
"""

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from math import ceil, sqrt
from typing import Protocol

from workbench.compiled import CompiledInstance
from workbench.errors import InputError

__all__ = ["DECODE_MODELS", "BatchedDecode", "DecodeModel", "IntervalDecode", "decode_model"]

ScheduleEnd = Callable[[float, int], None]


class DecodeModel(Protocol):
    """When decodes end; calls are known by their index in the instance."""

    def admit(self, c: int, d: int, now: float) -> None:
        """Let a call run on a decode instance, at ``now`` seconds or at the step boundary that follows."""

    def ends(self, c: int, d: int, now: float) -> bool:
        """Return whether a call ends at ``now``, for which an end was scheduled: what came since may have moved it."""


class IntervalDecode:
    """Each call runs for its own fixed time, whatever runs beside it.

    Parameters
    ----------
    instance : CompiledInstance
        What is served.
    schedule : callable
        Called with (time in seconds, call) to schedule an end.
    """

    def __init__(self, instance: CompiledInstance, schedule: ScheduleEnd) -> None:
        self._decode_s = instance.decode_s
        self._decode_class = instance.decode_class
        self._schedule = schedule

    def admit(self, c: int, d: int, now: float) -> None:
        """Let a call run on a decode instance from ``now``, in seconds."""
        self._schedule(now + float(self._decode_s[c, self._decode_class[d]]), c)

    def ends(self, c: int, d: int, now: float) -> bool:
        """Return True: nothing moves an end."""
        return True


class BatchedDecode:
    """Calls run in steps, together; only the next end of each instance is scheduled.

    Parameters
    ----------
    instance : CompiledInstance
        What is served.
    schedule : callable
        Called with (time in seconds, call) to schedule an end.

    Raises
    ------
    InputError
        If the instance holds no step times.
    """

    def __init__(self, instance: CompiledInstance, schedule: ScheduleEnd) -> None:
        if instance.decode_fixed_s is None or instance.kv_read_s is None:
            raise InputError(
                f"instance '{instance.name}' holds no decode step times, which batched decode needs: "
                "give decode_fixed_s and kv_read_s, or use interval decode"
            )
        self._steps = instance.decode_steps.tolist()
        self._input_tokens = instance.input_tokens.tolist()
        fixed, read = instance.decode_fixed_s.tolist(), instance.kv_read_s.tolist()
        self._batches = [_Batch(fixed[h], read[h]) for h in instance.decode_class.tolist()]
        self._due: list[tuple[float, int] | None] = [None] * len(self._batches)
        self._schedule = schedule

    def admit(self, c: int, d: int, now: float) -> None:
        """Let a call run on a decode instance, at ``now`` seconds or at the step boundary that follows."""
        self._batches[d].join(c, self._input_tokens[c], self._steps[c], now)
        self._schedule_next(d)

    def ends(self, c: int, d: int, now: float) -> bool:
        """Return whether this is the end that is due on the instance, and if so take the call out of the batch."""
        if self._due[d] != (now, c):
            return False
        self._batches[d].leave()
        self._schedule_next(d)
        return True

    def _schedule_next(self, d: int) -> None:
        due = self._batches[d].next_end()
        if due is not None and due != self._due[d]:
            self._schedule(*due)
        self._due[d] = due


class _Batch:
    """The calls of one decode instance, on a clock that counts its steps.

    Between two changes of the batch every step has the same calls, so the time of any number of them is a closed form
    and a call is known by the clock at which it ends: O(log n) a change, whatever the number of steps.
    """

    def __init__(self, fixed_s: list[float], kv_read_s: float) -> None:
        self._fixed_s = fixed_s
        self._kv_read_s = kv_read_s
        self._start_s = 0.0  # boundary from which the batch is as it is; it lies ahead while a step runs on to it
        self._clock = 0  # steps until then
        self._size = 0
        self._resident = 0  # KV tokens of the batch before its first step
        self._running: list[tuple[int, int, int]] = []  # clock at the end, call, its KV tokens then; a heap
        self._leaving: deque[int] = deque()  # calls whose last step ends at the boundary

    def join(self, c: int, input_tokens: int, steps: int, now: float) -> None:
        """Add a call at the first step boundary from ``now`` on."""
        if now > self._start_s:
            if self._size:
                self._advance(self._steps_until(now))
            else:
                self._start_s = now
        heappush(self._running, (self._clock + steps, c, input_tokens + steps))
        self._size += 1
        self._resident += input_tokens

    def leave(self) -> None:
        """Take out the call that ends next."""
        if not self._leaving:
            self._advance(self._running[0][0] - self._clock)
        self._leaving.popleft()

    def next_end(self) -> tuple[float, int] | None:
        """Return when the next call ends if none joins, and which; at one boundary in order of call."""
        if self._leaving:
            return self._start_s, self._leaving[0]
        if self._running:
            end, c, _ = self._running[0]
            return self._boundary_s(end - self._clock), c
        return None

    def _boundary_s(self, n: int) -> float:
        """Return when the ``n``-th step of the batch ends; before its ``i``-th it has grown by ``i - 1`` tokens a call.

        ``n fixed + kv_read (n K + B n (n + 1) / 2)`` seconds after its start.
        """
        tokens = n * self._resident + self._size * (n * (n + 1) // 2)
        return self._start_s + (n * self._fixed_s[self._size] + self._kv_read_s * tokens)

    def _steps_until(self, now: float) -> int:
        """Return the least number of steps whose end is not before ``now``: the root of `_boundary_s`, made exact."""
        growth = self._kv_read_s * self._size / 2
        first = self._fixed_s[self._size] + self._kv_read_s * self._resident + growth
        elapsed = now - self._start_s
        n = max(1, ceil(2 * elapsed / (first + sqrt(first * first + 4 * growth * elapsed))))
        while self._boundary_s(n) < now:
            n += 1
        while n > 1 and self._boundary_s(n - 1) >= now:
            n -= 1
        return n

    def _advance(self, n: int) -> None:
        """Move on by ``n`` steps, at most to the next end; the calls that end there are no part of the batch then."""
        self._start_s = self._boundary_s(n)
        self._clock += n
        self._resident += n * self._size
        while self._running and self._running[0][0] == self._clock:
            _, c, tokens = heappop(self._running)
            self._size -= 1
            self._resident -= tokens
            self._leaving.append(c)


DECODE_MODELS: dict[str, Callable[[CompiledInstance, ScheduleEnd], DecodeModel]] = {
    "interval": IntervalDecode,
    "batched": BatchedDecode,
}


def decode_model(name: str, instance: CompiledInstance, schedule: ScheduleEnd) -> DecodeModel:
    """Return the decode model of this name for an instance.

    Raises
    ------
    InputError
        If there is none, or it needs what the instance does not hold.
    """
    if name not in DECODE_MODELS:
        raise InputError(f"decode must be one of {', '.join(DECODE_MODELS)}, got '{name}'")
    return DECODE_MODELS[name](instance, schedule)
