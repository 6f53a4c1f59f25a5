"""What a log without a terminal shows while a study runs."""

from __future__ import annotations

import pytest

from harness.launch import progress
from harness.launch.progress import Progress, announced
from tests.harness.launch.running import wait_for


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "ALIVE_INTERVAL_S", 0.01)
    monkeypatch.setattr(progress, "LONG_S", 0.0)


@pytest.mark.usefixtures("soon")
def test_a_log_says_what_runs_which_repetition_and_since_when(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []

    def shown() -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return any(line.endswith("| block 3: text, repetition 3/8 for 0:00") for line in lines)

    with Progress(2, 10) as shows:
        shows.repetition("text", 3, 2, 8)
        wait_for(shown)
    assert "0/2 runs" in lines[-1]


@pytest.mark.usefixtures("soon")
def test_so_does_the_preparation_of_data(capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[str] = []

    def shown() -> bool:
        lines.extend(capsys.readouterr().err.splitlines())
        return "preparing data: text, for 0:00" in lines

    with announced("preparing data: text"):
        wait_for(shown)
    assert lines[0] == "preparing data: text"


def test_a_log_that_says_something_else_needs_no_sign_of_life(capsys: pytest.CaptureFixture[str]) -> None:
    with announced("preparing data: text"):
        pass
    assert capsys.readouterr().err == "preparing data: text\n"


def test_what_was_spent_is_noted_after_every_repetition_not_only_after_a_block() -> None:
    heard: list[int] = []
    shows = Progress(2, 10, lambda: heard.append(1))
    for _ in range(3):
        shows.repetition("text", 0, 0, 8)
        shows.stepped(5)
    assert len(heard) == 3
