"""Columns of token ids are read without a tokenizer; columns of messages are rendered as transformers renders them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.examples import examples
from tests.trainer.data.corpus.corpora import arrow, jsonl, parquet, saved_to_disk
from tests.trainer.data.test_packing import assert_all_same
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig, DataConfig, TokenizerConfig, TrainTokenizer
from trainer.data.corpus import iter_encoded, iter_texts, prepare_corpus
from trainer.data.dataset import Epoch
from trainer.data.prepare import prepare
from trainer.data.tokenizers import document_tokens, load_tokenizer, prepare_tokenizer
from trainer.data.verify import verify
from trainer.errors import InputError

Make = Callable[..., DataConfig]
IDS = "input_ids"
TOKEN_WRITERS: dict[str, Callable[[Path, list[list[int]]], Path]] = {
    "parquet": lambda folder, ids: parquet(folder, ids, pa.list_(pa.int32()), IDS),
    "large lists of uint16": lambda folder, ids: parquet(folder, ids, pa.large_list(pa.uint16()), IDS),
    "jsonl": lambda folder, ids: jsonl(folder, ids, IDS),
    "arrow": lambda folder, ids: arrow(folder / "data.arrow", ids, None, IDS),
    "save_to_disk": lambda folder, ids: saved_to_disk(folder, ids, IDS),
}


def ids_of(config: DataConfig, texts: list[str], end: bool) -> list[list[int]]:
    info = prepare_tokenizer(config.tokenizer, prepare_corpus(config.corpus))
    ids = load_tokenizer(info).encode_batch(texts)
    return document_tokens(ids, info.eos_id) if end else ids


def refused(path: Path | str, **settings: Any) -> str:
    return refusal(prepare_corpus, CorpusConfig(path=str(path), **settings))


@pytest.mark.parametrize(("path", "end"), [("tokens-padded", False), ("tokens-stream", True)])
@pytest.mark.parametrize("name", TOKEN_WRITERS)
def test_stored_tokens_make_the_same_batches_as_the_text(
    tmp_path: Path, texts: list[str], corpus_file: str, trained: str, make_config: Make, path: str, name: str, end: bool
) -> None:
    """Whether documents are stored with their end-of-text or without it."""
    shared = {"path": path, "tokenizer": TokenizerConfig(pretrained=trained)}
    of_text = make_config(corpus=CorpusConfig(path=corpus_file), **shared)
    stored = TOKEN_WRITERS[name](tmp_path, ids_of(of_text, texts, end))
    of_tokens = make_config(corpus=CorpusConfig(path=str(stored), column=IDS), **shared)
    prepared = prepare(of_tokens)
    assert (prepared.corpus.content, prepared.corpus.documents, prepared.corpus.empty) == ("tokens", 60, 3)
    assert prepared.tokenizer.eos_id is not None
    assert_all_same(Epoch(of_text, prepare(of_text), 1), Epoch(of_tokens, prepared, 1))


@pytest.fixture(scope="module")
def corpus_file(tmp_path_factory: pytest.TempPathFactory, texts: list[str]) -> str:
    return str(parquet(tmp_path_factory.mktemp("text"), texts))


@pytest.fixture(scope="module")
def trained(corpus_file: str) -> str:
    """A tokenizer.json of a tokenizer with an end-of-text, in a file of its own."""
    config = TokenizerConfig(train=TrainTokenizer(vocab_size=300))
    return prepare_tokenizer(config, prepare_corpus(CorpusConfig(path=corpus_file))).location


def test_encoded_documents_are_what_was_stored(tmp_path: Path) -> None:
    stored = [[1, 2, 9], [], [9], [3], [9, 9]]
    corpus = prepare_corpus(CorpusConfig(path=str(parquet(tmp_path, stored, None, IDS)), column=IDS))
    assert corpus.largest_id == 9
    for rows in (1, 2, 100):
        for eos_id, expected in ((None, stored), (9, [[1, 2], [], [], [3], [9]]), (5, stored)):
            found = []
            for encoded in iter_encoded(corpus, rows, eos_id):
                assert (encoded.ids.dtype, encoded.lengths.dtype) == (np.uint32, np.int64)
                assert len(encoded.lengths) <= rows
                found += [part.tolist() for part in np.split(encoded.ids, encoded.lengths.cumsum()[:-1])]
            assert found == expected


def test_stored_tokens_have_no_text(tmp_path: Path, trained: str, make_config: Make) -> None:
    corpus = CorpusConfig(path=str(jsonl(tmp_path, [[1, 2]], IDS)), column=IDS)
    with pytest.raises(InputError, match="has token ids, not text"):
        next(iter_texts(prepare_corpus(corpus)))
    with pytest.raises(InputError, match="give the tokenizer that made them"):
        prepare(make_config(corpus=corpus, path="tokens-stream"))  # asks for one to be trained
    pretrained = make_config(corpus=corpus, tokenizer=TokenizerConfig(pretrained=trained), path="text-stream")
    with pytest.raises(InputError, match=r"data.path: text-stream tokenizes text, .* allowed: data.path tokens-padded"):
        prepare(pretrained)
    with pytest.raises(InputError, match="harness data verify tokenizes text"):
        verify(pretrained)


@pytest.mark.parametrize(("rows", "line"), [
    ([[1], [2, 70000]], "row 1 (from 0): column 'input_ids' holds the id 70,000, and the tokenizer's ids end at 299"),
    ([[1], [], [2, -1]], "row 2 (from 0): -1 is no token id; allowed: 0 to 2,147,483,647"),
    ([[1, 2**40]], f"row 0 (from 0): {2**40} is no token id"),
    ([[1], [2, None]], "row 1 (from 0): a token id is null"),
    ([[1], None, [2]], "1 null (first: "),
    ([[], []], "empty corpus: 2 documents, all of them empty"),
])  # fmt: skip
@pytest.mark.parametrize(
    "write", [jsonl, lambda folder, rows, column: parquet(folder, rows, pa.list_(pa.int64()), column)]
)
def test_ids_that_are_none(tmp_path, trained, write, rows, line) -> None:
    path = write(tmp_path, rows, IDS)
    with pytest.raises(InputError) as error:
        prepare_tokenizer(TokenizerConfig(pretrained=trained), prepare_corpus(CorpusConfig(path=str(path), column=IDS)))
    assert line in str(error.value)
    assert str(path) in str(error.value)


CHATS = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hallo, <b>漢字</b>?"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "name": "x"}],
    [{"role": "user", "content": ""}],
]
TEMPLATE = """\
{{ bos_token }}
{% for message in messages %}
    {%- if message.name is defined %}({{ message.name | tojson }}){% endif %}
