"""Attainment curves are steps in fixed colours, with their Req marked."""

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from workbench import metrics
from workbench.plots import attainment, policy_colour


def curve(*ratios) -> pd.Series:
    return metrics.attainment(ratios)


def line(axes, name):
    return next(found for found in axes.lines if found.get_label() == name)


def test_curves_step_from_nothing_to_all():
    axes = attainment({"fcfs": curve(1.0, 2.0, 2.0, 3.0), "llf": curve(1.5, 4.0)})
    fcfs = line(axes, "fcfs")
    assert fcfs.get_drawstyle() == "steps-post"
    assert fcfs.get_xdata()[1:-1].tolist() == [1.0, 2.0, 3.0]
    assert fcfs.get_ydata().tolist() == [0.0, 0.25, 0.75, 1.0, 1.0]
    assert (fcfs.get_xdata()[0], fcfs.get_xdata()[-1]) == axes.get_xlim()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["fcfs", "llf"]
    assert axes.get_xscale() == "linear"


def test_dots_stand_at_req():
    ratios = np.random.default_rng(0).uniform(1, 5, 200)
    axes = attainment({"fcfs": curve(*ratios)}, tau=(0.5, 0.95))
    dots = next(found for found in axes.lines if found.get_marker() == "o")
    assert dots.get_xdata().tolist() == [metrics.req(ratios, 0.5), metrics.req(ratios, 0.95)]
    assert [text.get_text() for text in axes.texts] == ["0.5", "0.95"]


def test_policies_keep_their_colour_and_variants_differ_in_dashes():
    both = attainment({"llf": curve(1.0, 2.0), "llf:alpha=3": curve(1.0, 3.0)})
    alone = attainment({"fcfs": curve(1.0), "llf:alpha=3": curve(1.0, 3.0)})
    colours = {line(both, "llf").get_color(), line(both, "llf:alpha=3").get_color(), policy_colour("llf")}
    assert colours == {line(alone, "llf:alpha=3").get_color()}
    assert line(both, "llf").get_linestyle() != line(both, "llf:alpha=3").get_linestyle()


def test_wide_spread_makes_the_scale_logarithmic():
    axes = attainment({"fcfs": curve(1.0, 90.0)})
    assert axes.get_xscale() == "log"
    axes.figure.draw_without_rendering()
    assert "10" in [text.get_text() for text in axes.get_xticklabels()]


def test_draws_where_it_is_told():
    axes = Figure().subplots()
    assert attainment({"fcfs": curve(1.0, 2.0)}, ax=axes) is axes


def test_one_ratio_is_enough():
    attainment({"fcfs": curve(1.0)}).figure.draw_without_rendering()


@pytest.mark.parametrize("curves", [{}, {"fcfs": pd.Series(dtype=float)}])
def test_nothing_to_draw_is_refused(curves):
    with pytest.raises(ValueError, match="at least one curve"):
        attainment(curves)
