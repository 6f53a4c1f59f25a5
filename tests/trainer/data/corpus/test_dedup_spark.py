"""Spark keeps the same documents as the local engine, byte by byte; no data comes to its driver.

The tests with `slow` start Spark itself. They skip where PySpark or Java are missing.
"""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.trainer.data.test_spark import needs_spark
from trainer.config import CorpusConfig
from trainer.data.corpus import Corpus, prepare_corpus
from trainer.data.corpus.dedup import spark, spark_tasks
from trainer.data.corpus.dedup.labelled import write_labelled
from trainer.data.corpus.dedup.rows import schema_of
from trainer.data.corpus.dedup.run import DedupOutcome, DedupResult, SparkOptions, deduplicate
from trainer.data.corpus.dedup.shingles import Shingling
from trainer.data.corpus.dedup.sketches import DedupJob, DedupSettings, Sets, banding_for, sketched
from trainer.data.corpus.dedup.spark import DedupWork, SparkStage
from trainer.errors import InputError

SETTINGS = DedupSettings(Shingling(), 0.8, banding_for(0.8))
OPTIONS = SparkOptions("local[2]", 240)
STAGES = ("sketch", "identical", "pairs", "verify", "decide", "write")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """2,300 documents, three shares: labelled ones, a chain of which neighbours are similar, and empty ones."""
    folder = tmp_path_factory.mktemp("spark")
    write_labelled(folder / "made", 400, 5)
    made = pq.read_table(folder / "made" / "corpus.parquet").column("text").to_pylist()
    chain = [" ".join(f"link{number}" for number in range(start, start + 60)) for start in range(0, 120, 3)]
    single = [f"document {number} has nothing like it in the corpus {number * 7}" for number in range(1850)]
    texts = [*single[:900], *made[:200], *chain[::-1], *single[900:], *made[200:], *[""] * 10]
    columns = {"text": texts, "number": list(range(len(texts)))}
    pq.write_table(pa.table(columns).slice(0, 1300), folder / "a.parquet", row_group_size=333)
    pq.write_table(pa.table(columns).slice(1300), folder / "b.parquet", row_group_size=1000)
    return prepare_corpus(CorpusConfig(path=str(folder / "*.parquet")))


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*.parquet")}


def job_of(corpus: Corpus, folder: Path) -> DedupJob:
    (folder / "work").mkdir()
    return DedupJob.of(corpus, SETTINGS, schema_of(corpus), folder / "work", folder)


def test_what_an_executor_gets_can_be_sent_to_it(corpus: Corpus, tmp_path: Path) -> None:
    work = DedupWork(job_of(corpus, tmp_path))
    assert pickle.loads(pickle.dumps(work)) == work
    assert work.job.count == 3


def test_executors_sketch_what_the_local_engine_sketches(corpus: Corpus, tmp_path: Path) -> None:
    job = job_of(corpus, tmp_path)
    batches = [pa.RecordBatch.from_arrays([pa.array(some, pa.int64())], ["id"]) for some in ([0, 2], [1])]
    table = pa.Table.from_batches(list(spark_tasks.sketch(job)(iter(batches)))).sort_by("row")
    texts = [text for path in corpus.files for text in pq.read_table(path).column("text").to_pylist()]
    rows = [row for row, text in enumerate(texts) if text]
    assert table.column("row").to_pylist() == rows
    assert table.column("characters").to_pylist() == [len(texts[row]) for row in rows]
    (again := tmp_path / "again").mkdir()
    other = DedupJob.of(corpus, SETTINGS, job.schema, again, again)
    keys = np.concatenate([one.keys for one in sketched(other, 0, iter([texts[:1000]]))])
    assert (np.array(table.column("keys").slice(0, 1000).to_pylist()).view(np.uint64) == keys).all()
    assert (Sets(job).of(999) == Sets(other).of(999)).all()


def test_a_work_folder_that_an_executor_does_not_see_is_one_line(corpus: Corpus, tmp_path: Path) -> None:
    job = job_of(corpus, tmp_path)
    (tmp_path / "work").rmdir()
    batch = pa.RecordBatch.from_arrays([pa.array([0], pa.int64())], ["id"])
    with pytest.raises(InputError, match=r"work: not seen by every machine of the cluster; give an --out that"):
        list(spark_tasks.sketch(job)(iter([batch])))


