"""Computes everything that needs the spans of a run while they are in memory, so that long runs are read once."""

from __future__ import annotations

from contextlib import suppress

from harness.explain.launches import DEVICE_WORK
from harness.explain.ledger import DERIVED, measure
from harness.explain.overlap import hidden_behind, sync_audit
from harness.explain.policy import KEPT_SPANS_MAX
from harness.explain.replay.recording import record
from harness.explain.spans import spans_of
from harness.study.run_data import RunData
from trainer.errors import InputError


def work_out(run: RunData) -> None:
    """Compute the ledger, what hid data work, the blocking calls and the recording of ``run``; they are kept with it.

    Call :func:`release` after that: the spans and derived columns of a long run are large.
    """
    measure(run)
    if run.record.status != "done":
        return
    hidden_behind(run)
    sync_audit(run)
    with suppress(InputError):
        record(run)


def release(run: RunData) -> None:
    """Free the large intermediate results of a long run. They are computed again when they are needed again."""
    if run.knows("spans") and spans_of(run).rows > KEPT_SPANS_MAX:
        run.forget("spans")
        run.forget(DERIVED)
        run.forget(DEVICE_WORK)
