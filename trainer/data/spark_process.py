"""Runs a Spark driver in a separate process, with time limits and one-line errors, because a Java machine may hang.

The driver reads its work from standard input and reports over a pipe, one JSON value per line. It and the Java machine
are one process group, which ends with this process.
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

_SPARK_LOOK_S = 0.2  # interval of polling
_SPARK_END_S = 5.0
_MOST_CHARACTERS = 400
_HOW = "--engine spark"
_ROOT = str(Path(__file__).parents[2])
# Defaults. Settings of spark-submit, SPARK_CONF_DIR or PYSPARK_SUBMIT_ARGS take precedence.
SETTINGS = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.speculation": "false"}
# Defaults for executors that are threads of this machine, whose name may not resolve.
LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.executorEnv.PYTHONPATH": _ROOT,
}
_GATEWAY = "PYSPARK_GATEWAY_PORT"  # set by spark-submit if it has started the Java machine


class SparkWork(Protocol):
    """Interface of the work that a Spark driver does in its own process. It is picklable."""

    @property
    def name(self) -> str:
        """Name of the application in a cluster's lists."""

    @property
    def settings(self) -> Mapping[str, str]:
        """Spark settings in addition to :data:`LOCAL_SETTINGS`, used if executors are threads of this machine."""

    @property
    def java_options(self) -> str:
        """JVM options for ``SPARK_SUBMIT_OPTS``, without effect on a JVM that already runs; "" for none."""

    def run(self, session: Any, report: Callable[..., None]) -> None:
        """Work in Spark's ``session``. ``report(name=value)`` sends JSON to the starter, and restarts its limit."""


class SparkProcess:
    """Process of a Spark driver, seen from the process that starts it. ``events``: the driver's reports so far."""

    def __init__(self, work: SparkWork, master: str | None, timeout_s: float) -> None:
        """Start the process. ``master``: None for Spark's own setting. Raises InputError if Spark is missing."""
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
            start_new_session=True,  # Ctrl-C reaches this process alone, which ends the group.
            env=_environment(work),
        )
        os.close(write)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # A driver that has died is reported by wait_until.
            self._process.stdin.write(pickle.dumps((work, master)))
            self._process.stdin.close()

    @property
    def master(self) -> str | None:
        """Spark's master, such as ``spark://host:7077``; None before the driver is ready."""
        return str(self.events[0]["master"]) if self.events else None

    def wait_until(self, done: Callable[[], bool], progress: Callable[[], object], unfinished: str) -> None:
        """Wait until ``done()``. The limit restarts when ``progress()`` changes. ``unfinished``: for its InputError."""
        changed_s, previous = time.monotonic(), progress()
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
            if (current := progress()) != previous or was_ready != bool(self.events):
                previous, changed_s = current, time.monotonic()
            if time.monotonic() - changed_s > self._timeout_s:
                problem = unfinished if self.events else "was not ready"
                raise InputError(f"{_HOW}: Spark {problem} within {self._timeout_s:g} s (--timeout){self._last_line()}")

    def close(self) -> None:
        """Kill the driver and its Java machine, and wait for them."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_SPARK_END_S)
        if self._events >= 0:
            os.close(self._events)
            self._events = -1
        self._log.close()

    def _read_events(self) -> None:
        """Read the driver's reports into ``events``, waiting for a moment. Raises InputError for a reported error."""
        readable, _, _ = select.select([self._events], [], [], _SPARK_LOOK_S)
        if not readable:
            return
        content = os.read(self._events, 1 << 16)
        if not content:
            time.sleep(_SPARK_LOOK_S)  # The driver has closed its end.
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
        """Return ": " and the last informative line of the driver's log, to end a message; "" if there is none."""
        self._log.seek(0)
        lines = [one_line(line) for line in self._log.read().decode(errors="replace").splitlines()]
        messages = [line for line in lines if line and not line.startswith(("at ", "WARNING"))]
        errors = [line for line in messages if re.search("error|exception|fatal", line, re.IGNORECASE)]
        return f": {(errors or messages)[-1][:_MOST_CHARACTERS]}" if messages else ""


def check_installed() -> None:
    """Raise InputError if PySpark or Java is missing."""
    for module in ("pyspark", "pandas"):  # mapInArrow needs pandas.
        if find_spec(module) is None:
            raise InputError(f"{_HOW}: {module} is not installed; pip install 'llm-training-harness[spark]'")
    if _GATEWAY in os.environ:
        return
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java") if not home else shutil.which("java", path=str(Path(home) / "bin"))
    if java is None:
        reason = f"JAVA_HOME={home} has no bin/java" if home else "no java in PATH, and no JAVA_HOME"
        raise InputError(f"{_HOW}: Spark needs Java 17 or newer: {reason}")


def is_local(master: str) -> bool:
    """Return True if ``master`` runs executors as threads of the driver's Java machine."""
    return master.startswith("local")


def _environment(work: SparkWork) -> dict[str, str]:
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(filter(None, [_ROOT, env.get("PYTHONPATH")]))
    env["SPARK_SUBMIT_OPTS"] = " ".join(filter(None, [env.get("SPARK_SUBMIT_OPTS"), work.java_options]))
    return env


def drive(events: int, parent: int) -> None:
    """Run the driver: do the pickled work of stdin. ``events``: descriptor to report to; ends with ``parent``."""
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
            os._exit(1)  # Skip Spark's own shutdown, which may take long.
        report(done=True)
    os._exit(0)


def _session(work: SparkWork, master: str | None) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # Name the master at the start: spark-submit prepares the Java machine for it (YARN's files, for example).
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
    """Stop the session that an earlier driver left in spark-submit's Java machine, if there is one."""
    session = java.org.apache.spark.sql.SparkSession.getDefaultSession()
    if session.isDefined():
        session.get().stop()


_RAISED = re.compile(r"^(?:[\w.]+\.)?InputError: (.+)$", re.MULTILINE)
_PYTHON = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exception|Exit)): (.+)$", re.MULTILINE)


def reason_of(error: Exception) -> str:
    """Return the reason of a failed Spark job, which may lie deep in Spark's message, in one line."""
    text = str(error)
    if raised := _RAISED.findall(text):
        return one_line(raised[-1])
    if errors := [f"{name}: {message}" for name, message in _PYTHON.findall(text)]:
        return one_line(errors[0])[:_MOST_CHARACTERS]
    first = next((line for line in text.splitlines() if line.strip()), type(error).__name__)
    return one_line(f"{type(error).__name__}: {first}")[:_MOST_CHARACTERS]
