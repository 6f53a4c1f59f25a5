"""llm.c and back: a checkpoint of a training is its model file, a training goes on from one, and its log is a table."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow.parquet import read_table

from harness.cli import main
from harness.launch.training_files import EvaluationRow, read_evaluations, read_losses
from tests.harness.commands.test_train import SCENARIO, ending_at
from tests.trainer.data.conftest import make_texts, write_parquet
from tests.trainer.test_llmc_model import PublishedLayout

SEED, END = 6, 14
SCHEDULE = "optimizer: {schedule: cosine, lr_warmup_steps: 4, final_fraction: 0.1, accumulation: 2}"
Train = Callable[..., int]


@pytest.fixture(autouse=True)
def no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks git for the commit starts a process."""
    monkeypatch.setattr("harness.launch.study.record_environment", dict)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Trains in the folder of that name; SEED steps of it, exported, are the seed."""
    corpus = write_parquet(tmp_path / "corpus.parquet", make_texts())
    text = SCENARIO.format(corpus=corpus).replace("pack_ms: 5", "pack_ms: 0")
    text = text.replace("every_steps: 10", f"every_steps: {SEED}, keep: 9")
    (tmp_path / "small.yaml").write_text(text.replace("  warmup_steps: 2\n", f"  warmup_steps: 2\n  {SCHEDULE}\n"))

    def trained(out: str, *words: str, steps: int = END) -> int:
        place = ["--out", str(tmp_path / out), "--steps", str(steps)]
        return main(["train", str(tmp_path / "small.yaml"), "--arm", "plain", *place, *words])

    return trained


def resume(seed: Path, step: int = SEED) -> tuple[str, str]:
    return "--set", f"resume={{llmc: {seed}, step: {step}}}"


def last_line(capsys: pytest.CaptureFixture[str]) -> str:
    return capsys.readouterr().err.splitlines()[-1]


def test_a_training_goes_on_from_a_seed_as_if_it_had_run(
    tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """All is the uninterrupted training's but what follows from the moments, which no model file of llm.c holds.

    Steps, tokens, rates and documents are the same, and so is the first loss. An uninterrupted training whose moments
    are set to zero there has the same losses, bit for bit. So has one that is stopped and resumed after the seed.
    """
    from trainer.compute.torch_compute import TorchCompute

    evaluated = "--set", "evaluation={every_steps: 3, fraction: 0.2, batches: 1}"
    assert train("whole", *evaluated) == 0
    checkpoint, seed = tmp_path / f"whole/checkpoints/step-{SEED:08d}", tmp_path / "model_00000006.bin"
    assert main(["export", "llmc-model", str(checkpoint), "--out", str(seed)]) == 0
    text = capsys.readouterr().out
    assert f"GPT-2 (layers 1, heads 2, width 32, positions 16, token ids 320, padded to 384) after {SEED} steps" in text
    assert train("seeded", *evaluated, *resume(seed)) == 0
    text = capsys.readouterr().err
    assert f"skipping the data of steps 0 to {SEED - 1}" in text
    assert f"begun at step {SEED} with the weights of {seed}" in text
    assert "the optimizer's moments begin at zero, because llm.c's model file has none" in text
    assert "warning" not in text
    assert "killed" not in text

    with monkeypatch.context() as patch:
        begin = TorchCompute.begin_step

        def without_moments(self: TorchCompute, step: int) -> None:
            if step == SEED:
                self._optimizer.state.clear()
            begin(self, step)

        patch.setattr(TorchCompute, "begin_step", without_moments)
        assert train("cleared", *evaluated) == 0
    whole, seeded, cleared = (read_losses(tmp_path / name / "losses.csv") for name in ("whole", "seeded", "cleared"))
    assert [row.step for row in seeded] == list(range(SEED, END))
    assert [row.tokens for row in seeded] == [row.tokens for row in whole[SEED:]]
    assert seeded[0].loss == whole[SEED].loss
    assert seeded == cleared[SEED:]
    differ = max(abs(a.loss - b.loss) for a, b in zip(seeded, whole[SEED:], strict=True))
    print(f"largest difference of a loss from the uninterrupted training, whose moments go on: {differ:.4f}")
    assert 0 < differ < 1
    passes = [read_evaluations(tmp_path / name / "evaluations.csv") for name in ("seeded", "cleared")]
    assert [row.step for row in passes[0]] == [5, 8, 11, 13]  # the one of the seed too
    assert passes[0] == passes[1][1:]
    rates = [
        read_table(tmp_path / name / "runs/plain/0/steps.parquet", columns=["step", "learning_rate"]).to_pylist()
        for name in ("seeded", "whole")
    ]
    assert rates[0] == rates[1][SEED:]
    assert len({row["learning_rate"] for row in rates[0]}) == END - SEED

    with monkeypatch.context() as patch:
        ending_at(SEED + 3, patch)
        assert train("stopped", *evaluated, *resume(seed)) == 130
    seed.unlink()  # the checkpoint has its weights
    assert train("stopped", *evaluated, *resume(seed), "--resume") == 0
    assert read_losses(tmp_path / "stopped/losses.csv") == seeded
    assert "warning" not in capsys.readouterr().err


LOG = """\
s:0 tel:10.9500
s:0 trl:10.9312 lr:0.000001 norm:15.36
s:1 trl:10.8000 lr:0.000002 norm:15.00
s:2 trl:nan lr:0.000003 norm:nan
s:2 tel:9.1000
s:2 eval:0.2533
s:3 trl:9.1"""


def test_a_log_becomes_the_tables_of_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log_gpt2_124M" / "main.log"
    log.parent.mkdir()
    log.write_text(LOG)
    monkeypatch.chdir(tmp_path)
    words = ["import", "llmc-log", str(log)]
    assert main([*words, "--tokens-per-step", "1000"]) == 0
    text, out = capsys.readouterr().out, tmp_path / "results/imported/log_gpt2_124M"
    rows = read_losses(out / "losses.csv")
    assert [(row.step, row.tokens) for row in rows] == [(0, 1000), (1, 2000), (2, 3000)]
    assert rows[1].loss == 10.8
    assert math.isnan(rows[2].loss)
    assert read_evaluations(out / "evaluations.csv") == [
        EvaluationRow(-1, 10.95, None, None),
        EvaluationRow(1, 9.1, None, None),
        EvaluationRow(1, None, None, None, acc_tokens=0.2533),
    ]
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "3 training losses, 2 validation losses" in text
    assert "HellaSwag 0.2533 after 2 steps" in text
    assert "assumed 1,000 tokens per step, which the log does not record" in text
    assert "the last line has no end, so it may be cut, and is ignored" in text
    assert main(words) == 2
    assert "already exists" in last_line(capsys)
    (out / "inner").mkdir()
    monkeypatch.chdir(out / "inner")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    log.rename(out / "main.log")
    assert main(["import", "llmc-log", "../main.log"]) == 0  # named by its folder, which is not ".."
    assert main(["import", "llmc-log", "../main.log", "--out", "~/log"]) == 0
    for place in (out / "inner/results/imported/log_gpt2_124M", tmp_path / "home/log"):
        assert (place / "loss.png").is_file()
    log.write_text("loss: 3\n")
    assert main([*words, "--out", str(tmp_path / "other")]) == 2
    assert "main.log:1: not a line of llm.c's main.log" in last_line(capsys)
    assert main([*words, "--tokens-per-step", "0"]) == 2
    assert not (tmp_path / "other").exists()


def test_a_checkpoint_of_a_training_is_a_model_file_and_comes_back(
    tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by an independent reader of the published layout, it has our logits; so has what is imported again."""
    from trainer.trained_model import load_trained

    assert train("one", steps=5) == 0
    for dtype, most in (("fp32", 1e-5), ("bf16", 0.05)):
        file, folder = tmp_path / f"{dtype}.bin", tmp_path / dtype
        assert main(["export", "llmc-model", str(tmp_path / "one"), "--out", str(file), "--dtype", dtype]) == 0
        assert main(["import", "llmc-model", str(file), "--out", str(folder)]) == 0
        ids = [300, 5, 17, 5, 260, 44, 44, 7]
        with torch.no_grad():
            places = [str(tmp_path / "one"), str(file), str(folder)]
            ours, direct, back = (load_trained(one, "--model").model(torch.tensor([ids])).logits[0] for one in places)
        published = PublishedLayout(file).logits(ids)
        assert torch.equal(direct, back)
        assert float(np.abs(back.numpy() - published).max()) < 1e-5
        largest = float(np.abs(ours.numpy() - published).max())
        print(f"largest difference of a logit from our checkpoint's, {dtype}: {largest:.2e}")
        assert largest < most
    assert "GPT-2 (layers 1, " in capsys.readouterr().out
    assert main(["export", "llmc-model", str(tmp_path / "one"), "--out", str(file)]) == 2
    assert "already exists" in last_line(capsys)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert main(["export", "llmc-model", str(tmp_path / "one"), "--out", f"~/{file.name}"]) == 2
    assert "already exists" in last_line(capsys)
    assert main(["import", "llmc-model", str(file), "--out", str(folder)]) == 2
    assert "already exists" in last_line(capsys)
    fewer = tmp_path / "fewer.bin"
    assert main(["export", "llmc-model", str(tmp_path / "one"), "--out", str(fewer), "--vocab-size", "300"]) == 0
    assert PublishedLayout(fewer).vocab == 300
    words = ["import", "llmc-model", str(fewer), "--out", str(tmp_path / "fewer"), "--no-such"]
    assert main(words) == 2
    assert "llmc-model: unknown argument '--no-such'" in last_line(capsys)


