"""Figures: functions that take schedules or tables and return a matplotlib Figure or Axes.

They use matplotlib's object-oriented interface alone: no display is needed, and no global state changes.
"""

from workbench.plots.attainment import attainment
from workbench.plots.competitive import competitive_ratios
from workbench.plots.gantt import gantt
from workbench.plots.style import policy_colour, workflow_colours

__all__ = ["attainment", "competitive_ratios", "gantt", "policy_colour", "workflow_colours"]
