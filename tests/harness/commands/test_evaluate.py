"""``harness evaluate``: a checkpoint answers as its training's last pass did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.cli import main
from harness.launch.training_files import read_evaluations
from tests.harness.commands.test_train import of_one_arm
from tests.trainer.questions import FILE, write_bin


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.launch.study.record_environment", dict)
        out, train = of_one_arm(tmp_path_factory.mktemp("training"))
        asked = f"evaluation={{fraction: 0.2, batches: 1, multiple_choice: {{path: {FILE}}}}}"
        assert train("--set", "data.sequence_length=128", "--set", asked, steps=12) == 0
    return Path(out)


def test_a_checkpoint_answers_as_the_training_did_at_its_end(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (last,) = [row for row in read_evaluations(trained / "evaluations.csv") if row.kind == "choices"]
    assert last.step == 11
    checkpoint = trained / "checkpoints" / "step-00000012"
    for place in (trained, checkpoint):
        capsys.readouterr()
        assert main(["evaluate", "--model", str(place), "--multiple-choice", str(FILE), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["questions"] == last.questions == 12
        shares = {name: found[name]["share"] for name in ("acc", "acc_norm", "acc_bytes", "acc_tokens")}
        assert shares == {name: getattr(last, name) for name in shares}
    assert main(["evaluate", "--model", str(trained), "--multiple-choice", str(FILE), "--most", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "5 questions, [95 % intervals over questions]; a guess is right in 25.0 %"
    assert [line.split()[0] for line in lines[1:]] == ["acc", "acc_norm", "acc_bytes", "acc_tokens"]


def test_token_ids_are_asked_of_a_model_without_a_tokenizer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=32, n_embd=8, n_layer=1, n_head=1)).save_pretrained(tmp_path)
    ids = write_bin(tmp_path / "questions.bin", [([5, 6], [[7], [8], [9, 10], [11]], 2)] * 3)
    assert main(["evaluate", "--model", str(tmp_path), "--multiple-choice", str(ids), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["acc"]["share"] in (0, 1)
    assert found["acc_tokens"]["share"] in (0, 1)
    assert found["acc_norm"] is found["acc_bytes"] is None
    assert main(["evaluate", "--model", str(tmp_path), "--multiple-choice", str(ids)]) == 0
    rows = capsys.readouterr().out.splitlines()[1:]
    assert {row.index(" by ") for row in rows} == {len(f"{'acc_norm':<10} unknown without the tokenizer")}
    strange = write_bin(tmp_path / "strange.bin", [([5, 6], [[7], [8], [9, 10], [64]], 2)])
    assert main(["evaluate", "--model", str(tmp_path), "--multiple-choice", str(strange)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{strange} has another vocabulary: its largest token id is 64, and" in line
    assert "has 64 ids (0 to 63); give a file" in line
    assert "--tokenizer" not in line
    assert main(["evaluate", "--model", str(tmp_path), "--multiple-choice", str(FILE)]) == 2
    assert "it has no tokenizer" in capsys.readouterr().err


def test_what_cannot_be_asked_is_refused_in_one_line(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"ctx": "A man", "endings": ["a", "b", "c"], "label": 0}) + "\n")
    (tmp_path / "empty").mkdir()
    (tmp_path / "none" / "checkpoints").mkdir(parents=True)
    model, questions = ["--model", str(trained)], ["--multiple-choice", str(FILE)]
    for words, message in (
        ([*model, "--multiple-choice", str(bad)], f"--multiple-choice: {bad}:1: endings: 3 of them; allowed: 4"),
        ([*model, *questions, "--most", "0"], "--most: 0; allowed: 1 or more"),
        (["--model", str(tmp_path / "x"), *questions], "there is no such file or folder"),
        (["--model", str(tmp_path / "empty"), *questions], "no checkpoint: a training's folder has checkpoints/"),
        (["--model", str(tmp_path / "none"), *questions], "no checkpoint in it"),
        ([*model, *questions, "--tokenizer", "bpe:300"], "cannot train one here"),
    ):
        capsys.readouterr()
        assert main(["evaluate", *words]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert message in lines[0]
