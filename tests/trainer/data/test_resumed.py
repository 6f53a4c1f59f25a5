"""A pretokenization that is ended at any point goes on behind what it finished, and comes to the same bytes."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.trainer.data.conftest import write_parquet
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data import cache, token_groups
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.manifest import Format
from trainer.data.pretokenize import pretokenize
from trainer.data.tokenizers import TokenizerInfo, document_tokens, load_tokenizer, prepare_tokenizer
from trainer.errors import InputError
from trainer.files import partial_path, remove_leftovers

FORMATS: tuple[Format, ...] = ("padded", "token-list", "flat")


@pytest.fixture(autouse=True)
def _small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_groups, "GROUP_BYTES", 1500)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


class Interrupt:
    """Ends the pretokenization after so many groups, and notes the documents of each."""

    def __init__(self, after: int | None = None, by: Callable[[], BaseException] = KeyboardInterrupt) -> None:
        self.documents: list[int] = []
        self._after, self._by = after, by

    def __call__(self, documents: int, _: int) -> None:
        self.documents.append(documents)
        if len(self.documents) == self._after:
            raise self._by()


@pytest.mark.parametrize("format", FORMATS)
def test_the_result_is_the_same_however_often_it_is_interrupted(corpus, info, tmp_path, format) -> None:
    whole = Interrupt()
    pretokenize(corpus, info, format, 16, tmp_path / "whole", workers=1, progress=whole)
    groups = len(whole.documents) - 1
    assert groups > 5
    out, done = tmp_path / "out", 0
    for _ in range(groups):  # the first call each time says what was kept
        interrupt = Interrupt(after=2)
        with pytest.raises(KeyboardInterrupt):
            pretokenize(corpus, info, format, 16, out, workers=3, progress=interrupt)
        assert interrupt.documents[0] == done
        done += interrupt.documents[1]
        assert not out.exists()
    assert done == corpus.documents  # all of them once
    pretokenize(corpus, info, format, 16, out, progress=Interrupt())
    assert contents(out) == contents(tmp_path / "whole")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_what_fails_by_itself_leaves_nothing(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    failed = Interrupt(after=3, by=lambda: InputError("cannot go on"))
    with pytest.raises(InputError, match="cannot go on"):
        pretokenize(corpus, info, "flat", 16, tmp_path / "out", progress=failed)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("format", FORMATS)
def test_a_disk_that_is_full_leaves_nothing_and_says_so(corpus, info, tmp_path, format) -> None:
    """A limit of file sizes, which this process meets as it would a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, before[1]))
    try:
        with pytest.raises(OSError) as error:  # noqa: PT011 (its number is looked at)
            pretokenize(corpus, info, format, 16, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert error.value.errno == errno.EFBIG
    assert error.value.filename == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_what_was_begun_for_another_tokenizer_is_not_gone_on_with(corpus, info, tmp_path) -> None:
    from trainer.config import TrainTokenizer

    other = prepare_tokenizer(TokenizerConfig(train=TrainTokenizer(vocab_size=310)), corpus)
    with pytest.raises(KeyboardInterrupt):
        pretokenize(corpus, other, "flat", 16, tmp_path / "out", progress=Interrupt(after=4))
    seen = Interrupt()
    made = pretokenize(corpus, info, "flat", 16, tmp_path / "out", progress=seen)
    assert seen.documents[0] == 0
    assert contents(Path(made.folder)) == contents(
        Path(pretokenize(corpus, info, "flat", 16, tmp_path / "other").folder)
    )


def test_another_process_at_the_same_place_is_left_alone(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        pretokenize(corpus, info, "flat", 16, out, progress=Interrupt(after=3))
    theirs = partial_path(out)
    before = sorted(theirs.rglob("*"))
    descriptor = os.open(theirs, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        seen = Interrupt()
        made = pretokenize(corpus, info, "flat", 16, out, progress=seen)
        assert seen.documents[0] == 0
        assert sorted(theirs.rglob("*")) == before
    finally:
        os.close(descriptor)
    assert made.flat().documents == corpus.documents


@pytest.mark.usefixtures("fresh_cache")
def test_in_the_cache_too(corpus: Corpus, info: TokenizerInfo) -> None:
    with pytest.raises(KeyboardInterrupt):
        pretokenize(corpus, info, "padded", 16, progress=Interrupt(after=4))
    cache.clean()  # as every run does first: what can be gone on with stays
    seen = Interrupt()
    made = pretokenize(corpus, info, "padded", 16, progress=seen)
    assert seen.documents[0] > 0
    assert pretokenize(corpus, info, "padded", 16, progress=Interrupt(after=1)) == made  # found, not made


def test_what_nobody_goes_on_with_is_removed_after_a_week(tmp_path: Path) -> None:
    for name, days in (("old", 8), ("new", 6)):
        folder = partial_path(tmp_path / name)
        folder.mkdir()
        (folder / "journal").touch()
        for path in (folder / "journal", folder):
            stat = path.stat()
            os.utime(path, (stat.st_atime - days * 86400, stat.st_mtime - days * 86400))
    remove_leftovers(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".new.partial"]


@pytest.mark.slow
@pytest.mark.nightly
def test_a_million_empty_documents(info: TokenizerInfo, tmp_path: Path) -> None:
    documents = [""] * 1_000_000 + ["a fox"]
    corpus = prepare_corpus(
        CorpusConfig(parquet=str(write_parquet(tmp_path / "x.parquet", documents, row_group=10_000)))
    )
    made = pretokenize(corpus, info, "flat", 16, tmp_path / "out")
    assert (made.manifest.documents, made.manifest.empty) == (1_000_001, 1_000_000)
    flat = made.flat()
    assert flat.document(1_000_000).tolist() == document_tokens([load_tokenizer(info).encode("a fox")], info.eos_id)[0]
    assert not flat.places[:-1].any()
