"""``harness data``: pretokenizes, exports, imports and compares formats, of a small corpus, through the entrance."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.commands import harness
from tests.harness.commands.test_cli import refused
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.data import token_groups
from trainer.data.formats.flat import TOKENS, open_flat, token_type
from trainer.data.manifest import read_manifest
from trainer.files import partial_path


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_parquet(tmp_path_factory.mktemp("corpus") / "x.parquet", make_texts()))


@pytest.fixture
def inputs(corpus: str) -> tuple[str, ...]:
    return ("--corpus", corpus, "--tokenizer", "bpe:300")


def out_of(*words: str) -> list[str]:
    done = harness(*words)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def test_pretokenize_a_corpus_into_every_format(inputs: tuple[str, ...], tmp_path: Path) -> None:
    words = ("--sequence-length", "16", "--workers", "2", "--out", str(tmp_path))
    lines = out_of("data", "pretokenize", *inputs, *words, "--format", "all")
    cut = lines.pop(2)
    assert [re.sub(r"\d+ tokens", "N tokens", line) for line in lines] == [
        f"{tmp_path}/flat: flat, 60 documents, N tokens",
        f"{tmp_path}/padded: padded, 60 documents, N tokens, sequence length 16",
        f"{tmp_path}/token-list: token-list, 60 documents, N tokens",
    ]
    flat = open_flat(tmp_path / "flat", token_type(300))
    whole = pq.read_table(tmp_path / "token-list" / "data.parquet")["tokens"].to_pylist()
    assert [flat.document(number).tolist() for number in range(60)] == whole
    assert pq.read_table(tmp_path / "padded" / "data.parquet")["input_ids"].to_pylist() == [
        (tokens + [0] * 16)[:16] for tokens in whole
    ]
    kept = sum(min(len(tokens), 16) for tokens in whole)
    counts = len(flat.tokens), kept, len(flat.tokens) - kept, 60 * 16 - kept
    assert [int(number.replace(",", "")) for number in re.findall(r"(?<!\S)[\d,]+(?!\S)", cut)] == list(counts)
    assert counts[2] > 0
    # Each folder has its tokenizer, which makes the same tokens.
    for format in ("flat", "padded", "token-list"):
        tokenizer = str(tmp_path / format / "tokenizer")
        words = ("--corpus", inputs[1], "--tokenizer", tokenizer, "--format", "flat")
        out_of("data", "pretokenize", *words, "--out", str(tmp_path / "by" / format))
        assert (tmp_path / "by" / format / "flat" / TOKENS).read_bytes() == (tmp_path / "flat" / TOKENS).read_bytes()
    # Made from flat tokens here, from text there: the same files.
    out_of("data", "pretokenize", *inputs, "--sequence-length", "16", "--out", str(tmp_path / "again"))
    for format in ("padded", "token-list"):
        for name in ("data.parquet", "manifest.json", "digests.json"):
            assert (tmp_path / format / name).read_bytes() == (tmp_path / "again" / format / name).read_bytes()


@pytest.mark.parametrize("format", ["flat", "token-list", "padded"])
def test_documents_without_a_separator_are_announced(corpus: str, bare_model: str, format: str, tmp_path: Path) -> None:
    words = ("--corpus", corpus, "--tokenizer", bare_model, "--format", format, "--sequence-length", "16")
    done = harness("data", "pretokenize", *words, "--out", str(tmp_path))
    warnings = done.stderr.splitlines()
    assert done.returncode == 0
    assert len(warnings) == (format != "padded")  # a padded row holds one document
    assert all(bare_model in line for line in warnings)


def interrupt_fifth_group(patch: pytest.MonkeyPatch) -> None:
    """As Ctrl-C would while the fifth group of documents is encoded."""
    encode, calls = token_groups._encode, []

    def interrupted(*given: object) -> token_groups.TokenGroup:
        calls.append(given)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return encode(*given)  # type: ignore[arg-type]

    patch.setattr(token_groups, "_encode", interrupted)


def test_interrupted_it_says_what_is_kept_and_goes_on(
    inputs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("data", "pretokenize", *inputs, "--format", "flat", "--out", str(tmp_path / "out"))
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 1500)
    with monkeypatch.context() as patch:
        interrupt_fifth_group(patch)
        done = harness(*words, "--workers", "1")
    assert done.returncode == 130
    kept = re.fullmatch(
        r"harness: (\d+) of 60 documents are kept; the same command continues after them\nharness: interrupted\n",
        done.stderr,
    )
    assert kept
    assert 0 < int(kept[1]) < 60
    assert partial_path(tmp_path / "out" / "flat").is_dir()
    out_of(*words)
    assert read_manifest(tmp_path / "out" / "flat").documents == 60
    assert not partial_path(tmp_path / "out" / "flat").exists()


def test_another_tokenizer_is_refused_with_what_differs(inputs: tuple[str, ...], corpus: str, tmp_path: Path) -> None:
    words = ("--format", "flat", "--out", str(tmp_path))
    out_of("data", "pretokenize", *inputs, *words)
    line = refused("data", "pretokenize", "--corpus", corpus, "--tokenizer", "bpe:310", *words)
    assert line.startswith(f"{tmp_path}/flat: stale or foreign pretokenized data: tokenizer_fingerprint is ")


def test_export_and_import(corpus: str, model: str, tmp_path: Path) -> None:
    out, back = tmp_path / "out", tmp_path / "back.parquet"
    inputs = ("--corpus", corpus, "--tokenizer", model)
    lines = out_of("data", "export", *inputs, "--format", "llmc", "--shard-tokens", "1000", "--out", str(out))
    shards = sorted(out.glob("*.bin"), key=lambda path: path.stem[-6:])
    assert lines[:-1] == [str(path) for path in shards]
    contents = [path.read_bytes() for path in shards]
    tokens = [struct.unpack("<3i", content[:12])[2] for content in contents]
    assert lines[-1].startswith(f"{sum(tokens)} tokens of 60 documents; ")
    assert tokens == [*[1000] * (len(tokens) - 1), sum(tokens) % 1000]
    assert (out / "tokenizer" / "tokenizer.model").read_bytes() == Path(model).read_bytes()
    assert len(tokens) > 1

    out_of("data", "pretokenize", *inputs, "--format", "token-list", "--out", str(tmp_path))
    documents = list(filter(None, pq.read_table(tmp_path / "token-list" / "data.parquet")["tokens"].to_pylist()))
    assert [token for content in contents for (token,) in struct.iter_unpack("<H", content[1024:])] == [
        token for document in documents for token in [document[-1], *document[:-1]]
    ]

    words = ("data", "import", *map(str, shards), "--format", "llmc", "--out", str(back))
    assert "cannot train one on token ids" in refused(*words, "--tokenizer", "bpe:300")
    lines = out_of(*words, "--tokenizer", model)
    assert lines[0].startswith(f"{back}: {len(documents)} documents, {sum(tokens)} tokens ")
    assert "whether an end-of-text id stood within a text: each one ends a document" in lines[-1]
    assert pq.read_table(back).to_pydict() == {"tokens": documents}


def test_import_says_what_is_lost(bare_model: str, tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(struct.pack("<5H", 3, 4, 5, 6, 7))
    back = tmp_path / "back.parquet"
    words = ("data", "import", str(tmp_path / "train.bin"), "--format", "nanogpt", "--tokenizer", bare_model)
    lines = out_of(*words, "--out", str(back))
    assert lines[0] == f"{back}: 1 documents, 5 tokens"
    assert "no end-of-text id, so all tokens are one document" in lines[-1]
    assert pq.read_table(back)["tokens"].to_pylist() == [[3, 4, 5, 6, 7]]
    assert refused(*words, "--out", str(back)) == f"--out {back}: already exists; choose a new file"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return sentencepiece_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def bare_model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Without an end-of-text id."""
    return sentencepiece_model(tmp_path_factory.mktemp("bare"), bos_id=-1, eos_id=-1, pad_id=-1)


