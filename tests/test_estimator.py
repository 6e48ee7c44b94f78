"""Estimates and their errors."""

import numpy as np
import pytest

import workbench as wb
from workbench import CompiledInstance, EstimateError, InputError
from workbench.estimator import Estimator


def many_calls(calls: int = 4000) -> CompiledInstance:
    """Return workflows of two calls each on two prefill and three decode classes."""
    ones = np.ones
    return CompiledInstance.from_durations(
        first_call=np.arange(0, calls + 1, 2),
        prefill_s=2 * ones((calls, 2)),
        decode_s=3 * ones((calls, 3)),
        prefill_class=[0, 1],
        decode_class=[0, 1, 2],
    )


def test_without_error_the_estimates_are_the_durations() -> None:
    """No error and level 0 give the instance's arrays."""
    inst = many_calls(4)
    for error in (None, EstimateError()):
        estimator = Estimator.of(inst, error)
        assert (estimator.prefill_s == inst.prefill_s).all()
        assert (estimator.decode_s == inst.predicted_decode_s).all()


@pytest.mark.parametrize(
    ("level", "low", "high"), [(0.1, 0.9, 1.1), (0.5, 0.5, 1.5), (1.0, 0.5, 2.0), (3.0, 0.25, 4.0)]
)
def test_factors_are_the_two_that_are_stated_and_equally_frequent(level: float, low: float, high: float) -> None:
    """Every estimate is off by one of both factors, each in half of the cases within five standard errors."""
    estimator = Estimator.of(many_calls(), EstimateError(level, seed=7))
    for factors in (estimator.prefill_s / 2, estimator.decode_s / 3):
        assert np.isclose(factors, low).sum() + np.isclose(factors, high).sum() == factors.size
        assert abs(np.isclose(factors, high).mean() - 0.5) < 5 * 0.5 / np.sqrt(factors.size)


def test_signs_differ_by_class_stage_call_and_seed() -> None:
    """Columns, stages, neighbours and seeds agree in about half of the cases: none follows another."""
    first, second = (Estimator.of(many_calls(), EstimateError(0.2, seed)) for seed in (0, 1))
    up = first.prefill_s > 2
    pairs = [
        (up[:, 0], up[:, 1]),
        (up[:, 0], first.decode_s[:, 0] > 3),
        (up[:-1, 0], up[1:, 0]),
        (up[:, 0], second.prefill_s[:, 0] > 2),
    ]
    for a, b in pairs:
        assert abs((a == b).mean() - 0.5) < 0.05


def test_an_error_does_not_depend_on_other_calls() -> None:
    """The estimates of the first workflows are the same whether or not others follow."""
    error = EstimateError(0.3, seed=5)
    assert (Estimator.of(many_calls(40), error).decode_s == Estimator.of(many_calls(400), error).decode_s[:40]).all()


def test_bias_is_a_factor_on_one_class() -> None:
    """A bias of 1.5 on one decode class touches nothing else."""
    estimator = Estimator.of(many_calls(2), EstimateError(bias={"D-class1": 1.5}))
    assert estimator.decode_s[0].tolist() == [3.0, 4.5, 3.0]
    assert estimator.prefill_s[0].tolist() == [2.0, 2.0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: EstimateError(-0.1), "at least 0"),
        (lambda: EstimateError(float("nan")), "at least 0"),
        (lambda: EstimateError(bias={"x": 0.0}), "'x' must be above 0"),
        (lambda: Estimator.of(many_calls(2), EstimateError(bias={"nowhere": 2.0})), "no such deployment class"),
    ],
)
def test_refuses_what_makes_no_sense(make, message: str) -> None:
    """Each mistake is an input error that names itself."""
    with pytest.raises(InputError, match=message):
        make()


def test_true_durations_are_untouched_and_every_policy_still_makes_feasible_schedules() -> None:
    """With 80 % error the schedules pass the checker, which uses true durations, and differ from those without."""
    inst = wb.Instance(wb.traces.bfcl(30, rate=10), "hetero-1", "llama3.1-70b")
    exact = wb.simulate(inst, "hexagent")
    wrong = wb.simulate(inst, "hexagent", error=EstimateError(0.8)).check()
    assert wrong.settings["estimate_error"]["level"] == 0.8
    assert wrong.prefill_instance.tolist() != exact.prefill_instance.tolist()


def test_length_error_changes_predictions_only() -> None:
    """Predicted lengths are doubled or halved; true lengths and all else stay."""
    work = wb.traces.bfcl(5, rate=1.0)
    wrong = work.with_length_error(1.0, seed=0)
    for before, after in zip(work, wrong, strict=True):
        for call, other in zip(before.calls, after.calls, strict=True):
            assert other.output_tokens == call.output_tokens
            assert other.predicted_output_tokens in (2 * call.output_tokens, max(1, round(call.output_tokens / 2)))
            assert (other.id, other.parents, other.cached_prefix_tokens) == (
                call.id,
                call.parents,
                call.cached_prefix_tokens,
            )
    assert work.with_length_error(1.0, seed=1) != wrong
