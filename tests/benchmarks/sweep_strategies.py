"""Looks for the best learning rate of ``tiniest`` by every strategy, and compares what each finds and spends.

``python -m tests.benchmarks.sweep_strategies --out results/reference/sweep-strategies`` runs ``harness sweep tiniest``
once for each: 25 to 60 minutes one after the other, half of it with ``--at-once 2`` on two cores (losses do not depend
on that, seconds do). The grid is the truth that the others are held against. Strategies that project look at smaller
models and shorter trainings than the sweep's own, as ``tiniest`` is smaller than those they look at by default.
``--again`` trains nothing: it reports anew, in seconds, from the trials in the summary.json of each folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.show.cost import duration
from harness.sweep import report, sentences
from harness.sweep.load import load_sweep
from harness.sweep.store import SweepFolder, SweepRecord, TrialJournal
from harness.sweep.trials import Trial, TrialPlan

SMALLER = [{"layers": 1, "width": width, "heads": 1} for width in (16, 32, 48)]
SHORTER = [217_000, 435_000, 870_000]  # tokens: an eighth, a quarter and a half
STRATEGIES: dict[str, dict[str, Any]] = {
    "grid": {"trials": 10},
    "greedy": {},
    "early-stopping": {"trials": 10},
    "hyperband": {"eta": 10},  # with 3 the same steps begin some 1,800 trials
    "model-scaling": {"trials": 8, "sizes": SMALLER},
    "data-scaling": {"trials": 8, "tokens": SHORTER},
    "hybrid": {"project": "data", "tokens": SHORTER, "R": 9},
    "mup": {"trials": 8},  # its width is that of the model, so it is a grid of eight under another parametrization
}
TRUTH = "grid"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--out", type=Path, required=True, metavar="DIR", help="gets README.md and a folder of each")
    options.add_argument("--work", type=Path, metavar="DIR", help="where the sweeps go (default: DIR/work)")
    options.add_argument("--at-once", type=int, default=1, metavar="N", help="sweeps (default: %(default)s)")
    options.add_argument("--again", action="store_true", help="train nothing: report anew from DIR's own trials")
    options.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every sweep: steps=40")
    arguments = options.parse_args()
    work = arguments.work or arguments.out / "work"

    def found(name: str) -> dict[str, Any]:
        kept = arguments.out / name
        made = work / name
        folder = reported_again(name, kept, made) if arguments.again else swept(name, made, arguments.set)
        shutil.rmtree(kept, ignore_errors=True)
        shutil.copytree(folder / "plots", kept / "plots")
        for file in ("summary.md", "summary.json"):
            shutil.copy(folder / file, kept / file)
        return json.loads((folder / "summary.json").read_text())  # type: ignore[no-any-return]

    with ThreadPoolExecutor(arguments.at_once) as pool:
        results = dict(zip(STRATEGIES, pool.map(found, STRATEGIES), strict=True))
    lines = table(results) + settings_of(results, arguments.set) + in_their_words(arguments.out)
    (arguments.out / "README.md").write_text(
        "# The best learning rate of `tiniest`, by every strategy\n\n" + "\n".join(lines) + "\n"
    )
    print("\n".join(lines))
    return 0


def asked_for(strategy: str) -> str:
    """Its name and settings, as ``--set`` takes them."""
    return f"strategy={json.dumps({'name': strategy, **STRATEGIES[strategy]})}"


def swept(name: str, out: Path, sets: list[str]) -> Path:
    """The folder of a finished sweep; one that is there already is not run again."""
    if not list(out.glob("tiniest/*/summary.json")):
        words = ["sweep", "tiniest", "--out", str(out), "--set", asked_for(name)]
        words += [word for one in sets for word in ("--set", one)]
        done = subprocess.run([sys.executable, "-m", "harness", *words], check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{name}: harness sweep ended with {done.returncode}: {done.stderr[-2000:]}")
    return max(out.glob("tiniest/*/summary.json")).parent


def reported_again(name: str, kept: Path, out: Path) -> Path:
    """A folder with the report of the trials that ``kept`` has, as the harness writes it now."""
    summary = json.loads((kept / "summary.json").read_text())
    loaded = load_sweep("tiniest", [asked_for(name)])
    folder = SweepFolder(out)
    out.mkdir(parents=True)
    record = SweepRecord(
        summary["sweep"], "trial", loaded.settings.model_dump(mode="json"), loaded.config.model_dump(mode="json"),
        summary["steps"], summary["step_tokens"], summary["parameters"], None, summary["status"], "", [], "tiniest", {},
        error=summary["error"],
    )  # fmt: skip
    folder.write(record)
    journal = TrialJournal(out)
    for one in summary["trials"]:
        begun = journal.begin(TrialPlan(**one.pop("plan")))
        for step, loss in one.pop("milestones").items():
            journal.milestone(begun, int(step), loss)
        del one["usd"]
        journal.end(Trial(plan=begun.plan, **one))
    report.write_report(folder)
    return out


def table(results: dict[str, dict[str, Any]]) -> list[str]:
    """Markdown: what each found and spent."""
    truth = results[TRUTH]["chosen"]
    all_steps = sum(one["steps"] for one in results[TRUTH]["trials"])
    interval = (truth["ci_low"], truth["ci_high"])
    lines = [
        "| strategy | trials | ended early | steps of all | of the grid's | time of its trials | chosen rate | by "
        "| in the grid's interval |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | --- | --- |",
    ]
    for name, one in results.items():
        trials, chosen = one["trials"], one["chosen"]
        steps = sum(trial["steps"] for trial in trials)
        early = sum(trial["status"] in ("diverged", "behind") for trial in trials)
        cells = [name, str(len(trials)), str(early), f"{steps:,}", f"{steps / all_steps:.0%}"]
        cells += [duration(one["spent"]["seconds"]), _rate(chosen), chosen["by"] if chosen else "", "–"]
        if name != TRUTH:
            cells[-1] = _held(chosen, interval)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def settings_of(results: dict[str, dict[str, Any]], sets: list[str]) -> list[str]:
    """What every trial shares, and every setting of each strategy, those by default among them."""
    grid = results[TRUTH]
    settings = {name: load_sweep("tiniest", [*sets, asked_for(name)]).settings for name in results}
    searched, seeds = settings[TRUTH].learning_rate, settings[TRUTH].seeds
    lines = [
        "",
        f"Rates from {searched.low:g} to {searched.high:g}, {grid['steps']:,} steps of {grid['step_tokens']:,} tokens "
        f"at most, seeds {seeds}, a model of {grid['parameters']:,} parameters (sweeps/tiniest.yaml). The "
        "strategies' settings, those by default among them:",
        "",
    ]
    for name, one in settings.items():
        shown = one.strategy.model_dump(mode="json", exclude={"name"})
        lines.append(f"- {name}: `{json.dumps(shown)}`")
    return lines


def in_their_words(out: Path) -> list[str]:
    """What each sweep's own report says first."""
    lines = [
        "",
        f"![Loss by learning rate, {TRUTH}]({TRUTH}/plots/learning-rate.png)",
        "",
        "What each says itself:",
        "",
    ]
    for name in STRATEGIES:
        said = (out / name / "summary.md").read_text().partition("![")[0]
        lines.append(f"- [{name}]({name}/summary.md)")
        lines += [f"  {line}" for line in said.splitlines() if line.startswith("- ")]
    return lines


def _rate(chosen: dict[str, Any] | None) -> str:
    if chosen is None:
        return "none"
    return f"{chosen['learning_rate']:.2e} ({sentences.interval(chosen['ci_low'], chosen['ci_high'])})"


def _held(chosen: dict[str, Any] | None, interval: tuple[float | None, float | None]) -> str:
    low, high = interval
    if low is None or high is None:
        return "the grid has no interval"
    if chosen is None:
        return "no rate chosen"
    rate = chosen["learning_rate"]
    if low <= rate <= high:
        return "yes"
    factor = low / rate if rate < low else rate / high
    return f"no: {factor:.2g} times {'below' if rate < low else 'above'} it"


if __name__ == "__main__":
    sys.exit(main())
