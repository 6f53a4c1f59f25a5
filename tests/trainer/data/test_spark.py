"""Shares of a corpus, joined, are what one machine writes, byte by byte; and what goes wrong with Spark is one line.

The tests with `slow` start Spark itself. They skip where PySpark or Java are missing.
"""

from __future__ import annotations

import json
import pickle
import runpy
import shutil
import sys
import time
from dataclasses import replace
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import get_args

import pytest

import harness.__main__ as entry
from tests.commands import harness
from tests.trainer.data.conftest import make_texts, write_parquet
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.manifest import Format, Pretokenized
from trainer.data.pretokenize import pretokenize
from trainer.data.shares import ShareWork, SparkTokens, documents, read_share, task, write_share
from trainer.data.spark_process import SparkProcess, check_installed, is_local, reason_of
from trainer.data.tokenizers import TokenizerInfo, prepare_tokenizer
from trainer.errors import InputError

_MISSING = [name for name in ("pyspark", "pandas") if find_spec(name) is None]
needs_spark = pytest.mark.skipif(
    bool(_MISSING) or shutil.which("java") is None,
    reason=f"needs Spark: {', '.join([*_MISSING, *['java'] * (shutil.which('java') is None)])} not installed",
)
DOCUMENTS = 2650  # of three shares
TEXTS = [text[:60] for text in make_texts(DOCUMENTS)]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Two files whose row groups end where no share does."""
    folder = tmp_path_factory.mktemp("spark")
    write_parquet(folder / "a.parquet", TEXTS[:1300], row_group=450)
    write_parquet(folder / "b.parquet", TEXTS[1300:], row_group=333)
    return prepare_corpus(CorpusConfig(parquet=str(folder / "*.parquet")))


@pytest.fixture(scope="module")
def info(corpus: Corpus, tokenizer_config: TokenizerConfig) -> TokenizerInfo:
    return prepare_tokenizer(tokenizer_config, corpus)


@pytest.fixture(scope="module")
def local(corpus: Corpus, info: TokenizerInfo, tmp_path_factory: pytest.TempPathFactory) -> dict[Format, Pretokenized]:
    """What this machine writes without Spark."""
    out = tmp_path_factory.mktemp("local")
    return {format: pretokenize(corpus, info, format, 16, out / format) for format in get_args(Format)}


def content(folder: str | Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_shares_are_joined_to_what_one_machine_writes(corpus, info, local, tmp_path) -> None:
    tokens = SparkTokens(corpus, info, tmp_path)
    Path(tokens.job.folder).mkdir()
    assert [write_share(tokens.job, number) for number in reversed(range(tokens.job.count))] == [2, 1, 0]
    for format in local:  # all shares are there: no driver is started
        made = pretokenize(corpus, info, format, 16, tmp_path / format, tokens=tokens)
        assert content(made.folder) == content(local[format].folder)
    whole = [ids for group in tokens(0) for ids in group.ids.tolist()]
    lengths = [length for group in tokens(0) for length in group.lengths.tolist()]
    for start in (1, 999, 1000, 1001, 2649, DOCUMENTS):
        rest = list(tokens(start))
        assert [length for group in rest for length in group.lengths.tolist()] == lengths[start:]
        assert [ids for group in rest for ids in group.ids.tolist()] == whole[sum(lengths[:start]) :]
        assert all(len(group.lengths) <= 1000 for group in rest)
    assert sum(group.text_bytes for group in tokens(0)) == sum(len(text.encode()) for text in TEXTS)
    tokens.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(local)


def test_documents_from_the_middle_are_read_without_the_row_groups_before_them(corpus, monkeypatch) -> None:
    for first, last in pairwise([0, 1, 449, 450, 1299, 1301, 2000, DOCUMENTS]):
        found = [text for some in documents(corpus, first, last - first) for text in some]
        assert found == TEXTS[first:last]
    # What is no parquet is read from its beginning, by whatever reads that corpus.
    monkeypatch.setattr(
        "trainer.data.token_groups.iter_texts", lambda _: iter([TEXTS[:7], TEXTS[7:1500], TEXTS[1500:]])
    )
    as_jsonl = replace(corpus, files=("a.jsonl",), format="jsonl")
    assert [text for some in documents(as_jsonl, 5, 1600) for text in some] == TEXTS[5:1605]


def test_a_share_is_made_once_and_its_half_written_folder_is_removed(corpus, info, tmp_path) -> None:
    job = SparkTokens(corpus, info, tmp_path).job
    folder = Path(job.folder)
    with pytest.raises(InputError, match="not seen by every machine of the cluster"):
        write_share(job, 0)
    folder.mkdir()
    fewer = replace(job, corpus=replace(corpus, documents=DOCUMENTS + 10))
    with pytest.raises(InputError, match=r"650 of 660 documents .* found from document 2000 on"):
        write_share(fewer, 2)
    assert not list(folder.iterdir())
    write_share(job, 0)
    before = (job.place(0) / "tokens.bin").stat().st_mtime_ns
    write_share(job, 0)
    assert (job.place(0) / "tokens.bin").stat().st_mtime_ns == before
    assert [path.name for path in folder.iterdir()] == ["000000"]


@pytest.mark.parametrize("name", ["tokens.bin", "documents.bin", "share.json"])
def test_a_changed_share_is_refused(name: str, corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    job = SparkTokens(corpus, info, tmp_path).job
    Path(job.folder).mkdir()
    write_share(job, 1)
    file = job.place(1) / name
    changed = bytearray(file.read_bytes())
    changed[len(changed) // 2] ^= 1
    file.write_bytes(changed)
    with pytest.raises(InputError, match="was changed after it was written"):
        list(read_share(job, 1))


def test_what_an_executor_gets_can_be_sent_to_it(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    job = SparkTokens(corpus, info, tmp_path).job
    assert pickle.loads(pickle.dumps((job, [0, 2], "local"))) == (job, [0, 2], "local")
    assert callable(task(job, [0]))


def test_two_processes_do_not_share_the_folder(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    first, second = SparkTokens(corpus, info, tmp_path), SparkTokens(corpus, info, tmp_path)
    Path(first.job.folder).mkdir()
    for number in range(first.job.count):
        write_share(first.job, number)
    assert len(list(first(0)))
    with pytest.raises(InputError, match="another process tokenizes this corpus there"):
        list(second(0))
    second.close()
    assert Path(first.job.folder).is_dir()
    first.close(keep=True)
    assert Path(first.job.folder).is_dir()
    assert len(list(second(0)))
    second.close()
    assert not Path(first.job.folder).exists()


def test_a_spark_that_does_not_start_leaves_no_folder(corpus, info, tmp_path, monkeypatch) -> None:
    class Unreachable:
        def __init__(self, *_: object) -> None:
            raise InputError("--engine spark: Spark was not ready")

    monkeypatch.setattr("trainer.data.shares.SparkProcess", Unreachable)
    tokens = SparkTokens(corpus, info, tmp_path)
    with pytest.raises(InputError, match="was not ready"):
        list(tokens(0))
    tokens.close(keep=True)
    assert not list(tmp_path.iterdir())


def test_the_reason_is_what_an_executor_raised() -> None:
    text = (
        "An error occurred while calling o55.collectToPython.\n: org.apache.spark.SparkException: Job aborted\n"
        'Traceback (most recent call last):\n  File "worker.py", line 1\n'
        "trainer.errors.InputError: /x/a.parquet: not seen by every machine of the cluster\n\tat org.apache\n"
    )
    assert reason_of(RuntimeError(text)) == "/x/a.parquet: not seen by every machine of the cluster"
    assert (
        reason_of(RuntimeError("Traceback\nOSError: [Errno 28] No space left\n\tat x"))
        == "OSError: [Errno 28] No space left"
    )
    assert reason_of(ValueError("plain\nmore")) == "ValueError: plain"
    assert is_local("local[4]")
    assert not is_local("spark://host:7077")


def test_the_file_that_spark_submit_runs_does_not_shadow_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python puts the folder of a file that is run by its path first, where harness/testing would be ``testing``."""
    file = Path(entry.__file__)
    monkeypatch.setattr("sys.path", [str(file.parent), *sys.path])
    runpy.run_path(str(file))
    assert str(file.parent) not in sys.path
    assert str(file.parent.parent) in sys.path


