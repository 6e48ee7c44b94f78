"""Tests of the real workflows that ship."""

from itertools import pairwise

import numpy as np
import pytest

from workbench.traces import bfcl, read_lengths
from workbench.traces.real import workloads_folder


def test_workflows_are_chains_that_resend_their_history() -> None:
    for workflow in bfcl(800, rate=40).workflows:
        first, *rest = workflow.calls
        assert first.parents == {}
        assert [list(call.parents) for call in rest] == [[call.id] for call in workflow.calls[:-1]]
        assert all(delay == 0 for call in rest for delay in call.parents.values())
        for parent, child in pairwise(workflow.calls):
            # At most the parent's prompt and answer are cached, and a child always adds to the history.
            assert child.cached_prefix_tokens <= parent.input_tokens + parent.output_tokens < child.input_tokens + 1


def test_all_tasks_of_the_benchmark_are_there_once() -> None:
    whole = read_lengths(workloads_folder() / "bfcl_v3_multi_turn.jsonl.gz")
    assert len({workflow.id for workflow in whole}) == 800
    assert {workflow.id for workflow in bfcl(800)} == {workflow.id for workflow in whole}
    assert whole.source


def test_the_draw_and_the_arrivals_repeat_with_their_seed() -> None:
    assert bfcl(30, 10.0, seed=4) == bfcl(30, 10.0, seed=4)
    assert {w.id for w in bfcl(30, 10.0, seed=4)} != {w.id for w in bfcl(30, 10.0, seed=5)}


def test_the_rate_is_that_of_the_arrivals() -> None:
    drawn = [np.array([w.arrival_s for w in bfcl(800, rate=25.0, seed=seed)]) for seed in range(5)]
    assert all((np.diff(arrivals) > 0).all() for arrivals in drawn)
    assert 4000 / sum(arrivals[-1] for arrivals in drawn) == pytest.approx(25.0, rel=0.05)  # 3 standard errors
    gaps = np.concatenate([np.diff(arrivals) for arrivals in drawn])
    assert gaps.std() == pytest.approx(gaps.mean(), rel=0.1)  # a Poisson process, neither even nor in bursts


def test_without_the_cache_only_the_prefix_changes() -> None:
    cached, full = bfcl(20, seed=1), bfcl(20, seed=1, cached_prefix=False)
    assert full == cached.without_cached_prefix()
    assert full != cached
    assert all(call.cached_prefix_tokens == 0 for w in full for call in w.calls)


@pytest.mark.parametrize("number", [0, 801])
def test_more_workflows_than_there_are_cannot_be_drawn(number: int) -> None:
    with pytest.raises(ValueError, match=f"cannot draw {number} of 800 workflows"):
        bfcl(number)
