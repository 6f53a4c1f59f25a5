"""The reference of the columns is complete, and the command prints it."""

from __future__ import annotations

import pytest

from harness.study.contract import COLUMN_MEANINGS, column_reference
from tests.commands import harness


@pytest.mark.parametrize(("columns", "texts"), [pytest.param(*table[2:], id=table[0]) for table in COLUMN_MEANINGS])
def test_every_column_has_a_line_and_no_line_is_of_none(
    columns: tuple[tuple[str, str], ...], texts: dict[str, str]
) -> None:
    assert sorted(texts) == sorted(name for name, _ in columns)
    assert all(texts.values())


def test_the_command_prints_the_reference() -> None:
    done = harness("schema", "--columns")
    assert done.returncode == 0
    assert done.stdout == column_reference()
