"""What the measurements share: programs with one stage of their data slower, and ``harness exec`` around them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from harness.study.store import StudyFolder

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAMS = ("plain_loop", "hf_trainer_loop", "lightning_loop")
SLOW_MEMMAP = HERE / "slow_memmap"  # imported by nanoGPT's train.py
NANOGPT = "nanoGPT train.py"
_NANOGPT_SETTINGS = (
    "--device=cpu --compile=False --eval_iters=1 --eval_interval=100000 --log_interval=1000 --block_size=64 "
    "--batch_size=4 --gradient_accumulation_steps=1 --n_layer=2 --n_head=2 --n_embd=64 --dropout=0.0 --dataset=numbers "
    "--always_save_checkpoint=False"
)
INJECTED_MS = 8.0


def words_of(program: str, workers: int, steps: int) -> list[str]:
    """The script and its arguments, of one of ours."""
    return [str(HERE / "programs" / f"{program}.py"), str(workers), str(steps)]


def words_of_nanogpt(steps: int) -> list[str]:
    """The same in the folder of :func:`copy_nanogpt`."""
    return ["train.py", *_NANOGPT_SETTINGS.split(), f"--max_iters={steps}"]


def copy_nanogpt(clone: Path, work: Path) -> Path:
    """A copy of it in ``work``, with data of random ids."""
    folder = work / "nanogpt"
    shutil.copytree(clone, folder, ignore=shutil.ignore_patterns(".git"))
    data = folder / "data" / "numbers"
    data.mkdir(parents=True)
    for part in ("train", "val"):
        np.random.default_rng(0).integers(0, 255, 100_000, dtype=np.uint16).tofile(data / f"{part}.bin")
    return folder


def environment(stage: str | None, slow_ms: float, log: Path, *imported: Path | None) -> dict[str, str]:
    """Of a program whose ``stage`` is slower (slow_data.py); ``imported``: folders that it imports from first."""
    path = [*(str(folder) for folder in imported if folder), *filter(None, [os.environ.get("PYTHONPATH")])]
    slow = f"{stage}={slow_ms:g}" if stage else ""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "SLOW": slow, "SLOW_LOG": str(log)}


def harness_exec(
    out: Path, options: Sequence[str], program: Sequence[str], variables: dict[str, str], folder: Path | None = None
) -> str:
    """What ``harness exec`` prints of ``program``, started in ``folder``; ends this process where it fails."""
    words = [sys.executable, "-m", "harness", "exec", "--out", str(out), *options, "--", *program]
    done = subprocess.run(words, cwd=folder, env=variables, capture_output=True, text=True, timeout=1800)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def only_study(out: Path) -> StudyFolder:
    (path,) = (out / "exec").iterdir()
    return StudyFolder(path)
