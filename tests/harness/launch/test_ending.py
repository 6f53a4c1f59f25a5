"""Signals and closed outputs end a command quietly, and what it was writing goes."""

from __future__ import annotations

import os
import pty
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from harness import cli
from harness.launch.ending import open_missing_outputs, silence_gone_outputs, terminable
from tests.campaigns.faults.caches import scenario
from tests.commands import ROOT
from trainer.data import cache

HARNESS = f"{sys.executable} -m harness"
PLAN = f"{HARNESS} run scenarios/quickstart.yaml --plan --repeats 1000"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_an_interrupt_and_its_handler_is_given_back(number: signal.Signals) -> None:
    before = signal.signal(number, signal.SIG_DFL)  # these tests may run under nohup
    try:
        with pytest.raises(KeyboardInterrupt), terminable():
            signal.raise_signal(number)
        assert signal.getsignal(number) == signal.SIG_DFL
    finally:
        signal.signal(number, before)


def test_an_ignored_signal_stays_ignored() -> None:
    """As ``nohup`` has it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with terminable():
            signal.raise_signal(signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_another_thread_may_call_commands() -> None:
    found: list[int] = []
    thread = threading.Thread(target=lambda: found.append(cli.main(["no-such-command"])))
    thread.start()
    thread.join()
    assert found == [2]


def test_a_terminal_that_was_closed_is_written_to_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with open(theirs, "w", buffering=1) as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        silence_gone_outputs()
        print("before")
        assert os.read(ours, 100) == b"before\r\n"
        os.close(ours)
        with pytest.raises(OSError, match="Input/output error"):
            print("lost")
        silence_gone_outputs()
        print("to nowhere")
        terminal.flush()


def test_outputs_that_are_open_are_left_alone() -> None:
    before = [os.fstat(descriptor) for descriptor in (0, 1, 2)]
    open_missing_outputs()
    assert [os.fstat(descriptor).st_ino for descriptor in (0, 1, 2)] == [stat.st_ino for stat in before]


def test_a_signal_while_data_are_prepared_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "cache"))
    seen: list[Path] = []

    def terminated(*_: object) -> None:
        seen.extend((tmp_path / "cache").rglob(".*.tmp"))
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(cache, "_write_digests", terminated)
    assert cli.main(["data", "pretokenize", str(scenario(tmp_path))]) == 130
    assert capsys.readouterr().err == "harness: interrupted\n"
    assert len(seen) == 1
    assert not list((tmp_path / "cache").rglob(".*.tmp"))


def shell(command: str) -> subprocess.CompletedProcess[str]:
    script = f"set -o pipefail; {command}"
    return subprocess.run(["bash", "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "code", "errors"), [
    (f"{PLAN} 2>&1 | head -1 >/dev/null", 141, ""),
    (f"{HARNESS} report no-such-study 2>&- >/dev/null", 2, ""),
    (f"{HARNESS} schema >&- <&- 2>&-", 0, ""),
    (f"{HARNESS} schema >/dev/full", 1, "harness: input or output: No space left on device\n"),
])  # fmt: skip
def test_outputs_that_cannot_be_written_end_a_command_quietly(command: str, code: int, errors: str) -> None:
    done = shell(command)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", errors)


@pytest.mark.slow
def test_a_closed_error_output_does_not_become_another_file() -> None:
    """The first file that is opened would get its number, and what libraries complain of would go into it."""
    code = "import os, sys; from harness.cli import main; main(['schema']); print(os.readlink('/proc/self/fd/2'))"
    done = shell(f"{sys.executable} -c {code!r} 2>&- | tail -1")
    assert done.stdout == "/dev/null\n"
