"""Strategies that project: what they ask for, and what trials with a known truth say of the sweep's own size."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.sweep import projection_sentences
from harness.sweep.findings import SweepFindings, findings
from harness.sweep.picture import has_picture, rate_over_size, size_figure
from harness.sweep.power_law import Extrapolation, NoExtrapolation, NoPowerLaw
from harness.sweep.projection import (
    DataScalingStrategy,
    HybridStrategy,
    ModelScalingStrategy,
    ModelSize,
    MupStrategy,
    model_sizes,
    projection_of,
)
from harness.sweep.searches import brackets
from harness.sweep.strategies import StrategySettings
from harness.sweep.trials import SearchSpace, Trial, TrialPlan, TrialStatus
from tests.harness.sweep.test_report import fitted_above_what_is_worse
from tests.harness.sweep.test_strategies import run
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.json_types import JsonObject

STEP_TOKENS = 2048
GPT2 = {"preset": "gpt2-small"}


def space(
    model: dict[str, Any] = GPT2, steps: int = 1000, steps_of: Callable[[JsonObject], int] | None = None
) -> SearchSpace:
    config = TrainerConfig.model_validate({"model": model})
    return SearchSpace(1e-4, 1e-1, (0,), 0, config, steps_of or (lambda _: steps), STEP_TOKENS)


def strategy(given: object) -> Any:
    return TypeAdapter(StrategySettings).validate_python(given)


def answering(size: Callable[[TrialPlan], float], power: float, at_one: float = 0.03) -> Callable[[TrialPlan], Trial]:
    """Trials whose best rate is a power of their size; a little noise, which the rate and size determine."""

    def answer(plan: TrialPlan) -> Trial:
        best = at_one * size(plan) ** power
        off = math.log(plan.learning_rate / best)
        status: TrialStatus = "diverged" if off > 3 else "done"
        loss = 3 + 0.1 * off**2 + 0.003 * math.sin(1e5 * plan.learning_rate + size(plan)) + 1 / plan.steps
        return Trial(0, plan, status, loss if status == "done" else None)

    return answer


def body(plan: TrialPlan) -> float:
    """Parameters of the trial's model beside its embeddings."""
    width, layers = plan.overrides["model.width"], plan.overrides["model.layers"]
    assert isinstance(width, int)
    assert isinstance(layers, int)
    return layers * (12 * width**2 + 13 * width) + 2 * width


def found(of: Any, answer: Callable[[TrialPlan], Trial], where: SearchSpace) -> SweepFindings:
    trials = run(of, where, answer)
    planned = sum(stage.trials for stage in of.stages(where))
    assert len(trials) == planned or (len(trials) < planned and any(one.status == "diverged" for one in trials))
    # What a journal gives back must be what the strategy asks for again.
    for one in trials:
        assert TrialPlan(**json.loads(json.dumps(one.plan.__dict__))) == one.plan
    return findings(trials, projection_of(of, where))


def test_the_issue_s_sizes_are_the_default() -> None:
    assert [(one.layers, one.width, one.heads) for one in strategy("model-scaling").sizes] == [
        (1, 64, 1), (2, 128, 2), (3, 192, 3),
    ]  # fmt: skip
    plan = strategy("data-scaling").projects(space())
    assert [one.steps for one in plan.sizes] == [
        round(one / STEP_TOKENS) for one in (26_000_000, 52_000_000, 105_000_000)
    ]


def test_data_scaling_trains_the_steps_that_are_given() -> None:
    """52M tokens of 524,288 a step are 99 steps: a list of one's own is taken as it is."""
    where = replace(space(), step_tokens=524_288)
    for given in ({"name": "data-scaling"}, {"name": "hybrid", "project": "data"}):
        plan = strategy({**given, "steps": [50, 100, 200]}).projects(where)
        assert [one.steps for one in plan.sizes] == [50, 100, 200]
        assert [one.size for one in plan.sizes] == [50 * 524_288, 100 * 524_288, 200 * 524_288]
        assert [one.steps for one in strategy(given).projects(where).sizes] == [50, 99, 200]
    with pytest.raises(ValidationError, match="tokens and steps both set the lengths"):
        strategy({"name": "data-scaling", "steps": [1, 2, 3], "tokens": [1, 2, 3]})


def test_sizes_are_parameters_without_embeddings() -> None:
    plan = model_sizes(space(), strategy("model-scaling").sizes)
    assert [one.size for one in plan.sizes] == [50_112, 396_800, 1_334_976]
    assert plan.target == 85_056_000  # GPT-2 124M: 12 x (12 x 768^2 + 13 x 768) + 2 x 768


