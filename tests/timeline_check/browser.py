"""Headless Chromium, driven over the DevTools protocol through a pair of pipes: no port, no driver, no library."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
_LOOPBACK_ONLY = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # as on a compute node: no network but loopback


def program() -> str | None:
    """Where a Chromium lies; None where there is none."""
    return next((found for name in PROGRAMS if (found := shutil.which(name))), None)


# Chromium reads descriptor 3 and writes descriptor 4: a process in between puts the pipes there and becomes it.
_LAUNCH = """import fcntl, os, sys
pipes = [fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3]]
for place, pipe in zip((3, 4), pipes):
    os.dup2(pipe, place)
    os.close(pipe)
os.execv(sys.argv[3], sys.argv[3:])"""


class BrowserError(Exception):
    """A page did not do what it was asked."""


class Browser:
    """One page of ``width`` x ``height`` pixels. Use it as a context manager; every call waits for its answer.

    ``sites``: what stands in for a site of the network, as "host:port": "127.0.0.1:port"; any certificate will do then.
    """

    def __init__(self, width: int = 1800, height: int = 1300, sites: Mapping[str, str] | None = None) -> None:
        found = program()
        if found is None:
            raise BrowserError(f"none of {', '.join(PROGRAMS)} is installed (apt-get install chromium)")
        self._folder = tempfile.mkdtemp(prefix="timeline-check-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()
        rules = [f"MAP {site} {address}" for site, address in (sites or {}).items()]
        more = [f"--host-resolver-rules={', '.join([*rules, _LOOPBACK_ONLY])}"]
        more += ["--ignore-certificate-errors"] if sites else []
        more += [f"--user-data-dir={self._folder}", f"--window-size={width},{height}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _LAUNCH, str(to_browser), str(from_browser), found, *FLAGS, *more],
            pass_fds=(to_browser, from_browser),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._unread = b""
        self._number = 0
        self._session: str | None = None
        self.log: list[str] = []  # what the page said on its console, and exceptions it did not catch
        for origin in (f"https://{site.partition(':')[0]}" for site in sites or ()):
            # as someone who was asked whether the page may reach this device, and said yes
            self.call("Browser.grantPermissions", permissions=["localNetwork", "loopbackNetwork"], origin=origin)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._send(method, parameters)
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise BrowserError(f"{method}: {answer['error'].get('message')}")
                return dict(answer["result"])
            self._note(answer)

    def _send(self, method: str, parameters: dict[str, Any]) -> None:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        content = json.dumps(message).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            more = os.read(self._in, 1 << 20)
            if not more:
                raise BrowserError(f"the browser ended (status {self._process.wait()})")
            self._unread += more
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def _note(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            details = parameters["exceptionDetails"]
            self.log.append(f"exception: {details.get('exception', {}).get('description', details['text'])}")
        elif event.get("method") == "Runtime.consoleAPICalled":
            words = [str(one.get("value", one.get("description", ""))) for one in parameters["args"]]
            self.log.append(f"{parameters['type']}: {' '.join(words)}")
        elif event.get("method") == "Page.javascriptDialogOpening":  # the page stands still until someone answers
            self._send("Page.handleJavaScriptDialog", {"accept": False})
            raise BrowserError(f"the page says: {parameters['message']}")

    def open(self, link: str) -> None:
        self.call("Page.navigate", url=link)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression, awaited where it is a promise."""
        found = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in found:
            details = found["exceptionDetails"]
            raise BrowserError(details.get("exception", {}).get("description", details["text"]))
        return found["result"].get("value")

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))
