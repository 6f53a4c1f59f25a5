"""Corpora and tokenizers that nobody means well with: each writes its files and says its part of a scenario."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

WORDS = ("the", "step", "waits", "for", "data", "again", "α", "größer", "数据", "🚀")


@dataclass(frozen=True)
class Hostile:
    """A corpus or a tokenizer; ``make`` writes it into a folder of its own and returns its part of a scenario."""

    name: str
    make: Callable[[Path], dict[str, Any]]


def texts(count: int = 40, seed: int = 0) -> list[str]:
    """Ordinary documents of 1 to 60 words."""
    chance = random.Random(seed)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, 60))) for _ in range(count)]


def of_texts(documents: Sequence[str | None], **how: Any) -> Callable[[Path], dict[str, Any]]:
    """A corpus of these documents."""
    return of_table(lambda: pa.table({"text": pa.array(documents, pa.string())}), **how)


def of_table(
    table: Callable[[], pa.Table], name: str = "corpus.parquet", **how: Any
) -> Callable[[Path], dict[str, Any]]:
    """A corpus of this table, written with these settings of parquet."""

    def make(folder: Path) -> dict[str, Any]:
        pq.write_table(table(), folder / name, **how)
        return {"parquet": str(folder / name)}

    return make


def of_bytes(change: Callable[[bytes], bytes]) -> Callable[[Path], dict[str, Any]]:
    """A corpus whose file was changed."""

    def make(folder: Path) -> dict[str, Any]:
        found = of_texts(texts())(folder)
        path = Path(found["parquet"])
        path.write_bytes(change(path.read_bytes()))
        return found

    return make


def with_keys(make: Callable[[Path], dict[str, Any]], **keys: Any) -> Callable[[Path], dict[str, Any]]:
    """The same with more keys in the scenario."""
    return lambda folder: make(folder) | keys


def columns(**named: Any) -> Callable[[Path], dict[str, Any]]:
    """A corpus of these columns."""
    return of_table(lambda: pa.table(dict(named)))


def flipped(content: bytes) -> bytes:
    """One bit changed, in the first third of the file."""
    at = len(content) // 3
    return content[:at] + bytes([content[at] ^ 8]) + content[at + 1 :]


def invalid_utf8() -> pa.Table:
    """A string column with bytes that are no UTF-8, which pyarrow's own arrays would refuse."""
    offsets = pa.array([0, 3, 6], pa.int32()).buffers()[1]
    return pa.table({"text": pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"ok \xff\xfe\x80")])})


def two_files(first: pa.Table, second: pa.Table | bytes) -> Callable[[Path], dict[str, Any]]:
    """A corpus of two files and a glob."""

    def make(folder: Path) -> dict[str, Any]:
        pq.write_table(first, folder / "a.parquet")
        if isinstance(second, bytes):
            (folder / "b.parquet").write_bytes(second)
        else:
            pq.write_table(second, folder / "b.parquet")
        return {"parquet": str(folder / "*.parquet")}

    return make


def beside(prepare: Callable[[Path], object]) -> Callable[[Path], dict[str, Any]]:
    """A corpus of a file and a glob, which also matches what ``prepare`` puts beside the file."""

    def make(folder: Path) -> dict[str, Any]:
        pq.write_table(ORDINARY, folder / "a.parquet")
        prepare(folder)
        return {"parquet": str(folder / "*.parquet")}

    return make


def no_file(at: str, prepare: Callable[[Path], object] = Path.exists) -> Callable[[Path], dict[str, Any]]:
    """A path that is no parquet file."""

    def make(folder: Path) -> dict[str, Any]:
        prepare(folder / at)
        return {"parquet": str(folder / at)}

    return make


def empty_groups(folder: Path) -> dict[str, Any]:
    """Row groups without rows between the others."""
    table = pa.table({"text": texts()})
    with pq.ParquetWriter(folder / "corpus.parquet", table.schema) as writer:
        for part in (table.slice(0, 0), table.slice(0, 7), table.slice(0, 0), table.slice(7)):
            writer.write_table(part)
    return {"parquet": str(folder / "corpus.parquet")}


