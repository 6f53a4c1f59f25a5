"""The processes of ``tests.benchmarks.training_peers``, as it sees them: one a contestant."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from harness.launch.channel import Channel
from harness.launch.probing import probes_of
from harness.launch.protocol import RECORD_FIELDS, StartMessage
from harness.machine.processes import descendants
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from tests.benchmarks.peer_loops import LEDGER
from trainer.config import TrainerConfig

ROOT = Path(__file__).parents[2]
START_S, SLICE_S = 300, 120
ARM = "ours"


class Contestant:
    """One process, which stands still outside its slices."""

    def __init__(self, kind: str, python: str, config: TrainerConfig, folder: Path) -> None:
        self.kind = kind
        self._warmup = config.warmup_steps
        self.losses: list[float] = []
        self.slices_ns: list[int] = []
        self.cpu_ns_per_step: list[float] = []
        self._study = StudyFolder(folder / "study")
        self._log = folder / f"{kind}.txt"
        here, there = socket.socketpair()
        with there, open(self._log, "w") as log:
            self._process = subprocess.Popen(
                [python, "-m", "tests.benchmarks.peer_loops", kind, str(there.fileno()), str(os.getpid()), str(folder)],
                cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, stdin=subprocess.DEVNULL, stdout=log,
                stderr=subprocess.STDOUT, pass_fds=[there.fileno()], start_new_session=True,
            )  # fmt: skip
        self._channel = Channel(here)
        record = RunRecord(arm=ARM, block=0, status="interrupted", config=config.model_dump(mode="json"))
        self._study.run(ARM, 0).mkdir(parents=True, exist_ok=True)
        sent = {name: value for name, value in record.to_json().items() if name in RECORD_FIELDS}
        probes = probes_of({"host": True, "nvml": "auto", "sample_hz": 10}, None).to_json()  # a scenario's defaults
        start: StartMessage = {"record": sent, "study": str(self._study.path), "probes": probes}
        self._channel.send(start)

    def wait_ready(self) -> None:
        self.losses = list(self._expect("ready", START_S).get("losses", []))
        self._signal(signal.SIGSTOP)

    def slice(self, number: int, warmup: int, steps: int) -> None:
        """Let it take its steps of one slice."""
        before_ns = cpu_ns(self._process.pid)
        self._signal(signal.SIGCONT)
        self._channel.send({"do": "turn", "turn": number, "settle": warmup, "steps": steps})
        self.slices_ns.append(self._expect("turn", SLICE_S).get("ns", 0))
        self._signal(signal.SIGSTOP)
        self.cpu_ns_per_step.append((cpu_ns(self._process.pid) - before_ns) / (warmup + steps))

    def finish(self) -> None:
        """Let it end; a run of the harness has its times and losses in its tables then."""
        self._signal(signal.SIGCONT)
        self._channel.send({"do": "finish"})
        self._expect("done", SLICE_S)
        if self.kind == LEDGER:
            steps = pq.read_table(self._study.run(ARM, 0) / "steps.parquet").to_pydict()
            rows = list(zip(*(steps[name] for name in ("turn", "warmup", "wall_ns")), strict=True))
            for number in range(len(self.slices_ns)):
                self.slices_ns[number] = sum(ns for turn, warm, ns in rows if turn == number and not warm)
            self.losses = steps["loss"][: self._warmup]

    def kill(self) -> None:
        self._signal(signal.SIGKILL)
        self._process.wait()

    def _expect(self, event: str, timeout_s: float) -> dict[str, Any]:
        try:
            found: dict[str, Any] = dict(self._channel.receive_event(timeout_s))
            while found["event"] == "alive":
                found = dict(self._channel.receive_event(timeout_s))
        except (EOFError, TimeoutError, ConnectionError) as error:
            found = {"event": in_short(error)}
        if found["event"] != event:
            tail = self._log.read_text(errors="replace").strip().splitlines()[-12:]
            sys.exit("\n".join([f"{self.kind}: {found.get('error') or found['event']}; its last lines:", *tail]))
        return found

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def cpu_ns(pid: int) -> int:
    """CPU time so far of a process and of those that it started, all threads (proc_pid_task: schedstat)."""
    found = 0
    for process in (pid, *descendants([pid])):
        for task in Path(f"/proc/{process}/task").iterdir():
            with suppress(OSError):  # a thread that has ended meanwhile
                found += int((task / "schedstat").read_text().split()[0])
    return found


def in_short(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
