"""Finds near-duplicates on Spark, with a cluster's executors or threads of this machine.

Only numbers pass through Spark: rows, hashes of bands, pairs and similarities. Executors read and write texts and
shingles in the corpus' files and in folders that all machines see. Each stage is a table that executors write; the
driver only gets the number of its rows, by an observation.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.data.corpus.dedup import spark_tasks as tasks
from trainer.data.corpus.dedup.pairs import Edges
from trainer.data.corpus.dedup.sketches import DedupJob
from trainer.data.spark_process import SparkProcess
from trainer.errors import InputError

MOST_ROUNDS = 60  # rounds of joining groups: twice log2 of the longest possible chain
_DOCUMENTS = 20_000  # documents per partition of each table of numbers
_MAX_DEDUP_PARTITIONS = 4000
_DEDUP_WAVES = 4  # tasks per core, for a corpus that can only be read from its beginning
_DEDUP_LOOK_S = 2.0  # interval at which finished tasks are counted
_LOCAL = "local"  # folder of Spark's own files, on this machine
_TABLES = "tables"  # folder of what executors write
_EDGES = "left long, right long, jaccard double"
Counts = dict[str, int]


@dataclass(frozen=True)
class SparkStage:
    """Facts about the table that one stage wrote: the number of Spark jobs and the physical plan."""

    name: str
    jobs: int
    plan: str


def run(
    job: DedupJob, master: str | None, timeout_s: float, stage: Callable[[str], None]
) -> tuple[Counts, tuple[SparkStage, ...], str]:
    """Deduplicate on Spark. Return counts, stages, and the master. Raises InputError if Spark fails or times out."""
    (Path(job.work) / _LOCAL).mkdir()
    process = SparkProcess(DedupWork(job), master, timeout_s)
    shown = 0

    def progress() -> int:
        nonlocal shown
        for event in process.events[shown:]:
            if isinstance(name := event.get("begins"), str):
                stage(name)
        shown = len(process.events)
        return shown

    def done() -> bool:
        return any("counts" in event or "done" in event for event in process.events)

    try:
        process.wait_until(done, progress, "ended no task")
        progress()  # Report stages that came together with the end.
        events: list[Any] = list(process.events)
        counts: Counts = next(event["counts"] for event in events if "counts" in event)
        stages = tuple(SparkStage(**event["stage"]) for event in events if "stage" in event)
    finally:
        process.close()
    return counts, stages, str(process.master)


def edges(job: DedupJob) -> Edges:
    """Read the pairs at or above the threshold from the tables that executors wrote. They must fit in memory."""
    import pyarrow.parquet as pq

    tables = [pq.read_table(Path(job.work) / _TABLES / name) for name in ("identical", "verify")]
    left, right, similarities = (
        np.concatenate([table.column(name).to_numpy() for table in tables]) for name in ("left", "right", "jaccard")
    )
    return left, right, similarities


@dataclass(frozen=True)
class DedupWork:
    """Work of the Spark driver's process: all stages of a deduplication."""

    job: DedupJob
    name: str = "harness data dedup"

    @property
    def settings(self) -> Mapping[str, str]:
        """Settings that put Spark's own files into the work folder, with which they are removed."""
        local = self._local
        return {"spark.local.dir": local, "spark.sql.warehouse.dir": f"{local}/warehouse"} if local else {}

    @property
    def java_options(self) -> str:
        return f'"-Djava.io.tmpdir={self._local}"' if self._local else ""

    @property
    def _local(self) -> str:
        """Folder of Spark's own files; "" if the name has a comma or a quote, which Spark's options would misread."""
        local = f"{self.job.work}/{_LOCAL}"
        return "" if set(',"') & set(local) else local

    def run(self, session: Any, report: Callable[..., None]) -> None:
        """Run all stages in Spark's ``session``, and report the counts at the end."""
        with _signs_of_life(session, report):
            report(counts=_SparkTables(session, self.job, report).make())


