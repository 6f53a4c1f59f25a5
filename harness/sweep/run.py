"""Runs a sweep: asks its strategy for one trial after the other, trains it, and keeps everything that happened.

A sweep that was killed is resumed by sending the strategy the trials that the journal holds: what had ended is not run
again, and the one that was running goes on from its last checkpoint, or begins again, as the same trial.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from harness.launch.preparation import check_devices, check_writable, prepare_data
from harness.launch.protocol import TrialEvent, TrialStart
from harness.launch.study import create_folder, now, only_one
from harness.machine.environment import has_nvidia_driver, record_environment
from harness.study.store import StudyFolder
from harness.sweep import messages
from harness.sweep.budget import limit_s, shortage, spent_by
from harness.sweep.journal import TrialJournal, require_optuna
from harness.sweep.load import LoadedSweep
from harness.sweep.milestones import is_behind, milestones
from harness.sweep.model import SweepConfig
from harness.sweep.progress import SweepProgress
from harness.sweep.space import TrialConfigs
from harness.sweep.store import PILOT, Pilot, SweepFolder, SweepRecord, SweepStatus, Taken
from harness.sweep.trial_process import Order, TrialFailed, TrialLate, TrialServer
from harness.sweep.trials import Trial, TrialPlan
from trainer.config import TrainerConfig
from trainer.errors import InputError
from trainer.json_types import JsonObject
from trainer.model_files import objective_of

PILOT_STEPS, PILOT_SKIPPED = 20, 10
NOTED_EVERY_S = 2.0  # what a trial has taken is written this often, where it says that it lives


@dataclass(frozen=True)
class SweepEnded:
    """How a sweep ended, and where it lies."""

    folder: SweepFolder
    status: SweepStatus
    error: str | None


class BudgetOver(Exception):  # noqa: N818 - an outcome; everything is kept
    """The budget is spent, or what is left is too little for the next trial."""


def configs_of(loaded: LoadedSweep) -> TrialConfigs:
    """The configurations of a sweep's trials."""

    def vocabulary() -> int:
        from trainer.data.prepare import prepare

        config = loaded.config
        return prepare(config.data).with_objective(objective_of(config.model)).vocab_size

    return TrialConfigs(loaded.settings, loaded.config, vocabulary)


def begin_sweep(loaded: LoadedSweep, out: Path, command: Sequence[str], source: str) -> SweepEnded:
    """Begin a sweep in a new folder below ``out``. Raises InputError before anything ran where it cannot work."""
    require_optuna()  # before data is prepared and a folder begun
    settings, configs = loaded.settings, configs_of(loaded)
    check_writable(out)
    check_devices({loaded.arm: configs.base})
    space = configs.space()
    stages = settings.strategy.stages(space)
    longest = max(stages, key=lambda stage: stage.steps)
    plan = TrialPlan(space.low, longest.steps, space.seeds[0])
    config = configs.of(plan)
    price = settings.price_usd_per_hour or _price_of_device(config)
    if settings.budget.usd is not None and price is None:
        raise InputError(
            "budget.usd: no price of this machine is known; give price_usd_per_hour, or a budget of hours or tokens"
        )
    step_tokens = configs.step_tokens(configs.base)
    if (short := shortage(settings.budget, plan, step_tokens, spent_by((), price), None, price)) is not None:
        raise InputError(messages.smaller_than_a_trial(short, plan, step_tokens, None, price))
    prepare_data({loaded.arm: config}, settings.limits.start_s)
    study = create_folder(out, settings.name)
    folder = SweepFolder(study.path)
    record = SweepRecord(
        settings.name, loaded.arm, settings.model_dump(mode="json"), loaded.config.model_dump(mode="json"), space.steps,
        step_tokens, _parameters(configs), price, "running", now(), list(command), source, record_environment(),
    )  # fmt: skip
    folder.write(record)
    return _run(folder, record, settings, configs)


def resume_sweep(path: Path, command: Sequence[str], budget: SweepConfig | None = None) -> SweepEnded:
    """Run what the sweep in ``path`` still lacks. ``budget``: settings whose budget and limits count from now on."""
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
    return _run(folder, record, settings, configs)


