"""Tries a user's data source before the first run. An error then is one line, and no study begins."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import Any

from harness.launch.channel import looks
from harness.launch.code import OWN_FOLDER, Code, environment_for
from harness.launch.diagnosis import diagnose, killed_by, look_at
from harness.launch.progress import announced
from harness.machine.processes import with_variable
from trainer.config import DataConfig, TrainerConfig
from trainer.errors import InputError, one_line
from trainer.model import shape_of

KEY = "data.source"
TRIAL = ("-m", "trainer.data.user_trial")
VARIABLE = "HARNESS_TRIAL"  # environment variable that marks all processes of a trial
PRINTED_LINES_SHOWN = 6  # last lines of the trial's output


class TriedSources:
    """Trials of the user's sources and factories before a study's first run, once per equal settings."""

    def __init__(self, start_s: float) -> None:
        """``start_s``: time limit of one trial in seconds, including the user's imports (``limits.start_s``)."""
        self._start_s = start_s
        self._tried: dict[tuple[str, Code | None], tuple[int, int]] = {}
        self._files: dict[tuple[str, str, Code | None], set[str]] = {}
        self.notes: list[str] = []  # notes for the report

    def files(self, key: str, name: str, code: Code | None = None) -> list[str]:
        """Return the user's files that ``name`` imported in its trial, sorted; empty without a trial."""
        return sorted(self._files.get((key, name, code), ()))

    def check_model(self, name: str, code: Code | None = None) -> None:
        """Import the factory ``name`` in a process, without calling it. Raises InputError if that fails."""
        key = "model.factory"
        if (key, name, code) not in self._files:
            with announced(f"importing {key} {name}{_at(code)}"):
                answer = _answer(key, name, [key, name], "", self._start_s, code)
            self._files[key, name, code] = set(answer["files"])

    def check(self, arm: str, config: TrainerConfig, code: Code | None = None) -> None:
        """Take one batch from the source of ``config`` in a process. Raises InputError without a fitting one."""
        data = config.data
        assert data.source is not None
        keys = {"source", "arguments", "batch_size", "sequence_length", "shuffle", "extra_reads"}
        asked = data.model_dump_json(include=keys), code
        if asked not in self._tried:
            with announced(f"trying data.source {data.source}{_at(code)}"):
                facts = _try(data, self._start_s, code)
            self._tried[asked] = facts["smallest_id"], facts["largest_id"]
            self._files.setdefault((KEY, data.source, code), set()).update(facts["files"])
            note = (
                f"a thread of data.source {data.source} tokenizes ({', '.join(facts['threads'])}): no stage includes "
                "its time, and waits for it count as reading"
            )
            if facts["threads"] and note not in self.notes:
                self.notes.append(note)
                print(f"note: {note}", file=sys.stderr)
        shape = shape_of(config.model, 0, data.sequence_length)
        if shape is None:
            return  # The model defines its own vocabulary.
        smallest, largest = self._tried[asked]
        if not shape.vocab_size:
            raise InputError(
                f"arm {arm}: model.vocab_size: give it, because {data.source} does not define it (the largest id of "
                f"its first batch is {largest})"
            )
        if not 0 <= smallest <= largest < shape.vocab_size:
            raise InputError(
                f"arm {arm}: {data.source} gives ids from {smallest} to {largest}, but model.vocab_size is "
                f"{shape.vocab_size}"
            )


def _at(code: Code | None) -> str:
    return "" if code is None else f" at {code.label}"


def _try(data: DataConfig, start_s: float, code: Code | None = None) -> dict[str, Any]:
    """Return facts about the source's first batch. Raises InputError without one, or if no label counts."""
    assert data.source is not None
    answer = _answer(KEY, data.source, [], data.model_dump_json(), start_s, code)
    if not answer["trained_tokens"]:
        raise InputError(f"{KEY}: {data.source}: all labels of its first batch are -100, so nothing is trained")
    return answer


def _answer(key: str, name: str, arguments: list[str], given: str, start_s: float, code: Code | None) -> dict[str, Any]:
    """Run a trial in a separate process and return its answer. Raises InputError if it fails within ``start_s``."""
    try:
        return _ask(key, name, arguments, given, start_s, code)
    except InputError as error:
        raise (InputError(f"{code.label}: {error}") if code else error) from error


def _ask(key: str, name: str, arguments: list[str], given: str, start_s: float, code: Code | None) -> dict[str, Any]:
    # Files instead of pipes: child processes of the source would keep their end of a pipe open.
    with TemporaryFile() as asked, TemporaryFile() as answer, NamedTemporaryFile(prefix="harness-trial-") as errors:
        asked.write(given.encode())
        asked.seek(0)
        token = secrets.token_hex(8)
        process = subprocess.Popen(
            [sys.executable, *TRIAL, *arguments],
            stdin=asked,
            stdout=answer,
            stderr=errors,
            cwd=None if code is None else code.directory,
            env={**(environment_for(OWN_FOLDER) if code is None else code.environment()), VARIABLE: token},
            start_new_session=True,
        )
        try:
            if not _ends(process, start_s):
                finding = diagnose(look_at(process.pid, 0, Path(errors.name)), "limits.start_s")
                failure = "returned no batch" if key == KEY else "was not imported"
                raise InputError(f"{key}: {name} {failure} within {start_s:g} s (limits.start_s): {finding}")
        finally:
            with suppress(ProcessLookupError):  # No process of the group is left.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pid in with_variable(VARIABLE, token):  # child processes in other sessions
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        answer.seek(0)
        errors.seek(0)
        out, printed = answer.read(), errors.read().decode(errors="replace").strip()
    try:
        content: dict[str, Any] = json.loads(out)
    except ValueError as error:
        last = one_line(" / ".join(printed.splitlines()[-PRINTED_LINES_SHOWN:])) or "no output"
        number = process.returncode
        ending = f"{name} ended its process (exit code {number})"
        if number < 0:
            ending = f"the process of {name} was {killed_by(-number)}"
        raise InputError(f"{key}: {ending}: {last}") from error
    if "error" in content:
        if printed:
            print(printed, file=sys.stderr)  # traceback of the user's code, above the error
        raise InputError(content["error"])
    return content


def _ends(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait in several polls until the process has ended, and return True. Return False after ``limit_s`` seconds."""
    parts = looks(limit_s)
    for _ in range(parts):
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s / parts)
            return True
    return False
