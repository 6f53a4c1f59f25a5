"""Define the results contract (schema 1): the tables, columns and files of a run, their names and their meaning.

Other modules are imported only within functions. ``docs/generate.py`` builds a page from :func:`column_reference`.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


SCHEMA = 1
PHASES = ("fetch", "h2d", "forward", "backward", "optimizer", "sync", "log", "checkpoint", "other")
STAGES = ("read", "tokenize", "pack", "transfer")
# Activity of the host while an asynchronous device had nothing to do. python: launching, and everything unnamed.
CAUSES = (*STAGES, "python", "sync", "checkpoint", "log")

PLACES = ("work", "during_wait", "parallel", "between_steps")  # parts of a stage's time, see harness.explain.waits

_STAGE = {
    "exposed": "time by which the step would be shorter without {name}: its share of what replay without data work "
    "saves. The stages sum to fetch_ns on a synchronous device. On an asynchronous one the host runs ahead, so a "
    "step's figure may be caused by data of other steps: use only sums and means over many steps",
    "hidden": "time of {name} within training steps that cost the step nothing. On an asynchronous device, an even "
    "share of the total that cost nothing",
    "work": "total time of {name} for the batches of this step, in any process; transfer only within waits",
    "during_wait": "part of it that ran while the step waited for the same batch. The stages sum to fetch_ns",
    "parallel": "part of it that ran while the step waited for another batch (on an asynchronous device: while it was "
    "idle)",
    "between_steps": "part of it that ran between training steps (during an evaluation): neither exposed nor hidden",
}
_PHASE = {
    "fetch": "waiting for the next batch, or making it",
    "h2d": "launching its copies to the device",
    "forward": "forward pass; on a CUDA device only its launches",
    "backward": "backward pass; on a CUDA device only its launches",
    "optimizer": "gradient norm, clipping and update; on a CUDA device only their launches",
    "sync": "blocked on the device, because the trainer reads a value",
    "log": "reading losses and writing the log",
    "checkpoint": "saving a checkpoint: copying the state, and writing if the step waits for it; with several ranks "
    "also agreeing after each step if one is due by minutes",
    "other": "the rest: Python between the phases; with several ranks and `harness train --epochs`, or `--tokens` and "
    "a `data.source` of the user's, also exchanging their progress (in `checkpoint` if minutes set the "
    "checkpoints)",
}
# A table's columns: name, Arrow type, meaning. *_ns are nanoseconds. A null means "not measured here", never zero.
_STEPS = (
    ("step", "int64", "number of the step, from 0"),
    # With interleave: runs 0 in a short run.
    ("turn", "int32", "repetition of the step: with interleave: slices arms alternate repetition by repetition"),
    ("warmup", "bool", "true if the step is excluded from every figure (with `harness exec`, the steps at the "
     "beginning of a block are measured in the previous block)"),
    ("start_ns", "int64", "start of the step, CLOCK_MONOTONIC"),
    ("wall_ns", "int64", "duration; the phases sum to it exactly"),
    *((f"{phase}_ns", "int64", text) for phase, text in _PHASE.items()),
    ("device_busy_ns", "int64",
     "time in which the device worked; null if unknown, because the host was still launching phases"),
    ("device_starved_ns", "int64", "time in which the device was idle; the causes sum to it"),
    # The device worked or waited for launches, in unknown parts. If both together exceed 1 % of the step, busy is null:
    # it lies between wall - starved - launch_bound - open and wall - starved.
    ("device_launch_bound_ns", "int64",
     "time in launch-bound phases: unknown whether the device worked or waited for launches"),
    ("device_open_ns", "int64", "the same for phases that are not launch-bound, until the host had launched them"),
    ("device_slack_ns", "int64", "work still queued on the device when the host began its first fetch"),
    *((f"starved_{cause}_ns", "int64", f"part of device_starved_ns, while the host was at: {cause}")
      for cause in CAUSES),
    ("contended_ns", "int64", "ready to run without a core (run-queue delay): the main thread or, if the CPU computes, "
     "the most delayed native thread that ran for a twentieth of its delay (it may be off the critical path)"),
    # exposed: split additively (harness.explain.replay.attribution). Null after the first steps of a long run that must
    # be replayed.
    *((f"{kind}_{name}_ns", "int64", _STAGE[kind].format(name=name))
      for kind in ("exposed", "hidden") for name in STAGES),
    ("tokens", "int64", "positions, padding included"),
    ("trained_tokens", "int64", "positions with a label"),
    ("samples", "int64", "rows of the batch"),
    ("loss", "float64", "loss of the step, as the trainer recorded it"),
    ("learning_rate", "float64", "learning rate of the step's update"),
    *((f"{kind}_{name}_ns", "int64", _STAGE[kind].format(name=name)) for kind in PLACES for name in STAGES),
)  # fmt: skip
_SPANS = (
    ("pid", "int64", "process"),
    ("tid", "int64", "thread"),
    ("role", "string", "main: a phase of the main thread, a stage it ran, or a pass of the evaluation (evaluate, in "
     "no step); loader-K: a stage of loader worker K; device: work of an asynchronous device; launch: when the host "
     "queued that work, in the same order; sync: a blocking call; exchange: from when this rank was ready to exchange "
     "with the others until that was over; receive: from when a worker's batch had arrived in the main process until "
     "it was unpacked there, in its own fetch or an earlier one; sampler: the main thread's choice of items for a "
     "loader worker"),
    ("rank", "int32", "rank of the process in a distributed program; 0 otherwise"),
    ("name", "string", "phase, stage, kind of device work, exchanged data (gradients), call site of a blocking call; "
     "of role receive: awaited (the main thread waited for the batch: the span begins when it came) or ready (it came "
     "earlier)"),
    ("batch", "int64",
     "number of the batch, in the order the main thread received them, from 0; -1 if there is none"),
    ("start_ns", "int64", "CLOCK_MONOTONIC"),
    ("end_ns", "int64", "CLOCK_MONOTONIC"),
    ("cpu_ns", "int64",
     "CPU time of its thread in between, of tokenize with the process's other threads; of phases and stages"),
)  # fmt: skip
_SAMPLES = (
    ("t_ns", "int64", "time of the reading, CLOCK_MONOTONIC"),
    ("source", "string", "host, host:ROLE (main, loader-K, sampler; rank-K and what it started), or nvml:INDEX"),
    ("metric", "string", "name of the counter"),
    ("value", "float64", "value of the reading"),
    ("unit", "string", "its unit"),
)
# Rows of multiple-choice questions alone have CHOICE_COLUMNS; they have no loss, accuracy, tokens or batches.
_EVALUATIONS = (
    ("step", "int64", "number of the preceding step"),
    ("start_ns", "int64", "CLOCK_MONOTONIC; between steps"),
    ("end_ns", "int64", "CLOCK_MONOTONIC"),
    ("loss", "float64",
     "mean over the labels of the held-out batches; perplexity is its exponential; null for questions"),
    ("accuracy", "float64",
     "share of the masked tokens that were predicted right; null without a masked-LM objective"),
    ("tokens", "int64", "labels in the mean; null for questions"),
    ("batches", "int64", "batches of the pass; null for questions"),
    ("questions", "int64",
     "multiple-choice questions of the pass; null for held-out documents, like the next columns"),
    ("acc", "float64", "share of them whose right ending has the largest log-likelihood"),
    ("acc_norm", "float64", "the same by log-likelihood per character of the ending (acc_norm of "
     "lm-evaluation-harness); null if the text is unknown"),
    ("acc_bytes", "float64", "the same per byte of its UTF-8 (acc_bytes of lm-evaluation-harness)"),
    ("acc_tokens", "float64", "the same per token (llm.c's acc_norm)"),
)  # fmt: skip


def _typed(columns: tuple[tuple[str, str, str], ...]) -> tuple[tuple[str, str], ...]:
    return tuple((name, kind) for name, kind, _ in columns)


STEP_COLUMNS, SPAN_COLUMNS, SAMPLE_COLUMNS = _typed(_STEPS), _typed(_SPANS), _typed(_SAMPLES)
EVALUATION_COLUMNS = _typed(_EVALUATIONS)
CHOICE_COLUMNS = ("questions", "acc", "acc_norm", "acc_bytes", "acc_tokens")
# First columns of every table's file, so that one query over the files of a study separates its runs. They repeat the
# names of the file's folders, and are not read back.
RUN_COLUMNS: tuple[tuple[str, str], ...] = (("arm", "string"), ("block", "int32"))
# Columns of later versions. A table without them is read as "not measured".
ADDED_COLUMNS = {
    *("device_slack_ns", "device_launch_bound_ns", "device_open_ns", "cpu_ns", "checkpoint_ns", "learning_rate"),
    *CHOICE_COLUMNS,
    *(f"starved_{cause}_ns" for cause in CAUSES),
    *(f"{kind}_{stage}_ns" for kind in PLACES for stage in STAGES),
}
Columns = dict[str, list[Any]]

EXCHANGE = "exchange"  # role of spans in which ranks exchange data, for example gradients
RECEIVE = "receive"  # role of spans in which the main thread unpacks a worker's batch
SAMPLER = "sampler"  # role of spans in which a sampler chooses items for loader workers, in the main thread
AWAITED, READY = "awaited", "ready"  # names of receive spans


def rank_file(table: str, rank: int) -> str:
    """Return the file name of one rank's table; rank 0 has the plain name, such as steps.parquet."""
    return f"{table}.rank-{rank}.parquet" if rank else f"{table}.parquet"


