"""Gantt chart of a schedule: a lane for each instance, calls coloured by workflow."""

from collections.abc import Sequence
from itertools import groupby
from math import ceil
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from workbench.plots.stacking import peak, stack
from workbench.plots.style import (
    FAINT,
    INK,
    MUTED,
    PAGE_IN,
    SMALL_PT,
    TEXT_PT,
    new_figure,
    tidy,
    workflow_colours,
    workflow_key,
)
from workbench.schedule import Schedule

__all__ = ["gantt"]

PREFILL_LANE_IN, DECODE_LANE_IN = 0.14, 0.34
FRAME_IN = 1.1  # title, time axis and key
TALLEST_IN = 9.3
GAP = 0.12  # between lanes, as a share of a lane
FULL_SCALE_FROM = 0.5  # below this peak share of the capacity, decode lanes are enlarged
ENLARGED_ROOM = 1.2  # height of an enlarged lane over the largest share in view: with room to spare, few boxes slide
OUTLINED_BOXES = 700  # with more boxes than this, outlines would hide the colours


def gantt(
    schedule: Schedule,
    *,
    workflows: Sequence[str] | None = None,
    between: tuple[float, float] | None = None,
    title: str | None = None,
    width_in: float = PAGE_IN,
    height_in: float | None = None,
) -> Figure:
    """Draw a schedule: prefill instances on top, decode instances with their KV cache below.

    In a decode lane each call is a box as high as its share of the KV capacity. Boxes never overlap; they slide down
    where that makes room for the next call. A lane is as high as the capacity (the dashed line), or, if no instance
    fills half of it, as high as the share of it that is stated. Ticks in the topmost lane are arrivals. The numbers
    on the right are of the time in view.

    Parameters
    ----------
    schedule : Schedule
        The schedule.
    workflows : sequence of str, optional
        Ids of the workflows to colour; the others are grey. All if omitted.
    between : tuple of float, optional
        First and last second to show. From the first arrival to the makespan if omitted.
    title : str, optional
        The schedule's label if omitted.
    width_in, height_in : float
        Size in inches; the height follows from the number of instances if omitted.

    Returns
    -------
    matplotlib.figure.Figure
        With two axes: prefill and decode.

    Raises
    ------
    ValueError
        On an unknown workflow or an empty time span.
    """
    view = _View(schedule, workflows, between)
    n_prefill, n_decode = len(schedule.instance.prefill_class), len(schedule.instance.decode_class)
    heights = (PREFILL_LANE_IN * (n_prefill + 1), DECODE_LANE_IN * n_decode)
    height_in = height_in or min(FRAME_IN + sum(heights), TALLEST_IN)
    figure = new_figure(width_in, height_in)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=heights)
    scale = (height_in - FRAME_IN) / sum(heights)
    _draw_prefill(top, view, scale * PREFILL_LANE_IN)
    _draw_decode(bottom, view, scale * DECODE_LANE_IN)
    bottom.set_xlim(view.begin, view.end)
    bottom.set_xlabel("time (s)", fontsize=TEXT_PT)
    bottom.xaxis.set_major_locator(MaxNLocator(9))
    top.tick_params(bottom=False, labelbottom=False)
    top.set_title(schedule.label if title is None else title, fontsize=TEXT_PT, loc="left", color=INK)
    workflow_key(figure, (top, bottom), view.names, view.colours)
    return figure


class _View:
    """What of a schedule is shown, and in which colours."""

    def __init__(
        self, schedule: Schedule, workflows: Sequence[str] | None, between: tuple[float, float] | None
    ) -> None:
        instance = schedule.instance
        self.schedule = schedule
        ids = instance.workflow_ids
        unknown = sorted(set(workflows or ()) - set(ids))
        if unknown:
            raise ValueError(f"the schedule has no workflow '{unknown[0]}'")
        wanted = set(ids if workflows is None else workflows)
        self.shown = np.array([w for w, name in enumerate(ids) if name in wanted], dtype=np.int64)
        self.begin, self.end = between or (float(instance.arrival_s.min()), schedule.makespan_s)
        if not self.begin < self.end:
            raise ValueError(f"expected a time span, got {self.begin} to {self.end} s")
        order = np.argsort(instance.arrival_s[self.shown], kind="stable")
        self.shown = self.shown[order]
        self.colours = workflow_colours(len(self.shown))
        self.names = [ids[w] for w in self.shown]
        self._of_workflow = np.tile(to_rgba(FAINT), (len(ids), 1))
        self._of_workflow[self.shown] = self.colours

    def within(self, start: NDArray[np.float64], end: NDArray[np.float64]) -> NDArray[np.int64]:
        """Return the calls with an interval in view, those in colour last, so that grey ones do not hide them."""
        calls = np.flatnonzero((end > self.begin) & (start < self.end))
        in_colour = np.isin(self.schedule.instance.workflow[calls], self.shown)
        return calls[np.argsort(in_colour, kind="stable")]

    def boxes(self, calls: NDArray[np.int64], outlines: Any, gid: str) -> PolyCollection:
        """Return outlines in the colours of their workflows."""
        line = 0.3 if len(calls) <= OUTLINED_BOXES else 0.0
        colours = self._of_workflow[self.schedule.instance.workflow[calls]]
        edges = colours * (0.55, 0.55, 0.55, 1.0) if line else "none"  # darker, so that no box is too narrow to be seen
        return PolyCollection(outlines, facecolors=colours, edgecolors=edges, linewidths=line, gid=gid)


