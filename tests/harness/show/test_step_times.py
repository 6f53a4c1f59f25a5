"""One arm's step time on every page: the mean wherever no other statistic is named."""

from __future__ import annotations

import re

from harness.show import plots
from harness.show.first_screen import first_screen
from harness.show.numbers import STEP_TIMES
from harness.show.summary import summary
from harness.show.words import number
from tests.harness.show.studies import TEXT, TOKENS, analysed
from tests.harness.synthetic import page_of


def test_every_page_gives_the_mean_or_names_its_statistic() -> None:
    report = analysed(TEXT, TOKENS, blocks=7, noise={"day": 0.05, "block": 0.05})
    screen = first_screen(report)
    arm = report.arm("text")
    mean, p50, p95 = (number(one or 0.0) for one in (arm.totals.mean_step_ms, arm.totals.p50_ms, arm.totals.p95_ms))
    told = summary(report, screen)["arms"]["text"]  # type: ignore[index, call-overload]
    assert len({mean, p50, number(arm.totals.step_ms.median)}) == 3  # or nothing is shown by what follows
    page = page_of(report)
    figure = plots.ledger(report.arms, screen.names)
    (row,) = re.findall(rf"^\| text \|.*\| {mean}, {p50}, {p95} \|$", page, re.MULTILINE)
    found = {
        "headline": re.findall(r"of ([\d.]+) ms a step", screen.headlines[0].text),
        "sentences": re.findall(r"each ([\d.]+) ms step", page),
        "picture": [figure.axes[0].texts[0].get_text().partition(" ms")[0]],
        "json": [number(told["step_mean_ms"])],
    }
    assert row
    assert {name: set(values) for name, values in found.items()} == {name: {mean} for name in found}
    assert "mean" in STEP_TIMES
    assert number(told["step_p50_ms"]) == p50
    assert number(told["step_ms"]["median"]) == number(arm.totals.step_ms.median)
