"""torch.profiler inside the workers of the real DataLoader: their stages and operators, once each worker has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from time import monotonic_ns

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from harness.probes.ledger.recorders import StepRecorder
from harness.probes.profilers.torch_profiler import OVER, TorchProfiler, profile_worker
from harness.probes.profilers.torch_session import TorchProfilerSettings, make_profiler
from harness.study.traces.kineto import CUT, file_name, files, header, read_profiles
from trainer import telemetry
from trainer.config import DataConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import Prepared, prepare

pytestmark = pytest.mark.slow

SETTINGS = TorchProfilerSettings(wait=1, warmup=1, active=2)
ALIGNED_NS = 50_000


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, object]]:
    """A small corpus, in a cache of its own."""
    folder = tmp_path_factory.mktemp("corpus")
    texts = [" ".join(f"word{(number * at) % 17}" for at in range(1 + number % 29)) for number in range(40)]
    pq.write_table(pa.table({"text": texts}), folder / "texts.parquet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HARNESS_CACHE", str(folder / "cache"))
        yield {
            "corpus": {"parquet": str(folder / "*.parquet")},
            "tokenizer": {"train": {"vocab_size": 300}},
            "sequence_length": 16,
            "batch_size": 2,
            "path": "text-padded",
        }


def configured(data: dict[str, object], **changes: object) -> tuple[DataConfig, Prepared]:
    config = DataConfig.model_validate(data | changes)
    return config, prepare(config)


def names(table: pa.Table) -> list[str]:
    return table.column("name").to_pylist()


@pytest.mark.parametrize("start_method", ["fork", pytest.param("forkserver", marks=pytest.mark.nightly)])
def test_every_worker_leaves_its_profile(data: dict[str, object], tmp_path: Path, start_method: str) -> None:
    """Also where the parent, forked, has itself been profiled before."""
    with make_profiler(SETTINGS):
        torch.ones(3).sum()
    config, prepared = configured(data, workers=2, start_method=start_method)
    probe = TorchProfiler(SETTINGS, tmp_path)
    before_ns = monotonic_ns()
    with open_batches(config, prepared, 0, partial(profile_worker, SETTINGS, tmp_path)) as batches:
        traces = [batch.trace for batch in islice(batches, 12)]
    after_ns = monotonic_ns()
    assert probe.problems == []
    assert probe.facts()["workers"] == ("loader-0", "loader-1")
    tables, problems = read_profiles(tmp_path)
    assert problems == []
    for worker, table in enumerate(tables):
        mine = [trace for trace in traces if trace is not None and trace.role == f"loader-{worker}"]
        assert len(mine) == 6
        assert set(table.column("role").to_pylist()) == {f"loader-{worker}"}
        assert {row["pid"] for row in table.to_pylist()} == {mine[0].pid} != {os.getpid()}
        found = names(table)
        assert any(name.startswith("aten::") for name in found)
        starts = table.column("start_ns").to_pylist()
        assert before_ns < min(starts) <= max(starts) < after_ns
        # The stages that travelled beside the batches, from the second batch on, lie inside the marks of the profile.
        marks = [
            (row["name"], row["start_ns"] - ALIGNED_NS, row["start_ns"] + row["duration_ns"] + ALIGNED_NS)
            for row in table.to_pylist()
        ]
        for trace in mine[1:]:
            for span in trace.stages():
                assert any(
                    name == f"stage: {span.name}" and start < span.start_ns and span.end_ns < end
                    for name, start, end in marks
                )
    assert not list(tmp_path.glob(".*"))


def test_a_worker_records_until_the_windows_are_over(data: dict[str, object], tmp_path: Path) -> None:
    config, prepared = configured(data, workers=1, prefetch=1)
    probe = TorchProfiler(SETTINGS, tmp_path)
    with open_batches(config, prepared, 0, partial(profile_worker, SETTINGS, tmp_path)) as batches:
        numbers = iter(range(100))

        def next_step() -> int:
            next(batches)
            return next(numbers)

        probe.run_window(next_step, StepRecorder())
        telemetry.attach(None)
        over_ns = monotonic_ns()
        assert (tmp_path / OVER).exists()
        assert len(list(islice(batches, 8))) == 8
        # The worker has built batches since, so it has noticed and written; it goes on without the profiler.
        assert (tmp_path / file_name("loader-0")).exists()
    facts = probe.facts()
    assert facts["workers"] == ("loader-0",)
    assert not (tmp_path / OVER).exists()
    (_, worker), _ = read_profiles(tmp_path, facts["realtime_minus_monotonic_ns"])
    packs = [row["start_ns"] for row in worker.to_pylist() if row["name"] == "stage: pack"]
    assert sum(at < over_ns for at in packs) >= 2
    batches_after = {at for at in packs if at > over_ns}
    assert len(batches_after) <= 4  # those of the one batch at whose end it looked


def test_a_worker_that_has_many_events_stops_early_and_says_so(data: dict[str, object], tmp_path: Path) -> None:
    config, prepared = configured(data, workers=1)
    probe = TorchProfiler(SETTINGS, tmp_path)
    hook = partial(profile_worker, SETTINGS, tmp_path, most_events=1)
    with open_batches(config, prepared, 0, hook) as batches:
        assert len(list(islice(batches, 9))) == 9
    assert "only its first 2 batches" in header(tmp_path / file_name("loader-0"))[CUT]
    (problem,) = probe.problems
    assert "loader-0 is incomplete" in problem
    (table,), _ = read_profiles(tmp_path)
    assert 1 <= names(table).count("stage: pack") <= 6


def test_a_worker_that_was_killed_while_writing_is_reported(tmp_path: Path) -> None:
    probe = TorchProfiler(SETTINGS, tmp_path)
    (tmp_path / f".{file_name('loader-1')}.4711.text.tmp").write_bytes(b"{")
    (problem,) = probe.problems
    assert "loader-1" in problem
    assert probe.problems == [problem]
    assert list(tmp_path.iterdir()) == []
    assert files(tmp_path) == []


FULL = """
import resource, signal, sys
from pathlib import Path
import torch
from harness.probes.profilers.torch_profiler import profile_worker
from tests.harness.probes.profilers.test_torch_worker import SETTINGS
from trainer import telemetry

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
profile_worker(SETTINGS, Path(sys.argv[1]), 3)
with telemetry.span("tokenize"):
    torch.ones(3) + 1
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
"""


@pytest.mark.nightly
def test_a_worker_whose_profile_could_not_be_written_is_reported(tmp_path: Path) -> None:
    """Here: no file may be larger than 1000 bytes when it ends."""
    probe = TorchProfiler(SETTINGS, tmp_path)
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "torch_profile.loader-3.json.gz could not be written" in done.stdout
    assert probe.problems == [
        "torch_profiler: the profile of loader-3 could not be written; the run's log has the reason"
    ]
    assert list(tmp_path.iterdir()) == []
