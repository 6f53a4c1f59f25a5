"""Folders of harness data pretokenize as a corpus: the batches are those of the text they were made from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from trainer.config import CorpusConfig, DataConfig, TokenizerConfig
from trainer.data.batch import Batch
from trainer.data.corpus import iter_encoded, prepare_corpus
from trainer.data.dataset import Epoch
from trainer.data.kept_tokenizer import keep
from trainer.data.manifest import Format
from trainer.data.prepare import prepare
from trainer.data.pretokenize import pretokenize
from trainer.data.tokenizers import FOLDER, prepare_tokenizer
from trainer.errors import InputError

LENGTH = 16
FORMATS: tuple[Format, ...] = ("flat", "token-list", "padded")
READ_BY: dict[str, Format] = {"tokens-padded": "padded", "tokens-stream": "token-list", "tokens-mmap": "flat"}


@pytest.fixture(scope="module")
def made(corpus_glob: str, tokenizer_config: TokenizerConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``harness data pretokenize --format all --out`` writes."""
    out = tmp_path_factory.mktemp("tokens")
    corpus = prepare_corpus(CorpusConfig(parquet=corpus_glob))
    info = prepare_tokenizer(tokenizer_config, corpus)
    for format in FORMATS:
        pretokenize(corpus, info, format, LENGTH, out / format)
        keep(info, out / format)
    return out


def epoch(config: DataConfig) -> list[Batch]:
    return list(Epoch(config, prepare(config), seed=3))


def same(first: list[Batch], second: list[Batch]) -> bool:
    return len(first) == len(second) and all(
        torch.equal(one.input_ids, other.input_ids) and torch.equal(one.labels, other.labels)
        for one, other in zip(first, second, strict=True)
    )


@pytest.mark.parametrize("access", ["scalar", "zero-copy"])
@pytest.mark.parametrize("path", READ_BY)
def test_batches_are_those_of_the_text(made, make_config, path, access) -> None:
    of_text = epoch(make_config(path=path, access=access))
    for place in (made, made / "flat", made / "token-list"):
        config = make_config(path=path, access=access, corpus={"path": str(place)}, tokenizer={"train": {}})
        assert same(epoch(config), of_text), place


@pytest.mark.parametrize("path", READ_BY)
def test_a_folder_of_the_right_format_is_read_as_it_is(made, make_config, path) -> None:
    found = prepare(make_config(path=path, corpus={"path": str(made)}))
    assert found.pretokenized == str(made / READ_BY[path])
    longer = prepare(make_config(path=path, corpus={"path": str(made)}, sequence_length=LENGTH + 1))
    assert (longer.pretokenized == found.pretokenized) == (path != "tokens-padded")
    fewer = prepare(make_config(path=path, corpus={"path": str(made), "documents": 20}))
    assert fewer.pretokenized != found.pretokenized


def test_padded_rows_alone_give_their_tokens_without_padding(made, make_config) -> None:
    whole, cut = (
        [
            encoded.ids[end - n : end].tolist()
            for encoded in iter_encoded(prepare_corpus(CorpusConfig(path=str(made / format))))
            for end, n in zip(encoded.lengths.cumsum(), encoded.lengths, strict=True)
        ]
        for format in ("flat", "padded")
    )
    assert cut == [tokens[:LENGTH] for tokens in whole]
    config = make_config(path="tokens-padded", corpus={"path": str(made / "padded")})
    assert same(epoch(config), epoch(make_config(path="tokens-padded")))


def test_its_own_tokenizer_is_used_and_no_other(made, make_config, bare_pretrained, tmp_path) -> None:
    corpus = {"path": str(made)}
    own = prepare(make_config(path="tokens-mmap")).tokenizer.fingerprint
    for tokenizer in ({"train": {}}, {"pretrained": str(made / "flat" / FOLDER)}):
        found = prepare(make_config(path="tokens-mmap", corpus=corpus, tokenizer=tokenizer))
        assert found.tokenizer.fingerprint == own
    for other in ({"train": {"kind": "unigram"}}, {"pretrained": bare_pretrained}):
        with pytest.raises(InputError, match=r"data\.tokenizer: it did not make the tokens"):
            prepare(make_config(path="tokens-mmap", corpus=corpus, tokenizer=other))
    shutil.copytree(made / "flat", tmp_path / "flat", ignore=shutil.ignore_patterns(FOLDER))
    with pytest.raises(InputError, match="without the tokenizer that made them"):
        prepare(make_config(path="tokens-mmap", corpus={"path": str(tmp_path / "flat")}))


def test_what_is_wrong_with_a_folder_is_one_line(made, make_config, corpus_glob, tokenizer_config, tmp_path) -> None:
    for name in ("flat", "padded"):
        shutil.copytree(made / name, tmp_path / name)

    def refused(**corpus: object) -> str:
        with pytest.raises(InputError) as raised:
            prepare(make_config(path="tokens-mmap", corpus={"path": str(tmp_path), **corpus}))
        return str(raised.value)

    assert "data.corpus.column: other" in refused(column="other")
    assert "data.corpus.format: " in refused(format="parquet")
    fewer = prepare_corpus(CorpusConfig(parquet=corpus_glob, documents=20))
    pretokenize(fewer, prepare_tokenizer(tokenizer_config, fewer), "token-list", LENGTH, tmp_path / "token-list")
    assert "several origins" in refused()
    shutil.rmtree(tmp_path / "token-list")
    data = tmp_path / "flat" / "documents.bin"
    data.write_bytes(data.read_bytes()[:-8])
    assert "documents.bin differs from what was written" in refused()


def test_a_manifest_of_another_program_is_no_pretokenized_folder(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    (tmp_path / "x.jsonl").write_text('{"text": "fox"}\n')
    assert prepare_corpus(CorpusConfig(path=str(tmp_path))).documents == 1
