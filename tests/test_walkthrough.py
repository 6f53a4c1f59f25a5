"""Every command of docs/guides/corpus-to-model.md works, in its order, at smaller sizes."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
PAGE = Path(__file__).parents[1] / "docs" / "guides" / "corpus-to-model.md"
FILE = re.compile(r"```yaml\n# (\S+)\n(.*?)```", re.DOTALL)
COMMAND = re.compile(r"^\| .* \| `(harness .*)` \|$", re.MULTILINE)
SMALLER = {
    "--make-labelled 2000": "--make-labelled 300",
    "--steps 200": "--steps 20",
    "  steps: 200": "  steps: 20",
    "steps: 60": "steps: 8",
    "trials: 5": "trials: 4",
    "documents: 50": "documents: 10",
    "every_steps: 50": "every_steps: 10",
    "every_steps: 100": "every_steps: 10",
    "--max-tokens 24": "--max-tokens 4",
}


def smaller(text: str) -> str:
    for large, small in SMALLER.items():
        text = text.replace(large, small)
    return text


def test_the_page_has_files_and_commands_and_each_size_is_there() -> None:
    text = PAGE.read_text()
    assert [name for name, _ in FILE.findall(text)] == ["small.yaml", "rate.yaml"]
    assert len(COMMAND.findall(text)) >= 14
    assert [large for large in SMALLER if large not in text] == []


def test_a_newcomer_gets_from_parquet_to_text(tmp_path: Path) -> None:
    text = PAGE.read_text()
    for name, content in FILE.findall(text):
        (tmp_path / name).write_text(smaller(content))
    for command in COMMAND.findall(text):
        words = [sys.executable, "-m", *shlex.split(smaller(command))]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}{done.stderr[-2000:]}"
    assert (tmp_path / "plots").is_dir()
    assert (tmp_path / "model.bin").stat().st_size > 1024
