"""The only seam between the trainer and whoever measures it.

The trainer marks what it does with :func:`span` and :func:`step`; both do nothing until a recorder is
attached with :func:`attach`. A recorder lives in one process: the main process has one, each loader worker
may have its own (attached by the ``worker_init`` hook that the loader is given).

Span names are of two kinds. *Phases* (:data:`PHASES`) are exclusive parts of a step on the main thread.
*Stages* (:data:`STAGES`) are parts of the input side; they run inside a loader worker, or inline inside the
``fetch`` phase. All times are ``time.monotonic_ns()`` (CLOCK_MONOTONIC), which every process of a host shares.

What an asynchronous device did, and which calls blocked the host on it, a compute tells with :func:`device` and
:func:`blocked`, at once or later, as it comes to know them.
"""

from __future__ import annotations

from types import TracebackType
from typing import NamedTuple, Protocol

PHASES = ("fetch", "h2d", "forward", "backward", "optimizer", "sync", "log")
STAGES = ("read", "tokenize", "pack")


class StageSpan(NamedTuple):
    """One stage of one batch: CLOCK_MONOTONIC nanoseconds, and the CPU time of its thread in between."""

    name: str
    start_ns: int
    end_ns: int
    cpu_ns: int | None = None


# A StageSpan as it is recorded and sent: plain tuples are cheaper to make and to pickle.
RawSpan = tuple[str, int, int, int | None]


class Kernel(NamedTuple):
    """One piece of work on an asynchronous device (all kernels of one phase, say), in CLOCK_MONOTONIC nanoseconds.

    The host queued it during [``launch_start_ns``, ``launch_end_ns``], the device did it during [``start_ns``,
    ``end_ns``]. ``name``: h2d, forward, backward, norm, optimizer, read (a value for the host).
    """

    name: str
    launch_start_ns: int
    launch_end_ns: int
    start_ns: int
    end_ns: int


class Blocked(NamedTuple):
    """One call that kept the host waiting for the device. ``site``: ``trainer/compute.py:140 item``."""

    site: str
    start_ns: int
    end_ns: int


class BatchTrace(NamedTuple):
    """What a loader tells about one batch it built; it travels beside the batch.

    ``role`` is ``main`` (inline) or ``loader-K``; ``batch`` counts batches per loader worker process from 0.
    """

    pid: int
    tid: int
    role: str
    batch: int
    spans: tuple[RawSpan, ...]

    def stages(self) -> list[StageSpan]:
        """The spans with their names."""
        return [StageSpan._make(span) for span in self.spans]


class Recorder(Protocol):
    """What :func:`attach` accepts."""

    def enter(self, name: str) -> None: ...

    def exit(self, name: str) -> None: ...

    def step(self, index: int) -> None: ...

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None: ...

    def loss(self, step: int, value: float) -> None: ...

    def take(self) -> BatchTrace | None: ...

    def device(self, kernel: Kernel) -> None: ...

    def blocked(self, call: Blocked) -> None: ...


_recorder: Recorder | None = None


def attach(recorder: Recorder | None) -> None:
    """Attach ``recorder`` to this process (``None`` detaches)."""
    global _recorder
    _recorder = recorder


class _Span:
    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        if _recorder is not None:
            _recorder.enter(self._name)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if _recorder is not None:
            _recorder.exit(self._name)


# One immutable object per name: entering a span allocates nothing.
_SPANS = {name: _Span(name) for name in PHASES + STAGES}


def span(name: str) -> _Span:
    """Context manager that marks the enclosed code as phase or stage ``name``; raises KeyError for others."""
    return _SPANS[name]


def step(index: int) -> None:
    """Mark the boundary of step ``index``: the loop is about to ask for its first batch."""
    if _recorder is not None:
        _recorder.step(index)


def received(trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
    """Tell the recorder what the batch that just arrived holds (several per step under accumulation)."""
    if _recorder is not None:
        _recorder.received(trace, tokens, trained_tokens, samples)


def loss(step: int, value: float) -> None:
    """Tell the recorder the loss of step ``step`` (mean over its micro-batches), when the loop comes to know it."""
    if _recorder is not None:
        _recorder.loss(step, value)


def take() -> BatchTrace | None:
    """Take the stage spans recorded in this process since the last call (``None`` without a recorder)."""
    return _recorder.take() if _recorder is not None else None


def device(kernel: Kernel) -> None:
    """Tell the recorder what the device did (``kernel``), in the order it did it."""
    if _recorder is not None:
        _recorder.device(kernel)


def blocked(call: Blocked) -> None:
    """Tell the recorder about a call that kept the host waiting for the device."""
    if _recorder is not None:
        _recorder.blocked(call)