<|{{ message['role'] }}|>{{ message['content'] | trim }}{{ eos_token }}
{% endfor %}
{% generation %}{% endgeneration %}
"""


@pytest.fixture(scope="module")
def chatty(tmp_path_factory: pytest.TempPathFactory, trained: str) -> Path:
    """A tokenizer's folder with a template, as transformers saves it."""
    from transformers import PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("chatty")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=trained, eos_token="<|endoftext|>", bos_token="<s>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("write", [jsonl, lambda folder, rows, column: parquet(folder, rows, None, column)])
@pytest.mark.parametrize("where", ["folder", "jinja", "config"])
def test_chats_are_rendered_as_transformers_does(tmp_path, chatty, write, where) -> None:
    from transformers import AutoTokenizer

    template = chatty
    if where == "jinja":
        template = chatty / "chat_template.jinja"
    elif where == "config":  # as older versions save it
        template = tmp_path / "old"
        template.mkdir()
        config = json.loads((chatty / "tokenizer_config.json").read_text())
        config["chat_template"] = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": TEMPLATE}]
        (template / "tokenizer_config.json").write_text(json.dumps(config))
    path = write(tmp_path, CHATS, "messages")
    corpus = prepare_corpus(CorpusConfig(path=str(path), column="messages", chat_template=str(template)))
    assert corpus.content == "chat"
    tokenizer = AutoTokenizer.from_pretrained(chatty)
    expected = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    assert [text for part in iter_texts(corpus, 2) for text in part] == expected
    assert "<|endoftext|>" in expected[0]


GREETING = "{% for message in messages %}{{ message.content }}{{ eos_token }}{% endfor %}"


