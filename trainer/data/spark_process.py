"""Runs a Spark driver in a process of its own, as a Java machine may hang or die: with time limits, and one clear line.

The driver reads its work from standard input and reports over a pipe, a JSON value a line. It and the Java machine are
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
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Protocol

from trainer.errors import InputError, one_line
from trainer.json_types import JsonObject
from trainer.lifetime import die_with_parent

_SPARK_LOOK_S = 0.2  # how often it is looked for what is finished
_SPARK_END_S = 5.0
_MOST_CHARACTERS = 400
_HOW = "--engine spark"
_ROOT = str(Path(__file__).parents[2])
# Defaults. A setting that spark-submit, SPARK_CONF_DIR or PYSPARK_SUBMIT_ARGS gives stays as it is.
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.speculation": "false",
}
# Defaults for executors that are threads of this machine, whose name need not be known to a name server.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": _ROOT,
}
_GATEWAY = "PYSPARK_GATEWAY_PORT"  # spark-submit sets it where it has started the Java machine


class SparkWork(Protocol):
    """What a driver does. It is picklable."""

    @property
    def name(self) -> str:
        """Of the application, as a cluster lists it."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Defaults in addition to :data:`SETTINGS`, if executors are threads of this machine."""

    @property
    def java_options(self) -> str:
        """Options of the driver's Java machine, where the driver starts it."""

    def run(self, session: Any, report: Callable[..., None]) -> None:
        """Do it. Each call of ``report`` with values that JSON has is an event, and a sign of life."""


class SparkProcess:
    """A process with a Spark driver in it. ``events``: what it has reported."""

    def __init__(self, work: SparkWork, master: str | None, timeout_s: float) -> None:
        """Start the process. ``master``: None for the master of Spark's own configuration.

        Raises InputError if PySpark or Java is missing.
        """
        check_installed()
        self._timeout_s = timeout_s
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # close() closes it
        self.events: list[JsonObject] = []
        events, write = os.pipe()
        self._events, self._partial = events, b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from trainer.data.spark_process import drive; drive({write}, {os.getpid()})"],
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=[write],
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the group
            env=_environment(work),
        )
        os.close(write)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it has died: whoever waits says why
            self._process.stdin.write(pickle.dumps((work, master)))
            self._process.stdin.close()

    @property
    def master(self) -> str | None:
        """Spark's master, such as ``spark://host:7077``; None before the driver is ready."""
        return str(self.events[0]["master"]) if self.events else None

    def wait_until(self, done: Callable[[], bool], progress: Callable[[], object], unfinished: str) -> None:
        """Return when ``done`` is true. Raises InputError where Spark fails, dies or takes too long.

        The time limit begins anew whenever what ``progress`` returns changes. ``unfinished``: what Spark then has not
        done, such as "finished no share".
        """
        since, before = time.monotonic(), progress()
        while not done():
            was_ready = bool(self.events)
            self._read_events()
            if done():
                return
            if self._process.poll() is not None:
                self._read_events()
                if done():
                    return
                raise InputError(
                    f"{_HOW}: the driver ended with exit code {self._process.returncode}{self._last_line()}"
                )
            if (now := progress()) != before or was_ready != bool(self.events):
                before, since = now, time.monotonic()
            if time.monotonic() - since > self._timeout_s:
                what = unfinished if self.events else "was not ready"
                raise InputError(f"{_HOW}: Spark {what} within {self._timeout_s:g} s (--timeout){self._last_line()}")

    def close(self) -> None:
        """End the driver and its Java machine."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SPARK_END_S)
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        self._log.close()

    def _read_events(self) -> None:
        """Take what the driver reports, waiting for a moment. Raises InputError of an error that it reports."""
        readable, _, _ = select.select([self._events], [], [], _SPARK_LOOK_S)
        if not readable:
            return
        content = os.read(self._events, 1 << 16)
        if not content:
            time.sleep(_SPARK_LOOK_S)  # it has closed its end
        *lines, self._partial = (self._partial + content).split(b"\n")
        for line in lines:
            event = json.loads(line)
            if "JAVA_GATEWAY_EXITED" in str(event.get("error", "")):
                raise InputError(f"{_HOW}: the Java machine ended before it was ready{self._last_line()}")
            if "error" in event:
                raise InputError(f"{_HOW}: {event['error']}")
            self.events.append(event)
            if len(self.events) == 1:
                print(f"Spark's master: {self.master}", file=sys.stderr)

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
    if _GATEWAY in os.environ:
        return
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else shutil.which("java", path=str(Path(home) / "bin"))
    if java is None:
        where = f"JAVA_HOME={home} has no bin/java" if home else "no java in PATH, and no JAVA_HOME"
        raise InputError(f"{_HOW}: Spark needs Java 17 or newer: {where}")


def is_local(master: str) -> bool:
    """Whether executors are threads of the driver's Java machine."""
    return master.startswith("local")


def _environment(work: SparkWork) -> dict[str, str]:
    found = dict(os.environ)
    found["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, found.get("PYTHONPATH")]))
    found["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, [found.get("SPARK_SUBMIT_OPTS"), work.java_options]))
    return found


def drive(events: int, parent: int) -> None:
    """Be the driver: read the work, start Spark, do it, and report."""
    die_with_parent(parent)
    with os.fdopen(events, "w") as pipe:
        lock = threading.Lock()

        def report(**event: Any) -> None:
            with lock:
                print(json.dumps(event), file=pipe, flush=True)

        try:
            work, master = pickle.load(sys.stdin.buffer)
            session = _session(work, master)
            report(ready=True, master=session.sparkContext.master)
            work.run(session, report)
        except Exception as error:
            report(error=reason_of(error))
            os._exit(1)  # nothing of Spark's own ending may take time
        report(done=True)
    os._exit(0)


def _session(work: SparkWork, master: str | None) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # spark-submit prepares a Java machine for its master (YARN's files, for example): it must be named at the start.
    SparkContext._ensure_initialized(conf=SparkConf().setMaster(master) if master is not None else None)
    _stop_earlier(SparkContext._jvm)
    conf = SparkConf().setAppName(work.name)  # includes the configuration of the Java machine
    if master is not None:
        conf.setMaster(master)
    local = is_local(conf.get("spark.master", ""))
    if local:
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    for key, value in (SETTINGS | (LOCAL_SETTINGS | dict(work.settings) if local else {})).items():
        conf.setIfMissing(key, value)
    session = SparkSession.builder.config(conf=conf).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _stop_earlier(java: Any) -> None:
    """Stop the session that an earlier driver left in the Java machine of spark-submit, which has room for one."""
    before = java.org.apache.spark.sql.SparkSession.getDefaultSession()
    if before.isDefined():
        before.get().stop()


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