@pytest.mark.parametrize("given", [{"name": "model-scaling", "trials": 12}, {"name": "model-scaling", "trials": 16}])
def test_model_scaling_predicts_the_large_model_s_rate(given: dict[str, Any]) -> None:
    one = found(strategy(given), answering(body, -0.2), space())
    assert one.projection is not None
    prediction = one.projection.prediction
    assert isinstance(prediction, Extrapolation)
    truth = 0.03 * 85_056_000**-0.2
    assert prediction.ci_low < truth < prediction.ci_high
    assert one.chosen is not None
    assert one.chosen.by == "projection"
    assert one.chosen.learning_rate == pytest.approx(truth, rel=0.3)
    lines = projection_sentences.conclusion(one.projection)
    assert lines[0].startswith("Chosen learning rate: ")
    assert "projected to 85,056,000 parameters" in lines[0]
    assert lines[0].endswith(projection_sentences.PREDICTED)
    assert "No trial has that size" in projection_sentences.hypothesis(one.projection)


def test_data_scaling_predicts_the_long_training_s_rate() -> None:
    where = space(steps=200_000)  # 409.6M tokens
    of = strategy({"name": "data-scaling", "trials": 12})
    one = found(of, answering(lambda plan: plan.steps, -0.3, 0.1), where)
    assert one.projection is not None
    assert [point.size for point in one.projection.points] == [25_999_360, 52_000_768, 105_000_960]
    assert one.projection.target == 200_000 * STEP_TOKENS
    prediction = one.projection.prediction
    assert isinstance(prediction, Extrapolation)
    assert prediction.ci_low < 0.1 * 200_000**-0.3 < prediction.ci_high


def test_hybrid_is_hyperband_at_every_size() -> None:
    of = strategy({"name": "hybrid", "project": "data", "tokens": [204_800, 409_600, 819_200], "R": 9})
    trials = run(of, space(), answering(lambda _: 1, 0, 3e-3))
    table = brackets(9, 3)
    for steps in (100, 200, 400):
        own = [one for one in trials if one.plan.group == f"{steps * STEP_TOKENS:,} tokens"]
        assert [one.plan.steps for one in own] == [
            round(steps * rung.steps / 9) for bracket in table for rung in bracket.rungs for _ in range(rung.trials)
        ]


def test_an_optimum_at_the_bound_is_in_no_line() -> None:
    """The best rate of the smallest size lies above the range: two sizes are left, and nothing is extrapolated."""
    one = found(strategy("model-scaling"), answering(body, -0.5, 30.0), space())
    assert one.projection is not None
    assert isinstance(one.projection.law, NoPowerLaw)
    assert one.chosen is None
    line, *_, bound = projection_sentences.conclusion(one.projection)
    assert bound.startswith("**At 1/64/1 the optimum may not be inside the rates that were trained to the end")
    assert "the best rate may lie above the highest of them." in bound
    assert line.startswith("**Nothing is extrapolated to 85,056,000 parameters")
    assert one.projection.law == NoPowerLaw("too-few-sizes", 2, 1)


def test_an_optimum_without_an_interval_is_in_no_line_and_drawn_as_such() -> None:
    """Hyperband trains too few rates below the second size's optimum to bound it."""
    one = found(strategy("hybrid"), answering(body, -0.2), space())
    assert one.projection is not None
    assert one.projection.law == NoPowerLaw("too-few-sizes", 2, 0, unbounded=1)
    assert one.projection.prediction is None
    assert one.chosen is None
    figure = size_figure(one.projection, "hybrid")
    (axes,) = figure.axes
    hollow = [line for line in axes.lines if line.get_marker() == "o" and line.get_fillstyle() == "none"]
    assert [line.get_xdata()[0] for line in hollow] == [one.projection.points[1].size]
    assert sum(line.get_marker() == "o" for line in axes.lines) == 3
    assert sum(text.arrow_patch is not None for text in axes.texts) == 1  # its open end


@pytest.mark.parametrize(("best", "reason", "words"), [
    ({1: 1e-3, 2: 2e-2, 3: 1e-3}, "scatter", "the optima follow no line (R2 0.0"),
    ({1: 2e-2, 2: 8e-3, 3: 4.2e-3}, "interval", "the prediction interval spans a factor of"),
])  # fmt: skip
def test_a_meaningless_line_is_refused(best: dict[int, float], reason: str, words: str) -> None:
    def answer(plan: TrialPlan) -> Trial:
        layers = plan.overrides["model.layers"]
        assert isinstance(layers, int)
        off = math.log(plan.learning_rate / best[layers])
        return Trial(0, plan, "done", 3 + 0.1 * off**2 + 0.01 * math.sin(1e6 * plan.learning_rate))

    one = found(strategy({"name": "model-scaling", "trials": 8}), answer, space())
    assert one.projection is not None
    assert isinstance(one.projection.prediction, NoExtrapolation)
    assert one.projection.prediction.reason == reason
    assert one.chosen is None
    assert words in projection_sentences.conclusion(one.projection)[0]


