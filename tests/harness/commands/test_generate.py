"""harness generate: every kind of checkpoint, the same text by the same seed, and one line for what is none."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch

from harness.cli import main
from tests.harness.commands.test_train import SCENARIO
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer import checkpoint_folder

STEPS = 4


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a short training, with two checkpoints."""
    folder = tmp_path_factory.mktemp("training")
    corpus = write_parquet(folder / "corpus.parquet", make_texts())
    text = (
        SCENARIO.format(corpus=corpus).replace("pack_ms: 5", "pack_ms: 0").replace("every_steps: 10", "every_steps: 2")
    )
    (folder / "small.yaml").write_text(text)
    out = folder / "out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harness.launch.study.record_environment", dict)
        words = ["train", str(folder / "small.yaml"), "--arm", "plain", "--steps", str(STEPS), "--out", str(out)]
        assert main(words) == 0
    shutil.rmtree(out.parent / "corpus.parquet", ignore_errors=True)
    (folder / "corpus.parquet").unlink(missing_ok=True)  # a checkpoint needs neither its corpus nor its cache
    return out


def generated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    capsys.readouterr()
    assert main(["generate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_every_place_gives_the_same_text(training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A training, its checkpoint, a folder of transformers and llm.c's file of it, with and without the cache."""
    tokenizer = str(training / "tokenizer/tokenizer.json")
    file, folder = tmp_path / "model.bin", tmp_path / "transformers"
    assert main(["export", "llmc-model", str(training), "--out", str(file)]) == 0
    assert main(["import", "llmc-model", str(file), "--out", str(folder), "--tokenizer", tokenizer]) == 0
    checkpoint = training / f"checkpoints/step-{STEPS:08d}"
    words = "--prompt", "the quick brown", "--max-tokens", "6"
    places = [
        ("--model", str(training)),
        ("--model", str(checkpoint)),
        ("--model", str(folder)),
        ("--model", str(file), "--tokenizer", tokenizer),
        ("--model", str(training), "--no-cache"),
    ]
    greedy = [generated(capsys, *place, *words) for place in places]
    drawn = [generated(capsys, *place, *words, "--top-k", "40", "--top-p", "0.9", "--seed", "3") for place in places]
    for found in (greedy, drawn):
        assert all(one["ids"] == found[0]["ids"] for one in found)
        assert all(one["text"] == found[0]["text"] for one in found)
    assert greedy[0]["ids"] != drawn[0]["ids"]
    assert greedy[0]["text"].startswith("the quick brown")
    assert len(greedy[0]["ids"]) == 6
    earlier = generated(capsys, "--model", str(training / "checkpoints/step-00000002"), *words, "--temperature", "1")
    assert earlier["ids"]


def test_a_checkpoint_alone_has_its_tokenizer(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from transformers import AutoTokenizer

    own = AutoTokenizer.from_pretrained(training / "tokenizer")
    checkpoint = tmp_path / f"step-{STEPS:08d}"
    shutil.copytree(training / "checkpoints" / checkpoint.name, checkpoint)
    found = AutoTokenizer.from_pretrained(checkpoint)
    assert (len(found), found.eos_token_id) == (300, 0)
    assert found.get_vocab() == own.get_vocab()
    words = "--prompt", "the quick brown", "--max-tokens", "6"
    assert generated(capsys, "--model", str(checkpoint), *words) == {
        **generated(capsys, "--model", str(training), *words), "seconds": ANY, "tokens_per_s": ANY,
    }  # fmt: skip


def test_what_is_printed(training: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--model", str(training), "--max-tokens", "400", "--temperature", "1.5", "--prompt"]
    assert main([*words, "fox"]) == 0
    text = capsys.readouterr()
    assert text.out.startswith("fox")
    last = text.err.splitlines()[-1]
    assert " tokens/s, after a prompt of " in last
    assert last.endswith(("ended: the model has no more positions", "ended: end of text"))
    assert generated(capsys, *words[1:], "")["prompt_ids"] == [0]  # <|endoftext|> ends the document before it


def test_a_damaged_checkpoint_is_passed_over_and_left_alone(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    shutil.copytree(training, out)
    newest = out / f"checkpoints/step-{STEPS:08d}"
    (newest / "model.safetensors").write_bytes(b"x")
    assert main(["generate", "--model", str(out), "--prompt", "a", "--max-tokens", "2"]) == 0
    assert "damaged: model.safetensors differs from what was written; the one before is used" in capsys.readouterr().err
    assert newest.exists()  # it is another's training


def test_what_is_no_checkpoint_is_one_line(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "none/checkpoints").mkdir(parents=True)
    (tmp_path / "text.bin").write_text("hello")
    checkpoint = training / f"checkpoints/step-{STEPS:08d}"
    for name, without in (("sharded", "model.safetensors"), ("factory", "config.json")):
        target = tmp_path / name / checkpoint.name
        about = {**checkpoint_folder.read(checkpoint).about}
        states = {"model": {"weight": torch.zeros(1)}} if name == "factory" else {"data": {}}
        written = checkpoint_folder.write(
            target.parent, STEPS, states, about, checkpoint_folder.WholeState(), lambda: None
        )
        assert not (written / without).exists()
    masked = tmp_path / "masked"
    masked.mkdir()
    (masked / "config.json").write_text('{"model_type": "distilbert", "vocab_size": 300}')
    (masked / "model.safetensors").write_bytes(b"")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "config.json").write_text("{")
    (broken / "model.safetensors").write_bytes(b"")
    bare, small = tmp_path / "bare", tmp_path / "small"
    for target in (bare, small):
        target.mkdir()
        for name in ("config.json", "model.safetensors"):
            shutil.copy(checkpoint / name, target / name)
    monkeypatch.chdir(tmp_path)
    for words, message in (
        (["--model", "empty"], "--model empty: no checkpoint: a training's folder has checkpoints/"),
        (["--model", "nowhere"], "--model nowhere: there is no such file or folder"),
        (["--model", "none"], "none/checkpoints: no checkpoint in it"),
        (["--model", "text.bin"], "text.bin: not a model file of llm.c"),
        (["--model", f"sharded/{checkpoint.name}"], "its weights are in shares of ranks"),
        (["--model", f"factory/{checkpoint.name}"], "the model of a model.factory"),
        (["--model", "masked"], "--model: masked: a masked model (distilbert), which predicts no next token"),
        (["--model", "broken"], "--model: broken: config.json is not readable JSON"),
        (["--model", "bare"], "--model bare: it has no tokenizer; give the one that it was trained with"),
        (["--model", str(training), "--tokenizer", "bpe:300"], "--tokenizer bpe:300: cannot train one here"),
        (["--model", str(training), "--tokenizer", "none.json"], "none.json"),
        (["--model", str(training), "--prompt", "fox " * 40], "tokens, but --model "),
        (["--model", str(training), "--max-tokens", "0"], "--max-tokens 0; allowed: 1 to 1,000,000"),
        (["--model", str(training), "--top-k", "0"], "--top-k 0; allowed: 1 or more"),
        (["--model", str(training), "--top-p", "1.5"], "--top-p 1.5; allowed: above 0, up to 1"),
        (["--model", str(training), "--top-p", "nan"], "--top-p nan; allowed"),
        (["--model", str(training), "--temperature", "-1"], "--temperature -1.0; allowed: 0"),
        (["--model", str(training), "--temperature", "inf"], "--temperature inf; allowed"),
        (["--model", str(training), "--seed", "1"], "--seed: no effect without --temperature"),
        (["--model", str(training), "--temperature", "0", "--top-k", "3"], "--top-k: no effect with --temperature 0"),
    ):
        prompt = [] if "--prompt" in words else ["--prompt", "fox"]
        assert main(["generate", *words, *prompt]) == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line


def test_a_tokenizer_with_more_ids_than_the_model_is_refused(
    training: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "model.bin"
    assert main(["export", "llmc-model", str(training), "--out", str(file), "--vocab-size", "280"]) == 0
    tokenizer = str(training / "tokenizer/tokenizer.json")
    assert main(["generate", "--model", str(file), "--tokenizer", tokenizer, "--prompt", "fox"]) == 2
    assert f"--model {file} has 280 token ids, fewer than the tokenizer (300)" in capsys.readouterr().err
    bits = bytearray(file.read_bytes())
    bits[1024 + 4 * 3 : 1024 + 4 * 4] = b"\xff" * 4  # a NaN
    file.write_bytes(bits)
    folder = tmp_path / "folder"
    assert main(["import", "llmc-model", str(file), "--out", str(folder)]) == 0
    assert "1 of its weights are NaN or infinite" in capsys.readouterr().out


def test_the_kept_tokenizer_follows_the_training(training: Path, tmp_path: Path) -> None:
    from trainer.data.kept_tokenizer import keep, kept
    from trainer.errors import InputError

    info = kept(training)
    assert (info.vocab_size, info.eos_id) == (300, 0)
    keep(info, tmp_path)
    written = (tmp_path / "tokenizer/tokenizer.json").stat()
    keep(info, tmp_path)  # it lies there already
    assert (tmp_path / "tokenizer/tokenizer.json").stat().st_ino == written.st_ino
    (tmp_path / "tokenizer/tokenizer.json").write_text("{}")
    with pytest.raises(InputError, match=r"does not match facts\.json"):
        kept(tmp_path)
    keep(info, tmp_path)
    found = kept(tmp_path)
    assert found.fingerprint == info.fingerprint
    assert kept(tmp_path / "elsewhere") is None
