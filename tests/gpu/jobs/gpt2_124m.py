"""Job d: GPT-2 124M, 16 x 1024, bf16: eager, compiled, with the fused GELU, and the fastest configuration.

The reckoned steps follow from the kernels of the compiled step that was profiled on an H200 on 2026-11-26, 38.1 of
39.4 ms, whose attention took a mask: 5.4 ms less for causal attention (as the eager profile has it), 0.9 ms less
without the gradient of the logits. With weights in bf16, 3 ms less for norms, casts and AdamW; and 32 rows a step.
"""

from __future__ import annotations

from tests.gpu.jobs.studies import Goal, Study, add_comparisons, add_figures, attempt, run_scenario
from tests.gpu.lease.place import Place

BLOCKS = 5
# This trainer reached 411,000 tokens/s and 35 % on 2026-11-26, in two blocks. Of the A100 as both projects publish it.
GOAL = Goal(411_000, 50, "over 411,000 (A100: nanoGPT 136,000, llm.c 218,000)")
RECKONED_MS = {"compiled": 33.0, "compiled-gelu": 33.0, "fastest": 58.0}


def run(place: Place) -> None:
    study = run_scenario(place, "gpt2-124m")
    if study is not None:
        with attempt(place, "speeds"):
            add_figures(place, study, BLOCKS, dict.fromkeys(RECKONED_MS, GOAL))
        with attempt(place, "steps"):
            _add_steps(place, study)
        with attempt(place, "verdicts"):
            add_comparisons(place, study)


def _add_steps(place: Place, study: Study) -> None:
    """Record the time of a step beside the reckoned one, and the clock, which the power limit lowers."""
    for name, reckoned in RECKONED_MS.items():
        step = study.arms[name]["step_ms"] if name in study.arms else None
        if step is not None:
            asked = f"{reckoned:g} ms reckoned"
            place.add(f"{name}: step", step["median"], "ms", low=step["ci_low"], high=step["ci_high"], asked=asked)
    for device in study.summary.get("devices", []):
        if device["sm_clock_mhz"] is not None:
            place.add(f"{device['arm']}: SM clock", device["sm_clock_mhz"], "MHz", asked="1,980 without a power limit")
