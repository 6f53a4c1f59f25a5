"""Intervals of epochs: each ends once, in the step that reaches its end."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.config import CheckpointConfig, EvaluationConfig
from trainer.data.position import EpochInterval
from trainer.errors import InputError


@given(
    documents=st.integers(1, 400),
    rows=st.integers(1, 30),
    parts=st.integers(1, 6),
    begun=st.integers(0, 50),
    steps=st.integers(1, 200),
)
def test_an_interval_ends_in_the_step_that_reaches_it(
    documents: int, rows: int, parts: int, begun: int, steps: int
) -> None:
    """``parts`` intervals in an epoch of ``documents``, of which a step uses ``rows``."""
    used = begun * rows
    interval = EpochInterval(1 / parts, lambda: used / documents, "x.every_epochs")
    for _ in range(steps):
        before, used = used, used + rows
        over = math.floor(Fraction(used * parts, documents)) > math.floor(Fraction(before * parts, documents))
        assert interval.is_over() == over
        assert interval.ends() == over
        assert not interval.is_over()


def test_batches_without_an_epoch_are_refused() -> None:
    with pytest.raises(InputError, match=r"^x\.every_epochs: "):
        EpochInterval(1, lambda: None, "x.every_epochs")


@pytest.mark.parametrize("config", [CheckpointConfig, EvaluationConfig])
def test_one_interval_alone(config: type[CheckpointConfig] | type[EvaluationConfig]) -> None:
    assert config.model_validate({"every_epochs": 0.25}).every_epochs == 0.25
    for wrong in ({"every_epochs": 1, "every_steps": 5}, {"every_epochs": 0}):
        with pytest.raises(ValueError, match="every_epochs"):
            config.model_validate(wrong)
