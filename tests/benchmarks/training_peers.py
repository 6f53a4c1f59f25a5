"""Tokens per second of our trainer beside transformers' Trainer and a loop like nanoGPT's, interleaved in one run.

    python -m tests.benchmarks.training_peers --out DIR [--model NAME ...] [--rounds N] [--precision fp32|bf16]
        [--threads N] [--peers PYTHON]

The same model from the same seed, the same batches (their first losses must agree to rounding), precision, optimizer
and number of threads. Each contestant (tests/benchmarks/peer_loops.py) has a process of its own that lives through all
rounds; between its slices it is suspended with all it started. A round gives each one slice, there and back again
(ABBA). Printed and written to DIR/README.md and DIR/table.json: medians of a slice's tokens per second, and the ratio
of ours to each other one of the same round, with a bootstrap interval (harness/analysis/statistics.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from harness.analysis.statistics import Estimate, from_blocks
from harness.launch.channel import Channel
from harness.launch.probing import probes_of
from harness.launch.protocol import RECORD_FIELDS, StartMessage
from harness.machine.environment import read_environment
from harness.machine.processes import descendants
from harness.study.records import RunRecord
from harness.study.store import StudyFolder
from tests.benchmarks.peer_loops import LEDGER, NANOGPT, OURS, TRANSFORMERS
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.files import write_text

ROOT = Path(__file__).parents[2]
START_S, SLICE_S = 300, 120
WARMUP = 10  # steps before the first slice, whose losses are compared
AGREE = 1e-5  # relative: the first losses of all contestants
ARM = "ours"
TITLES = {
    OURS: "this trainer, ledger off",
    LEDGER: "this trainer, ledger on",
    NANOGPT: "a loop like nanoGPT's",
    TRANSFORMERS: "transformers' Trainer",
}
PEERS = (NANOGPT, TRANSFORMERS)


@dataclass(frozen=True)
class Case:
    """A model, its batch, and how a slice is cut: about a second and a half on two slow cores."""

    model: dict[str, Any]
    sequence_length: int
    batch_size: int
    warmup: int
    steps: int


CASES = {
    "gpt2-tiny": Case({"preset": "gpt2-tiny"}, 128, 8, 2, 14),
    "gpt2-6x384": Case(  # the shape of nanoGPT's config/train_shakespeare_char.py
        {"preset": "gpt2-tiny", "layers": 6, "width": 384, "heads": 6, "kv_heads": 6, "ffn_width": 1536}, 128, 4, 1, 4
    ),
}


def config_of(case: Case, precision: str, threads: int) -> TrainerConfig:
    """What all contestants train."""
    return TrainerConfig.model_validate(
        {
            "model": case.model,
            "data": {
                "path": "tokens-stream",
                "access": "zero-copy",
                "tokenizer": {"train": {"kind": "bpe", "vocab_size": 2048}},
                "sequence_length": case.sequence_length,
                "batch_size": case.batch_size,
                "workers": 0,
            },
            "compute": {"device": "cpu", "precision": precision, "threads": threads},
            "optimizer": {"lr_warmup_steps": 0, "fused": True},
            "log_every": 10,
            "warmup_steps": WARMUP,
        }
    )


def write_batches(config: TrainerConfig, steps: int, folder: Path) -> None:
    """The rows of our own data path's first batches, for those that read them through numpy.memmap."""
    with (
        open(folder / "inputs.bin", "wb") as inputs,
        open(folder / "labels.bin", "wb") as labels,
        open_batches(config.data, prepare(config.data), config.seed) as batches,
    ):
        for _ in range(steps):
            batch = next(batches)
            inputs.write(batch.input_ids.numpy().astype(np.uint16).tobytes())
            labels.write(batch.labels.numpy().astype(np.int32).tobytes())


class Contestant:
    """One process, which stands still outside its slices."""

    def __init__(self, kind: str, python: str, config: TrainerConfig, folder: Path) -> None:
        self.kind = kind
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

    def slice(self, number: int, case: Case) -> None:
        """Let it take its steps of one slice."""
        before_ns = cpu_ns(self._process.pid)
        self._signal(signal.SIGCONT)
        self._channel.send({"do": "turn", "turn": number, "settle": case.warmup, "steps": case.steps})
        self.slices_ns.append(self._expect("turn", SLICE_S).get("ns", 0))
        self._signal(signal.SIGSTOP)
        self.cpu_ns_per_step.append((cpu_ns(self._process.pid) - before_ns) / (case.warmup + case.steps))

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
            self.losses = steps["loss"][:WARMUP]

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