@pytest.mark.parametrize("where", ["special_tokens_map.json", "the class"])
def test_special_tokens_that_only_the_tokenizer_knows(tmp_path: Path, chatty: Path, where: str) -> None:
    """As older versions save them, and as GPT-2's tokenizer is published: its class says what ends a text."""
    from transformers import AutoTokenizer

    config = json.loads((chatty / "tokenizer_config.json").read_text())
    (tmp_path / "chat_template.jinja").write_text(GREETING)
    if where == "the class":
        model = json.loads((chatty / "tokenizer.json").read_text())["model"]
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / "merges.txt").write_text(
            "#version: 0.2\n" + "".join(f"{' '.join(one)}\n" for one in model["merges"])
        )
        config = {"tokenizer_class": "GPT2Tokenizer"}
    else:
        (tmp_path / "tokenizer.json").write_bytes((chatty / "tokenizer.json").read_bytes())
        (tmp_path / where).write_text(json.dumps({"eos_token": config.pop("eos_token")}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    path = jsonl(tmp_path, CHATS, "messages")
    corpus = prepare_corpus(CorpusConfig(path=str(path), column="messages", chat_template=str(tmp_path)))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    expected = [tokenizer.apply_chat_template(chat, tokenize=False) for chat in CHATS]
    assert [text for part in iter_texts(corpus) for text in part] == expected
    assert expected[2] == "<|endoftext|>"


def test_a_template_of_ones_own_must_know_its_special_tokens(tmp_path: Path) -> None:
    (tmp_path / "mine.jinja").write_text(GREETING)
    path = jsonl(tmp_path, CHATS, "messages")
    settings = {"column": "messages", "chat_template": str(tmp_path / "mine.jinja")}
    assert "mine.jinja names eos_token, and there is no tokenizer next to it; give the tokenizer's folder" in refused(
        path, **settings
    )
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert "names eos_token, and the tokenizer next to it cannot be loaded" in refused(path, **settings)
    for token, text in (("</s>", "</s>"), (None, "")):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": token}))
        corpus = prepare_corpus(CorpusConfig(path=str(path), **settings))
        assert next(iter_texts(corpus))[2] == text


def test_a_conversation_without_messages_is_an_empty_document(tmp_path: Path) -> None:
    """Also where it is the first one of a JSONL file, which does not say then what the column holds."""
    (tmp_path / "t.jinja").write_text("{% for message in messages %}{{ message.content }}{% endfor %}")
    path = jsonl(tmp_path, [[], *CHATS], "messages")
    settings = {"column": "messages", "chat_template": str(tmp_path / "t.jinja")}
    corpus = prepare_corpus(CorpusConfig(path=str(path), **settings))
    assert (corpus.content, corpus.documents, corpus.empty) == ("chat", 4, 2)
    assert "row 0 (from 0): column 'input_ids' holds a list; allowed: a string, as in other rows" in refused(
        jsonl(tmp_path, [[], "text"], IDS), column=IDS
    )


def test_sentencepiece_makes_no_special_token_of_what_a_template_writes(tmp_path, bare_sentencepiece, corpus_glob):
    """It encodes them as text: a chat would be trained on without them."""
    corpus = prepare_corpus(CorpusConfig(parquet=corpus_glob))
    model = prepare_tokenizer(
        TokenizerConfig.model_validate({"train": {"kind": "sentencepiece", "vocab_size": 300}}), corpus
    ).location
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>"}))
    path = jsonl(tmp_path, CHATS, "messages")

    def chats(template: str) -> Any:
        (tmp_path / "t.jinja").write_text(template)
        return prepare_corpus(CorpusConfig(path=str(path), column="messages", chat_template=str(tmp_path / "t.jinja")))

    for template in ("{{ bos_token }}{{ messages[0].content }}", "<s>{{ messages[0].content }}"):
        with pytest.raises(
            InputError, match=r"t\.jinja writes '<s>', of which sentencepiece makes ids of its characters"
        ):
            prepare_tokenizer(TokenizerConfig(sentencepiece=model), chats(template))
    asked = TokenizerConfig(sentencepiece=model, special_tokens_in_text="as-text")
    assert prepare_tokenizer(asked, chats("<s>{{ messages[0].content }}")).location == model
    plain = chats("{{ messages[0].role }}: {{ messages[0].content }}")
    assert prepare_tokenizer(TokenizerConfig(sentencepiece=model), plain).location == model
    assert prepare_tokenizer(
        TokenizerConfig(sentencepiece=bare_sentencepiece), chats("<s>{{ messages[0].content }}")
    )  # it has no such token


def test_the_template_is_part_of_the_fingerprint_and_never_todays_date(tmp_path: Path) -> None:
    path = jsonl(tmp_path, CHATS, "messages")

    def corpus(template: str) -> Any:
        (tmp_path / "t.jinja").write_text(template)
        return prepare_corpus(CorpusConfig(path=str(path), column="messages", chat_template=str(tmp_path / "t.jinja")))

    first = corpus("{{ messages[0].role }}")
    assert first.fingerprint != corpus("{{ messages[0].content }}x").fingerprint
    dated = corpus("\n  {% if strftime_now is defined %}{{ strftime_now('%d %b %Y') }}{% endif %}")
    assert next(iter_texts(dated)) == ["\n26 Jul 2024"] * 3


@pytest.mark.parametrize(("template", "line"), [
    ("{{ messages[0].__class__.__mro__ }}", "row 0 (from 0): the template"),
    ("{{ ''.__class__.__base__.__subclasses__() }}", "row 0 (from 0): the template"),
    ("{{ cycler.__init__.__globals__.os.system('touch harmed') }}", "row 0 (from 0): the template"),
    ("{% for x in messages %}", "row 0 (from 0): the template"),
    ("{% if messages[0].role != 'system' %}{{ raise_exception('no system') }}{% endif %}", "row 1 (from 0): the "),
    ("{{ 1 / 0 }}", "fails: division by zero"),
])  # fmt: skip
def test_a_template_that_fails_or_reaches_further(tmp_path, monkeypatch, template, line) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "t.jinja").write_text(template)
    path = jsonl(tmp_path, CHATS, "messages")
    assert line in refused(path, column="messages", chat_template=str(tmp_path / "t.jinja"))
    assert not (tmp_path / "harmed").exists()


def test_chats_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "t.jinja").write_text("{{ messages }}")
    settings = {"column": "messages", "chat_template": str(tmp_path / "t.jinja")}
    assert "holds chats; give data.corpus.chat_template" in refused(
        jsonl(tmp_path, CHATS, "messages"), column="messages"
    )
    path = jsonl(tmp_path, [CHATS[0], [{"role": "user", "text": "a"}]], "messages")
    assert f"{path}, row 1 (from 0): message 0 has no 'content'; its keys: 'role', 'text'" in refused(path, **settings)
    path = jsonl(tmp_path, [CHATS[0], None], "messages")
    assert f"1 null (first: {path}, row 1, from 0); every document must be a list of messages" in refused(
        path, **settings
    )
    path = jsonl(tmp_path, [CHATS[0], "text"], "messages")
    assert "row 1 (from 0): column 'messages' holds a string; allowed: a list of messages" in refused(path, **settings)
    assert "holds text, and no lists of messages" in refused(
        jsonl(tmp_path, ["a"]), chat_template=str(tmp_path / "t.jinja")
    )
    pq.write_table(pa.table({"messages": [[{"from": "a", "value": "b"}]]}), tmp_path / "other.parquet")
    assert "message 0 has no 'role'; its keys: 'from', 'value'" in refused(tmp_path / "other.parquet", **settings)


