"""Defines twelve pipelines with a declared data cost, for a real device or an emulated one, as arms of a scenario.

Two models say what a step is bound by. ``launch``: twelve narrow layers, whose kernels are done as soon as the host has
launched them. ``device``: two wide layers, which the host has launched long before they are done.

The truth about a pipeline comes from other arms: the same without any data cost (``none``), the same with one edit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

NAME = "known-truth-device"
TURNS = 4  # there and back again: a drift of the machine's speed cancels
SLICE_STEPS = 16  # measured steps of a turn: whole bursts of up to four workers' batches
WARMUP = 8
TWIN = "twin-"  # begins the name of an arm that is the same as another
SLEEP, BUSY = "sleep", "busy"
DEEP = 1000  # steps between two lines of the log
# One batch of real text, again and again.
DATA: dict[str, Any] = {
    "corpus": {"builtin": "python-docs", "documents": 50},
    "tokenizer": {"train": {"kind": "bpe", "vocab_size": 512}},
    "sequence_length": 64,
    "batch_size": 2,
    "replay": True,
}
_COMMON: dict[str, Any] = {
    "model.preset": "gpt2-small",
    "model.vocab_size": 512,
    "data.pin_memory": True,
    "compute.device": "cuda",
    "compute.threads": 1,  # sixteen processes start at once
    "compute.precision": "fp32",
}
CUDA: dict[str, dict[str, Any]] = {
    "launch": {**_COMMON, "model.layers": 12, "model.width": 256, "model.heads": 4, "data.sequence_length": 128},
    # 157 million parameters: AdamW, which the host does not wait for with ``sync: norm``, is a tenth of the step.
    "device": {**_COMMON, "model.layers": 2, "model.width": 2560, "model.heads": 20, "data.sequence_length": 480},
}
EMULATED: dict[str, dict[str, Any]] = {
    "launch": {
        "compute.device": {
            "emulated": "gh200",
            "kernels": {"h2d_ms": 0.01, "forward_ms": 1.6, "backward_ms": 3.0, "norm_ms": 0.1, "optimizer_ms": 0.3},
            "launches": {"h2d": 1, "forward": 200, "backward": 380, "norm": 10, "optimizer": 45},
            "launch_us": 25,
            "launch_how": "sleep",
        }
    },
    "device": {
        "compute.device": {
            "emulated": "gh200",
            "kernels": {"h2d_ms": 0.01, "forward_ms": 6, "backward_ms": 12, "norm_ms": 1, "optimizer_ms": 2},
        }
    },
}


@dataclass(frozen=True)
class Pipeline:
    """Milliseconds per batch (stages) and per step (``other``, of the host)."""

    name: str
    bound: str
    """``launch`` or ``device``: the model."""
    stages: dict[str, float]
    how: str = SLEEP
    """Workers are ``busy``: one that sleeps would make a batch more while its run is suspended."""
    workers: int = 0
    sync: str = "late"
    other: float = 0.0
    edit: str = "tokenize=0"
    """As of ``harness whatif``."""

    @property
    def edited(self) -> str:
        """Name of the arm with the edit."""
        return f"{self.name}-edited"

    @property
    def none(self) -> str:
        """Name of the arm without data cost, which pipelines of the same compute share."""
        return f"none-{self.bound}-{self.sync}{'-other' if self.other else ''}"

    def arm(self, edit: str | None = None) -> dict[str, Any]:
        """Return the arm's keys over the base of :func:`scenario`; with ``edit``, those of the edited arm."""
        stages = {f"{stage}_ms": cost for stage, cost in self.stages.items()}
        found = {**self._compute(), "data.workers": self.workers, "data.inject": {**stages, "how": self.how}}
        if edit is None:
            return found
        key, value = edit.split("=")
        if key == "tokenize":
            return {**found, "data.inject": {**stages, "tokenize_ms": float(value), "how": self.how}}
        if key == "sync":
            return {**found, "compute.sync": value}
        return {**found, f"data.{key}": int(value)}

    def without_data(self) -> dict[str, Any]:
        """The arm that makes no batch, as the control ideal-data does."""
        return {**self._compute(), "data.workers": 0, "data.inject": None}

    def _compute(self) -> dict[str, Any]:
        return {"compute.sync": self.sync, "compute.inject": {"other_ms": self.other, "how": SLEEP}}


PIPELINES = (
    Pipeline("launch-inline", "launch", {"read": 2, "tokenize": 4}),
    Pipeline("launch-inline-busy", "launch", {"tokenize": 4, "pack": 2}, BUSY),
    Pipeline("launch-inline-norm", "launch", {"read": 1, "tokenize": 5}, sync="norm"),
    Pipeline("launch-fed", "launch", {"read": 2, "tokenize": 10}, BUSY, workers=2),
    Pipeline("launch-starved", "launch", {"read": 4, "tokenize": 36}, BUSY, workers=1, edit="workers=4"),
    Pipeline("device-inline", "device", {"read": 2, "tokenize": 4}),
    Pipeline("device-inline-long", "device", {"read": 6, "tokenize": 24}),
    Pipeline("device-inline-norm", "device", {"read": 2, "tokenize": 6}, sync="norm"),
    Pipeline("device-inline-sync", "device", {"read": 2, "tokenize": 6}, BUSY, sync="norm", edit="sync=late"),
    Pipeline("device-inline-other", "device", {"tokenize": 4, "pack": 1}, sync="norm", other=6.0),
    Pipeline("device-fed", "device", {"read": 2, "tokenize": 12}, BUSY, workers=2, sync="norm"),
    Pipeline("device-starved", "device", {"read": 4, "tokenize": 26}, BUSY, workers=1, sync="norm", edit="workers=4"),
)
FEW = tuple(one for one in PIPELINES if one.name in ("launch-inline", "device-inline-norm"))


def scenario(pipelines: Sequence[Pipeline], models: dict[str, dict[str, Any]], turns: int = TURNS) -> dict[str, Any]:
    """One scenario: of each pipeline itself, the edited one and the one without data, and of that once a twin."""
    arms: dict[str, dict[str, Any]] = {}
    for one in pipelines:
        own = {one.name: one.arm(), one.edited: one.arm(one.edit), one.none: one.without_data()}
        if not any(name.startswith(f"{TWIN}none-{one.bound}") for name in arms):
            own[TWIN + one.none] = own[one.none]
        arms |= {name: {**models[one.bound], **content} for name, content in own.items()}
    return {
        "name": NAME,
        "question": "Does the harness find what pipelines with a declared data cost lose on this device?",
        "base": {
            "data": DATA,
            "optimizer": {"learning_rate": 1e-5},
            "log_every": DEEP,
            "steps": turns * SLICE_STEPS,
            "warmup_steps": WARMUP,
        },
        "arms": arms,
        "compare": [],
        "repeats": 1,
        "interleave": "slices",
        "slice_steps": SLICE_STEPS,
        "probes": {"host": False, "nvml": False},
    }
