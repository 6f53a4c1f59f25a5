"""Runs the trials that a user's function yields. The sweep file names it as MODULE:FUNCTION.

    def upward(space, factor=2.0):
        best = yield space.low  # a learning rate: a trial of the sweep's steps and its first seed
        while (trial := (yield best.plan.learning_rate * factor)).score < best.score:
            best = trial

The function is a generator, like every strategy (``harness.sweep.trials``). It yields a learning rate or a
``TrialPlan``, and receives the ``Trial`` once that has ended. A resumed sweep sends it the trials in the journal. Its
plans must therefore depend on these trials and on ``space`` alone.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from dataclasses import asdict, replace
from typing import Annotated

from pydantic import AfterValidator, Field

from harness.sweep.trials import SearchSpace, Trial, TrialPlan, Trials, TrialStage
from trainer import user_code
from trainer.config import Config
from trainer.errors import InputError
from trainer.json_types import Json

KEY = "strategy"
LARGEST_RATE, LONGEST = 1e6, 10_000_000  # limits of the sweep file
ALLOWED = "allowed: a learning rate above 0, or a TrialPlan with one and with 1 to 10,000,000 steps"


class OwnStrategy(Config):
    """A function of your own, which yields one trial after the other."""

    name: Annotated[str, AfterValidator(user_code.named_function)]
    """MODULE:FUNCTION: a generator function of (space), importable from where harness is called."""
    trials: int = Field(10, ge=1, le=10_000)
    """Maximum number of trials. The search ends earlier if the function does."""
    arguments: dict[str, Json] = Field(default_factory=dict)
    """Further arguments of the function, by name."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        """Return one stage. A budget assumes the sweep's steps for each trial, as the function chooses their length."""
        self._begun(space)
        return [TrialStage("own", self.trials, space.steps, exact=False)]

    def search(self, space: SearchSpace) -> Trials:
        asking, ended = self._begun(space), None
        for _ in range(self.trials):
            try:
                found = asking.send(ended)
            except StopIteration:
                return
            except Exception as error:
                raise user_code.failed(KEY, self.name, error) from error
            ended = yield self._plan(found, space)
        asking.close()

    def _begun(self, space: SearchSpace) -> Generator[object, Trial | None, object]:
        """Return the function's generator. Raises InputError if the call fails or returns something else."""
        found = user_code.call(KEY, self.name, self.arguments, {"space": space})
        if not isinstance(found, Generator):
            raise InputError(
                f"{KEY}: {self.name} returned {found!r:.60}, no generator; give a function that yields learning rates "
                "or TrialPlans"
            )
        return found

    def _plan(self, found: object, space: SearchSpace) -> TrialPlan:
        if isinstance(found, int | float) and not isinstance(found, bool) and 0 < found <= LARGEST_RATE:
            return TrialPlan(float(found), space.steps, space.seeds[0])
        if not isinstance(found, TrialPlan):
            raise InputError(f"{KEY}: {self.name} yielded {found!r:.60}; {ALLOWED}")
        rate, steps = found.learning_rate, found.steps
        try:
            json.dumps(asdict(found))  # The journal stores plans as JSON.
            is_sound = 0 < rate <= LARGEST_RATE and 0 < steps <= LONGEST and isinstance(steps, int)
        except (TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise InputError(f"{KEY}: {self.name} yielded {found!r:.60}; {ALLOWED}")
        return replace(found, learning_rate=float(rate))
