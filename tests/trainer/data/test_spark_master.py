"""Spark runs where it was told to: by spark-submit, by its configuration, or by --master. The master is recorded.

The tests start Spark itself, one of them a standalone master with a worker. They skip without PySpark or Java.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

import harness.__main__
from tests.trainer.data.corpus.corpora import jsonl
from tests.trainer.data.test_spark import needs_spark

pytestmark = [pytest.mark.slow, needs_spark]
LIMIT_S = 300
ROOT = str(Path(__file__).parents[3])


def spark_home() -> Path:
    """The folder of PySpark, which has Spark in it."""
    found = find_spec("pyspark")
    assert found.origin is not None
    return Path(found.origin).parent


def environment(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return kept | {
        "SPARK_HOME": str(spark_home()),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": ROOT,
        **more,
    }


def run(*words: str, **more: str) -> str:
    """Run a command to its end, and return what it wrote. spark-submit writes a program's stderr to its stdout."""
    done = subprocess.run(
        words, env=environment(**more), capture_output=True, text=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(jsonl(tmp_path_factory.mktemp("spark"), [f"document {number} of a few" for number in range(40)]))


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    """The URL of a master of Spark's own, with one worker."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, *options: str) -> None:
        words = [str(spark_home() / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", "--host", "127.0.0.1"]
        with (tmp_path / "log").open("ab") as log:
            started.append(
                subprocess.Popen(
                    [*words, "--webui-port", "0", *options],
                    env=environment(SPARK_WORKER_DIR=str(tmp_path / "worker")),
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )
            )

    def logged(text: str) -> None:
        for _ in range(10 * 60):
            if text in (tmp_path / "log").read_text(errors="replace"):
                return
            time.sleep(0.1)
        raise AssertionError((tmp_path / "log").read_text(errors="replace")[-2000:])

    try:
        start("master.Master", "--port", str(port))
        logged("I have been elected leader")
        start("worker.Worker", "--cores", "1", "--memory", "1g", f"spark://127.0.0.1:{port}")
        logged("Successfully registered with master")
        yield f"spark://127.0.0.1:{port}"
    finally:
        for one in started:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()


def test_spark_submit_names_the_master(corpus: str, standalone: str, tmp_path: Path) -> None:
    """The line of docs/guides/spark.md, on a master of this machine: tasks run on the cluster's worker."""
    submit = (str(spark_home() / "bin" / "spark-submit"), "--deploy-mode", "client", "--master", standalone)
    words = ("data", "pretokenize", "--corpus", corpus, "--tokenizer", "bpe:300", "--engine", "spark")
    file = str(harness.__main__.__file__)
    run(*submit, "--num-executors", "7", file, *words, "--format", "flat", "--out", str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "spark.json").read_text()) == {"master": standalone}
    log = (tmp_path / "log").read_text(errors="replace")
    assert "Registered app harness data pretokenize" in log
    assert "Launching executor app-" in log


@pytest.mark.parametrize("given", ["SPARK_CONF_DIR", "PYSPARK_SUBMIT_ARGS", "--master"])
def test_the_configuration_of_spark_names_the_master(given: str, corpus: str, tmp_path: Path) -> None:
    """--master is stronger than what Spark's own configuration says."""
    (tmp_path / "spark-defaults.conf").write_text("spark.master local[1]\nspark.ui.enabled false\n")
    more = {"SPARK_CONF_DIR": str(tmp_path)}
    if given == "PYSPARK_SUBMIT_ARGS":
        more = {given: "--master local[1] pyspark-shell"}
    options = ("--master", "local[2]") if given == "--master" else ()
    words = ("data", "dedup", "--corpus", corpus, "--engine", "spark", "--out", str(tmp_path / "out"), *options)
    said = run(sys.executable, "-m", "harness", *words, **more)
    wanted = "local[2]" if options else "local[1]"
    assert json.loads((tmp_path / "out" / "dedup.json").read_text())["result"]["master"] == wanted
    assert f"Spark's master: {wanted}" in said


TWO_DRIVERS = """
import sys
from pathlib import Path
from trainer.config import CorpusConfig, TokenizerConfig
from trainer.data.corpus import prepare_corpus
from trainer.data.shares import SparkTokens
from trainer.data.tokenizers import prepare_tokenizer

corpus = prepare_corpus(CorpusConfig(path=sys.argv[1]))
info = prepare_tokenizer(TokenizerConfig.model_validate({"train": {"kind": "bpe", "vocab_size": 300}}), corpus)
found = []
for name in ("one", "two"):
    tokens = SparkTokens(corpus, info, Path(sys.argv[2]) / name)
    found.append([group.ids.tolist() for group in tokens(0)])
    print(tokens.master)
    tokens.close()
assert found[0] == found[1] != []
"""


def test_one_java_machine_serves_one_driver_after_the_other(corpus: str, tmp_path: Path) -> None:
    """spark-submit's Java machine outlives a driver; an earlier session must not stand in the way of the next."""
    (tmp_path / "two.py").write_text(TWO_DRIVERS)
    submit = (str(spark_home() / "bin" / "spark-submit"), "--master", "local[1]")
    said = run(*submit, str(tmp_path / "two.py"), corpus, str(tmp_path / "shares"))
    assert said.count("Spark's master: local[1]") == 2