def recorded_sweep(record: SweepRecord, folder: SweepFolder) -> tuple[SweepConfig, TrainerConfig]:
    """The settings and the shared configuration of a sweep. Raises InputError where they are none."""
    try:
        return SweepConfig.model_validate(record.settings), TrainerConfig.model_validate(record.config)
    except ValueError as error:
        first = str(error).splitlines()
        raise InputError(f"{folder.sweep_json}: settings of another version of this program ({first[0]})") from error


def _parameters(configs: TrialConfigs) -> int | None:
    try:
        return configs.parameters(configs.base)
    except InputError:
        return None


def _price_of_device(config: TrainerConfig) -> float | None:
    """The list price of the devices that train, where their profile has one."""
    from harness.machine.gpu import read_nvml
    from trainer.devices.profiles import find_profile

    if config.compute.device == "cpu" or not has_nvidia_driver():
        return None
    for device in read_nvml().devices[:1]:
        profile = find_profile(device.name)
        if profile is not None and profile.price_per_hour_usd is not None:
            return profile.price_per_hour_usd * config.ranks
    return None


def _run(folder: SweepFolder, record: SweepRecord, settings: SweepConfig, configs: TrialConfigs) -> SweepEnded:
    with only_one(StudyFolder(folder.path)):
        return SweepRun(folder, record, settings, configs).run()


