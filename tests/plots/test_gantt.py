"""The chart shows every call once in each pool, where and when it ran."""

from dataclasses import replace
from itertools import pairwise
from time import perf_counter

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_rgba
from plot_schedules import made

from workbench.plots import gantt, workflow_colours
from workbench.plots.style import FAINT


@pytest.fixture(scope="module")
def schedule():
    return made(8).check()


def find(figure, gid):
    return next(c for axes in figure.axes for c in axes.collections if c.get_gid() == gid)


def spans(collection):
    """Return (first, last, lane) of each box, sorted."""
    corners = [path.vertices for path in collection.get_paths()]
    return sorted((c[:, 0].min(), c[:, 0].max(), int(c[:, 1].mean())) for c in corners)


def rectangles(collection):
    """Return the boxes cut at their steps: lane, first, last, low, high."""
    cut = []
    for path in collection.get_paths():
        corners = path.vertices[:-1]
        lower, upper = corners[: len(corners) // 2], corners[len(corners) // 2 :][::-1]
        for k in range(0, len(lower), 2):
            y = sorted((lower[k, 1], upper[k, 1]))
            cut.append((int(np.mean(y)), lower[k, 0], lower[k + 1, 0], *y))
    return cut


def test_one_box_a_call_at_its_times_in_its_lane(schedule):
    figure = gantt(schedule)
    prefill = zip(schedule.prefill_start_s, schedule.prefill_end_s, schedule.prefill_instance + 1, strict=True)
    decode = zip(schedule.decode_start_s, schedule.decode_end_s, schedule.decode_instance, strict=True)
    assert spans(find(figure, "prefill")) == sorted(prefill)
    assert spans(find(figure, "decode")) == sorted(decode)


def test_decode_boxes_are_as_high_as_their_share_and_never_overlap(schedule):
    inst = schedule.instance
    figure = gantt(schedule)
    limits = [segment[0, 1] for segment in find(figure, "capacity").get_segments()]
    scale = (1 - (limits[0] % 1)) / inst.capacity_tokens[0]
    found = rectangles(find(figure, "decode"))
    heights = {round(high - low, 9) for _, _, _, low, high in found}
    assert heights == {round(m * scale, 9) for m in inst.demand_tokens.tolist()}
    for lane, first, last, low, high in found:
        assert limits[lane] - 1e-9 <= low < high <= lane + 1 + 1e-9
        beside = [r for r in found if r[0] == lane and r[1] < last and first < r[2] and r[3] < high - 1e-9]
        assert [r for r in beside if low < r[4] - 1e-9] == [(lane, first, last, low, high)]


def test_lanes_grow_when_little_of_the_capacity_is_used(schedule):
    roomy = replace(schedule, instance=replace(schedule.instance, capacity_tokens=50 * np.full(8, 20_000)))
    figure = gantt(roomy)
    assert not [c for axes in figure.axes for c in axes.collections if c.get_gid() == "capacity"]
    assert figure.axes[1].get_title("right").startswith("lane height")
    assert max(high - low for *_, low, high in rectangles(find(figure, "decode"))) > 0.1


def test_workflows_have_one_colour_in_all_lanes_and_figures(schedule):
    colours = workflow_colours(8)
    for other in (schedule, made(8, n_prefill=2, n_decode=3)):
        figure = gantt(other)
        by_time = {}
        for gid, start in (("prefill", other.prefill_start_s), ("decode", other.decode_start_s)):
            boxes = find(figure, gid)
            for path, colour in zip(boxes.get_paths(), boxes.get_facecolor(), strict=True):
                by_time[gid, path.vertices[:, 0].min()] = colour
            for c, time in enumerate(start.tolist()):
                assert np.allclose(by_time[gid, time], colours[other.instance.workflow[c]])


def test_chosen_workflows_are_in_colour_and_the_others_grey(schedule):
    figure = gantt(schedule, workflows=["w2", "w5"])
    boxes = find(figure, "prefill")
    grey = (boxes.get_facecolor() == to_rgba(FAINT)).all(axis=1)
    assert len(grey) == 80
    assert grey.sum() == 60
    assert not grey[60:].any()  # drawn last
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["w2", "w5"]
    assert len(find(figure, "arrivals").get_segments()) == 2


def test_window_shows_what_it_meets(schedule):
    figure = gantt(schedule, between=(2.0, 4.0))
    assert figure.axes[1].get_xlim() == (2.0, 4.0)
    inside = (schedule.decode_end_s > 2.0) & (schedule.decode_start_s < 4.0)
    assert len(find(figure, "decode").get_paths()) == inside.sum() < 80


def test_a_window_in_which_nothing_runs_is_empty(schedule):
    figure = gantt(schedule, between=(1e3, 1e3 + 1))
    assert not find(figure, "decode").get_paths()
    assert figure._repr_png_()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"workflows": ["nobody"]}, "no workflow 'nobody'"), ({"between": (3.0, 3.0)}, "expected a time span")],
)
def test_bad_options_are_refused(schedule, options, message):
    with pytest.raises(ValueError, match=message):
        gantt(schedule, **options)


@pytest.mark.parametrize(("workflows", "instances"), [(8, 8), (30, 4), (2, 40), (2, 37), (1, 1)])
def test_all_labels_lie_within_the_figure(workflows, instances):
    figure = gantt(made(workflows, n_prefill=instances, n_decode=instances, label="a long label: " + "x" * 40))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = [text for axes in figure.axes for text in [*axes.texts, *axes.get_yticklabels(), axes.yaxis.label]]
    texts += [axes.title for axes in figure.axes] + [
        figure.axes[0].title,
        figure.axes[1].xaxis.label,
        *(t for k in figure.legends for t in k.get_texts()),
    ]
    width, height = canvas.get_width_height()
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= -1 and box.x1 <= width + 1, text.get_text()
        assert box.y0 >= -1 and box.y1 <= height + 1, text.get_text()
    for axes in figure.axes[:2]:
        boxes = sorted((t.get_window_extent() for t in axes.get_yticklabels()), key=lambda box: box.y0)
        assert all(below.y1 <= above.y0 + 2 for below, above in pairwise(boxes))


def test_four_thousand_calls_are_drawn_at_once():
    schedule = made(400)
    began = perf_counter()
    assert gantt(schedule)._repr_png_().startswith(b"\x89PNG")
    assert perf_counter() - began < 5.0
