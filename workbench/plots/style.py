"""What figures share: sizes for a two-column paper, and colours that mean the same thing everywhere."""

from collections.abc import Sequence
from io import BytesIO
from zlib import crc32

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgba
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
from numpy.typing import NDArray

__all__ = ["COLUMN_IN", "PAGE_IN", "policy_colour", "workflow_colours"]

COLUMN_IN, PAGE_IN = 3.4, 7.1
SMALL_PT, TEXT_PT = 6.5, 8.0
INK, MUTED, FAINT = "#222222", "#777777", "#d9d9d9"

POLICY_COLOURS = {  # Okabe and Ito's palette, then Tol's muted one
    "optimum": "#000000",
    "hexagent": "#d55e00",
    "fcfs": "#56b4e9",
    "workflow-fcfs": "#0072b2",
    "llf": "#009e73",
    "atlas": "#cc79a7",
    "plas": "#882255",
    "heft": "#e69f00",
    "fastserve": "#999933",
    "hermes": "#332288",
    "parrot": "#44aa99",
    "kairos": "#aa4499",
}
_OTHER_POLICIES = ("#117733", "#cc6677", "#7a5c3e", "#5d6d7e", "#b8860b", "#6a3d9a")
_FEW_WORKFLOWS = (
    "#cc6677", "#332288", "#ddcc77", "#117733", "#88ccee", "#882255", "#44aa99", "#999933", "#aa4499",
)  # fmt: skip
_MANY_WORKFLOWS = "viridis"


class InlineFigure(Figure):
    """A figure that a notebook shows when it is the last value of a cell."""

    def _repr_png_(self) -> bytes:
        stream = BytesIO()
        self.savefig(stream, format="png", dpi=150)
        return stream.getvalue()


def new_figure(width_in: float, height_in: float) -> Figure:
    """Return an empty figure in which labels make room for themselves."""
    return InlineFigure(figsize=(width_in, height_in), layout="constrained")


def new_axes(width_in: float, height_in: float) -> Axes:
    """Return the one axes of a new figure."""
    axes: Axes = new_figure(width_in, height_in).subplots()
    tidy(axes)
    return axes


def tidy(axes: Axes) -> None:
    """Make an axes of ours quiet: small ticks, no frame above or to the right."""
    axes.tick_params(labelsize=SMALL_PT, width=0.6, length=2.5, colors=INK)
    axes.xaxis.label.set_fontsize(TEXT_PT)
    axes.yaxis.label.set_fontsize(TEXT_PT)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_linewidth(0.6)


def log_x(axes: Axes, low: float, high: float) -> None:
    """Make the x axis logarithmic, with plain numbers."""
    axes.set_xscale("log")
    decades = np.log10(high / low)
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if decades <= 2.5 else (1.0,)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())


def policy_colour(label: str) -> str:
    """Return the colour of a policy, the same in every figure; parameters after a colon do not change it.

    Examples
    --------
    >>> policy_colour("llf:alpha=3") == policy_colour("llf") != policy_colour("fcfs")
    True
    """
    name = label.split(":")[0]
    return POLICY_COLOURS.get(name) or _OTHER_POLICIES[crc32(name.encode()) % len(_OTHER_POLICIES)]


def workflow_colours(number: int) -> NDArray[np.float64]:
    """Return a colour for each workflow in order of arrival, as (number, 4) RGBA.

    Up to nine are told apart by hue; more follow a scale from the first to the last.
    """
    if number <= len(_FEW_WORKFLOWS):
        return np.array([to_rgba(colour) for colour in _FEW_WORKFLOWS[:number]]).reshape(number, 4)
    return np.asarray(matplotlib.colormaps[_MANY_WORKFLOWS](np.arange(number) / (number - 1)))


def workflow_key(figure: Figure, axes: Sequence[Axes], names: Sequence[str], colours: NDArray[np.float64]) -> None:
    """Explain the colours of workflows: by name while they are few, else by a scale."""
    if len(names) <= len(_FEW_WORKFLOWS):
        patches = [Patch(color=colour, label=name) for name, colour in zip(names, colours, strict=True)]
        widest_in = 0.4 + 0.055 * max(map(len, names), default=0)
        columns = max(1, min(len(names), int(figure.get_figwidth() / widest_in)))
        figure.legend(handles=patches, loc="outside lower center", ncols=columns, fontsize=SMALL_PT, frameon=False,
                      handlelength=1.0, handleheight=0.8, columnspacing=1.2)  # fmt: skip
        return
    scale = ScalarMappable(Normalize(1, len(names)), _MANY_WORKFLOWS)
    bar = figure.colorbar(scale, ax=list(axes), location="bottom", aspect=60, shrink=0.5, pad=0.01)
    bar.set_label("workflow, in order of arrival", fontsize=SMALL_PT)
    bar.ax.tick_params(labelsize=SMALL_PT, width=0.6, length=2.0)
    bar.outline.set_visible(False)
