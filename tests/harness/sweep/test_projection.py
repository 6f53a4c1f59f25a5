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
from harness.sweep.picture import has_picture, picture, size_figure
from harness.sweep.power_law import Extrapolation, NoExtrapolation, NoPowerLaw, Projection
from harness.sweep.projection import DataScalingStrategy as Data
from harness.sweep.projection import HybridStrategy, ModelSize, model_sizes, projection_of
from harness.sweep.projection import ModelScalingStrategy as Models
from harness.sweep.projection import MupStrategy as Mup
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
    return layers * (12 * width**2 + 13 * width) + 2 * width


def found(of: Any, answer: Callable[[TrialPlan], Trial], where: SearchSpace | None = None) -> SweepFindings:
    where = where or space()
    trials = run(of, where, answer)
    planned = sum(stage.trials for stage in of.stages(where))
    assert len(trials) == planned or (len(trials) < planned and any(one.status == "diverged" for one in trials))
    # What a journal gives back must be what the strategy asks for again.
    for one in trials:
        assert TrialPlan(**json.loads(json.dumps(one.plan.__dict__))) == one.plan
    return findings(trials, projection_of(of, where))


def projected(*given: Any) -> Projection:
    """The projection of :func:`found`."""
    projection = found(*given).projection
    assert projection is not None
    return projection


def test_the_sizes_that_are_searched_by_default() -> None:
    sizes = strategy("model-scaling").sizes
    assert [(one.layers, one.width, one.heads) for one in sizes] == [(1, 64, 1), (2, 128, 2), (3, 192, 3)]
    plan = model_sizes(space(), sizes)  # parameters without embeddings
    assert [one.size for one in plan.sizes] == [50_112, 396_800, 1_334_976]
    assert plan.target == 85_056_000  # GPT-2 124M: 12 x (12 x 768^2 + 13 x 768) + 2 x 768
    lengths = strategy("data-scaling").projects(space()).sizes
    assert [one.steps for one in lengths] == [round(one / STEP_TOKENS) for one in (26e6, 52e6, 105e6)]


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


def test_model_scaling_predicts_the_large_model_s_rate() -> None:
    one = found(strategy({"name": "model-scaling", "trials": 12}), answering(body, -0.2))
    prediction = one.projection.prediction
    assert isinstance(prediction, Extrapolation)
    truth = 0.03 * 85_056_000**-0.2
    assert prediction.ci_low < truth < prediction.ci_high
    assert one.chosen.by == "projection"
    assert one.chosen.learning_rate == pytest.approx(truth, rel=0.3)
    lines = projection_sentences.conclusion(one.projection)
    assert lines[0].startswith("Chosen learning rate: ")
    assert "projected to 85,056,000 parameters" in lines[0]
    assert "No trial has that size" in projection_sentences.hypothesis(one.projection)


def test_data_scaling_predicts_the_long_training_s_rate() -> None:
    where = space(steps=200_000)  # 409.6M tokens
    one = projected(
        strategy({"name": "data-scaling", "trials": 12}), answering(lambda plan: plan.steps, -0.3, 0.1), where
    )
    assert [point.size for point in one.points] == [25_999_360, 52_000_768, 105_000_960]
    assert one.target == 200_000 * STEP_TOKENS
    assert isinstance(one.prediction, Extrapolation)
    assert one.prediction.ci_low < 0.1 * 200_000**-0.3 < one.prediction.ci_high


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
    one = found(strategy("model-scaling"), answering(body, -0.5, 30.0))
    assert one.chosen is None
    assert one.projection.law == NoPowerLaw("too-few-sizes", 2, 1)
    line, *_, bound = projection_sentences.conclusion(one.projection)
    assert bound.startswith("**At 1/64/1 the optimum may not be inside the rates that were trained to the end")
    assert line.startswith("**Nothing is extrapolated to 85,056,000 parameters")


