"""Exports the figures of a running training: to an OpenTelemetry collector (OTLP over HTTP) and to Prometheus.

Needs the extra ``export``. A name is OpenTelemetry's where its semantic conventions have one (process.memory.usage).
"""

from __future__ import annotations

import logging
import math
import os
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from harness.show.build import report_of
from harness.show.text.findings import TITLES, diagnosis_text
from harness.study.run_data import read_history
from trainer.errors import InputError

if TYPE_CHECKING:
    from harness.judge.report_types import ArmReport, Diagnosis, StudyReport
    from harness.study.run_data import Minute, RunData
    from harness.study.store import StudyFolder

NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http", "opentelemetry.exporter.prometheus")
INSTALL = "pip install 'llm-training-harness[export]'"
SERVICE = "harness"
SENT_WITHIN_S = 5.0  # limit of the SDK for each answer of a collector
WAITED_S = 1.0  # by which a collector that does not answer may delay the next look
METRICS = {  # name: unit (UCUM), description
    "harness.step.duration": ("s", "Duration of a training step in the last minutes: mean, median or 95th percentile"),
    "harness.step.part.duration": ("s", "Mean time per step of each part of the step in the last minutes"),
    "harness.steps": ("{step}", "Training steps since the program began"),
    "harness.tokens.rate": ("{token}/s", "Tokens per second in the last minutes"),
    "harness.finding.duration": ("s", "Time per step that a finding costs"),
    "harness.finding.speedup": ("1", "How many times as fast a step would be without the cost of a finding"),
    "process.memory.usage": ("By", "Memory of a training process and its children at the last reading"),
}
COUNTERS = ("harness.steps",)  # the others are gauges
FINDING, FINDING_ENDED = "harness.finding", "harness.finding.ended"  # names of events


class Value(NamedTuple):
    """One value of a metric, with the attributes that distinguish it from its other values."""

    metric: str
    value: float
    attributes: Mapping[str, str]


class SampledSpan(NamedTuple):
    """A step, or a phase or data stage within it, as a span. ``attributes``: only of a step."""

    name: str
    begin_ns: int  # CLOCK_MONOTONIC
    end_ns: int
    attributes: Mapping[str, str | int] | None = None


class Recent:
    """The study of a program's last minutes, and its analysis when it is first asked for."""

    def __init__(self, study: StudyFolder) -> None:
        self.study = study

    @cached_property
    def runs(self) -> list[RunData]:
        return list(self.study.runs())

    @cached_property
    def report(self) -> StudyReport:
        return report_of(self.study, self.study.read_study(), self.runs)[0]

    @cached_property
    def minutes(self) -> Mapping[str, Sequence[Minute]]:
        history = read_history(self.study.path)
        return {} if history is None else history.minutes


def values(recent: Recent) -> Iterator[Value]:
    """Yield the current value of each metric, in the units of METRICS."""
    for arm in recent.report.arms:
        yield from _of_arm(arm)
    counts = {run.record.arm: _last(run, "step") + 1 for run in recent.runs if run.step_count}  # by its last block
    for name, count in counts.items():
        yield Value("harness.steps", count, {"arm": name})
    for name, minutes in recent.minutes.items():
        readings = [minute.memory_bytes for minute in minutes if minute.memory_bytes is not None]
        if readings:
            yield Value("process.memory.usage", readings[-1], {"arm": name})


def _of_arm(arm: ArmReport) -> Iterator[Value]:
    named, totals = {"arm": arm.name}, arm.totals
    mean_ms = None if arm.wall is None else arm.wall.step_ms.median
    for statistic, duration_ms in (("mean", mean_ms), ("p50", totals.p50_ms), ("p95", totals.p95_ms)):
        if duration_ms is not None:
            yield Value("harness.step.duration", duration_ms / 1e3, {**named, "statistic": statistic})
    if totals.tokens_per_s is not None:
        yield Value("harness.tokens.rate", totals.tokens_per_s.median, named)
    for part in arm.parts:
        place = {**named, "kind": part.kind, "part": part.name}
        yield Value("harness.step.part.duration", part.ms.median / 1e3, place)
    for diagnosis in arm.diagnoses:
        place = {**named, "kind": diagnosis.kind, "place": diagnosis.name}
        yield Value("harness.finding.duration", diagnosis.ms.median / 1e3, place)
        if diagnosis.saving is not None:
            yield Value("harness.finding.speedup", diagnosis.saving.median, place)