@dataclass(frozen=True)
class Result:
    """What one model's contest gave: tokens per second of each slice, by contestant."""

    name: str
    case: Case
    tokens_per_s: dict[str, list[float]]
    cpu_ms_per_step: dict[str, list[float]]
    losses: dict[str, list[float]]
    load_1min: list[float]

    def median(self, kind: str) -> float:
        return statistics.median(self.tokens_per_s[kind])

    @property
    def faster_peer(self) -> str:
        return max((kind for kind in PEERS if kind in self.tokens_per_s), key=self.median)

    def ratio(self, kind: str, other: str) -> Estimate:
        """How many times as fast as ``other``, round by round."""
        pairs = zip(self.tokens_per_s[kind], self.tokens_per_s[other], strict=True)
        found = from_blocks([math.log(one / another) for one, another in pairs])
        assert found is not None
        return found

    @property
    def disagreement(self) -> float:
        """The largest relative difference of a first loss from ours."""
        first = {kind: losses[0] for kind, losses in self.losses.items()}
        return max(abs(loss / first[OURS] - 1) for loss in first.values())

    @property
    def later_disagreement(self) -> float:
        """The same over the whole warm-up."""
        others = (pair for losses in self.losses.values() for pair in zip(losses, self.losses[OURS], strict=True))
        return max(abs(one / another - 1) for one, another in others)


def contest(name: str, config: TrainerConfig, pythons: Mapping[str, str], rounds: int, folder: Path) -> Result:
    """All contestants, a slice each in every round."""
    case = CASES[name]
    write_batches(config, WARMUP + rounds * (case.warmup + case.steps) + 2, folder)
    loads = []
    with ExitStack() as living:
        contestants = []
        for kind, python in pythons.items():  # one starts after the other: what each does is the same whoever is first
            one = Contestant(kind, python, config, folder)
            living.callback(one.kill)
            one.wait_ready()
            contestants.append(one)
            print(f"{name}: {kind} is ready", file=sys.stderr, flush=True)
        for number in range(rounds):
            for one in contestants if number % 2 == 0 else reversed(contestants):
                one.slice(number, case)
            loads.append(os.getloadavg()[0])
            print(f"{name}: round {number + 1} of {rounds}, load {loads[-1]:.2f}", file=sys.stderr, flush=True)
        for one in contestants:
            one.finish()
    tokens = case.steps * case.batch_size * case.sequence_length
    speeds = {one.kind: [tokens / ns * 1e9 for ns in one.slices_ns] for one in contestants}
    cpu = {one.kind: [ns / 1e6 for ns in one.cpu_ns_per_step] for one in contestants}
    return Result(name, case, speeds, cpu, {one.kind: one.losses for one in contestants}, loads)


def verdict(ratio: Estimate) -> str:
    """What the interval allows to say of ours."""
    assert ratio.ci_low is not None
    assert ratio.ci_high is not None
    if ratio.ci_low > 1:
        return "faster"
    return "slower" if ratio.ci_high < 1 else "no difference that these rounds can show"


def in_text(ratio: Estimate) -> str:
    bounds = "" if ratio.ci_low is None else f" ({ratio.ci_low:.3f} to {ratio.ci_high:.3f})"
    return f"{ratio.median:.3f}{bounds}"


def table(result: Result) -> list[str]:
    """One model's part of the page."""
    case, peers = result.case, [kind for kind in PEERS if kind in result.tokens_per_s]
    lines = [
        f"## {result.name}: batch {case.batch_size} x {case.sequence_length}",
        "",
        "| contestant | tokens/s | CPU ms a step | " + " | ".join(f"over {TITLES[kind]}" for kind in peers) + " |",
        "| --- | --- | --- |" + " --- |" * len(peers),
    ]
    for kind in result.tokens_per_s:
        cpu_ms = statistics.median(result.cpu_ms_per_step[kind])
        ratios = ["" if kind in PEERS else in_text(result.ratio(kind, peer)) for peer in peers]
        lines.append("| " + " | ".join([TITLES[kind], f"{result.median(kind):,.0f}", f"{cpu_ms:.1f}", *ratios]) + " |")
    faster = result.faster_peer
    lines += ["", f"The faster of the others: {TITLES[faster]}. Against it:"]
    for kind in (OURS, LEDGER):
        ratio = result.ratio(kind, faster)
        lines.append(f"- {TITLES[kind]}: {in_text(ratio)}, {verdict(ratio)};")
    lines += [
        f"- ledger on over ledger off: {in_text(result.ratio(LEDGER, OURS))}.",
        "",
        f"First losses agree to {result.disagreement:.1e}, those of the first {WARMUP} steps to "
        f"{result.later_disagreement:.1e} (relative). {len(result.load_1min)} rounds of {case.warmup} + {case.steps} "
        f"steps; load {min(result.load_1min):.2f} to {max(result.load_1min):.2f}, this benchmark included.",
        "",
    ]
    return lines


