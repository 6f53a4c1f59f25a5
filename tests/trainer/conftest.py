"""Code of a user's own, which a test imports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str, str], None]]:
    """Writes a module into the working directory, from which it can be imported in this test alone."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    written: list[str] = []

    def write(name: str, code: str) -> None:
        (tmp_path / f"{name}.py").write_text(code)
        sys.modules.pop(name, None)
        written.append(name)

    yield write
    for name in written:
        sys.modules.pop(name, None)
