"""Check before the first run that every run can work, also with the user's code, and prepare all data."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile, TemporaryFile
from typing import TYPE_CHECKING, Any, NamedTuple

from pydantic import ValidationError

from harness.launch.channel import looks
from harness.launch.code import OWN_FOLDER, Code, environment_for
from harness.launch.diagnosis import diagnose, killed_by, look_at
from harness.launch.needs import RunNeed, need_of
from harness.launch.probing import probes_of
from harness.launch.progress import announced
from harness.launch.protocol import DataMessage
from harness.machine.environment import has_nvidia_driver
from harness.machine.processes import with_variable
from harness.study.records import StudyRecord, first_fault
from trainer.config import DataConfig, TrainerConfig, recorded_config
from trainer.errors import InputError, in_words, one_line
from trainer.json_types import integer, section
from trainer.model import shape_of
from trainer.model_files import model_files, objective_of
from trainer.user_code import fingerprint

if TYPE_CHECKING:
    from trainer.data.prepare import Prepared


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
        """Return the user's files that the trial of ``name`` (value of ``key``) imported; empty without a trial."""
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
    """Return facts on the source's first batch. Raises InputError without one, or if all labels are ignored (-100)."""
    assert data.source is not None
    answer = _answer(KEY, data.source, [], data.model_dump_json(), start_s, code)
    if not answer["trained_tokens"]:
        raise InputError(f"{KEY}: {data.source}: all labels of its first batch are -100, so nothing is trained")
    return answer


def _answer(key: str, name: str, arguments: list[str], given: str, start_s: float, code: Code | None) -> dict[str, Any]:
    """Run a trial of the user's ``name`` (value of ``key``) in a process and return its JSON answer. Raises InputError
    if it fails, or takes longer than ``start_s`` seconds.
    """
    try:
        return _ask(key, name, arguments, given, start_s, code)
    except InputError as error:
        raise (InputError(f"{code.label}: {error}") if code else error) from error


def _ask(key: str, name: str, arguments: list[str], given: str, start_s: float, code: Code | None) -> dict[str, Any]:
    def late(pid: int, printed: Path) -> InputError:
        finding = diagnose(look_at(pid, 0, printed), "limits.start_s")
        failure = "returned no batch" if key == KEY else "was not imported"
        return InputError(f"{key}: {name} {failure} within {start_s:g} s (limits.start_s): {finding}")

    done = run_trial([*TRIAL, *arguments], given, start_s, late, code)
    try:
        content: dict[str, Any] = json.loads(done.answer)
    except ValueError as error:
        last = one_line(" / ".join(done.printed.splitlines()[-PRINTED_LINES_SHOWN:])) or "no output"
        ending = f"{name} ended its process (exit code {done.exit_code})"
        if done.exit_code < 0:
            ending = f"the process of {name} was {killed_by(-done.exit_code)}"
        raise InputError(f"{key}: {ending}: {last}") from error
    if "error" in content:
        if done.printed:
            print(done.printed, file=sys.stderr)  # traceback of the user's code, above the error
        raise InputError(content["error"])
    return content


class TrialAnswer(NamedTuple):
    """Result of a trial's process: standard output (the answer), standard error, and exit code (-N for signal N)."""

    answer: bytes
    printed: str
    exit_code: int


def run_trial(
    arguments: Sequence[str],
    given: str,
    limit_s: float,
    late: Callable[[int, Path], InputError],
    code: Code | None = None,
) -> TrialAnswer:
    """Run Python with ``arguments`` and the input ``given``, and end it with all processes that it started. ``late``:
    makes the error after ``limit_s`` seconds, from the process id and the file of its messages.
    """
    # Files instead of pipes: child processes of the source would keep their end of a pipe open.
    with TemporaryFile() as asked, TemporaryFile() as answer, NamedTemporaryFile(prefix="harness-trial-") as errors:
        asked.write(given.encode())
        asked.seek(0)
        token = secrets.token_hex(8)
        process = subprocess.Popen(
            [sys.executable, *arguments],
            stdin=asked,
            stdout=answer,
            stderr=errors,
            cwd=None if code is None else code.directory,
            env={**(environment_for(OWN_FOLDER) if code is None else code.environment()), VARIABLE: token},
            start_new_session=True,
        )
        try:
            if not _ends(process, limit_s):
                raise late(process.pid, Path(errors.name))
        finally:
            with suppress(ProcessLookupError):  # No process of the group is left.
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            for pid in with_variable(VARIABLE, token):  # child processes in other sessions
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        answer.seek(0)
        errors.seek(0)
        return TrialAnswer(answer.read(), errors.read().decode(errors="replace").strip(), process.returncode)