def _draw_prefill(axes: Axes, view: _View, lane_in: float) -> None:
    schedule, instance = view.schedule, view.schedule.instance
    start, end = schedule.prefill_start_s, schedule.prefill_end_s
    calls = view.within(start, end)
    lane = schedule.prefill_instance[calls] + 1
    low, high = lane + GAP / 2, lane + 1 - GAP / 2
    corners = [(start[calls], low), (end[calls], low), (end[calls], high), (start[calls], high)]
    axes.add_collection(view.boxes(calls, np.stack([np.column_stack(corner) for corner in corners], axis=1), "prefill"))
    ticks = [[(time, GAP / 2), (time, 1 - GAP / 2)] for time in instance.arrival_s[view.shown]]
    axes.add_collection(LineCollection(ticks, colors=view.colours, linewidths=1.0, gid="arrivals"))
    axes.set_ylim(len(instance.prefill_class) + 1, 0)
    inside = np.clip(end[calls], view.begin, view.end) - np.clip(start[calls], view.begin, view.end)
    busy = np.bincount(lane - 1, weights=inside, minlength=len(instance.prefill_class)) / (view.end - view.begin)
    notes = [f"{share:.0%} busy" if share else "not in use" for share in busy]
    _name_lanes(axes, instance.instance_names[0], notes, lane_in, has_arrivals=True)
    _frame(axes, "prefill")


def _draw_decode(axes: Axes, view: _View, lane_in: float) -> None:
    schedule, instance = view.schedule, view.schedule.instance
    start, end, capacity = schedule.decode_start_s, schedule.decode_end_s, instance.capacity_tokens
    calls = view.within(start, end)
    on = [calls[schedule.decode_instance[calls] == d] for d in range(len(capacity))]
    peaks = np.array([peak(start[c], end[c], instance.demand_tokens[c]) for c in on])
    share = float((peaks / capacity).max())
    top = ENLARGED_ROOM * share if 0 < share < FULL_SCALE_FROM else max(share, 1.0)
    outlines = []
    for d, c in enumerate(on):
        scale = (1 - GAP) / (top * capacity[d])
        for box in stack(start[c], end[c], instance.demand_tokens[c], top * capacity[d]):
            outline = box.outline()
            outline[:, 1] = d + 1 - outline[:, 1] * scale
            outlines.append(outline)
    axes.add_collection(view.boxes(np.concatenate(on), outlines, "decode"))
    span = (view.begin, view.end)
    floors = [[(x, d + 1) for x in span] for d in range(len(capacity))]
    axes.add_collection(LineCollection(floors, colors=MUTED, linewidths=0.4, gid="floors"))
    if top >= 1:
        limits = [[(x, d + 1 - (1 - GAP) / top) for x in span] for d in range(len(capacity))]
        axes.add_collection(LineCollection(limits, colors=INK, linewidths=0.5, linestyles="--", gid="capacity"))
    axes.set_ylim(len(capacity), 0)
    notes = [
        f"peak {p / c:.0%} of {_tokens(c)}" if p else "not in use"
        for p, c in zip(peaks.tolist(), capacity.tolist(), strict=True)
    ]
    _name_lanes(axes, instance.instance_names[1], notes, lane_in)
    _frame(axes, "decode")
    if top < 1:
        axes.set_title(f"lane height: {top:.1%} of KV capacity", fontsize=SMALL_PT, loc="right", color=MUTED, pad=1)


def _name_lanes(
    axes: Axes, names: Sequence[str], notes: Sequence[str], lane_in: float, has_arrivals: bool = False
) -> None:
    """Name lanes on the left, with the class at the first of each run of equals, and put notes on the right."""
    every = max(1, ceil(1.2 * SMALL_PT / (72 * lane_in)))  # lanes between labels, so that they do not touch
    above = int(has_arrivals)
    labels = {0.5: "arrivals"} if has_arrivals and every == 1 else {}
    for kind, run in groupby(enumerate(names), lambda item: item[1].partition(" ")[2]):
        lanes = list(run)
        for k, (lane, name) in enumerate(lanes):
            if k == 0 or (k % every == 0 and len(lanes) - k >= every):
                y, short = above + lane + 0.5, name.partition(" ")[0]
                labels[y] = short if k else f"{kind}  {short}"
                axes.text(
                    1.005, y, notes[lane], transform=axes.get_yaxis_transform(),
                    fontsize=SMALL_PT - 1, color=MUTED, va="center", ha="left",
                )  # fmt: skip
    axes.set_yticks(list(labels), list(labels.values()))


def _frame(axes: Axes, name: str) -> None:
    tidy(axes)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylabel(name, fontsize=TEXT_PT)
    axes.grid(axis="x", color=FAINT, linewidth=0.4)
    axes.set_axisbelow(True)


def _tokens(number: int) -> str:
    return f"{number / 1e3:.0f}k" if number >= 10_000 else str(number)
