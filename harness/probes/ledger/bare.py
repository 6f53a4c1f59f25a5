"""Record only the start and end of each step. The ledger's own cost is measured against such runs."""

from __future__ import annotations

from time import monotonic_ns

from harness.probes.ledger.rows import Rows, StepRow
from trainer.telemetry import BatchTrace, Blocked, Kernel, Validation


class BareRecorder:
    """Recorder (``trainer.telemetry.Recorder``) of a bare run: one clock read per step, no phases and no stages.

    A bare run makes it instead of :class:`StepRecorder`, to measure the ledger's cost.
    """

    def __init__(self) -> None:
        self.repetition = 0
        self.warmup = True
        self.steps: list[StepRow] = []
        self.counts: list[tuple[int, int, int]] = []  # tokens, trained tokens and samples of each step
        self.losses: dict[int, float] = {}
        self.learning_rates: dict[int, float] = {}
        self.validations: list[Validation] = []
        self._open: tuple[int, int, bool, int] | None = None
        self._counted = [0, 0, 0]

    def step(self, index: int) -> None:
        now = monotonic_ns()
        self._close(now)
        self._open = (index, self.repetition, self.warmup, now)

    def pause(self) -> None:
        """Close the open step. Time until the next :meth:`step` belongs to no step."""
        self._close(monotonic_ns())

    def _close(self, now: int) -> None:
        if self._open is not None:
            index, repetition, warmup, start = self._open
            self.steps.append(StepRow(index, repetition, warmup, start, now - start, (), None))
            self.counts.append((self._counted[0], self._counted[1], self._counted[2]))
        self._open, self._counted = None, [0, 0, 0]

    def rows(self) -> Rows:
        return Rows(self.steps)

    def received(self, trace: BatchTrace | None, tokens: int, trained_tokens: int, samples: int) -> None:
        self._counted = [sum(pair) for pair in zip(self._counted, (tokens, trained_tokens, samples), strict=True)]

    def loss(self, step: int, value: float) -> None:
        self.losses[step] = value

    def learning_rate(self, step: int, value: float) -> None:
        self.learning_rates[step] = value

    def validated(self, validation: Validation) -> None:
        self.validations.append(validation)

    def enter(self, name: str) -> None: ...

    def exit(self, name: str) -> None: ...

    def device(self, kernel: Kernel) -> None: ...

    def blocked(self, call: Blocked) -> None: ...

    def exchanged(self, name: str, start_ns: int, end_ns: int) -> None: ...

    def unpacked(self, arrived_ns: int, unpacked_ns: int, waited: bool) -> None: ...

    def take(self) -> BatchTrace | None:
        return None