def test_a_seed_that_does_not_fit_is_one_line(tmp_path: Path, train: Train, capsys: pytest.CaptureFixture[str]) -> None:
    assert train("one", steps=5) == 0
    seed = tmp_path / "seed.bin"
    assert main(["export", "llmc-model", str(tmp_path / "one"), "--out", str(seed)]) == 0
    (tmp_path / "cut.bin").write_bytes(seed.read_bytes()[:-4])
    factory = "model={factory: 'm:f'}"
    for words, steps, message in (
        (resume(tmp_path / "cut.bin"), END, "cut short by 4 bytes"),
        (resume(tmp_path / "none.bin"), END, "none.bin: cannot be read (No such file or directory)"),
        (resume(seed, END), END, f"resume.step: {END}, and the training ends after {END} steps"),
        (resume(seed, -1), END, "resume.step"),
        ((*resume(seed), "--set", "model.width=16"), END, "model.width: 16, but "),
        ((*resume(seed), "--set", "model.layers=2"), END, "model.layers: 2, but "),
        ((*resume(seed), "--set", "data.sequence_length=32"), END, "data.sequence_length: 32, but "),
        ((*resume(seed), "--set", factory), END, "resume.llmc: "),
    ):
        assert train("two", *words, steps=steps) == 2
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("harness: ")]
        assert len(lines) == 1
        assert message in lines[0]
    words = ["train", str(tmp_path / "small.yaml"), "--arm", "plain", "--out", str(tmp_path / "three"), *resume(seed)]
    assert main([*words, "--tokens", "500"]) == 2
    assert "resume.step: 6 steps are 576 tokens, but the training ends after 500 tokens" in last_line(capsys)
    assert main(["run", str(tmp_path / "small.yaml"), *resume(seed), "--out", str(tmp_path / "study")]) == 2
    assert "the runs of a study begin at step 0: give --set resume=null" in last_line(capsys)
