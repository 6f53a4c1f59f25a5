"""Job d: GPT-2 124M, 16 x 1024, bf16: eager, compiled, with the fused GELU, and the fastest configuration."""

from __future__ import annotations

from tests.gpu.jobs.studies import Goal, add_comparisons, add_figures, attempt, run_scenario
from tests.gpu.lease.place import Place

BLOCKS = 5
# This trainer reached 411,000 tokens/s and 35 % on 2026-11-26, in two blocks. Of the A100 as both projects publish it.
GOAL = Goal(411_000, 50, "over 411,000 (A100: nanoGPT 136,000, llm.c 218,000)")


def run(place: Place) -> None:
    study = run_scenario(place, "gpt2-124m")
    if study is not None:
        with attempt(place, "speeds"):
            add_figures(place, study, BLOCKS, dict.fromkeys(("compiled", "compiled-gelu", "fastest"), GOAL))
        with attempt(place, "verdicts"):
            add_comparisons(place, study)