@pytest.mark.parametrize(("name", "content", "line"), [
    ("no", None, "no "),
    ("t.jinja", b"\xff\xfe", "cannot be read as text"),
    ("t.jinja", b" " * (2**20 + 1), "more than 1,048,576 bytes"),
    ("tokenizer_config.json", b"{}", "names no chat_template"),
    ("tokenizer_config.json", b"{", "cannot be read as JSON"),
])  # fmt: skip
def test_templates_that_are_none(tmp_path: Path, name: str, content: bytes | None, line: str) -> None:
    path = jsonl(tmp_path, CHATS, "messages")
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert line in refused(path, column="messages", chat_template=str(tmp_path / name))


def test_a_lone_tokenizer_json_is_a_tokenizer(tmp_path: Path, trained: str, corpus_file: str) -> None:
    corpus = prepare_corpus(CorpusConfig(path=corpus_file))
    lone = tmp_path / "mine.json"
    lone.write_bytes(Path(trained).read_bytes())
    info = prepare_tokenizer(TokenizerConfig(pretrained=str(lone)), corpus)
    folder = prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(vocab_size=300)), corpus)
    assert (info.vocab_size, info.eos_id, info.kind) == (folder.vocab_size, folder.eos_id, "pretrained")
    assert load_tokenizer(info).encode("the quick brown") == load_tokenizer(folder).encode("the quick brown")
    lone.write_text("{}")
    with pytest.raises(InputError, match=r"is no tokenizer\.json"):
        prepare_tokenizer(TokenizerConfig(pretrained=str(lone)), corpus)


def test_a_tokenizer_json_in_its_folder_keeps_what_the_folder_says(chatty: Path, corpus_file: str) -> None:
    corpus = prepare_corpus(CorpusConfig(path=corpus_file))
    by_folder, by_file = (
        prepare_tokenizer(TokenizerConfig(pretrained=str(path)), corpus) for path in (chatty, chatty / "tokenizer.json")
    )
    assert by_folder == by_file
    assert by_file.bos_id is not None