def page(results: Sequence[Result], about: Mapping[str, Any]) -> str:
    """README.md."""
    lines = [
        "# Tokens per second beside transformers' Trainer and a loop like nanoGPT's",
        "",
        f"`{about['command']}`, {about['utc']}, on {about['cpu']}, {about['cores']} cores, torch {about['torch']}, "
        f"transformers {about['transformers']}, accelerate {about['accelerate'] or 'not there'}; "
        f"{about['precision']}, {about['threads']} threads. Not run on a GPU.",
        "",
        "Same model and seed, same batches in the same order (ours from its own pretokenized files, the others from "
        "the same rows through numpy.memmap), same fused AdamW, clipping at 1.0, no loader workers. Each has a "
        "process of its own and is suspended outside its slices, which alternate. Tokens/s: median over slices; "
        "CPU time: of all its threads and processes, over whole slices (a neighbour's load changes it less); "
        "ratios: median of the rounds' ratios with a 95 % bootstrap interval.",
        "",
        *([] if about["accelerate"] else ["The Trainer of transformers is missing: it needs accelerate.", ""]),
    ]
    for result in results:
        lines += table(result)
    return "\n".join(lines).rstrip() + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=CASES, action="append", help="default: all, one after the other")
    parser.add_argument("--rounds", type=int, default=14, help="slices of each contestant and model (default: 14)")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="default: one a core")
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment with accelerate, where this one has none")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the contestants, which are suspended
    if arguments.rounds < 3:
        parser.error("--rounds: 3 at least, or there is no interval")
    pythons = dict.fromkeys((OURS, LEDGER, NANOGPT), sys.executable)
    accelerate = accelerate_of(arguments.peers)
    if accelerate is not None:
        pythons[TRANSFORMERS] = arguments.peers or sys.executable
    else:
        print("no accelerate: transformers' Trainer is left out (--peers PYTHON)", file=sys.stderr)
    results = []
    for name in arguments.model or CASES:
        config = config_of(CASES[name], arguments.precision, arguments.threads)
        with tempfile.TemporaryDirectory() as place:
            results.append(contest(name, config, pythons, arguments.rounds, Path(place)))
        print("\n".join(table(results[-1])), file=sys.stderr, flush=True)  # the next one may be interrupted
    about = {
        "command": "python -m tests.benchmarks.training_peers " + " ".join(sys.argv[1:]),
        "utc": datetime.now(UTC).isoformat(timespec="minutes"),
        "cpu": read_environment().cpu or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "torch": version("torch"),
        "transformers": version("transformers"),
        "accelerate": accelerate,
        "precision": arguments.precision,
        "threads": arguments.threads,
    }
    text = page(results, about)
    arguments.out.mkdir(parents=True, exist_ok=True)
    figures = about | {"models": [as_json(one) for one in results]}
    write_text(arguments.out / "table.json", json.dumps(figures, indent=1) + "\n")
    write_text(arguments.out / "README.md", text)
    print(text)
    wrong = [one.name for one in results if one.disagreement > AGREE]
    if wrong:
        print(f"{', '.join(wrong)}: the first losses differ: they did not train the same", file=sys.stderr)
    return 1 if wrong else 0


def as_json(result: Result) -> dict[str, Any]:
    faster = result.faster_peer
    ratios = {kind: asdict(result.ratio(kind, faster)) for kind in (OURS, LEDGER)}
    medians = {kind: result.median(kind) for kind in result.tokens_per_s}
    return asdict(result) | {"median_tokens_per_s": medians, "faster_peer": faster, "ratio_to_it": ratios}


def accelerate_of(python: str | None) -> str | None:
    """The version of accelerate in that environment; None where it has none."""
    if python is None:
        return version("accelerate") if find_spec("accelerate") else None
    code = "from importlib.metadata import version; print(version('accelerate'))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60)
    return done.stdout.strip() if done.returncode == 0 else None


if __name__ == "__main__":
    sys.exit(main())
