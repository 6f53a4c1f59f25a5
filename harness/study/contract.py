"""Defines the results contract (schema 1): the tables, columns and files of a run, and the names in them.

Imports nothing but what it needs when it is called, so that every room can read it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

SCHEMA = 1
PHASES = ("fetch", "h2d", "forward", "backward", "optimizer", "sync", "log", "checkpoint", "other")
STAGES = ("read", "tokenize", "pack", "transfer")
# What the host did while an asynchronous device had nothing to do; python: launching, and whatever has no other name.
CAUSES = (*STAGES, "python", "sync", "checkpoint", "log")

PLACES = ("work", "during_wait", "parallel", "between_steps")  # of a stage's time, see harness.explain.waits

# (column, Arrow type). *_ns are nanoseconds. A null means "not measured here", never zero.
STEP_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "int64"),
    ("turn", "int32"),  # which repetition the step belongs to (with interleave: runs 0 in a short run)
    ("warmup", "bool"),
    ("start_ns", "int64"),  # CLOCK_MONOTONIC
    ("wall_ns", "int64"),
    *((f"{phase}_ns", "int64") for phase in PHASES),  # these sum to wall_ns exactly
    ("device_busy_ns", "int64"),
    ("device_starved_ns", "int64"),
    # While the host was still launching the phase that the device was at, in launch-bound phases and in others (open):
    # the device worked or waited for launches, it is not known how much of each. Where both together are more than 1 %
    # of the step, busy is null: it lies between wall - starved - launch_bound - open and wall - starved.
    ("device_launch_bound_ns", "int64"),
    ("device_open_ns", "int64"),
    ("device_slack_ns", "int64"),  # work still queued on the device when the host began its (first) fetch
    *((f"starved_{cause}_ns", "int64") for cause in CAUSES),  # these sum to device_starved_ns
    ("contended_ns", "int64"),
    # What the step would not have lasted without the stage, split additively (harness.explain.replay.attribution). On a
    # synchronous device these sum to fetch_ns. Null after the first steps of a long run that must be replayed.
    *((f"exposed_{stage}_ns", "int64") for stage in STAGES),
    *((f"hidden_{stage}_ns", "int64") for stage in STAGES),  # stage time that cost the step nothing
    ("tokens", "int64"),
    ("trained_tokens", "int64"),
    ("samples", "int64"),
    ("loss", "float64"),
    ("learning_rate", "float64"),  # that the step's update used
    # All stage time of the step's batches; what ran within the wait for its batch (sums to fetch_ns); what ran while
    # the step waited for another batch; what ran between training steps.
    *((f"{kind}_{stage}_ns", "int64") for kind in PLACES for stage in STAGES),
)
SPAN_COLUMNS: tuple[tuple[str, str], ...] = (
    ("pid", "int64"),
    ("tid", "int64"),
    # main: phases, and what happens while no step is open (evaluate); main or loader-K: stages; device: what the
    # device did; launch: when the host queued that, in the same order; sync: blocking calls of the main thread;
    # exchange: from when this rank was ready to exchange with the others until that was over; receive: from when a
    # worker's batch had arrived in the main process until it was unpacked there, in its own fetch or an earlier one;
    # sampler: reading by the main thread in the fetch of a worker's batch, where a sampler chooses items
    ("role", "string"),
    ("rank", "int32"),
    # A phase, a stage, a kernel (role device, launch), the call site of a blocking call, or what is exchanged. Of role
    # receive: awaited (it begins when the message came, for which the main thread waited) or ready (that came earlier).
    ("name", "string"),
    ("batch", "int64"),  # batches in the order the main thread received them, from 0; -1 where none
    ("start_ns", "int64"),
    ("end_ns", "int64"),
    ("cpu_ns", "int64"),  # of its thread, of tokenize also of others; of phases and stages
)
# What every file of a table begins with, so that one query over the files of a study tells its runs apart. They say
# what the folder of the file does, and are not read back.
RUN_COLUMNS: tuple[tuple[str, str], ...] = (("arm", "string"), ("block", "int32"))
# Columns that came later: a table without them is read as not having measured them.
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
# One row for each pass over held-out documents or multiple-choice questions; a run without evaluation has no table.
EVALUATION_COLUMNS: tuple[tuple[str, str], ...] = (
    ("step", "int64"),
    ("start_ns", "int64"),  # CLOCK_MONOTONIC
    ("end_ns", "int64"),
    ("loss", "float64"),
    ("accuracy", "float64"),
    ("tokens", "int64"),
    ("batches", "int64"),
    # Null but in rows of multiple-choice questions, which have no loss, accuracy, tokens or batches.
    ("questions", "int64"),
    ("acc", "float64"),
    ("acc_norm", "float64"),
    ("acc_bytes", "float64"),
    ("acc_tokens", "float64"),
)
CHOICE_COLUMNS = ("questions", "acc", "acc_norm", "acc_bytes", "acc_tokens")
Columns = dict[str, list[Any]]

EXCHANGE = "exchange"  # the role of spans in which ranks exchange something, gradients say
RECEIVE = "receive"  # the role of spans in which the main thread unpacks a worker's batch
SAMPLER = "sampler"  # the role of spans in which a sampler chooses items for loader workers, in the main thread
AWAITED, READY = "awaited", "ready"  # and their names


def rank_file(table: str, rank: int) -> str:
    """The file of a table (steps, spans) of one rank of a run; rank 0's is the run's own."""
    return f"{table}.rank-{rank}.parquet" if rank else f"{table}.parquet"


RANK_FILES = "*.rank-*.parquet"  # of the other ranks
# What a run may leave, besides its log; of loader worker K: torch_profile.loader-K.json.gz.
RUN_FILES = (
    "run.json", "steps.parquet", "spans.parquet", "samples.parquet", "evaluations.parquet", "probes.json",
    "torch_profile.json.gz", "stacks.trace.json.gz", "stacks.speedscope.json", "stacks.svg",
)  # fmt: skip

RAW = "raw"  # within the folder of a study of harness exec: what its programs recorded, from which the study is made

# Controls that are there for the probes, see harness.launch.probing: the run of an arm that is profiled rather than
# measured; what the cost of probes is measured against; and what a control with one probe alone begins with.
PROFILED, BARE, LEDGER, ALONE = "profiled", "bare", "with-ledger", "with-"


@lru_cache
def arrow_schema(columns: tuple[tuple[str, str], ...]) -> pa.Schema:
    """The Arrow schema of one of the contract's tables, tagged with the contract's version."""
    import pyarrow as pa

    return pa.schema([(name, pa.type_for_alias(kind)) for name, kind in columns], {"harness_schema": str(SCHEMA)})
