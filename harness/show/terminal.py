"""Lays out for a terminal the first screen, and a look at a running training: the last minutes and the ranks."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from harness.show.first_screen import FirstScreen, VerdictCard
from harness.show.tables import aligned
from harness.show.words import number
from harness.study.run_data import Minute

WIDTH = 100
BLOCK = "\N{FULL BLOCK}"


def lines(screen: FirstScreen) -> list[str]:
    """Return the first screen as lines: warnings, the card or a line per comparison, the table, and the next steps."""
    text = [*_wrapped("Emulated: ", screen.emulated)] if screen.emulated else []
    for warning in screen.beware:
        text += _wrapped("! ", warning)
    if screen.card is not None:
        text += card_lines(screen.card)
    else:
        for headline in screen.headlines:
            text += _wrapped("", headline.text)
    if screen.rows:
        header, rows = screen.columns
        text += ["", *aligned([header, *rows])]
    text += _wrapped("", screen.horizon)
    text += [""] if screen.rows else []
    if screen.legend:
        text += [*_wrapped("", "; ".join(f"{short} = {name}" for short, name in screen.legend)), ""]
    return text + _next(screen)


def _next(screen: FirstScreen) -> list[str]:
    text = []
    if screen.next_steps.ranked:
        text.append("What to try next:")
        for place, line in enumerate(screen.next_steps.ranked, start=1):
            text += _wrapped(f"{place}. ", line)
    if screen.next_note:
        text += _wrapped("", screen.next_note)
    return text


def card_lines(card: VerdictCard) -> list[str]:
    """Return the verdict card as lines: title, diagnosis, the bar of a step, findings, and how sure they are."""
    text = [*_wrapped("", card.title), *_wrapped("", f"{card.diagnosis}: {card.cost}")]
    label, amount = (
        max(map(len, texts)) for texts in ([part.label for part in card.bar], [part.ms for part in card.bar])
    )
    room = WIDTH - label - amount - len("  100 %  ") - 2
    begun = 0.0
    for bar_part in card.bar:  # Each bar begins where the one above ends; together they are the whole step.
        start, end = round(room * begun), max(round(room * begun) + 1, round(room * (begun + bar_part.length)))
        begun += bar_part.length
        figures = f"{bar_part.label:{label}}  {bar_part.ms:>{amount}}  {bar_part.percent:>5}"
        text.append(f"{figures}  {' ' * min(start, room - 1)}{BLOCK * max(1, min(end, room) - start)}".rstrip())
    for finding in card.findings:
        text += _wrapped("- ", finding)
    return [*text, *_wrapped("", card.trust)]


def _wrapped(mark: str, text: str) -> list[str]:
    return textwrap.wrap(mark + text, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


BARS = "▁▂▃▄▅▆▇█"
MINUTES_SHOWN = WIDTH - 40


def look(screen: FirstScreen | None, minutes: Mapping[str, Sequence[Minute]]) -> list[str]:
    """Return the terminal's lines on a running training. ``screen``: None before the first measured step."""
    text = ["No training step was recorded yet."] if screen is None else lines(screen)
    if rows := [_row(arm, arm_minutes[-MINUTES_SHOWN:]) for arm, arm_minutes in minutes.items() if arm_minutes]:
        text += ["", *aligned([("", "median ms", "p99 ms", "longest ms", "since", "median of each minute"), *rows])]
    return text


def _row(arm: str, minutes: Sequence[Minute]) -> tuple[str, ...]:
    last = minutes[-1]
    since = datetime.fromtimestamp(minutes[0].start_utc_s, UTC)
    return (
        arm,
        number(last.p50_ms),
        number(last.p99_ms),
        number(max(minute.max_ms for minute in minutes)),
        f"{since:%H:%M} UTC",
        sparkline([minute.p50_ms for minute in minutes]),
    )


def sparkline(values: Sequence[float]) -> str:
    """Return one character per value: a bar between zero and the largest value."""
    largest = max(values) or 1.0
    return "".join(BARS[min(int(value / largest * len(BARS)), len(BARS) - 1)] for value in values)
