"""An arm that is compared with none: what it waits for, what it would gain, and what could not be seen of it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.analysis.study import analyse
from harness.analysis.unseen import MOST_UNSEEN, MOST_WAITING
from harness.report.first_screen import FirstScreen, first_screen
from tests.harness.synthetic import Arm, build

SEEN = {"attached": "fetch: DataLoader without workers; backward", "step_ends": "the update of AdamW"}


def screen(**facts: Any) -> FirstScreen:
    return first_screen(analyse(*build([Arm("script", tokenize=4.0, facts=facts)], [])))


def test_it_says_what_is_waited_for_and_what_no_data_work_would_give() -> None:
    (line,) = screen().headlines
    assert line.text.startswith("script: ")
    assert " ms of them are waited for data (" in line.text
    assert "tokenize " in line.text
    assert "Without any data work it would be " in line.text


def test_of_an_attached_program_it_says_what_was_timed() -> None:
    _, timed = screen(**SEEN, unseen_share=0.02, waiting_share=0.01).headlines
    assert timed.text == ("Timed: fetch: DataLoader without workers; backward. A step ends with the update of AdamW.")


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (
            {"unseen_share": MOST_UNSEEN + 0.01, "unseen_place": "f.py:38 (get)"},
            "blocked outside of what is timed, mostly in f.py:38 (get)",
        ),
        ({"waiting_share": MOST_WAITING + 0.01}, "ready but had no core for 11 % of the time"),
    ],
)
def test_where_too_much_was_not_seen_it_promises_nothing(facts: dict[str, Any], words: str) -> None:
    found = screen(**SEEN, **facts)
    text = " ".join([*(line.text for line in found.headlines), found.next_steps.note, *found.next_steps.ranked])
    assert words in text
    assert "as fast" not in text
