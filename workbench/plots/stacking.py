"""Resident calls of a decode instance as boxes that never overlap and never exceed a limit."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Box", "peak", "stack"]

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(eq=False)
class Box:
    """A call over time, always as high as its demand: at ``bottoms[i]`` from ``times[i]`` to ``times[i + 1]``."""

    height: int
    times: list[float]
    bottoms: list[int]

    def outline(self) -> Floats:
        """Return the (V, 2) corners: along the lower edge and back along the upper one."""
        time = np.repeat(self.times, 2)[1:-1]
        low = np.repeat(self.bottoms, 2).astype(np.float64)
        return np.column_stack([np.concatenate([time, time[::-1]]), np.concatenate([low, low[::-1] + self.height])])


def _order(start: Floats, end: Floats) -> list[tuple[int, bool]]:
    """Return the changes in order of time as (interval, whether it starts); at one instant ends come first."""
    some = np.flatnonzero(end > start)
    starts = np.repeat([True, False], len(some))
    order = np.lexsort((starts, np.concatenate([start[some], end[some]])))
    return list(zip(np.tile(some, 2)[order].tolist(), starts[order].tolist(), strict=True))


def peak(start: Floats, end: Floats, height: Ints) -> int:
    """Return the largest sum of heights at one time."""
    total = highest = 0
    for i, starts in _order(start, end):
        total += int(height[i]) if starts else -int(height[i])
        highest = max(highest, total)
    return highest


def stack(start: Floats, end: Floats, height: Ints, limit: float) -> list[Box]:
    """Return a box for each interval: in the lowest gap that holds it when it starts.

    Where no gap below ``limit`` is high enough although the sum is, all boxes slide down and leave one gap on top.

    Parameters
    ----------
    start, end : (n,) float
        Intervals in seconds.
    height : (n,) int
        Height of each, such as KV tokens.
    limit : float
        No box rises above it as long as the sum of heights does not.
    """
    boxes = [Box(int(height[i]), [float(start[i])], []) for i in range(len(start))]
    resident: list[Box] = []  # from bottom to top
    for i, starts in _order(start, end):
        box = boxes[i]
        if not starts:
            resident.remove(box)
            continue
        place, bottom = _lowest_gap(resident, box.height)
        if bottom + box.height > limit and resident:
            bottom = _slide_down(resident, float(start[i]))
            place = len(resident)
        box.bottoms.append(bottom)
        resident.insert(place, box)
    for box, last in zip(boxes, end.tolist(), strict=True):
        box.times.append(last)
        box.bottoms = box.bottoms or [0]
    return boxes


def _lowest_gap(resident: list[Box], height: int) -> tuple[int, int]:
    """Return the position in the stack and the bottom of the lowest gap of a height."""
    floor = 0
    for place, box in enumerate(resident):
        if box.bottoms[-1] - floor >= height:
            return place, floor
        floor = box.bottoms[-1] + box.height
    return len(resident), floor


def _slide_down(resident: list[Box], now: float) -> int:
    """Close all gaps and return the top."""
    floor = 0
    for box in resident:
        if box.bottoms[-1] != floor:
            if box.times[-1] == now:
                box.bottoms[-1] = floor
            else:
                box.times.append(now)
                box.bottoms.append(floor)
        floor += box.height
    return floor
