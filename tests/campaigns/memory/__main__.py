"""``python -m tests.campaigns memory --out FOLDER``.

Peak memory of real training on this CPU beside the arithmetic's range.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.config import TrainerConfig
from trainer.devices.estimates import footprint
from trainer.model import shape_of

MIB = 2**20
LIMIT_S = 540
# Model, batch_size, sequence_length: one whose parameters weigh most, one whose activations do, one in between.
SHAPES: dict[str, tuple[dict[str, Any], int, int]] = {
    "gpt2-small": ({"preset": "gpt2-small"}, 1, 128),
    "llama, 8 layers of 512": (
        {"preset": "llama-tiny", "layers": 8, "width": 512, "heads": 8, "kv_heads": 4, "vocab_size": 4096}, 8, 256,
    ),
    "distilbert": ({"preset": "distilbert"}, 8, 128),
}  # fmt: skip


# What the reader must know of the high end.
FITTED = (
    "The high end was widened after measurements like these: by both gradients of a tied embedding (gpt2-small lay "
    "above it),\nand by 30 % for what an allocator holds (llama, computed again, lay above it). So these rows test the "
    "low end and the parts, not that factor."
)


@dataclass(frozen=True)
class Row:
    """One shape, with activations kept or computed again. All in bytes."""

    shape: str
    checkpointing: bool
    batch_size: int
    sequence_length: int
    parameters: int
    lasting_bytes: int
    gradient_bytes: int
    activations_low_bytes: int
    activations_high_bytes: int
    low_bytes: int
    high_bytes: int
    measured_bytes: int

    @property
    def within(self) -> bool:
        return self.low_bytes <= self.measured_bytes <= self.high_bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for README.md and table.json")
    parser.add_argument(
        "--arithmetic", action="store_true", help="measure nothing: what is measured in table.json holds"
    )
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    known = json.loads((arguments.out / "table.json").read_text()) if arguments.arithmetic else []
    measured = {(one["shape"], one["checkpointing"]): one["measured_bytes"] for one in known}
    rows = []
    for name in SHAPES:
        for checkpointing in (False, True):
            rows.append(row(name, checkpointing, measured.get((name, checkpointing))))
            print(rows[-1], flush=True)
    (arguments.out / "table.json").write_text(json.dumps([asdict(one) for one in rows], indent=1) + "\n")
    (arguments.out / "README.md").write_text(page(rows))
    print(page(rows))
    return 0 if all(one.within for one in rows) else 1


def config_of(name: str, checkpointing: bool) -> TrainerConfig:
    model, batch_size, length = SHAPES[name]
    return TrainerConfig.model_validate(
        {
            "model": model | {"activation_checkpointing": checkpointing},
            "data": {"batch_size": batch_size, "sequence_length": length},
            "compute": {"device": "cpu", "threads": 1},
        }
    )


def row(name: str, checkpointing: bool, measured_bytes: int | None) -> Row:
    """The arithmetic's figures beside what is measured, in a process of its own, or was."""
    config = config_of(name, checkpointing)
    shape = shape_of(config.model, 0, config.data.sequence_length)
    assert shape is not None
    need = footprint(config, shape)
    return Row(
        shape=name,
        checkpointing=checkpointing,
        batch_size=config.data.batch_size,
        sequence_length=config.data.sequence_length,
        parameters=need.parameters,
        lasting_bytes=need.lasting_bytes,
        gradient_bytes=need.weight_bytes,
        activations_low_bytes=need.activations.low_bytes,
        activations_high_bytes=need.activations.high_bytes,
        low_bytes=need.peak.low_bytes,
        high_bytes=need.peak.high_bytes,
        measured_bytes=measure(config) if measured_bytes is None else measured_bytes,
    )


def measure(config: TrainerConfig) -> int:
    """In a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.campaigns.memory.peak"],
        input=config.model_dump_json(), capture_output=True, text=True, timeout=LIMIT_S, check=True,
    )  # fmt: skip
    return int(done.stdout.split()[-1])


def page(rows: list[Row]) -> str:
    lines = [
        "# Peak memory of training beside the arithmetic",
        "",
        f"By `python -m tests.campaigns memory --out results/reference/peak-memory` on a CPU, torch "
        f"{torch.__version__}, fp32, one thread; not run on a GPU.",
        "MiB: *measured* is the peak of the process's resident memory in two steps, above what it had before the "
        "model was built; *arithmetic* is",
        "`trainer/devices/estimates.py`: weights and two moments, then the larger of gradients and activations (low) "
        "or both (high).",
        "",
        "| shape | batch x length | activations | weights + moments | gradients | activations low to high "
        "| arithmetic | measured | within |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        cells = [
            one.shape,
            f"{one.batch_size} x {one.sequence_length}",
            "computed again" if one.checkpointing else "kept",
            mib(one.lasting_bytes),
            mib(one.gradient_bytes),
            f"{mib(one.activations_low_bytes)} to {mib(one.activations_high_bytes)}",
            f"{mib(one.low_bytes)} to {mib(one.high_bytes)}",
            mib(one.measured_bytes),
            "yes" if one.within else "**no**",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    inside = sum(one.within for one in rows)
    return "\n".join([*lines, "", f"{inside} of {len(rows)} lie within the range.", "", FITTED, ""])


def mib(size_bytes: int) -> str:
    return f"{size_bytes / MIB:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
