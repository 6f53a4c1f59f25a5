"""Lists the strategies, and runs the trials that a user's function yields. The sweep file names it as MODULE:FUNCTION.

    def upward(space, factor=2.0):
        best = yield space.low  # a learning rate: a trial of the sweep's steps and its first seed
        while (rate := best.plan.learning_rate * factor) <= space.high:
            if (trial := (yield rate)).score >= best.score:
                return
            best = trial

The function is a generator, like every strategy (``harness.sweep.trials``). It yields a learning rate or a
``TrialPlan``, and receives the ``Trial`` when that has ended. A resumed sweep sends it the trials in the journal. Its
plans must therefore depend only on these trials and on ``space``. Learning rates lie in the sweep's range, from
``space.low`` to ``space.high``. Before a sweep starts, the function runs up to its first ``yield``.

A new strategy of the harness is a class with its settings as fields and the methods of ``trials.Strategy``.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from harness.scenario.errors import did_you_mean, shown
from harness.sweep.projection import DataScalingStrategy, HybridStrategy, ModelScalingStrategy, MupStrategy
from harness.sweep.searches import EarlyStoppingStrategy, GreedyStrategy, GridStrategy, HyperbandStrategy
from harness.sweep.trials import SearchSpace, Trial, TrialPlan, Trials, TrialStage
from trainer import user_code
from trainer.config import Config
from trainer.errors import InputError
from trainer.json_types import Json

KEY = "strategy"
MAX_STRATEGY_STEPS = 10_000_000  # steps that a sweep file allows
RATE_ROUNDING = 1e-9  # share by which a computed learning rate may pass a limit of the range


class OwnStrategy(Config):
    """A function of your own, which yields one trial after the other."""

    name: Annotated[str, AfterValidator(user_code.named_function)]
    """MODULE:FUNCTION: a generator function of (space), importable from where harness is called."""
    trials: int = Field(10, ge=1, le=10_000)
    """Maximum number of trials. The search ends earlier if the function does."""
    arguments: dict[str, Json] = Field(default_factory=dict)
    """Further arguments of the function, by name."""

    def stages(self, space: SearchSpace) -> list[TrialStage]:
        """Return one stage with the sweep's steps per trial. Raises InputError without a valid first trial."""
        asking = self._begun(space)
        try:
            self._next(asking, None, space)
        except StopIteration:
            raise InputError(f"{KEY}: {self.name} yielded nothing, so there is no trial; {_allowed(space)}") from None
        with self._refused():
            asking.close()
        return [TrialStage("own", self.trials, space.steps, exact=False)]

    def search(self, space: SearchSpace) -> Trials:
        asking, ended = self._begun(space), None
        for _ in range(self.trials):
            try:
                plan = self._next(asking, ended, space)
            except StopIteration:
                return
            ended = yield plan
        with self._refused():
            asking.close()

    def _next(
        self, asking: Generator[object, Trial | None, object], ended: Trial | None, space: SearchSpace
    ) -> TrialPlan:
        """Send ``ended`` to the user's function, and return its next plan. Raises StopIteration, or InputError."""
        with self._refused():
            proposal = asking.send(ended)
        return self._plan(proposal, space)

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Raise InputError in place of an error of the user's function. Its end (StopIteration) is none."""
        try:
            yield
        except (StopIteration, InputError):
            raise
        except SystemExit as error:
            raise InputError(
                f"{KEY}: {self.name} called sys.exit({error.code!r:.40}), which would end the sweep; "
                "allowed: return to end the search, or raise an exception"
            ) from error
        except Exception as error:
            raise user_code.failed(KEY, self.name, error) from error

    def _begun(self, space: SearchSpace) -> Generator[object, Trial | None, object]:
        """Call the user's function and return its generator. Raises InputError if it fails or returns no generator."""
        with self._refused():
            generator = user_code.call(KEY, self.name, self.arguments, {"space": space})
        if not isinstance(generator, Generator):
            raise InputError(
                f"{KEY}: {self.name} returned {generator!r:.60}, no generator; give a function that yields learning "
                "rates or TrialPlans"
            )
        return generator

    def _plan(self, found: object, space: SearchSpace) -> TrialPlan:
        if isinstance(found, int | float) and not isinstance(found, bool) and _in_range(found, space):
            return TrialPlan(float(found), space.steps, space.seeds[0])
        if not isinstance(found, TrialPlan):
            raise InputError(f"{KEY}: {self.name} yielded {found!r:.60}; {_allowed(space)}")
        steps = found.steps
        try:
            json.dumps(asdict(found))  # The journal stores plans as JSON.
            is_allowed = isinstance(steps, int) and 0 < steps <= MAX_STRATEGY_STEPS
            is_sound = is_allowed and _in_range(found.learning_rate, space)
        except (TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise InputError(f"{KEY}: {self.name} yielded {found!r:.60}; {_allowed(space)}")
        return replace(found, learning_rate=float(found.learning_rate))


def _in_range(rate: float, space: SearchSpace) -> bool:
    return space.low * (1 - RATE_ROUNDING) <= rate <= space.high * (1 + RATE_ROUNDING)


def _allowed(space: SearchSpace) -> str:
    return (
        f"allowed: a learning rate from {space.low:g} to {space.high:g}, or a TrialPlan with one and with 1 to "
        f"{MAX_STRATEGY_STEPS:,} steps"
    )


SETTINGS: Mapping[str, type[Config]] = {
    get_args(settings.model_fields["name"].annotation)[0]: settings
    for settings in (
        GridStrategy,
        GreedyStrategy,
        EarlyStoppingStrategy,
        HyperbandStrategy,
        ModelScalingStrategy,
        DataScalingStrategy,
        HybridStrategy,
        MupStrategy,
    )
}
NAMES = tuple(SETTINGS)
OWN = "own"  # the tag of a strategy whose name is MODULE:FUNCTION
TAGGED: Mapping[str, type[Config]] = {**SETTINGS, OWN: OwnStrategy}


def _named(value: Any) -> Any:
    """Return the key ``strategy`` as a mapping: a plain name becomes {"name": name}. Raises ValueError otherwise."""
    mapping = {"name": value} if isinstance(value, str) else value
    allowed = f"allowed: {', '.join(NAMES)}, or MODULE:FUNCTION of your own"
    if not isinstance(mapping, dict):
        raise ValueError(f"must be a name, or a mapping with one; got {shown(value)}; {allowed}")
    name = mapping.get("name")
    if name is None:
        raise ValueError(f"name: this key is required; {allowed}")
    if name not in NAMES and not _is_own(name):
        raise ValueError(f"no such strategy: {shown(name)}{did_you_mean(str(name), NAMES) or ';'} {allowed}")
    return mapping


def _name_of(value: Any) -> Any:
    name = value.get("name") if isinstance(value, dict) else getattr(value, "name", None)
    return OWN if _is_own(name) else name


def _is_own(name: Any) -> bool:
    return isinstance(name, str) and ":" in name


StrategySettings = Annotated[
    Annotated[
        Annotated[GridStrategy, Tag("grid")]
        | Annotated[GreedyStrategy, Tag("greedy")]
        | Annotated[EarlyStoppingStrategy, Tag("early-stopping")]
        | Annotated[HyperbandStrategy, Tag("hyperband")]
        | Annotated[ModelScalingStrategy, Tag("model-scaling")]
        | Annotated[DataScalingStrategy, Tag("data-scaling")]
        | Annotated[HybridStrategy, Tag("hybrid")]
        | Annotated[MupStrategy, Tag("mup")]
        | Annotated[OwnStrategy, Tag(OWN)],
        Discriminator(_name_of),
    ],
    BeforeValidator(_named),
]