def _last(run: RunData, name: str) -> int:
    """Return the column ``name`` of the run's last step."""
    steps = run.step_columns([name])
    assert steps is not None
    return int(steps[name][-1].as_py())


def sampled_steps(run: RunData, after_ns: int) -> list[SampledSpan]:
    """Return the longest measured step of ``run`` that began after ``after_ns`` and one of median length, each followed
    by its phases and data stages in the main thread; empty without such a step.
    """
    import pyarrow.compute as pc

    if (steps := run.steps) is None:
        return []
    steps = steps.filter(pc.and_(pc.greater(steps["start_ns"], after_ns), pc.invert(steps["warmup"])))
    if not len(steps):
        return []
    wall_ns = steps["wall_ns"].to_numpy()
    order = np.argsort(wall_ns)
    found = []
    for kind, row in (("longest", int(order[-1])), ("median", int(order[len(order) // 2]))):
        begin_ns = steps["start_ns"][row].as_py()
        end_ns = begin_ns + int(wall_ns[row])
        attributes = {"arm": run.record.arm, "harness.step": steps["step"][row].as_py(), "harness.sample": kind}
        found.append(SampledSpan("training step", begin_ns, end_ns, attributes))
        inside = run.spans_where(
            (pc.field("role") == "main") & (pc.field("start_ns") >= begin_ns) & (pc.field("end_ns") <= end_ns)
        )
        rows = [] if inside is None else inside.select(["name", "start_ns", "end_ns"]).to_pylist()
        for span in sorted(rows, key=lambda span: (span["start_ns"], -span["end_ns"])):
            found.append(SampledSpan(span["name"], span["start_ns"], span["end_ns"]))
    return found


class Exporter:
    """Exports the figures of one program; :meth:`update` after each look, :meth:`close` at the end.

    ``otlp``: base URL of an OTLP/HTTP receiver, such as http://localhost:4318, or None. ``pid``: of the program, for
    the resource's attributes (its command line is not sent: it may hold secrets). Needs :func:`check_installed`.
    """

    def __init__(self, otlp: str | None, pid: int) -> None:
        self._values: list[Value] = []
        self._findings: dict[tuple[str, str, str], tuple[Diagnosis, str]] = {}  # by arm, kind and place; with its text
        self._seen_ns: dict[str, int] = {}  # begin of the last step sent as a trace, by arm
        self._failed = _LastMessage()
        from opentelemetry.exporter.prometheus import PrometheusMetricReader
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.resources import Resource
        from prometheus_client import CollectorRegistry

        named = {} if os.environ.get("OTEL_SERVICE_NAME") else {"service.name": SERVICE}
        resource = Resource.create({**named, "process.pid": pid, "host.name": platform.node()})
        self._sender = ThreadPoolExecutor(1)
        self._sending: Future[bool] | None = None
        self._registry = CollectorRegistry()
        self._traces, self._events, self._sent = _senders(otlp, resource)
        readers = [
            PrometheusMetricReader(scope_info_enabled=False, registry=self._registry),
            *([] if self._sent is None else [self._sent]),
        ]
        self._metrics = MeterProvider(readers, resource)
        meter = self._metrics.get_meter(SERVICE)
        for name, (unit, description) in METRICS.items():
            create = meter.create_observable_counter if name in COUNTERS else meter.create_observable_gauge
            create(name, [self._observed(name)], unit, description)

    def _observed(self, name: str) -> Any:
        from opentelemetry.metrics import Observation

        return lambda _: [Observation(one.value, dict(one.attributes)) for one in self._values if one.metric == name]

    def update(self, recent: Recent) -> str | None:
        """Export what was measured since the last look. Return why the collector did not get it, or None.

        While it still waits for the collector's last answer, the metrics of a look are left out.
        """
        self._values = list(values(recent))
        if self._traces is None:
            return None
        self._send_steps(recent.runs)
        self._send_findings(recent.report)
        if self._sending is None or self._sending.done():
            self._failed.text = None
            self._sending = self._sender.submit(self._flush)
        wait([self._sending], WAITED_S)
        answered = self._sending.done() and self._sending.result()
        return self._failed.text or (None if answered else "no answer")

    def _flush(self) -> bool:
        limit_ms = int(SENT_WITHIN_S * 1e3)
        flushed = [sender.force_flush(limit_ms) for sender in (self._sent, self._traces, self._events)]
        return all(flushed)

    def prometheus(self) -> bytes:
        """Return the current values in Prometheus's text format."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def close(self) -> None:
        self._sender.shutdown(wait=False)
        for provider in (self._metrics, self._traces, self._events):
            if provider is not None:
                provider.shutdown()
        self._failed.detach()

    def _send_steps(self, runs: Sequence[RunData]) -> None:
        from opentelemetry.trace import set_span_in_context

        tracer = self._traces.get_tracer(SERVICE)
        to_utc_ns = time.time_ns() - time.monotonic_ns()
        for run in runs:
            around: list[tuple[SampledSpan, Any]] = []  # the spans that are open when the next one begins
            for span in sampled_steps(run, self._seen_ns.get(run.record.arm, 0)):
                around = [(one, sent) for one, sent in around if span.end_ns <= one.end_ns and span.attributes is None]
                context = set_span_in_context(around[-1][1]) if around else None
                sent = tracer.start_span(
                    span.name, context, attributes=span.attributes, start_time=span.begin_ns + to_utc_ns
                )
                sent.end(span.end_ns + to_utc_ns)
                around.append((span, sent))
        for run in runs:
            if run.step_count:
                arm = run.record.arm
                self._seen_ns[arm] = max(_last(run, "start_ns"), self._seen_ns.get(arm, 0))

    def _send_findings(self, report: StudyReport) -> None:
        """Send an event for each finding that is new or has gone since the last look."""
        found = {
            (arm.name, str(one.kind), one.name): (
                one,
                f"{TITLES[one.kind]}: {diagnosis_text(one, arm.wall.step_ms.median)}",
            )
            for arm in report.arms
            for one in arm.diagnoses
            if arm.wall is not None
        }
        logger = self._events.get_logger(SERVICE)
        for name, of, others in ((FINDING, found, self._findings), (FINDING_ENDED, self._findings, found)):
            for key in [key for key in of if key not in others]:
                diagnosis, text = of[key]
                attributes = dict(zip(("arm", "kind", "place"), key, strict=True))
                logger.emit(
                    timestamp=time.time_ns(),
                    event_name=name,
                    body=text,
                    attributes={**attributes, "share": diagnosis.share, "duration_s": diagnosis.ms.median / 1e3},
                )
        self._findings = found


def check_installed() -> None:
    """Raise InputError, which names what to install, if the extra is missing."""
    try:
        lacking = [module for module in NEEDED if find_spec(module) is None]
    except ModuleNotFoundError as error:
        lacking = [str(error.name)]
    if lacking:
        raise InputError(f"{lacking[0]} is not installed: {INSTALL}")


def _senders(otlp: str | None, resource: Any) -> tuple[Any, Any, Any]:
    """Return the providers of traces and events, and the reader of metrics, that send to ``otlp``; None without."""
    if otlp is None:
        return None, None, None
    from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk._logs import LoggerProvider
    from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    base = otlp.rstrip("/")
    traces, events = TracerProvider(resource=resource), LoggerProvider(resource)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{base}/v1/traces", timeout=SENT_WITHIN_S)))
    events.add_log_record_processor(BatchLogRecordProcessor(OTLPLogExporter(f"{base}/v1/logs", timeout=SENT_WITHIN_S)))
    exporter = OTLPMetricExporter(f"{base}/v1/metrics", timeout=SENT_WITHIN_S)
    # With an infinite interval it exports only when flushed: after each look.
    return traces, events, PeriodicExportingMetricReader(exporter, math.inf)


class _LastMessage(logging.Handler):
    """Keeps the last message of OpenTelemetry's exporters, which otherwise go to the terminal."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text: str | None = None
        self._logger = logging.getLogger("opentelemetry")
        self._logger.addHandler(self)
        self._logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()

    def detach(self) -> None:
        self._logger.removeHandler(self)
        self._logger.propagate = True
