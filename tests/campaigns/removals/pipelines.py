"""Random pipelines and what is taken out of them: each as the arms of a scenario that is really run."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.warmup import until_used_up

# Workers that started together stay in step: their batches come in bursts of one each. A window of a whole number of
# bursts, whatever the number of workers (0 to 4), holds the same number of waits wherever it begins. With 40 steps
# three workers' windows differed by a burst, 7 % of the time.
STEPS = 60
# Where making batches takes longer than the rest of a step, those that lie ready as the loop begins hide that until
# they are used up. How many lie there is a race of processes that start, which the recording of another run does not
# know: Pipeline.warmup_steps.
WARMUP = 40
NAME = "removals"
REMOVED = 3  # parts taken out of each pipeline, one arm each
DEEP = 1000  # places in a queue that never fills up
NEVER = 100_000  # steps between two lines of the log
STAGES = ("read", "tokenize", "pack")
Part = tuple[str, str]  # kind and name, as in harness.explain.replay.attribution


@dataclass(frozen=True)
class Pipeline:
    """Milliseconds per batch (stages) and per step (host, kernels); without ``kernels`` the device is synchronous."""

    stages: dict[str, float]
    transfer: float
    jitter: float
    workers: int
    prefetch: int
    host: dict[str, float]
    kernels: dict[str, float]
    check_finite: bool
    queue_depth: int
    log_every: int

    @property
    def warmup_steps(self) -> int:
        """At the upper limit at most 13 batches remain of those of 460 steps, 2.8 %."""
        if not self.workers:
            return WARMUP  # every batch is made as it is asked for
        making_ms = (sum(self.stages.values()) + self.transfer) / self.workers
        consuming_ms = max(sum(self.host.values()), sum(self.kernels.values()))
        return until_used_up(making_ms, consuming_ms, self.workers * self.prefetch + 1, least=WARMUP)

    def config(self) -> dict[str, Any]:
        """What the arm lays over the base of :func:`scenario`."""
        stages = {f"{stage}_ms": cost for stage, cost in self.stages.items()}
        found: dict[str, Any] = {
            "data.workers": self.workers,
            "data.prefetch": self.prefetch,
            "data.inject": {**stages, "transfer_ms": self.transfer, "jitter": self.jitter, "how": "sleep"},
            "compute.inject": {**{f"{phase}_ms": cost for phase, cost in self.host.items()}, "how": "sleep"},
            "log_every": self.log_every,
            "warmup_steps": self.warmup_steps,
        }
        if not self.kernels:
            return {**found, "compute.work": "none"}
        return {
            **found,
            "compute.check_finite": self.check_finite,
            "compute.sync": "norm",
            "compute.device": {
                "emulated": "gh200",
                "queue_depth": self.queue_depth,
                "kernels": {f"{name}_ms": cost for name, cost in self.kernels.items()},
            },
        }

    def parts(self) -> dict[Part, Pipeline]:
        """Everything that can be taken out, and the pipeline without it."""
        nothing = dict.fromkeys(STAGES, 0.0)
        found: dict[Part, Pipeline] = {
            ("stage", stage): replace(self, stages={**self.stages, stage: 0.0}) for stage in STAGES
        }
        found["cause", "data"] = replace(self, stages=nothing, transfer=0.0, workers=0)
        for phase, cost in self.host.items():
            if cost and phase != "sync":
                found["phase", phase] = replace(self, host={**self.host, phase: 0.0})
        for kernel in self.kernels:
            found["kernel", kernel] = replace(self, kernels={**self.kernels, kernel: 0.0})
        if self.kernels and self.check_finite:
            found["cause", "sync"] = replace(self, check_finite=False)
        if self.kernels and self.queue_depth < DEEP:
            found["cause", "queue limit"] = replace(self, queue_depth=DEEP)
        if self.kernels and self.log_every < NEVER:
            found["phase", "log"] = replace(self, log_every=NEVER)
        return found


def draw(seed: int) -> tuple[Pipeline, dict[Part, Pipeline]]:
    """A pipeline, and :data:`REMOVED` variants of it without a part each, a stage always among them.

    Compute takes 12 to 30 ms; data work from a tenth of what the workers manage meanwhile to twice that; one stage
    takes most of it, at the front, in the middle or behind.
    """
    r = random.Random(seed)
    asynchronous = seed % 2 == 1
    workers = r.choice((0, 1, 2, 2, 3, 4))
    compute_ms = r.uniform(12, 30)
    work_ms = compute_ms * r.choice((0.1, 0.4, 0.8, 1.1, 1.5, 2.0)) * max(1, workers)
    weights = {stage: r.uniform(0.05, 0.3) for stage in STAGES} | {r.choice(STAGES): 1.0}
    stages = {stage: round(work_ms * weight / sum(weights.values()), 2) for stage, weight in weights.items()}
    shares = {"h2d": 0.01, "forward": 0.25, "backward": 0.5, "norm": 0.04, "optimizer": r.uniform(0.05, 0.8)}
    if asynchronous:
        launching = r.choice((0.5, 0.5, 1.5, 6.0))  # the last one: the host is the critical path
        host = {"forward": launching, "backward": launching, "optimizer": round(launching / 2, 2)}
        kernels = {name: round(compute_ms * share / sum(shares.values()), 2) for name, share in shares.items()}
    else:
        host = {"forward": round(0.3 * compute_ms, 2), "backward": round(0.5 * compute_ms, 2)}
        host |= {"optimizer": round(0.2 * compute_ms, 2), "other": r.choice((0.0, 1.0))}
        kernels = {}
    pipeline = Pipeline(
        stages=stages,
        transfer=r.choice((0.0, round(r.uniform(1, 5), 1))),
        jitter=r.choice((0.0, 0.1, 0.2)),
        workers=workers,
        prefetch=r.choice((1, 2, 3)),
        host=host,
        kernels=kernels,
        check_finite=r.random() < 0.6,
        queue_depth=r.choice((DEEP, DEEP, 4)),
        log_every=r.choice((5, NEVER)),
    )
    possible = pipeline.parts()
    first = r.choice([("stage", stage) for stage in STAGES])
    others = r.sample([part for part in possible if part != first], REMOVED - 1)
    return pipeline, {part: possible[part] for part in (first, *others)}


def arm(seed: int, part: Part | None = None) -> str:
    """The name of a pipeline's arm, without that part."""
    return f"p{seed}" if part is None else f"p{seed}-{'-'.join(part).replace(' ', '-')}"


def scenario(seeds: list[int]) -> dict[str, Any]:
    """One scenario with all arms of these pipelines."""
    arms, compare = {}, []
    for seed in seeds:
        pipeline, without = draw(seed)
        arms[arm(seed)] = pipeline.config()
        for part, fewer in without.items():
            arms[arm(seed, part)] = fewer.config()
            compare.append({"baseline": arm(seed), "candidate": arm(seed, part)})
    return {
        "name": NAME,
        "question": "Does removing a part save what the replay of the whole said?",
        "base": {
            "data": {"sequence_length": 64, "batch_size": 2, "replay": True},
            "steps": STEPS,
        },
        "arms": arms,
        "controls": [],
        "compare": compare,
        "repeats": 1,
        "interleave": "runs",  # suspended, workers that sleep would each have a batch more when the run goes on
    }