def _ends(process: subprocess.Popen[bytes], limit_s: float) -> bool:
    """Wait in several polls until the process has ended, and return True. Return False after ``limit_s`` seconds."""
    parts = looks(limit_s)
    for _ in range(parts):
        with suppress(subprocess.TimeoutExpired):
            process.wait(limit_s / parts)
            return True
    return False


MAX_SLICE_STEPS = 100_000  # maximum that scenarios allow


@dataclass(frozen=True)
class StudyData:
    """Data prepared for a study: memory needs of its runs, fingerprints, and the message for the runs of each arm."""

    needs: list[RunNeed]  # one for each run of a block, in the order of the arms
    fingerprints: dict[str, str]  # fingerprint of each corpus and tokenizer, by its name in study.json
    by_arm: dict[str, DataMessage]
    notes: tuple[str, ...] = ()  # for the report


def check_writable(out: Path) -> None:
    """Raise InputError if no folder can be created at ``out``. Call it before data are prepared."""
    folder = next((path for path in (out, *out.absolute().parents) if path.exists()), out)
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: cannot write there; give a folder that can be written")


def check_devices(configs: dict[str, TrainerConfig]) -> None:
    """Raise InputError if an arm needs CUDA but this machine has no NVIDIA driver. Otherwise torch would fail later."""
    for name, config in configs.items():
        if config.compute.device == "cuda" and not has_nvidia_driver():
            raise InputError(
                f"arm {name}: compute.device: cuda, but there is no NVIDIA device here; allowed: auto, cpu"
            )
        if config.compute.precision == "tf32" and config.compute.device == "auto" and not has_nvidia_driver():
            raise InputError(
                f"arm {name}: compute.precision: tf32 needs a CUDA device, and compute.device auto is the CPU here; "
                "allowed: fp32, bf16, pure-bf16, fp16"
            )


def prepare_data(
    configs: dict[str, TrainerConfig], start_s: float, codes: Mapping[str, Code] | None = None
) -> StudyData:
    """Build the data of all arms, or find them in the cache, before the first run. ``start_s``: limit of a trial of the
    user's code. ``codes``: its state by arm, if not the current one. Raises InputError for what cannot be used.
    """
    from trainer.data.prepare import check_workers, prepare, warnings_of

    codes = codes or {}
    tried = TriedSources(start_s)
    prepared: dict[str, Prepared] = {}
    by_arm: dict[str, Prepared] = {}
    fingerprints: dict[str, str] = {}
    needs = []
    asked: set[str] = set()
    warned: set[str] = set()
    for name, config in configs.items():
        data = config.data
        code = codes.get(name)
        places = None if code is None else code.places
        source = data.source or data.corpus.model_dump()
        held_out = config.evaluation and config.evaluation.model_dump(include={"fraction", "documents", "corpus"})
        kept = [held_out, source, data.tokenizer.model_dump(), data.path, data.sequence_length, places]
        key = json.dumps(kept, sort_keys=True)
        if key not in prepared:
            origin = data.source or data.path
            with announced(f"preparing data: {origin}, sequence length {data.sequence_length}"):
                prepared[key] = prepare(data, places, evaluation=config.evaluation)
        try:
            arm_data = by_arm[name] = prepared[key].with_objective(objective_of(config.model))
        except InputError as error:
            raise InputError(f"arm {name}: {error}") from error
        for line in warnings_of(data, arm_data):
            if line not in warned:
                print(line, file=sys.stderr)
            warned.add(line)
        check_workers(data, arm_data, config.ranks)
        _check_questions(name, config, arm_data, asked)
        if data.source is not None:
            tried.check(name, config, code)
        else:
            fingerprints |= _fingerprints(data, arm_data)
        if (factory := config.model.factory) is not None:
            tried.check_model(factory, code)
        else:
            _check_shape(name, config, arm_data)
        needs.append(need_of(name, config, arm_data.vocab_size))
    messages = {
        name: _message(config, by_arm[name], tried, fingerprints, codes.get(name)) for name, config in configs.items()
    }
    return StudyData(needs, fingerprints, messages, tuple(tried.notes))


def _fingerprints(data: DataConfig, prepared: Prepared) -> dict[str, str]:
    """Return the fingerprints of the corpora and the tokenizer, by their names in study.json ("corpus NAME", ...)."""
    corpus = data.corpus.path or data.corpus.parquet or data.corpus.builtin
    kind = data.tokenizer.model_dump_json(exclude_none=True)
    held_out = {}
    if prepared.held_out is not None:
        held_out = {f"evaluation.corpus {prepared.held_out.corpus.name}": prepared.held_out.corpus.fingerprint}
    return {
        f"corpus {corpus}": prepared.corpus.fingerprint,
        **held_out,
        f"tokenizer {kind}": prepared.tokenizer.fingerprint,
    }


