"""Connects the trainer to a recorder. This is the only seam between the trainer and a profiler.

The trainer marks its work with :func:`span` and :func:`step`. Both do nothing until :func:`attach` attaches a recorder.
A recorder lives in one process. The main process has one; each loader worker may have its own, attached by the loader's
``worker_init`` hook.

There are three kinds of spans. *Phases* (:data:`PHASES`) are exclusive parts of a step on the main thread. *Stages*
(:data:`STAGES`) are parts of the input side; they run in a loader worker, or inline inside the ``fetch`` phase. Work of
the main thread while no step is open (:data:`BETWEEN_STEPS`) belongs to neither. All times are ``time.monotonic_ns()``
(CLOCK_MONOTONIC), which every process of a host shares.

A compute reports the work of an asynchronous device with :func:`device`, and calls that blocked the host with
:func:`blocked`. It may report them later than they happened.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

PHASES = ("fetch", "h2d", "forward", "backward", "optimizer", "sync", "log", "checkpoint")
STAGES = ("read", "tokenize", "pack")
BETWEEN_STEPS = ("evaluate",)  # work of the main thread while no step is open


class StageSpan(NamedTuple):
    """One stage of one batch (CLOCK_MONOTONIC, ns), and the CPU time that its thread spent, if recorded."""

    name: str
    start_ns: int
    end_ns: int
    cpu_ns: int | None = None


# A StageSpan as recorded and sent. Plain tuples are cheaper to make and to pickle.
RawSpan = tuple[str, int, int, int | None]


class Kernel(NamedTuple):
    """Work of a device, launched and done in [start, end] (CLOCK_MONOTONIC, ns). ``name``: h2d to read."""

    name: str
    launch_start_ns: int
    launch_end_ns: int
    start_ns: int
    end_ns: int


class Blocked(NamedTuple):
    """One call that blocked the host on the device. ``site`` has the form ``trainer/loop.py:49: synchronize``."""

    site: str
    start_ns: int
    end_ns: int


class Validation(NamedTuple):
    """One pass after step ``step``, outside of any: held-out documents, or ``questions``; other fields are None."""

    step: int
    start_ns: int
    end_ns: int
    loss: float | None
    accuracy: float | None
    tokens: int | None
    batches: int | None
    questions: int | None = None
    acc: float | None = None
    acc_norm: float | None = None
    acc_bytes: float | None = None
    acc_tokens: float | None = None


class BatchTrace(NamedTuple):
    """Stage spans of a batch, by the process (``role``) that built it; ``drawn``: of the main thread's sampler."""

    pid: int
    tid: int
    role: str
    batch: int
    spans: tuple[RawSpan, ...]
    drawn: tuple[RawSpan, ...] = ()

    def stages(self) -> list[StageSpan]:
        """Return the spans as :class:`StageSpan`, in the recorded order."""
        return [StageSpan._make(span) for span in self.spans]


class Recorder(Protocol):
    """Interface and base class of recorders, which :func:`attach` takes: a method does nothing by default."""

    def enter(self, name: str) -> None:
        return

    def exit(self, name: str) -> None:
        return

    def step(self, index: int) -> None:
        return

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        return

    def loss(self, step: int, value: float) -> None:
        return

    def learning_rate(self, step: int, value: float) -> None:
        return

    def pause(self) -> None:
        return

    def validated(self, validation: Validation) -> None:
        return

    def take(self) -> BatchTrace | None:
        return None

    def device(self, kernel: Kernel) -> None:
        return

    def blocked(self, call: Blocked) -> None:
        return

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        return

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        return


class _NoRecorder(Recorder):
    """Recorder of a process to which none is attached: it drops every report."""


_NONE = _NoRecorder()
_recorder: Recorder = _NONE


def attach(recorder: Recorder | None) -> None:
    """Attach ``recorder`` to this process, so that it receives all reports. ``None`` detaches the current one."""
    global _recorder
    _recorder = _NONE if recorder is None else recorder


class _Span:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        _recorder.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _recorder.exit(self._name)


# One immutable object per name: entering a span allocates nothing.
_SPANS = {name: _Span(name) for name in PHASES + STAGES + BETWEEN_STEPS}


def span(name: str) -> _Span:
    """Return a context manager that marks its body as phase or stage ``name``. Raises KeyError for other names."""
    return _SPANS[name]


def step(index: int) -> None:
    """Mark the start of step ``index``: the loop is about to request its first batch."""
    _recorder.step(index)


def received(trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
    """Report the batch that has just arrived. Under accumulation a step receives several."""
    _recorder.received(trace, tokens, trained_tokens, samples)


def loss(step: int, value: float) -> None:
    """Report the loss of step ``step`` (mean over its micro-batches) as soon as the loop has it."""
    _recorder.loss(step, value)


def learning_rate(step: int, value: float) -> None:
    """Report the learning rate that step ``step`` used."""
    _recorder.learning_rate(step, value)


def pause() -> None:
    """Mark the end of the open step. The time until the next :func:`step` belongs to no step."""
    _recorder.pause()


def validated(validation: Validation) -> None:
    """Report a pass over held-out data."""
    _recorder.validated(validation)


def take() -> BatchTrace | None:
    """Return the stage spans since the last call, as the trace of a batch; None without a recorder."""
    return _recorder.take()


def device(kernel: Kernel) -> None:
    """Report one piece of the device's work, in the order the device did it."""
    _recorder.device(kernel)


def blocked(call: Blocked) -> None:
    """Report a call that blocked the host on the device."""
    _recorder.blocked(call)


def exchanged(name: str, start_ns: int, end_ns: int) -> None:
    """Report an exchange with the other ranks, from ``start_ns`` (this rank was ready) to ``end_ns``."""
    _recorder.exchanged(name, start_ns, end_ns)


def unpacked(arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
    """Report when the fetched batch arrived (its reading began unless ``waited``) and was unpacked, ns."""
    _recorder.unpacked(arrived_ns, unpacked_ns, waited)
