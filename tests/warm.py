"""Starts Python processes as forks of one that has imported torch and transformers, once for all tests.

The workers of pytest-xdist are such forks too, and share that process: ``share`` puts its address in the environment.

Of a fork server's six seconds of CPU all but half a second are those imports, of a training script's four all but one.
What is started so has the environment, the working directory, the module path and the descriptors that it was to have;
it imports this project itself, of whatever state, and the agent of ``harness exec`` where it was to. It is no child of
the process that asked for it, and its command line in /proc is not its own: what is about those starts as usual.

``python -SE tests/warm.py PROGRAM ...`` in a shell runs a program as such a fork, where one is shared.

Started as ``python tests/warm.py FD PARENT MODULE...``. FD is a socket that listens; for each connection a process is
forked that forks what is asked for, and ends with the connection. Here nothing of this project is imported.
"""

from __future__ import annotations

import atexit
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
import warnings
from pathlib import Path
from typing import Any, NoReturn

# What the runs of nearly every study import of others.
MODULES = (
    "numpy", "pyarrow.parquet", "pydantic", "yaml", "tokenizers", "torch.optim", "torch.utils.data", "torch._dynamo",
    "transformers.models.gpt2.modeling_gpt2", "matplotlib.figure",
)  # fmt: skip
ADDRESS = "HARNESS_TEST_WARM_SOCKET"  # of the process that is forked, where several processes share it
_ENDING_S = 10  # that what was forked may take to end
_MOST_BYTES = 2**16  # of one request: a whole environment
ATTACHED = "HARNESS_ATTACH"  # is in the environment of what the agent goes with
_HIGH = 200  # descriptors from here on are free, in what has just been started
_ColdPopen = subprocess.Popen


