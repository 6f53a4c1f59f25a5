"""``python -m tests.campaigns soak --out FOLDER [--steps N] [--workers N]``.

Memory and disk of ``harness exec`` over a long training, read every few seconds while it runs, and of its study.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.study.contract import RAW
from harness.study.store import StudyFolder

EVERY_S = 10.0
MIB = 2**20
PROGRAM = """
import sys, torch
from torch.utils.data import DataLoader, TensorDataset

torch.set_num_threads(1)
steps, workers = int(sys.argv[1]), int(sys.argv[2])
model = torch.nn.Linear(16, 16)
optimizer = torch.optim.SGD(model.parameters(), 1e-3)
data = TensorDataset(torch.randn(40_000, 16))
done = 0
while done < steps:
    for (batch,) in DataLoader(data, batch_size=4, num_workers=workers):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        done += 1
        if done == steps:
            break
"""


@dataclass(frozen=True)
class Reading:
    """Memory (proportional set size) and disk, ``at_s`` seconds after the start."""

    at_s: float
    launcher_bytes: int
    program_bytes: int  # with its loader workers
    record_bytes: int


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=0)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="harness-soak-") as name:
        readings, study = soak(Path(name), arguments.steps, arguments.workers)
        page = report(readings, study, arguments.steps, arguments.workers)
    (arguments.out / "table.json").write_text(json.dumps([asdict(one) for one in readings], indent=1) + "\n")
    (arguments.out / "README.md").write_text(page)
    print(page)
    return 0


def soak(folder: Path, steps: int, workers: int) -> tuple[list[Reading], StudyFolder]:
    """Run the program to its end, and read memory and disk meanwhile."""
    program = folder / "train.py"
    program.write_text(PROGRAM)
    words = ["exec", "--out", str(folder / "out"), "--", sys.executable, str(program), str(steps), str(workers)]
    readings = []
    begun_s = time.monotonic()
    with subprocess.Popen([sys.executable, "-m", "harness", *words], stdout=subprocess.DEVNULL) as launcher:
        while launcher.poll() is None:
            time.sleep(EVERY_S)
            raw = next((folder / "out").glob(f"exec/*/{RAW}"), None)
            children = descendants(launcher.pid)
            if raw is not None and children:
                size = sum(path.stat().st_size for path in raw.iterdir())
                memory = [pss_bytes(launcher.pid), sum(map(pss_bytes, children))]
                readings.append(Reading(time.monotonic() - begun_s, *memory, size))
                print(readings[-1], flush=True)
    assert launcher.returncode == 0
    return readings, StudyFolder(next((folder / "out").glob("exec/*")))


def descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split() if Path(f"/proc/{pid}").exists() else []
    return [one for child in map(int, children) for one in (child, *descendants(child))]


def pss_bytes(pid: int) -> int:
    """Proportional set size of a process; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def report(readings: list[Reading], study: StudyFolder, steps: int, workers: int) -> str:
    """A page: memory and disk at five moments, and what became of the study."""
    record = study.read_study()
    size = sum(path.stat().st_size for path in study.path.rglob("*") if path.is_file())
    shown = [readings[round(part * (len(readings) - 1) / 4)] for part in range(5)]
    rows = [
        f"| {one.at_s:,.0f} | {one.launcher_bytes / MIB:.0f} | {one.program_bytes / MIB:.0f} | "
        f"{one.record_bytes / MIB:.1f} |"
        for one in shown
    ]
    lines = [
        f"# {steps:,} steps under `harness exec`, {workers} loader workers",
        "",
        "| seconds | launcher MiB | program MiB | record MiB |",
        "| ---: | ---: | ---: | ---: |",
        *rows,
        "",
        f"At most: record {max(one.record_bytes for one in readings) / MIB:.1f} MiB, launcher "
        f"{max(one.launcher_bytes for one in readings) / MIB:.0f} MiB.",
        f"Study: {record.status}, {size / MIB:.1f} MiB.",
        *record.notes,
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
