"""summary.html in a real browser: it loads by itself, sorts, tells each step when pointed at, and has a dark side."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from harness.show import drawing
from harness.show.build import build_report
from harness.show.server import EVENTS, HTML, Changes, Route, TraceServer
from harness.study.store import StudyFolder
from tests.harness.show import browser
from tests.harness.show.browser import Browser
from tests.harness.synthetic import Arm, build, write

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason=f"no browser here (one of {', '.join(browser.NAMES)})"),
]
LEAST_TEXT = drawing.TEXT  # points of the smallest text of a picture
BACKGROUND = "getComputedStyle(document.body).backgroundColor"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study whose names and question would be scripts, were they let."""
    folder = tmp_path_factory.mktemp("study")
    slow = Arm("text<img src=x onerror=bad()>", tokenize=9.0, declared={"data.path": "text-padded"})
    fast = Arm("tokens", tokenize=0.0, declared={"data.path": "tokens-padded"})
    study, runs = build(
        [slow, fast, *slow.controls("a-a", "data-only"), *fast.controls("data-only")], [(slow.name, fast.name)]
    )
    question = "<script>window.bad = 1</script> **Is it** faster?"
    write(StudyFolder(folder), replace(study, question=question), runs)
    build_report(folder)
    return folder / "summary.html"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with Browser(800, 600) as one:
        yield one


@pytest.fixture
def opened(chromium: Browser, page: Path) -> Browser:
    chromium.prefer("light")
    chromium.open(page)
    return chromium


def test_it_loads_without_a_request_an_error_or_a_foreign_script(opened: Browser, page: Path) -> None:
    assert opened.value("window.bad === undefined && document.images.length === 0 && document.scripts.length === 3")
    assert "<script>window.bad = 1</script> **Is it** faster?" in opened.value("document.body.innerText")
    assert [one["request"]["url"] for one in opened.reported("Network.requestWillBeSent")] == [page.as_uri()]
    for trouble in ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded"):
        assert opened.reported(trouble) == []


def test_a_click_on_a_header_sorts_and_the_next_turns_it_round(opened: Browser) -> None:
    table = "document.querySelector('#arms table')"
    column = f"[...{table}.tBodies[0].rows].map((row) => parseInt(row.cells[1].textContent.replace(',', '')))"
    click = f"{table}.tHead.rows[0].cells[1].querySelector('button').click()"
    sort = f"{table}.tHead.rows[0].cells[1].getAttribute('aria-sort')"
    assert opened.value(sort) == "none"
    opened.value(click)
    up = opened.value(column)
    assert len(up) == 2
    assert (opened.value(sort), up) == ("ascending", sorted(up))
    opened.value(click)
    assert (opened.value(sort), opened.value(column)) == ("descending", up[::-1])
    # Dark follows the system, and the button turns it round.
    light = opened.value(BACKGROUND)
    opened.prefer("dark")
    assert opened.value(BACKGROUND) != light
    opened.value("document.getElementById('theme').click()")
    assert opened.value(BACKGROUND) == light


def test_pointing_at_a_step_tells_which_it_is(opened: Browser) -> None:
    opened.value("location.hash = '#steps-over-time'")
    opened.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")  # it is laid out
    opened.value("document.querySelector('.chart').scrollIntoView()")
    box = "document.querySelector('{}').getBoundingClientRect()"
    right, bottom, plot_right, plot_bottom = (
        opened.value(f"{box.format(one)}.{side}") for one in (".chart", ".u-over") for side in ("right", "bottom")
    )
    assert plot_right <= right
    assert plot_bottom <= bottom - 50  # below it is the axis with its numbers and what they count
    key = "document.querySelector('.chart').dispatchEvent(new KeyboardEvent('keydown', {key: 'ArrowRight'}))"
    opened.value(key)
    by_key = opened.value("document.querySelector('.tip').textContent")
    assert "block 0, repetition 0, step 1: " in by_key
    x, y, width, height = (
        opened.value(f"document.querySelector('.ring').getBoundingClientRect().{side}")
        for side in ("x", "y", "width", "height")
    )
    opened.point_at(5, 5)
    opened.value("document.querySelector('.u-over').dispatchEvent(new MouseEvent('mouseleave'))")
    assert opened.value("document.querySelector('.tip').hidden")
    opened.point_at(x + width / 2, y + height / 2)
    assert not opened.value("document.querySelector('.tip').hidden")
    assert ", step " in opened.value("document.querySelector('.tip').textContent")


