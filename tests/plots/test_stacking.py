"""Stacked boxes never overlap and stay below the limit as long as their sum does."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from workbench.plots.stacking import peak, stack

INTERVALS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12), st.integers(1, 9)), min_size=1, max_size=25)


@given(INTERVALS)
def test_boxes_fill_at_most_the_peak_and_never_overlap(intervals):
    begin, length, height = (np.array(column) for column in zip(*intervals, strict=True))
    start, end = begin.astype(float), (begin + length).astype(float)
    limit = peak(start, end, height)
    boxes = stack(start, end, height, limit)
    for box, first, last, high in zip(boxes, start, end, height, strict=True):
        assert (box.times[0], box.times[-1], box.height) == (first, last, high)
        assert len(box.times) == len(box.bottoms) + 1
        assert box.outline().shape == (4 * len(box.bottoms), 2)
    for time in np.unique(start) + 0.5:
        here = sorted(
            (box.bottoms[int(np.searchsorted(box.times, time)) - 1], box.height)
            for box in boxes
            if box.times[0] < time < box.times[-1]
        )
        floor = 0
        for bottom, high in here:
            assert bottom >= floor
            floor = bottom + high
        assert floor <= limit


def test_boxes_slide_down_only_where_that_makes_room():
    start, end = np.array([0.0, 0.0, 2.0]), np.array([1.0, 5.0, 4.0])
    roomy = stack(start, end, np.array([3, 3, 4]), 10)
    assert [box.bottoms for box in roomy] == [[0], [3], [6]]
    tight = stack(start, end, np.array([3, 3, 4]), 7)
    assert [(box.times, box.bottoms) for box in tight] == [([0, 1], [0]), ([0, 2, 5], [3, 0]), ([2, 4], [3])]


def test_peak_counts_ends_before_starts():
    assert peak(np.array([0.0, 1.0, 0.5]), np.array([1.0, 2.0, 1.5]), np.array([4, 5, 1])) == 6