def sentencepiece_model(folder: Path, **ids: int) -> str:
    import sentencepiece

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(line for text in make_texts() for line in text.splitlines()),
        model_prefix=str(folder / "x"), vocab_size=120, hard_vocab_limit=False, minloglevel=2, num_threads=1, **ids,
    )  # fmt: skip
    return str(folder / "x.model")


def test_the_table_of_formats(inputs: tuple[str, ...], tmp_path: Path) -> None:
    words = ("--sequence-length", "16", "--repeats", "1", "--out", str(tmp_path))
    head, *lines = out_of("data", "formats", *inputs, *words)
    assert re.fullmatch(r"x\.parquet: 60 documents, [\d,]+ tokens, vocabulary 300", head)
    rows = {line.split()[0]: line.split() for line in lines if line and "tokenized with" not in line}
    assert list(rows) == ["format", "padded", "token-list", "flat", "llmc", "nanogpt", "bytes/token:"]
    assert rows["nanogpt"][2] == "2.00"
    assert 2.0 <= float(rows["flat"][2]) < 2.5
    assert list(tmp_path.iterdir()) == []


def test_the_time_of_flat_tokens_is_of_what_this_process_made(
    inputs: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind what a killed process has left; and a column of token ids is not tokenized."""
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 1500)
    words = ("data", "formats", "--sequence-length", "16", "--repeats", "1")
    with monkeypatch.context() as patch:
        interrupt_fifth_group(patch)
        assert harness(*words, *inputs).returncode == 130
    found = re.fullmatch(
        r"(\d+) documents, after (\d+) of an earlier process: tokenized with tokenizers \S+ and written "
        r"as flat tokens in [\d.]+ s",
        out_of(*words, *inputs)[1],
    )
    assert found
    assert int(found[1]) + int(found[2]) == 60
    assert int(found[2])

    tokenizer = next((tmp_path / "cache" / "tokenizer").glob("*/tokenizer.json"))
    pq.write_table(pa.table({"input_ids": [[1, 2], [3]]}), tmp_path / "ids.parquet")
    stored = ("--corpus", str(tmp_path / "ids.parquet"), "--column", "input_ids", "--tokenizer", str(tokenizer))
    assert re.fullmatch(r"read and written as flat tokens in [\d.]+ s", out_of(*words, *stored)[1])
    assert out_of(*words, *stored)[1] == ""


@pytest.mark.parametrize(("words", "line"), [
    (("pretokenize",), "data pretokenize: give a scenario, or --corpus and --tokenizer"),
    (("formats", "--corpus", "x"), "data formats: give a scenario, or --tokenizer"),
    (("pretokenize", "x.yaml", "--tokenizer", "y"), "data pretokenize: --tokenizer cannot be combined with"),
    (("pretokenize", *("--corpus", "x", "--tokenizer", "y"), "--arm", "z"), "data pretokenize: --set and --arm need"),
    (("pretokenize", *("--corpus", "x", "--tokenizer", "bpe:9")), "data.tokenizer.train.vocab_size: Input should be"),
    (("pretokenize", "x.yaml", "--workers", "0"), "--workers 0: at least 1"),
    (("pretokenize", "x.yaml", "--sequence-length", "9"), "--sequence-length: with a scenario use"),
    (("pretokenize", *("--corpus", "/no/x", "--tokenizer", "bpe:300")), "data.corpus.path: no /no/x"),
    (("export", "x.yaml", "--format", "llmc", "--out", "y", "--shard-tokens", "0"), "--shard-tokens 0: at least 1"),
    (("export", "x.yaml", "--format", "nanogpt", "--out", "y", "--validation-share", "1"),
     "--validation-share 1.0: from 0 to below 1"),
    (("export", "x.yaml", "--format", "llmc", "--out", "y", "--name", "a/b"), "--name 'a/b': a file's name"),
    (("formats", "x.yaml", "--repeats", "0"), "--repeats 0: at least 1"),
])  # fmt: skip
def test_wrong_words_are_one_line(words: tuple[str, ...], line: str) -> None:
    assert refused("data", *words).startswith(line)