class _SparkTables:
    def __init__(self, session: Any, job: DedupJob, report: Callable[..., None]) -> None:
        self._session, self._job, self._report = session, job, report
        cores = max(1, session.sparkContext.defaultParallelism)
        self._partitions = max(cores, min(job.corpus.documents // _DOCUMENTS, _MAX_DEDUP_PARTITIONS))
        session.conf.set("spark.sql.shuffle.partitions", str(self._partitions))
        session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")  # Broadcasts would pass through the driver.
        # Local Parquet can be read from its middle, any other corpus only from its beginning: a task has several
        # consecutive shares of it.
        is_seekable = job.corpus.format == "parquet" and not any("://" in name for name in job.corpus.files)
        self._run_length = 1 if is_seekable else max(1, -(-job.count // (cores * _DEDUP_WAVES)))

    def make(self) -> Counts:
        """Run all stages, which write the files of all shares. Return the counts."""
        from pyspark.sql import functions as f

        job = self._job
        numbers = self._session.range(0, job.count, 1, -(-job.count // self._run_length))
        filled = {"documents": f.count(f.lit(1))}
        sketches, filled_counts = self._written(
            "sketch", numbers.mapInArrow(tasks.sketch(job), tasks.SKETCH), tasks.SKETCH, filled
        )
        identical, identical_counts = self._written("identical", self._identical(sketches), _EDGES, filled)
        counted = {"pairs": f.count_if(f.col("right") >= 0), "crowded": f.count_if(f.col("right") < 0)}
        candidates, pair_counts = self._written(
            "pairs", self._pairs(sketches, identical), "left long, right long", counted
        )
        verified, similar = self._written("verify", self._verified(candidates), _EDGES, filled)
        edges = identical.unionByName(verified)
        stars, rounds = self._components(edges)
        removed, _ = self._written("decide", self._removed(stars, edges, sketches), tasks.REMOVED, filled)
        self._written("write", self._parts(removed), "number long", filled)
        return {
            "without_shingles": job.corpus.documents - filled_counts["documents"],
            "identical": identical_counts["documents"],
            "candidates": pair_counts["pairs"],
            "verified": similar["documents"],
            "crowded": pair_counts["crowded"],
            "rounds": rounds,
        }

    def _written(self, name: str, frame: Any, schema: str, observed: Mapping[str, Any]) -> tuple[Any, dict[str, int]]:
        """Let executors write ``frame`` as a table. Return a frame of it, and the integers that ``observed`` names."""
        from pyspark.sql import Observation

        context = self._session.sparkContext
        context.setJobGroup(name, f"harness data dedup: {name}")
        self._report(begins=name)
        path = f"file://{self._job.work}/{_TABLES}/{name}"
        observation = Observation(name)
        frame = frame.observe(observation, *(value.alias(key) for key, value in observed.items()))
        plan = frame._jdf.queryExecution().executedPlan().toString()
        frame.write.mode("overwrite").parquet(path)
        jobs = len(context.statusTracker().getJobIdsForGroup(name))
        self._report(stage={"name": name, "jobs": jobs, "plan": plan})
        values = {key: int(value) for key, value in observation.get.items()}
        pattern = re.sub(r"([\\{}\[\]*?])", r"\\\1", path)
        return self._session.read.schema(schema).parquet(pattern), values

    def _identical(self, sketches: Any) -> Any:
        """Return pairs of each document with the first earlier one that has the same shingles."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        first = f.min("row").over(Window.partitionBy("high", "low"))
        repeats = sketches.select("row", first.alias("first")).where("row > first")
        return repeats.select(f.col("first").alias("left"), f.col("row").alias("right"), f.lit(1.0).alias("jaccard"))

    def _pairs(self, sketches: Any, identical: Any) -> Any:
        from pyspark.sql import functions as f

        firsts = sketches.join(identical.select(f.col("right").alias("row")), "row", "left_anti")
        keys = firsts.select("row", f.explode("keys").alias("key"))
        buckets = keys.repartition(self._partitions, "key").sortWithinPartitions("key", "row").select("key", "row")
        return buckets.mapInArrow(tasks.bucket_pairs(), "left long, right long").distinct()

    def _verified(self, candidates: Any) -> Any:
        from pyspark.sql import functions as f

        neighbourhood = f.floor(f.col("left") / 1000)  # pairs whose shingles lie close together
        pairs = (
            candidates.where("right >= 0")
            .repartition(self._partitions, neighbourhood)
            .sortWithinPartitions("left", "right")
        )
        return pairs.mapInArrow(tasks.verify(self._job), _EDGES)

    def _components(self, edges: Any) -> tuple[Any, int]:
        """Return (document, first of its group) and the rounds of large-star and small-star (Kiveris et al. 2014)."""
        from pyspark.sql import functions as f

        observed = {"count": f.count(f.lit(1)), "all": f.coalesce(f.bit_xor(f.xxhash64("high", "low")), f.lit(0))}
        first = edges.select(f.col("right").alias("high"), f.col("left").alias("low")).distinct()
        stars, previous = self._written("round-0", first, "high long, low long", observed)
        for number in range(1, MOST_ROUNDS + 1):
            stars, totals = self._written(f"round-{number}", _joined(stars), "high long, low long", observed)
            if totals == previous:
                return stars, number
            previous = totals
        raise InputError(f"groups of documents are not found within {MOST_ROUNDS} rounds")

    def _removed(self, stars: Any, edges: Any, sketches: Any) -> Any:
        """Return a row for each removed document: the kept document (by ``KEPT_RULE``) and the nearest neighbour."""
        from pyspark.sql import Window
        from pyspark.sql import functions as f

        group = f.col("low").alias("group")
        members = stars.select(f.col("high").alias("row"), group).union(stars.select(f.col("low").alias("row"), group))
        sized = members.distinct().join(sketches.select("row", "characters"), "row")
        best = f.max(f.struct("characters", (-f.col("row")).alias("first"))).over(Window.partitionBy("group"))
        removed = sized.select("row", (-best["first"]).alias("kept")).where("row != kept")
        ends = edges.select(f.col("left").alias("row"), f.col("right").alias("other"), "jaccard").union(
            edges.select(f.col("right").alias("row"), f.col("left").alias("other"), "jaccard")
        )
        nearest = f.max(f.struct("jaccard", (-f.col("other")).alias("first"))).alias("nearest")
        joined = removed.join(ends.groupBy("row").agg(nearest), "row")
        number = f.floor(f.col("row") / self._job.documents).cast("long").alias("number")
        neighbour = (-f.col("nearest.first")).alias("neighbour")
        return joined.select(number, "row", "kept", neighbour, f.col("nearest.jaccard").alias("jaccard"))

    def _parts(self, removed: Any) -> Any:
        """Write the files of each share (a run of documents). Return a frame with the numbers of the written shares."""
        from pyspark.sql import functions as f

        nothing = [f.lit(-1).cast("long").alias(name) for name in ("row", "kept", "neighbour")]
        # A mark ensures that shares without removals are written, too.
        marks = self._session.range(self._job.count).select(
            f.col("id").alias("number"), *nothing, f.lit(0.0).alias("jaccard")
        )
        run = f.floor(f.col("number") / self._run_length)
        count = max(1, min(self._job.count, self._partitions))
        rows = removed.union(marks).repartition(count, run).sortWithinPartitions("number", "row")
        return rows.mapInArrow(tasks.write(self._job), "number long")


def _joined(stars: Any) -> Any:
    """Return the edges (high, low) after a large-star and a small-star round (see ``_components``)."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    ends = stars.select(f.col("high").alias("one"), f.col("low").alias("other")).union(
        stars.select(f.col("low").alias("one"), f.col("high").alias("other"))
    )
    least = f.least(f.min("other").over(Window.partitionBy("one")), f.col("one"))
    large = ends.select("one", "other", least.alias("least")).where("other > one")
    large = large.select(f.col("other").alias("high"), f.col("least").alias("low")).distinct()
    least = f.min("low").over(Window.partitionBy("high"))
    small = large.select("high", "low", least.alias("least"))
    vertices = f.explode(f.array(f.struct(f.col("high").alias("end")), f.struct(f.col("low").alias("end"))))
    return (
        small.select(vertices.alias("one"), f.col("least").alias("low"))
        .select(f.col("one.end").alias("high"), "low")
        .where("high != low")
        .distinct()
    )


@contextmanager
def _signs_of_life(session: Any, report: Callable[..., None]) -> Iterator[None]:
    """Context that reports the number of finished Spark tasks, without which a long stage would time out."""
    tracker, ended = session.sparkContext.statusTracker(), threading.Event()

    def run() -> None:
        previous: list[tuple[int, int]] = []
        while not ended.wait(_DEDUP_LOOK_S):
            with suppress(Exception):  # Spark may be shutting down.
                stages = ((int(stage), tracker.getStageInfo(stage)) for stage in tracker.getActiveStageIds())
                current = [(stage, int(info.numCompletedTasks)) for stage, info in stages if info is not None]
                if current != previous:
                    previous = current
                    report(tasks=current)

    threading.Thread(target=run, daemon=True).start()
    try:
        yield
    finally:
        ended.set()
