"""SLO attainment: the share of workflows on time against the SLO scale, a curve a policy."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from workbench.plots.style import COLUMN_IN, INK, MUTED, SMALL_PT, TEXT_PT, log_x, new_axes, policy_colour

__all__ = ["attainment"]

LOG_FROM = 8.0  # ratio of the largest to the smallest scale
_DASHES = ("-", (0, (4, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)))


def attainment(curves: Mapping[str, pd.Series], ax: Axes | None = None, tau: Sequence[float] = (0.95, 0.99)) -> Axes:
    """Draw attainment curves; a dot marks where each reaches a reference share, its ``Req_tau``.

    Policies that share a colour (one policy with several parameters) differ in their dashes.

    Parameters
    ----------
    curves : mapping of str to pandas.Series
        Share of workflows on time, indexed by SLO scale, for each policy: what `Schedule.attainment` returns.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure (``.figure`` of what is returned) if omitted.
    tau : sequence of float
        Reference shares.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        Without a curve, or on an empty one.
    """
    if not curves or any(curve.empty for curve in curves.values()):
        raise ValueError("expected at least one curve, and none that is empty")
    axes = new_axes(COLUMN_IN, 2.5) if ax is None else ax
    low = min(float(curve.index.min()) for curve in curves.values())
    high = max(float(curve.index.max()) for curve in curves.values())
    logarithmic = low > 0 and high / low > LOG_FROM
    margin = (high / low) ** 0.03 if logarithmic else 0.03 * (high - low or 1.0)
    left, right = (low / margin, high * margin) if logarithmic else (low - margin, high + margin)
    if logarithmic:
        log_x(axes, low, high)
    seen: dict[str, int] = {}
    for name, curve in curves.items():
        colour = policy_colour(name)
        dashes = _DASHES[seen.setdefault(colour, 0) % len(_DASHES)]
        seen[colour] += 1
        scale, share = curve.index.to_numpy(dtype=np.float64), curve.to_numpy(dtype=np.float64)
        axes.step([left, *scale, right], [0.0, *share, share[-1]], where="post", color=colour, linestyle=dashes,
                  linewidth=1.3, label=name, clip_on=False)  # fmt: skip
        reached = [(scale[np.argmax(share >= t - 1e-9)], t) for t in tau if share[-1] >= t - 1e-9]
        if reached:
            axes.plot(*zip(*reached, strict=True), "o", color=colour, markersize=4, markeredgecolor="white",
                      markeredgewidth=0.5, label="_req", zorder=3)  # fmt: skip
    for t in sorted(tau):
        axes.axhline(t, color=MUTED, linewidth=0.5, linestyle=(0, (2, 2)), zorder=0)
        place = "bottom" if t == max(tau) else "top"
        axes.annotate(f"{t:.4g}", (1, t), (2, 0), xycoords=("axes fraction", "data"),
                      textcoords="offset points", fontsize=SMALL_PT - 1, color=MUTED, va=place)  # fmt: skip
    axes.set_xlim(left, right)
    axes.set_ylim(0, 1.08)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1.0])
    axes.set_xlabel("SLO scale (completion time / standalone horizon)", fontsize=TEXT_PT)
    axes.set_ylabel("workflows on time", fontsize=TEXT_PT)
    axes.legend(fontsize=SMALL_PT, framealpha=0.8, edgecolor="none", labelcolor=INK, handlelength=1.8)
    return axes