def test_mup_searches_narrow_models_of_the_same_depth_and_head_width() -> None:
    of = strategy({"name": "mup", "widths": [64, 128, 256], "fraction": 0.5})
    trials = run(of, space(), answering(lambda _: 1, 0, 3e-3))
    over = {one.plan.group: one.plan.overrides for one in trials}
    assert over["width 128"] == {
        "model.width": 128, "model.heads": 2, "model.kv_heads": 2, "model.ffn_width": 512,
        "model.mup": {"base_width": 64, "base_heads": 1},
    }  # fmt: skip
    assert {one.plan.steps for one in trials} == {500}
    one = findings(trials, projection_of(of, space()))
    assert one.chosen is not None
    assert one.chosen.by == "transfer"
    assert one.projection is not None
    assert one.projection.prediction is None
    lines = projection_sentences.conclusion(one.projection)
    assert re.search(r"the optimum at 256 channels \(95 % interval .*\), for the model of 768 channels", lines[0])
    assert lines[-1].startswith("That interval includes 0")
    assert "`model.mup: {base_width: 64, base_heads: 1}`" in projection_sentences.hypothesis(one.projection)


def test_an_optimum_that_moves_with_the_width_is_said_in_bold() -> None:
    def width(plan: TrialPlan) -> float:
        found = plan.overrides["model.width"]
        assert isinstance(found, int)
        return found

    of = strategy({"name": "mup", "widths": [64, 128, 256], "trials": 10})
    one = found(of, answering(width, -1.0, 0.6), space())
    assert one.projection is not None
    assert projection_sentences.conclusion(one.projection)[-1].startswith("**That interval excludes 0")


def test_one_width_tests_nothing_and_says_so() -> None:
    one = found(strategy("mup"), answering(lambda _: 1, 0, 3e-3), space())
    assert one.projection is not None
    assert projection_sentences.conclusion(one.projection)[-1].startswith("One width was searched")


def test_two_widths_test_nothing_and_say_so() -> None:
    one = found(strategy({"name": "mup", "widths": [64, 128]}), answering(lambda _: 1, 0, 3e-3), space())
    assert one.projection is not None
    assert projection_sentences.conclusion(one.projection)[-1] == (
        "2 sizes have an optimum with an interval inside the tried rates (of 2), and a test needs 3, so it was not "
        "tested if the best rate depends on the width."
    )


def test_a_fit_beyond_rates_that_are_already_worse_points_nowhere() -> None:
    """The minimum of the fit lies above the highest rate, and so does not enter the line; the lowest loss is inside."""
    trials = fitted_above_what_is_worse(group="width 64", overrides={})
    projection = findings(trials, projection_of(strategy("mup"), space())).projection
    assert projection is not None
    assert projection.largest is None
    lines = projection_sentences.conclusion(projection)
    assert (
        lines[0]
        == "**Nothing is transferred: at no width do the trials show an optimum inside the rates that were tried.**"
    )
    assert lines[1] == (
        "At width 64 the minimum of the fit lies above the highest rate that was trained, where the loss is already "
        "higher: the best rate is unknown."
    )
    assert len(lines) == 2


def test_no_trial_has_ended_yet() -> None:
    for given in ("model-scaling", "data-scaling", "hybrid", "mup"):
        one = findings([], projection_of(strategy(given), space()))
        assert one.chosen is None
        assert one.curves == ()


@pytest.mark.parametrize(("of", "model", "message"), [
    (ModelScalingStrategy(name="model-scaling"), {"config": {"model_type": "gpt2"}}, "give model.preset"),
    (MupStrategy(name="mup"), {"preset": "distilbert"}, r"strategy.widths\[0\]: .*not for the family distilbert"),
    (MupStrategy(name="mup", widths=[96]), GPT2, "96 is not a multiple of the width of the model's heads"),
    (MupStrategy(name="mup", widths=[64, 64]), GPT2, "two sizes are equal .width 64"),
    (DataScalingStrategy(name="data-scaling", tokens=[1, 2, 3]), GPT2, "two sizes are equal .2,048 tokens"),
    (ModelScalingStrategy(name="model-scaling", sizes=[ModelSize(layers=1, width=64, heads=3),
     *ModelScalingStrategy(name="model-scaling").sizes[1:]]), GPT2,
     r"strategy.sizes\[0\]: model.width: 64 is not a multiple of model.heads"),
])  # fmt: skip
def test_sizes_that_cannot_be_are_refused(of: Any, model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of.stages(space(model))


def test_hybrid_takes_one_seed() -> None:
    where = SearchSpace(1e-4, 1e-1, (0, 1), 0, TrainerConfig(), lambda _: 10, 1)
    with pytest.raises(InputError, match="one seed"):
        HybridStrategy(name="hybrid").stages(where)


@pytest.mark.usefixtures("pictures")
def test_the_line_is_drawn_where_there_is_one() -> None:
    one = found(strategy("model-scaling"), answering(body, -0.2), space()).projection
    none = found(strategy("mup"), answering(lambda _: 1, 0, 3e-3), space()).projection
    assert one is not None
    assert none is not None
    drawing = rate_over_size(one, "projected")
    assert drawing is not None
    assert drawing.png.startswith(b"\x89PNG")
    assert has_picture(one)
    assert rate_over_size(none, "one width") is None
    assert not has_picture(none)
