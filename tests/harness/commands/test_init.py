"""``harness init`` writes a scenario that loads as it was asked for, or nothing."""

from __future__ import annotations

import argparse
import io
import json
import sys
from pathlib import Path

import pytest

from harness.scenario.commands import CommandPlan, CommandScenario, open_scenario, plan_commands
from harness.scenario.load import load_scenario
from harness.scenario.plan import Plan, make_plan
from harness.study.store import StudyFolder
from tests.commands import harness
from trainer.errors import InputError
from trainer.json_types import section


def test_without_answers_it_writes_a_scenario_of_the_builtin_text(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    done = harness("init", str(path), "--no-trial")
    assert done.returncode == 0, done.stderr
    assert f"harness run {path}" in done.stdout
    scenario = load_scenario(path)
    assert scenario.name == "mine"
    assert list(scenario.arms) == ["text", "tokens", "text-w1"]
    assert set(scenario.controls) == {"a-a", "ideal-data", "data-only"}
    assert [one.name for one in tmp_path.iterdir()] == ["mine.yaml"]


def test_what_is_given_is_in_it_as_it_was_given(tmp_path: Path) -> None:
    path = tmp_path / "odd.yaml"
    odd = "it's: #mine/*.parquet"
    (tmp_path / "it's: #mine").mkdir()
    (tmp_path / "it's: #mine" / "a.parquet").touch()
    words = ["--parquet", odd, "--column", "no", "--tokenizer", "a b", "--model", "llama-tiny", "--batch-size", "16"]
    words += ["--name", "on", "--device", "cpu", "--sequence-length", "256"]
    done = harness("init", str(path), "--no-trial", *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scenario = load_scenario(path)
    base = scenario.base
    data = section(base, "data")
    assert data["corpus"] == {"parquet": odd, "column": "no"}
    assert data["tokenizer"] == {"pretrained": "a b"}
    assert (data["sequence_length"], data["batch_size"]) == (256, 16)
    assert section(base, "model") == {"preset": "llama-tiny"}
    assert section(base, "compute") == {"device": "cpu"}
    assert scenario.name == "on"


@pytest.mark.parametrize("corpus", ["s3://bucket/*.jsonl.zst", "~/text.txt"])
def test_a_corpus_of_any_format(tmp_path: Path, corpus: str) -> None:
    (tmp_path / "text.txt").write_text("a b c\n")  # the home folder
    path = tmp_path / "mine.yaml"
    words = ["--corpus", corpus, "--tokenizer", "mine/tokenizer.json"]
    done = harness("init", str(path), "--no-trial", *words, HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    data = section(load_scenario(path).base, "data")
    assert data["corpus"] == {"path": corpus, "column": "text"}
    assert data["tokenizer"] == {"pretrained": "mine/tokenizer.json"}
    both = harness("init", str(tmp_path / "both.yaml"), "--corpus", "a", "--parquet", "b")
    assert (both.returncode, both.stderr) == (2, "harness: init: --parquet does not go with --corpus\n")


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("kept")
    done = harness("init", str(path))
    assert (done.returncode, path.read_text()) == (2, "kept")
    assert harness("init", str(path), "--force", "--no-trial").returncode == 0
    assert load_scenario(path).name == "mine"
    assert harness("init", str(tmp_path / "no" / "mine.yaml")).returncode == 2
    folder = harness("init", str(tmp_path), "--force")
    assert (folder.returncode, "is a folder; give a file" in folder.stderr) == (2, True)
    zeros = harness(
        "init", str(path), "--force", "--no-trial", "--sequence-length", "0256"
    )  # which YAML would read as octal
    assert zeros.returncode == 0
    assert section(load_scenario(path).base, "data")["sequence_length"] == 256


def test_on_a_terminal_it_asks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    from harness.commands import init

    monkeypatch.setattr(sys, "stdin", Terminal("text\nasked\n\n\n\n\nllama-tiny\ncpu\n\n8\n"))
    monkeypatch.setattr(sys, "stdout", shown := Terminal())
    arguments = init_arguments(str(tmp_path / "a.yaml"), "--no-trial")
    assert init.init(arguments, []) == 0
    assert "your tokenizer" in shown.getvalue()
    scenario = load_scenario(tmp_path / "a.yaml")
    assert scenario.name == "asked"
    assert section(scenario.base, "data")["batch_size"] == 8
    assert section(scenario.base, "model") == {"preset": "llama-tiny"}

    shown.truncate(0)
    monkeypatch.setattr(sys, "stdin", Terminal("command\ntimed\npython train.py\npython old.py\n"))
    assert init.init(init_arguments(str(tmp_path / "b.yaml")), []) == 0
    assert "your tokenizer" not in shown.getvalue()
    plan = planned(tmp_path / "b.yaml")
    assert plan.scenario.name == "timed"
    assert [arm.text for arm in plan.arms if arm.control is None] == ["python old.py", "python train.py"]

    monkeypatch.setattr(sys, "stdin", Terminal("scripts\n"))
    with pytest.raises(InputError, match="'scripts': allowed: text, source, loop, command"):
        init.init(init_arguments(str(tmp_path / "c.yaml")), [])


MINE = """
import torch


def make(batch_size, sequence_length):
    rows = torch.randint(0, 50, (64, sequence_length), generator=torch.Generator().manual_seed(0))
    return torch.utils.data.DataLoader([{"input_ids": row, "labels": row} for row in rows], batch_size=batch_size)


class Bigrams(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(50, 50)

    def forward(self, input_ids, labels):
        return torch.nn.functional.cross_entropy(self.table(input_ids[:, :-1]).flatten(0, 1), labels[:, 1:].flatten())


def model():
    return Bigrams()


def train(width=32):
    net = torch.nn.Linear(width, 1)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for row in torch.utils.data.DataLoader(torch.randn(20000, width), batch_size=4):
        net(row).mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def wide():
    train(64)


if __name__ == "__main__":
    train()
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a dataset, a model and a training of the user's own in mine.py."""
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_source_and_a_model_of_ones_own(mine: Path) -> None:
    words = ["--source", "mine:make", "--factory", "mine:model", "--device", "cpu", "--sequence-length", "32"]
    done = harness("init", "own.yaml", "--no-trial", *words, cwd=mine)
    assert done.returncode == 0, done.stderr
    scenario = load_scenario(mine / "own.yaml")
    assert section(scenario.base, "model") == {"factory": "mine:model"}
    assert scenario.base["data"] == {"source": "mine:make", "sequence_length": 32, "batch_size": 4}
    assert scenario.arms == {"inline": {}, "one-worker": {"data": {"workers": 1}}}
    done = harness("init", "preset.yaml", "--no-trial", "--source", "mine:make", "--vocab-size", "50", cwd=mine)
    assert done.returncode == 0, done.stderr
    assert section(load_scenario(mine / "preset.yaml").base, "model") == {"preset": "gpt2-tiny", "vocab_size": 50}


@pytest.mark.parametrize(("words", "texts", "controls"), [
    (["--command", "python mine.py --x 'a b'"], ["python mine.py --x 'a b'"], 3),
    (["--command", "python new.py", "--against", "python mine.py"], ["python mine.py", "python new.py"], 5),
    (["--loop", "mine:train"], ["mine:train()"], 3),
    (["--loop", "mine:wide", "--against", "mine:train"], ["mine:train()", "mine:wide()"], 5),
])  # fmt: skip
def test_what_is_run_as_it_is(mine: Path, words: list[str], texts: list[str], controls: int) -> None:
    done = harness("init", "own.yaml", *words, "--name", "own", "--steps", "30", cwd=mine)
    assert done.returncode == 0, done.stderr
    plan = planned(mine / "own.yaml")
    assert [arm.text for arm in plan.arms if arm.control is None] == texts
    assert len([arm for arm in plan.arms if arm.control is not None]) == controls
    assert (plan.scenario.name, plan.scenario.steps) == ("own", 30)
    assert f"{len(plan.blocks) * len(plan.arms)} runs" in harness("run", "own.yaml", "--plan", cwd=mine).stdout


@pytest.mark.parametrize(("words", "line"), [
    *((words, f"harness: init: own.yaml{line}") for words, line in (
        (["--model", "gpt5"], ":6: base.model.preset"), (["--batch-size", "many"], ":13: base.data.batch_size"),
        (["--name", "../evil"], ":2: name"), (["--device", "tpu"], ":14: base.compute.device"),
        (["--column", "a\nb"], ": --column"),
    )),
    (["--command", "a", "--loop", "mine:train"], "--loop and --command: a scenario is about one of them"),
    (["--command", "a", "--parquet", "x"], "--parquet goes with text; this scenario is about command"),
    (["--parquet", "x", "--against", "b"], "--against goes with --loop or --command; this scenario is about text"),
    (["--source", "mine:make", "--factory", "mine:model", "--model", "gpt2-tiny"],
     "--model does not go with --factory"),
    (["--command", ""], "--command: the scenario needs it; give it"),
    (["--command", "python 'mine.py"], "no closing quotation"),
    (["--command", "python mine.py", "--steps", "some"], "steps"),
    (["--loop", "mine"], "MODULE:FUNCTION"),
    (["--loop", "nobody:train"], "no module nobody"),
    (["--source", "nobody:make", "--vocab-size", "50"], "no module nobody"),
    (["--factory", "mine"], "MODULE:FUNCTION"),
    (["--corpus", "/missing*"], "harness: init: --corpus /missing*: no such file; allowed: "),
    (["--parquet", "/missing*"], "harness: init: --parquet /missing*: no such file; allowed: "),
])  # fmt: skip
def test_what_does_not_fit_is_one_line_and_nothing_is_written(mine: Path, words: list[str], line: str) -> None:
    done = harness("init", "own.yaml", *words, cwd=mine)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (2, 1), done.stderr
    assert line in done.stderr
    assert [one.name for one in mine.iterdir()] == ["mine.py"]


@pytest.mark.slow
def test_what_it_writes_of_a_command_runs(mine: Path) -> None:
    words = ["--command", f"{sys.executable} mine.py", "--name", "as-it-is", "--steps", "10"]
    assert harness("init", "as-it-is.yaml", *words, cwd=mine).returncode == 0
    done = harness("run", "as-it-is.yaml", "--repeats", "1", "--set", "controls=[]", cwd=mine)
    assert done.returncode == 0, done.stderr
    (study,) = (mine / "results" / "as-it-is").iterdir()
    assert {run.record.arm: run.record.status for run in StudyFolder(study).runs()} == {"mine": "done"}


@pytest.mark.slow
@pytest.mark.nightly
def test_the_trial_of_a_source_of_ones_own_runs_every_arm_and_tells_how_long_it_takes(mine: Path) -> None:
    words = ["--source", "mine:make", "--factory", "mine:model", "--device", "cpu", "--sequence-length", "16"]
    done = harness("init", "own.yaml", *words, "--name", "own", cwd=mine)
    assert done.returncode == 0, done.stderr
    assert "expected duration: about " in done.stdout
    assert [run.record.status for run in StudyFolder(tried(mine)).runs()] == ["done"] * len(make_planned(mine).arms)
    found = json.loads(harness("run", "own.yaml", "--plan", "--json", cwd=mine).stdout)["expected"]
    assert found["seconds"] > 0
    assert str(tried(mine).relative_to(mine)) in found["basis"]


def tried(folder: Path) -> Path:
    """The study of the trial of own.yaml."""
    (path,) = (folder / "results" / "cost" / "own").iterdir()
    return path


def make_planned(folder: Path) -> Plan:
    return make_plan(load_scenario(folder / "own.yaml"), "own.yaml")


def planned(path: Path) -> CommandPlan:
    scenario = open_scenario(path)
    assert isinstance(scenario, CommandScenario)
    return plan_commands(scenario)


def init_arguments(*words: str) -> argparse.Namespace:
    from harness.commands.init import add_arguments

    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)
