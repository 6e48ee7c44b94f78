"""Brackets are drawn from end to end, and only closed ones as a point."""

import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from workbench.plots import competitive_ratios, policy_colour


def table(*rows) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["policy", "objective", "lower", "upper"])


def drawn(axes, gid):
    return [found for found in axes.lines if found.get_gid() == gid]


def notes(axes):
    return [text.get_text() for text in axes.texts]


def test_open_bracket_reaches_from_end_to_end():
    axes = competitive_ratios(table(("fcfs", "makespan", 1.2, 1.5), ("llf", "makespan", 1.1, 1.4)))
    assert [list(bar.get_xdata()) for bar in drawn(axes, "open")] == [[1.2, 1.5], [1.1, 1.4]]
    assert [list(cap.get_xdata()) for cap in drawn(axes, "cap")] == [[1.2], [1.5], [1.1], [1.4]]
    assert [bar.get_color() for bar in drawn(axes, "open")] == [policy_colour("fcfs"), policy_colour("llf")]
    assert notes(axes) == ["1.20 to 1.50", "1.10 to 1.40"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fcfs", "llf"]
    assert axes.get_xlabel() == "makespan: policy / offline optimum"


def test_narrow_open_bracket_is_not_a_point_and_a_closed_one_is():
    axes = competitive_ratios(table(("fcfs", "makespan", 1.2, 1.202), ("llf", "makespan", 1.1, 1.1005)))
    (bar,), (first, last), (point,) = drawn(axes, "open"), drawn(axes, "cap"), drawn(axes, "closed")
    assert list(bar.get_xdata()) == [1.2, 1.202]
    assert first.get_fillstyle() == last.get_fillstyle() == "none"
    assert first.get_markersize() > point.get_markersize()
    assert point.get_marker() == "D"
    assert notes(axes) == ["1.200 to 1.202", "1.100"]


@pytest.mark.parametrize(
    ("lower", "upper", "note"),
    [(1.2, float("inf"), "1.20 or more"), (1.2, float("nan"), "1.20 or more"), (float("nan"), 1.3, "1.30 or less")],
)
def test_unknown_end_reaches_to_the_edge(lower, upper, note):
    axes = competitive_ratios(table(("fcfs", "makespan", lower, upper), ("llf", "makespan", 1.0, 1.5)))
    assert notes(axes)[0] == note
    bar = drawn(axes, "open")[0].get_xdata()
    assert bar[0] == (1.2 if note.endswith("more") else axes.get_xlim()[0])
    assert bar[1] == (axes.get_xlim()[1] if note.endswith("more") else 1.3)


def test_objectives_are_rows_of_their_policy():
    axes = competitive_ratios(
        table(("fcfs", "makespan", 1.2, 1.5), ("llf", "alpha", 1.1, 1.4), ("fcfs", "alpha", 2, 40))
    )
    assert notes(axes) == ["1.20 to 1.50  makespan", "2.00 to 40.00  alpha", "1.10 to 1.40  alpha"]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fcfs", "llf"]
    assert axes.get_xscale() == "log"


def test_labels_lie_within_the_figure():
    axes = competitive_ratios(table(("workflow-fcfs", "alpha_0.95", 1.2, 1.5), ("llf", "makespan", 1.1, float("inf"))))
    canvas = FigureCanvasAgg(axes.figure)
    canvas.draw()
    for text in [*axes.texts, *axes.get_yticklabels(), axes.xaxis.label]:
        box = text.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= canvas.get_width_height()[0] + 1


def test_draws_where_it_is_told():
    axes = Figure().subplots()
    assert competitive_ratios(table(("fcfs", "makespan", 1.2, 1.5)), ax=axes) is axes


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (table(), "missing: rows"),
        (table(("fcfs", "makespan", 1.2, 1.5)).drop(columns="upper"), "missing: upper"),
        (table(("fcfs", "makespan", 1.5, 1.2)), "0 < lower <= upper"),
        (table(("fcfs", "makespan", 0.0, 1.2)), "0 < lower <= upper"),
    ],
)
def test_bad_tables_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        competitive_ratios(rows)
