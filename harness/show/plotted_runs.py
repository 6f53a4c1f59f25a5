"""Finds the curves of runs in folders of harness train, in studies and in logs of llm.c, and makes their table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os.path import commonpath, normpath
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import numpy as np

from harness.explain.ledger import StepLosses
from harness.judge.learning import ChoicePass, choice_passes
from harness.launch.budget import expense_of, seconds_of
from harness.launch.training_files import EVALUATIONS, LOSSES, EvaluationRow, LossRow, read_evaluations, read_losses
from harness.scenario.overrides import HAND_OVER, flatten
from harness.show.cost import dollars, hours
from harness.show.curves import Measure, PlottedRun, Values, best_measure, curve, loss_curve, minimum
from harness.show.drawing import write_picture
from harness.show.policy import RUN_KEYS_MAX
from harness.show.tables import NOT_MEASURED, cell
from harness.study.store import StudyFolder
from trainer.data.corpus.places import is_remote
from trainer.errors import InputError
from trainer.json_types import Json, JsonObject
from trainer.llmc_log import LlmcLog, read_log
from trainer.trained_model import brought_here, tables_of_run

if TYPE_CHECKING:
    from harness.study.run_data import RunData

LLMC_LOG = "main.log"
HEADER = ["run", "parameters", "lowest training loss", "at step", "lowest validation loss", "at step"]
# Settings that do not affect the curves.
NO_NAMES = (
    *HAND_OVER, "steps", "warmup_steps", "log_every", "checkpoint.", "evaluation.", "launch.", "resume.step",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class CurveSource:
    """Curves of one run, and what :func:`named` can name it by."""

    run: PlottedRun
    place: Path
    arm: str | None = None  # missing outside a study
    config: JsonObject | None = None  # None if unknown


def find_curves(paths: Sequence[str], tokens_per_step: float | None) -> list[PlottedRun]:
    """Return the runs at ``paths``, with distinct names. ``tokens_per_step``: of llm.c logs. InputError without any."""
    return named([source for path in paths for source in _brought(path, tokens_per_step)])


def _brought(place: str, tokens_per_step: float | None) -> list[CurveSource]:
    """Return the runs at a path or URL. From a URL, the records and tables are first copied to this machine."""
    with brought_here(place, "plot", tables_of_run) as path:
        sources = _sources(path, tokens_per_step)
    if not is_remote(place):
        return sources
    return [replace(source, place=Path("/" + place.replace("://", ":/", 1))) for source in sources]


def _sources(path: Path, tokens_per_step: float | None) -> list[CurveSource]:
    if path.is_file():
        return [_of_log(path, tokens_per_step)]
    if (path / LOSSES).is_file():
        return [_of_training(path)]
    if (path / "study.json").is_file():
        return _of_study(path)
    if (path / LLMC_LOG).is_file():
        return [_of_log(path / LLMC_LOG, tokens_per_step)]
    problem = "contains no run" if path.is_dir() else "no such file or folder"
    raise InputError(
        f"{path}: {problem}; allowed: a folder of harness train, a study, or a {LLMC_LOG} of llm.c or the folder of one"
    )


def _of_training(path: Path) -> CurveSource:
    """Read a training's curves from its tables, killed parts included. Raise InputError if they have no loss."""
    losses = read_losses(path / LOSSES)
    file = path / EVALUATIONS
    passes = read_evaluations(file) if file.is_file() else []
    if not losses and not passes:
        raise InputError(f"{path / LOSSES}: contains no loss: the training ended before its first step was complete")
    run = PlottedRun("", *_tables(losses, passes), curve([(row.step + 1, row.tokens) for row in losses]))
    if not (path / "study.json").is_file():
        return CurveSource(run, path)
    folder, expense = StudyFolder(path), expense_of(path)
    study = folder.read_study()
    records = [folder.read_record(name, block) for block, names in enumerate(study.order) for name in names]
    parameters = next(
        (record.facts.parameters for record in records if record is not None and record.facts.parameters), None
    )
    # The hours of only a part of the training would mislead.
    seconds = None if expense.faults else expense.seconds or None
    not_counted = tuple(map(str, expense.faults))
    run = replace(
        run, parameters=parameters, seconds=seconds, usd=expense.usd if seconds else None, not_counted=not_counted
    )
    return CurveSource(run, path, config=study.arms[0].config if len(study.arms) == 1 else None)