ODD = ["\u202eevil", "e\u0301" * 50, "👩\u200d👩\u200d👧" * 9, "\ufeffBOM", "\uffff", "ﷺ" * 40, "Z\u0351\u036b\u0313"]
SPECIALS = "<|endoftext|> <unk> [PAD] <s> </s> ## ##a ▁ Ġ <0x0A> <|endoftext|>"
ORDINARY = pa.table({"text": texts()})
CORPORA = (
    Hostile("ordinary", of_texts(texts())),
    Hostile("one document", of_texts(["one document of a few words"])),
    Hostile("one letter", of_texts(["x"])),
    Hostile("every other document empty", of_texts([text for one in texts(20) for text in (one, "")])),
    Hostile("all documents empty", of_texts(["", ""])),
    Hostile("no rows", of_texts([])),
    Hostile("a null", of_texts(["a", None, "b"])),
    Hostile("white space only", of_texts([" ", "\n\n", "\t \r\n", "\u00a0", "\u3000" * 90])),
    Hostile("one with text among white space", of_texts([" "] * 30 + ["text"])),
    Hostile("control characters", of_texts(["a\0b", "\0", "\x1b[31mred\x1b[0m", "\x7f\x08", "\r"] * 5)),
    Hostile("odd Unicode", of_texts(ODD * 3)),
    Hostile("names of special tokens", of_texts([SPECIALS, SPECIALS.replace(" ", ""), "<|endoftext|>"] * 6)),
    Hostile("5,000 short documents", of_texts([f"w{number % 97}" for number in range(5000)])),
    Hostile("a document of 2 MB", of_texts([" ".join(texts(6000)), *texts(5)])),
    Hostile("a word of 300,000 letters", of_texts(["a" * 300_000, *texts(5)])),
    Hostile("nothing but a giant word", of_texts(["ab" * 100_000])),
    Hostile("lines of numbers", of_texts([",".join(str(number * 7919) for number in range(300))] * 5)),
    Hostile("only the first 3", with_keys(of_texts(texts()), documents=3)),
    Hostile("more documents asked than there are", with_keys(of_texts(texts()), documents=10**9)),
    Hostile("large_string", columns(text=pa.array(texts(), pa.large_string()))),
    Hostile("string_view", columns(text=pa.array(texts(), pa.string_view()))),
    Hostile("dictionary", columns(text=pa.array(["a b", "c d"] * 30).dictionary_encode())),
    Hostile("binary", columns(text=pa.array([b"a", b"\xff"]))),
    Hostile("integers", columns(text=pa.array([1, 2, 3]))),
    Hostile("lists of strings", columns(text=pa.array([["a"], ["b", "c"]]))),
    Hostile("a struct", columns(text=pa.array([{"text": "a"}]))),
    Hostile("nulls by type", columns(text=pa.nulls(3))),
    Hostile("another column", with_keys(columns(text=pa.array(texts()), body=pa.array(texts(seed=1))), column="body")),
    Hostile("no such column", with_keys(of_texts(texts()), column="nothing\n\x1b[31m")),
    Hostile("a column whose name has a dot", with_keys(columns(**{"a.b": pa.array(texts())}), column="a.b")),
    Hostile("two columns of one name", of_table(lambda: pa.table([["a"], ["b"]], ["text", "text"]))),
    Hostile("no UTF-8", of_table(invalid_utf8)),
    Hostile("row groups of one row", of_texts(texts(), row_group_size=1)),
    Hostile("empty row groups", empty_groups),
    Hostile("pages of version 2, zstd", of_texts(texts(), data_page_version="2.0", compression="zstd")),
    Hostile("brotli without a dictionary", of_texts(texts(), compression="brotli", use_dictionary=False)),
    Hostile("format 1.0", of_texts(texts(), version="1.0", compression="gzip")),
    Hostile("a bit flipped in the middle", of_bytes(flipped)),
    Hostile("cut", of_bytes(lambda content: content[: len(content) // 2])),
    Hostile("a footer of zeros", of_bytes(lambda content: content[:-40] + bytes(36) + b"PAR1")),
    Hostile("a footer that says 2 GB", of_bytes(lambda content: content[:-8] + b"\xff\xff\xff\x7fPAR1")),
    Hostile("no bytes", of_bytes(lambda _: b"")),
    Hostile("text", of_bytes(lambda _: b"text\nno parquet\n" * 99)),
    Hostile("a file of each string type", two_files(ORDINARY, ORDINARY.cast(pa.schema({"text": pa.large_string()})))),
    Hostile("a glob with a damaged file", two_files(ORDINARY, b"PAR1 not really PAR1")),
    Hostile("a glob with another schema", two_files(ORDINARY, pa.table({"body": ["a"]}))),
    Hostile("a name with glob characters", of_table(lambda: ORDINARY, name="[a]*?{b}.parquet")),
    Hostile("a name with a line break", of_table(lambda: ORDINARY, name="a\nb \x1b[31m.parquet")),
    Hostile("a link to nothing", beside(lambda folder: (folder / "b.parquet").symlink_to("/no/such.parquet"))),
    Hostile("a glob with a link to itself", beside(lambda folder: (folder / "b.parquet").symlink_to("b.parquet"))),
    Hostile("a second name by a link", beside(lambda folder: (folder / "0.parquet").symlink_to("a.parquet"))),
    Hostile("a folder by a link", beside(lambda folder: (folder / "b.parquet").symlink_to("."))),
    Hostile("a name that is not UTF-8", beside(lambda folder: (folder / os.fsdecode(b"\xe9.parquet")).touch())),
    Hostile("no file", no_file("nothing.parquet")),
    Hostile("a folder", no_file("corpus.parquet", Path.mkdir)),
    Hostile("a pipe", no_file("corpus.parquet", os.mkfifo)),
    Hostile("a link to itself", no_file("corpus.parquet", lambda path: path.symlink_to(path))),
    Hostile("a device", lambda _: {"parquet": "/dev/zero"}),
)  # fmt: skip


SETTINGS = "tokenizer_config.json"


def trained(kind: str, vocab_size: int) -> Callable[[Path], dict[str, Any]]:
    """A tokenizer that is trained on the corpus."""
    return lambda _: {"train": {"kind": kind, "vocab_size": vocab_size}}


def backend(vocabulary: dict[str, int] | None = None, unknown: str | None = "<unk>") -> Any:
    """A word-level tokenizer of the `tokenizers` library."""
    import tokenizers

    numbered = {word: number for number, word in enumerate(("<unk>", *WORDS))}
    model = tokenizers.models.WordLevel(numbered if vocabulary is None else vocabulary, unknown)
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return made


def saved(make: Callable[[], Any], **specials: Any) -> Callable[[Path], dict[str, Any]]:
    """A folder as transformers saves a tokenizer."""

    def write(folder: Path) -> dict[str, Any]:
        from transformers import PreTrainedTokenizerFast

        PreTrainedTokenizerFast(tokenizer_object=make(), **specials).save_pretrained(folder / "tokenizer")
        return {"pretrained": str(folder / "tokenizer")}

    return write


def changed(change: Callable[[Path], object]) -> Callable[[Path], dict[str, Any]]:
    """Such a folder in which something was changed."""

    def write(folder: Path) -> dict[str, Any]:
        found = saved(backend, unk_token="<unk>")(folder)
        change(folder / "tokenizer")
        return found

    return write


def in_json(name: str, change: Callable[[dict[str, Any]], object]) -> Callable[[Path], object]:
    """A change of one of the folder's JSON files."""

    def apply(folder: Path) -> object:
        content = json.loads((folder / name).read_text())
        change(content)
        return (folder / name).write_text(json.dumps(content))

    return apply


def padded_and_cut() -> Any:
    """A tokenizer that was saved with padding and truncation on, which would cut documents."""
    made = backend()
    made.enable_padding(length=64, pad_id=1)
    made.enable_truncation(2)
    return made


def framed() -> Any:
    """One that puts special tokens around each text."""
    import tokenizers

    made = backend({"<unk>": 0, "<s>": 1, "</s>": 2, **{word: number + 3 for number, word in enumerate(WORDS)}})
    made.post_processor = tokenizers.processors.TemplateProcessing(
        "<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    return made  # fmt: skip


def lowered() -> Any:
    """One whose normalizer takes every letter away."""
    import tokenizers

    made = backend()
    made.normalizer = tokenizers.normalizers.Replace(tokenizers.Regex("."), "")
    return made


def sentencepiece_model(folder: Path) -> Path:
    """A small model of the library's own trainer."""
    import sentencepiece

    (folder / "input.txt").write_text("\n".join(texts(400)))
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "input.txt"), model_prefix=str(folder / "model"), vocab_size=60, minloglevel=2,
        hard_vocab_limit=False, character_coverage=1.0,
    )  # fmt: skip
    return folder / "model.model"


def sentencepiece(change: Callable[[bytes], bytes] = bytes) -> Callable[[Path], dict[str, Any]]:
    """Such a model, changed."""

    def make(folder: Path) -> dict[str, Any]:
        path = sentencepiece_model(folder)
        path.write_bytes(change(path.read_bytes()))
        return {"sentencepiece": str(path)}

    return make


def to_folder(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.json").mkdir()


def own_code(content: dict[str, Any]) -> None:
    content["auto_map"] = {"AutoTokenizer": ["x.Evil", None]}


def huge_id(content: dict[str, Any]) -> None:
    content["model"]["vocab"]["far"] = 4_000_000_000


def same_ids(content: dict[str, Any]) -> None:
    content["model"]["vocab"] |= dict.fromkeys(WORDS, 3)


TOKENIZERS = (
    Hostile("bpe", trained("bpe", 400)),
    Hostile("unigram", trained("unigram", 400)),
    Hostile("wordpiece", trained("wordpiece", 400)),
    Hostile("bpe of a million", trained("bpe", 1_000_000)),
    Hostile("word level", saved(backend, unk_token="<unk>")),
    Hostile("word level without an unknown token", saved(lambda: backend({"the": 0, "step": 1}, None))),
    Hostile("only an unknown token", saved(lambda: backend({"<unk>": 0}), unk_token="<unk>")),
    Hostile("no vocabulary", saved(lambda: backend({}, None))),
    Hostile("ids with gaps", saved(lambda: backend({"<unk>": 5, "the": 900, "step": 70_000}), unk_token="<unk>")),
    Hostile("padding and truncation saved", saved(padded_and_cut, unk_token="<unk>", pad_token="the")),
    Hostile("special tokens around", saved(framed, unk_token="<unk>", bos_token="<s>", eos_token="</s>")),
    Hostile("an end that is the unknown token", saved(backend, **dict.fromkeys(("unk_token", "eos_token"), "<unk>"))),
    Hostile("a normalizer that leaves nothing", saved(lowered, unk_token="<unk>")),
    Hostile("an id of 4e9", changed(in_json("tokenizer.json", huge_id))),
    Hostile("words of one id", changed(in_json("tokenizer.json", same_ids))),
    Hostile("unknown model", changed(in_json("tokenizer.json", lambda content: content["model"].update(type="evil")))),
    Hostile("code of its own", changed(in_json(SETTINGS, own_code))),
    Hostile("a class nobody knows", changed(in_json(SETTINGS, lambda one: one.update(tokenizer_class="Evil\x1b[31m")))),
    Hostile("cut", changed(lambda folder: (folder / "tokenizer.json").write_text('{"version": "1.0", '))),
    Hostile("deeply nested", changed(lambda folder: (folder / "tokenizer.json").write_text("[" * 100_000))),
    Hostile("a folder in place of the file", changed(to_folder)),
    Hostile("an empty folder", lambda folder: ((folder / "e").mkdir(), {"pretrained": str(folder / "e")})[1]),
    Hostile("no folder", lambda folder: {"pretrained": str(folder / "nothing")}),
    Hostile("sentencepiece", sentencepiece()),
    Hostile("sentencepiece, cut", sentencepiece(lambda content: content[: len(content) // 2])),
    Hostile("sentencepiece, a byte changed", sentencepiece(lambda content: content[:500] + b"\xff" + content[501:])),
    Hostile("sentencepiece, text", sentencepiece(lambda _: b"no model\n" * 20)),
    Hostile("sentencepiece, no bytes", sentencepiece(lambda _: b"")),
)  # fmt: skip
