"""Defines the results contract (schema 1): the tables, columns and files of a run, and their names.

Other modules are imported only within functions, so that every room can import this one.
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

# (column, Arrow type). *_ns are nanoseconds. A null means "not measured here", never zero.
STEP_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "int64"),
    ("turn", "int32"),  # repetition of the step (with interleave: runs 0 in a short run)
    ("warmup", "bool"),
    ("start_ns", "int64"),  # CLOCK_MONOTONIC
    ("wall_ns", "int64"),
    *((f"{phase}_ns", "int64") for phase in PHASES),  # The phases sum to wall_ns exactly.
    ("device_busy_ns", "int64"),
    ("device_starved_ns", "int64"),
    # Time while the host was still launching the phase that the device was at, in launch-bound phases and in others
    # (open). The device worked or waited for launches, in unknown parts. If both together exceed 1 % of the step, busy
    # is null: it lies between wall - starved - launch_bound - open and wall - starved.
    ("device_launch_bound_ns", "int64"),
    ("device_open_ns", "int64"),
    ("device_slack_ns", "int64"),  # work still queued on the device when the host began its (first) fetch
    *((f"starved_{cause}_ns", "int64") for cause in CAUSES),  # The causes sum to device_starved_ns.
    ("contended_ns", "int64"),
    # Time by which the step would be shorter without the stage, split additively (harness.explain.replay.attribution).
    # On a synchronous device the columns sum to fetch_ns. Null after the first steps of a long run that must be
    # replayed.
    *((f"exposed_{stage}_ns", "int64") for stage in STAGES),
    *((f"hidden_{stage}_ns", "int64") for stage in STAGES),  # stage time that cost the step nothing
    ("tokens", "int64"),
    ("trained_tokens", "int64"),
    ("samples", "int64"),
    ("loss", "float64"),
    ("learning_rate", "float64"),  # learning rate of the step's update
    # All stage time of the step's batches; the part within the wait for its batch (sums to fetch_ns); the part while
    # the step waited for another batch; the part between training steps.
    *((f"{kind}_{stage}_ns", "int64") for kind in PLACES for stage in STAGES),
)
SPAN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("pid", "int64"),
    ("tid", "int64"),
    # Role of a span:
    # - main: phases, stages, and work while no step is open (evaluate);
    # - loader-K: stages of a loader worker;
    # - device: work of the device; launch: when the host queued that work, in the same order;
    # - sync: blocking calls of the main thread;
    # - exchange: from when this rank was ready to exchange with the others until the exchange ended;
    # - receive: from the arrival of a worker's batch until it was unpacked, in its own fetch or an earlier one;
    # - sampler: reading by the main thread in the fetch of a worker's batch, if a sampler chooses items.
    ("role", "string"),
    ("rank", "int32"),
    # A phase, a stage, a kernel (role device, launch), the call site of a blocking call, or the kind of exchange. For
    # role receive: awaited (begins with the arrival for which the main thread waited) or ready (it came earlier).
    ("name", "string"),
    ("batch", "int64"),  # number of the batch in the main thread's order, from 0; -1 without a batch
    ("start_ns", "int64"),
    ("end_ns", "int64"),
    ("cpu_ns", "int64"),  # CPU time of its thread, for tokenize also of others; only phases and stages have it
)
# First columns of every table's file, so that one query over the files of a study separates its runs. They repeat the
# names of the file's folders, and are not read back.
RUN_COLUMNS: tuple[tuple[str, str], ...] = (("arm", "string"), ("block", "int32"))
# Columns of later versions. A table without them is read as "not measured".
ADDED_COLUMNS = {
    "device_slack_ns",
    "device_launch_bound_ns",
    "device_open_ns",
    "cpu_ns",
    "checkpoint_ns",
    "learning_rate",
    "questions",
    "acc",
    "acc_norm",
    "acc_bytes",
    "acc_tokens",
    *(f"starved_{cause}_ns" for cause in CAUSES),
    *(f"{kind}_{stage}_ns" for kind in PLACES for stage in STAGES),
}
SAMPLE_COLUMNS: tuple[tuple[str, str], ...] = (
    ("t_ns", "int64"),
    ("source", "string"),
    ("metric", "string"),
    ("value", "float64"),
    ("unit", "string"),
)
# One row for each pass over held-out documents or multiple-choice questions. A run without evaluation has no table.
EVALUATION_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "int64"),
    ("start_ns", "int64"),  # CLOCK_MONOTONIC
    ("end_ns", "int64"),
    ("loss", "float64"),
    ("accuracy", "float64"),
    ("tokens", "int64"),
    ("batches", "int64"),
    # Only rows of multiple-choice questions have these. Such rows have no loss, accuracy, tokens or batches.
    ("questions", "int64"),
    ("acc", "float64"),
    ("acc_norm", "float64"),
    ("acc_bytes", "float64"),
    ("acc_tokens", "float64"),
)
CHOICE_COLUMNS = ("questions", "acc", "acc_norm", "acc_bytes", "acc_tokens")
Columns = dict[str, list[Any]]

EXCHANGE = "exchange"  # role of spans in which ranks exchange data, for example gradients
RECEIVE = "receive"  # role of spans in which the main thread unpacks a worker's batch
SAMPLER = "sampler"  # role of spans in which a sampler chooses items for loader workers, in the main thread
AWAITED, READY = "awaited", "ready"  # names of receive spans


def rank_file(table: str, rank: int) -> str:
    """Return the file name of a table (steps or spans) of one rank.

    Rank 0 has the plain name, such as steps.parquet.
    """
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
