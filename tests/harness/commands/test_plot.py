"""``harness plot``: curves found in every kind of run, named by what differs, and drawn."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from harness.commands.plot import notes
from harness.judge.learning import ChoicePass
from harness.launch.training_files import EvaluationRow, EvaluationTable, LossRow, LossTable
from harness.show.curves import MOST_RUNS, Axis, PlottedRun, best_measure, choices_figure, curve, loss_figure, minimum
from harness.show.plotted_runs import CurveSource, find_curves, named
from harness.study.records import ONE_TRAINING, RunFacts, RunRecord, StudyRecord
from harness.study.store import StudyFolder
from tests.commands import Done, harness
from tests.examples import examples


def training(folder: Path, losses: list[float], *passes: EvaluationRow) -> Path:
    folder.mkdir(parents=True)
    table = LossTable(folder / "losses.csv", 0)
    for step, loss in enumerate(losses):
        table.add(LossRow(step, (step + 1) * 64, loss))
    table.close()
    if passes:
        rows = EvaluationTable(folder / "evaluations.csv", 0)
        for row in passes:
            rows.add(row)
    return folder


def answered(step: int, share: float, questions: int = 200) -> EvaluationRow:
    return EvaluationRow(step, None, None, None, questions, share, share, share, share)


def log(folder: Path) -> Path:
    folder.mkdir(parents=True)
    lines = ["s:0 tel:4.1", "s:0 eval:0.25", "s:0 trl:4.0 lr:0.001 norm:1.0", "s:1 trl:3.5 lr:0.001 norm:1.0"]
    (folder / "main.log").write_text("\n".join([*lines, "s:2 tel:3.4", "s:2 eva:0.30", ""]))
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    one = training(
        tmp_path / "runs" / "one",
        [4.0, 3.5, 3.0, 2.9],
        EvaluationRow(1, 3.6, None, 64),
        answered(1, 0.3),
        answered(3, 0.4),
    )
    return one, log(tmp_path / "runs" / "llmc")


def plot(*words: object) -> Done:
    return harness("plot", *map(str, words))


def test_runs_that_are_alike_look_alike_though_one_began_later() -> None:
    """Means over more steps for the longer one would be a smoother curve."""
    steps = np.arange(600.0) + 1
    losses = np.sin(steps / 7) + 5
    whole = PlottedRun("whole", np.stack([steps, losses]), curve([]))
    rest = PlottedRun("rest", np.stack([steps[300:], losses[300:]]), curve([]))
    short = PlottedRun("short", np.stack([steps[:20], losses[:20]]), curve([]))
    figure = loss_figure([whole, rest, short], "steps")
    lines = {len(line.get_xdata()): line for line in figure.axes[0].get_lines() if line.get_linewidth() == 1.8}
    means = [
        dict(zip(line.get_xdata(), line.get_ydata(), strict=True)) for line in lines.values() if len(line.get_xdata())
    ]
    assert sorted(map(len, means)) == [300 - 14, 600 - 14]
    later, earlier = sorted(means, key=len)
    assert all(earlier[step] == pytest.approx(loss) for step, loss in later.items())
    assert "training: mean of 15 steps, each step pale" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_a_training_and_an_llm_c_log_are_drawn_over_one_another(runs: tuple[Path, Path], tmp_path: Path) -> None:
    done = plot(*runs, "--out", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if ": /" in line] == [
        f"losses: {tmp_path / 'out' / 'loss.png'}",
        f"multiple choice (log-likelihood by token, llm.c's acc_norm): {tmp_path / 'out' / 'multiple-choice.png'}",
        f"table: {tmp_path / 'out' / 'runs.json'}",
    ]
    for name in ("loss.png", "multiple-choice.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")
    refused = plot(*runs, "--out", tmp_path / "out", "--x", "tokens")
    assert refused.returncode == 2
    assert refused.stderr.splitlines() == [
        "harness: --x tokens: llmc does not record the tokens of its steps; give --tokens-per-step for a log of "
        "llm.c (524288 in its GPT-2 124M), or --x steps"
    ]
    assert plot(*runs, "--out", tmp_path / "out", "--x", "tokens", "--tokens-per-step", "64").returncode == 0


def stars(figure: Figure) -> list[tuple[float, float]]:
    lines = [line for line in figure.axes[0].get_lines() if line.get_marker() == "*" and len(line.get_xdata())]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in lines]


def test_one_kind_of_loss_alone_with_its_minima(runs: tuple[Path, Path], tmp_path: Path) -> None:
    found = find_curves([str(run) for run in runs], None)
    assert stars(loss_figure(found, "steps")) == [(4.0, 2.9), (2.0, 3.6), (2.0, 3.5), (2.0, 3.4)]
    assert stars(loss_figure([run.only("validation") for run in found], "steps")) == [(2.0, 3.6), (2.0, 3.4)]
    assert stars(loss_figure([run.only("training") for run in found], "steps")) == [(4.0, 2.9), (2.0, 3.5)]
    for kind in ("training", "validation"):
        out = tmp_path / kind
        done = plot(*runs, "--out", out, "--only", kind)
        assert done.returncode == 0, done.stderr
        assert sorted(one.name for one in out.iterdir()) == ["loss-narrow.svg", "loss.png", "runs.json"]
        assert "has no" not in done.stderr
    alone = training(tmp_path / "alone", [3.0])
    done = plot(runs[0], alone, "--out", tmp_path / "two", "--only", "validation")
    assert done.stderr.splitlines() == ["alone: it has no evaluations: nothing of it is drawn"]
    refused = plot(alone, "--out", tmp_path / "none", "--only", "validation")
    assert refused.returncode == 2
    assert refused.stderr.splitlines()[-1] == "harness: --only validation: none of the runs has a validation loss"


@given(st.lists(st.one_of(st.floats(-1e6, 1e6), st.just(math.nan), st.just(math.inf)), max_size=30))
def test_the_minimum_is_the_first_lowest_finite_loss(losses: list[float]) -> None:
    found = minimum(curve([(step + 1.0, loss) for step, loss in enumerate(losses)]))
    finite = [loss for loss in losses if math.isfinite(loss)]
    assert found == ((losses.index(min(finite)) + 1, min(finite)) if finite else None)


def test_the_table_has_every_run_with_its_lowest_losses_its_answers_and_what_it_took(
    runs: tuple[Path, Path], tmp_path: Path
) -> None:
    one, _ = runs
    part = RunRecord(
        "plain", 0, "done", started_utc="2026-01-01T00:00:00+00:00", ended_utc="2026-01-01T00:30:00+00:00",
        facts=RunFacts(parameters=86_976),
    )  # fmt: skip
    folder = StudyFolder(one)
    folder.write_study(
        StudyRecord("small", "", "done", order=[["plain"]], scenario_text={"price_usd_per_hour": 3.0}, blocks=1)
    )
    folder.write_run(part)
    out = tmp_path / "out"
    done = plot(*runs, "--out", out)
    assert done.returncode == 0, done.stderr
    trained, llmc = json.loads((out / "runs.json").read_text())["runs"]
    assert trained == {
        "run": "one", "parameters": 86_976, "lowest_training": {"steps": 4, "loss": 2.9},
        "lowest_validation": {"steps": 2, "loss": 3.6},
        "multiple_choice": {"acc": 0.4, "acc_norm": 0.4, "acc_tokens": 0.4}, "seconds": 1800.0, "usd": 1.5,
    }  # fmt: skip
    assert llmc["lowest_validation"] == {"steps": 2, "loss": 3.4}
    assert llmc["multiple_choice"] == {"acc": None, "acc_norm": None, "acc_tokens": 0.3}
    assert (llmc["parameters"], llmc["seconds"], llmc["usd"]) == (None, None, None)
    (row,) = [line.split() for line in done.stdout.splitlines() if line.startswith("one ")]
    assert row == ["one", "86,976", "2.9000", "4", "3.6000", "2", "0.4000", "0.5", "1.50"]


def test_a_part_without_a_record_leaves_the_hours_unknown(tmp_path: Path) -> None:
    run = training(tmp_path / "run", [4.0, 3.0])
    folder = StudyFolder(run)
    folder.write_study(
        StudyRecord("s", "", "done", order=[["a"], ["a"]], interleave_reason=ONE_TRAINING, blocks=2,
                    scenario_text={"price_usd_per_hour": 3.0})
    )  # fmt: skip
    times = {"started_utc": "2026-01-01T00:00:00+00:00", "ended_utc": "2026-01-01T00:30:00+00:00"}
    folder.write_run(RunRecord("a", 1, "done", **times))  # type: ignore[arg-type]  # by name
    out = tmp_path / "out"
    done = plot(run, "--out", out)
    assert done.returncode == 0
    assert f"not counted: {run}/runs/a/0/run.json: no such file" in done.stderr
    (row,) = json.loads((out / "runs.json").read_text())["runs"]
    assert (row["seconds"], row["usd"]) == (None, None)
    (line,) = [line.split() for line in done.stdout.splitlines() if line.startswith("run ")][1:]
    assert line[-2:] == ["–", "–"]


def test_what_is_at_which_place(runs: tuple[Path, Path]) -> None:
    """A loss of step s is after s + 1 steps; llm.c looks at held-out data before a step."""
    ours, theirs = find_curves([str(one) for one in runs], 128)
    assert (ours.name, theirs.name) == ("one", "llmc")
    assert ours.training.tolist() == [[1, 2, 3, 4], [4.0, 3.5, 3.0, 2.9]]
    assert ours.validation.tolist() == [[2], [3.6]]
    assert theirs.training.tolist() == [[1, 2], [4.0, 3.5]]
    assert theirs.validation.tolist() == [[0, 2], [4.1, 3.4]]
    assert [(one.step + 1, one.acc_tokens, one.questions) for one in theirs.choices] == [
        (0, 0.25, None),
        (2, 0.3, None),
    ]
    assert ours.at(np.array([0.0, 2.0, 4.0]), "tokens").tolist() == [0, 128, 256]
    assert theirs.at(np.array([0.0, 1.0]), "tokens").tolist() == [0, 128]
    assert best_measure([ours]) == "acc_norm"
    assert best_measure([ours, theirs]) == "acc_tokens"


def texts(figure: object) -> list[str]:
    from matplotlib.text import Text

    return [one.get_text() for one in figure.findobj(Text)]  # type: ignore[attr-defined]


def test_the_pictures_name_axes_units_runs_and_measures(runs: tuple[Path, Path]) -> None:
    found = find_curves([str(one) for one in runs], 128)
    shown = texts(loss_figure(found, "tokens"))
    assert {"tokens (padding included)", "loss (nats per token)", "one", "llmc", "training", "validation"} <= {*shown}
    assert "Training and validation loss" in shown
    shown = texts(choices_figure(found, "acc_tokens", "steps"))
    assert "questions answered right (%)\nlog-likelihood by token, llm.c's acc_norm" in shown
    assert {"optimizer steps", "a guess", "one (200 questions)"} <= {*shown}
    assert "Multiple choice, with 95 % intervals over questions" in shown
    assert any(
        one.startswith("Multiple choice, 200 questions") for one in texts(choices_figure(found[:1], "acc", "steps"))
    )


def test_a_single_loss_is_a_point() -> None:
    run = PlottedRun("_first", curve([(1, 4.0)]), curve([]), (ChoicePass(0, 9, 0.5, 0.5, 0.5, 0.5),))
    losses, choices = loss_figure([run], "steps"), choices_figure([run], "acc", "steps")
    assert all(" _first" in texts(figure) for figure in (losses, choices))  # which matplotlib leaves out of a legend
    assert [[1.0, 4.0]] in [line.get_xydata().tolist() for line in losses.axes[0].lines if line.get_marker() == "o"]


def test_a_loss_that_is_nan_is_marked_and_said(tmp_path: Path) -> None:
    broken = training(tmp_path / "broken", [4.0, math.nan, math.inf, 3.0], EvaluationRow(3, math.nan, None, 64))
    (run,) = find_curves([str(broken)], None)
    assert notes(run) == [
        "2 of 4 training losses are NaN or infinite, the first after 2 steps: marked by a cross",
        "1 of 1 validation losses are NaN or infinite, the first after 4 steps: marked by a cross",
    ]
    figure = loss_figure([run], "steps")
    assert "first NaN or infinite loss" in texts(figure)
    crosses = [line.get_xydata().tolist() for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [[2.0, 4.0]] in crosses  # at the height of the last loss before it


def test_runs_without_evaluations_say_so_and_only_they(runs: tuple[Path, Path], tmp_path: Path) -> None:
    plain = training(tmp_path / "runs" / "plain", [4.0, 3.0])
    done = plot(plain, "--out", tmp_path / "out")
    assert (done.returncode, done.stderr.strip()) == (
        0,
        "plain: it has no evaluations: its training loss alone is drawn",
    )
    assert not (tmp_path / "out" / "multiple-choice.png").exists()
    assert [notes(run) for run in find_curves([str(runs[0]), str(plain)], None)] == [
        [],
        ["it has no evaluations: its training loss alone is drawn"],
    ]
    done = plot(*runs, "--out", tmp_path / "out", "--measure", "acc_norm")
    assert "llmc: its acc_norm is unknown, so it is not in multiple-choice.png" in done.stderr.splitlines()


@pytest.mark.parametrize(("content", "message"), [
    (None, "no such file or folder; allowed: a folder of harness train"),
    ("step,tokens,loss\n", "losses.csv: contains no loss"),
    ("step,loss\n", "not a table of a training"),
    ("", "not a table of a training"),
    ("step,tokens,loss\n0,64,x\n1,128,3.0\n", "losses.csv:2: not a row of step, tokens and loss"),
    ("folder", "contains no run; allowed"),
    ("log", "main.log:1: not a line of llm.c's main.log"),
    ("study", "study.json"),
])  # fmt: skip
def test_what_is_no_run_is_refused_in_one_line(tmp_path: Path, content: str | None, message: str) -> None:
    place = tmp_path / "run"
    if content is not None:
        place.mkdir()
    if content == "log":
        (place / "main.log").write_text("hello there\n")
    elif content == "study":
        (place / "study.json").write_text("{}")
    elif content not in (None, "folder"):
        (place / "losses.csv").write_text(content or "")
    done = plot(place, "--out", tmp_path / "out")
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def sources(*configs: dict[str, object], arms: tuple[str, ...] = ()) -> list[CurveSource]:
    empty = PlottedRun("", curve([(1, 1.0)]), curve([]))
    names = arms or tuple(f"t{number}" for number in range(len(configs)))
    return [
        CurveSource(empty, Path("/x") / name, config=json.loads(json.dumps(config)))
        for name, config in zip(names, configs, strict=True)
    ]


def test_runs_are_named_by_what_differs() -> None:
    rates = sources(
        {"optimizer": {"learning_rate": 1e-3}, "steps": 5}, {"optimizer": {"learning_rate": 3e-4}, "steps": 9}
    )
    assert [one.name for one in named(rates)] == ["learning_rate 0.001", "learning_rate 0.0003"]
    both = sources({"a": {"b": 1, "c": 1}}, {"a": {"b": 2, "c": 1}}, {"a": {"b": 2, "c": 3}})
    assert [one.name for one in named(both)] == ["b 1, c 1", "b 2, c 1", "b 2, c 3"]
    begun = sources({"resume": {"llmc": "runs/seed.bin", "step": 6}}, {"resume": None})
    assert [one.name for one in named(begun)] == ["llmc seed.bin", "no llmc"]
    assert [one.name for one in named(sources({"a": True}, {"a": False}))] == ["a true", "a false"]
    many = sources({"a": 1, "b": 1, "c": 1}, {"a": 2, "b": 2, "c": 2})
    assert [one.name for one in named(many)] == ["t0", "t1"]
    assert [one.name for one in named(sources({"a": 1}, {"a": 1}))] == ["t0", "t1"]
    again = [*sources({"a": 1}), *sources({"a": 1}), *sources({"a": 1}, arms=("t/../t",))]
    assert [one.name for one in named(again)] == ["t0", "t0 (2)", "t"]
    run = PlottedRun("", curve([(1, 1.0)]), curve([]))
    arms = [CurveSource(run, Path("/x/study"), arm) for arm in ("text", "tokens")]
    assert [one.name for one in named(arms)] == ["text", "tokens"]
    assert [one.name for one in named([*arms, CurveSource(run, Path("/x/y/z"))])] == [
        "study: text",
        "study: tokens",
        "y/z",
    ]


def test_a_share_that_is_nan_is_said_and_an_empty_picture_refused(tmp_path: Path) -> None:
    (tmp_path / "main.log").write_text("s:0 eval:0.25\ns:2 eval:nan\n")
    (run,) = find_curves([str(tmp_path / "main.log")], None)
    assert "1 of 2 multiple-choice shares are NaN, the first after 2 steps: not drawn" in notes(run)
    done = plot(tmp_path, "--out", tmp_path / "out", "--measure", "acc")
    assert done.returncode == 2
    assert "--measure acc: not drawn, because it is unknown for all runs" in done.stderr.splitlines()[-1]


@examples(25)
@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), min_size=1, max_size=70),
    st.sampled_from(["steps", "tokens"]),
)
def test_any_losses_are_drawn(losses: list[float], axis: Axis) -> None:
    points = curve([(step + 1, loss) for step, loss in enumerate(losses)])
    run = PlottedRun("x", points, points[:, ::3], (), curve([(len(losses), 100.0)]))
    assert loss_figure([run], axis).axes


def test_more_runs_than_a_reader_can_tell_apart(tmp_path: Path) -> None:
    places = [training(tmp_path / f"r{number}", [4.0, 3.0], answered(1, 0.3)) for number in range(MOST_RUNS + 1)]
    done = plot(*places, "--out", tmp_path / "out")
    assert "9 runs: only the first 8 are drawn, to keep them distinct" in done.stderr
    found = find_curves([str(one) for one in places], None)
    assert "Training loss (the first 8 of 9 runs)" in texts(loss_figure(found, "steps"))
