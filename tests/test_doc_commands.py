"""Every command that README.md and the documentation show exists: its options, its values, its scenario and keys."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.cli import COMMANDS, _parse
from harness.scenario.commands import open_scenario
from harness.scenario.load import SCENARIOS, find_file, load_scenario
from harness.scenario.plan import make_plan
from tests.test_docs import DOCUMENTS, ROOT
from trainer.errors import InputError

FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
IN_A_TABLE = re.compile(r"\| `(harness [^`]*)` \|$", re.MULTILINE)
IN_PROSE = re.compile(r"`harness ([a-z]+)[ `]")
SCENARIO_COMMANDS = ("run", "train", "cost")
SHELL = ("", "sh", "bash", "console")


def commands(text: str) -> list[str]:
    """The `harness ...` commands of a document: lines of its code blocks, and cells of its tables."""
    found = [line for kind, block in FENCE.findall(text) if kind in SHELL for line in _lines(block)]
    return [*found, *IN_A_TABLE.findall(text)]


def _lines(block: str) -> Iterator[str]:
    for line in block.replace("\\\n", " ").splitlines():
        words = line.strip().removeprefix("$ ")
        if words.startswith("harness "):
            yield words


def split(command: str) -> list[list[str]]:
    """The words of each command on a line, as a shell has them: without comments, pipes and what follows them."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    piped = False
    for word in lexer:
        if set(word) <= set(";|&"):
            piped = set(word) == {"|"}
            parts.append([])
        elif not piped:
            parts[-1].append(word)
    return [words for words in parts if words and words[0] == "harness"]


SHOWN = [
    pytest.param(words, id=f"{path.relative_to(ROOT)}: {' '.join(words)[:80]}")
    for path in DOCUMENTS
    for command in commands(path.read_text(encoding="utf-8"))
    for words in split(command)
]
YAML = [
    pytest.param(block, id=f"{path.relative_to(ROOT)}: {block.splitlines()[0][:60]}")
    for path in DOCUMENTS
    for kind, block in FENCE.findall(path.read_text(encoding="utf-8"))
    if kind == "yaml" and {"name", "question"} <= set(yaml.safe_load(block))
]


def test_the_documents_show_commands() -> None:
    assert len(SHOWN) > 100
    assert len(YAML) >= 4


@pytest.mark.parametrize("words", SHOWN)
def test_a_shown_command_is_one(words: list[str]) -> None:
    arguments = _parse(words[1:])
    if arguments.command in SCENARIO_COMMANDS and arguments.scenario is not None:
        path = ROOT / find_file(arguments.scenario, SCENARIOS) if not arguments.scenario.isupper() else ROOT
        if path.is_file():  # not one of the reader's own
            arms = [arguments.arm] if isinstance(arguments.arm, str) else arguments.arm or []
            make_plan(load_scenario(path, arguments.set), str(path), arms)


@pytest.mark.parametrize("block", YAML)
def test_a_shown_scenario_is_one(tmp_path: Path, block: str) -> None:
    content = yaml.safe_load(block)
    if "learning_rate" in content:  # a sweep of small.yaml, which tests/test_walkthrough.py runs
        pytest.skip("a sweep")
    file = tmp_path / "shown.yaml"
    file.write_text(block)
    scenario = open_scenario(file, [])
    assert set(scenario.arms) == set(content["arms"])


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_command_that_prose_names_exists(document: Path) -> None:
    assert set(IN_PROSE.findall(document.read_text(encoding="utf-8"))) <= set(COMMANDS)


@pytest.mark.parametrize("command", [
    "harness rnu quickstart",
    "harness run quickstart --no-such-option",
    "harness run quickstart --interleave sometimes",
    "harness data frobnicate",
    "harness run quickstart --set data.no_such_key=1",
    "harness run quickstart --arm no-such-arm",
])  # fmt: skip
def test_a_wrong_command_is_found(command: str) -> None:
    (words,) = split(command)
    with pytest.raises((InputError, SystemExit)):
        test_a_shown_command_is_one(words)


def test_what_follows_a_comment_or_a_pipe_is_no_argument() -> None:
    assert split("harness list # all") == [["harness", "list"]]
    assert split("harness run a --json | jq '.x | y'") == [["harness", "run", "a", "--json"]]
    assert split("harness list; harness doctor") == [["harness", "list"], ["harness", "doctor"]]
