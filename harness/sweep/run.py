"""Run a sweep: ask its strategy for one trial after the other, train it, and record the results."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from harness.judge.cost import SpendingLimit
from harness.launch.protocol import TrialEvent, TrialStart
from harness.study.records import now
from harness.sweep import messages
from harness.sweep.budget import BudgetOver, TrialsNeed, need_of, needs_by_size, shortage, spent_by
from harness.sweep.messages import SweepProgress
from harness.sweep.model import SweepConfig, TrialConfigs
from harness.sweep.pilot import PILOT_STEPS, pilots_of, refuse_too_much, time_steps, train_pilot
from harness.sweep.store import PILOT, SweepFolder, SweepRecord, SweepStatus, Taken, TrialJournal
from harness.sweep.trial_run import Order, TrialFailed, TrialLate, TrialServer, finite
from harness.sweep.trials import Trial, TrialPlan, is_behind, milestones
from trainer.errors import InputError
from trainer.json_types import JsonObject

NOTED_EVERY_S = 2.0  # seconds between two updates of a running trial's spending, written with its heartbeats


@dataclass(frozen=True)
class SweepEnded:
    """Outcome of :meth:`SweepRun.run`. ``error``: reason for a failure or a stop; None otherwise."""

    folder: SweepFolder
    status: SweepStatus
    error: str | None


@dataclass(frozen=True)
class SweepCost:
    """Expected need of all trials, by size, if none ends early. ``measuring_s``: seconds spent to measure it."""

    needs: tuple[TrialsNeed, ...]
    measuring_s: float
    price_usd_per_hour: float | None
    evaluated: bool


class SweepRun:
    """One start of a sweep, new or resumed: runs its remaining trials until it ends or is stopped."""

    def __init__(
        self,
        folder: SweepFolder,
        record: SweepRecord,
        settings: SweepConfig,
        configs: TrialConfigs,
        trial_ended: Callable[[], None] = lambda: None,
    ) -> None:
        """Open the journal in ``folder``. ``trial_ended``: called each time a trial has ended and is recorded."""
        self._trial_ended = trial_ended
        self._folder, self._record, self._settings, self._configs = folder, record, settings, configs
        self._journal = TrialJournal(folder.path)
        self._trials = self._journal.trials()
        self._space = configs.space()
        self._limit_s = SpendingLimit(settings.budget.usd, settings.budget.hours).seconds(record.price_usd_per_hour)
        self._server = TrialServer([configs.base.model_dump(mode="json")], settings.limits)
        self._progress = SweepProgress(settings.strategy.stages(self._space), self._trials)
        self._behind = False

    def run(self) -> SweepEnded:
        """Run trials until the strategy ends, the budget is spent or a failure occurs; wrong input and files raise
        again.
        """
        status: SweepStatus = "failed"
        error: str | None = None
        self._record = self._folder.update(self._record, status="running", ended_utc=None, error=None)
        try:
            self._search()
            if any(trial.status == "done" and trial.plan.role != "probe" for trial in self._trials):
                status = "done"
            elif messages.all_diverged(self._trials):
                status = "diverged"
            else:
                error = "no trial finished"
        except KeyboardInterrupt:
            status = "interrupted"
        except BudgetOver as over:
            status, error = "budget", str(over)
        except TrialFailed as failed:
            error = str(failed)
        except (InputError, OSError) as wrong:
            error = str(wrong)
            raise
        finally:
            self._progress.end()
            self._server.close()
            self._record = self._folder.update(self._record, status=status, error=error, ended_utc=now())
        return SweepEnded(self._folder, status, error)

    def cost(self) -> SweepCost:
        """Train a few steps of each size, and return the expected cost of all trials. No trial is run."""
        try:
            kinds = pilots_of(self._settings, self._space)
            for plan in kinds.values():
                self._measure(plan)
        finally:
            self._progress.end()
            self._server.close()
        stages = self._settings.strategy.stages(self._space)
        needs = needs_by_size(stages, self._space, self._configs, self._record.pilots)
        evaluated = self._configs.base.evaluation is not None
        return SweepCost(tuple(needs), self._record.lost_s, self._record.price_usd_per_hour, evaluated)

    def _search(self) -> None:
        asking = self._settings.strategy.search(self._space)
        with suppress(StopIteration):
            plan = next(asking)
            for number in count():
                plan = asking.send(self._trial(number, plan))

    def _trial(self, number: int, plan: TrialPlan) -> Trial:
        """Return trial ``number``, from the journal or trained now. Raises InputError if the journal differs."""
        if number < len(self._trials):
            trial = self._trials[number]
            if trial.plan != plan:
                raise InputError(
                    f"{self._journal.path}: trial {number} differs from the one that this version of the code "
                    f"plans (learning rate {trial.plan.learning_rate:.4g}, now {plan.learning_rate:.4g}); resume with "
                    "the code that started the sweep"
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
        self._trial_ended()
        return ended

    def _train(self, trial: Trial) -> Trial:
        folder, number, plan = self._folder.trial(trial.number), trial.number, trial.plan
        progress = self._folder.taken(number)
        before_s, steps, tokens = progress.seconds, progress.steps, progress.tokens
        if (result := self._folder.result(number)) is not None:  # The trial had ended when the sweep was killed.
            return self._ended(trial, result, before_s)
        self._behind, over = False, False
        begun_s = noted_s = time.monotonic()
        others_s = spent_by(self._trials, None, self._record.lost_s).seconds

        def decide(event: TrialEvent) -> Order:
            steps, loss = event["steps"], event["loss"]
            if loss is None:
                return "step"
            self._journal.milestone(trial, steps, loss)
            known = self._trials[number]
            self._trials[number] = replace(known, milestones={**known.milestones, steps: loss})
            self._behind = is_behind(plan, steps, loss, [peer for peer in self._trials if peer.number != number])
            if not self._behind:
                return "step"
            return "evaluate" if self._settings.evaluate_behind else "stop"

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
        """Return ``trial`` with the results in ``event``. Raises TrialFailed or InputError if it failed."""
        status, loss, error = event.get("status"), event.get("validation_loss"), event.get("error")
        ended = replace(
            trial, steps=_whole(event, "steps"), tokens=_whole(event, "tokens"), seconds=seconds,
            training_loss=finite(event.get("loss")), hellaswag=finite(event.get("right")),
        )  # fmt: skip
        if status == "failed":
            if event.get("wrong_input"):
                raise InputError(str(error))
            raise TrialFailed(f"trial {trial.number} (learning rate {trial.plan.learning_rate:.4g}): {error}")
        if status == "interrupted":
            if not self._behind:
                raise TrialFailed(f"trial {trial.number}: a signal ended its process")
            return replace(ended, status="behind", loss=finite(loss) if self._settings.evaluate_behind else None)
        if status == "diverged" or finite(loss) is None:
            return replace(ended, status="diverged")
        return replace(ended, status="done", loss=finite(loss))

    def _check_budget(self, plan: TrialPlan) -> None:
        """Raise BudgetOver if less is left than ``plan`` needs; InputError if the whole budget is below one trial."""
        settings, price = self._settings, self._record.price_usd_per_hour
        kinds = pilots_of(settings, self._space)
        if settings.budget.hours is not None or settings.budget.usd is not None:
            for kind in kinds if not self._trials else [plan.kind]:
                if kind not in self._record.pilots:
                    self._measure(kinds.get(kind, plan))
        pilots, spent = self._record.pilots, spent_by(self._trials, price, self._record.lost_s)
        if not self._trials:
            refuse_too_much(settings, self._configs, pilots, spent, price)
        if (short := shortage(settings.budget, [need_of(plan, self._configs, pilots)], spent, price)) is not None:
            raise BudgetOver(messages.too_little_left(short, plan))

    def _measure(self, plan: TrialPlan) -> None:
        """Train a few steps of ``plan``, outside of any trial, and record their times as a pilot."""
        folder = self._folder.path / PILOT
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        steps = min(PILOT_STEPS, plan.steps)
        self._progress.measuring(steps, plan.group)
        before_s = spent_by(self._trials, None, self._record.lost_s).seconds
        may_s = math.inf if self._limit_s is None else self._limit_s - before_s
        begun_s = time.monotonic()
        try:
            config = self._configs.of(plan)
            # Only a sweep whose cost alone is computed may use an emulated device.
            if config.compute.emulated is not None:
                pilot = time_steps(self._record.arm, config, folder, self._record.command)
            else:
                pilot = train_pilot(self._server, self._start(plan, folder, steps, []), may_s)
        finally:
            lost_s = self._record.lost_s + time.monotonic() - begun_s
            self._record = self._folder.update(self._record, lost_s=lost_s)
        self._record = replace(self._record, pilots={**self._record.pilots, plan.kind: pilot})
        self._folder.write(self._record)
        shutil.rmtree(folder, ignore_errors=True)

    def _tidy(self) -> None:
        """Remove the checkpoints of ended trials that the setting ``keep`` does not ask for."""
        keep = self._settings.keep
        if keep == "all":
            return
        done = [trial for trial in self._trials if trial.status == "done" and trial.plan.role != "probe"]
        best = min(done, key=lambda trial: (-trial.plan.steps, trial.score), default=None) if keep == "best" else None
        for trial in self._trials:
            if trial.status != "running" and trial != best:
                self._folder.remove_checkpoints(trial.number)


def _whole(content: TrialEvent | JsonObject, key: str) -> int:
    value = content.get(key)
    return value if isinstance(value, int) else 0