SCENARIO = """name: x
question: q
base: {{data.corpus.parquet: '{files}', data.tokenizer.train.vocab_size: 300}}
arms: {{a: {{}}}}
"""


@pytest.fixture
def scenario(corpus: Corpus, tmp_path: Path) -> str:
    path = tmp_path / "x.yaml"
    path.write_text(SCENARIO.format(files=Path(corpus.files[0]).parent / "*.parquet"))
    return str(path)


@pytest.mark.parametrize("option", [("--master", "local"), ("--timeout", "5")])
def test_options_of_spark_need_the_engine(option: tuple[str, str], scenario: str) -> None:
    done = harness("data", "pretokenize", scenario, *option)
    assert (done.returncode, done.stderr) == (2, f"harness: {option[0]}: cannot be combined with --engine local\n")


def test_without_pyspark_or_java_it_is_one_line(scenario: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if _MISSING:
        done = harness("data", "pretokenize", scenario, "--engine", "spark")
        assert done.returncode == 2
        assert done.stderr.startswith(f"harness: --engine spark: {_MISSING[0]} is not installed; pip install ")
        return
    monkeypatch.delenv("JAVA_HOME", raising=False)
    done = harness("data", "pretokenize", scenario, "--engine", "spark", PATH=str(tmp_path))
    line = "harness: --engine spark: Spark needs Java 17 or newer: no java in PATH, and no JAVA_HOME\n"
    assert (done.returncode, done.stderr) == (2, line)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(InputError, match=r"JAVA_HOME=.* has no bin/java"):
        check_installed()


@pytest.mark.slow
@needs_spark
def test_spark_writes_what_one_machine_writes(scenario: str, local: dict[Format, Pretokenized], tmp_path: Path) -> None:
    """The real thing: local[2], all formats from one job, through the command line."""
    words = ("data", "pretokenize", scenario, "--set", "data.sequence_length=16")
    done = harness(*words, "--engine", "spark", "--master", "local[2]", "--format", "all", "--out", str(tmp_path / "o"))
    assert done.returncode == 0, done.stderr
    for format, made in local.items():
        assert content(tmp_path / "o" / format) == content(made.folder)
    names = sorted(path.name for path in (tmp_path / "o").iterdir())
    assert names == sorted([*local, "spark.json"])  # no share is left
    assert json.loads((tmp_path / "o" / "spark.json").read_text()) == {"master": "local[2]"}


@pytest.mark.slow
@needs_spark
def test_what_an_executor_cannot_read_is_one_line(corpus: Corpus, info: TokenizerInfo, tmp_path: Path) -> None:
    gone = replace(corpus, files=(corpus.files[0], str(tmp_path / "gone.parquet")))
    tokens = SparkTokens(gone, info, tmp_path, "local[2]", timeout_s=120)
    with pytest.raises(InputError, match=r"^--engine spark: .*gone.parquet: not seen by every machine of the cluster$"):
        list(tokens(0))
    tokens.close()
    assert not list(tmp_path.iterdir())


def _java(folder: Path, script: str) -> Path:
    """A Java machine that does not do its work."""
    (folder / "bin").mkdir()
    (folder / "bin" / "java").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bin" / "java").chmod(0o755)
    return folder


@pytest.mark.slow
@needs_spark
@pytest.mark.parametrize(
    ("script", "timeout_s", "line"),
    [
        (
            "echo 'Error: no memory' >&2; exit 1",
            60,
            "--engine spark: the Java machine ended before it was ready: Error: no memory",
        ),
        ("exec sleep 1000", 3, r"--engine spark: Spark was not ready within 3 s \(--timeout\).*"),
    ],
    ids=["dies", "hangs"],
)
def test_a_java_machine_that_dies_or_hangs_is_one_line_and_gone(
    script: str,
    timeout_s: float,
    line: str,
    corpus: Corpus,
    info: TokenizerInfo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(_java(tmp_path, script)))
    job = SparkTokens(corpus, info, tmp_path).job
    Path(job.folder).mkdir()
    driver = SparkProcess(ShareWork(job, (0,)), "local", timeout_s)
    with pytest.raises(InputError) as error:
        driver.wait_until(job.place(0).is_dir, lambda: 0, "finished no share")
    assert "\n" not in str(error.value)
    error.match(f"^{line}$")
    driver.close()
    assert not _group(driver._process.pid)


def _group(leader: int) -> list[int]:
    """Processes of that group which are still there, but for those that only wait to be reaped."""
    found = []
    for _ in range(50):
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                state, _, group = (folder / "stat").read_text().rpartition(")")[2].split()[:3]
            except OSError:
                continue
            if int(group) == leader and state != "Z":
                found.append(int(folder.name))
        if not found:
            return found
        time.sleep(0.1)
    return found