@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_nothing_is_cut_in_a_window_of_any_width(opened: Browser, width: int) -> None:
    opened.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
    opened.value("for (const one of document.querySelectorAll('details')) one.open = true")
    opened.value("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    right = "one.closest('.wide') && innerWidth > 640 ? 0 : one.getBoundingClientRect().right"
    every = "[...document.querySelectorAll('main *:not(svg *):not(.u-wrap *)')]"
    window = opened.value("document.documentElement.clientWidth")
    assert opened.value(f"Math.max(...{every}.map((one) => {right}))") <= window
    shown = opened.value(
        "[...document.querySelectorAll('figure svg')].filter((one) => one.getBoundingClientRect().width)"
        ".map((one) => one.getBoundingClientRect().width / one.viewBox.baseVal.width)"
    )
    assert len(shown) >= 3
    assert all(LEAST_TEXT * pixels >= 12 for pixels in shown)
    opened.call("Emulation.clearDeviceMetricsOverride")


@pytest.mark.nightly
def test_no_two_of_sixteen_arms_look_alike_in_the_scatter(chromium: Browser, tmp_path: Path) -> None:
    """The arms of a compared pair are eight apart where a matrix has eight settings."""
    arms = [Arm(f"{data}-{number}") for data in ("text", "tokens") for number in range(8)]
    study, runs = build(arms, [(f"text-{number}", f"tokens-{number}") for number in range(8)], blocks=3)
    write(StudyFolder(tmp_path), study, runs)
    build_report(tmp_path)
    chromium.open(tmp_path / "summary.html")
    marks = "[...document.querySelectorAll('#steps .legend i')]"
    looks = chromium.value(f"{marks}.map((mark) => mark.style.background + mark.style.boxShadow).join('|')").split("|")
    assert len(looks) == len(set(looks)) == 16
    colours = [look[look.index("--c") :][:4] for look in looks]
    assert all(first != second for first, second in zip(colours, colours[8:], strict=False))


def wait_until(chromium: Browser, expression: str) -> None:
    """Raises AssertionError if it does not become true within a minute. A page that reloads has no value to give."""
    for _ in range(600):
        with suppress(AssertionError):
            if chromium.value(expression):
                return
        time.sleep(0.1)
    raise AssertionError(expression)


@pytest.mark.nightly
def test_the_page_of_a_running_training_reloads_after_each_look(chromium: Browser, page: Path, tmp_path: Path) -> None:
    """What was unfolded, the theme and the place stay; at the end it says that this was the last look."""
    shutil.copytree(page.parent, tmp_path / "study")
    study = StudyFolder(tmp_path / "study")
    build_report(study.path, live=True)
    first = study.summary_html.read_bytes()
    changes = Changes()
    server = TraceServer({"/": Route(first, HTML), "/changes": Route(changes, EVENTS)})
    try:
        chromium.open(f"http://127.0.0.1:{server.port}/")
        unfolded = "[...document.querySelectorAll('details[open]')].map((one) => one.id).join()"
        theme = "document.documentElement.dataset.theme"
        before = chromium.value(unfolded)
        chromium.value("document.querySelector('details:not([open])').open = true")
        chromium.value("document.getElementById('theme').click(); scrollTo(0, 300)")
        mine = [chromium.value(one) for one in (unfolded, theme, "scrollY")]
        assert mine[0] != before
        server.routes = {**server.routes, "/": Route(first.replace(b"</h1>", b" again</h1>", 1), HTML)}
        changes.tell("look")
        wait_until(chromium, "document.querySelector('h1').textContent.endsWith(' again')")
        wait_until(chromium, "document.querySelector('header + p').textContent.startsWith('Live')")
        assert [chromium.value(one) for one in (unfolded, theme, "scrollY")] == mine
        changes.tell("ended")
        wait_until(chromium, "document.querySelector('header + p').textContent.includes('ended')")
        assert not chromium.reported("Log.entryAdded")
    finally:
        server.close()
