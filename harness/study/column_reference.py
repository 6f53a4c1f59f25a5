"""Describes each column of the contract's tables, for readers who use other tools.

``docs/generate.py`` builds a page of the documentation from it. A test checks that every column has a line here.
"""

from __future__ import annotations

from harness.study.contract import CAUSES, EVALUATION_COLUMNS, SAMPLE_COLUMNS, SPAN_COLUMNS, STAGES, STEP_COLUMNS

_STAGE = {
    "exposed": "what the step would not have lasted without {name}: its share in what a replay without data work "
    "saves. The stages sum to fetch_ns on a synchronous device. Beside an asynchronous one, where the host runs ahead, "
    "a step's figure may be owed to data of other steps: only sums and means over many steps say what data costs",
    "hidden": "time of {name} within training steps that cost the step nothing. Beside an asynchronous device an even "
    "share of what cost the steps together nothing",
    "work": "all time of {name} for the batches of this step, wherever it ran; of transfer only within waits",
    "during_wait": "of that, what ran while the step waited for that very batch. The stages sum to fetch_ns",
    "parallel": "of that, what ran while the step waited for another batch (beside an asynchronous device: that was "
    "idle)",
    "between_steps": "of that, what ran between training steps (beside an evaluation): neither waited for nor hidden",
}
_PHASE = {
    "fetch": "waiting for the next batch, or making it",
    "h2d": "launching its copies to the device",
    "forward": "forward pass; beside a CUDA device its launches",
    "backward": "backward pass; beside a CUDA device its launches",
    "optimizer": "gradient norm, clipping and update; beside a CUDA device their launches",
    "sync": "blocked on the device, where the trainer asks for a value",
    "log": "reading losses and writing the log",
    "checkpoint": "saving a checkpoint: copying the state, and what of the writing the step waits for; of several "
    "ranks also agreeing after each step whether minutes ask for one",
    "other": "what is left: the Python between the phases; of several ranks with `harness train --epochs`, or "
    "`--tokens` and a `data.source` of the user's, also agreeing how far they are (where "
    "minutes ask for checkpoints, in `checkpoint`)",
}
_STEPS = {
    "step": "number of the step, from 0",
    "turn": "repetition that the step belongs to: with interleave: slices arms alternate repetition by repetition",
    "warmup": "whether the step is left out of every figure (with `harness exec`, those at the beginning of a block "
    "are measured in the block before)",
    "start_ns": "when it began, CLOCK_MONOTONIC",
    "wall_ns": "how long it lasted; the phases sum to it exactly",
    "device_busy_ns": "how long the device worked; null where phases that the host was still launching leave it open",
    "device_starved_ns": "how long the device had nothing to do; the causes sum to it",
    "device_launch_bound_ns": "within launch-bound phases: it worked or waited for launches, which is not known",
    "device_open_ns": "the same in other phases, until the host had launched all of them",
    "device_slack_ns": "work still queued on the device when the host began its first fetch",
    "contended_ns": "ready to run without a core (run-queue delay): the main thread or, where the CPU computes, the "
    "most delayed native thread that ran for a twentieth of what it waited (it may be one that nobody waits for)",
    "tokens": "positions, padding included",
    "trained_tokens": "positions with a label",
    "samples": "rows of the batch",
    "loss": "loss of the step, as the trainer recorded it",
    "learning_rate": "that the step's update used",
    **{f"{phase}_ns": text for phase, text in _PHASE.items()},
    **{f"starved_{cause}_ns": f"of device_starved_ns, while the host was at: {cause}" for cause in CAUSES},
    **{f"{kind}_{name}_ns": text.format(name=name) for kind, text in _STAGE.items() for name in STAGES},
}
_SPANS = {
    "pid": "process",
    "tid": "thread",
    "role": "main: a phase of the main thread, a stage it ran, or a pass of the evaluation (evaluate, in no step); "
    "loader-K: a stage of loader worker K; device: work of an asynchronous device; launch: when the host queued that "
    "work, in the same order; sync: a blocking call; exchange: from when this rank was ready to exchange with the "
    "others until that was over; receive: from when a worker's batch had arrived in the main process until it was "
    "unpacked there, in its own fetch or an earlier one; sampler: the main thread's choice of items for a "
    "loader worker",
    "rank": "rank of the process in a distributed program; 0 otherwise",
    "name": "phase, stage, kind of device work, what is exchanged (gradients), call site of a blocking call; of role "
    "receive: awaited (the main thread waited for the batch: the span begins when it came) or ready (it came earlier)",
    "batch": "number of the batch, in the order the main thread received them, from 0; -1 where there is none",
    "start_ns": "CLOCK_MONOTONIC",
    "end_ns": "CLOCK_MONOTONIC",
    "cpu_ns": "CPU time of its thread in between, of tokenize with the process's other threads; of phases and stages",
}
_SAMPLES = {
    "t_ns": "when it was read, CLOCK_MONOTONIC",
    "source": "host, host:ROLE (main, loader-K, sampler; rank-K and what it started), or nvml:INDEX",
    "metric": "what was read",
    "value": "the reading",
    "unit": "its unit",
}
_EVALUATIONS = {
    "step": "number of the step that it followed",
    "start_ns": "CLOCK_MONOTONIC; no step is open then",
    "end_ns": "CLOCK_MONOTONIC",
    "loss": "mean over the labels of the held-out batches; perplexity is its exponential; null of questions",
    "accuracy": "share of the masked tokens that were predicted right; null without a masked-LM objective",
    "tokens": "labels that the mean is over; null of questions",
    "batches": "batches of the pass; null of questions",
    "questions": "multiple-choice questions of the pass; null of held-out documents, as the columns behind it",
    "acc": "share of them whose right ending has the largest log-likelihood",
    "acc_norm": "the same of log-likelihood by characters of the ending (acc_norm of lm-evaluation-harness); null "
    "where the text is not known",
    "acc_bytes": "the same by its bytes as UTF-8 (acc_bytes of lm-evaluation-harness)",
    "acc_tokens": "the same by its tokens (what llm.c calls acc_norm)",
}
TABLES = (
    ("steps.parquet", "One row for each step.", STEP_COLUMNS, _STEPS),
    ("spans.parquet", "One row for each stretch of time.", SPAN_COLUMNS, _SPANS),
    ("samples.parquet", "One row for each reading of a counter.", SAMPLE_COLUMNS, _SAMPLES),
    (
        "evaluations.parquet",
        "One row for each pass over held-out documents or multiple-choice questions; only of runs with `evaluation`.",
        EVALUATION_COLUMNS,
        _EVALUATIONS,
    ),
)
_OPENING = """# The columns of the tables

Each run of a study leaves these tables in `runs/ARM/BLOCK/` (results contract, schema 1). A null means "not measured",
never zero. Names that end in `_ns` are nanoseconds. This page is what `harness schema --columns` prints.

Each table begins with `arm` (string) and `block` (int32, from 0): which run it is of. So one query reads all runs of a
study at once, here with DuckDB:

```sql
SELECT arm, block, median(wall_ns) / 1e6 AS step_ms
FROM read_parquet('STUDY/runs/*/*/steps.parquet', union_by_name = true) WHERE NOT warmup GROUP BY ALL ORDER BY ALL
```

Studies from before 2026-11-23 lack both columns: there `filename = true` gives a column of paths.
"""


def reference() -> str:
    """Return the Markdown page that describes every column of the contract's tables."""
    parts = [_OPENING]
    for file, description, columns, texts in TABLES:
        head = [f"## {file}", "", description, "", "| column | type | what it is |", "| --- | --- | --- |"]
        parts.append("\n".join([*head, *(f"| `{name}` | {kind} | {texts[name]} |" for name, kind in columns), ""]))
    return "\n".join(parts)
