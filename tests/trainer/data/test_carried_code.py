"""Code that a tokenizer's folder carries is never run, and nobody is asked whether to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainer.config import TokenizerConfig
from trainer.data.corpus import Corpus
from trainer.data.engines import libraries
from trainer.data.tokenizers import prepare_tokenizer
from trainer.errors import InputError


def refused(config: TokenizerConfig, corpus: Corpus) -> str:
    with pytest.raises(InputError) as error:
        prepare_tokenizer(config, corpus)
    assert "\n" not in str(error.value)
    return str(error.value)


EVIL = """
from pathlib import Path
from transformers import PreTrainedTokenizerFast, PretrainedConfig
Path({mark!r}).write_text("ran")
class Evil(PreTrainedTokenizerFast): pass
class EvilConfig(PretrainedConfig): model_type = "evil"
"""


@pytest.mark.parametrize("file", ["tokenizer_config.json", "config.json"])
def test_code_of_a_folder_is_never_run_and_nobody_is_asked(
    corpus: Corpus, bare_pretrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str
) -> None:
    folder, mark = tmp_path / "evil", tmp_path / "mark"
    folder.mkdir()
    for path in Path(bare_pretrained).iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    (folder / "evil.py").write_text(EVIL.format(mark=str(mark)))
    code = [None, "evil.Evil"]
    content = {"tokenizer_class": "Evil", "model_type": "evil", "auto_map": {"AutoTokenizer": code}}
    (folder / file).write_text(json.dumps(content))
    asked: list[str] = []

    def yes(prompt: str = "") -> str:
        asked.append(prompt)
        return "y"

    monkeypatch.setattr("builtins.input", yes)  # a user at a terminal who agrees
    line = refused(TokenizerConfig(pretrained=str(folder)), corpus)
    assert f"{folder} carries code of its own ({file}: evil.Evil)" in line
    assert "\n" not in line
    with pytest.raises(InputError, match="carries code of its own"):  # what a run does with a slow one
        libraries.load_auto(str(folder))
    assert not asked
    assert not mark.exists()


def test_code_of_a_model_beside_an_ordinary_tokenizer_is_left_alone(
    corpus: Corpus, bare_pretrained: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark = tmp_path / "mark"
    for path in Path(bare_pretrained).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "evil.py").write_text(EVIL.format(mark=str(mark)))
    names = {"AutoConfig": "evil.EvilConfig", "AutoModelForCausalLM": "evil.EvilModel"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "evil", "auto_map": names}))
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("asked"))
    prepare_tokenizer(TokenizerConfig(pretrained=str(tmp_path)), corpus)
    assert not mark.exists()
    (tmp_path / "tokenizer.json").unlink()  # now it takes the code to know what the tokenizer is
    line = refused(TokenizerConfig(pretrained=str(tmp_path)), corpus)
    assert "carries code of its own (config.json: evil.EvilConfig, config.json: evil.EvilModel)" in line
    assert not mark.exists()
