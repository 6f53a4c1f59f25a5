"""A corpus may lie behind a URL: file://, whatever fsspec knows, and an S3-compatible server that is started here."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest

from tests import s3
from tests.trainer.data.corpus.corpora import WRITERS, jsonl, parquet
from tests.trainer.refusals import refusal
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import by_row, check_there, iter_texts, places, prepare_corpus
from trainer.data.pretokenize import pretokenize
from trainer.data.tokenizers import load_tokenizer, prepare_tokenizer
from trainer.errors import InputError


def texts_of(path: str, **settings: Any) -> list[str]:
    return [text for part in iter_texts(prepare_corpus(CorpusConfig(path=path, **settings))) for text in part]


def refused(path: str) -> str:
    return refusal(prepare_corpus, CorpusConfig(path=path))


@pytest.mark.parametrize("name", ["parquet", "jsonl.zst", "arrow stream", "save_to_disk", "text files"])
def test_a_file_url_is_the_file(tmp_path: Path, texts: list[str], name: str) -> None:
    folder = tmp_path / "with a space"
    folder.mkdir()
    path = WRITERS[name](folder, texts)
    url = path.as_uri()
    assert "%20" in url
    by_url, by_path = (prepare_corpus(CorpusConfig(path=one)) for one in (url, str(path)))
    assert by_url.fingerprint == by_path.fingerprint
    assert [text for part in iter_texts(by_url) for text in part] == texts
    check_there(CorpusConfig(path=url))
    with pytest.raises(InputError, match="no "):
        check_there(CorpusConfig(path=f"{url}.no"))


def upload(folder: Path, url: str) -> None:
    """Copy what is in ``folder`` into fsspec's memory."""
    memory = fsspec.filesystem("memory")
    for path in folder.rglob("*"):
        if path.is_file():
            memory.pipe(f"{url}/{path.relative_to(folder)}", path.read_bytes())


@pytest.fixture
def memory() -> Iterator[str]:
    yield "memory://corpus"
    fsspec.filesystem("memory").store.clear()


@pytest.mark.parametrize("name", ["parquet", "jsonl.zst", "arrow stream", "save_to_disk", "text files"])
def test_what_fsspec_knows_is_read(tmp_path: Path, texts: list[str], memory: str, name: str) -> None:
    path = WRITERS[name](tmp_path, texts)
    upload(tmp_path, memory)
    url = memory if path == tmp_path else f"{memory}/{path.name}"
    corpus = prepare_corpus(CorpusConfig(path=url))
    assert all(one.startswith("memory://") for one in corpus.files)
    assert [text for part in iter_texts(corpus) for text in part] == texts
    assert texts_of(url, documents=17) == texts[:17]
    copied = by_row(corpus, "data.path")
    assert copied.files != corpus.files
    assert [text for part in iter_texts(copied) for text in part] == texts


def test_a_remote_corpus_is_known_by_its_documents(tmp_path: Path, texts: list[str], memory: str) -> None:
    """However they are cut into files, and however often it is asked for: also after a change of the file."""
    other = tmp_path / "other"
    other.mkdir()
    upload(jsonl(tmp_path, texts).parent, memory)
    upload(jsonl(other, [*texts[:-1], "x"]).parent, f"{memory}/other")
    fingerprint = prepare_corpus(CorpusConfig(path=f"{memory}/data.jsonl")).fingerprint
    assert prepare_corpus(CorpusConfig(path=f"{memory}/data.jsonl")).fingerprint == fingerprint
    assert prepare_corpus(CorpusConfig(path=f"{memory}/other/data.jsonl")).fingerprint != fingerprint
    for at, part in enumerate((texts[:9], texts[9:])):
        folder = tmp_path / "parts"
        folder.mkdir(exist_ok=True)
        jsonl(folder, part).rename(folder / f"{at}.jsonl")
    upload(folder, f"{memory}/parts")
    assert prepare_corpus(CorpusConfig(path=f"{memory}/parts/*.jsonl")).fingerprint == fingerprint
    assert prepare_corpus(CorpusConfig(path=f"{memory}/parts")).fingerprint == fingerprint
    (tmp_path / "data.jsonl").write_text('{"text": "changed"}\n')
    upload(tmp_path, memory)
    assert texts_of(f"{memory}/data.jsonl") == ["changed"]


