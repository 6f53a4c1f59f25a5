"""Writes the report of a sweep: the chosen learning rate and its certainty, curve, trials, and spending."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from harness.judge.cost import usd_of
from harness.show.drawing import picture_link, write_picture
from harness.show.tables import NOT_MEASURED, Markdown, safe, table
from harness.show.words import count, duration, listing
from harness.sweep import sentences
from harness.sweep.begin import recorded_sweep
from harness.sweep.budget import Spending, spent_by
from harness.sweep.findings import SweepFindings, diverged_rates, findings
from harness.sweep.fit import LearningRateOptimum
from harness.sweep.messages import rate
from harness.sweep.model import SweepConfig
from harness.sweep.picture import has_picture, loss_figure, picture, size_figure, training_figure
from harness.sweep.projection import projection_of
from harness.sweep.store import SweepFolder, SweepRecord, TrialJournal
from harness.sweep.trials import SearchSpace, Trial
from trainer.config import TrainerConfig
from trainer.files import write_text
from trainer.json_types import Json

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PICTURE, TRAINING, PROJECTED = "plots/learning-rate.png", "plots/training-loss.png", "plots/projection.png"
TITLES = {PICTURE: "Loss by learning rate", TRAINING: "Training loss by learning rate", PROJECTED: "Best rate by size"}
OUTCOMES = {"running": "running", "done": "done", "diverged": "diverged", "behind": "behind", "late": "timed out"}


def write_report(folder: SweepFolder) -> list[str]:
    """Write summary.md, summary.json and the pictures of a sweep. Return the conclusion as plain lines."""
    record = folder.read()
    settings, config = recorded_sweep(record, folder)
    trials = [folder.as_it_stands(trial) for trial in TrialJournal(folder.path).trials()]
    space = _recorded_space(record, settings, config)
    results = findings(trials, projection_of(settings.strategy, space))
    spent = spent_by(trials, record.price_usd_per_hour, record.lost_s)
    lines = sentences.conclusion(record, settings, results, trials)
    shown, trained = ([c for c in results.curves if c.points], [c for c in results.curves if c.training])
    figures: dict[str, tuple[Callable[..., Figure], object]] = {}
    figures |= {PICTURE: (loss_figure, shown)} if shown else {}
    figures |= {TRAINING: (training_figure, trained)} if trained else {}
    figures |= {PROJECTED: (size_figure, results.projection)} if has_picture(results.projection) else {}
    for path, (draw, of) in figures.items():
        write_picture(folder.path / path, picture(draw, of, record.name))
    full_steps = max(stage.steps for stage in settings.strategy.stages(space))
    page = _page(record, settings, results, trials, spent, lines, list(figures), full_steps)
    write_text(folder.summary_md, page)
    write_text(folder.summary_json, _json(record, settings, results, trials, spent))
    return [line.replace("**", "") for line in lines]


def _recorded_space(record: SweepRecord, settings: SweepConfig, config: TrainerConfig) -> SearchSpace:
    """Return the search space from a sweep's records. Every model size has the sweep's steps: others are unused."""
    rates = settings.learning_rate
    return SearchSpace(
        rates.low,
        rates.high,
        tuple(settings.seeds),
        settings.search_seed,
        config,
        lambda _: record.steps,
        record.step_tokens,
    )


def _page(
    record: SweepRecord,
    settings: SweepConfig,
    found: SweepFindings,
    trials: Sequence[Trial],
    spent: Spending,
    lines: Sequence[str],
    pictures: Sequence[str],
    full_steps: int,
) -> str:
    parts = [
        f"# Sweep: {safe(record.name)}",
        f"*{safe(settings.question)}*" if settings.question else "",
        "\n".join(f"- {line}" for line in lines),
        *(picture_link(title, path) for path, title in TITLES.items() if path in pictures and path != PROJECTED),
        _curves(found),
        picture_link(TITLES[PROJECTED], PROJECTED) if PROJECTED in pictures else "",
        f"## Transfer\n\n{sentences.transfer(record, settings, found)}",
        _spent(record, settings, spent),
        _trials(record, trials, _best_trial(found, trials, full_steps)),
        f"## How this was searched\n\n{sentences.method(settings)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _curves(found: SweepFindings) -> str:
    """Return a Markdown section with the optimum of each curve; "" if there is only one curve."""
    if len(found.curves) < 2:
        return ""
    rows = []
    for curve in found.curves:
        optimum = curve.optimum
        cells = [curve.group or "trials", f"{curve.steps:,}", str(len(curve.points))]
        if isinstance(optimum, LearningRateOptimum):
            cells += [rate(optimum.learning_rate), sentences.interval(optimum.ci_low, optimum.ci_high, curve)]
        else:
            cells += [NOT_MEASURED, sentences.why_no_optimum(optimum, curve)]
        rows.append(cells)
    return "## Curves\n\n" + table(["group", "steps", "trials", "optimum", "95 % interval"], rows)


def _spent(record: SweepRecord, settings: SweepConfig, spent: Spending) -> str:
    budget = settings.budget
    rows = [
        ["time", duration(spent.seconds), NOT_MEASURED if budget.hours is None else duration(budget.hours * 3600)],
        ["tokens", f"{spent.tokens:,}", NOT_MEASURED if budget.tokens is None else f"{budget.tokens:,}"],
    ]
    if spent.usd is not None:
        rows.append(["USD", f"{spent.usd:.2f}", NOT_MEASURED if budget.usd is None else f"{budget.usd:.2f}"])
    note = [sentences.TIME]
    if record.price_usd_per_hour is not None:
        note.append(f"The price is {record.price_usd_per_hour:g} USD an hour.")
    if record.lost_s:
        note.append(f"{duration(record.lost_s)} of it measured the step time for the budget.")
    return "## Spent\n\n" + table(["", "spent", "budget"], rows) + "\n\n" + " ".join(note)


def _best_trial(found: SweepFindings, trials: Sequence[Trial], full_steps: int) -> int | None:
    """Return the best trial of full length at the rate with the lowest mean loss; None if there is none."""
    if found.projection is not None or not found.curves or found.curves[0].steps < full_steps:
        return None
    curve = found.curves[0]
    candidates = [
        trial
        for trial in trials
        if (trial.plan.group, trial.plan.steps, trial.plan.role) == (curve.group, curve.steps, "curve")
        and trial.status == "done" and trial.plan.learning_rate == curve.lowest_mean
    ]  # fmt: skip
    best = min(candidates, key=lambda trial: trial.score, default=None)
    return None if best is None else best.number


def _outcomes(trials: Sequence[Trial]) -> dict[int, str]:
    """Return {trial number: outcome as text}. For a rate with several seeds, it also says how many of them diverged."""
    by_kind: dict[tuple[str, int, str], list[Trial]] = {}
    for trial in trials:
        by_kind.setdefault((trial.plan.group, trial.plan.steps, trial.plan.role), []).append(trial)
    outcomes = {}
    for group in by_kind.values():
        rates = {rate_divergence.learning_rate: rate_divergence for rate_divergence in diverged_rates(group)}
        for member in group:
            text, divergence = OUTCOMES[member.status], rates.get(member.plan.learning_rate)
            if divergence is not None and divergence.seeds > 1:
                text += (
                    sentences.of_seeds(divergence)
                    if member.status == "diverged"
                    else f", rate diverged{sentences.of_seeds(divergence)}"
                )
            outcomes[member.number] = text
    return outcomes


def _trials(record: SweepRecord, trials: Sequence[Trial], best: int | None) -> str:
    if not trials:
        return ""
    grouped = any(trial.plan.group for trial in trials)
    priced = record.price_usd_per_hour is not None
    scored = any(trial.hellaswag is not None for trial in trials)
    header = ["trial", *["group"] * grouped, "learning rate", "seed", "outcome", "validation loss", "training loss"]
    header += ["multiple choice"] * scored + ["tokens", "steps", "seconds", *["USD"] * priced]
    outcomes = _outcomes(trials)
    rows = []
    for trial in trials:
        loss = NOT_MEASURED if trial.loss is None else f"{trial.loss:.4f}"
        cells = [str(trial.number), *[trial.plan.group or "trials"] * grouped, rate(trial.plan.learning_rate)]
        cells += [
            str(trial.plan.seed),
            outcomes[trial.number],
            Markdown(f"**{loss}**") if trial.number == best else loss,
        ]
        cells.append(NOT_MEASURED if trial.training_loss is None else f"{trial.training_loss:.4f}")
        if scored:
            cells.append(NOT_MEASURED if trial.hellaswag is None else f"{trial.hellaswag:.4f}")
        cells += [f"{trial.tokens:,}", f"{trial.steps:,} of {trial.plan.steps:,}", f"{trial.seconds:.1f}"]
        if priced:
            cells.append(f"{usd_of(trial.seconds, record.price_usd_per_hour) or 0.0:.4f}")
        rows.append(cells)
    ended = [f"{number} {OUTCOMES[status]}" for status, number in Counter(trial.status for trial in trials).items()]
    note = f"\n\n{sentences.QUESTIONS}" if scored else ""
    return f"## Trials\n\n{count(len(trials), 'trial')}: {listing(ended)}.\n\n{table(header, rows)}{note}"


def _json(
    record: SweepRecord, settings: SweepConfig, found: SweepFindings, trials: Sequence[Trial], spent: Spending
) -> str:
    price = record.price_usd_per_hour
    content: dict[str, Json] = {
        "schema": 1, "sweep": record.name, "strategy": settings.strategy.name, "status": record.status,
        "error": record.error,
        "chosen": None if found.chosen is None else asdict(found.chosen),
        "curves": [asdict(curve) for curve in found.curves],
        "projection": None if found.projection is None else asdict(found.projection),
        "trials": [{**asdict(trial), "usd": usd_of(trial.seconds, price)} for trial in trials],
        "spent": asdict(spent), "budget": settings.budget.model_dump(), "parameters": record.parameters,
        "steps": record.steps, "step_tokens": record.step_tokens,
    }  # fmt: skip
    return json.dumps(content, indent=1) + "\n"
