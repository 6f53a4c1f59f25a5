"""Tries a data source of the user's own before the first run: what cannot work is said in a line, before any study."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from harness.launch.code import OWN_FOLDER, Code, environment_for
from harness.launch.progress import announced
from trainer.config import DataConfig, TrainerConfig
from trainer.errors import InputError, one_line
from trainer.model import resolve_shape

TRIAL_S = 900.0  # for the user's imports, his function, and one batch
SHOWN = 6  # last lines of what he printed


class TriedSources:
    """Each source is tried once for all arms that use it alike."""

    def __init__(self) -> None:
        self._tried: dict[tuple[str, Code | None], tuple[int, int]] = {}

    def check(self, arm: str, config: TrainerConfig, code: Code | None = None) -> None:
        """Raise InputError where the source gives no batch, or one that the arm's model cannot take.

        ``code``: the state of the user's code, if not the one here.
        """
        data = config.data
        assert data.source is not None
        keys = {"source", "arguments", "batch_size", "sequence_length", "shuffle", "extra_reads"}
        asked = data.model_dump_json(include=keys), code
        at = "" if code is None else f" at {code.label}"
        if asked not in self._tried:
            with announced(f"trying data.source {data.source}{at}"):
                try:
                    self._tried[asked] = _try(data, code)
                except InputError as error:
                    raise (InputError(f"{code.label}: {error}") if code else error) from error
        if config.model.factory is not None:
            return  # it knows itself how many ids it takes
        smallest, largest = self._tried[asked]
        shape = resolve_shape(config.model, 0, data.sequence_length)
        if not shape.vocab_size:
            raise InputError(
                f"arm {arm}: model.vocab_size: give it, as {data.source} does not say how many ids there are (the "
                f"largest of its first batch is {largest})"
            )
        if not 0 <= smallest <= largest < shape.vocab_size:
            raise InputError(
                f"arm {arm}: {data.source} gives ids from {smallest} to {largest}, but model.vocab_size is "
                f"{shape.vocab_size}"
            )


def _try(data: DataConfig, code: Code | None) -> tuple[int, int]:
    """The smallest and the largest id of its first batch."""
    process = subprocess.Popen(
        [sys.executable, "-m", "trainer.data.user_trial"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=None if code is None else code.directory,
        env=environment_for(OWN_FOLDER) if code is None else code.environment(),
        start_new_session=True,
    )
    try:
        out, errors = process.communicate(data.model_dump_json().encode(), timeout=TRIAL_S)
    except subprocess.TimeoutExpired as error:
        raise InputError(f"data.source: {data.source} gave no batch within {TRIAL_S / 60:g} minutes") from error
    finally:
        if process.poll() is None:
            os.killpg(process.pid, 9)
            process.communicate()
    printed = errors.decode(errors="replace").strip()
    try:
        found = json.loads(out)
    except ValueError as error:
        last = one_line(" / ".join(printed.splitlines()[-SHOWN:])) or "it said nothing"
        raise InputError(
            f"data.source: {data.source} ended its process (exit code {process.returncode}): {last}"
        ) from error
    if "error" in found:
        if printed:
            print(printed, file=sys.stderr)  # the traceback of the user's own code, above the one line
        raise InputError(found["error"])
    if not found["trained_tokens"]:
        raise InputError(f"data.source: {data.source}: no label of its first batch counts (all are -100)")
    return found["smallest_id"], found["largest_id"]
