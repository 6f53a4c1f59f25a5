"""For every test: what may start a process, and where what is cached goes."""

from __future__ import annotations

import faulthandler
import fcntl
import gc
import multiprocessing.process
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from io import BytesIO
from pathlib import Path
from unittest import mock

import pytest
import pytest_timeout
from hypothesis import settings
from matplotlib.figure import Figure

from harness.machine.processes import descendants
from harness.show import drawing as show_drawing
from harness.show import plots
from harness.show.drawing import Picture
from tests import warm
from tests.__main__ import MARKED, NIGHTLY
from tests.commands import fork_servers
from tests.examples import examples

# On a shared machine a single example may take long for reasons of its own.
settings.register_profile("shared machine", examples())
settings.load_profile("shared machine")

# A shell starts what it runs in the background with SIGINT ignored, which processes started from here would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)

pytest_plugins = ["pytester"]

PICTURE = Picture(b"\x89PNG\r\n\x1a\n", '<svg viewBox="0 0 1 1"></svg>')
DRAWN: dict[tuple[object, str], object] = {
    (owner, name): getattr(owner, name)
    for owner, name in ((plots, "drawn"), (Figure, "savefig"), (show_drawing, "_laid_out"), (show_drawing, "_svg"))
}
PROCESS_EVENTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
_started: list[str] = []  # by the present test
_made_cache = pytest.StashKey[str]()


def _hear(event: str, arguments: tuple[object, ...]) -> None:
    if event in PROCESS_EVENTS and arguments[:1] != ("fc-list",):  # matplotlib looks for fonts, once on a machine
        _started.append(f"{event} {arguments[1] if len(arguments) > 1 else ''}")


def _tell_multiprocessing() -> None:
    """A process that multiprocessing spawns raises no audit event."""
    start = multiprocessing.process.BaseProcess.start

    def told(process: multiprocessing.process.BaseProcess) -> None:
        _started.append(f"multiprocessing {process.name}")
        start(process)

    multiprocessing.process.BaseProcess.start = told  # type: ignore[method-assign]


def pytest_configure(config: pytest.Config) -> None:
    """A cache of this session, for all its workers: corpora and tokenizers are built once, never in the user's own."""
    gc.disable()  # until all is collected
    sys.addaudithook(_hear)
    _tell_multiprocessing()
    if hasattr(config, "workerinput"):
        return
    chosen = os.environ.get("HARNESS_TEST_CACHE")  # `python -m tests` has one for all its parts
    if chosen is None:
        chosen = config.stash[_made_cache] = tempfile.mkdtemp(prefix="harness-test-cache-")
    os.environ["HARNESS_CACHE"] = chosen


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> Iterator[None]:
    """Start the workers of pytest-xdist as forks of one process that has imported torch, which their tests fork too."""
    if not session.config.getoption("numprocesses", None):
        yield
        return
    warm.starter.share()
    with mock.patch.object(subprocess, "Popen", warm.Popen):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Import one file at a time: the first worker compiles it for all, 17 s of CPU on a fresh clone."""
    if not isinstance(collector, pytest.Module):
        return (yield)
    folder = os.open(Path(__file__).parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        return (yield)
    finally:
        os.close(folder)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each part of `python -m tests` finds the files of its tests by their text."""
    parts = {"processes": ("slow",), "alone": ("alone", "gpu"), NIGHTLY: ("nightly",)}
    seen = {
        (item.path, part) for item in items for part, marks in parts.items() if any(map(item.get_closest_marker, marks))
    }
    for path, part in seen:
        if not MARKED[part].search(path.read_text()):
            raise pytest.UsageError(
                f"{path}: its mark is not found by MARKED in tests/__main__.py: {MARKED[part].pattern}"
            )


def pytest_collection_finish() -> None:
    """What the tests are made of stays for good: the garbage collector need not look at it again and again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure(config: pytest.Config) -> None:
    fork_servers.end()
    if made := config.stash.get(_made_cache, None):
        shutil.rmtree(made, ignore_errors=True)


@pytest.fixture(scope="session", autouse=True)
def _plain_argparse() -> Iterator[None]:
    """Help texts are looked up in no catalogue of translations: several hundred files for each command."""
    with mock.patch("argparse._", str):
        yield


@pytest.fixture(scope="session", autouse=True)
def _empty_pictures() -> Iterator[None]:
    """Figures are made, but not turned into pixels and paths, which is most of a report: 0.8 s of CPU."""

    def save(_figure: Figure, content: BytesIO, **_how: object) -> None:
        content.write(PICTURE.png)

    with (
        mock.patch("harness.show.plots.drawn", return_value=PICTURE),
        mock.patch.object(Figure, "savefig", save),
        mock.patch("harness.show.drawing._laid_out"),
        mock.patch("harness.show.drawing._svg", return_value=PICTURE.svg),
    ):
        yield


@contextmanager
def drawing() -> Iterator[None]:
    """Meanwhile reports and commands draw pictures as a user's do."""
    with ExitStack() as stack:
        for (owner, name), real in DRAWN.items():
            stack.enter_context(mock.patch.object(owner, name, real))
        yield


@pytest.fixture
def pictures() -> Iterator[None]:
    with drawing():
        yield


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    _started.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: pytest_timeout.Settings) -> bool:
    """End the processes of a test that hangs, then its own.

    A forked one would keep the pipe open by whose end pytest-xdist learns that a worker has ended.
    """

    def end() -> None:
        if capture := item.config.pluginmanager.getplugin("capturemanager"):
            capture.suspend_global_capture(in_=True)
        print(f"\n{item.nodeid} hangs", file=sys.__stderr__, flush=True)
        faulthandler.dump_traceback(file=sys.__stderr__)  # a worker of pytest-xdist shows nothing else
        for pid in descendants([os.getpid(), *filter(None, [warm.starter.pid])]):
            os.kill(pid, signal.SIGKILL)
        pytest_timeout.timeout_timer(item, settings)

    timer = threading.Timer(settings.timeout, end)

    def cancel() -> None:
        timer.cancel()
        timer.join()

    item.cancel_timeout = cancel  # type: ignore[attr-defined]
    timer.start()
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """`slow` marks every test that starts a process: `make quick` runs the others."""
    yield
    told = os.environ.get("HARNESS_TEST_STARTS")  # a file, for whoever wants to count them
    if told and _started:
        with open(told, "a", encoding="utf-8") as file:
            file.writelines(f"{item.nodeid}\t{one[:200]!r}\n" for one in _started)
    if _started and item.get_closest_marker("slow") is None:
        pytest.fail(f"starts a process and is not marked slow: {_started[0][:300]}", pytrace=False)
