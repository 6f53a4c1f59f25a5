"""Tokens per second of our trainer beside transformers' Trainer and a loop like nanoGPT's, interleaved in one run.

    python -m tests.benchmarks.training_peers --out DIR [--model NAME ...] [--rounds N] [--precision fp32|bf16]
        [--threads N] [--peers PYTHON] [--fused-gelu]

The same model from the same seed, the same batches (their first losses must agree to rounding), precision, optimizer
and number of threads. Each contestant (tests/benchmarks/peer_loops.py) has a process of its own that lives through all
rounds; between its slices it is suspended with all it started. A round gives each one slice, there and back again
(ABBA). Printed and written to DIR/README.md and DIR/table.json: medians of a slice's tokens per second, and the ratio
of ours to each other one of the same round, with a bootstrap interval (harness/explain/statistics.py).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from harness.explain.statistics import Estimate, from_blocks
from harness.machine.environment import record_environment
from tests.benchmarks.peer_loops import FUSED, LEDGER, NANOGPT, OURS, TRANSFORMERS
from tests.benchmarks.peer_process import Contestant
from trainer.config import TrainerConfig
from trainer.data.loader import open_batches
from trainer.data.prepare import prepare
from trainer.files import write_text

WARMUP = 10  # steps before the first slice, whose losses are compared
AGREE = 1e-5  # relative: the first losses of all contestants
TITLES = {
    OURS: "this trainer, ledger off",
    LEDGER: "this trainer, ledger on",
    FUSED: "this trainer, ledger off, model.fused_gelu",
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
            model = config.model.model_copy(update={"fused_gelu": True if kind == FUSED else None})
            one = Contestant(kind, python, config.model_copy(update={"model": model}), folder)
            living.callback(one.kill)
            one.wait_ready()
            contestants.append(one)
            print(f"{name}: {kind} is ready", file=sys.stderr, flush=True)
        for number in range(rounds):
            for one in contestants if number % 2 == 0 else reversed(contestants):
                one.slice(number, case.warmup, case.steps)
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
    for kind in (one for one in (OURS, LEDGER, FUSED) if one in result.tokens_per_s):
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
    parser.add_argument("--fused-gelu", action="store_true", help="one more row: this trainer with model.fused_gelu")
    parser.add_argument("--peers", metavar="PYTHON", help="of an environment with accelerate, where this one has none")
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the contestants, which are suspended
    if arguments.rounds < 3:
        parser.error("--rounds: 3 at least, or there is no interval")
    pythons = dict.fromkeys((OURS, LEDGER, NANOGPT), sys.executable)
    if arguments.fused_gelu:
        pythons[FUSED] = sys.executable
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
        "cpu": record_environment()["cpu"],
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
    ratios = {kind: asdict(result.ratio(kind, faster)) for kind in result.tokens_per_s if kind not in PEERS}
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
