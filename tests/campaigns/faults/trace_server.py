"""``harness trace`` under hostile requests and idle connections.

``python -m tests.campaigns faults.trace_server --count 80 --idle 300``. Needs what ``harness trace`` needs (the extra
``trace``). Asked: while the idle connections stand, every right request gets the file's bytes, every hostile one a
refusal and no byte of any other file; idle ones are closed in the end; Ctrl-C ends the command with 0, without a line
of error.
"""

from __future__ import annotations

import random
import re
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec

from tests.campaigns.faults.common import Counts, finish, finished_study, harness_words, parser, start, workplace

ANSWER_S = 20.0
IDLE_S = 120.0  # within which an idle connection must be closed: the server's limit is 60 s
END_S = 20.0
SECRET = b"the-secret-of-the-campaign"
PATHS = (
    "/../secret", "/v1/../../secret", "/%2e%2e/secret", "/..%2fsecret", "/..%5csecret", "//secret", "/secret",
    "/etc/passwd", "file:///etc/passwd", "*", "/localtrace/..", "/./index.html", "/\0", "/study.json", "/runs",
    "http://evil.test/secret", "/" + "a" * 60_000, "/%", "/%zz", "/\u202e", "/localtrace%00.json", "/.lock", "secret",
    "",
)  # fmt: skip
HOSTS = ("evil.test", "127.0.0.1.evil.test", "localhost@evil.test", "[::1", "", "0.0.0.0", "127.0.0.1:1:2", "\0")
METHODS = ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "GET\0", "")
RAW = (
    b"\r\n\r\n", b"\0" * 500, b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.test\r\n\r\n", b"GET / HTTP/1.1\r\nHost 127.0.0.1\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /" + b"x" * 70_000,
    b"GET / HTTP/1.1\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999\r\n\r\nx",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nffffffffff\r\n",
)  # fmt: skip


@dataclass(frozen=True)
class Answer:
    """Status (None: the connection was closed without one) and everything after the headers."""

    status: int | None
    body: bytes
    whole: bool = True
    """False where the answer did not end within its time."""


def ask(port: int, request: bytes) -> Answer:
    """Send bytes, say that no more will come, and read until the server closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) as connection:
        received, whole = b"", True
        try:
            connection.sendall(request)
            connection.shutdown(socket.SHUT_WR)
            while found := connection.recv(65536):
                received += found
        except TimeoutError:
            whole = False
        except OSError:  # closed while we sent
            pass
    head, _, body = received.partition(b"\r\n\r\n")
    status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    return Answer(int(status[1]) if status else None, body, whole)


def request(path: str, host: str = "127.0.0.1", method: str = "GET") -> bytes:
    """One request that asks for the connection to be closed."""
    text = f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
    return text.encode("utf-8", "surrogatepass")


def hostile(chance: random.Random) -> bytes:
    """One hostile request."""
    kind = chance.randrange(4)
    if kind == 0:
        return request(chance.choice(PATHS))
    if kind == 1:
        return request("/localtrace", host=chance.choice(HOSTS))
    if kind == 2:
        return request("/localtrace", method=chance.choice(METHODS))
    return chance.choice(RAW)


def closed(connections: list[socket.socket], limit_s: float) -> int:
    """How many of them the server closes within the limit."""
    waiting, until = {one.fileno(): one for one in connections}, time.monotonic() + limit_s
    poll = select.poll()
    for number in waiting:
        poll.register(number, select.POLLIN)
    while waiting and (left_s := until - time.monotonic()) > 0:
        for number, _ in poll.poll(left_s * 1000):
            poll.unregister(number)
            del waiting[number]
    return len(connections) - len(waiting)


def port_of(process: subprocess.Popen[str]) -> int | None:
    """The port in the link that the command prints; None where it ends, or says nothing for a minute."""
    assert process.stdout is not None
    until, text = time.monotonic() + 60, ""
    while (left_s := until - time.monotonic()) > 0 and select.select([process.stdout], [], [], left_s)[0]:
        line = process.stdout.readline()
        text += line
        if found := re.search(r"open: http://127\.0\.0\.1:(\d+)/", text):
            return int(found[1])
        if not line:
            return None
    return None


def main() -> int:
    options = parser(__doc__, 80)
    options.add_argument("--idle", type=int, default=300, metavar="N", help="idle connections (default: %(default)s)")
    arguments = options.parse_args()
    if find_spec("viztracer") is None:
        print("python -m tests.campaigns faults.trace_server: needs the extra 'trace': pip install -e '.[trace]'")
        return 2
    counts, chance = Counts("the trace server"), random.Random(arguments.seed)
    with workplace() as folder:
        study, _ = finished_study(folder)
        (study / "secret").write_bytes(SECRET)
        timeline = next(study.glob("timeline.*")).read_bytes()
        process = start(harness_words("trace", str(study), "--no-browser"))
        port = port_of(process)
        if port is None:
            ended = finish(process, END_S)
            counts.bad("it did not start", ended.err[-1000:])
            return counts.finish()
        idle = [socket.create_connection(("127.0.0.1", port), timeout=ANSWER_S) for _ in range(arguments.idle)]
        for connection in idle[::3]:  # some say half a request
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Half: ")
        for number in range(arguments.count):
            check(port, hostile(chance), counts)
            if number % 4 == 0:
                right = ask(port, request("/localtrace"))
                if right == Answer(200, timeline):
                    counts.good("right requests that get the timeline")
                else:
                    counts.bad("a right request is refused", f"{right.status}, {len(right.body)} bytes")
        if (found := closed(idle, IDLE_S)) == len(idle):
            counts.good(f"{len(idle)} idle connections closed by the server")
        else:
            counts.bad("idle connections left open", f"{len(idle) - found} of {len(idle)} after {IDLE_S:.0f} s")
        _interrupt(process, counts)
    return counts.finish()


def check(port: int, sent: bytes, counts: Counts) -> None:
    """One hostile request must be refused, or closed without an answer."""
    what = repr(sent[:120])
    try:
        answer = ask(port, sent)
    except OSError as error:
        counts.bad("no connection", f"{what}: {error}")
        return
    if SECRET in answer.body or b"root:" in answer.body:
        counts.bad("another file was served", what)
    elif not answer.whole:
        counts.bad("no answer", f"{what}: none within {ANSWER_S:.0f} s")
    elif answer.status is None:
        counts.good("closed without an answer")
    elif answer.status < 400:
        counts.bad("a hostile request was answered", f"{what}: {answer.status}")
    else:
        counts.good(f"refused with {answer.status}")


def _interrupt(process: subprocess.Popen[str], counts: Counts) -> None:
    process.send_signal(signal.SIGINT)
    ended = finish(process, END_S)
    if ended.err.replace("timeline: ", "").strip() and "Traceback" in ended.err:
        counts.bad("errors", ended.err[-1000:])
    counts.of(ended, {0, 130}, "Ctrl-C at the end")


if __name__ == "__main__":
    sys.exit(main())
