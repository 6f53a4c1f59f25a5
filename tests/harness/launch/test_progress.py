"""What a log without a terminal shows while a study runs."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Callable

import pytest

from harness.launch import progress
from harness.launch.progress import Goal, Progress, TextProgress, TrainingProgress, announced
from harness.sweep.messages import SweepProgress
from harness.sweep.trials import Trial, TrialPlan, TrialStage
from tests.harness.launch.running import wait_for


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "ALIVE_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "LONG_S", 0.0)


@pytest.mark.usefixtures("soon")
def test_a_log_says_what_runs_which_repetition_and_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []

    def shown(line: str) -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return any(one.endswith(line) for one in lines)

    with Progress(2, 10) as shows:
        shows.repetition("text", 3, 2, 8)
        wait_for(lambda: shown("| block 3: text, repetition 3/8 for 0:00"))
    assert "0/2 runs" in lines[-1]
    lines.clear()
    with announced("preparing data: text"):
        wait_for(lambda: shown("preparing data: text, for 0:00"))
    assert "preparing data: text" in lines


def test_a_log_that_says_something_else_needs_no_sign_of_life_and_spending_is_noted_after_every_repetition(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with announced("preparing data: text"):
        pass
    assert capsys.readouterr().err == "preparing data: text\n"
    heard: list[int] = []
    shows = Progress(2, 10, lambda: heard.append(1))
    for _ in range(3):
        shows.repetition("text", 0, 0, 8)
        shows.stepped(5)
    assert len(heard) == 3


class Terminal(io.StringIO):
    """Standard error on a terminal."""

    def isatty(self) -> bool:
        return True


NAME = "an-arm-with-a-name-that-is-longer-than-any-narrow-terminal-[red]"


def study_shown() -> None:
    with Progress(2, 10) as shows:
        shows.repetition(NAME, 3, 2, 8)


def text_shown() -> None:
    with TextProgress(NAME, 10) as shows:
        shows(0, 0)


def sweep_shown() -> None:
    shows = SweepProgress([TrialStage("grid", 4, 100)], [])
    shows.begin(Trial(0, TrialPlan(1e-3, 100)))
    shows.end()


def training_shown() -> None:
    shows = TrainingProgress(Goal(steps=1_000_000), 0.0, 0)
    shows.step(1, 1_000_000, 1e-6, 3.25)
    shows.end()


@pytest.mark.parametrize("show", [study_shown, text_shown, sweep_shown, training_shown])
def test_a_line_that_rewrites_itself_fits_the_terminal(
    show: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A longer one left a copy of itself at every refresh."""
    width, terminal = 30, Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("harness.launch.progress.TERMINAL_INTERVAL_S", 0.0)
    for name, value in (("COLUMNS", str(width)), ("LINES", "20"), ("TERM", "xterm")):
        monkeypatch.setenv(name, value)
    show()
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", terminal.getvalue())
    lines = [line for line in re.split(r"[\r\n]+", text) if line]  # each as often as it was written
    assert lines
    assert all(len(line) <= width and line.endswith("…") for line in lines)


def test_a_forecast_that_is_used_up_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line said "about 0:00 left" for as long as the last run took to end."""
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    study, text, training = Progress(1, 10), TextProgress("text", 10), TrainingProgress(Goal(steps=10), 0.0, 0)
    text(0, 0)
    for done in (5, 10):
        study.repetition("a", 0, 0, 2)
        now[0] += 30.0
        study.stepped(5)
        text(5, 0)
        seconds = now[0] - 1000.0
        lines = (study._line(), text._line(), training.line(done, done, done / 10, None, seconds))
        assert [" left" in line for line in lines] == [done < 10] * 3
        assert ["0:30 left" in line for line in lines] == [done < 10] * 3
    now[0] += 50.0
    assert not any(" left" in line for line in (study._line(), text._line()))
