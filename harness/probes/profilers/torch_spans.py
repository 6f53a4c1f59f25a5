"""Mark the ledger's phases and stages in a profile of torch.profiler while one is recorded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from harness.study.traces.kineto import PHASE, STAGE
from trainer.telemetry import STAGES, BatchTrace, Blocked, Kernel, Recorder, Validation

if TYPE_CHECKING:
    from torch.profiler import record_function

_STAGES = frozenset(STAGES)


class TorchSpans:
    """Recorder that forwards every call to ``inner`` and also marks each phase and stage in torch's profile.

    A mark (``record_function``) takes 12 us, so this is attached only within a profiling window.
    ``on_batch`` is called after each batch that this process has made.
    """

    def __init__(self, inner: Recorder, on_batch: Callable[[], None] | None = None) -> None:
        from torch.profiler import record_function

        self._inner = inner
        self._on_batch = on_batch
        self._mark = record_function
        self._open: list[record_function] = []

    def enter(self, name: str) -> None:
        mark = self._mark((STAGE if name in _STAGES else PHASE) + name)
        mark.__enter__()  # type: ignore[no-untyped-call]
        self._open.append(mark)
        self._inner.enter(name)

    def exit(self, name: str) -> None:
        self._inner.exit(name)
        self._open.pop().__exit__(None, None, None)

    def take(self) -> BatchTrace | None:
        trace = self._inner.take()
        if self._on_batch is not None:
            self._on_batch()
        return trace

    def step(self, index: int) -> None:
        self._inner.step(index)

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        self._inner.received(trace, tokens, trained_tokens, samples)

    def loss(self, step: int, value: float) -> None:
        self._inner.loss(step, value)

    def learning_rate(self, step: int, value: float) -> None:
        self._inner.learning_rate(step, value)

    def pause(self) -> None:
        self._inner.pause()

    def validated(self, validation: Validation) -> None:
        self._inner.validated(validation)

    def device(self, kernel: Kernel) -> None:
        self._inner.device(kernel)

    def blocked(self, call: Blocked) -> None:
        self._inner.blocked(call)

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None:
        self._inner.exchanged(name, start_ns, end_ns)

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None:
        self._inner.unpacked(arrived_ns, unpacked_ns, waited)