RANK_FILES = "*.rank-*.parquet"  # files of the other ranks
# Files that a run may leave, besides its log. Loader worker K also leaves torch_profile.loader-K.json.gz.
RUN_FILES = (
    "run.json", "steps.parquet", "spans.parquet", "samples.parquet", "evaluations.parquet", "probes.json",
    "torch_profile.json.gz", "stacks.trace.json.gz", "stacks.speedscope.json", "stacks.svg",
)  # fmt: skip

RAW = "raw"  # Folder in a study of harness exec with the records of its programs, from which the study is made.

# Names of controls for the probes, see harness.launch.probing: the profiled run of an arm, the baseline for the cost of
# probes, and the prefix of a control with one probe alone.
PROFILED, BARE, LEDGER, ALONE = "profiled", "bare", "with-ledger", "with-"


@lru_cache
def arrow_schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """Return the Arrow schema of a table with ``columns``, with the contract's version in its metadata."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns], {"harness_schema": str(SCHEMA)})


_TABLES = (
    ("steps.parquet", "One row per step.", _STEPS),
    ("spans.parquet", "One row per span of time.", _SPANS),
    ("samples.parquet", "One row per reading of a counter.", _SAMPLES),
    (
        "evaluations.parquet",
        "One row per pass over held-out documents or multiple-choice questions; only for runs with `evaluation`.",
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


def column_reference() -> str:
    """Return the Markdown page that describes every column of the contract's tables."""
    parts = [_OPENING]
    for file, description, columns in _TABLES:
        head = [f"## {file}", "", description, "", "| column | type | what it is |", "| --- | --- | --- |"]
        parts.append("\n".join([*head, *(f"| `{name}` | {kind} | {text} |" for name, kind, text in columns), ""]))
    return "\n".join(parts)