def _tables(
    losses: Sequence[LossRow], passes: Sequence[EvaluationRow]
) -> tuple[Values, Values, tuple[ChoicePass, ...]]:
    choices = [
        ChoicePass(row.step, row.questions, row.acc, row.acc_norm, row.acc_bytes, row.acc_tokens)
        for row in passes
        if row.kind == "choices"
    ]
    training = curve([(row.step + 1, row.loss) for row in losses])
    return training, curve([(row.step + 1, row.loss) for row in passes if row.loss is not None]), tuple(choices)


def _of_study(path: Path) -> list[CurveSource]:
    """Return the curves of each arm's first finished run with losses, no controls. Raise InputError without any."""
    sources: dict[str, CurveSource] = {}
    study = StudyFolder(path)
    study.read_study()  # Raises an error of one line if the file is damaged.
    for study_run in study.runs():
        if (
            study_run.record.control is None
            and study_run.record.arm not in sources
            and (run := _of_run(study_run)) is not None
        ):
            sources[study_run.record.arm] = CurveSource(run, path, study_run.record.arm, study_run.record.config)
    if not sources:
        raise InputError(
            f"{path}: contains no finished run with a loss; an emulated device and a run without a model have none"
        )
    return list(sources.values())


def _of_run(run: RunData) -> PlottedRun | None:
    steps, losses = StepLosses(run).recorded()
    table = run.step_columns(["step", "tokens"])
    passes = [] if run.evaluations is None else run.evaluations.select(["step", "loss"]).to_pylist()
    held_out = curve([(row["step"] + 1, row["loss"]) for row in passes if row["loss"] is not None])
    choices = choice_passes(run)
    if table is None or not (len(steps) or held_out.shape[1] or choices):
        return None
    counts = table.column("tokens").to_pylist()
    tokens = None
    if None not in counts:
        tokens = np.stack([table.column("step").to_numpy() + 1.0, np.cumsum(np.array(counts, dtype=np.float64))])
    # Interleaved runs share their time, so none has a duration of its own.
    seconds = seconds_of(run.record) if run.record.interleave == "runs" else None
    return PlottedRun(
        "", np.stack([steps + 1.0, losses]), held_out, choices, tokens, run.record.facts.parameters, seconds or None
    )


def _of_log(path: Path, tokens_per_step: float | None) -> CurveSource:
    log = read_log(path)
    return CurveSource(of_llmc_log(log, tokens_per_step), path.parent if path.name == LLMC_LOG else path)


def of_llmc_log(log: LlmcLog, tokens_per_step: float | None) -> PlottedRun:
    """Return the curves of an llm.c log. Its HellaSwag score becomes ``acc_tokens`` over unknown questions."""
    training = curve([(row.step + 1, row.loss) for row in log.training])
    validation = curve([(row.updates, row.value) for row in log.validation])
    choices = tuple(ChoicePass(row.updates - 1, None, None, None, None, row.value) for row in log.hellaswag)
    last = max([*training[0], *validation[0], *(choice.step + 1 for choice in choices)])
    tokens = None if tokens_per_step is None else curve([(last, last * tokens_per_step)])
    return PlottedRun("", training, validation, choices, tokens)


def named(sources: Sequence[CurveSource]) -> list[PlottedRun]:
    """Return the runs with distinct names: by one or two settings in which they differ, else by folder and arm."""
    names = _numbered(_by_keys(sources) or _by_place(sources))
    return [replace(source.run, name=name) for source, name in zip(sources, names, strict=True)]


def _numbered(names: Sequence[str]) -> list[str]:
    """Return distinct names: the second of two equal names becomes ``name (2)``. A run may be given twice."""
    counts = [names[: index + 1].count(name) for index, name in enumerate(names)]
    return [name if count == 1 else f"{name} ({count})" for name, count in zip(names, counts, strict=True)]