class _Starter:
    """The process that is forked, from the first time that it is needed."""

    def __init__(self) -> None:
        self.pid = 0  # of the parent of what is forked
        self._user = 0  # process that asks through the socket; one that it forks needs a connection of its own
        self._address = ""
        self._socket: socket.socket | None = None
        self._process: _ColdPopen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def start(self, request: dict[str, Any], descriptors: list[int]) -> int:
        ended = self._user == os.getpid() and self._process is not None and self._process.poll() is not None
        if ended or self._user != os.getpid():
            self._connect()
        # Who dies with his parent asks whether it is still the one that he was told of.
        request["words"] = [str(self.pid) if one == str(os.getpid()) else one for one in request["words"]]
        return self._ask(request, descriptors)["pid"]

    def status(self, pid: int) -> int:
        """Of a process that has ended, as waitpid gives it."""
        try:
            return self._ask({"wait": pid}, [])["status"]
        except OSError:
            return signal.SIGKILL  # they ended with it

    def share(self) -> None:
        """Processes that are started from here on fork the same one."""
        self._connect()
        os.environ[ADDRESS] = self._address

    def end(self) -> None:
        """End what was forked for this process, and the process that is forked, where this one started it."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
            self._user = 0
        if self._process is None or self._folder is None:
            return
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None
        self._folder.cleanup()

    def _connect(self) -> None:
        known = (os.environ.get(ADDRESS, ""), self._address if self._user else "")
        self._address = next((one for one in known if Path(one).is_socket()), "") or self._begin()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.connect(self._address)
        self.pid = json.loads(self._socket.recv(_MOST_BYTES))["pid"]
        self._user = os.getpid()

    def _begin(self) -> str:
        self._folder = tempfile.TemporaryDirectory(prefix="harness-warm-")
        address = str(Path(self._folder.name) / "socket")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        environment["TOKENIZERS_PARALLELISM"] = "false"  # its threads would not survive the fork
        environment["ROOM"] = "." * _MOST_BYTES
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen()
            self._process = _ColdPopen(
                [sys.executable, __file__, str(listener.fileno()), str(os.getpid()), *MODULES],
                stdin=subprocess.PIPE,
                env=environment,
                pass_fds=[listener.fileno()],
                start_new_session=True,
            )
        return address

    def _ask(self, request: dict[str, Any], descriptors: list[int]) -> dict[str, int]:
        if self._user != os.getpid():
            self._connect()
        assert self._socket is not None
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        answer = self._socket.recv(_MOST_BYTES)
        if not answer:
            raise ConnectionResetError
        found: dict[str, int] = json.loads(answer)
        return found


starter = _Starter()


class Popen(_ColdPopen):  # type: ignore[type-arg]
    """subprocess.Popen, but for how ``python -m`` is started and waited for; anything else as usual."""

    _ended: int | None = None  # a descriptor that can be read once it has

    def _execute_child(self, *given: Any) -> None:
        """Warm are ``python -m``, ``python PROGRAM.py``, code that imports torch, and workers of pytest-xdist.

        A preexec_fn must ask to die with us, as all do.
        """
        named = inspect.signature(_ColdPopen._execute_child).bind(self, *given).arguments  # type: ignore[attr-defined]
        words = list(map(os.fsdecode, named["args"]))
        environment = dict(os.environ if named["env"] is None else named["env"])
        safe = words[1:2] == ["-P"]
        worker = words[1:3] == ["-u", "-c"]
        what = words[1 + (safe or worker)] if len(words) > 1 + (safe or worker) else ""
        warmly = what == "-m" or what.endswith(".py") or (what == "-c" and (worker or "import torch" in words[2]))
        python = shutil.which(words[0], path=environment.get("PATH"))
        if python != sys.executable or not warmly or named["shell"]:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        sys.audit("subprocess.Popen", words[0], words, named["cwd"], named["env"])
        streams = (named["p2cread"], named["c2pwrite"], named["errwrite"])
        descriptors = [number if one == -1 else one for number, one in enumerate(streams)]
        request = {
            "words": words[1 + (safe or worker) :],
            "safe": safe or bool(environment.get("PYTHONSAFEPATH")),
            "environment": environment,
            "folder": os.fspath(named["cwd"] or Path.cwd()),
            "session": named["start_new_session"],
            "numbers": [0, 1, 2, *named["pass_fds"]],
        }
        self.pid = starter.start(request, [*descriptors, *named["pass_fds"]])
        self._ended = os.pidfd_open(self.pid)
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*map(named.__getitem__, pipes))  # type: ignore[attr-defined]

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        if self._ended is None:
            return super()._try_wait(wait_flags)  # type: ignore[misc,no-any-return]
        poll = select.poll()
        poll.register(self._ended, select.POLLIN)
        if not poll.poll(0 if wait_flags & os.WNOHANG else None):
            return 0, 0
        os.close(self._ended)
        self._ended = None
        return self.pid, starter.status(self.pid)

    def _internal_poll(self, _deadstate: int | None = None, *_: Any) -> int | None:
        if self._ended is None:
            return super()._internal_poll(_deadstate)  # type: ignore[misc,no-any-return]
        if self.returncode is None and self._waitpid_lock.acquire(False):  # type: ignore[attr-defined]
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)  # type: ignore[attr-defined]
            finally:
                self._waitpid_lock.release()  # type: ignore[attr-defined]
        return self.returncode


def accepted(listener: socket.socket) -> socket.socket:
    """A connection of one process, in a process forked for it. The first one ends when its standard input does."""
    serving = 0
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:
            break
        connection, _ = listener.accept()
        if _fork() == 0:
            listener.close()
            os.setsid()
            ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
            return connection
        serving += 1
        connection.close()
    for _ in range(serving):
        os.wait()  # for the CPU time of all
    os._exit(0)


def _fork() -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of threads, which are those of BLAS libraries
        return os.fork()


def serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork whatever is asked for. Returns in the forked process: what that is to be, and its descriptors."""
    connection.send(json.dumps({"pid": os.getpid()}).encode())
    while True:
        message, descriptors, _, _ = socket.recv_fds(connection, _MOST_BYTES, 32)
        if not message:
            os._exit(0)
        request = json.loads(message)
        if "wait" in request:
            answer = {"status": _waited(request["wait"])}
        else:
            if (pid := _fork()) == 0:
                connection.close()
                return request, descriptors
            answer = {"pid": pid}
        for one in descriptors:
            os.close(one)
        connection.send(json.dumps(answer).encode())


