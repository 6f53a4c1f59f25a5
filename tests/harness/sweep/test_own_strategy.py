"""A strategy of the user's own: asked like any other, and refused in one line where it is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import TypeAdapter, ValidationError

from harness.sweep.load import load_sweep
from harness.sweep.strategies import OwnStrategy, StrategySettings
from harness.sweep.trials import TrialPlan
from tests.commands import Done, harness
from tests.harness.sweep.test_load import SWEEP
from tests.harness.sweep.test_strategies import curve, run, space
from trainer.errors import InputError

CODE = """\
import sys
from harness.sweep.trials import TrialPlan
def upward(space, factor=2.0):
    best = yield space.low
    while (trial := (yield best.plan.learning_rate * factor)).score < best.score:
        best = trial
def planned(space):
    yield TrialPlan(1e-3, 7, 3, overrides={"model.width": 64})
def endless():
    while True:
        yield 1e-3
def no_generator(space):
    return [1e-3]
def no_rate(space):
    yield "1e-3"
def negative(space):
    yield -1e-3
def no_steps(space):
    yield TrialPlan(1e-3, 0)
def unkept(space):
    yield TrialPlan(1e-3, 1, overrides={"model.width": object()})
def fails(space):
    trial = yield 1e-3
    raise KeyError("lost")
def exits(space):
    yield 1e-3
    sys.exit(3)
def exits_first(space):
    sys.exit(3)
def exits_at_close(space):
    try:
        yield 1e-3
    finally:
        sys.exit(3)
def nothing(space):
    return
    yield
def too_large(space):
    yield 1e5
def planned_too_large(space):
    yield TrialPlan(1e5, 7)
no_function = 3
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The module's name, in the working directory; another one for each test, as modules stay imported."""
    name = f"own_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(CODE)
    monkeypatch.chdir(tmp_path)
    return name


def own(name: str, **settings: object) -> OwnStrategy:
    found = TypeAdapter(StrategySettings).validate_python({"name": name, **settings} if settings else name)
    assert isinstance(found, OwnStrategy)
    return found


def test_it_is_asked_as_any_other_and_sent_what_has_ended(code: str) -> None:
    trials = run(own(f"{code}:upward", arguments={"factor": 4.0}), space(), curve(1e-3))
    assert [one.plan for one in trials] == [TrialPlan(1e-4 * 4**power, 100) for power in range(4)]
    (trial,) = run(own(f"{code}:planned"), space(), curve(1e-3))
    assert trial.plan == TrialPlan(1e-3, 7, 3, overrides={"model.width": 64})
    strategy = own(f"{code}:endless", trials=5)
    assert len(run(strategy, space(), curve(1e-3))) == 5
    assert [(one.trials, one.steps, one.exact) for one in strategy.stages(space())] == [(5, 100, False)]


REFUSED = {
    "no_generator": r"returned \[0.001\], no generator",
    "no_function": "has no function no_function",
    "missing": "has no function missing",
    "exits": r"called sys.exit\(3\).*; allowed: return",
    "exits_first": r"called sys.exit\(3\)",
    "fails": "failed: KeyError",
    "no_rate": "yielded '1e-3'; allowed: a learning rate from 0.0001 to 0.1",
    "too_large": "yielded 100000.0; allowed: a learning rate from 0.0001 to 0.1",
    "negative": "yielded -0.001; allowed",
    **dict.fromkeys(("planned_too_large", "no_steps", "unkept"), "yielded TrialPlan.*; allowed"),
}


def test_what_is_no_strategy_is_refused_in_one_line(code: str) -> None:
    for function, message in REFUSED.items():
        with pytest.raises(InputError, match=rf"^strategy: {code}:{function}.*{message}[^\n]*$"):
            run(own(f"{code}:{function}"), space(), curve(1e-3))


def test_a_name_that_is_none_is_refused() -> None:
    for name in ("a b:c", "module:", ":function", "a:b:c"):
        with pytest.raises(ValidationError, match="give MODULE:FUNCTION"):
            own(name)


def test_of_the_command(code: str) -> None:
    Path("small.yaml").write_text(SWEEP)

    def plan(strategy: str) -> Done:
        return harness("sweep", "small.yaml", "--plan", "--set", f"strategy={strategy}", cwd=Path.cwd())

    assert "at most 10 trials" in plan(f"{code}:upward").stdout
    at_first = ("missing", "no_generator", "nothing", "too_large", "exits_first", "exits_at_close")
    for strategy in ("no_such_module:make", *(f"{code}:{function}" for function in at_first)):
        done = plan(strategy)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
        assert done.stderr.startswith(f"harness: strategy: {strategy}")
    with pytest.raises(InputError, match=r"unknown key of own; allowed: name, trials, arguments"):
        load_sweep("small.yaml", [f"strategy={{name: '{code}:upward', rates: 3}}"])
