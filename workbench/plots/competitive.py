"""Competitive ratios: how far each policy is from the offline optimum, as proven brackets."""

from math import isfinite, nan, sqrt

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator

from workbench.plots.style import COLUMN_IN, INK, MUTED, SMALL_PT, TEXT_PT, log_x, new_axes, policy_colour

__all__ = ["competitive_ratios"]

CLOSED = 1 + 1e-3  # an upper end within this factor of the lower one closes the bracket
LOG_FROM = 8.0
ROW_IN, FRAME_IN = 0.2, 0.75
_COLUMNS = ("policy", "objective", "lower", "upper")
_OPENING = Path([(1.0, 1.0), (0.0, 1.0), (0.0, -1.0), (1.0, -1.0)])
_CLOSING = Path([(-1.0, 1.0), (0.0, 1.0), (0.0, -1.0), (-1.0, -1.0)])


def competitive_ratios(table: pd.DataFrame, ax: Axes | None = None) -> Axes:
    """Draw a horizontal bracket for each policy and objective, with its numbers on the right.

    An open bracket is a bar between two square brackets, however narrow it is; a closed one (ends within a factor of
    1.001) is a filled diamond. An end that is not known (NaN, or infinite above) has an arrow instead.

    Parameters
    ----------
    table : pandas.DataFrame
        Columns ``policy``, ``objective``, ``lower`` (policy / upper bound of the optimum) and ``upper`` (policy / lower
        bound), one row for each policy and objective. Rows are drawn from top to bottom.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure (``.figure`` of what is returned) if omitted.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        On a missing column, an empty table, or a bracket whose ends are in the wrong order or not positive.
    """
    rows = _rows(table)
    objectives = list(dict.fromkeys(objective for _, objective, _, _ in rows))
    policies = list(dict.fromkeys(policy for policy, _, _, _ in rows))
    axes = new_axes(COLUMN_IN, FRAME_IN + ROW_IN * (len(rows) + 0.5 * len(policies))) if ax is None else ax
    ends = [end for row in rows for end in row[2:] if isfinite(end)] + [1.0]
    low, high = min(ends), max(ends)
    logarithmic = high / low > LOG_FROM
    if logarithmic:
        log_x(axes, low, high)
        left, right = low / (high / low) ** 0.06, high * (high / low) ** 0.06
    else:
        margin = 0.06 * (high - low or 1.0)
        left, right = low - margin, high + margin
        axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.axvline(1.0, color=MUTED, linewidth=0.6, linestyle=(0, (2, 2)), zorder=0)
    y, ticks = 0.0, []
    for policy in policies:
        own = [row for row in rows if row[0] == policy]
        ticks.append(y + (len(own) - 1) / 2)
        for _, objective, lower, upper in own:
            _bracket(axes, y, (lower, upper), (left, right), policy_colour(policy))
            note = _numbers(lower, upper) + (f"  {objective}" if len(objectives) > 1 else "")
            axes.annotate(note, (1, y), (8, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                          fontsize=SMALL_PT, color=INK, va="center", annotation_clip=False)  # fmt: skip
            y += 1.0
        y += 0.5
    axes.set_xlim(left, right)
    axes.set_ylim(y - 0.8, -0.7)
    axes.set_yticks(ticks, policies)
    axes.tick_params(axis="y", length=0)
    what = f"{objectives[0]}: " if len(objectives) == 1 else ""
    axes.set_xlabel(f"{what}policy / offline optimum", fontsize=TEXT_PT)
    return axes


def _rows(table: pd.DataFrame) -> list[tuple[str, str, float, float]]:
    missing = [column for column in _COLUMNS if column not in table.columns]
    if missing or table.empty:
        raise ValueError(
            f"expected rows with the columns {', '.join(_COLUMNS)}; missing: {', '.join(missing) or 'rows'}"
        )
    rows = []
    for policy, objective, lower, upper in table[list(_COLUMNS)].itertuples(index=False, name=None):
        low = nan if pd.isna(lower) else float(lower)
        high = nan if pd.isna(upper) or not isfinite(upper) else float(upper)
        if low <= 0 or high <= 0 or low > high * (1 + 1e-9):
            raise ValueError(f"{policy}, {objective}: expected 0 < lower <= upper, got {lower} and {upper}")
        rows.append((str(policy), str(objective), low, high))
    return rows


def _bracket(axes: Axes, y: float, ends: tuple[float, float], edges: tuple[float, float], colour: str) -> None:
    lower, upper = ends
    if upper <= lower * CLOSED:
        axes.plot([sqrt(lower * upper)], [y], "D", color=colour, markersize=5, gid="closed")
        return
    start = lower if isfinite(lower) else edges[0]
    stop = upper if isfinite(upper) else edges[1]
    axes.plot([start, stop], [y, y], color=colour, linewidth=4, alpha=0.35, solid_capstyle="butt", gid="open")
    caps = ((start, _OPENING if isfinite(lower) else "<"), (stop, _CLOSING if isfinite(upper) else ">"))
    for x, marker in caps:
        axes.plot([x], [y], marker=marker, color=colour, markersize=8, fillstyle="none", markeredgewidth=1.2,
                  clip_on=False, gid="cap")  # fmt: skip


def _numbers(lower: float, upper: float) -> str:
    """Return the ends with as many decimals as tell them apart."""
    if upper <= lower * CLOSED:
        return f"{sqrt(lower * upper):.3f}"
    if not (isfinite(lower) and isfinite(upper)):
        return f"{lower:.2f} or more" if isfinite(lower) else f"{upper:.2f} or less" if isfinite(upper) else "not known"
    decimals = next(d for d in range(2, 12) if f"{lower:.{d}f}" != f"{upper:.{d}f}")
    return f"{lower:.{decimals}f} to {upper:.{decimals}f}"