def _by_keys(sources: Sequence[CurveSource]) -> list[str] | None:
    """Return names by the settings that differ, such as ``learning_rate 0.001``; None if these do not suffice."""
    flats: list[Mapping[str, Json]] = [flatten(source.config) for source in sources if source.config is not None]
    if len(flats) != len(sources) or len(sources) < 2:
        return None
    keys = list(dict.fromkeys(key for flat in flats for key in flat if not key.startswith(NO_NAMES)))
    differing = [key for key in keys if len({repr(flat.get(key)) for flat in flats}) > 1]
    if not 0 < len(differing) <= RUN_KEYS_MAX:
        return None
    names = [", ".join(_setting(key.rpartition(".")[2], flat.get(key)) for key in differing) for flat in flats]
    return names if len(set(names)) == len(names) else None


def _setting(key: str, value: Json) -> str:
    """Format a setting: ``learning_rate 0.001``; ``no llmc`` for None; a path by its last component."""
    if value is None:
        return f"no {key}"
    if isinstance(value, str) and "/" in value:
        value = PurePosixPath(value).name or value
    return f"{key} {json.dumps(value) if isinstance(value, bool) else value}"


def _by_place(sources: Sequence[CurveSource]) -> list[str]:
    """Return names by the part in which paths differ (``b`` of /x/b beside /x/a), with a known arm: ``b: plain``."""
    places = [Path(normpath(source.place.absolute())) for source in sources]  # normalized, because ".." is no name
    if len(set(places)) == 1:
        return [source.arm or path.name for source, path in zip(sources, places, strict=True)]
    shared = commonpath([path.parent for path in places])
    folders = [str(path.relative_to(shared)) for path in places]
    named = zip(sources, folders, strict=True)
    return [folder if source.arm is None else f"{folder}: {source.arm}" for source, folder in named]


def run_rows(runs: Sequence[PlottedRun], measure: Measure | None = None) -> list[list[str]]:
    """Return a header and a row per run: lowest losses, hours, cost, and the last share of right answers, if any."""
    with_choices = [run for run in runs if run.choices]
    share_measure = measure or (best_measure(with_choices) if with_choices else None)
    header = [*HEADER, *([f"multiple choice, {share_measure}"] if share_measure else []), "hours", "USD"]
    rows = [header]
    for run in runs:
        cells = [run.name, cell(run.parameters, "{:,}".format), *_lowest(run.training), *_lowest(run.validation)]
        cells += [cell(last_share(run, share_measure), "{:.4f}".format)] if share_measure else []
        rows.append([*cells, cell(run.seconds, hours), cell(run.usd, dollars)])
    return rows


def run_records(runs: Sequence[PlottedRun]) -> list[Json]:
    """Return a JSON object per run: lowest losses, seconds, cost, last share of right answers by each measure."""
    return [
        {
            "run": run.name,
            "parameters": run.parameters,
            "lowest_training": _record(run.training),
            "lowest_validation": _record(run.validation),
            "multiple_choice": {name: last_share(run, name) for name in ("acc", "acc_norm", "acc_tokens")},
            "seconds": run.seconds,
            "usd": run.usd,
        }
        for run in runs
    ]


def last_share(run: PlottedRun, measure: Measure) -> float | None:
    """Return the last finite share (0 to 1) of right answers by ``measure``; None if there is none."""
    shares = [getattr(choice, measure) for choice in run.choices]
    finite = [float(share) for share in shares if share is not None and np.isfinite(share)]
    return finite[-1] if finite else None


def _lowest(values: Values) -> list[str]:
    lowest = minimum(values)
    return [NOT_MEASURED, NOT_MEASURED] if lowest is None else [f"{lowest[1]:.4f}", f"{lowest[0]:,.0f}"]


def _record(values: Values) -> Json:
    lowest = minimum(values)
    return None if lowest is None else {"steps": round(lowest[0]), "loss": lowest[1]}


def draw_losses(folder: Path, name: str) -> None:
    """Draw loss.png, titled ``name``, from losses.csv in ``folder``; nothing if that file is missing or empty."""
    rows = read_losses(folder / LOSSES) if (folder / LOSSES).exists() else []
    if rows:
        picture = loss_curve([row.step for row in rows], [row.tokens for row in rows], [row.loss for row in rows], name)
        write_picture(folder / "loss.png", picture)