def _waited(pid: int) -> int:
    try:
        return os.waitpid(pid, 0)[1]
    except ChildProcessError:  # a process of another connection asks, or a second time
        return signal.SIGKILL


def become(request: dict[str, Any], descriptors: list[int], installed: list[str]) -> None:
    """Run the module as a process that was started for it would."""
    if request["session"]:
        os.setsid()
    high = [fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, _HIGH) for one in descriptors]
    os.closerange(3, _HIGH)
    for number, one in zip(request["numbers"], high, strict=True):
        os.dup2(one, number)
        os.close(one)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    _show_environment()
    libc = ctypes.CDLL(None)
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: as the one it is forked from
    libc.prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)  # PR_SET_PTRACER: py-spy is no child of its parent
    if os.environ.get("PYTHONUNBUFFERED"):
        sys.stdout = sys.__stdout__ = _unbuffered(1)
        sys.stderr = sys.__stderr__ = _unbuffered(2)
    kind = request["words"][0] if request["words"][0] in ("-m", "-c") else ""
    words = request["words"][bool(kind) :]
    where = "" if kind == "-c" else str(Path.cwd() if kind else Path(words[0]).absolute().parent)
    here = [] if request["safe"] else [where]
    others = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    sys.path[:] = [*here, *others, *installed]
    importlib.invalidate_caches()
    sys.argv = words
    if folder := os.environ.get(ATTACHED):
        _attach(folder)
    try:
        _run(kind, words)
    except SystemExit as end:
        if end.code is not None and not isinstance(end.code, int):
            raise
        _exit(end.code or 0)
    _exit(0)


def _exit(code: int) -> NoReturn:
    """End as Python does, but keep its modules: to take all of them apart is 0.5 s of CPU for each process."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            code = code or 120
    os._exit(code & 0xFF)


def _run(kind: str, words: list[str]) -> None:
    if kind == "-c":
        sys.argv = ["-c", *words[1:]]
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[0], sys.modules["__main__"].__dict__)
    elif kind:
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


def _attach(folder: str) -> None:
    """The shim's sitecustomize waits for torch, which is there."""
    sys.modules.pop("sitecustomize", None)
    importlib.import_module("sitecustomize")
    watch = sys.meta_path.pop(0)
    type(watch).find_spec.__globals__["_load"](folder)


def _show_environment() -> None:
    """In /proc, where processes are known by it: written over the first process's, which has room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in os.environ.items())
    assert len(block) <= end - start
    ctypes.memmove(start, block.ljust(end - start, b"\0"), end - start)


def _unbuffered(number: int) -> io.TextIOWrapper:
    raw: Any = io.FileIO(number, "w", closefd=False)
    return io.TextIOWrapper(raw, errors="backslashreplace" if number == 2 else "strict", write_through=True)


def run(command: list[str]) -> None:
    """Be a program as a fork, to whoever waits for this process; as itself where none is shared."""
    if ADDRESS not in os.environ:
        os.execv(command[0], command)
    code = Popen(command).wait()
    if code < 0:
        signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


def main() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != int(sys.argv[2]):
        os._exit(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    listener = socket.socket(fileno=int(sys.argv[1]))
    del sys.path[0]  # the folder of this file
    installed = sys.path[:]
    gc.disable()
    for name in sys.argv[3:]:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    request, descriptors = serve(accepted(listener))
    gc.enable()
    become(request, descriptors, installed)


if __name__ == "__main__":
    run([sys.executable, *sys.argv[1:]]) if sys.argv[1].endswith(".py") else main()