@pytest.mark.slow
@needs_spark
def test_spark_keeps_what_the_local_engine_keeps(corpus, tmp_path, monkeypatch) -> None:
    """The real thing, local[2]: the same files; as many jobs as tables; nothing collected; nothing left behind."""
    stages: list[SparkStage] = []
    real = spark.run

    def run(*arguments: object) -> tuple[dict[str, int], tuple[SparkStage, ...], str]:
        counts, found, master = real(*arguments)  # type: ignore[arg-type]
        stages.extend(found)
        return counts, found, master

    monkeypatch.setattr(spark, "run", run)
    here = deduplicate(corpus, SETTINGS, tmp_path / "local", with_edges=True)
    local = here.result
    begun: list[str] = []
    (tmp_path / "a [b]").mkdir()
    out = tmp_path / "a [b]" / "spark"
    there = deduplicate(corpus, SETTINGS, out, spark=OPTIONS, stage=begun.append, with_edges=True)
    found = there.result
    assert pairs_of(there) == pairs_of(here) != []
    assert content(tmp_path / "a [b]" / "spark") == content(tmp_path / "local")
    assert facts(found) == facts(local)
    assert (found.master, local.master) == ("local[2]", None)
    assert local.removed > 150
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a [b]", "local"]
    assert [path.name for path in (tmp_path / "a [b]").iterdir()] == ["spark"]
    # The chain is 40 documents long: each round more than halves it.
    assert found.rounds <= 7
    rounds = [f"round-{number}" for number in range(found.rounds + 1)]
    assert [one.name for one in stages] == [*STAGES[:4], *rounds, *STAGES[4:]] == begun
    # A table is written by one query: a job for it and for each exchange below it, whatever the number of documents.
    # Nothing passes through the driver or through one task: no collected and no broadcast table, no single partition.
    for one in stages:
        assert 1 <= one.jobs <= one.plan.count("Exchange") + 1, one
        for operator in ("Collect", "TakeOrdered", "SinglePartition", "Coalesce", "Broadcast", "Cartesian"):
            assert operator not in one.plan.replace("CollectMetrics", ""), one
    plans = {one.name: one.plan for one in stages}
    assert "MapInArrow" in plans["sketch"]
    assert "Exchange" not in plans["sketch"]
    scanned = {name: sorted(re.findall("ReadSchema: struct<(.*)>", plan)) for name, plan in plans.items()}
    # Bands are read once, to pair; to decide, of all that is sketched, rows and lengths alone.
    assert [name for name, read in scanned.items() if any("keys" in one for one in read)] == ["pairs"]
    assert scanned["verify"] == ["left:bigint,right:bigint"]
    assert "row:bigint,characters:bigint" in scanned["decide"]


def pairs_of(outcome: DedupOutcome) -> list[tuple[int, int, float]]:
    assert outcome.edges is not None
    return sorted(zip(*(column.tolist() for column in outcome.edges), strict=True))


def facts(result: DedupResult) -> list[object]:
    return [value for name, value in vars(result).items() if name not in ("engine", "rounds", "master")]


def test_nothing_is_collected() -> None:
    for module in (spark, spark_tasks):
        source = Path(module.__file__).read_text()
        assert not re.search(
            r"collect\(|collect_|toPandas|toLocalIterator|toArrow|coalesce\(1|\.rdd|\.take\(\d|\.head\(", source
        )


@pytest.mark.slow
@needs_spark
def test_what_an_executor_cannot_read_is_one_line_and_leaves_nothing(corpus: Corpus, tmp_path: Path) -> None:
    from dataclasses import replace

    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "data.parquet"
    path.write_bytes(Path(corpus.files[0]).read_bytes())
    there = prepare_corpus(CorpusConfig(path=str(path)))
    changed = replace(there, documents=there.documents + 5)
    with pytest.raises(InputError, match=r"^--engine spark: data.parquet: 300 of 305 documents found .* was changed"):
        deduplicate(changed, SETTINGS, tmp_path / "out", spark=OPTIONS)
    assert [one.name for one in tmp_path.iterdir()] == ["in"]