FORMATS = ("parquet", "arrow", "jsonl")
Row = list[tuple[int, int]]  # ids, each with its mask


def in_columns(format: str, folder: Path, ids: list[list[int]], masks: list[list[int]] | None) -> str:
    """Write a file with both columns, or with token ids alone."""
    path = folder / f"x.{format}"
    columns = {"input_ids": pa.array(ids, pa.list_(pa.int32()))}
    if masks is not None:
        columns["attention_mask"] = pa.array(masks, pa.list_(pa.int8()))
    table = pa.table(columns)
    if format == "parquet":
        pq.write_table(table, path, row_group_size=3)
    elif format == "arrow":
        with pa.ipc.new_stream(str(path), table.schema) as stream:
            stream.write_table(table, max_chunksize=2)
    else:
        path.write_text("".join(json.dumps(line) + "\n" for line in table.to_pylist()))
    return str(path)


def written(rows: list[Row], format: str, folder: Path) -> str:
    ids, masks = ([[pair[part] for pair in row] for row in rows] for part in (0, 1))
    return in_columns(format, folder, ids, masks)


def documents(path: str) -> list[list[int]]:
    corpus = prepare_corpus(CorpusConfig(path=path, column="input_ids"))
    found: list[list[int]] = []
    for encoded in iter_encoded(corpus):
        ends = encoded.lengths.cumsum()
        found += [encoded.ids[end - n : end].tolist() for end, n in zip(ends, encoded.lengths, strict=True)]
    assert corpus.documents == len(found)
    assert corpus.empty == found.count([])
    return found


@examples(40)
@given(
    rows=st.lists(st.lists(st.tuples(st.integers(0, 500), st.integers(0, 1)), max_size=8), min_size=1, max_size=9),
    format=st.sampled_from(FORMATS),
)
def test_tokens_are_those_whose_mask_is_not_0(rows: list[Row], format: str) -> None:
    rows = [*rows, [(7, 1)]]  # a corpus without a token is refused
    with tempfile.TemporaryDirectory() as folder:
        assert documents(written(rows, format, Path(folder))) == [[at for at, real in row if real] for row in rows]


def test_the_largest_id_is_one_that_is_no_padding(tmp_path: Path) -> None:
    path = written([[(3, 1), (9000, 0)]], "parquet", tmp_path)
    assert prepare_corpus(CorpusConfig(path=path, column="input_ids")).largest_id == 3


@pytest.mark.parametrize("masked_first", [True, False])
@pytest.mark.parametrize("format", FORMATS)
def test_files_with_and_without_a_mask_are_no_corpus(format: str, masked_first: bool, tmp_path: Path) -> None:
    """Only the first file was asked, so the padding of the others was trained on."""
    names = ("a", "b") if masked_first else ("b", "a")
    for name, masked in zip(names, (True, False), strict=True):
        (tmp_path / name).mkdir()
        in_columns(format, tmp_path / name, [[3, 0]], [[1, 0]] if masked else None)
    with pytest.raises(InputError, match="no column attention_mask, which"):
        documents(str(tmp_path / "*" / f"x.{format}"))


def test_masks_that_are_none_are_refused_with_their_row(tmp_path: Path) -> None:
    def refuses(path: Path | str, line: str) -> None:
        with pytest.raises(InputError, match=line):
            documents(str(path))

    for format in FORMATS:  # of another length
        refuses(in_columns(format, tmp_path, [[1], [2, 2], [3]], [[1], [1], [1]]), r"row 1 \(from 0\): attention_mask")
    path = in_columns("parquet", tmp_path, [[1], [2, 3], [4, 5]], [[1], [1, 1], [1, 2]])
    refuses(path, r"row 2 \(from 0\): attention_mask is not a 0 or 1 for each of its 2 token ids")
    pq.write_table(pa.table({"input_ids": [[1, 2]], "attention_mask": ["11"]}), path)
    refuses(path, "column 'attention_mask' is string")
    lines = ['{"input_ids": [3, 0]}\n', '{"input_ids": [3, 0], "attention_mask": [1, 0]}\n']
    for order in (lines, lines[::-1]):  # a row has none
        (tmp_path / "x.jsonl").write_text("".join(order))
        refuses(tmp_path / "x.jsonl", "attention_mask")
