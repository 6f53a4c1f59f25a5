"""Figures of a running training at an OTLP receiver and in Prometheus's format: those of its report."""

from __future__ import annotations

import gzip
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.parser import text_string_to_metric_families

from harness.judge.report_types import StudyReport
from harness.judge.study import analyse
from harness.show import metrics
from harness.show.metrics import COUNTERS, FINDING, FINDING_ENDED, METRICS, Exporter, sampled_steps
from harness.study.run_data import Minute, RunData
from tests.harness.explain.test_history import minute
from tests.harness.synthetic import Arm, build
from trainer.errors import InputError

DASHBOARD = Path(__file__).parents[3] / "harness" / "show" / "assets" / "grafana.json"
UNITS = {"s": "_seconds", "By": "_bytes", "{token}/s": "_per_second"}
NAMES = {  # in Prometheus: with underscores, the unit, and _total for a counter
    name.replace(".", "_") + UNITS.get(unit, "") + "_total" * (name in COUNTERS) for name, (unit, _) in METRICS.items()
}
REQUESTS = {
    "/v1/metrics": ExportMetricsServiceRequest,
    "/v1/traces": ExportTraceServiceRequest,
    "/v1/logs": ExportLogsServiceRequest,
}


@dataclass
class Look:
    report: StudyReport
    runs: list[RunData]
    minutes: dict[str, list[Minute]] = field(default_factory=dict)


def look(**phases: float) -> Look:
    study, runs = build([Arm("script", facts={"attached": "backward"}, **phases)], [])
    return Look(analyse(study, runs), runs, {"script": [minute(3, 100, 10.0)]})


@contextmanager
def receiver(status: int = 200) -> Iterator[tuple[str, dict[str, list[Any]]]]:
    """An OTLP/HTTP receiver: its address, and the requests that it gets by path."""
    got: dict[str, list[Any]] = {path: [] for path in REQUESTS}

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            request = REQUESTS[self.path]()
            request.ParseFromString(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body)
            got[self.path].append(request)
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", got
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def silent() -> Iterator[str]:
    """An address that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@contextmanager
def exporter(otlp: str | None) -> Iterator[Exporter]:
    opened = Exporter(otlp, 7)
    try:
        yield opened
    finally:
        opened.close()


def served(opened: Exporter) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Samples of Prometheus's format by name."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(opened.prometheus().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def test_prometheus_gets_each_figure_of_the_report_once() -> None:
    measured = look(tokenize=20.0)
    (arm,) = measured.report.arms
    with exporter(None) as opened:
        opened.update(measured)
        opened.update(measured)
        found = served(opened)
    assert {"arm": "script", "statistic": "p50"} in [labels for labels, _ in found["harness_step_duration_seconds"]]
    parts = {labels["part"]: value for labels, value in found["harness_step_part_duration_seconds"]}
    assert len(found["harness_step_part_duration_seconds"]) == len(arm.parts)
    assert parts["tokenize"] == pytest.approx(
        max(part.ms.median for part in arm.parts if part.name == "tokenize") / 1e3
    )
    assert sum(parts.values()) == pytest.approx(arm.wall.step_ms.median / 1e3, rel=1e-6) if arm.wall else False
    ((_, steps),) = found["harness_steps_total"]
    assert steps == 1 + max(run.steps["step"][-1].as_py() for run in measured.runs if run.steps is not None)
    assert found["process_memory_usage_bytes"] == [({"arm": "script"}, 3e6)]
    assert found.keys() - {"target_info"} == NAMES


def test_a_receiver_gets_metrics_findings_once_and_two_new_steps_of_each_block() -> None:
    slow, fast = look(tokenize=20.0), look(tokenize=0.0)
    with receiver() as (address, got):
        with exporter(address + "/") as opened:
            assert [opened.update(slow), opened.update(slow), opened.update(fast)] == [None, None, None]
        requests = {path: [one for request in asked for one in found(request)] for path, asked in got.items()}
    names = {metric.name: metric.unit for metric in requests["/v1/metrics"]}
    assert names.items() <= {name: unit for name, (unit, _) in METRICS.items()}.items()
    assert {"harness.step.duration", "harness.finding.duration"} <= names.keys()
    events = [
        (event.event_name, {one.key: one.value.string_value for one in event.attributes}["kind"])
        for event in requests["/v1/logs"]
    ]
    assert events.count((FINDING, "input-bound")) == 1
    assert events.count((FINDING_ENDED, "input-bound")) == 1
    spans = requests["/v1/traces"]
    steps = [span for span in spans if not span.parent_span_id]
    assert {span.name for span in steps} == {"training step"}
    assert len(steps) == 2 * len(slow.runs)  # The second and third look have no new steps.
    for step in steps:
        inside = [span for span in spans if span.trace_id == step.trace_id and span is not step]
        assert inside
        assert all(step.start_time_unix_nano <= span.start_time_unix_nano for span in inside)
        assert all(span.end_time_unix_nano <= step.end_time_unix_nano for span in inside)


def found(request: Any) -> Iterator[Any]:
    """Metrics, spans or events of an OTLP request."""
    for of_resource in (
        *getattr(request, "resource_metrics", ()),
        *getattr(request, "resource_spans", ()),
        *getattr(request, "resource_logs", ()),
    ):
        for name in ("scope_metrics", "scope_spans", "scope_logs"):
            for scope in getattr(of_resource, name, ()):
                yield from getattr(scope, {"scope_metrics": "metrics", "scope_spans": "spans"}.get(name, "log_records"))


def test_sampled_steps_are_the_longest_and_a_median_one() -> None:
    (run, *_) = look(tokenize=20.0).runs
    assert run.steps is not None
    durations_ns = sorted(run.steps["wall_ns"].to_pylist())
    steps = [span for span in sampled_steps(run, 0) if span.attributes is not None]
    assert [span.end_ns - span.begin_ns for span in steps] == [durations_ns[-1], durations_ns[len(durations_ns) // 2]]
    assert sampled_steps(run, run.steps["start_ns"][-1].as_py()) == []


@pytest.mark.parametrize("status", [400, None])
def test_a_receiver_that_refuses_or_is_not_there_is_named_and_delays_no_further_look(
    status: int | None, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metrics, "SENT_WITHIN_S", 0.3)
    with receiver(status or 200) as (address, _), exporter(address if status else "http://127.0.0.1:9") as opened:
        assert opened.update(look(tokenize=20.0))
    assert capfd.readouterr() == ("", "")  # OpenTelemetry's own messages would scroll the view away.


def test_a_receiver_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its first look is still on its way when the next ones come: they are not sent, and served nevertheless."""
    monkeypatch.setattr(metrics, "SENT_WITHIN_S", 2.0)
    monkeypatch.setattr(metrics, "WAITED_S", 0.0)
    with silent() as address, exporter(address) as opened:
        assert [opened.update(look(tokenize=cost)) for cost in (20.0, 10.0)] == ["no answer", "no answer"]
        assert served(opened)["harness_steps_total"]


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "NEEDED", ("opentelemetry.nowhere",))
    with pytest.raises(InputError, match="export"):
        metrics.check_installed()


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    asked = [target["expr"] for panel in panels for target in panel["targets"]]
    for name in NAMES:
        assert any(name in expression for expression in asked), name
    assert all(any(name in expression for name in NAMES) for expression in asked)