def _check_shape(name: str, config: TrainerConfig, prepared: Prepared) -> None:
    """Raise InputError if the model of arm ``name`` does not fit the data, or does not fit its emulated device."""
    from trainer.compute.build import emulated_shape
    from trainer.compute.emulated import build_emulated

    if config.compute.emulated is None or config.compute.work != "model":
        shape_of(config.model, prepared.vocab_size, config.data.sequence_length)
        return
    try:
        build_emulated(config, emulated_shape(config, prepared.vocab_size))
    except InputError as error:
        raise InputError(f"arm {name}: {error}") from error


def _check_questions(name: str, config: TrainerConfig, prepared: Prepared, asked: set[str]) -> None:
    """Raise InputError if the questions of arm ``name`` cannot be used. ``asked``: keys of checked sets."""
    from trainer.multiple_choice import check_causal, load_choices

    if config.evaluation is None or (questions := config.evaluation.multiple_choice) is None:
        return
    try:
        shape = shape_of(config.model, prepared.vocab_size, config.data.sequence_length)
        longest_row = None if shape is None else shape.positions + 1
        check_causal(prepared.objective)
        key = f"{questions.model_dump_json()} {prepared.tokenizer.fingerprint} {longest_row}"
        if key not in asked:
            load_choices(questions, prepared.tokenizer, longest_row)
            asked.add(key)
    except InputError as error:
        raise InputError(f"arm {name}: {error}") from error


def _message(
    config: TrainerConfig, prepared: Prepared, tried: TriedSources, fingerprints: dict[str, str], code: Code | None
) -> DataMessage:
    """Return the data and model part of a run's first message. Add the user's code and model to ``fingerprints``."""
    from trainer.data.cache import known_digests
    from trainer.data.prepare import prepare

    files = {}
    places, suffix = (None, "") if code is None else (code.places, f" at {code.label}")
    if (source := config.data.source) is not None:
        files["data.source"] = tried.files("data.source", source, code)
        prepared = prepare(config.data, places, files["data.source"])
        fingerprints[f"code of data.source {source}{suffix}"] = prepared.corpus.fingerprint
    message: DataMessage = {
        "corpus": prepared.corpus.fingerprint,
        "tokenizer": prepared.tokenizer.fingerprint,
        "hashed": known_digests(),
        "files": files,
    }
    if prepared.tokenizer.proof is not None:
        message["engine"] = prepared.tokenizer.engine
    if (factory := config.model.factory) is not None:
        files["model.factory"] = tried.files("model.factory", factory, code)
        message["model"] = fingerprint("model.factory", factory, places, files["model.factory"])
        fingerprints[f"code of model.factory {factory}{suffix}"] = message["model"]
    if (named := model_files(config.model)) is not None:
        message["model"] = named.fingerprint
        message["hashed"] = known_digests()
        if not isinstance(config.model.config, dict):  # Otherwise the scenario itself contains it.
            size = config.model.vocab_size
            fingerprints[named.title + ("" if size is None else f", vocab_size {size}")] = named.fingerprint
    return message


def recorded_configs(path: Path, record: StudyRecord) -> dict[str, TrainerConfig]:
    """Return the recorded configuration by arm. Raises InputError if an edited study.json is not valid."""
    names = {arm.name for arm in record.arms}
    if unknown := sorted({name for order in record.order for name in order} - names):
        raise InputError(f"{path}: order: no arm is called {unknown[0]}")
    numbers = [(record.scenario_text, "slice_steps"), *((arm.config, "seed") for arm in record.arms)]
    for content, key in numbers:
        try:
            integer(content, key)
        except KeyError as error:
            raise InputError(f"{path}: {key}: missing") from error
        except TypeError as error:
            raise InputError(f"{path}: {error}") from error
    if not 1 <= integer(record.scenario_text, "slice_steps") <= MAX_SLICE_STEPS:
        raise InputError(f"{path}: slice_steps: 1 to {MAX_SLICE_STEPS:,}")
    configs = {}
    for arm in record.arms:
        try:
            configs[arm.name] = recorded_config(arm.config)
        except ValidationError as error:
            raise InputError(f"{path}: config of {arm.name}: {first_fault(error)}") from error
        try:
            probes_of(section(record.scenario_text, "probes"), arm.control)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: scenario_text.probes: not valid settings of a run: {in_words(error)}") from error
    return configs