class SweepRun:
    """One part of a sweep: from where it stands to its end, or until it is stopped."""

    def __init__(self, folder: SweepFolder, record: SweepRecord, settings: SweepConfig, configs: TrialConfigs) -> None:
        self._folder, self._record, self._settings, self._configs = folder, record, settings, configs
        self._journal = TrialJournal(folder.path)
        self._trials = self._journal.trials()
        self._space = configs.space()
        self._limit_s = limit_s(settings.budget, record.price_usd_per_hour)
        self._server = TrialServer([configs.base.model_dump(mode="json")], settings.limits)
        self._progress = SweepProgress(settings.strategy.stages(self._space), self._trials)
        self._behind = False

    def run(self) -> SweepEnded:
        """Run trials until the strategy has no more; keep what was done, whatever happens."""
        status: SweepStatus = "failed"
        error: str | None = None
        self._record = self._folder.update(self._record, status="running", ended_utc=None, error=None)
        try:
            self._search()
            if any(one.status == "done" and one.plan.role != "probe" for one in self._trials):
                status = "done"
            elif messages.all_diverged(self._trials):
                status = "diverged"
            else:
                error = "no trial came to its end"
        except KeyboardInterrupt:
            status = "interrupted"
        except BudgetOver as over:
            status, error = "budget", str(over)
        except TrialFailed as failed:
            error = str(failed)
        except InputError as wrong:
            error = str(wrong)
            raise
        except OSError as fault:
            error = str(fault)
            raise
        finally:
            self._progress.end()
            self._server.close()
            self._record = self._folder.update(self._record, status=status, error=error, ended_utc=now())
        return SweepEnded(self._folder, status, error)

    def _search(self) -> None:
        asking = self._settings.strategy.search(self._space)
        number = 0
        try:
            plan = next(asking)
            while True:
                trial = self._trial(number, plan)
                number += 1
                plan = asking.send(trial)
        except StopIteration:
            pass

    def _trial(self, number: int, plan: TrialPlan) -> Trial:
        """The trial that the strategy asks for: as the journal has it, or trained now."""
        if number < len(self._trials):
            trial = self._trials[number]
            if trial.plan != plan:
                raise InputError(
                    f"{self._journal.path}: trial {number} is another than this state of the code asks for "
                    f"(learning rate {trial.plan.learning_rate:.4g}, now {plan.learning_rate:.4g}): a sweep goes on "
                    "with the code that began it"
                )
            if trial.status != "running":
                return trial
        else:
            self._check_budget(plan)
            trial = self._journal.begin(plan)
            self._trials.append(trial)
        ended = self._train(trial)
        self._journal.end(ended)
        self._trials[number] = ended
        self._tidy()
        self._progress.ended(ended, self._trials)
        return ended

    def _train(self, trial: Trial) -> Trial:
        folder, number, plan = self._folder.trial(trial.number), trial.number, trial.plan
        before = self._folder.taken(number)
        before_s, steps, tokens = before.seconds, before.steps, before.tokens
        if (left := self._folder.result(number)) is not None:  # it had ended when the sweep was killed
            return self._ended(trial, left, before_s)
        self._behind, over = False, False
        begun_s = noted_s = time.monotonic()
        others_s = spent_by(self._trials, None, self._record.lost_s).seconds

        def decide(event: TrialEvent) -> Order:
            steps, loss = event["steps"], event["loss"]
            if loss is None:
                return "step"
            self._journal.milestone(trial, steps, loss)
            self._trials[number] = replace(
                self._trials[number], milestones={**self._trials[number].milestones, steps: loss}
            )
            self._behind = is_behind(plan, steps, loss, [one for one in self._trials if one.number != number])
            return "stop" if self._behind else "step"

        def going_on(event: TrialEvent) -> bool:
            nonlocal noted_s, over, steps, tokens
            now_s, steps, tokens = time.monotonic(), event["steps"], event["tokens"]
            if now_s - noted_s >= NOTED_EVERY_S:
                noted_s = now_s
                self._folder.note_taken(number, Taken(before_s + now_s - begun_s, steps, tokens))
            self._progress.step(trial, event["steps"], event["loss"])
            over = self._limit_s is not None and others_s + before_s + now_s - begun_s > self._limit_s
            return not over

        if self._limit_s is not None and others_s + before_s >= self._limit_s:
            raise BudgetOver(messages.nothing_left(trial, self._limit_s))
        self._progress.begin(trial)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            start = self._start(plan, folder, plan.steps, milestones(plan.steps))
            event = self._server.train(start, folder / "log.txt", before_s, decide, going_on)
            steps, tokens = max(steps, _whole(event, "steps")), max(tokens, _whole(event, "tokens"))
        except TrialLate:
            seconds = before_s + time.monotonic() - begun_s
            return replace(self._trials[number], status="late", seconds=seconds, steps=steps, tokens=tokens)
        except TrialFailed as failed:
            raise TrialFailed(f"trial {number} (learning rate {plan.learning_rate:.4g}): {failed}") from failed
        finally:
            self._folder.note_taken(number, Taken(before_s + time.monotonic() - begun_s, steps, tokens))
        if over and event.get("status") == "interrupted":
            assert self._limit_s is not None
            raise BudgetOver(messages.stopped_within(trial, event["steps"], self._limit_s))
        return self._ended(self._trials[number], event, before_s + time.monotonic() - begun_s)

    def _start(self, plan: TrialPlan, folder: Path, steps: int, at: list[int]) -> TrialStart:
        divergence = self._settings.divergence
        return {
            "scenario": self._record.name, "arm": self._record.arm,
            "config": self._configs.of(plan).model_dump(mode="json"), "steps": steps,
            "folder": str(folder.absolute()), "command": self._record.command, "milestones": at,
            "above_start": divergence.above_start, "window": divergence.window, "beat_s": self._server.beat_s,
        }  # fmt: skip

    def _ended(self, trial: Trial, event: TrialEvent | JsonObject, seconds: float) -> Trial:
        """The trial as its last message says. Raises TrialFailed or InputError where that is a fault."""
        status, loss, error = event.get("status"), event.get("validation_loss"), event.get("error")
        found = replace(
            trial, steps=_whole(event, "steps"), tokens=_whole(event, "tokens"), seconds=seconds,
            training_loss=_number(event.get("loss")), hellaswag=_number(event.get("right")),
        )  # fmt: skip
        if status == "failed":
            if event.get("wrong_input"):
                raise InputError(str(error))
            raise TrialFailed(f"trial {trial.number} (learning rate {trial.plan.learning_rate:.4g}): {error}")
        if status == "interrupted":
            if not self._behind:
                raise TrialFailed(f"trial {trial.number}: its process was asked to end by a signal")
            return replace(found, status="behind")
        if status == "diverged" or _number(loss) is None:
            return replace(found, status="diverged")
        return replace(found, status="done", loss=_number(loss))

    def _check_budget(self, plan: TrialPlan) -> None:
        """Raise BudgetOver where what is left is too little for that trial; before the first, InputError."""
        budget, price = self._settings.budget, self._record.price_usd_per_hour
        longest = replace(plan, steps=self._longest(plan))
        if (budget.hours is not None or budget.usd is not None) and plan.kind not in self._record.pilots:
            self._measure(longest)
        tokens = self._configs.step_tokens(self._configs.of(plan))
        spent = spent_by(self._trials, price, self._record.lost_s)
        pilot = self._record.pilots.get(plan.kind)
        first = not self._trials and pilot is not None
        if first and (short := shortage(budget, longest, tokens, spent_by((), price), pilot, price)) is not None:
            raise InputError(messages.smaller_than_a_trial(short, longest, tokens, pilot, price))
        if (short := shortage(budget, plan, tokens, spent, pilot, price)) is not None:
            raise BudgetOver(messages.too_little_left(short, plan))

    def _longest(self, plan: TrialPlan) -> int:
        """Steps of the longest trials that differ from ``plan`` in rate, steps and seed alone."""
        stages = self._settings.strategy.stages(self._space)
        same = [one for one in stages if not plan.overrides or one.of.split(",")[0] == plan.group]
        return max((stage.steps for stage in same), default=plan.steps)

    def _measure(self, plan: TrialPlan) -> None:
        """Train a few steps of a trial's configuration, which is no trial, to know what a step takes."""
        from pyarrow.parquet import read_table

        folder = self._folder.path / PILOT
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        count, begun_s = min(PILOT_STEPS, plan.steps), time.monotonic()
        self._progress.measuring(count)
        mildest = replace(plan, learning_rate=self._space.low)  # the rate that diverges last
        start = self._start(mildest, folder, count, [])
        before_s = spent_by(self._trials, None, self._record.lost_s).seconds
        may_s = math.inf if self._limit_s is None else self._limit_s - before_s

        def going_on(_: TrialEvent) -> bool:
            return time.monotonic() - begun_s <= may_s

        try:
            event = self._server.train(start, folder / "log.txt", 0.0, lambda _: "step", going_on)
        except TrialLate as late:
            raise TrialFailed(
                f"the {count} steps that say what a trial takes took longer than a trial may (limits.trial_hours)"
            ) from late
        seconds = time.monotonic() - begun_s
        if event.get("status") == "interrupted":
            self._record = self._folder.update(self._record, lost_s=self._record.lost_s + seconds)
            if seconds > may_s:
                raise BudgetOver(messages.spent_on_the_pilot(seconds, count))
            raise TrialFailed("the training that says what a trial takes was asked to end by a signal")
        if event.get("status") == "failed":
            self._ended(Trial(0, plan), event, seconds)
        table = next(folder.glob("runs/*/*/steps.parquet"), None)
        walls = [] if table is None else read_table(table, columns=["wall_ns"]).column("wall_ns").to_pylist()
        walls = [value / 1e9 for value in walls]
        if not walls:
            raise TrialFailed(f"what a step takes could not be measured; see {folder}")
        step_s = median(walls[PILOT_SKIPPED:] or walls)
        pilot = Pilot(max(0.0, seconds - sum(walls)), step_s)
        pilots = {**self._record.pilots, plan.kind: pilot}
        self._record = replace(self._record, pilots=pilots, lost_s=self._record.lost_s + seconds)
        self._folder.write(self._record)
        shutil.rmtree(folder, ignore_errors=True)

    def _tidy(self) -> None:
        """Remove the checkpoints that nobody needs."""
        keep = self._settings.keep
        if keep == "all":
            return
        done = [one for one in self._trials if one.status == "done" and one.plan.role != "probe"]
        best = min(done, key=lambda one: (-one.plan.steps, one.score), default=None) if keep == "best" else None
        ended = (one.number for one in self._trials if one.status != "running" and (best is None or one != best))
        for other in ended:
            self._folder.remove_checkpoints(other)


def _whole(content: TrialEvent | JsonObject, key: str) -> int:
    found = content.get(key)
    return found if isinstance(found, int) else 0


def _number(value: object) -> float | None:
    found = float(value) if isinstance(value, int | float) else None
    return found if found is not None and math.isfinite(found) else None
