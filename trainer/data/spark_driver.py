"""Runs Spark's driver in a process of its own, as a Java machine may hang or die: with time limits, and one clear line.

The driver reads its job from standard input and reports over a pipe, a JSON value a line. It and the Java machine are
one process group, which ends with this process.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from trainer.data.shares import ShareJob, write_share
from trainer.errors import InputError, one_line
from trainer.lifetime import die_with_parent

_LOOK_S = 0.2  # how often it is looked for a finished share
_END_S = 5.0
_MOST_PARTITIONS = 10_000
_WAVES = 4  # runs of shares for each core, where a corpus cannot be read from its middle
_MOST_CHARACTERS = 400
_HOW = "--engine spark"
_ROOT = str(Path(__file__).parents[2])
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
}
# The driver's machine has a name that other machines look up; alone it need not have one.
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class SparkDriver:
    """A Spark driver that makes shares; they appear in the job's folder as they are finished."""

    def __init__(self, job: ShareJob, missing: list[int], master: str, timeout_s: float) -> None:
        """Raises InputError where PySpark or Java are not there."""
        check_installed()
        self._job, self._missing, self._timeout_s = job, missing, timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self._ready = False
        self._left = len(missing)
        self._since = time.monotonic()
        events, write = os.pipe()
        self._events, self._partial = events, b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from trainer.data.spark_driver import drive; drive({write}, {os.getpid()})"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the group
            env=_environment(master),
        )
        os.close(write)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: whoever waits for a share says why
            self._process.stdin.write(pickle.dumps((job, missing, master)))
            self._process.stdin.close()

    def wait_for(self, share: Path) -> None:
        """Return when the share is there. Raises InputError where Spark fails, dies or takes too long."""
        self._since = time.monotonic()  # joining what was there before is not Spark's time
        while not share.is_dir():
            self._read_events()
            if share.is_dir():
                return
            if self._process.poll() is not None:
                self._read_events()
                if share.is_dir():
                    return
                raise InputError(
                    f"{_HOW}: the driver ended with exit code {self._process.returncode}{self._last_line()}"
                )
            left = sum(not self._job.place(number).is_dir() for number in self._missing)
            if left != self._left:
                self._left, self._since = left, time.monotonic()
            if time.monotonic() - self._since > self._timeout_s:
                what = "finished no share" if self._ready else "was not ready"
                raise InputError(f"{_HOW}: Spark {what} within {self._timeout_s:g} s (--timeout){self._last_line()}")

    def close(self) -> None:
        """End the driver and its Java machine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_END_S)
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        self._log.close()

    def _read_events(self) -> None:
        """Take what the driver reports, waiting for a moment. Raises InputError of an error that it reports."""
        readable, _, _ = select.select([self._events], [], [], _LOOK_S)
        if not readable:
            return
        content = os.read(self._events, 1 << 16)
        if not content:
            time.sleep(_LOOK_S)  # it has closed its end
        *lines, self._partial = (self._partial + content).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "JAVA_GATEWAY_EXITED" in event.get("error", ""):
                raise InputError(f"{_HOW}: the Java machine ended before it was ready{self._last_line()}")
            if "error" in event:
                raise InputError(f"{_HOW}: {event['error']}")
            if not self._ready:
                self._ready, self._since = True, time.monotonic()

    def _last_line(self) -> str:
        """What it wrote last that says anything, for a message."""
        self._log.seek(0)
        lines = [one_line(line) for line in self._log.read().decode(errors="replace").splitlines()]
        messages = [line for line in lines if line and not line.startswith(("at ", "WARNING"))]
        errors = [line for line in messages if re.search("error|exception|fatal", line, re.IGNORECASE)]
        return f": {(errors or messages)[-1][:_MOST_CHARACTERS]}" if messages else ""


def check_installed() -> None:
    """InputError where PySpark or Java are missing, before anything is begun."""
    for module in ("pyspark", "pandas"):  # mapInArrow asks for pandas
        if find_spec(module) is None:
            raise InputError(f"{_HOW}: {module} is not installed; pip install 'llm-training-harness[spark]'")
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else shutil.which("java", path=str(Path(home) / "bin"))
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java in PATH, and no JAVA_HOME"
        raise InputError(f"{_HOW}: Spark needs Java 17 or newer: {where}")


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver's Java machine."""
    return master.startswith("local")


def _environment(master: str) -> dict[str, str]:
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, found.get("PYTHONPATH")]))
    if is_local(master):
        found["PYSPARK_PYTHON"] = found["PYSPARK_DRIVER_PYTHON"] = sys.executable
    return found


def drive(events: int, parent: int) -> None:
    """Be the driver: read a job, let executors make its shares, and report."""
    die_with_parent(parent)
    with os.fdopen(events, "w") as pipe:

        def report(**event: Any) -> None:
            print(json.dumps(event), file=pipe, flush=True)

        try:
            job, missing, master = pickle.load(sys.stdin.buffer)
            _run(job, missing, master, report)
        except Exception as error:
            report(error=reason_of(error))
            os._exit(1)  # nothing of Spark's own ending may take time
        report(done=True)
    os._exit(0)


def _run(job: ShareJob, missing: list[int], master: str, report: Any) -> None:
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(master).appName("harness data pretokenize")
    for name, value in (SETTINGS | (LOCAL_SETTINGS if is_local(master) else {})).items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    location = Path(job.tokenizer.location)
    session.sparkContext.addFile(str(location), recursive=location.is_dir())
    report(ready=True)
    parts = min(len(missing), _MOST_PARTITIONS)
    if (job.corpus.format, job.corpus.content) != ("parquet", "text"):
        # Every task reads the corpus from its beginning to its shares: few tasks, each with a run of them.
        parts = min(parts, max(1, session.sparkContext.defaultParallelism) * _WAVES)
    places = session.range(0, len(missing), 1, parts)
    places.mapInArrow(task(job, missing), "share long").collect()  # the numbers of the shares


def task(job: ShareJob, missing: list[int]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """What `mapInArrow` calls on executors, with rows of one column: places in ``missing``.

    It gives back the numbers of the shares that it made. Nothing else leaves an executor but through the shared folder.
    """

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        for batch in batches:
            made = [write_share(on_executor(job), missing[place]) for place in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_arrays([pa.array(made, pa.int64())], ["share"])

    return write


_here: dict[str, ShareJob] = {}  # of an executor, by folder


def on_executor(job: ShareJob) -> ShareJob:
    """The job with the tokenizer that came with it: the driver's file lies on another machine."""
    if job.folder not in _here:
        from pyspark import SparkFiles

        info = job.tokenizer
        asked, found = " ".join(info.engine.split()[:2]), f"{info.library} {_version(info.library)}"
        if found != asked:
            raise InputError(
                f"an executor has {found}, this machine {asked}: they may split text differently; install the same "
                "version on all"
            )
        here = replace(info, location=SparkFiles.get(Path(info.location).name))
        _here[job.folder] = replace(job, tokenizer=here)
    return _here[job.folder]


def _version(library: str) -> str:
    try:
        return version(library)
    except PackageNotFoundError:
        return "missing"


_RAISED = re.compile(r"^(?:[\w.]+\.)?InputError: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)


def reason_of(error: Exception) -> str:
    """A failed job as one line: what an executor's code raised, which lies deep in what Spark says."""
    text = str(error)
    if raised := _RAISED.findall(text):
        return one_line(raised[-1])
    if others := [f"{name}: {message}" for name, message in _PYTHON.findall(text)]:
        return one_line(others[0])[:_MOST_CHARACTERS]
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return one_line(f"{type(error).__name__}: {first}")[:_MOST_CHARACTERS]
