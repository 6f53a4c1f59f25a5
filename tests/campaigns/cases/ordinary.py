"""Trainings that nothing in particular slows: each finding of 5 % or more is judged by hand, in this table."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
# Kinds that claim no cause, and the wait for a core, which the busy machine of a measurement causes.
NEUTRAL = {
    "compute-bound": "the model takes the step",
    "unknown": "names no cause",
    "cores too few": "other processes had the cores",
}


@dataclass(frozen=True)
class Ordinary:
    """``words``: script and arguments. ``true``: findings that are true, by kind: the largest share, and the reason."""

    words: Sequence[str]
    true: Mapping[str, tuple[float, str]] = field(default_factory=dict)
    command: Sequence[str] = (sys.executable,)

    def verdict(self, kind: str, share: float) -> str:
        """Return why a finding of this share of a step is true, or "" where it is false."""
        most, reason = self.true.get(kind, (1.0, NEUTRAL.get(kind, "")))
        return reason if share <= most else ""


def _script(name: str, *words: str) -> Ordinary:
    return Ordinary((str(HERE / "scripts" / name), *words))


TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
TOKENIZED = {"input-bound": (0.25, "each batch is tokenized as it is made")}
EVALUATED = {"evaluation-bound": (0.1, "25 batches after each 100 steps: 6.6 % of the CPU time")}
FIXED = {  # true findings of cases that are fixed
    "buffer": {"input-bound": (0.2, "rows are still decoded one by one, 180 of them for 20 batches")},
    "logits": {"evaluation-bound": (0.35, "the evaluation without the logits that were kept")},
    "inmemory": {"input-bound": (0.45, "taking 4,096 rows by index: 2.8 of 7.0 ms of CPU time")},
    "objects": {"input-bound": (0.3, "tensors still come from a loader worker: 1 ms for a batch")},
    "staggered": {"garbage collection": (0.9, "both ranks still collect, now in the same steps")},
    "padding": {"padding": (0.3, "batches of 4 rows of 12 to 40 tokens: a quarter of the positions is padding")},
}
SCRIPTS: dict[str, Ordinary] = {
    "plain loop": _script("loop.py"),
    "plain loop, 1 worker": _script("loop.py", "--workers", "1"),
    "plain loop, 2 workers": _script("loop.py", "--workers", "2"),
    "plain loop, 4 workers": _script("loop.py", "--workers", "4"),
    "iterable dataset": _script("loop.py", "--iterable"),
    "iterable dataset, 2 workers": _script("loop.py", "--iterable", "--workers", "2"),
    "gradient accumulation": _script("loop.py", "--accumulate", "4"),
    "autocast to bfloat16": _script("loop.py", "--amp"),
    "torch.compile, eager": _script("loop.py", "--compile"),
    "LoRA": _script("loop.py", "--lora"),
    "learning-rate schedule": _script("loop.py", "--schedule"),
    "nanoGPT's train.py": _script("gpt.py"),
    "run_clm with Trainer": _script("clm.py"),
    "run_clm with Trainer, 2 workers": _script("clm.py", "2"),
    "Lightning": _script("fit.py"),
    "accelerate": Ordinary((str(HERE / "scripts" / "accelerated.py"),), EVALUATED),
    "torchrun, 2 ranks": Ordinary((str(HERE / "scripts" / "ranks.py"),), command=TORCHRUN),
    "examples/nanogpt_style.py": Ordinary((str(EXAMPLES / "nanogpt_style.py"), "--steps", "150")),
    "examples/plain.py": Ordinary((str(EXAMPLES / "plain.py"), "--steps", "150"), TOKENIZED),
    "examples/plain.py, 2 workers": Ordinary(
        (str(EXAMPLES / "plain.py"), "--steps", "150", "--workers", "2"), TOKENIZED
    ),
}


def scripts(shared: Path | None) -> dict[str, Ordinary]:
    """Return the table, with fixed.py of each case of ``shared``."""
    found = dict(SCRIPTS)
    for path in sorted(shared.resolve().glob("*/fixed.py")) if shared else ():
        found[f"cases/{path.parent.name}/fixed.py"] = Ordinary((str(path),), FIXED.get(path.parent.name, {}))
    return found
