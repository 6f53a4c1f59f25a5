"""Starts and resumes sweeps. Reads their settings, and refuses what cannot work before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Protocol

from harness.launch.preparation import check_devices, check_writable, prepare_data
from harness.launch.study import create_folder, only_one
from harness.machine.environment import has_nvidia_driver, record_environment
from harness.study.records import now
from harness.study.store import StudyFolder
from harness.sweep.budget import spent_by
from harness.sweep.load import LoadedSweep
from harness.sweep.model import SweepConfig, TrialConfigs
from harness.sweep.pilot import refuse_too_much
from harness.sweep.run import SweepCost, SweepEnded, SweepRun
from harness.sweep.store import SweepFolder, SweepRecord, require_optuna
from harness.sweep.trials import TrialPlan
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.model_files import objective_of


class FolderCopy(Protocol):
    """Copies a sweep's folder to another place, such as a bucket, while the sweep runs (``--upload``)."""

    def begin(self, folder: Path) -> None:
        """Begin to copy ``folder``. It exists already, and no trial of this start of the sweep has run yet."""

    def ask(self) -> None:
        """Ask for a copy, because a trial has ended. Returns at once."""


def configs_of(loaded: LoadedSweep, *, compared: bool = True) -> TrialConfigs:
    """Return what makes the configurations of the trials. ``compared``: as in :class:`TrialConfigs`."""

    def vocabulary() -> int:
        from trainer.data.prepare import prepare

        config = loaded.config
        return prepare(config.data).with_objective(objective_of(config.model)).vocab_size

    return TrialConfigs(loaded.settings, loaded.config, vocabulary, compared=compared)


def begin_sweep(
    loaded: LoadedSweep, out: Path, command: Sequence[str], source: str, copy: FolderCopy | None = None
) -> SweepEnded:
    """Run a sweep in a new folder below ``out``. Raises InputError before anything runs if a setting cannot work."""
    return _run(*_begun(loaded, out, command, source), copy)


def cost_of_sweep(loaded: LoadedSweep, command: Sequence[str], source: str) -> SweepCost:
    """Return the expected cost of all trials, from a few steps of each size. Raises InputError or TrialFailed."""
    with TemporaryDirectory(prefix="sweep-cost-") as place:
        return SweepRun(*_begun(loaded, Path(place), command, source, compared=False)).cost()


def _begun(
    loaded: LoadedSweep, out: Path, command: Sequence[str], source: str, *, compared: bool = True
) -> tuple[SweepFolder, SweepRecord, SweepConfig, TrialConfigs]:
    require_optuna()  # Fail before data is prepared and a folder is created.
    settings, configs = loaded.settings, configs_of(loaded, compared=compared)
    check_writable(out)
    check_devices({loaded.arm: configs.base})
    space = configs.space()
    longest = max(settings.strategy.stages(space), key=lambda stage: stage.steps)
    config = configs.of(TrialPlan(space.low, longest.steps, space.seeds[0]))
    price = settings.price_usd_per_hour or _price_of_device(config)
    if settings.budget.usd is not None and price is None:
        raise InputError(
            "budget.usd: the price of this machine is unknown; give price_usd_per_hour, or a budget of hours or tokens"
        )
    refuse_too_much(settings, configs, {}, spent_by((), price), price)
    prepare_data({loaded.arm: config}, settings.limits.start_s)
    parameters = None
    with suppress(InputError):  # unknown for a model.factory
        parameters = configs.parameters(configs.base)
    study = create_folder(out, settings.name)
    folder = SweepFolder(study.path)
    record = SweepRecord(
        settings.name, loaded.arm, settings.model_dump(mode="json"), loaded.config.model_dump(mode="json"), space.steps,
        configs.step_tokens(configs.base), parameters, price, "running", now(), list(command), source,
        record_environment(),
    )  # fmt: skip
    folder.write(record)
    return folder, record, settings, configs


def resume_sweep(
    path: Path, command: Sequence[str], budget: SweepConfig | None = None, copy: FolderCopy | None = None
) -> SweepEnded:
    """Run the remaining trials of a sweep. ``budget``: settings whose budget and limits replace the recorded ones."""
    folder = SweepFolder(path)
    record = folder.read()
    settings, config = recorded_sweep(record, folder)
    if budget is not None:
        settings = settings.model_copy(update={"budget": budget.budget, "limits": budget.limits})
    if settings.budget.usd is not None and record.price_usd_per_hour is None:
        raise InputError("budget.usd: this sweep was begun without a price; give a budget of hours or tokens")
    loaded = LoadedSweep(settings, record.arm, config)
    configs = configs_of(loaded)
    check_devices({record.arm: configs.base})
    record = replace(record, settings=settings.model_dump(mode="json"), command=list(command))
    return _run(folder, record, settings, configs, copy)


def recorded_sweep(record: SweepRecord, folder: SweepFolder) -> tuple[SweepConfig, TrainerConfig]:
    """Return the recorded settings and shared configuration. Raises InputError if this version refuses them."""
    try:
        return SweepConfig.model_validate(record.settings), TrainerConfig.model_validate(record.config)
    except ValueError as error:
        first = str(error).splitlines()
        raise InputError(f"{folder.sweep_json}: settings of another version of this program ({first[0]})") from error


def _price_of_device(config: TrainerConfig) -> float | None:
    """Return the list price (USD per hour) of one trial's GPUs; None on a CPU, or without a price."""
    from harness.machine.gpu import read_nvml
    from trainer.devices.profiles import find_profile

    if config.compute.device == "cpu" or not has_nvidia_driver():
        return None
    for device in read_nvml().devices[:1]:
        profile = find_profile(device.name)
        if profile is not None and profile.price_per_hour_usd is not None:
            return profile.price_per_hour_usd * config.ranks
    return None


def _run(
    folder: SweepFolder, record: SweepRecord, settings: SweepConfig, configs: TrialConfigs, copy: FolderCopy | None
) -> SweepEnded:
    with only_one(StudyFolder(folder.path)):
        if copy is not None:
            copy.begin(folder.path)
        return SweepRun(folder, record, settings, configs, (lambda: None) if copy is None else copy.ask).run()
