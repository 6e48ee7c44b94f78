"""Colours mean the same thing everywhere, and matplotlib is loaded only to draw."""

import subprocess
import sys

import numpy as np

from workbench.plots import policy_colour, workflow_colours
from workbench.plots.style import _OTHER_POLICIES, POLICY_COLOURS, new_figure


def test_known_policies_have_colours_of_their_own():
    assert {"fcfs", "workflow-fcfs", "llf", "atlas", "hexagent", "optimum"} <= set(POLICY_COLOURS)
    everything = [*POLICY_COLOURS.values(), *_OTHER_POLICIES]
    assert len(set(everything)) == len(everything)


def test_unknown_policy_keeps_its_colour_between_runs():
    code = "from workbench.plots import policy_colour; print(policy_colour('mine:k=3'))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == policy_colour("mine") not in POLICY_COLOURS.values()


def test_workflows_are_told_apart():
    for number in (0, 1, 9, 10, 400):
        colours = workflow_colours(number)
        assert colours.shape == (number, 4)
        assert len(np.unique(colours, axis=0)) >= min(number, 200)
    assert np.array_equal(workflow_colours(3), workflow_colours(8)[:3])


def test_a_notebook_shows_figures():
    assert new_figure(2, 1)._repr_png_().startswith(b"\x89PNG")


def test_drawing_needs_no_pyplot_and_the_package_no_matplotlib():
    code = (
        "import sys, workbench; assert 'matplotlib' not in sys.modules; "
        "import workbench.plots; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
