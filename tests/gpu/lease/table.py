"""Lists the jobs in order of value. Seconds are of an H200 with 16 cores."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Job:
    """One measurement, run in a process of its own by ``tests.gpu.lease.job``."""

    name: str
    """Folder of its result; its module is ``tests.gpu.jobs.NAME`` with ``_`` for ``-``."""
    question: str
    seconds: int
    """Expected wall time; the process is killed after half as much again."""
    memory_gib: int = 8
    """Device memory that it needs."""

    @property
    def module(self) -> str:
        return f"tests.gpu.jobs.{self.name.replace('-', '_')}"

    @property
    def limit_s(self) -> float:
        return 1.5 * self.seconds


JOBS = (
    Job("gpu-tests", "Do all tests under tests/gpu pass?", 125),
    Job("known-truth", "Are step, exposed, idle, ceiling and removal right for 12 injected pipelines?", 145, 70),
    Job("exec-faults", "Does exec name the fault of 8 slow CUDA programs, and its saving?", 180, 40),
    Job("gpt2-124m", "How fast is GPT-2 124M eager, compiled, and with the fused GELU?", 120, 90),
    Job("founding-1b", "Does pretokenizing buy anything at 1 billion parameters?", 150, 130),
    Job("founding-8b", "The same at 8 billion parameters", 500, 72),
    Job("crossover", "At which model and batch size does tokenizing begin to cost?", 200, 60),
    Job("probe-cost", "What does each probe cost on a card?", 120),
)
