"""Names under which our phases and stages stand in a profile of torch.profiler, beside its own marks."""

from __future__ import annotations

PHASE = "phase: "  # + a name of trainer.telemetry.PHASES, on the main thread
STAGE = "stage: "  # + a name of trainer.telemetry.STAGES, in a loader worker or inline
STEP = "ProfilerStep#"  # torch's own, + its count of the profiler's steps
