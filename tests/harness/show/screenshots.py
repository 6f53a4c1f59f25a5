"""``python -m tests.harness.show.screenshots STUDY --out DIR``: pictures of a study's summary.html in a real browser.

Each is named after the study: light, dark, in a narrow window, as printed, and with nothing but its steps over time.
"""

from __future__ import annotations

import argparse
import base64
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.harness.show import browser
from tests.harness.show.browser import Browser

WIDTH, NARROW, PAPER = 1060, 500, 794  # pixels; A4 at 96 per inch
ONLY_STEPS = """
for (const one of document.querySelectorAll('main > *')) if (one.id !== 'steps-over-time') one.remove();
document.getElementById('steps-over-time').open = true;
"""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.harness.show.screenshots", description=__doc__)
    parser.add_argument("study", type=Path, help="its folder")
    parser.add_argument("--name", help="what the pictures begin with (default: the folder's name)")
    parser.add_argument("--height", type=int, default=1300, help="pixels of a picture")
    parser.add_argument("--out", type=Path, required=True, help="folder for the pictures")
    chosen = parser.parse_args(arguments)
    program = browser.found()
    if program is None:
        print(f"no browser here (one of {', '.join(browser.NAMES)})", file=sys.stderr)
        return 2
    page = (chosen.study / "summary.html").resolve()
    name = chosen.name or page.parent.name
    chosen.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as profile:
        chromium = Browser(program, Path(profile))
        try:
            for kind, scheme, width, media in (
                ("light", "light", WIDTH, "screen"),
                ("dark", "dark", WIDTH, "screen"),
                ("narrow", "light", NARROW, "screen"),
                ("paper", "dark", PAPER, "print"),
            ):
                chromium.prefer(scheme, media)
                _size(chromium, width, chosen.height)
                chromium.open(page)
                if media == "print":
                    chromium.value("dispatchEvent(new Event('beforeprint'))")
                _picture(chromium, chosen.out / f"{name}-{kind}.png")
            chromium.prefer("light")
            _size(chromium, WIDTH, 900)
            chromium.open(page)
            chromium.value(ONLY_STEPS)
            _picture(chromium, chosen.out / f"{name}-steps.png")
        finally:
            chromium.close()
    return 0


def _size(chromium: Browser, width: int, height: int) -> None:
    chromium.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)


def _picture(chromium: Browser, path: Path) -> None:
    # Two frames, so that what a script drew on the change of size is there.
    chromium.value("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    path.write_bytes(base64.b64decode(chromium.call("Page.captureScreenshot", format="png")["data"]))


if __name__ == "__main__":
    sys.exit(main())