@pytest.mark.usefixtures("fresh_cache")
def test_a_file_that_changes_behind_the_check_is_refused_and_nothing_is_kept(tmp_path, texts, memory) -> None:
    """The cache would give its tokens to whoever comes with the documents that were checked."""
    upload(jsonl(tmp_path, texts).parent, memory)
    for url in (f"{memory}/data.jsonl", str(tmp_path / "data.jsonl")):
        corpus = prepare_corpus(CorpusConfig(path=url))
        info = prepare_tokenizer(TokenizerConfig.model_validate({"train": {"kind": "bpe", "vocab_size": 300}}), corpus)
        before = (tmp_path / "data.jsonl").read_text()
        (tmp_path / "data.jsonl").write_text(before.replace("quick", "slow"))
        upload(tmp_path, memory)
        for make in (lambda: pretokenize(corpus, info, "flat", 16), lambda: by_row(corpus, "data.path")):  # noqa: B023
            with pytest.raises(InputError, match=r"data\.jsonl: changed while it was being read; run it again"):
                make()
        (tmp_path / "data.jsonl").write_text(before)
        upload(tmp_path, memory)
        corpus = prepare_corpus(CorpusConfig(path=url))
        made = pretokenize(corpus, info, "flat", 16)
        engine = load_tokenizer(info)
        assert made.flat().tokens.tolist() == [
            one for text in texts if text for one in (*engine.encode(text), info.eos_id)
        ]
        assert list(iter_texts(by_row(corpus, "data.path"))) == list(iter_texts(corpus))


def test_what_is_wrong_with_a_url_is_one_line(memory: str) -> None:
    assert "no memory://corpus/no.jsonl" in refused(f"{memory}/no.jsonl")
    assert "no file matches memory://corpus/*.jsonl" in refused(f"{memory}/*.jsonl")
    fsspec.filesystem("memory").pipe(f"{memory}/cut.parquet", b"PAR1 cut")
    assert refused(f"{memory}/cut.parquet").startswith("memory://corpus/cut.parquet: truncated or damaged parquet")
    assert "allowed: file, s3, gs" in refused("nowhere://x/y.jsonl")
    assert "a file:// URL cannot name another machine" in refused("file://host/x.jsonl")
    secret = refused("s3://AKIA123:topsecret@bucket/x.jsonl")
    assert "must not contain credentials" in secret
    assert "topsecret" not in secret
    assert "AKIA123" not in secret
    with pytest.raises(InputError, match="allowed: file, s3, gs"):
        check_there(CorpusConfig(path="nowhere://x/y.jsonl"))


@pytest.mark.slow
def test_a_server_that_is_not_there_is_one_line_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound, but nobody listens
        for name, value in s3.environment(f"http://127.0.0.1:{closed.getsockname()[1]}").items():
            monkeypatch.setenv(name, value)
        message = refused("s3://bucket/x.jsonl")
    assert message.startswith("s3://bucket/x.jsonl: cannot be read (")


@pytest.mark.slow
@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"], ids=["nothing", "a part"])
def test_an_http_server_that_falls_silent_is_one_line(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(places, "_SILENT_S", 0.2)
    places._of_fsspec.cache_clear()
    held = []

    def serve() -> None:
        while True:
            try:
                held.append(server.accept()[0])
                held[-1].recv(1 << 16)
                held[-1].sendall(answer)
            except OSError:  # closed
                return

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x.jsonl"
        line = f"{url}: cannot be read (no answer in time)"
        assert refused(url) == (line if answer else f"data.corpus.path: no {url}, or no answer in time")
        server.shutdown(socket.SHUT_RDWR)
        thread.join()
    for connection in held:
        connection.close()
    places._of_fsspec.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parquet", "jsonl.gz", "save_to_disk"])
def test_an_s3_server_is_read(tmp_path: Path, texts: list[str], server: str, name: str) -> None:
    import pyarrow.fs as fs

    path = WRITERS[name](tmp_path, texts)
    filesystem, _ = places.resolved("s3://any")
    bucket = f"corpus-{name.replace('_', '-').replace('.', '-')}"
    s3.filesystem(server).create_dir(bucket)
    fs.copy_files(str(tmp_path), f"{bucket}/deep", fs.LocalFileSystem(), filesystem)
    url = f"s3://{bucket}/deep" if path == tmp_path else f"s3://{bucket}/deep/{path.name}"
    corpus = prepare_corpus(CorpusConfig(path=url))
    assert [text for part in iter_texts(corpus) for text in part] == texts
    *_, size, etag = places.identity(corpus.files[0])
    assert size == filesystem.get_file_info(corpus.files[0].removeprefix("s3://")).size
    assert '"' in str(etag)  # the server's, not a time
    if name == "parquet":
        assert texts_of(f"s3://{bucket}/**/*.parquet") == texts
        parquet(tmp_path, ["changed"])
        fs.copy_files(str(tmp_path), f"{bucket}/deep", fs.LocalFileSystem(), filesystem)
        assert prepare_corpus(CorpusConfig(path=url)).fingerprint != corpus.fingerprint
        assert f"no s3://{bucket}/none" in refused(f"s3://{bucket}/none")
        assert "no s3://no-such-bucket/x" in refused("s3://no-such-bucket/x")


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of a server of this process' own."""
    with pytest.MonkeyPatch.context() as patch, s3.serving(patch) as address:
        yield address