def test_an_optimum_without_an_interval_is_in_no_line_and_drawn_as_such() -> None:
    """Hyperband trains too few rates below the second size's optimum to bound it."""
    one = found(strategy("hybrid"), answering(body, -0.2))
    assert one.chosen is None
    assert (one.projection.law, one.projection.prediction) == (NoPowerLaw("too-few-sizes", 2, 0, unbounded=1), None)
    (axes,) = size_figure(one.projection, "hybrid").axes
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
        off = math.log(plan.learning_rate / best[layers])
        return Trial(0, plan, "done", 3 + 0.1 * off**2 + 0.01 * math.sin(1e6 * plan.learning_rate))

    one = found(strategy({"name": "model-scaling", "trials": 8}), answer)
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
    assert one.chosen.by == "transfer"
    assert one.projection.prediction is None
    lines = projection_sentences.conclusion(one.projection)
    assert re.search(r"the optimum at 256 channels \(95 % interval .*\), for the model of 768 channels", lines[0])
    assert lines[-1].startswith("That interval includes 0")
    assert "`model.mup: {base_width: 64, base_heads: 1}`" in projection_sentences.hypothesis(one.projection)


def width(plan: TrialPlan) -> float:
    return plan.overrides["model.width"]


@pytest.mark.parametrize(("widths", "power", "at_one", "said"), [
    ([64, 128, 256], -1.0, 0.6, "**That interval excludes 0"),
    ([64], 0, 3e-3, "One width was searched"),
    ([64, 128], 0, 3e-3, "2 sizes have an optimum with an interval inside the tried rates (of 2), and a test needs 3"),
])  # fmt: skip
def test_what_widths_show_of_the_hypothesis(widths: list[int], power: float, at_one: float, said: str) -> None:
    one = projected(strategy({"name": "mup", "widths": widths}), answering(width, power, at_one))
    assert projection_sentences.conclusion(one)[-1].startswith(said)


def test_a_fit_beyond_rates_that_are_already_worse_points_nowhere() -> None:
    """The minimum of the fit lies above the highest rate, and so does not enter the line; the lowest loss is inside."""
    trials = fitted_above_what_is_worse(group="width 64", overrides={})
    projection = findings(trials, projection_of(strategy("mup"), space())).projection
    assert projection.largest is None
    first, second = projection_sentences.conclusion(projection)
    assert first.startswith("**Nothing is transferred: at no width")
    assert second.startswith("At width 64 the minimum of the fit lies above the highest rate that was trained, where")


def test_no_trial_has_ended_yet() -> None:
    for given in ("model-scaling", "data-scaling", "hybrid", "mup"):
        one = findings([], projection_of(strategy(given), space()))
        assert (one.chosen, one.curves) == (None, ())
    with pytest.raises(InputError, match="one seed"):
        HybridStrategy(name="hybrid").stages(replace(space(), seeds=(0, 1)))


HEADS = [ModelSize(layers=1, width=64, heads=3), *Models(name="model-scaling").sizes[1:]]


@pytest.mark.parametrize(("of", "model", "message"), [
    (Models(name="model-scaling"), {"config": {"model_type": "gpt2"}}, "give model.preset"),
    (Models(name="model-scaling", sizes=HEADS), GPT2, r"strategy.sizes\[0\]: model.width: 64 is not a mul"),
    (Mup(name="mup"), {"preset": "distilbert"}, r"strategy.widths\[0\]: .*not for the family distilbert"),
    (Mup(name="mup", widths=[96]), GPT2, "96 is not a multiple of the width of the model's heads"),
    (Mup(name="mup", widths=[64, 64]), GPT2, "two sizes are equal .width 64"),
    (Data(name="data-scaling", tokens=[1, 2, 3]), GPT2, "two sizes are equal .2,048 tokens"),
])  # fmt: skip
def test_sizes_that_cannot_be_are_refused(of: Any, model: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        of.stages(space(model))


@pytest.mark.usefixtures("pictures")
def test_the_line_is_drawn_where_there_is_one() -> None:
    one = projected(strategy("model-scaling"), answering(body, -0.2))
    none = projected(strategy("mup"), answering(lambda _: 1, 0, 3e-3))
    drawing = picture(size_figure, one, "projected")
    assert drawing.png.startswith(b"\x89PNG")
    assert (has_picture(one), has_picture(none)) == (True, False)
