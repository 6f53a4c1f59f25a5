"""Writes what another trainer logged as the tables that a training here has."""

from __future__ import annotations

from pathlib import Path

from harness.launch.training_files import EVALUATIONS, LOSSES, EvaluationRow, EvaluationTable, LossRow, LossTable
from trainer.data import cache
from trainer.errors import InputError
from trainer.files import expanded
from trainer.llmc_log import LlmcLog


def import_log(log: LlmcLog, tokens_per_step: int, out: Path) -> None:
    """Write losses.csv and evaluations.csv of llm.c's log into the new folder ``out``: its HellaSwag is by token.

    The numbers of steps are ours: the step after which something was found, from 0. What llm.c found before the first
    one stands at step -1. Which steps are in the tables, the log says: there may be gaps.
    """
    target = expanded(out).absolute()
    if target.exists():
        raise InputError(f"{out}: there is something already; choose a new folder (--out)")

    def build(to: Path) -> None:
        losses = LossTable(to / LOSSES, 0)
        for step in log.training:
            losses.add(LossRow(step.step, (step.step + 1) * tokens_per_step, step.loss))
        losses.close()
        if log.validation or log.hellaswag:
            passes = EvaluationTable(to / EVALUATIONS, 0)
            for score in log.validation:
                passes.add(EvaluationRow(score.updates - 1, score.value, None, None))
            for score in log.hellaswag:
                passes.add(EvaluationRow(score.updates - 1, None, None, None, acc_tokens=score.value))

    cache.create_folder(target, build)
