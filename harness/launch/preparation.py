"""Finds out before the first run whether every run can work, and prepares the data of all of them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ValidationError

from harness.launch.memory import RunNeed, need_of
from harness.launch.probing import probes_of
from harness.launch.progress import announced
from harness.machine.environment import has_nvidia_driver
from harness.study.records import StudyRecord
from harness.study.validation import first_fault
from trainer.config import TrainerConfig
from trainer.errors import InputError, in_words
from trainer.json_types import integer, section

if TYPE_CHECKING:
    from trainer.data.prepare import Prepared

MAX_SLICE_STEPS = 100_000  # what a scenario may ask for


def check_writable(out: Path) -> None:
    """Before any data is prepared: the nearest folder that exists must take a new one."""
    there = next((path for path in (out, *out.absolute().parents) if path.exists()), out)
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"--out {out}: cannot write there; give a folder that can be written")


def check_devices(configs: dict[str, TrainerConfig]) -> None:
    """Refuse CUDA arms where no NVIDIA driver is loaded, before anything is built (torch would fail minutes later)."""
    for name, config in configs.items():
        if config.compute.device == "cuda" and not has_nvidia_driver():
            raise InputError(
                f"arm {name}: compute.device: cuda, but there is no NVIDIA device here; allowed: auto, cpu"
            )


def prepare_data(configs: dict[str, TrainerConfig]) -> tuple[list[RunNeed], dict[str, str]]:
    """Build or find every corpus, tokenizer and pretokenized file before the first run, so that no run pays for it.

    Returns the estimated memory of each run, and what each corpus and tokenizer holds. Raises InputError
    where an arm cannot work.
    """
    from trainer.compute.emulated import build_emulated
    from trainer.data.prepare import check_workers, prepare
    from trainer.model import resolve_shape

    prepared: dict[str, Prepared] = {}
    fingerprints: dict[str, str] = {}
    needs = []
    for name, config in configs.items():
        data = config.data
        key = json.dumps(
            [data.corpus.model_dump(), data.tokenizer.model_dump(), data.path, data.sequence_length], sort_keys=True
        )
        if key not in prepared:
            with announced(f"preparing data: {data.path}, sequence length {data.sequence_length}"):
                prepared[key] = prepare(data)
        check_workers(data, prepared[key])
        fingerprints[f"corpus {data.corpus.parquet or data.corpus.builtin}"] = prepared[key].corpus.fingerprint
        fingerprints[f"tokenizer {data.tokenizer.model_dump_json(exclude_none=True)}"] = prepared[
            key
        ].tokenizer.fingerprint
        vocab_size = prepared[key].tokenizer.vocab_size
        shape = resolve_shape(config.model, vocab_size, data.sequence_length)
        if config.compute.emulated is not None and config.compute.work == "model":
            try:
                build_emulated(config, shape)
            except InputError as error:
                raise InputError(f"arm {name}: {error}") from error
        needs.append(need_of(name, config, vocab_size))
    return needs, fingerprints


def recorded_configs(path: Path, record: StudyRecord) -> dict[str, TrainerConfig]:
    """The configuration of every arm; InputError (one line) where a changed study.json no longer says what to run."""
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
            configs[arm.name] = TrainerConfig.model_validate(arm.config)
        except ValidationError as error:
            raise InputError(f"{path}: config of {arm.name}: {first_fault(error)}") from error
        try:
            probes_of(section(record.scenario_text, "probes"), arm.control)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: scenario_text.probes: not what a run can be given: {in_words(error)}") from error
    return configs
