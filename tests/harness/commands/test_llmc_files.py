"""Model files of llm.c on the command line: written of a training, read by others, and those that do not fit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from harness.cli import main
from tests.harness.commands.test_llmc import END, Train, last_line, no_git, resume, train
from tests.trainer.test_llmc_model import PublishedLayout

__all__ = ["no_git", "train"]  # fixtures


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
