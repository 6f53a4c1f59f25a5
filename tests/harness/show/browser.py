"""A headless Chromium, driven through its own pipe (Chrome DevTools Protocol), so that no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
PATIENCE_S = 360.0  # Perfetto's interface may take minutes to load
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--remote-debugging-pipe",
)  # fmt: skip
_LOOPBACK_ONLY = "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"  # as on a compute node: no network but loopback


def found() -> str | None:
    """The browser of this machine."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One page of ``width`` x ``height`` pixels, a context manager. ``events``: all reported since :meth:`open`.

    ``sites``: what stands in for a site of the network, as "host:port": "127.0.0.1:port"; any certificate will do then.
    """

    def __init__(self, width: int = 1800, height: int = 1300, sites: Mapping[str, str] | None = None) -> None:
        program = found()
        assert program is not None, f"no browser here (one of {', '.join(NAMES)})"
        self._folder = tempfile.mkdtemp(prefix="harness-browser-")
        ours_in, theirs_out = os.pipe()
        theirs_in, ours_out = os.pipe()
        rules = [*(f"MAP {site} {address}" for site, address in (sites or {}).items()), _LOOPBACK_ONLY]
        flags = [*FLAGS, f"--host-resolver-rules={', '.join(rules)}", *["--ignore-certificate-errors"] * bool(sites)]
        flags += [f"--user-data-dir={self._folder}", f"--window-size={width},{height}", "about:blank"]
        # The browser reads its file descriptor 3 and writes to 4.
        script = f'exec "$0" "$@" 3<&{theirs_in} 4>&{theirs_out} >/dev/null 2>/dev/null'
        self._process = subprocess.Popen(["bash", "-c", script, program, *flags], pass_fds=(theirs_in, theirs_out))
        os.close(theirs_in)
        os.close(theirs_out)
        self._in, self._out, self._buffer, self._number, self._session = ours_in, ours_out, b"", 0, ""
        self.events: list[Mapping[str, Any]] = []
        for origin in (f"https://{site.partition(':')[0]}" for site in sites or ()):
            # as someone who was asked whether the page may reach this device, and said yes
            self.call("Browser.grantPermissions", permissions=["localNetwork", "loopbackNetwork"], origin=origin)
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        shutil.rmtree(self._folder, ignore_errors=True)

    def open(self, page: Path | str) -> None:
        """Load a file or an address, and wait until it is loaded."""
        self.events.clear()
        self.call("Page.navigate", url=page if isinstance(page, str) else page.as_uri())
        while not self.reported("Page.loadEventFired"):
            self._read()

    def reported(self, method: str) -> list[Mapping[str, Any]]:
        """The parameters of each event of that name."""
        return [event["params"] for event in self.events if event["method"] == method]

    def value(self, expression: str) -> Any:
        """What a JavaScript expression gives, awaited where it is a promise."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def prefer(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def point_at(self, x: float, y: float) -> None:
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    def screenshot(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"]))

    def call(self, method: str, **parameters: Any) -> Mapping[str, Any]:
        """The result of one command of the protocol."""
        self._send(method, parameters)
        while True:
            answer = self._read()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                result: Mapping[str, Any] = answer["result"]
                return result

    def _send(self, method: str, parameters: Mapping[str, Any]) -> None:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        content = json.dumps(message | ({"sessionId": self._session} if self._session else {})).encode() + b"\0"
        while content:
            content = content[os.write(self._out, content) :]

    def _read(self) -> Mapping[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], PATIENCE_S)
            assert ready, "the browser does not answer"
            more = os.read(self._in, 1 << 20)
            assert more, f"the browser ended (status {self._process.wait()})"
            self._buffer += more
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: Mapping[str, Any] = json.loads(line)
        if message.get("method") == "Page.javascriptDialogOpening":  # the page stands still until someone answers
            self._send("Page.handleJavaScriptDialog", {"accept": False})
            raise AssertionError(f"the page says: {message['params']['message']}")
        if "method" in message:
            self.events.append(message)
        return message
