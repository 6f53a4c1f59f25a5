"""Random pipelines on the emulated device: each as arms of a scenario, and as a truth for the oracle."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.warmup import until_used_up

EDITS = ("tokenize=0", "tokenize=0.5x", "tokenize=2x", "device=2x", "device=0.5x", "workers", "prefetch", "sync=off")
STEPS = 40
WARMUP = 3
NAME = "known-truth-emulated"


@dataclass(frozen=True)
class Pipeline:
    """Milliseconds per batch (stages) and per step (host, kernels), with the jitter of stages and of kernels."""

    read: float
    tokenize: float
    pack: float
    transfer: float
    jitter: float
    workers: int
    prefetch: int
    host: dict[str, float]
    kernels: dict[str, float]
    device_jitter: float
    check_finite: bool
    log_every: int
    speed: float = 1.0

    @property
    def warmup_steps(self) -> int:
        """Before the measured steps, and before as many as lie ready at most that a repetition begins with."""
        making_ms = (self.read + self.tokenize + self.pack + self.transfer) / max(1, self.workers)
        consuming_ms = max(sum(self.host.values()), sum(self.kernels.values()) / self.speed)
        ready = self.workers * self.prefetch + 1
        return until_used_up(making_ms, consuming_ms, ready, least=WARMUP) if self.workers else WARMUP

    def config(self) -> dict[str, Any]:
        """What the arm lays over the base of :func:`scenario`."""
        stages = {f"{stage}_ms": getattr(self, stage) for stage in ("read", "tokenize", "pack", "transfer")}
        host = {f"{phase}_ms": cost for phase, cost in self.host.items() if phase != "sync" or self.check_finite}
        return {
            "data.workers": self.workers,
            "data.prefetch": self.prefetch,
            "data.inject": {**stages, "jitter": self.jitter, "how": "sleep"},
            "compute.check_finite": self.check_finite,
            "compute.inject": {**host, "how": "sleep"},
            "compute.device.speed": self.speed,
            "compute.device.jitter": self.device_jitter,
            "compute.device.kernels": {f"{name}_ms": cost for name, cost in self.kernels.items()},
            "log_every": self.log_every,
            "warmup_steps": self.warmup_steps,
        }

    def edited(self, edit: str) -> Pipeline:
        """The pipeline that ``edit`` (of ``harness whatif``) makes of this one."""
        key, value = edit.split("=")
        if key == "tokenize":
            return replace(self, tokenize=self.tokenize * float(value.removesuffix("x")))
        if key == "device":
            return replace(self, speed=self.speed * float(value.removesuffix("x")))
        if key == "sync":
            host = {phase: cost for phase, cost in self.host.items() if phase != "sync"}
            return replace(self, check_finite=False, host={**host, "sync": 0.0})
        return replace(self, **{key: int(value)})


def draw(seed: int) -> tuple[Pipeline, str]:
    """A pipeline and an edit of it. Steps last 10 to 50 ms, data work from a tenth of that to twice as much."""
    r = random.Random(seed)
    device_ms = r.uniform(8, 30)
    shares = {"h2d": 0.01, "forward": 0.25, "backward": 0.5, "norm": 0.04, "optimizer": r.uniform(0.05, 0.6)}
    whole = sum(shares.values())
    kernels = {name: round(device_ms * share / whole, 2) for name, share in shares.items()}
    workers = r.choice((0, 0, 1, 1, 2, 3, 4))
    work_ms = device_ms * r.choice((0.1, 0.3, 0.6, 1.0, 1.5, 2.0)) * max(1, workers) ** r.choice((0, 1))
    parts = [r.uniform(0.05, 0.3), r.uniform(0.4, 1), r.uniform(0.05, 0.3)]
    read, tokenize, pack = (round(work_ms * part / sum(parts), 2) for part in parts)
    pipeline = Pipeline(
        read=read,
        tokenize=tokenize,
        pack=pack,
        transfer=r.choice((0.0, 0.0, round(0.1 * work_ms, 2))),
        jitter=r.choice((0.0, 0.1, 0.3)),
        workers=workers,
        prefetch=r.choice((1, 2, 3)),
        host={"forward": round(r.uniform(0, 2), 2), "backward": round(r.uniform(0, 2), 2),
              "optimizer": round(r.uniform(0, 1), 2), "sync": 0.0, "other": r.choice((0.0, 0.5))},
        kernels=kernels,
        device_jitter=r.choice((0.0, 0.05, 0.1)),
        check_finite=r.random() < 0.7,
        log_every=r.choice((5, 10, 1000)),
    )  # fmt: skip
    edit = r.choice(EDITS)
    if edit == "workers":
        edit = f"workers={r.choice([n for n in (0, 1, 2, 4) if n != workers])}"
    elif edit == "prefetch":
        edit = f"prefetch={r.choice([n for n in (1, 2, 4) if n != pipeline.prefetch])}"
    if edit == "sync=off" and not pipeline.check_finite:
        edit = "device=2x"
    return pipeline, edit


def scenario(seeds: list[int], repeats: int, steps: int = STEPS) -> dict[str, Any]:
    """One scenario with two arms per pipeline, the second edited; ``steps`` measured ones of each run."""
    arms, compare = {}, []
    for seed in seeds:
        pipeline, edit = draw(seed)
        arms[f"p{seed}"] = pipeline.config()
        arms[f"p{seed}-edited"] = pipeline.edited(edit).config()
        compare.append({"baseline": f"p{seed}", "candidate": f"p{seed}-edited"})
    return {
        "name": NAME,
        "question": "Does the harness find what random pipelines on an emulated device declare?",
        "base": {
            "data": {"sequence_length": 64, "batch_size": 2, "replay": True},
            "compute.device.emulated": "gh200",
            "compute.sync": "norm",
            "steps": steps,
        },
        "arms": arms,
        "controls": ["a-a"],
        "compare": compare,
        "repeats": repeats,
        "interleave": "runs",  # suspended, workers that sleep would each have a batch more when the run goes on
    }
